// Package kubectl runs kubectl and helm, and compares what they print.
package kubectl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// Command is one run of kubectl.
type Command struct {
	Args  []string
	Stdin string
	Env   []string
}

func (c Command) String() string { return "kubectl " + strings.Join(c.Args, " ") }

// Result is what a command printed, and its exit code.
type Result struct {
	Stdout, Stderr string
	Code           int
}

// homes holds kubectl's home, with its cache of discovery, for each target and test.
var homes sync.Map

func prepare(tt *testing.T, t api.Target, ctx context.Context, c Command) *exec.Cmd {
	home, ok := homes.Load(tt.Name() + t.Name)
	if !ok {
		home, _ = homes.LoadOrStore(tt.Name()+t.Name, tt.TempDir())
	}
	cmd := exec.CommandContext(ctx, filepath.Join(testbed.Programs, "kubectl"), c.Args...)
	cmd.Env = append([]string{"PATH=/usr/bin:/bin", "HOME=" + home.(string), "KUBECONFIG=" + t.Kubeconfig}, c.Env...)
	// kubectl must not outlive this process. The signal belongs to the thread that forks, and
	// Go may retire that thread early. Go does so only with a goroutine that is locked to it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if c.Stdin != "" {
		cmd.Stdin = strings.NewReader(c.Stdin)
	}
	return cmd
}

// Run runs kubectl against a target.
func Run(tt *testing.T, t api.Target, c Command) Result {
	tt.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*poll.Patience)
	defer cancel()
	cmd := prepare(tt, t, ctx, c)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		tt.Fatalf("%s, %v: %v, %v\n%s", t.Name, c, err, ctx.Err(), stderr.String())
	}
	return Result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

var (
	age    = regexp.MustCompile(`\b(\d+[dhms])+\b`)
	spaces = regexp.MustCompile(` {2,}`)
)

// Comparable returns a result without what differs between runs: the server's address,
// versions, times, ages and the width of their column.
func (r Result) Comparable(of api.Target, words map[string]string) string {
	words = with(words, of.URL, "SERVER", strings.TrimPrefix(of.URL, "https://"), "SERVER", of.CA, "CA")
	text := api.Blank(fmt.Sprintf("exit %d\n--- stdout\n%s--- stderr\n%s", r.Code, r.Stdout, r.Stderr), words)
	return spaces.ReplaceAllString(age.ReplaceAllString(text, "AGE"), " ")
}

func with(words map[string]string, more ...string) map[string]string {
	all := map[string]string{}
	for k, v := range words {
		all[k] = v
	}
	for i := 0; i+1 < len(more); i += 2 {
		all[more[i]] = more[i+1]
	}
	return all
}

// Same runs a read-only command both ways and compares the results.
func Same(t *testing.T, c Command) {
	t.Helper()
	want := Run(t, testbed.Upstream, c).Comparable(testbed.Upstream, nil)
	got := Run(t, testbed.Proxied, c).Comparable(testbed.Proxied, nil)
	if want != got {
		t.Errorf("%v\nupstream: %s\nproxied:  %s", c, want, got)
	}
	t.Logf("%v: %.6s", c, want)
}

// Script runs commands one after the other both ways and compares each step. Each way has a
// namespace of its own.
func Script(t *testing.T, commands ...Command) (namespaces map[string]string) {
	t.Helper()
	namespaces = map[string]string{}
	for _, to := range testbed.Targets() {
		namespaces[to.Name] = objects.Namespace(t)
	}
	for _, c := range commands {
		var texts []string
		for _, to := range testbed.Targets() {
			ns := namespaces[to.Name]
			here := c
			here.Args = append([]string{"--namespace", ns}, c.Args...)
			texts = append(texts, Run(t, to, here).Comparable(to, map[string]string{ns: "NAMESPACE"}))
		}
		if texts[0] != texts[1] {
			t.Errorf("%v\nupstream: %s\nproxied:  %s", c, texts[0], texts[1])
		}
		t.Logf("%v: %.6s", c, texts[0])
	}
	return namespaces
}

// Args returns a command for a line of arguments.
func Args(line string) Command { return Command{Args: strings.Fields(line)} }

// Apply returns a command that reads a manifest on stdin.
func Apply(line, manifest string) Command {
	c := Args(line + " -f -")
	c.Stdin = manifest
	return c
}

// Background is a kubectl that keeps running during the test.
type Background struct {
	Cmd            *exec.Cmd
	Stdout, Stderr Output
	done           chan struct{}
}

// Output can be read while it grows.
type Output struct {
	mutex sync.Mutex
	text  []byte
}

// Write appends to the output.
func (o *Output) Write(p []byte) (int, error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	o.text = append(o.text, p...)
	return len(p), nil
}

func (o *Output) String() string {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return string(o.text)
}

// Start starts a kubectl that ends with the test at the latest.
func Start(tt *testing.T, t api.Target, c Command, stdin io.Reader) *Background {
	tt.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	b := &Background{Cmd: prepare(tt, t, ctx, c), done: make(chan struct{})}
	b.Cmd.Stdout, b.Cmd.Stderr = &b.Stdout, &b.Stderr
	if stdin != nil {
		b.Cmd.Stdin = stdin
	}
	require.NoError(tt, b.Cmd.Start())
	go func() {
		b.Cmd.Wait()
		close(b.done)
	}()
	tt.Cleanup(func() {
		cancel()
		<-b.done
	})
	return b
}

// WaitFor waits until the output satisfies a condition.
func (b *Background) WaitFor(t *testing.T, what string, want func(stdout string) bool) {
	t.Helper()
	poll.Until(t, what, func() error {
		if !want(b.Stdout.String()) {
			return fmt.Errorf("stdout %q, stderr %q", b.Stdout.String(), b.Stderr.String())
		}
		return nil
	})
}

// Wait waits until kubectl ends.
func (b *Background) Wait(t *testing.T) Result {
	t.Helper()
	poll.Receive(t, b.Cmd.String(), b.done)
	return Result{b.Stdout.String(), b.Stderr.String(), b.Cmd.ProcessState.ExitCode()}
}
