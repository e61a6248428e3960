// Package conformance holds the parts of TestAnswersConformToUpstream: the matrix of read options,
// generated requests, watches, and planted faults.
package conformance

import (
	"testing"

	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// Replace lets the test replace the shared cluster and both ways to it until its end.
func Replace(t *testing.T) {
	shared, upstream, proxied := testbed.Shared, testbed.Upstream, testbed.Proxied
	t.Cleanup(func() { testbed.Shared, testbed.Upstream, testbed.Proxied = shared, upstream, proxied })
}

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
	Replace(t)
	testbed.Shared, testbed.Upstream = c, c.Upstream()
	var proxy *testbed.Proxy
	if testbed.Proxied = c.Upstream(); !testbed.Direct {
		proxy = testbed.StartProxyWithConfig(t, config, c.ProxyKubeconfig)
		testbed.Proxied = proxy.Target
	}
	testbed.Proxied.Name = "proxied"
	return proxy
}
