// Command cluster runs a throw-away Kubernetes control plane on loopback: one
// etcd and one or more kube-apiservers on it, and, if asked, a watershed in
// front of them. Tests in any language drive it over its standard streams:
// one line of JSON on stdout says that it is ready and where everything is,
// after that each line on stdin is a command and is answered with one line.
//
// Nothing outlives it: it stops when stdin ends, on SIGINT and on SIGTERM, and
// if it is killed outright the kernel kills its children.
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
)

// list collects a flag that may be repeated.
type list []string

func (l *list) String() string     { return strings.Join(*l, " ") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

type options struct {
	apiservers    int
	dir           string
	bin           string
	proxy         string
	proxyArgs     list
	apiserverArgs list
}

func main() {
	var o options
	flag.IntVar(&o.apiservers, "apiservers", 1, "how many kube-apiservers share the etcd")
	flag.StringVar(&o.dir, "dir", "", "where to keep data, certificates and logs; the files stay (default: a temporary directory, removed at the end)")
	flag.StringVar(&o.bin, "bin", "", "the directory with the etcd and kube-apiserver programs (default: this program's own)")
	flag.StringVar(&o.proxy, "proxy", "", "a watershed program to run in front of the cluster")
	flag.Var(&o.proxyArgs, "proxy-arg", "a further argument for watershed serve; {dir} in it becomes the directory (repeatable)")
	flag.Var(&o.apiserverArgs, "apiserver-arg", "a further argument for every kube-apiserver (repeatable)")
	flag.Parse()

	if err := run(o, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run(o options, stdin io.Reader, stdout io.Writer) (err error) {
	if flag.NArg() > 0 || o.apiservers < 1 {
		return errors.New("usage: cluster [--apiservers N] [--dir D] [--proxy PROGRAM]")
	}
	if o.bin == "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		o.bin = filepath.Dir(self)
	}

	// Signals are caught before the first child exists, so that one arriving
	// while the cluster starts up is not a leak.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)

	temporary := o.dir == ""
	if temporary {
		if o.dir, err = os.MkdirTemp("", "watershed-cluster-"); err != nil {
			return err
		}
		defer os.RemoveAll(o.dir)
	} else if o.dir, err = filepath.Abs(o.dir); err != nil {
		return err
	} else if err = os.MkdirAll(o.dir, 0o700); err != nil {
		return err
	}

	c := newCluster(o)
	defer c.stop()
	started := make(chan error, 1)
	lines := make(chan string)
	go func() { started <- c.start() }()
	go func() {
		scanner := bufio.NewScanner(stdin)
		for scanner.Scan() {
			lines <- scanner.Text()
		}
		close(lines)
	}()

	// A command sent before the cluster is up waits in the pipe; the end of
	// stdin does not, a test that gave up must not wait for a start-up.
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
	if err := out.Encode(c.report()); err != nil {
		return err
	}
	c.greet(os.Stderr)

	for _, line := range queued {
		out.Encode(answer(c.command(line)))
	}
	for {
		select {
		case line, open := <-lines:
			if !open {
				return nil
			}
			out.Encode(answer(c.command(line)))
		case <-signals:
			return nil
		}
	}
}

// answer is what a command is replied with.
func answer(err error) map[string]any {
	if err != nil {
		return map[string]any{"ok": false, "error": err.Error()}
	}
	return map[string]any{"ok": true}
}

// command carries out one line of stdin.
func (c *cluster) command(line string) error {
	words := strings.Fields(line)
	if len(words) == 0 {
		return errors.New("empty command")
	}
	server := func() (*apiserver, error) {
		if len(words) != 2 {
			return nil, fmt.Errorf("%s wants the number of an API server", words[0])
		}
		n, err := strconv.Atoi(words[1])
		if err != nil || n < 0 || n >= len(c.apiservers) {
			return nil, fmt.Errorf("no API server %q, there are 0 to %d", words[1], len(c.apiservers)-1)
		}
		return c.apiservers[n], nil
	}
	switch words[0] {
	case "kill", "term", "start":
		s, err := server()
		if err != nil {
			return err
		}
		switch words[0] {
		case "kill":
			return s.process.end(syscall.SIGKILL)
		case "term":
			return s.process.end(syscall.SIGTERM)
		}
		if err := s.launch(c); err != nil {
			return err
		}
		return s.ready(c)
	case "compact":
		return c.compact()
	case "stop-etcd":
		// A polite stop takes etcd seven seconds, for it waits for the API
		// servers' streams. Killed, it keeps its data just as well: it is the
		// machine that may not stop without fsync, not the process.
		return c.etcd.end(syscall.SIGKILL)
	case "start-etcd":
		return c.startEtcd()
	}
	return fmt.Errorf("unknown command %q", words[0])
}
