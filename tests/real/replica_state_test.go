package real

import (
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"syscall"
	"testing"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
	"watershed.test/real/internal/usage"
)

// TestReplicaTakesItsStateFromAnother starts a replica beside one that holds a type. It knows all
// objects in both encodings and goes on alone, and kube-apiserver has answered no list.
//
// It does not run in parallel: other tests list types, too.
func TestReplicaTakesItsStateFromAnother(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy")
	}
	const resource, path = "runtimeclasses", "/apis/node.k8s.io/v1/runtimeclasses"
	create := func(name string) {
		t.Helper()
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: path, Body: fmt.Sprintf(`{"metadata":{"name":"%s"},"handler":"x"}`, name)})
		t.Cleanup(func() { testbed.Upstream.Try(api.Request{Method: "DELETE", Path: path + "/" + name}) })
	}
	items := func() map[string]uint64 {
		t.Helper()
		return require.Value(testbed.Upstream.Must(t, api.Request{Path: path}).Items())(t)
	}
	has := func(p *testbed.Proxy, want map[string]uint64) {
		t.Helper()
		for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
			poll.Until(t, "memory has all objects", func() error {
				answer := p.Must(t, api.Request{Path: path + "?resourceVersion=0", Accept: accept})
				got := require.Value(answer.Items())(t)
				if source := answer.Header.Get("X-Watershed-Source"); source != "snapshot" || !maps.Equal(got, want) {
					return fmt.Errorf("%v from %s as %s, and upstream has %v", got, source, accept, want)
				}
				return nil
			})
		}
	}
	// Derived JSON is compared with a small list first.
	flags := []string{"--derive-json", "false"}

	create("replica-listed")
	first := testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig, flags...)
	has(first, items())
	// The last event proves the history.
	create("replica-noticed")
	has(first, items())
	for _, encoding := range []string{"json", "protobuf"} {
		poll.Until(t, "the first replica gives its state", func() error {
			answer := first.Send(t, api.Request{Path: path + "?resourceVersion=0", Accept: "application/vnd.watershed.checkpoint;layout=2;encoding=" + encoding})
			if answer.Status != http.StatusOK {
				return fmt.Errorf("%d: %s", answer.Status, answer.Body)
			}
			return nil
		})
	}
	replicas := filepath.Join(t.TempDir(), "replicas")
	require.NoError(t, testbed.WriteKubeconfig(replicas, first.URL, first.CA, testbed.Shared.AdminToken))

	want := items()
	lists := usage.CountReads(t, testbed.Upstream, resource)["LIST"]
	second := testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig, append(flags, "--state-from", replicas)...)
	has(second, want)
	// One of a single object for each state.
	if after := usage.CountReads(t, testbed.Upstream, resource)["LIST"]; after > lists+2 {
		t.Errorf("kube-apiserver has answered %d lists", after-lists)
	}
	results := map[string]int{}
	second.AddByLabel(t, "watershed_replica_states_total", "result", results)
	if results["restored"] < 2 {
		t.Errorf("no state was taken from the other replica: %v\n%s", results, second.LogTail())
	}

	require.NoError(t, syscall.Kill(first.PID, syscall.SIGKILL))
	version := require.Value(testbed.Upstream.Revision())(t)
	create("replica-after")
	has(second, items())
	watch := api.Request{Path: fmt.Sprintf("%s?watch=1&resourceVersion=%d&timeoutSeconds=2", path, version)}
	ours, theirs := second.Must(t, watch).Body, testbed.Upstream.Must(t, watch).Body
	if ours != theirs || ours == "" {
		t.Errorf("a watch shows\n%s\nand directly\n%s", ours, theirs)
	}
}
