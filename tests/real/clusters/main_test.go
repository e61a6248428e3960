// Package clusters has the tests that start API servers of their own: to kill them, to run others
// than the shared one, or to count what they are asked for. They run beside those of the shared
// cluster.
package clusters

import (
	"os"
	"testing"

	"watershed.test/real/internal/testbed"
)

func TestMain(m *testing.M) {
	// Most of these tests wait for timers.
	os.Exit(testbed.Main(m, "4", func() error { return nil }))
}
