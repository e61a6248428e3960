package monitoring

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"watershed.test/real/internal/child"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// Prometheus is a Prometheus that scrapes one proxy.
type Prometheus struct{ url string }

// StartPrometheus starts a Prometheus that scrapes a proxy.
func StartPrometheus(t *testing.T, program string, p *testbed.Proxy) Prometheus {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yaml")
	require.NoError(t, os.WriteFile(config, []byte(fmt.Sprintf(`
global: {scrape_interval: 1s}
scrape_configs:
- job_name: watershed
  static_configs:
  - targets: [%q]
    labels: {namespace: watershed, pod: watershed-0}
`, strings.TrimPrefix(p.Admin, "http://"))), 0o600))
	// Another program may take the port before Prometheus does.
	for range 5 {
		if server, ready := runPrometheus(t, program, config, dir); ready {
			return server
		}
	}
	t.Fatal("Prometheus does not start")
	panic("unreachable")
}

// runPrometheus starts a Prometheus on a port that is free at the moment, and waits until it is ready
// or has ended.
func runPrometheus(t *testing.T, program, config, dir string) (server Prometheus, ready bool) {
	t.Helper()
	listener := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	log := require.Value(os.Create(filepath.Join(dir, "log")))(t)
	defer log.Close()
	command := exec.Command(program, "--config.file="+config, "--storage.tsdb.path="+dir, "--web.listen-address="+address, "--log.level=warn")
	command.Stdout, command.Stderr = log, log
	require.NoError(t, child.Start(command))
	ended := make(chan struct{})
	go func() {
		command.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		command.Process.Kill()
		<-ended
	})
	server = Prometheus{"http://" + address}
	poll.Until(t, "Prometheus is ready", func() error {
		select {
		case <-ended:
			text, _ := os.ReadFile(log.Name())
			t.Logf("Prometheus has ended: %s", text)
			return nil
		default:
		}
		resp, err := http.Get(server.url + "/-/ready")
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		ready = true
		return nil
	})
	return server, ready
}

// Ask returns the number of series that an expression has now.
func (p Prometheus) Ask(expression string) (int, error) {
	resp, err := http.Get(p.url + "/api/v1/query?query=" + url.QueryEscape(expression))
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var answer struct {
		Error string
		Data  struct{ Result []json.RawMessage }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return 0, err
	}
	if answer.Error != "" {
		return 0, errors.New(answer.Error)
	}
	return len(answer.Data.Result), nil
}
