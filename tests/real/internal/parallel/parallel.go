// Package parallel does the same with many values at once.
package parallel

import (
	"sync"
)

// ForEach send requests at the same time; most of the time of some is waiting.
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
