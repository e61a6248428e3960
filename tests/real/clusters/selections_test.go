package clusters

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/parallel"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
	"watershed.test/real/internal/usage"
)

// TestSelectionsAreComparedByCompressedWatches has watches of single nodes' pods begin while other
// types are written. What they begin with is upstream's. Upstream is asked for it by a watch of
// metadata, which it compresses, and not by a list, which would be too short for that.
func TestSelectionsAreComparedByCompressedWatches(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy")
	}
	c := require.Value(testbed.Start())(t)
	t.Cleanup(c.Stop)
	p := testbed.RunProxy(t, c.ProxyKubeconfig, "--config", testbed.CacheEverything, "--upstream-compression=true")
	at := c.Upstream()
	const path, nodes = "/api/v1/namespaces/default/pods", 8
	parallel.ForEach(8, make([]int, 80*nodes), func(i, _ int) {
		pod := objects.Pod(fmt.Sprintf("pod-%05d", i), fmt.Sprint("node-", i%nodes))
		pod.Annotations = map[string]string{"long": strings.Repeat("x", 400)}
		at.Must(t, api.Request{Method: "POST", Path: path, Body: api.JSON(pod)})
	})
	const accept = "application/vnd.kubernetes.protobuf"
	poll.Until(t, "pods come from memory", func() error {
		answer := p.Must(t, api.Request{Path: "/api/v1/pods?resourceVersion=0", Accept: accept})
		if source := answer.Header.Get("X-Watershed-Source"); source != "snapshot" {
			return fmt.Errorf("the source is %q", source)
		}
		return nil
	})
	// initial returns the source of a watch, and what it begins with.
	initial := func(to api.Target, node int) (source string, state []string) {
		query := fmt.Sprintf("?watch=1&timeoutSeconds=1&fieldSelector=spec.nodeName%%3Dnode-%d&", node)
		answer := to.Must(t, api.Request{Path: "/api/v1/pods" + query + api.LatestStateFirst, Accept: accept})
		for _, frame := range require.Value(answer.Frames())(t) {
			if frame.Event == "ADDED" {
				state = append(state, fmt.Sprint(frame.Key, " at ", frame.Version))
			}
		}
		slices.Sort(state)
		return answer.Header.Get("X-Watershed-Source"), state
	}
	var wanted [nodes][]string
	for node := range nodes {
		_, wanted[node] = initial(at, node)
	}
	before := usage.CountReads(t, at, "pods")
	compared := 0
	for node := range nodes {
		at.Must(t, api.Request{Method: "PATCH", Path: "/api/v1/namespaces/default", ContentType: "application/merge-patch+json",
			Body: fmt.Sprintf(`{"metadata":{"annotations":{"written":"%d"}}}`, node)})
		source, state := initial(p.Target, node)
		if !slices.Equal(state, wanted[node]) {
			t.Errorf("a watch of node-%d from %q begins with\n%v, not with\n%v", node, source, state, wanted[node])
		}
		// A proof may come late on a machine that stalls, and the next reads are forwarded then.
		if source == "linearizable" {
			compared++
		}
	}
	if compared < 2 {
		t.Fatalf("%d of %d watches began with a proof", compared, nodes)
	}
	poll.Until(t, "upstream has counted the watches", func() error {
		asked := usage.Growth(before, usage.CountReads(t, at, "pods"))
		// The others may have been forwarded. Where nothing was written since the last proof, none is
		// needed.
		if watches := asked["WATCH"] - (nodes - compared); watches < compared/2 {
			return fmt.Errorf("%d watches began with a proof, and upstream was asked %v", compared, asked)
		}
		return nil
	})
}
