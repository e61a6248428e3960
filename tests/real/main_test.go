// Package real runs real Kubernetes clients (kubectl, client-go) against a real
// kube-apiserver through watershed, and asks that they see what they would have
// seen without it.
package real

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// patience bounds every wait. Nothing is expected to take this long, even on a
// machine that has much else to do.
const patience = 90 * time.Second

// target is one way to reach the API.
type target struct {
	name       string
	url        string
	ca         string
	kubeconfig string
}

var (
	// upstream is the API server itself.
	upstream target
	// proxied is the same API through watershed, or upstream once more if
	// REAL_DIRECT is set: this is how the tests themselves are checked.
	proxied target
	// shared is the cluster behind both.
	shared *cluster
	direct = os.Getenv("REAL_DIRECT") != ""
	// programs is where the API server and its company are: those of build.sh, or
	// of another release (see build-release.sh).
	programs = cmp.Or(os.Getenv("REAL_BIN"), ".bin")
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Tests that run beside others wait most of the time.
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		flag.Set("test.parallel", "4")
	}
	os.Exit(func() int {
		if err := prepare(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer shared.stop()
		return m.Run()
	}())
}

func prepare() (err error) {
	build := exec.Command("./build.sh")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build.sh: %w", err)
	}
	if shared, err = startCluster(); err != nil {
		return err
	}
	upstream = shared.upstream()
	proxied = shared.proxied()
	return nil
}

// cluster is a running cmd/cluster.
type cluster struct {
	Servers            []string
	CA                 string
	Kubeconfig         string
	AdminToken         string `json:"admin_token"`
	ProxyServer        string `json:"proxy_server"`
	ProxyAdmin         string `json:"proxy_admin"`
	ProxyCA            string `json:"proxy_ca"`
	KubeconfigViaProxy string `json:"kubeconfig_via_proxy"`
	ProxyKubeconfig    string `json:"proxy_kubeconfig"`
	CertKubeconfig     string `json:"cert_kubeconfig"`
	Etcd               string
	Tokens             map[string]string

	command *exec.Cmd
	stdin   io.WriteCloser
	stdout  *bufio.Reader
	stderr  bytes.Buffer
	once    sync.Once
}

// watershed is the program that is tested.
func watershed() (string, error) {
	program := os.Getenv("WATERSHED_BIN")
	if program == "" {
		program = filepath.Join("..", "..", "target", "debug", "watershed")
	}
	if _, err := os.Stat(program); err != nil {
		return "", fmt.Errorf("%w: build watershed first, or name it in WATERSHED_BIN", err)
	}
	return program, nil
}

// startCluster runs a cluster with a watershed in front of it.
func startCluster(args ...string) (*cluster, error) {
	if !direct {
		program, err := watershed()
		if err != nil {
			return nil, err
		}
		config, err := filepath.Abs(everythingKept)
		if err != nil {
			return nil, err
		}
		args = append(args, "--proxy", program, "--proxy-arg", "--config", "--proxy-arg", config)
	}
	return startBareCluster(args...)
}

// startBareCluster runs a cluster. The harness stops when its stdin ends, so
// that it cannot outlive this process, however this process ends.
func startBareCluster(args ...string) (*cluster, error) {
	c := &cluster{command: exec.Command(filepath.Join(programs, "cluster"), args...)}
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
		err = json.Unmarshal(line, c)
	}
	if err != nil {
		c.stop()
		return nil, fmt.Errorf("the cluster did not start: %w\n%s", err, c.stderr.String())
	}
	return c, nil
}

// tell has the harness carry out a command.
func (c *cluster) tell(command string) error {
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

func (c *cluster) stop() {
	c.once.Do(func() {
		c.stdin.Close()
		c.command.Wait()
	})
}

func (c *cluster) upstream() target {
	return target{name: "upstream", url: c.Servers[0], ca: c.CA, kubeconfig: c.Kubeconfig}
}

func (c *cluster) proxied() target {
	if direct {
		t := c.upstream()
		t.name = "proxied"
		return t
	}
	return target{name: "proxied", url: c.ProxyServer, ca: c.ProxyCA, kubeconfig: c.KubeconfigViaProxy}
}

// config is a new client configuration of the cluster's administrator.
func (t target) config() *rest.Config {
	return &rest.Config{
		Host:            t.url,
		BearerToken:     shared.AdminToken,
		TLSClientConfig: rest.TLSClientConfig{CAFile: t.ca},
		// The tests are bursts; they must not wait for client-go's brakes.
		QPS: -1,
	}
}

// targets is both ways, for what is done through each and then compared.
func targets() []target { return []target{upstream, proxied} }

// eventually polls until check returns nil.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not after %v: %v", what, patience, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// within fails the test if the channel yields nothing in time.
func within[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("%s: not after %v", what, patience)
		panic("unreachable")
	}
}

// must is for set-up steps that are not what is tested.
func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var errNotYet = errors.New("not yet")

// slug makes a name for objects out of a test's name.
func slug(t *testing.T) string {
	var b strings.Builder
	for _, r := range strings.ToLower(strings.TrimPrefix(t.Name(), "Test")) {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			b.WriteRune(r)
		} else {
			b.WriteByte('-')
		}
	}
	s := b.String()
	if len(s) > 40 {
		s = s[:40]
	}
	return strings.Trim(s, "-")
}
