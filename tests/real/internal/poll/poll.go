// Package poll waits for conditions, with one generous limit for all of them.
package poll

import (
	"errors"
	"testing"
	"time"
)

// Patience bounds every wait. Nothing is expected to take this long, even on a
// machine that has much else to do.
const Patience = 90 * time.Second

// Until polls until check returns nil.
func Until(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(Patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not after %v: %v", what, Patience, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Receive fails the test if the channel yields nothing in time.
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

var ErrNotYet = errors.New("not yet")
