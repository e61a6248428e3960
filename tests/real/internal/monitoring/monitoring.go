// Package monitoring reads alerts and dashboard with Prometheus' own code.
package monitoring

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/manifests"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

const (
	RulesFile     = manifests.ChartDir + "/files/alerts.yaml"
	DashboardFile = manifests.ChartDir + "/files/dashboard.json"
	RunbookFile   = "../../docs/runbook.md"
)

// Rule is an alerting rule.
type Rule struct {
	Alert       string
	Expr        string
	For         string
	Labels      map[string]string
	Annotations map[string]string
}

// Rules returns the chart's alerting rules.
func Rules(t *testing.T) (all []Rule) {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string
			Rules []Rule
		}
	}
	require.NoError(t, yaml.UnmarshalStrict(require.Value(os.ReadFile(RulesFile))(t), &file))
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

// Expressions returns all expressions of rules and dashboard, by their place.
func Expressions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, rule := range Rules(t) {
		all[rule.Alert] = rule.Expr
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name, Definition, AllValue string }
		}
	}
	require.NoError(t, json.Unmarshal(require.Value(os.ReadFile(DashboardFile))(t), &board))
	known := map[string]string{"$__rate_interval": "5m"}
	for _, variable := range board.Templating.List {
		// All: a pattern, or the values that Prometheus has.
		known["$"+variable.Name] = variable.AllValue
		if variable.AllValue == "" {
			known["$"+variable.Name] = Named(nil, "").Labels[variable.Name]
		}
		if of, ok := strings.CutPrefix(variable.Definition, "label_values("); ok {
			all["variable "+variable.Name] = of[:strings.LastIndexByte(of, ',')]
		}
	}
	for _, panel := range board.Panels {
		for i, target := range panel.Targets {
			all[fmt.Sprintf("panel %q %d", panel.Title, i)] = target.Expr
		}
	}
	for where, text := range all {
		for name, value := range known {
			text = strings.ReplaceAll(text, name, value)
		}
		all[where] = text
	}
	return all
}

// Series is a time series with one value a minute.
type Series struct {
	Labels map[string]string
	Values []float64
}

// Answer is what .bin/promql prints for one expression.
type Answer struct {
	Error   string
	Metrics []Selected
	Result  []struct {
		Labels map[string]string
		Value  float64
	}
}

// Selected is a metric that an expression selects, with the labels that it uses.
type Selected struct {
	Name   string
	Labels []string
	Values map[string][]string
}

// Query parses or evaluates expressions with Prometheus' own code.
func Query(t *testing.T, expressions []string, given []Series) (answers []Answer) {
	t.Helper()
	question := require.Value(json.Marshal(map[string]any{"Expressions": expressions, "Series": given}))(t)
	command := exec.Command(filepath.Join(".bin", "promql"))
	command.Stdin = bytes.NewReader(question)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("promql: %v: %s", err, stderr.String())
	}
	require.NoError(t, json.Unmarshal(out, &answers))
	return answers
}

// Seldom lists metrics that a proxy exposes only after their cause. The test looks them up in
// the sources.
var Seldom = []string{
	"watershed_responses_terminated_total", "watershed_audit_events_dropped_total", "watershed_connections_terminated_total",
	"watershed_connections_rejected_total", "watershed_upstream_resumes_total", "watershed_authorization_cache_invalidations_total",
	"watershed_rbac_changes_total", "watershed_self_checks_total", "watershed_memory_releases_total",
	"watershed_memory_released_bytes_total", "watershed_verified_answers_total", "watershed_shadow_answers_total",
	"watershed_requests_aborted_total", "watershed_node_pods_following", "watershed_scopes_stopped_total", "watershed_checkpoint_writes_total", "watershed_audit_log_rotation_failures_total",
}

// scrapeLabels lists labels that Prometheus adds, or Thanos.
var scrapeLabels = []string{"cluster", "job", "namespace", "pod", "instance", "le"}

// Exposed returns the metrics, and their labels, of a proxy that has done something of
// everything.
func Exposed(t *testing.T) map[string]map[string]bool {
	t.Helper()
	p := testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig, "--max-requests-per-second-per-user", "3", "--max-requests-burst-per-user", "40")
	for _, path := range []string{
		"/api/v1/namespaces?resourceVersion=0", "/api/v1/namespaces", "/api/v1/namespaces?watch=1&resourceVersion=0&timeoutSeconds=1",
		"/api/v1/namespaces/default", "/api/v1/secrets", "/version",
	} {
		p.Send(t, api.Request{Path: path})
	}
	// Until one is refused. A slow machine earns new requests meanwhile.
	for range 1000 {
		if p.Send(t, api.Request{Path: "/api/v1/namespaces?resourceVersion=0"}).Status == http.StatusTooManyRequests {
			break
		}
	}
	found := map[string]map[string]bool{}
	line := regexp.MustCompile(`(?m)^([a-z_:]+)(?:\{(.*)\})? \S+$`)
	for _, match := range line.FindAllStringSubmatch(require.Value(p.Metrics())(t), -1) {
		labels := found[match[1]]
		if labels == nil {
			labels = map[string]bool{}
			found[match[1]] = labels
		}
		for _, label := range regexp.MustCompile(`([a-z_]+)="`).FindAllStringSubmatch(match[2], -1) {
			labels[label[1]] = true
		}
	}
	return found
}

// Sources returns the proxy's sources.
func Sources(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	require.NoError(t, filepath.Walk("../../src", func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() || filepath.Ext(path) != ".rs" {
			return err
		}
		text, err := os.ReadFile(path)
		all.Write(text)
		return err
	}))
	return all.String()
}

// Unfounded returns what is wrong with an expression: it cannot be parsed, or it uses what no
// proxy exposes.
func Unfounded(answer Answer, exposed map[string]map[string]bool, source string) (wrong []string) {
	if answer.Error != "" {
		return []string{answer.Error}
	}
	for _, metric := range answer.Metrics {
		if metric.Name == "up" {
			continue
		}
		labels, shown := exposed[metric.Name]
		if !shown && !(slices.Contains(Seldom, metric.Name) && strings.Contains(source, `"`+metric.Name+`"`)) {
			wrong = append(wrong, "no proxy exposes "+metric.Name)
		}
		for _, label := range metric.Labels {
			if shown && !labels[label] && !slices.Contains(scrapeLabels, label) {
				wrong = append(wrong, metric.Name+" has no label "+label)
			}
		}
		for label, values := range metric.Values {
			for _, value := range values {
				// The remaining labels are codes and the dashboard's variables.
				if !slices.Contains(scrapeLabels, label) && label != "code" && !strings.Contains(source, `"`+value+`"`) {
					wrong = append(wrong, fmt.Sprintf("%s is never %q", label, value))
				}
			}
		}
	}
	return wrong
}
