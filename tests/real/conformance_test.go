package real

import (
	"os"
	"testing"
)

// TestConformance sends the same requests to the API server and through
// watershed, and asks that status, headers and body are the same. README.md says
// what it lets off.
func TestConformance(t *testing.T) {
	conformanceStage(t, everythingKept)
	t.Run("matrix", conformanceMatrix)
	t.Run("generated", conformanceGenerated)
	t.Run("watches", conformanceWatches)
	t.Run("faults", conformanceFaults)
	t.Run("known", conformanceKnown)
}

// TestConformanceOfParts does so with a proxy that holds parts of types, opened by
// what is asked for and closed as soon as it is not.
func TestConformanceOfParts(t *testing.T) {
	proxy := conformanceStage(t, "testdata/parts.yaml")
	if os.Getenv("CONFORMANCE_PAIRS") == "" {
		t.Setenv("CONFORMANCE_PAIRS", "600")
	}
	t.Run("generated", conformanceGenerated)
	t.Run("watches", conformanceWatches)
	if proxy == nil {
		return
	}
	stopped := map[string]int{}
	proxy.addUp(t, "watershed_scopes_stopped_total", "reason", stopped)
	sources := map[string]int{}
	proxy.addUp(t, "watershed_requests_total", ",source", sources)
	t.Logf("scopes stopped: %v; answered from %v", stopped, sources)
	if stopped["closed"] < 20 || sources["snapshot"] == 0 || sources["window"] == 0 {
		t.Errorf("scopes did not come and go: %v, %v", stopped, sources)
	}
}

// conformanceStage has a cluster of its own, for as long as the test: nobody
// else writes there, and what is older than its API server's start is forgotten
// by all, so that each run finds the same.
func conformanceStage(t *testing.T, config string) *ownProxy {
	t.Helper()
	c := must(startBareCluster())(t)
	t.Cleanup(c.stop)
	for _, command := range []string{"compact", "kill 0", "start 0"} {
		check(t, c.tell(command))
	}
	others := []any{shared, upstream, proxied}
	t.Cleanup(func() {
		shared, upstream, proxied = others[0].(*cluster), others[1].(target), others[2].(target)
	})
	shared, upstream = c, c.upstream()
	var proxy *ownProxy
	if proxied = c.upstream(); !direct {
		proxy = startConfigured(t, config, c.ProxyKubeconfig)
		proxied = proxy.target
	}
	proxied.name = "proxied"
	return proxy
}
