package real

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/child"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// quiet matches panels that are empty while nothing is wrong and nobody changes rights.
var quiet = regexp.MustCompile(`^panel "(Forwarded requests that failed|Refused and cut|Lists of types, and resumed watches|Lists and watches at upstream|Changes of RBAC)" `)

// ownPrometheus is a Prometheus that scrapes one proxy.
type ownPrometheus struct{ url string }

func runPrometheus(t *testing.T, program string, p *testbed.Proxy) ownPrometheus {
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
	return ownPrometheus{"http://" + address}
}

// ask returns the number of series that an expression has now.
func (p ownPrometheus) ask(expression string) (int, error) {
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

// TestPrometheusShowsEveryPanel runs Debian's Prometheus. It accepts the rules, scrapes a
// running proxy, and has data for every panel.
func TestPrometheusShowsEveryPanel(t *testing.T) {
	prometheus, err := exec.LookPath("prometheus")
	promtool, other := exec.LookPath("promtool")
	if err := errors.Join(err, other); err != nil {
		t.Skipf("needs prometheus and promtool, as in Debian's package prometheus: %v", err)
	}
	if out, err := exec.Command(promtool, "check", "rules", rulesFile).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v: %s", err, out)
	}
	broken := filepath.Join(t.TempDir(), "broken.yaml")
	rules := string(require.Value(os.ReadFile(rulesFile))(t))
	require.NoError(t, os.WriteFile(broken, []byte(strings.Replace(rules, "== 0", "= 0", 1)), 0o600))
	if exec.Command(promtool, "check", "rules", broken).Run() == nil {
		t.Error("promtool takes broken rules")
	}

	p := testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig)
	server := runPrometheus(t, prometheus, p)
	all := expressions(t)
	maps.DeleteFunc(all, func(place, _ string) bool { return !strings.HasPrefix(place, "panel ") || quiet.MatchString(place) })
	places := slices.Sorted(maps.Keys(all))
	if len(places) < 40 {
		t.Errorf("only %d expressions", len(places))
	}
	until := time.Now().Add(3 * time.Minute)
	for {
		for _, path := range []string{
			"/api/v1/namespaces?resourceVersion=0", "/api/v1/namespaces", "/api/v1/namespaces?watch=1&resourceVersion=0&timeoutSeconds=1",
			"/api/v1/namespaces/default", "/api/v1/secrets", "/version", "/api/v1/pods?resourceVersion=0",
		} {
			p.Send(t, api.Request{Path: path})
		}
		var empty []string
		for _, place := range places {
			count, err := server.ask(all[place])
			if count == 0 {
				empty = append(empty, fmt.Sprintf("%s: %v in %s", place, err, all[place]))
			}
		}
		if len(empty) == 0 {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("nothing to show:\n%s", strings.Join(empty, "\n"))
		}
	}
	if count, err := server.ask("watershed_request_total"); count != 0 || err != nil {
		t.Errorf("a metric that does not exist has %d series, %v", count, err)
	}
	if _, err := server.ask("sum("); err == nil {
		t.Error("Prometheus evaluates a broken expression")
	}
}
