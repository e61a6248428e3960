package clusters

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/parallel"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/robustness"
	"watershed.test/real/internal/testbed"
	"watershed.test/real/internal/usage"
)

// TestConsistentReadsAreLinearizable has many clients write, directly and through two replicas,
// while others read the latest state through both. Every answer has to be the state at its
// version. It may not be older than anything written or read before its request, nor newer than
// what came later. See package history for the rules.
func TestConsistentReadsAreLinearizable(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs proxies, whose reads it checks")
	}
	t.Parallel()
	s := robustness.New(t)
	lasting := 5 * time.Second
	end := time.Now()
	if text := os.Getenv("ROBUSTNESS_SECONDS"); text != "" {
		lasting = 15 * time.Second
		end = end.Add(time.Duration(require.Value(strconv.Atoi(text))(t)) * time.Second)
	}
	for round := 0; round == 0 || time.Now().Before(end) && !t.Failed(); round++ {
		t.Run("no faults", func(t *testing.T) { s.WithoutFaults(t, lasting) })
		t.Run("connections are cut", func(t *testing.T) { s.WithConnectionsCut(t, lasting) })
		t.Run("a server is killed", func(t *testing.T) { s.WithServerKilled(t, lasting) })
		t.Run("watches are behind", func(t *testing.T) { s.WithWatchesBehind(t, lasting+2*time.Second) })
	}
	if s.ProvenGets == 0 {
		t.Error("no get was answered from memory")
	}
}

// TestConsistentReadsFromSelectorScopesAreLinearizable does the same with replicas whose
// selector scopes come and go.
func TestConsistentReadsFromSelectorScopesAreLinearizable(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs proxies, whose reads it checks")
	}
	t.Parallel()
	s := robustness.New(t)
	s.Config = "testdata/parts.yaml"
	t.Run("no faults", func(t *testing.T) { s.WithoutFaults(t, 5*time.Second) })
	t.Run("connections are cut", func(t *testing.T) { s.WithConnectionsCut(t, 5*time.Second) })
}

// TestConsistentReadsCostUpstreamLittle reads a type that is idle while upstream's version moves,
// and counts what upstream was asked for, with upstream's own metrics.
func TestConsistentReadsCostUpstreamLittle(t *testing.T) {
	if testbed.Direct {
		t.Skip("without a proxy there is nothing to count")
	}
	c := require.Value(testbed.Start())(t)
	t.Cleanup(c.Stop)
	p := testbed.StartProxy(t, c.ProxyKubeconfig)
	at := c.Upstream()
	const ns, many, all = "default", 1500, "/api/v1/configmaps"
	names := make([]string, many)
	for i := range names {
		names[i] = fmt.Sprintf("idle-%04d", i)
	}
	parallel.ForEach(8, names, func(i int, name string) {
		body := fmt.Sprintf(`{"metadata":{"name":"%s","labels":{"n":"%d"}},"data":{"text":"%s"}}`, name, i, strings.Repeat("abcd", 250))
		at.Must(t, api.Request{Method: "POST", Path: "/api/v1/namespaces/" + ns + "/configmaps", Body: body})
	})
	ctx, cancel := context.WithCancel(t.Context())
	moved := make(chan struct{})
	go func() {
		defer close(moved)
		for i := 0; ctx.Err() == nil; i++ {
			at.Try(api.Request{Method: "PATCH", Path: "/api/v1/namespaces/" + ns, ContentType: api.MergePatch, Body: fmt.Sprintf(`{"metadata":{"annotations":{"n":"%d"}}}`, i)})
			time.Sleep(10 * time.Millisecond)
		}
	}()
	t.Cleanup(func() { cancel(); <-moved })
	read := func(path string) string {
		a := p.Must(t, api.Request{Path: path})
		return a.Header.Get("X-Watershed-Source")
	}
	readAll := func(clients int, paths []string) map[string]int {
		sources, mutex := map[string]int{}, sync.Mutex{}
		parallel.ForEach(clients, paths, func(_ int, path string) {
			source := read(path)
			mutex.Lock()
			defer mutex.Unlock()
			sources[source]++
		})
		return sources
	}
	node := all + "?labelSelector=n%3D7"
	get := func(i int) string { return "/api/v1/namespaces/" + ns + "/configmaps/" + names[i%many] }
	gets := make([]string, 3000)
	for i := range gets {
		gets[i] = get(i)
	}
	// These open the caches and show how idle the type is.
	readAll(1, []string{all, all, node, get(0)})
	for _, step := range []struct {
		name    string
		clients int
		paths   []string
		// most is the greatest number of requests to upstream, and source the source of most
		// answers.
		most   int
		source string
	}{
		{"whole lists one by one", 1, slices.Repeat([]string{all}, 10), 10, "linearizable"},
		{"whole lists of twenty clients", 20, slices.Repeat([]string{all}, 200), 50, "linearizable"},
		{"small lists one by one", 1, slices.Repeat([]string{node}, 10), 10, "forward; reason=unproven"},
		{"small lists of twenty clients", 20, slices.Repeat([]string{node}, 400), 100, "coalesced"},
		{"gets one by one", 1, gets[:10], 10, "forward; reason=consistent-read"},
		// A hundred for a thousand, where nothing else runs. Gets that a busy machine keeps waiting are forwarded.
		{"gets of a hundred clients", 100, gets, 1000, "linearizable"},
	} {
		t.Run(step.name, func(t *testing.T) {
			// Requests take other ways while the machine is slow or stalls. That may last as long as a program
			// beside runs.
			var why string
			for begun := time.Now(); why == "" || time.Since(begun) < 2*time.Minute; {
				before := usage.CountReads(t, at, "configmaps")
				sources := readAll(step.clients, step.paths)
				asked := usage.Growth(before, usage.CountReads(t, at, "configmaps"))
				n := usage.Total(asked)
				t.Logf("%d reads cost upstream %v; they came from %v", len(step.paths), asked, sources)
				if n <= step.most && sources[step.source] > len(step.paths)/2 {
					return
				}
				why = fmt.Sprintf("%d reads cost upstream %v, at most %d is expected; they came from %v", len(step.paths), asked, step.most, sources)
			}
			t.Error(why)
		})
	}
	t.Run("a watch that begins with one object", func(t *testing.T) {
		query := "&watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1"
		// A proof that a get no longer waits for may still be under way.
		count := func() map[string]int { return usage.CountReads(t, at, "configmaps") }
		poll.Until(t, "the end of the reads before", func() error {
			before := count()
			time.Sleep(100 * time.Millisecond)
			if late := usage.Growth(before, count()); usage.Total(late) > 0 {
				return fmt.Errorf("upstream still counts %v", late)
			}
			return nil
		})
		poll.Until(t, "a watch that begins after one proof", func() error {
			before := count()
			a := p.Must(t, api.Request{Path: node + query})
			asked := usage.Growth(before, count())
			if n := strings.Count(a.Body, `"type":"ADDED"`); n != 1 || !strings.Contains(a.Body, api.InitialEventsEnd) {
				t.Errorf("it begins with %d objects: %.500s", n, a.Body)
			}
			// A stall makes requests take other ways.
			if source := a.Header.Get("X-Watershed-Source"); source != "linearizable" {
				return fmt.Errorf("it comes from %q", source)
			}
			// The proxy also asks once whether upstream compresses such watches.
			if asked["WATCH"] > 1 || asked["LIST"] > 1 {
				return fmt.Errorf("it cost upstream %v", asked)
			}
			return nil
		})
	})
}
