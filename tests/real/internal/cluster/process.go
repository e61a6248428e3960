package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"watershed.test/real/internal/child"
)

// termPatience bounds the end of a process after SIGTERM. A kube-apiserver finishes requests in
// flight, for up to a minute. A longer time is worth an error.
const termPatience = 75 * time.Second

// process is one child. The zero value is a child that was never started.
type process struct {
	name string
	log  string
	cmd  *exec.Cmd
	// done is closed when the child has been waited for.
	done chan struct{}
}

// spawn starts a child whose output is appended to its log file.
func spawn(name, dir, program string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	// The child has its own copy of the descriptor.
	defer log.Close()

	p.cmd = exec.Command(program, args...)
	p.cmd.Dir = dir
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{
		// Ctrl-C in a terminal reaches only the harness, which then stops the children in its
		// own order.
		Setpgid: true,
	}
	if err := child.Start(p.cmd); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go func() {
		p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func (p *process) running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

func (p *process) pid() int {
	if !p.running() {
		return 0
	}
	return p.cmd.Process.Pid
}

// end signals the child and waits until it is gone.
func (p *process) end(sig syscall.Signal) error {
	if !p.running() {
		return errors.New("not running")
	}
	p.cmd.Process.Signal(sig)
	select {
	case <-p.done:
		return nil
	case <-time.After(termPatience):
		p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s did not end within %v of %v and was killed", p.name, termPatience, sig)
	}
}

// failed returns an error about the child with the last lines of its log.
func (p *process) failed(why string) error {
	return fmt.Errorf("%s: %s; the end of its log:\n%s", p.name, why, p.tail(4000))
}

// bindFailed reports whether the child ended because its port was taken.
func (p *process) bindFailed() bool {
	return p != nil && !p.running() && strings.Contains(p.tail(20000), "address already in use")
}

func (p *process) tail(size int) string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	if len(text) > size {
		text = text[len(text)-size:]
		if i := bytes.IndexByte(text, '\n'); i >= 0 {
			text = text[i+1:]
		}
	}
	return string(text)
}

// await polls until check succeeds, the child ends, or patience is over.
func (p *process) await(patience time.Duration, check func() error) error {
	deadline := time.Now().Add(patience)
	for {
		err := check()
		switch {
		case err == nil:
			return nil
		case !p.running():
			return p.failed("ended early")
		case time.Now().After(deadline):
			return p.failed(fmt.Sprintf("not ready after %v: %v", patience, err))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// killAll kills the remaining children, all at the same time.
func killAll(all ...*process) {
	var wg sync.WaitGroup
	for _, p := range all {
		if p.running() {
			wg.Go(func() { p.end(syscall.SIGKILL) })
		}
	}
	wg.Wait()
}
