// Package require ends a test when a step of its set-up fails.
package require

import (
	"testing"
)

// Value returns the value of a set-up step, or fails the test with its error.
func Value[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// NoError fails the test after an error.
func NoError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
