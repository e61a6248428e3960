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
	listener := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	command := exec.Command(program, "--config.file="+config, "--storage.tsdb.path="+dir, "--web.listen-address="+address, "--log.level=warn")
	require.NoError(t, child.Start(command))
	t.Cleanup(func() {
		command.Process.Kill()
		command.Wait()
	})
	return Prometheus{"http://" + address}
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
