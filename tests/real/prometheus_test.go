package real

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/monitoring"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// quiet matches panels that are empty while nothing is wrong and nobody changes rights.
var quiet = regexp.MustCompile(`^panel "(Forwarded requests that failed|Refused and cut|Lists of types, and resumed watches|Lists and watches at upstream|Changes of RBAC)" `)

// TestPrometheusShowsEveryPanel runs Debian's Prometheus. It accepts the rules, scrapes a
// running proxy, and has data for every panel.
func TestPrometheusShowsEveryPanel(t *testing.T) {
	prometheus, err := exec.LookPath("prometheus")
	promtool, other := exec.LookPath("promtool")
	if err := errors.Join(err, other); err != nil {
		t.Skipf("needs prometheus and promtool, as in Debian's package prometheus: %v", err)
	}
	if out, err := exec.Command(promtool, "check", "rules", monitoring.RulesFile).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v: %s", err, out)
	}
	broken := filepath.Join(t.TempDir(), "broken.yaml")
	rules := string(require.Value(os.ReadFile(monitoring.RulesFile))(t))
	require.NoError(t, os.WriteFile(broken, []byte(strings.Replace(rules, "== 0", "= 0", 1)), 0o600))
	if exec.Command(promtool, "check", "rules", broken).Run() == nil {
		t.Error("promtool takes broken rules")
	}

	p := testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig)
	server := monitoring.StartPrometheus(t, prometheus, p)
	all := monitoring.Expressions(t)
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
			count, err := server.Ask(all[place])
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
	if count, err := server.Ask("watershed_request_total"); count != 0 || err != nil {
		t.Errorf("a metric that does not exist has %d series, %v", count, err)
	}
	if _, err := server.Ask("sum("); err == nil {
		t.Error("Prometheus evaluates a broken expression")
	}
}
