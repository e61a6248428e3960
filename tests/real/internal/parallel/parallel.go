// Package parallel does the same with many values at once.
package parallel

import (
	"runtime"
	"sync"
)

// ForEach calls do for all values, n at a time.
//
// A do that fails the test by t.Fatal ends its goroutine. ForEach then calls do for no further
// values, and ends the caller's goroutine as t.Fatal would have done there.
func ForEach[T any](n int, all []T, do func(int, T)) {
	next, left := make(chan int), make(chan struct{})
	leave := sync.OnceFunc(func() { close(left) })
	var running sync.WaitGroup
	for range n {
		running.Go(func() {
			returned := false
			defer func() {
				if !returned {
					leave()
				}
			}()
			for i := range next {
				do(i, all[i])
			}
			returned = true
		})
	}
	feed(next, len(all), left)
	close(next)
	running.Wait()
	select {
	case <-left:
		runtime.Goexit()
	default:
	}
}

// feed sends the numbers below n, until left is closed.
func feed(next chan<- int, n int, left <-chan struct{}) {
	for i := range n {
		select {
		case next <- i:
		case <-left:
			return
		}
	}
}
