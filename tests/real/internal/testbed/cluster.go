package testbed

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/cluster"
)

// Programs is the directory of the API server and its company, as build.sh made them. REAL_BIN
// names that of another release (see build-release.sh).
var Programs = cmp.Or(os.Getenv("REAL_BIN"), ".bin")

// Cluster is a running cmd/cluster.
type Cluster struct {
	cluster.Report

	// Users holds the tokens of all users, including those that tests add.
	Users   *api.Tokens
	command *exec.Cmd
	stdin   io.WriteCloser
	stdout  *bufio.Reader
	stderr  bytes.Buffer
	once    sync.Once
}

// usersOf holds the tokens of each cluster's users, by its directory.
var usersOf sync.Map

// usersBehind returns the tokens of the users of the cluster that a kubeconfig belongs to: the
// shared one unless it lies in another's directory.
func usersBehind(kubeconfig string) *api.Tokens {
	if users, ok := usersOf.Load(filepath.Dir(kubeconfig)); ok {
		return users.(*api.Tokens)
	}
	if Shared != nil {
		return Shared.Users
	}
	return api.NewTokens(map[string]string{})
}

// ProxyProgram returns the path of the proxy under test.
func ProxyProgram() (string, error) {
	program := os.Getenv("WATERSHED_BIN")
	if program == "" {
		program = filepath.Join("..", "..", "target", "debug", "watershed")
	}
	if _, err := os.Stat(program); err != nil {
		return "", fmt.Errorf("%w: build watershed first, or set WATERSHED_BIN", err)
	}
	return program, nil
}

// StartWithProxy starts a cluster with a proxy in front of it.
func StartWithProxy(args ...string) (*Cluster, error) {
	if !Direct {
		program, err := ProxyProgram()
		if err != nil {
			return nil, err
		}
		config, err := filepath.Abs(CacheEverything)
		if err != nil {
			return nil, err
		}
		args = append(args, "--proxy", program, "--proxy-arg", "--config", "--proxy-arg", config)
		for _, arg := range withoutSelfCheck {
			args = append(args, "--proxy-arg", arg)
		}
	}
	return Start(args...)
}

// Start starts a cluster. The harness stops when its stdin ends, so it cannot outlive this
// process.
func Start(args ...string) (*Cluster, error) {
	c := &Cluster{command: exec.Command(filepath.Join(Programs, "cluster"), args...)}
	c.command.Stderr = &c.stderr
	stdin, err := c.command.StdinPipe()
	if err != nil {
		return nil, err
	}
	c.stdin = stdin
	stdout, err := c.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.command.Start(); err != nil {
		return nil, err
	}
	c.stdout = bufio.NewReader(stdout)
	line, err := c.stdout.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &c.Report)
		c.Users = api.NewTokens(c.Tokens)
		usersOf.Store(c.Dir, c.Users)
	}
	if err != nil {
		c.Stop()
		return nil, fmt.Errorf("the cluster did not start: %w\n%s", err, c.stderr.String())
	}
	return c, nil
}

// Command makes the harness carry out a command.
func (c *Cluster) Command(command string) error {
	if _, err := fmt.Fprintln(c.stdin, command); err != nil {
		return err
	}
	line, err := c.stdout.ReadBytes('\n')
	if err != nil {
		return err
	}
	var answer struct {
		OK    bool
		Error string
	}
	if err := json.Unmarshal(line, &answer); err != nil || !answer.OK {
		return errors.Join(err, fmt.Errorf("%s: %s", command, answer.Error))
	}
	return nil
}

// Stop stops the cluster and waits until it is gone.
func (c *Cluster) Stop() {
	c.once.Do(func() {
		c.stdin.Close()
		c.command.Wait()
	})
}

// Upstream returns the cluster's first API server.
func (c *Cluster) Upstream() api.Target {
	return api.Target{Name: "upstream", URL: c.Servers[0], CA: c.CA, Kubeconfig: c.Kubeconfig, Tokens: c.Users}
}

// Proxied returns the way through the cluster's proxy, or past it with REAL_DIRECT.
func (c *Cluster) Proxied() api.Target {
	if Direct {
		t := c.Upstream()
		t.Name = "proxied"
		return t
	}
	return api.Target{Name: "proxied", URL: c.ProxyServer, CA: c.ProxyCA, Kubeconfig: c.KubeconfigViaProxy, Tokens: c.Users}
}
