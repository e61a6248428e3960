package clusters

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/fleet"
	"watershed.test/real/internal/kubectl"
	"watershed.test/real/internal/metrics"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// TestWholeClusterReadsFromMemory has all clients of a cluster behind one proxy: Kubernetes' own
// controller manager and scheduler, simulated kubelets, controllers with client-go's default
// informers, terminals, and kubectl. It counts the reads that are answered from memory.
//
// `make simulate-cluster` builds the control plane and gives the figures in docs/benchmarks.md.
func TestWholeClusterReadsFromMemory(t *testing.T) {
	if testbed.Direct || os.Getenv("FLEET_NODES") == "" || !fleet.HasControlPlane() {
		t.Skip("needs a proxy, a controller manager and a scheduler: make simulate-cluster")
	}
	nodes, deployments := fromEnvironment(t, "FLEET_NODES", 5), fromEnvironment(t, "FLEET_DEPLOYMENTS", 5)
	seconds := fromEnvironment(t, "FLEET_SECONDS", 20)
	const replicas = 10
	c := require.Value(testbed.Start())(t)
	t.Cleanup(c.Stop)
	p := testbed.StartProxyWithConfig(t, "", c.ProxyKubeconfig)
	p.Kubeconfig = fleet.WriteKubeconfig(t, p.Target)
	tally := fleet.NewTally()
	config := func(client string) *rest.Config {
		config := p.Config()
		config.WrapTransport = tally.Wrap(client)
		return config
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	fleet.StartControlPlane(t, c, p.Kubeconfig)
	for i := range nodes {
		fleet.StartNode(t, ctx, config("kubelets"), fmt.Sprint("node-", i))
	}
	synced := fleet.StartOperators(t, ctx, config("operators"), 6)
	poll.Until(t, "the operators are in sync", func() error {
		if !synced() {
			return poll.ErrNotYet
		}
		return nil
	})
	apps := api.Clientset(t, p.Target).AppsV1().Deployments("default")
	for i := range deployments {
		require.Value(apps.Create(ctx, objects.Deployment(fmt.Sprint("app-", i), replicas), metav1.CreateOptions{}))(t)
	}
	poll.Until(t, "all pods run", func() error {
		pods, err := api.Clientset(t, c.Upstream()).CoreV1().Pods("default").List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Running"})
		if err == nil && len(pods.Items) < deployments*replicas {
			err = fmt.Errorf("%d of %d", len(pods.Items), deployments*replicas)
		}
		return err
	})
	started := countAnswers(t, p)
	t.Logf("the start: %s", answersText(started))

	fleetOfPeople(t, ctx, p, tally, time.Duration(seconds)*time.Second, func(i int) error {
		scale := fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"n":"%d"}}}}}`, i)
		r := api.Request{Method: "PATCH", Path: fmt.Sprint("/apis/apps/v1/namespaces/default/deployments/app-", i%deployments), ContentType: api.MergePatch, Body: scale}
		a, err := p.Try(r)
		if err == nil && a.Status != http.StatusOK {
			err = fmt.Errorf("%v: %d %s", r, a.Status, a.Body)
		}
		return err
	})
	all := countAnswers(t, p)
	t.Logf("%d nodes, %d pods, %d terminals, %d s\nall: %s\nby client, of those in this process:\n%s",
		nodes, deployments*replicas, terminals, seconds, answersText(all), fleet.Rows(tally.Reads()))
	tables := 0
	for read, count := range tally.Reads() {
		if read.Form == "Table" && read.FromMemory() {
			tables += count
		}
	}
	reads, kept := shareOf(all, "get", "list", "watch")
	t.Logf("%d of %d reads from memory (%.1f %%); %.1f %% if the terminals' Tables were forwarded", kept, reads, percent(kept, reads), percent(kept-tables, reads))
	reads, kept = shareOf(all, "list", "watch")
	t.Logf("%d of %d lists and watches from memory (%.1f %%); %.1f %% if the terminals' Tables were forwarded", kept, reads, percent(kept, reads), percent(kept-tables, reads))
	if percent(kept, reads) < 90 {
		t.Errorf("%d of %d lists and watches are from memory", kept, reads)
	}
}

func percent(part, whole int) float64 { return 100 * float64(part) / float64(whole) }

// shareOf returns how many reads there were with these verbs, and how many were from memory.
func shareOf(answers map[answerKind]int, verbs ...string) (reads, kept int) {
	for answer, count := range answers {
		if slices.Contains(verbs, answer.verb) {
			reads += count
			if api.FromMemory(answer.source) {
				kept += count
			}
		}
	}
	return reads, kept
}

// fleetOfPeople has terminals refresh, people run kubectl, and a rollout every few seconds.
func fleetOfPeople(t *testing.T, ctx context.Context, p *testbed.Proxy, tally *fleet.Tally, lasting time.Duration, rollOut func(i int) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, lasting)
	defer cancel()
	var people sync.WaitGroup
	tables := []string{"/api/v1/namespaces/default/pods", "/apis/apps/v1/namespaces/default/deployments", "/api/v1/nodes", "/api/v1/namespaces/default/events"}
	for i := range terminals {
		people.Go(func() {
			terminal := fleet.NewTerminal(p.Target, tables[i%len(tables)], tally)
			defer terminal.Close()
			terminal.Run(ctx, int(lasting/(2*time.Second)), 2*time.Second)
		})
	}
	people.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			if err := rollOut(i); err != nil {
				t.Error(err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Second):
			}
		}
	})
	for ctx.Err() == nil {
		for _, line := range []string{"get pods -A", "get deployments -o wide", "get nodes", "describe deployment app-0", "get events", "get pods -o yaml", "rollout status deployment app-1 --timeout=60s"} {
			result := kubectl.Run(t, p.Target, kubectl.Args(line))
			// A rollout may follow another, and take longer than its time.
			if result.Code != 0 && !strings.HasPrefix(line, "rollout") {
				t.Errorf("kubectl %s: exit code %d: %s", line, result.Code, result.Stderr)
			}
		}
	}
	people.Wait()
}

// answerKind is the label set of an answered read. That of a forwarded one has its resource.
type answerKind struct{ verb, source, reason, resource string }

// countAnswers reads from the proxy's metrics how it answered reads.
func countAnswers(t *testing.T, p *testbed.Proxy) map[answerKind]int {
	t.Helper()
	counts := map[answerKind]int{}
	for sample := range metrics.Samples(require.Value(p.Metrics())(t)) {
		kind := answerKind{sample.Label("verb"), sample.Label("source"), sample.Label("reason"), ""}
		if kind.reason != "" {
			kind.resource = sample.Label("resource")
		}
		if sample.Name == "watershed_requests_total" && slices.Contains([]string{"get", "list", "watch"}, kind.verb) {
			counts[kind] += int(sample.Value)
		}
	}
	return counts
}

func answersText(counts map[answerKind]int) string {
	var text strings.Builder
	for _, kind := range slices.SortedFunc(maps.Keys(counts), func(a, b answerKind) int { return counts[b] - counts[a] }) {
		fmt.Fprintf(&text, "\n%7d %s: %s %s %s", counts[kind], kind.verb, kind.source, kind.reason, kind.resource)
	}
	return text.String()
}
