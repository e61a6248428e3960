// Package real runs real Kubernetes clients, such as kubectl and client-go, against a real
// kube-apiserver through watershed. They have to see what they would see without it. The tests
// share one cluster.
package real

import (
	"os"
	"testing"

	"watershed.test/real/internal/testbed"
)

func TestMain(m *testing.M) {
	// Tests that run beside others wait most of the time.
	os.Exit(testbed.Main(m, "4", testbed.Share))
}
