// Package real runs real Kubernetes clients, such as kubectl and client-go, against a real
// kube-apiserver through watershed. They have to see what they would see without it.
package real

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"watershed.test/real/internal/testbed"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Tests that run beside others wait most of the time.
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		flag.Set("test.parallel", "4")
	}
	os.Exit(func() int {
		if err := testbed.Prepare(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer testbed.Shared.Stop()
		return m.Run()
	}())
}
