package clusters

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/kubectl"
	"watershed.test/real/internal/metrics"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
	"watershed.test/real/internal/usage"
)

// advisedAgent is the name of the clients whose requests are compared, besides kubectl.
const advisedAgent = "advised/1.0"

// advisedAnswer is the part of watershed advise's report that has the labels of
// watershed_requests_total.
type advisedAnswer struct {
	Agent, Verb, Group, Resource, Source, Reason string
	Requests                                     int
}

// advised runs watershed advise on an audit log, and returns the requests of the compared clients
// by their labels.
func advised(t *testing.T, log string) map[string]int {
	t.Helper()
	program := require.Value(testbed.ProxyProgram())(t)
	command := exec.Command(program, "advise", "--audit-log", log, "--config", testbed.CacheEverything, "-o", "json")
	command.Stderr = os.Stderr
	var report struct {
		Log     struct{ DamagedLines int }
		Answers []advisedAnswer
	}
	require.NoError(t, json.Unmarshal(require.Value(command.Output())(t), &report))
	if n := report.Log.DamagedLines; n != 0 {
		t.Errorf("%d lines of the log were not read", n)
	}
	counts := map[string]int{}
	for _, a := range report.Answers {
		if a.Agent == advisedAgent || strings.HasPrefix(a.Agent, "kubectl") {
			counts[fmt.Sprint(a.Verb, " ", a.Group, "/", a.Resource, " ", a.Source, " ", a.Reason)] += a.Requests
		}
	}
	return counts
}

// proxyAnswers returns the same of what a proxy has answered.
func proxyAnswers(t *testing.T, admin string) map[string]int {
	t.Helper()
	counts := map[string]int{}
	proxy := testbed.Proxy{Admin: admin}
	for sample := range metrics.Samples(require.Value(proxy.Metrics())(t)) {
		if sample.Name != "watershed_requests_total" {
			continue
		}
		key := fmt.Sprint(sample.Label("verb"), " ", sample.Label("group"), "/", sample.Label("resource"), " ", sample.Label("source"), " ", sample.Label("reason"))
		counts[key] += int(sample.Value)
	}
	return counts
}

// TestAdviceAgreesWithTheProxy runs a workload on an API server and has watershed advise read the
// audit log. The same workload through a proxy is answered as the report says.
func TestAdviceAgreesWithTheProxy(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy")
	}
	t.Parallel()
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	require.NoError(t, os.WriteFile(policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n"), 0o600))
	c := require.Value(testbed.StartWithProxy("--apiserver-arg", "--audit-policy-file="+policy, "--apiserver-arg", "--audit-log-path="+log))(t)
	defer c.Stop()
	up, px := c.Upstream(), c.Proxied()
	const here = "/api/v1/namespaces/default"
	up.Must(t, api.Request{Method: "POST", Path: here + "/configmaps", Body: api.JSON(objects.WithKind(objects.ConfigMap("apple")))})

	const protobuf = "application/vnd.kubernetes.protobuf"
	requests := []api.Request{
		{Path: "/api/v1/configmaps?resourceVersion=0"},
		{Path: here + "/configmaps"},
		{Path: here + "/configmaps?limit=500"},
		{Path: here + "/configmaps?labelSelector=app%3Dapple", Accept: protobuf},
		{Path: here + "/configmaps?labelSelector=%3D%3D%3D"},
		{Path: here + "/configmaps?fieldSelector=metadata.name%3Dapple&limit=1"},
		{Path: here + "/configmaps?watch=1&resourceVersion=0&timeoutSeconds=1"},
		{Path: here + "/configmaps?watch=1&timeoutSeconds=1"},
		{Path: here + "/configmaps/apple"},
		{Path: here + "/configmaps/apple?resourceVersion=0"},
		{Path: here + "/configmaps/nobody?resourceVersion=0", Accept: protobuf},
		{Path: here + "/configmaps?resourceVersion=0", User: "alice"},
		{Path: here + "/configmaps", User: "-"},
		{Path: here + "/configmaps", Header: map[string]string{"Impersonate-User": "alice"}},
		{Path: "/api/v1/watch/configmaps?timeoutSeconds=1"},
		{Path: "/api/v1/nodes?fieldSelector=spec.unschedulable%3Dtrue"},
		{Path: "/apis/apps/v1/deployments?resourceVersion=0"},
		{Path: "/apis/nowhere.example.org/v1/things"},
		{Path: "/apis/apps/v1/namespaces/default/deployments/nobody/scale"},
		{Path: "/apis/apps/v1?timeout=32s"},
		{Path: "/openapi/v3/apis/batch/v1"},
		{Path: "/version"},
		{Path: "/readyz"},
		{Method: "PATCH", Path: here + "/configmaps/apple", ContentType: api.MergePatch, Body: `{"data":{"a":"b"}}`},
		{Method: "DELETE", Path: here + "/configmaps/nobody"},
	}
	workload := func(to api.Target) {
		for _, r := range requests {
			header := map[string]string{"User-Agent": advisedAgent}
			maps.Copy(header, r.Header)
			r.Header = header
			to.Send(t, r)
		}
		for _, args := range []string{"get configmaps -n default", "get configmap apple -n default", "get nodes"} {
			if r := kubectl.Run(t, to, kubectl.Command{Args: strings.Fields(args)}); r.Code != 0 {
				t.Fatal(to.Name, args, r)
			}
		}
	}

	// kubectl's cache of discovery is warm in both cases, and what the harness did is not
	// compared.
	workload(up)
	before := advised(t, log)
	workload(up)
	var wanted map[string]int
	poll.Until(t, "the audit log has the whole workload", func() error {
		wanted = usage.Growth(before, advised(t, log))
		if n := wanted["delete /configmaps forward not-a-read"]; n != 1 {
			return fmt.Errorf("%v", wanted)
		}
		return nil
	})
	workload(px)
	poll.Until(t, "the proxy answers as the report says", func() error {
		before := proxyAnswers(t, c.ProxyAdmin)
		workload(px)
		if got := usage.Growth(before, proxyAnswers(t, c.ProxyAdmin)); !maps.Equal(got, wanted) {
			return fmt.Errorf("the proxy answered\n%v\nand the report says\n%v", got, wanted)
		}
		return nil
	})
	fromMemory := 0
	for labels, n := range wanted {
		if !strings.Contains(labels, " forward ") {
			fromMemory += n
		}
	}
	t.Logf("%d of %d requests from memory", fromMemory, usage.Total(wanted))
	if fromMemory < 8 {
		t.Error(wanted)
	}
}
