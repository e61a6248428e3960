// Package child starts programs that end with this process, however it ends.
package child

import (
	"bytes"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// starter returns the channel to the one thread that starts children.
//
// The kernel ties a parent-death signal to the thread that forked, not to the
// process. A child that a pool thread forked dies when Go retires that thread.
// One goroutine therefore keeps one thread for as long as the program lives.
var starter = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for start := range work {
			start()
		}
	}()
	return work
})

// Start starts a command that the kernel kills when this process ends.
func Start(command *exec.Cmd) error {
	if command.SysProcAttr == nil {
		command.SysProcAttr = &syscall.SysProcAttr{}
	}
	command.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	starter() <- func() { started <- command.Start() }
	return <-started
}

// CombinedOutput runs a command that the kernel kills when this process ends. It returns what the
// command wrote to its standard output and standard error.
func CombinedOutput(command *exec.Cmd) ([]byte, error) {
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	if err := Start(command); err != nil {
		return nil, err
	}
	err := command.Wait()
	return output.Bytes(), err
}
