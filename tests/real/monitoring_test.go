package real

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

const (
	rulesFile     = chart + "/files/alerts.yaml"
	dashboardFile = chart + "/files/dashboard.json"
	runbookFile   = "../../docs/runbook.md"
)

type alertRule struct {
	Alert       string
	Expr        string
	For         string
	Labels      map[string]string
	Annotations map[string]string
}

func rules(t *testing.T) (all []alertRule) {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string
			Rules []alertRule
		}
	}
	require.NoError(t, yaml.UnmarshalStrict(require.Value(os.ReadFile(rulesFile))(t), &file))
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

// expressions returns all expressions of rules and dashboard, by their place.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, rule := range rules(t) {
		all[rule.Alert] = rule.Expr
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name, Definition string }
		}
	}
	require.NoError(t, json.Unmarshal(require.Value(os.ReadFile(dashboardFile))(t), &board))
	known := map[string]string{"$__rate_interval": "5m"}
	for _, variable := range board.Templating.List {
		known["$"+variable.Name] = ".*"
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

type series struct {
	Labels map[string]string
	Values []float64
}

type promqlAnswer struct {
	Error   string
	Metrics []struct {
		Name   string
		Labels []string
		Values map[string][]string
	}
	Result []struct {
		Labels map[string]string
		Value  float64
	}
}

// promql parses or evaluates expressions with Prometheus' own code.
func promql(t *testing.T, expressions []string, given []series) (answers []promqlAnswer) {
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

// seldom lists metrics that a proxy exposes only after their cause. The test looks them up in
// the sources.
var seldom = []string{
	"watershed_answers_cut_total", "watershed_audit_events_dropped_total", "watershed_connections_cut_total",
	"watershed_connections_rejected_total", "watershed_upstream_resumes_total", "watershed_authorization_dropped_total",
	"watershed_rbac_changes_total",
}

// ofScrape lists labels that Prometheus adds.
var ofScrape = []string{"job", "namespace", "pod", "instance", "le"}

// exposed returns the metrics, and their labels, of a proxy that has done something of
// everything.
func exposed(t *testing.T) map[string]map[string]bool {
	t.Helper()
	p := testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig, "--max-requests-per-second-per-user", "3", "--max-requests-burst-per-user", "40")
	for _, path := range []string{
		"/api/v1/namespaces?resourceVersion=0", "/api/v1/namespaces", "/api/v1/namespaces?watch=1&resourceVersion=0&timeoutSeconds=1",
		"/api/v1/namespaces/default", "/api/v1/secrets", "/version",
	} {
		p.Send(t, api.Request{Path: path})
	}
	for range 60 {
		p.Send(t, api.Request{Path: "/api/v1/namespaces?resourceVersion=0"})
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

// source returns the proxy's sources.
func source(t *testing.T) string {
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

// unfounded returns what is wrong with an expression: it cannot be parsed, or it uses what no
// proxy exposes.
func unfounded(answer promqlAnswer, exposed map[string]map[string]bool, source string) (wrong []string) {
	if answer.Error != "" {
		return []string{answer.Error}
	}
	for _, metric := range answer.Metrics {
		if metric.Name == "up" {
			continue
		}
		labels, shown := exposed[metric.Name]
		if !shown && !(slices.Contains(seldom, metric.Name) && strings.Contains(source, `"`+metric.Name+`"`)) {
			wrong = append(wrong, "no proxy exposes "+metric.Name)
		}
		for _, label := range metric.Labels {
			if shown && !labels[label] && !slices.Contains(ofScrape, label) {
				wrong = append(wrong, metric.Name+" has no label "+label)
			}
		}
		for label, values := range metric.Values {
			for _, value := range values {
				// The remaining labels are codes and the dashboard's variables.
				if !slices.Contains(ofScrape, label) && label != "code" && !strings.Contains(source, `"`+value+`"`) {
					wrong = append(wrong, fmt.Sprintf("%s is never %q", label, value))
				}
			}
		}
	}
	return wrong
}

// TestExpressionsUseExposedMetrics checks that Prometheus parses every expression of rules and
// dashboard, and that the proxy exposes what they use.
func TestExpressionsUseExposedMetrics(t *testing.T) {
	exposed, source := exposed(t), source(t)
	all := expressions(t)
	if len(all) < 60 {
		t.Errorf("only %d expressions", len(all))
	}
	places := slices.Sorted(maps.Keys(all))
	var texts []string
	for _, place := range places {
		texts = append(texts, all[place])
	}
	for i, answer := range promql(t, texts, nil) {
		for _, wrong := range unfounded(answer, exposed, source) {
			t.Errorf("%s: %s in %s", places[i], wrong, texts[i])
		}
	}
	for _, metric := range seldom {
		if _, shown := exposed[metric]; shown {
			t.Logf("%s is exposed: remove it from seldom", metric)
		}
	}
	// Planted faults are found.
	for i, answer := range promql(t, []string{
		"sum(rate(watershed_requests_total[5m])", "sum(watershed_request_total)", "sum by (type) (watershed_watches)",
		`watershed_requests_total{source="memory"}`, `watershed_requests_total{reason=~"policy|whim"}`, "watershed_watches_ended_total > up{",
	}, nil) {
		if len(unfounded(answer, exposed, source)) == 0 {
			t.Errorf("planted fault %d is not found", i)
		}
	}
}

// TestDashboardPanelsAndLegendsFit checks that panels do not overlap, and that legends name
// existing labels.
func TestDashboardPanelsAndLegendsFit(t *testing.T) {
	var board struct {
		Panels []struct {
			ID      int
			Type    string
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ RefID, Expr, LegendFormat string }
		}
	}
	require.NoError(t, json.Unmarshal(require.Value(os.ReadFile(dashboardFile))(t), &board))
	taken := map[[2]int]string{}
	ids := map[int]bool{}
	for _, panel := range board.Panels {
		if ids[panel.ID] || panel.Title == "" || panel.Type != "row" && len(panel.Targets) == 0 {
			t.Errorf("panel %d %q", panel.ID, panel.Title)
		}
		ids[panel.ID] = true
		place := panel.GridPos
		for x := place.X; x < place.X+place.W; x++ {
			for y := place.Y; y < place.Y+place.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%q lies on %q", panel.Title, other)
				}
				taken[[2]int{x, y}] = panel.Title
			}
		}
		refs := map[string]bool{}
		for _, target := range panel.Targets {
			if refs[target.RefID] {
				t.Errorf("%q has two %s", panel.Title, target.RefID)
			}
			refs[target.RefID] = true
			for _, label := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				grouped := regexp.MustCompile(`by \([^)]*\b` + label[1] + `\b`).MatchString(target.Expr)
				if whole := !strings.Contains(target.Expr, "sum") && label[1] == "pod"; !grouped && !whole {
					t.Errorf("%q: the legend names %s, and %s has none", panel.Title, label[1], target.Expr)
				}
			}
		}
	}
}

// constant and rising return series of two hours.
func constant(value float64) []float64 { return slices.Repeat([]float64{value}, 121) }

func rising(perMinute float64) (values []float64) {
	for minute := range 121 {
		values = append(values, perMinute*float64(minute))
	}
	return values
}

// of returns a series with a name and labels, like name{a="b"}.
func of(values []float64, name string, labels ...string) series {
	named := map[string]string{"__name__": name, "job": "watershed", "namespace": "watershed-system", "pod": "a", "instance": "10.0.0.1:6480"}
	for i := 0; i < len(labels); i += 2 {
		named[labels[i]] = labels[i+1]
	}
	return series{named, values}
}

func buckets(name string, fast, slow float64, labels ...string) (all []series) {
	for _, bucket := range [][2]any{{"0.1", fast}, {"1", fast}, {"2.5", fast + slow}, {"+Inf", fast + slow}} {
		all = append(all, of(rising(bucket[1].(float64)), name, append([]string{"le", bucket[0].(string)}, labels...)...))
	}
	return all
}

// healthy returns the series of a busy proxy with which nothing is wrong.
func healthy() []series {
	restarted := slices.Concat(slices.Repeat([]float64{1000}, 90), slices.Repeat([]float64{2000}, 31))
	all := []series{
		of(constant(1), "up"),
		of(constant(1), "watershed_scope_following", "resource", "pods"),
		of(constant(1), "watershed_scope_ready", "resource", "pods"),
		of(constant(1), "watershed_upstream_lists_total", "resource", "pods"),
		of(constant(1), "watershed_rbac_followed"),
		of(rising(6000), "watershed_requests_total", "verb", "list", "source", "snapshot", "code", "200"),
		of(rising(600), "watershed_requests_total", "verb", "list", "source", "forward", "reason", "unproven", "code", "200"),
		of(rising(60000), "watershed_requests_total", "verb", "list", "source", "forward", "reason", "policy", "code", "200"),
		of(rising(60000), "watershed_requests_total", "verb", "create", "source", "forward", "reason", "not-a-read", "code", "201"),
		of(rising(10), "watershed_requests_total", "verb", "create", "source", "forward", "reason", "not-a-read", "code", "500"),
		of(rising(60), "watershed_access_reviews_total", "kind", "tokenreview", "result", "answered"),
		of(rising(600), "watershed_fence_reads_total", "step", "validated"),
		of(rising(6), "watershed_fence_reads_total", "step", "failed"),
		of(rising(60), "watershed_watches_ended_total", "how", "deadline"),
		of(rising(60), "watershed_watches_ended_total", "how", "client"),
		of(rising(60), "watershed_connections_cut_total", "listener", "proxy", "reason", "idle"),
		of(constant(0), "watershed_connections_rejected_total", "listener", "proxy", "reason", "per-address"),
		of(constant(1000), "process_open_fds"),
		of(constant(20000), "process_max_fds"),
		of(constant(1<<30), "process_resident_memory_bytes"),
		of(constant(400<<20), "watershed_scope_object_bytes", "resource", "pods"),
		of(constant(100<<20), "watershed_scope_window_bytes", "resource", "pods"),
		of(restarted, "process_start_time_seconds"),
		of(constant(0), "watershed_audit_events_dropped_total", "sink", "log"),
		of(constant(1<<40), "watershed_serving_certificate_expiration_timestamp_seconds", "listener", "proxy"),
		of(rising(60<<20), "watershed_response_bytes_total", "source", "snapshot"),
		of(rising(60), "watershed_response_bytes_total", "source", "forward"),
		of(rising(1<<20), "watershed_upstream_received_bytes_total", "purpose", "watch"),
		of(rising(600<<20), "watershed_upstream_received_bytes_total", "purpose", "forward"),
	}
	all = append(all, buckets("watershed_fence_duration_seconds_bucket", 600, 0, "step", "validated")...)
	return append(all, buckets("watershed_request_duration_seconds_bucket", 600, 0, "verb", "list", "source", "snapshot")...)
}

// ills holds the cause of each alert: series that replace the healthy ones of the same name and
// labels.
var ills = map[string][]series{
	"WatershedDown":               {of(constant(0), "up")},
	"WatershedAbsent":             {of(constant(1), "up", "job", "another")},
	"WatershedNotFollowing":       {of(constant(0), "watershed_scope_following", "resource", "pods")},
	"WatershedScopeNotReady":      {of(constant(0), "watershed_scope_ready", "resource", "pods")},
	"WatershedRelisting":          {of(rising(0.5), "watershed_upstream_lists_total", "resource", "pods")},
	"WatershedUpstreamErrors":     {of(rising(600), "watershed_requests_total", "verb", "get", "source", "forward", "reason", "consistent-read", "code", "503")},
	"WatershedReviewsFailing":     {of(rising(6), "watershed_access_reviews_total", "kind", "tokenreview", "result", "unavailable")},
	"WatershedRBACNotFollowed":    {of(constant(0), "watershed_rbac_followed")},
	"WatershedForwardingMuch":     {of(rising(600), "watershed_requests_total", "verb", "list", "source", "forward", "reason", "selector", "code", "200")},
	"WatershedFenceSlow":          buckets("watershed_fence_duration_seconds_bucket", 600, 60, "step", "caught-up"),
	"WatershedFenceFailing":       {of(rising(60), "watershed_fence_reads_total", "step", "failed")},
	"WatershedSlowAnswers":        buckets("watershed_request_duration_seconds_bucket", 600, 60, "verb", "list", "source", "snapshot"),
	"WatershedWatchesBroken":      {of(rising(60), "watershed_watches_ended_total", "how", "expired")},
	"WatershedClientsStalled":     {of(rising(30), "watershed_answers_cut_total", "reason", "write-stall")},
	"WatershedConnectionsRefused": {of(rising(6), "watershed_connections_rejected_total", "listener", "proxy", "reason", "per-address")},
	"WatershedUsersLimited":       {of(rising(60), "watershed_requests_limited_total", "reason", "rate")},
	"WatershedFileDescriptorsLow": {of(constant(19000), "process_open_fds")},
	"WatershedMemoryGrowing":      {of(constant(12<<30), "process_resident_memory_bytes")},
	"WatershedRestarting":         {of(rising(1), "process_start_time_seconds")},
	"WatershedCertificateEnds":    {of(constant(3600), "watershed_serving_certificate_expiration_timestamp_seconds", "listener", "proxy")},
	"WatershedSavesNothing":       {of(rising(120<<20), "watershed_upstream_received_bytes_total", "purpose", "watch")},
	"WatershedAuditEventsLost":    {of(rising(1), "watershed_audit_events_dropped_total", "sink", "log")},
}

// TestAlertsFireForTheirCauseOnly checks that each alert fires for its cause, and that none
// fires for a healthy proxy.
func TestAlertsFireForTheirCauseOnly(t *testing.T) {
	all := rules(t)
	var texts []string
	for _, rule := range all {
		texts = append(texts, rule.Expr)
	}
	for i, answer := range promql(t, texts, healthy()) {
		if answer.Error != "" || len(answer.Result) > 0 {
			t.Errorf("%s fires for a healthy proxy: %v %s", all[i].Alert, answer.Result, answer.Error)
		}
	}
	// A type that may not be listed is no reason to wake anybody.
	given := append(healthy(), of(constant(0), "watershed_scope_following", "resource", "secrets"), of(constant(0), "watershed_scope_ready", "resource", "secrets"))
	for i, answer := range promql(t, texts, given) {
		if (len(answer.Result) > 0) != (all[i].Alert == "WatershedScopeNotReady") {
			t.Errorf("%s: %v of a type that is not cached", all[i].Alert, answer.Result)
		}
	}
	for _, rule := range all {
		ill := ills[rule.Alert]
		if len(ill) == 0 {
			t.Errorf("%s: there is no case in which it fires", rule.Alert)
			continue
		}
		given := slices.DeleteFunc(healthy(), func(s series) bool { return s.Labels["__name__"] == ill[0].Labels["__name__"] })
		answer := promql(t, []string{rule.Expr}, append(given, ill...))[0]
		if answer.Error != "" || len(answer.Result) != 1 {
			t.Errorf("%s: %v %s", rule.Alert, answer.Result, answer.Error)
			continue
		}
		// The labels in its texts exist.
		for _, label := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(fmt.Sprint(rule.Annotations), -1) {
			if answer.Result[0].Labels[label[1]] == "" && !slices.Contains([]string{"group", "version", "encoding"}, label[1]) {
				t.Errorf("%s names %s, and the alert has %v", rule.Alert, label[1], answer.Result[0].Labels)
			}
		}
		if rule.For == "" || rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" ||
			!slices.Contains([]string{"critical", "warning", "info"}, rule.Labels["severity"]) {
			t.Errorf("%s: %+v", rule.Alert, rule)
		}
	}
}

// TestRunbookCoversEveryAlert checks that each alert has a section, and each section an alert.
func TestRunbookCoversEveryAlert(t *testing.T) {
	text := string(require.Value(os.ReadFile(runbookFile))(t))
	sections := map[string]string{}
	for _, part := range strings.Split(text, "\n## ")[1:] {
		name, body, _ := strings.Cut(part, "\n")
		sections[name] = body
	}
	for _, rule := range rules(t) {
		body := sections[rule.Alert]
		for _, part := range []string{"**Means.**", "**First look.**", "**Causes.**", "**Do.**"} {
			if !strings.Contains(body, part) {
				t.Errorf("%s: no %s", rule.Alert, part)
			}
		}
		delete(sections, rule.Alert)
	}
	for name := range sections {
		if strings.HasPrefix(name, "Watershed") {
			t.Errorf("%s is not an alert", name)
		}
	}
	source := source(t)
	for _, metric := range regexp.MustCompile("`(watershed_[a-z_]+)").FindAllStringSubmatch(text, -1) {
		if !strings.Contains(source, `"`+metric[1]+`"`) {
			t.Errorf("it names %s, which is not a metric", metric[1])
		}
	}
	// The chart leads there.
	alerts := rendered(t, "any", "--set", "monitoring.prometheusRule.enabled=true,monitoring.prometheusRule.runbookURL=https://example.com/runbook.md")
	for _, rule := range rules(t) {
		if !strings.Contains(alerts, "https://example.com/runbook.md#"+strings.ToLower(rule.Alert)+"\n") {
			t.Errorf("no runbook_url of %s", rule.Alert)
		}
	}
}
