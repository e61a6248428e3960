// Package require ends a test when a step of its set-up fails.
package require

import (
	"testing"
)

// Value is for set-up steps that are not what is tested.
func Value[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func NoError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
