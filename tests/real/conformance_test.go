package real

import (
	"testing"
)

// TestConformance sends the same requests to the API server and through
// watershed, and asks that status, headers and body are the same. README.md says
// what it lets off.
func TestConformance(t *testing.T) {
	conformanceStage(t)
	t.Run("matrix", conformanceMatrix)
	t.Run("generated", conformanceGenerated)
	t.Run("watches", conformanceWatches)
	t.Run("faults", conformanceFaults)
	t.Run("known", conformanceKnown)
}

// conformanceStage has a cluster of its own, for as long as the test: nobody
// else writes there, and what is older than its API server's start is forgotten
// by all, so that each run finds the same.
func conformanceStage(t *testing.T) {
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
	if proxied = c.upstream(); !direct {
		proxied = startProxy(t, c.ProxyKubeconfig).target
	}
	proxied.name = "proxied"
}
