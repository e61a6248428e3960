// Package poll waits for conditions, with one generous limit for all of them.
package poll

import (
	"errors"
	"testing"
	"time"
)

// Patience bounds every wait. No step should take that long, even on a busy machine.
const Patience = 90 * time.Second

// The pauses between two checks grow: a long wait costs little, and a short one ends promptly.
const (
	shortestPause = 20 * time.Millisecond
	longestPause  = 500 * time.Millisecond
)

// Until polls until check returns nil, and fails the test after Patience.
func Until(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(Patience)
	for pause := shortestPause; ; pause = min(pause*5/4, longestPause) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not after %v: %v", what, Patience, err)
		}
		time.Sleep(pause)
	}
}

// Receive returns the next value of a channel, and fails the test after Patience.
func Receive[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(Patience):
		t.Fatalf("%s: not after %v", what, Patience)
		panic("unreachable")
	}
}

// ErrNotYet is for conditions that have nothing else to say.
var ErrNotYet = errors.New("not yet")
