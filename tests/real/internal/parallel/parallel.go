// Package parallel does the same with many values at once.
package parallel

import (
	"sync"
)

// ForEach calls do for all values, n at a time.
func ForEach[T any](n int, all []T, do func(int, T)) {
	next := make(chan int)
	var running sync.WaitGroup
	for range n {
		running.Go(func() {
			for i := range next {
				do(i, all[i])
			}
		})
	}
	for i := range all {
		next <- i
	}
	close(next)
	running.Wait()
}
