// Package cgroup limits the memory of a program that a test starts, as a container does.
package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ErrUnavailable reports that the system does not let this process create a group with a memory
// limit.
var ErrUnavailable = errors.New("no control group with a memory limit can be created")

// patience bounds the wait for the kernel to take the last process out of a group.
const patience = 10 * time.Second

// hierarchy holds the names of the files of one version of control groups.
type hierarchy struct {
	root, limit, swap, peak, events string
}

var (
	version1 = hierarchy{
		root:   "/sys/fs/cgroup/memory",
		limit:  "memory.limit_in_bytes",
		swap:   "memory.memsw.limit_in_bytes",
		peak:   "memory.max_usage_in_bytes",
		events: "memory.oom_control",
	}
	version2 = hierarchy{
		root:   "/sys/fs/cgroup",
		limit:  "memory.max",
		swap:   "memory.swap.max",
		peak:   "memory.peak",
		events: "memory.events",
	}
)

// Memory is a control group with a memory limit.
type Memory struct {
	files hierarchy
	dir   string
}

// New creates a group of this name with a limit in bytes and no swap. It replaces an empty one that
// an earlier run left behind. The error is ErrUnavailable if the system has or permits no such groups.
func New(name string, limit int) (*Memory, error) {
	files := version1
	if _, err := os.Stat(filepath.Join(files.root, files.limit)); err != nil {
		files = version2
		controllers, err := os.ReadFile(filepath.Join(files.root, "cgroup.subtree_control"))
		if err != nil || !strings.Contains(string(controllers), "memory") {
			return nil, ErrUnavailable
		}
	}
	m := &Memory{files, filepath.Join(files.root, name)}
	os.Remove(m.dir)
	if err := os.Mkdir(m.dir, 0o755); err != nil {
		return nil, unavailable(err)
	}
	swap := "0"
	if files == version1 {
		// It counts memory and swap together.
		swap = strconv.Itoa(limit)
	}
	if err := m.write(files.limit, strconv.Itoa(limit)); err != nil {
		return nil, errors.Join(unavailable(err), m.Remove())
	}
	// A kernel without swap has no such file.
	if err := m.write(files.swap, swap); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, errors.Join(unavailable(err), m.Remove())
	}
	return m, nil
}

// unavailable marks an error that says what the system does not have or permit. Others are mistakes, such as a
// group that another run still uses.
func unavailable(err error) error {
	for _, denied := range []error{os.ErrPermission, os.ErrNotExist, syscall.EROFS} {
		if errors.Is(err, denied) {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
	}
	return err
}

func (m *Memory) write(file, text string) error {
	f, err := os.OpenFile(filepath.Join(m.dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// Command returns the command such that the program is in the group from its first instruction on.
// It keeps the id of the process that is started.
func (m *Memory) Command(program string, args ...string) *exec.Cmd {
	const enter = `echo $$ > "$0" && exec "$@"`
	procs := filepath.Join(m.dir, "cgroup.procs")
	return exec.Command("/bin/sh", append([]string{"-c", enter, procs, program}, args...)...)
}

// Peak returns the most bytes that the group has used: the memory of its processes, sockets and the
// files that they read and wrote. Old kernels of version 2 do not count it: os.ErrNotExist.
func (m *Memory) Peak() (int, error) {
	text, err := os.ReadFile(filepath.Join(m.dir, m.files.peak))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// Kills returns the number of processes that the kernel killed because they used more than the limit.
func (m *Memory) Kills() (int, error) {
	text, err := os.ReadFile(filepath.Join(m.dir, m.files.events))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if count, found := strings.CutPrefix(line, "oom_kill "); found {
			return strconv.Atoi(strings.TrimSpace(count))
		}
	}
	return 0, fmt.Errorf("%s does not tell of kills", m.files.events)
}

// Remove removes the group once its processes have ended.
func (m *Memory) Remove() error {
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		err := os.Remove(m.dir)
		if !errors.Is(err, syscall.EBUSY) || time.Now().After(deadline) {
			return err
		}
	}
}
