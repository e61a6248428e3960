package cgroup

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestAProgramThatNeedsMoreThanItsLimitIsKilledAndCounted(t *testing.T) {
	group, err := New("watershed-cgroup-test", 16<<20)
	if errors.Is(err, ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := group.Remove(); err != nil {
			t.Error(err)
		}
	})
	kills := func() int {
		count, err := group.Kills()
		if err != nil {
			t.Fatal(err)
		}
		return count
	}
	in, err := group.Command("/bin/sh", "-c", "cat /proc/self/cgroup").Output()
	if err != nil || !strings.Contains(string(in), "/watershed-cgroup-test\n") || kills() != 0 {
		t.Fatalf("%v, in %s, %d kills", err, in, kills())
	}
	// A shell variable of 64 MiB.
	err = group.Command("/bin/sh", "-c", "v=$(head -c 67108864 /dev/zero | tr '\\0' x); echo ${#v}").Run()
	var ended *exec.ExitError
	if !errors.As(err, &ended) || kills() == 0 {
		t.Fatalf("%v, %d kills", err, kills())
	}
	peak, err := group.Peak()
	if errors.Is(err, os.ErrNotExist) {
		t.Skip(err)
	}
	if err != nil || peak < 8<<20 || peak > 16<<20 {
		t.Errorf("peak %d, %v", peak, err)
	}
}
