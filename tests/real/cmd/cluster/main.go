// Command cluster runs a throw-away Kubernetes control plane on loopback: one etcd, one or more
// kube-apiservers, and a watershed in front if asked. Tests in any language drive it over its
// standard streams. One line of JSON on stdout says that it is ready and where everything is.
// After that, each line on stdin is a command and gets a line as its answer.
//
// Nothing outlives it. It stops when stdin ends, on SIGINT and on SIGTERM. If it is killed
// outright, the kernel kills its children.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"watershed.test/real/internal/cluster"
)

// list collects a flag that may be repeated.
type list []string

func (l *list) String() string     { return strings.Join(*l, " ") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

// numbered splits a flag's value N=VALUE.
func numbered(s string) (n int, value string, err error) {
	number, value, found := strings.Cut(s, "=")
	if n, err = strconv.Atoi(number); err == nil && !found {
		err = errors.New("it has no =")
	}
	return n, value, err
}

func main() {
	var o cluster.Options
	flag.IntVar(&o.APIServers, "apiservers", 1, "how many kube-apiservers share the etcd")
	flag.StringVar(&o.Dir, "dir", "", "where to keep data, certificates and logs; the files stay (default: a temporary directory, removed at the end)")
	flag.StringVar(&o.Bin, "bin", "", "the directory with the etcd and kube-apiserver programs (default: this program's own)")
	flag.StringVar(&o.Proxy, "proxy", "", "a watershed program to run in front of the cluster")
	flag.Var((*list)(&o.ProxyArgs), "proxy-arg", "a further argument for watershed serve; {dir} in it becomes the directory (repeatable)")
	flag.Var((*list)(&o.APIServerArgs), "apiserver-arg", "a further argument for every kube-apiserver (repeatable)")
	flag.Var((*list)(&o.EtcdArgs), "etcd-arg", "a further argument for etcd (repeatable)")
	o.ServerBin, o.ServerArgs = map[int]string{}, map[int][]string{}
	flag.Func("server-bin", "N=DIR: the directory with another kube-apiserver program for the server of this number (repeatable)", func(s string) error {
		n, dir, err := numbered(s)
		o.ServerBin[n] = dir
		return err
	})
	flag.Func("server-arg", "N=ARG: a further argument for the kube-apiserver of this number (repeatable)", func(s string) error {
		n, arg, err := numbered(s)
		o.ServerArgs[n] = append(o.ServerArgs[n], arg)
		return err
	})
	flag.Parse()

	if err := run(o, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run(o cluster.Options, stdin io.Reader, stdout io.Writer) (err error) {
	if flag.NArg() > 0 || o.APIServers < 1 {
		return errors.New("usage: cluster [--apiservers N] [--dir D] [--proxy PROGRAM]")
	}
	if o.Bin == "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		o.Bin = filepath.Dir(self)
	}

	// Signals are caught before the first child exists, so that no child leaks if one arrives
	// during the start.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)

	temporary := o.Dir == ""
	if temporary {
		if o.Dir, err = os.MkdirTemp("", "watershed-cluster-"); err != nil {
			return err
		}
		defer os.RemoveAll(o.Dir)
	} else if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return err
	} else if err = os.MkdirAll(o.Dir, 0o700); err != nil {
		return err
	}

	c := cluster.New(o)
	defer c.Stop()
	started := make(chan error, 1)
	lines := make(chan string)
	go func() { started <- c.Start() }()
	go func() {
		scanner := bufio.NewScanner(stdin)
		for scanner.Scan() {
			lines <- scanner.Text()
		}
		close(lines)
	}()

	// A command that comes before the cluster is up waits. The end of stdin does not: a test
	// that gave up must not wait for the start.
	queued := []string{}
	for waiting := true; waiting; {
		select {
		case err := <-started:
			if err != nil {
				return err
			}
			waiting = false
		case line, open := <-lines:
			if !open {
				return nil
			}
			queued = append(queued, line)
		case <-signals:
			return nil
		}
	}

	out := json.NewEncoder(stdout)
	out.SetEscapeHTML(false)
	if err := out.Encode(c.Report()); err != nil {
		return err
	}
	c.Greet(os.Stderr)

	for _, line := range queued {
		out.Encode(answer(c.Command(line)))
	}
	for {
		select {
		case line, open := <-lines:
			if !open {
				return nil
			}
			out.Encode(answer(c.Command(line)))
		case <-signals:
			return nil
		}
	}
}

// answer returns the reply to a command.
func answer(err error) map[string]any {
	if err != nil {
		return map[string]any{"ok": false, "error": err.Error()}
	}
	return map[string]any{"ok": true}
}
