package testbed

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/child"
	"watershed.test/real/internal/metrics"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/proxylog"
	"watershed.test/real/internal/require"
)

// Proxy is a watershed that belongs to one test.
type Proxy struct {
	api.Target
	Admin string
	Log   string
	PID   int
}

// withoutSelfCheck keeps tests that count requests at the API server from counting those of the
// self-check, which comes after some minutes.
var withoutSelfCheck = []string{"--self-check-interval", "0s"}

// CacheEverything is a configuration that makes watershed answer from memory whatever it can.
// Without it, secrets are not cached.
const CacheEverything = "testdata/everything-kept.yaml"

// StartProxy starts a proxy with the identity of a kubeconfig. It stands in front of the given
// servers, or of the kubeconfig's own.
func StartProxy(t *testing.T, kubeconfig string, servers ...string) *Proxy {
	t.Helper()
	return StartProxyWithConfig(t, CacheEverything, kubeconfig, servers...)
}

// StartProxyWithConfig does the same with a configuration file, or with none.
func StartProxyWithConfig(t *testing.T, config, kubeconfig string, servers ...string) *Proxy {
	t.Helper()
	var args []string
	if config != "" {
		args = append(args, "--config", config)
	}
	for _, server := range servers {
		args = append(args, "--server", server)
	}
	return RunProxy(t, kubeconfig, args...)
}

// RunProxy starts a proxy with further flags.
func RunProxy(t *testing.T, kubeconfig string, flags ...string) *Proxy {
	t.Helper()
	return RunProxyAs(t, exec.Command, kubeconfig, flags...)
}

// RunProxyAs does the same with a function that makes the command of a program and its arguments.
func RunProxyAs(t *testing.T, commandOf func(string, ...string) *exec.Cmd, kubeconfig string, flags ...string) *Proxy {
	t.Helper()
	dir := t.TempDir()
	p := &Proxy{Log: filepath.Join(dir, "log")}
	log := require.Value(os.Create(p.Log))(t)
	defer log.Close()
	args := []string{"serve", "--kubeconfig", kubeconfig, "--listen", "127.0.0.1:0",
		"--admin-listen", "127.0.0.1:0", "--cert-dir", dir, "--log-format", "json"}
	args = append(args, flags...)
	if !slices.Contains(flags, "--self-check-interval") {
		args = append(args, withoutSelfCheck...)
	}
	command := commandOf(require.Value(ProxyProgram())(t), args...)
	command.Stdout, command.Stderr = log, log
	require.NoError(t, child.Start(command))
	p.PID = command.Process.Pid
	ended := make(chan struct{})
	go func() {
		command.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		command.Process.Kill()
		<-ended
		if dir := os.Getenv("REAL_LOGS"); dir != "" {
			text, _ := os.ReadFile(p.Log)
			os.WriteFile(filepath.Join(dir, Slug(t)+".log"), text, 0o600)
		}
	})

	p.Target = api.Target{Name: "proxied", CA: filepath.Join(dir, "ca.crt"), Tokens: usersBehind(kubeconfig)}
	poll.Until(t, "the proxy is ready", func() error {
		select {
		case <-ended:
			t.Fatalf("the proxy ended:\n%s", p.LogTail())
		default:
		}
		text, err := os.ReadFile(p.Log)
		if err != nil {
			return err
		}
		address, admin := proxylog.Addresses(text)
		if address == "" || admin == "" {
			return errors.New("no address is logged yet")
		}
		p.URL, p.Admin = "https://"+address, "http://"+admin
		resp, err := http.Get(p.Admin + "/readyz")
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	})
	return p
}

// End asks the proxy to end, and waits until it has.
func (p *Proxy) End(t *testing.T) {
	t.Helper()
	syscall.Kill(p.PID, syscall.SIGTERM)
	poll.Until(t, "a proxy has ended", func() error {
		if err := syscall.Kill(p.PID, 0); err == nil {
			return poll.ErrNotYet
		}
		return nil
	})
}

// LogTail returns the last lines of the log.
func (p *Proxy) LogTail() string {
	text, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	lines := slices.Collect(strings.Lines(string(text)))
	return strings.Join(lines[max(len(lines)-60, 0):], "")
}

// Metrics returns the text of /metrics.
func (p *Proxy) Metrics() (string, error) {
	resp, err := http.Get(p.Admin + "/metrics")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

// State returns what the proxy says of itself, for the message of a failure: its status, the metrics
// of one resource, and the end of its log.
func (p *Proxy) State(resource string) string {
	var b bytes.Buffer
	if resp, err := http.Get(p.Admin + "/status.json"); err != nil {
		fmt.Fprintln(&b, err)
	} else {
		status, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		json.Compact(&b, status)
		b.WriteByte('\n')
	}
	text, err := p.Metrics()
	if err != nil {
		fmt.Fprintln(&b, err)
	}
	for line := range strings.Lines(text) {
		if strings.Contains(line, fmt.Sprintf("resource=%q", resource)) && !strings.HasSuffix(line, " 0\n") {
			b.WriteString(line)
		}
	}
	return b.String() + p.LogTail()
}

// Sum returns the sum of a metric over one resource, or over all if resource is empty.
func (p *Proxy) Sum(t *testing.T, metric, resource string) int {
	t.Helper()
	total := 0.0
	for sample := range metrics.Samples(require.Value(p.Metrics())(t)) {
		if sample.Name == metric && (resource == "" || sample.Label("resource") == resource) {
			total += sample.Value
		}
	}
	return int(total)
}

// AwaitFollowedPods waits until the proxy follows pods, on which the grants of nodes rest.
func (p *Proxy) AwaitFollowedPods(t *testing.T) {
	t.Helper()
	poll.Until(t, "pods are followed", func() error {
		if n := p.Sum(t, "watershed_node_pods_following", ""); n != 1 {
			return fmt.Errorf("watershed_node_pods_following is %d", n)
		}
		return nil
	})
}

// ByLabel returns the values of a metric, by the values of one label.
func (p *Proxy) ByLabel(t *testing.T, metric, label string) map[string]int {
	t.Helper()
	counts := map[string]int{}
	p.AddByLabel(t, metric, label, counts)
	return counts
}

// AddByLabel adds the values of a metric to counts, by the values of one label.
func (p *Proxy) AddByLabel(t *testing.T, metric, label string, counts map[string]int) {
	t.Helper()
	for sample := range metrics.Samples(require.Value(p.Metrics())(t)) {
		if sample.Name == metric {
			counts[sample.Label(label)] += int(sample.Value)
		}
	}
}
