package clusters

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
	"watershed.test/real/internal/usage"
)

func fromEnvironment(t *testing.T, name string, otherwise int) int {
	t.Helper()
	return require.Value(strconv.Atoi(cmp.Or(os.Getenv(name), strconv.Itoa(otherwise))))(t)
}

// nodeSetup is one way to serve the agents of nodes.
type nodeSetup struct {
	name string
	// flags returns those of a node's proxy. Without it there is no proxy.
	flags func(node int) []string
	// zone puts a tier of proxies between those of the nodes and the API server.
	zone bool
	// wholeTypes says that a node's proxy caches the objects of all nodes.
	wholeTypes bool
}

// commonFlags returns the flags that all proxies get.
func commonFlags() []string { return strings.Fields(os.Getenv("NODE_FLAGS")) }

// zoneFlags returns those of the zone tier.
func zoneFlags() []string {
	return append(commonFlags(), strings.Fields(os.Getenv("NODE_ZONE_FLAGS"))...)
}

// nodeFlags returns the flags of a node's proxy.
func nodeFlags(node int) []string { return append(commonFlags(), "--node-name", nodeName(node)) }

// TestNodeProxiesSaveUpstreamTraffic runs agents on each node, with client-go's default
// informers on the node and its pods. It compares four set-ups: no proxy, a proxy on each node
// that caches what runs there, the same behind a zone tier, and one that caches whole types. It
// counts bytes, requests and CPU at upstream and between the tiers: at the start, while pods
// change, and while all proxies are replaced. While pods change, upstream has to send fewer bytes
// than without proxies.
//
// By default it is small. `make simulate-nodes` gives the figures in docs/benchmarks.md.
func TestNodeProxiesSaveUpstreamTraffic(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy")
	}
	c := startNodeCluster(t, nodeSizes{
		nodes: fromEnvironment(t, "NODES", 4), pods: fromEnvironment(t, "NODE_PODS", 240),
		agents: fromEnvironment(t, "NODE_AGENTS", 3), seconds: fromEnvironment(t, "NODE_SECONDS", 3),
		perSecond: fromEnvironment(t, "NODE_CHANGES", 20), zoneReplicas: fromEnvironment(t, "NODE_ZONE_REPLICAS", 1),
		checkpoints: os.Getenv("NODE_CHECKPOINTS") != "",
	})
	t.Logf("%+v", c.nodeSizes)
	var without NodeFigures
	for _, way := range []nodeSetup{
		{name: "without proxies"},
		{name: "a proxy for what runs on the node", flags: nodeFlags},
		{name: "the same behind a zone tier", flags: nodeFlags, zone: true},
		{name: "a proxy for whole types", flags: func(int) []string { return commonFlags() }, wholeTypes: true},
	} {
		t.Run(way.name, func(t *testing.T) {
			churn := runNodeSetup(t, c, way)
			switch {
			case way.flags == nil:
				without = churn
			case way.wholeTypes || c.agents == 1 || without.UpstreamBytes == 0:
				// This set-up saves nothing where nodes are many, or there is nothing to compare with.
			case churn.UpstreamBytes >= without.UpstreamBytes:
				t.Errorf("while pods change, upstream sends %d bytes, and %d without proxies", churn.UpstreamBytes, without.UpstreamBytes)
			}
		})
	}
}

// runNodeSetup takes the costs of one set-up. It returns those while pods change.
func runNodeSetup(t *testing.T, c *nodeCluster, way nodeSetup) (churn NodeFigures) {
	idle := usage.Measure(t, c.Cluster, "pods").Watching
	// The start of the proxies is part of the costs.
	before := &nodeFleet{nodeCluster: c, counted: &usage.ByteCounter{}}
	meter := before.meter(t, way.name)
	fleet := c.startNodeFleet(t, way)
	meter.fleet = fleet
	stop := make(chan struct{})
	defer close(stop)
	fleet.openAgents(t, stop)
	meter.phase(t, "start")
	events, resumes, changes := fleet.received(t), fleet.resumed(t), c.changes
	fleet.churn(t)
	churn = meter.phase(t, "churn")
	if fleet.proxies == nil {
		return churn
	}
	fleet.checkCached(t, way.wholeTypes)
	fleet.checkEvents(t, way.wholeTypes, events, resumes, c.changes-changes)
	if way.zone {
		// Another watch is that of a replica which is not needed any more. Those of proofs end soon.
		poll.Until(t, "few watches are open", func() error {
			if n, most := usage.Measure(t, c.Cluster, "pods").Watching-idle, 2*c.zoneReplicas; n > most {
				return fmt.Errorf("%d watches of pods at the API server, and not at most %d", n, most)
			}
			return nil
		})
	}
	if way.wholeTypes {
		return churn
	}
	meter.begin(t)
	fleet.replaceProxies(t)
	// The processes of before are gone, and their CPU with them.
	meter.last.TierRequests, meter.last.TierSeconds, meter.last.NodeSeconds = 0, 0, 0
	meter.phase(t, "rollout")
	// Not part of the rollout's costs: with many nodes it is dearer than the rollout itself.
	fleet.changeOn(t, 0, fleet.nodes)
	return churn
}

// resumed returns the number of times that the nodes' proxies have resumed a watch of pods.
func (f *nodeFleet) resumed(t *testing.T) (n int) {
	t.Helper()
	for _, p := range f.proxies {
		n += p.Sum(t, "watershed_upstream_resumes_total", "pods")
	}
	return n
}

// received returns the events of pods that the nodes' proxies have received.
func (f *nodeFleet) received(t *testing.T) (n int) {
	t.Helper()
	for _, p := range f.proxies {
		n += p.Sum(t, "watershed_upstream_events_total", "pods")
	}
	return n
}

// checkCached checks how many pods the proxies cache, and logs their memory.
func (f *nodeFleet) checkCached(t *testing.T, wholeTypes bool) {
	t.Helper()
	cached, want := 0, f.allPods()
	if wholeTypes {
		want *= f.nodes
	}
	var memory []int64
	for _, p := range f.proxies {
		cached += p.Sum(t, "watershed_scope_objects", "pods")
		memory = append(memory, usage.ResidentBytes(t, p.PID))
	}
	slices.Sort(memory)
	t.Logf("memory of a proxy: %d MiB (median), %d to %d", memory[len(memory)/2]>>20, memory[0]>>20, memory[len(memory)-1]>>20)
	if cached != want {
		t.Errorf("all proxies cache %d pods, not %d", cached, want)
	}
}

// checkEvents checks that each change reached the proxy of its node, or all of them, since so many events and
// resumed watches before. A watch that is resumed repeats the last event.
func (f *nodeFleet) checkEvents(t *testing.T, wholeTypes bool, events, resumes, changes int) {
	t.Helper()
	want := changes
	if wholeTypes {
		want *= f.nodes
	}
	poll.Until(t, "the proxies have seen the last change", func() error {
		n, repeated := f.received(t)-events, f.resumed(t)-resumes
		if n < want || n > want+repeated {
			return fmt.Errorf("upstream sent %d events of pods, not %d and %d again", n, want, repeated)
		}
		return nil
	})
}
