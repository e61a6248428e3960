package testbed

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// Main builds the programs and runs the tests of a package, so many of those that call t.Parallel
// at a time. Tests that share a cluster get one before. It returns the exit code.
func Main(m *testing.M, parallel string, share func() error) int {
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		flag.Set("test.parallel", parallel)
	}
	for _, prepare := range []func() error{enterModule, build, share} {
		if err := prepare(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	if Shared != nil {
		defer Shared.Stop()
	}
	return m.Run()
}

// enterModule makes the module's directory the present one. All paths begin there, whichever
// package's tests run.
func enterModule() error {
	dir, err := os.Getwd()
	for err == nil {
		if _, missing := os.Stat(filepath.Join(dir, "go.mod")); missing == nil {
			return os.Chdir(dir)
		}
		if dir == filepath.Dir(dir) {
			return errors.New("no go.mod in this directory or above")
		}
		dir = filepath.Dir(dir)
	}
	return err
}

// build builds the programs. Packages are tested at the same time, and only one of them builds.
func build() error {
	if err := os.MkdirAll(".bin", 0o755); err != nil {
		return err
	}
	lock, err := os.Create(filepath.Join(".bin", "building"))
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("%s: %w", lock.Name(), err)
	}
	program := exec.Command("./build.sh")
	program.Stdout, program.Stderr = os.Stderr, os.Stderr
	if err := program.Run(); err != nil {
		return fmt.Errorf("build.sh: %w", err)
	}
	return nil
}
