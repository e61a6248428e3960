package real

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
	"watershed.test/real/internal/usage"
)

// TestKilledProxyResumesFromItsCheckpoint kills a proxy that has written a checkpoint. Its
// successor knows all that happened meanwhile, and kube-apiserver has answered no list.
//
// It does not run in parallel: other tests list types, too.
func TestKilledProxyResumesFromItsCheckpoint(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy")
	}
	const resource, path = "runtimeclasses", "/apis/node.k8s.io/v1/runtimeclasses"
	list, folder := api.Request{Path: path + "?resourceVersion=0"}, t.TempDir()
	change := func(method, name, body string) {
		t.Helper()
		r := api.Request{Method: method, Path: path + "/" + name, Body: body}
		switch method {
		case "POST":
			r.Path = path
		case "PATCH":
			r.ContentType = api.MergePatch
		}
		testbed.Upstream.Must(t, r)
	}
	create := func(name string) {
		t.Helper()
		change("POST", name, fmt.Sprintf(`{"metadata":{"name":"%s"},"handler":"x"}`, name))
		t.Cleanup(func() { testbed.Upstream.Try(api.Request{Method: "DELETE", Path: path + "/" + name}) })
	}
	start := func() *testbed.Proxy {
		// Derived JSON is compared with a small list first.
		return testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig, "--checkpoint-dir", folder, "--checkpoint-interval", "1s", "--derive-json", "false")
	}
	has := func(p *testbed.Proxy, want map[string]uint64) {
		t.Helper()
		poll.Until(t, "memory has all changes", func() error {
			answer := p.Must(t, list)
			got := require.Value(answer.Items())(t)
			if source := answer.Header.Get("X-Watershed-Source"); source != "snapshot" || !maps.Equal(got, want) {
				return fmt.Errorf("%v from %s, and upstream has %v", got, source, want)
			}
			return nil
		})
	}

	for _, name := range []string{"checkpoint-changed", "checkpoint-deleted", "checkpoint-same"} {
		create(name)
	}
	first := start()
	version := require.Value(testbed.Upstream.Revision())(t)
	has(first, require.Value(testbed.Upstream.Must(t, api.Request{Path: path}).Items())(t))
	create("checkpoint-last")
	poll.Until(t, "a checkpoint has the last object", func() error {
		for _, file := range require.Value(filepath.Glob(folder + "/*.checkpoint"))(t) {
			if text, _ := os.ReadFile(file); bytes.Contains(text, []byte("checkpoint-last")) {
				return nil
			}
		}
		return poll.ErrNotYet
	})
	require.NoError(t, syscall.Kill(first.PID, syscall.SIGKILL))
	change("PATCH", "checkpoint-changed", `{"metadata":{"labels":{"a":"b"}}}`)
	change("DELETE", "checkpoint-deleted", "")
	create("checkpoint-new")
	want := require.Value(testbed.Upstream.Must(t, api.Request{Path: path}).Items())(t)

	lists := usage.CountReads(t, testbed.Upstream, resource)["LIST"]
	second := start()
	has(second, want)
	if after := usage.CountReads(t, testbed.Upstream, resource)["LIST"]; after != lists {
		t.Errorf("kube-apiserver has answered %d lists", after-lists)
	}
	results := map[string]int{}
	second.AddByLabel(t, "watershed_checkpoint_reads_total", "result", results)
	if results["restored"] == 0 {
		t.Errorf("no checkpoint was used: %v", results)
	}
	watch := api.Request{Path: fmt.Sprintf("%s?watch=1&resourceVersion=%d&timeoutSeconds=2", path, version)}
	ours, theirs := second.Must(t, watch).Body, testbed.Upstream.Must(t, watch).Body
	if ours != theirs || ours == "" {
		t.Errorf("a watch from before the end shows\n%s\nand directly\n%s", ours, theirs)
	}
}
