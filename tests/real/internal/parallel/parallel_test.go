package parallel

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// TestForEachCallsForAllValues counts the calls.
func TestForEachCallsForAllValues(t *testing.T) {
	var sum atomic.Int64
	all := make([]int64, 1000)
	for i := range all {
		all[i] = int64(i)
	}
	ForEach(7, all, func(i int, value int64) {
		if int64(i) != value {
			t.Errorf("value %d comes as number %d", value, i)
		}
		sum.Add(value)
	})
	if sum.Load() != 499_500 {
		t.Errorf("the sum of all values is %d", sum.Load())
	}
}

// TestForEachEndsWithAWorker has each worker leave as t.Fatal does. ForEach neither waits for them
// for ever nor returns as if all values were done.
func TestForEachEndsWithAWorker(t *testing.T) {
	for _, workers := range []int{1, 4} {
		ended, returned := make(chan struct{}), false
		var calls atomic.Int64
		go func() {
			defer close(ended)
			ForEach(workers, make([]int, 1000), func(int, int) {
				calls.Add(1)
				runtime.Goexit()
			})
			returned = true
		}()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Fatalf("with %d workers it waits for ever", workers)
		}
		if returned || calls.Load() > int64(workers) {
			t.Errorf("with %d workers it made %d calls; returned: %v", workers, calls.Load(), returned)
		}
	}
}
