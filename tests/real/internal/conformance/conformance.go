// Package conformance holds the parts of TestAnswersConformToUpstream: the matrix of read options,
// generated requests, watches, and planted faults.
package conformance

import (
	"testing"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// StartCluster gives the test a cluster of its own, which replaces the shared one until the
// test ends. Nobody else writes there. Everything older than the API server's start is
// forgotten, so each run finds the same.
func StartCluster(t *testing.T, config string) *testbed.Proxy {
	t.Helper()
	c := require.Value(testbed.Start())(t)
	t.Cleanup(c.Stop)
	for _, command := range []string{"compact", "kill 0", "start 0"} {
		require.NoError(t, c.Command(command))
	}
	others := []any{testbed.Shared, testbed.Upstream, testbed.Proxied}
	t.Cleanup(func() {
		testbed.Shared, testbed.Upstream, testbed.Proxied = others[0].(*testbed.Cluster), others[1].(api.Target), others[2].(api.Target)
	})
	testbed.Shared, testbed.Upstream = c, c.Upstream()
	var proxy *testbed.Proxy
	if testbed.Proxied = c.Upstream(); !testbed.Direct {
		proxy = testbed.StartProxyWithConfig(t, config, c.ProxyKubeconfig)
		testbed.Proxied = proxy.Target
	}
	testbed.Proxied.Name = "proxied"
	return proxy
}
