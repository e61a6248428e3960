package real

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"watershed.test/real/internal/manifests"
	"watershed.test/real/internal/monitoring"
	"watershed.test/real/internal/require"
)

// TestExpressionsUseExposedMetrics checks that Prometheus parses every expression of rules and
// dashboard, and that the proxy exposes what they use.
func TestExpressionsUseExposedMetrics(t *testing.T) {
	exposed, source := monitoring.Exposed(t), monitoring.Sources(t)
	all := monitoring.Expressions(t)
	if len(all) < 60 {
		t.Errorf("only %d expressions", len(all))
	}
	places := slices.Sorted(maps.Keys(all))
	var texts []string
	for _, place := range places {
		texts = append(texts, all[place])
	}
	for i, answer := range monitoring.Query(t, texts, nil) {
		for _, wrong := range monitoring.Unfounded(answer, exposed, source) {
			t.Errorf("%s: %s in %s", places[i], wrong, texts[i])
		}
	}
	for _, metric := range monitoring.Seldom {
		if _, shown := exposed[metric]; shown {
			t.Logf("%s is exposed: remove it from seldom", metric)
		}
	}
	// Planted faults are found.
	for i, answer := range monitoring.Query(t, []string{
		"sum(rate(watershed_requests_total[5m])", "sum(watershed_request_total)", "sum by (type) (watershed_watches)",
		`watershed_requests_total{source="ram"}`, `watershed_requests_total{reason=~"policy|whim"}`, "watershed_watches_ended_total > up{",
	}, nil) {
		if len(monitoring.Unfounded(answer, exposed, source)) == 0 {
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
	require.NoError(t, json.Unmarshal(require.Value(os.ReadFile(monitoring.DashboardFile))(t), &board))
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
			// Proxies that are not pods have no label pod.
			if strings.Contains(target.LegendFormat, "{{pod}}") != strings.Contains(target.LegendFormat, "{{instance}}") {
				t.Errorf("%q: the legend is %s", panel.Title, target.LegendFormat)
			}
			for _, label := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				grouped := regexp.MustCompile(`by \([^)]*\b` + label[1] + `\b`).MatchString(target.Expr)
				if whole := !strings.Contains(target.Expr, "sum") && (label[1] == "pod" || label[1] == "instance"); !grouped && !whole {
					t.Errorf("%q: the legend names %s, and %s has none", panel.Title, label[1], target.Expr)
				}
			}
		}
	}
}

// TestAlertsFireForTheirCauseOnly checks that each alert fires for its cause, and that none
// fires for a healthy proxy.
func TestAlertsFireForTheirCauseOnly(t *testing.T) {
	all := monitoring.Rules(t)
	var texts []string
	for _, rule := range all {
		texts = append(texts, rule.Expr)
	}
	for i, answer := range monitoring.Query(t, texts, monitoring.Healthy()) {
		if answer.Error != "" || len(answer.Result) > 0 {
			t.Errorf("%s fires for a healthy proxy: %v %s", all[i].Alert, answer.Result, answer.Error)
		}
	}
	for name, state := range monitoring.Cases {
		for i, answer := range monitoring.Query(t, texts, append(monitoring.Healthy(), state.Series...)) {
			if answer.Error != "" || (len(answer.Result) > 0) != slices.Contains(state.Fires, all[i].Alert) {
				t.Errorf("%s: %s has %v %s", name, all[i].Alert, answer.Result, answer.Error)
			}
		}
	}
	for _, rule := range all {
		ill := monitoring.Causes[rule.Alert]
		if len(ill) == 0 {
			t.Errorf("%s: there is no case in which it fires", rule.Alert)
			continue
		}
		given := slices.DeleteFunc(monitoring.Healthy(), func(s monitoring.Series) bool {
			return slices.ContainsFunc(ill, func(other monitoring.Series) bool { return s.Labels["__name__"] == other.Labels["__name__"] })
		})
		given = append(given, ill...)
		answer := monitoring.Query(t, []string{rule.Expr}, given)[0]
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
		// Planted fault: an expression whose sides have different labels never fires.
		if rule.Alert == "WatershedMemoryGrowing" {
			planted := strings.Replace(rule.Expr, "max by (job, namespace, pod, instance) (", "(", 1)
			if answer := monitoring.Query(t, []string{planted}, given)[0]; planted == rule.Expr || answer.Error != "" || len(answer.Result) > 0 {
				t.Errorf("%s would fire as %s: %v %s", rule.Alert, planted, answer.Result, answer.Error)
			}
		}
	}
}

// TestDashboardLeavesOutClosedScopes checks that the panel of scopes counts those that are open.
func TestDashboardLeavesOutClosedScopes(t *testing.T) {
	all := monitoring.Expressions(t)
	const panel = `panel "Scopes followed, and not" `
	for name, state := range monitoring.Cases {
		answers := monitoring.Query(t, []string{all[panel+"1"], all[panel+"2"]}, append(monitoring.Healthy(), state.Series...))
		for i, want := range []float64{state.Unfollowed, state.Unready} {
			if answer := answers[i]; answer.Error != "" || len(answer.Result) != 1 || answer.Result[0].Value != want {
				t.Errorf("%s: %d has %v %s, not %v", name, i+1, answer.Result, answer.Error, want)
			}
		}
	}
}

// TestDashboardShowsProxiesAlone checks that no panel shows other programs, which have metrics of processes, too.
func TestDashboardShowsProxiesAlone(t *testing.T) {
	all := monitoring.Expressions(t)
	maps.DeleteFunc(all, func(place, _ string) bool { return !strings.HasPrefix(place, "panel ") })
	places := slices.Sorted(maps.Keys(all))
	var texts []string
	for _, place := range places {
		texts = append(texts, all[place])
	}
	given := monitoring.Healthy()
	alone := monitoring.Query(t, texts, given)
	for _, series := range monitoring.Healthy() {
		if name := series.Labels["__name__"]; !strings.HasPrefix(name, "watershed_") {
			given = append(given, monitoring.Named(series.Values, name, "job", "another", "pod", "another"))
		}
	}
	shown := 0
	for i, answer := range monitoring.Query(t, texts, given) {
		if !reflect.DeepEqual(answer.Result, alone[i].Result) {
			t.Errorf("%s: another program makes %v of %v", places[i], answer.Result, alone[i].Result)
		}
		if strings.Contains(texts[i], "process_") && len(answer.Result) == 1 {
			shown++
		}
	}
	if shown != 4 {
		t.Errorf("%d panels have metrics of processes", shown)
	}
}

// TestDashboardCountsNoRefusalsAsSavings checks that reads that are refused are no part of those that are answered here.
func TestDashboardCountsNoRefusalsAsSavings(t *testing.T) {
	text := monitoring.Expressions(t)[`panel "Reads answered here" 0`]
	given := []monitoring.Series{
		monitoring.Named(monitoring.Rising(75), "watershed_requests_total", "verb", "list", "source", "snapshot", "code", "200"),
		monitoring.Named(monitoring.Rising(25), "watershed_requests_total", "verb", "list", "source", "forward", "code", "200"),
	}
	for _, source := range []string{"access", "limit", "shutdown", "loop"} {
		given = append(given, monitoring.Named(monitoring.Rising(500), "watershed_requests_total", "verb", "list", "source", source, "code", "403"))
	}
	if answer := monitoring.Query(t, []string{text}, given)[0]; len(answer.Result) != 1 || math.Abs(answer.Result[0].Value-0.75) > 1e-9 {
		t.Errorf("%v %s", answer.Result, answer.Error)
	}
}

// TestDashboardShowsTheEndOfCertificates checks that a proxy with a token shows no end of its certificate, which is
// infinitely far.
func TestDashboardShowsTheEndOfCertificates(t *testing.T) {
	text := monitoring.Expressions(t)[`panel "Certificates end in" 1`]
	infinite := regexp.MustCompile(`watershed_\w+\{[^}]*\}`).ReplaceAllString(text, "($0 / 0)")
	answers := monitoring.Query(t, []string{infinite, text}, monitoring.Healthy())
	for want, answer := range answers {
		if answer.Error != "" || len(answer.Result) != want {
			t.Errorf("%d: %v %s", want, answer.Result, answer.Error)
		}
	}
}

// TestDashboardRatiosHaveResults checks that both sides of the dashboard's operators have the same
// labels, with those of the Prometheus operator.
func TestDashboardRatiosHaveResults(t *testing.T) {
	given := monitoring.Healthy()
	known := map[string]bool{}
	for _, series := range given {
		known[series.Labels["__name__"]] = true
	}
	all := monitoring.Expressions(t)
	ratios := 0
	for place, text := range all {
		if !strings.HasPrefix(place, "panel ") || !strings.Contains(text, " / ") {
			continue
		}
		answer := monitoring.Query(t, []string{text}, given)[0]
		if slices.ContainsFunc(answer.Metrics, func(metric monitoring.Selected) bool { return !known[metric.Name] }) {
			continue
		}
		ratios++
		if answer.Error != "" || len(answer.Result) == 0 {
			t.Errorf("%s: %s has no result: %s", place, text, answer.Error)
		}
	}
	if ratios < 4 {
		t.Errorf("only %d ratios", ratios)
	}
}

// TestRunbookCoversEveryAlert checks that each alert has a section, and each section an alert.
func TestRunbookCoversEveryAlert(t *testing.T) {
	text := string(require.Value(os.ReadFile(monitoring.RunbookFile))(t))
	sections := map[string]string{}
	for _, part := range strings.Split(text, "\n## ")[1:] {
		name, body, _ := strings.Cut(part, "\n")
		sections[name] = body
	}
	for _, rule := range monitoring.Rules(t) {
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
	source := monitoring.Sources(t)
	for _, metric := range regexp.MustCompile("`(watershed_[a-z_]+)").FindAllStringSubmatch(text, -1) {
		if !strings.Contains(source, `"`+metric[1]+`"`) {
			t.Errorf("it names %s, which is not a metric", metric[1])
		}
	}
	// The chart leads there.
	alerts := manifests.Chart(t, "any", "--set", "monitoring.prometheusRule.enabled=true,monitoring.prometheusRule.runbookURL=https://example.com/runbook.md")
	for _, rule := range monitoring.Rules(t) {
		if !strings.Contains(alerts, "https://example.com/runbook.md#"+strings.ToLower(rule.Alert)+"\n") {
			t.Errorf("no runbook_url of %s", rule.Alert)
		}
	}
}

// TestAlertsKeepClustersApart checks that the chart adds labels to each aggregation, so that the
// proxies of one cluster that are down are not a small share of those of all clusters.
func TestAlertsKeepClustersApart(t *testing.T) {
	t.Parallel()
	down := monitoring.Others("up", 1, 0, 9)
	for _, series := range down {
		series.Labels["cluster"] = "small"
	}
	for i := range 10 {
		name := fmt.Sprint("x", i)
		for j := range 10 {
			down = append(down, monitoring.Named(monitoring.Constant(1), "up", "cluster", "large", "pod", fmt.Sprint(name, j), "instance", fmt.Sprint(name, j)))
		}
	}
	for value, want := range map[string]int{"": 0, "={cluster}": 1, "={cluster,region}": 1} {
		flags := "monitoring.prometheusRule.enabled=true"
		if value != "" {
			flags += ",monitoring.prometheusRule.additionalAggregationLabels" + value
		}
		all := manifests.Parse(t, manifests.Chart(t, "any", "--set", flags))
		groups, _, _ := unstructured.NestedSlice(manifests.OfKind(all, "PrometheusRule")[0].Object, "spec", "groups")
		rules, _, _ := unstructured.NestedSlice(groups[0].(map[string]any), "rules")
		var texts []string
		for _, rule := range rules {
			texts = append(texts, rule.(map[string]any)["expr"].(string))
		}
		answers := monitoring.Query(t, texts, down)
		for i, rule := range rules {
			lists := strings.Count(texts[i], "by (") + strings.Count(texts[i], "on (")
			if kept := strings.Count(texts[i], "(job, namespace, cluster"); answers[i].Error != "" || value != "" && kept != lists {
				t.Errorf("%s: %s %s", value, texts[i], answers[i].Error)
			}
			if rule.(map[string]any)["alert"] == "WatershedDown" && len(answers[i].Result) != want {
				t.Errorf("%s: WatershedDown has %v", value, answers[i].Result)
			}
		}
	}
}

// TestAlertsKeepReleasesApart checks that a release in another namespace does not hide that all proxies of one are
// gone. Without the chart's monitors nobody knows whether metrics have a label namespace.
func TestAlertsKeepReleasesApart(t *testing.T) {
	t.Parallel()
	const with = "monitoring.prometheusRule.enabled=true,monitoring.podMonitor.enabled=true"
	for _, c := range []struct {
		namespace, flags string
		fires            int
	}{
		{"shop", with, 1},
		{"watershed-system", with, 0},
		{"shop", "monitoring.prometheusRule.enabled=true", 0},
	} {
		all := manifests.Parse(t, manifests.Chart(t, c.namespace, "--set", c.flags))
		groups, _, _ := unstructured.NestedSlice(manifests.OfKind(all, "PrometheusRule")[0].Object, "spec", "groups")
		rules, _, _ := unstructured.NestedSlice(groups[0].(map[string]any), "rules")
		var texts []string
		for _, rule := range rules {
			texts = append(texts, rule.(map[string]any)["expr"].(string))
		}
		for i, answer := range monitoring.Query(t, texts, monitoring.Healthy()) {
			want := 0
			if rules[i].(map[string]any)["alert"] == "WatershedAbsent" {
				want = c.fires
			}
			if answer.Error != "" || len(answer.Result) != want {
				t.Errorf("%s, %s: %s has %v %s", c.namespace, c.flags, texts[i], answer.Result, answer.Error)
			}
			for _, metric := range answer.Metrics {
				if slices.Contains(metric.Values["namespace"], c.namespace) != (c.flags == with) {
					t.Errorf("%s: %s selects %v", c.flags, texts[i], metric.Values)
				}
			}
		}
	}
}

// TestAlertsHaveFurtherLabels checks that labels for Alertmanager come to each alert, beside its own.
func TestAlertsHaveFurtherLabels(t *testing.T) {
	t.Parallel()
	all := manifests.Parse(t, manifests.Chart(t, "any", "--set", "monitoring.prometheusRule.enabled=true,monitoring.prometheusRule.alertLabels.team=api"))
	groups, _, _ := unstructured.NestedSlice(manifests.OfKind(all, "PrometheusRule")[0].Object, "spec", "groups")
	rules, _, _ := unstructured.NestedSlice(groups[0].(map[string]any), "rules")
	for i, rule := range monitoring.Rules(t) {
		want := map[string]string{"team": "api", "severity": rule.Labels["severity"]}
		if got, _, _ := unstructured.NestedStringMap(rules[i].(map[string]any), "labels"); !maps.Equal(got, want) {
			t.Errorf("%s: %v", rule.Alert, got)
		}
	}
}

// TestAlertsFollowTheChartsName checks that the chart's rules select the job of its monitors, which is
// the value of the label app.kubernetes.io/name.
func TestAlertsFollowTheChartsName(t *testing.T) {
	t.Parallel()
	selector := regexp.MustCompile(`job="([^"]*)"`)
	for value, name := range map[string]string{"nameOverride=": "watershed", "nameOverride=foo": "foo"} {
		all := manifests.Parse(t, manifests.Chart(t, "any", "--set", value+",monitoring.prometheusRule.enabled=true,monitoring.serviceMonitor.enabled=true"))
		monitor := manifests.OfKind(all, "ServiceMonitor")[0]
		label, _, _ := unstructured.NestedString(monitor.Object, "spec", "jobLabel")
		service := manifests.OfKind(all, "Service")
		job := ""
		for _, object := range service {
			if strings.HasSuffix(object.GetName(), "-metrics") {
				job = object.GetLabels()[label]
			}
		}
		if job != name {
			t.Errorf("%s: the monitor's job is %q", value, job)
		}
		groups, _, _ := unstructured.NestedSlice(manifests.OfKind(all, "PrometheusRule")[0].Object, "spec", "groups")
		rules := fmt.Sprint(groups)
		found := selector.FindAllStringSubmatch(rules, -1)
		for _, match := range found {
			if match[1] != name {
				t.Errorf("%s: a rule selects the job %q", value, match[1])
			}
		}
		if want := len(selector.FindAllString(fmt.Sprint(monitoring.Rules(t)), -1)); len(found) != want || want < 5 {
			t.Errorf("%s: %d selectors of a job, and the file has %d", value, len(found), want)
		}
	}
	// No expression of the dashboard is bound to a job. Its variable offers those that exist.
	if text := string(require.Value(os.ReadFile(monitoring.DashboardFile))(t)); strings.Contains(text, `job=\"`) {
		t.Error("the dashboard names a job")
	}
}
