package real

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"watershed.test/real/internal/proxylog"
)

// ownProxy is a watershed of one scenario's own, which knows the servers that
// the scenario wants it to know.
type ownProxy struct {
	target
	admin string
	log   string
	pid   int
}

// spawner starts children on one thread that stays: a parent-death signal is
// tied to the thread that forked, and Go retires threads.
var spawner = sync.OnceValue(func() chan func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for spawn := range work {
			spawn()
		}
	}()
	return work
})

// everythingKept is a configuration with which a watershed answers from memory
// whatever it can. It says so of secrets, of which nothing is kept otherwise.
const everythingKept = "testdata/everything-kept.yaml"

// startProxy runs a watershed with the identity of a kubeconfig in front of
// these servers, or of the one that the kubeconfig names.
func startProxy(t *testing.T, kubeconfig string, servers ...string) *ownProxy {
	t.Helper()
	return startConfigured(t, everythingKept, kubeconfig, servers...)
}

// startConfigured does so with a configuration file, or with none.
func startConfigured(t *testing.T, config, kubeconfig string, servers ...string) *ownProxy {
	t.Helper()
	var args []string
	if config != "" {
		args = append(args, "--config", config)
	}
	for _, server := range servers {
		args = append(args, "--server", server)
	}
	return runProxy(t, kubeconfig, args...)
}

// runProxy runs one with further flags.
func runProxy(t *testing.T, kubeconfig string, flags ...string) *ownProxy {
	t.Helper()
	dir := t.TempDir()
	p := &ownProxy{log: filepath.Join(dir, "log")}
	log := must(os.Create(p.log))(t)
	defer log.Close()
	args := []string{"serve", "--kubeconfig", kubeconfig, "--listen", "127.0.0.1:0",
		"--admin-listen", "127.0.0.1:0", "--cert-dir", dir, "--log-format", "json"}
	args = append(args, flags...)
	command := exec.Command(must(watershed())(t), args...)
	command.Stdout, command.Stderr = log, log
	startChild(t, command)
	p.pid = command.Process.Pid
	ended := make(chan struct{})
	go func() {
		command.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		command.Process.Kill()
		<-ended
		if dir := os.Getenv("REAL_LOGS"); dir != "" {
			text, _ := os.ReadFile(p.log)
			os.WriteFile(filepath.Join(dir, slug(t)+".log"), text, 0o600)
		}
	})

	p.target = target{name: "proxied", ca: filepath.Join(dir, "ca.crt")}
	eventually(t, "the proxy is ready", func() error {
		select {
		case <-ended:
			t.Fatalf("the proxy ended:\n%s", p.tail())
		default:
		}
		text, err := os.ReadFile(p.log)
		if err != nil {
			return err
		}
		address, admin := proxylog.Addresses(text)
		if address == "" || admin == "" {
			return errors.New("it has not said where it listens")
		}
		p.url, p.admin = "https://"+address, "http://"+admin
		resp, err := http.Get(p.admin + "/readyz")
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

// startChild starts a program that ends with this process, however that ends.
func startChild(t *testing.T, command *exec.Cmd) {
	t.Helper()
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	spawner() <- func() { started <- command.Start() }
	check(t, <-started)
}

func (p *ownProxy) tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := slices.Collect(strings.Lines(string(text)))
	return strings.Join(lines[max(len(lines)-60, 0):], "")
}

func (p *ownProxy) metrics() (string, error) {
	resp, err := http.Get(p.admin + "/metrics")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

// sum adds up a metric of the proxy, of one resource or of all.
func (p *ownProxy) sum(t *testing.T, metric, resource string) int {
	t.Helper()
	total := 0.0
	for line := range strings.Lines(must(p.metrics())(t)) {
		name, _, _ := strings.Cut(line, "{")
		name, _, _ = strings.Cut(name, " ")
		if name != metric || resource != "" && !strings.Contains(line, fmt.Sprintf(`resource="%s"`, resource)) {
			continue
		}
		var n float64
		fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &n)
		total += n
	}
	return int(total)
}

// addUp adds a metric of the proxy to counts by one of its labels.
func (p *ownProxy) addUp(t *testing.T, metric, label string, counts map[string]int) {
	t.Helper()
	for line := range strings.Lines(must(p.metrics())(t)) {
		name, rest, _ := strings.Cut(line, "{")
		if name != metric {
			continue
		}
		_, value, _ := strings.Cut(rest, label+`="`)
		value, _, _ = strings.Cut(value, `"`)
		var n float64
		fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &n)
		counts[value] += int(n)
	}
}
