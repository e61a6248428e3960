package real

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/faulty"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// TestSelfCheckHealsLostEvents puts something between proxy and upstream that loses a DELETED
// and then a MODIFIED event. The self-check finds each, and the type is right again.
func TestSelfCheckHealsLostEvents(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy")
	}
	t.Parallel()
	losing := &faulty.Losing{}
	between := faulty.Start(t, testbed.Upstream, losing.Fault())
	// What is between them reads JSON.
	proxy := testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig, "--server", between.URL, "--self-check-interval", "200ms", "--derive-json", "false")
	ns := objects.Namespace(t)
	path := "/api/v1/namespaces/" + ns + "/configmaps"
	for _, name := range []string{"ghost", "other"} {
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: path, Body: fmt.Sprintf(`{"metadata":{"name":"%s"}}`, name)})
	}
	list := api.Request{Path: path + "?resourceVersion=0"}
	proxy.Must(t, list)
	var watched string
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		resp, err := proxy.Open(context.Background(), api.Request{Path: path + "?watch=1&resourceVersion=0"})
		if err != nil {
			return
		}
		defer resp.Body.Close()
		all, _ := io.ReadAll(resp.Body)
		watched = string(all)
	}()
	poll.Until(t, "the watch is open", func() error {
		if proxy.Sum(t, "watershed_watches", "configmaps") == 0 {
			return poll.ErrNotYet
		}
		return nil
	})

	for i, change := range []struct {
		lost string
		r    api.Request
	}{
		{`"type":"DELETED","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"ghost"`, api.Request{Method: "DELETE", Path: path + "/ghost"}},
		{`"type":"MODIFIED","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"other"`,
			api.Request{Method: "PATCH", Path: path + "/other", ContentType: api.MergePatch, Body: `{"data":{"a":"b"}}`}},
	} {
		losing.LoseNext(change.lost)
		testbed.Upstream.Must(t, change.r)
		poll.Until(t, "the type is right again", func() error {
			if losing.Lost() != i+1 {
				return fmt.Errorf("%d events are lost", losing.Lost())
			}
			want := require.Value(testbed.Upstream.Must(t, list).Items())(t)
			answer := proxy.Must(t, list)
			got := require.Value(answer.Items())(t)
			if source := answer.Header.Get("X-Watershed-Source"); source != "snapshot" || !maps.Equal(got, want) {
				return fmt.Errorf("%v from %s, and upstream has %v", got, source, want)
			}
			return nil
		})
	}
	poll.Receive(t, "the end of the watch", ended)
	if !strings.Contains(watched, `"code":410`) {
		t.Errorf("the watch did not end with 410: %s", watched)
	}
	if n := proxy.Sum(t, "watershed_scope_quarantines_total", "configmaps"); n != 2 {
		t.Errorf("%d quarantines", n)
	}
	log := string(require.Value(os.ReadFile(proxy.Log))(t))
	if !strings.Contains(log, ns+"/ghost: only in memory") {
		t.Errorf("the log does not name the object:\n%s", proxy.LogTail())
	}
}

// TestSelfCheckFindsNothingUnderChurn compares all types with upstream, in every representation,
// for as long as they are written. Nothing is wrong, and nothing is found.
func TestSelfCheckFindsNothingUnderChurn(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy")
	}
	t.Parallel()
	proxy := testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig, "--config", testbed.CacheEverything, "--self-check-interval", "100ms")
	ns := objects.Namespace(t)
	objects.Furnish(t, ns)
	open := func() {
		for _, root := range servedVersions(t) {
			var list metav1.APIResourceList
			require.NoError(t, json.Unmarshal([]byte(testbed.Upstream.Must(t, api.Request{Path: root}).Body), &list))
			for _, r := range list.APIResources {
				if strings.Contains(r.Name, "/") || !slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "watch") {
					continue
				}
				for _, accept := range []string{"application/json", api.ProtobufType} {
					proxy.Send(t, api.Request{Path: root + "/" + r.Name + "?resourceVersion=0", Accept: accept})
				}
			}
		}
	}
	open()
	deadline := time.Now().Add(poll.Patience)
	for n := 0; ; n++ {
		name := fmt.Sprint("churn-", n%7)
		path := "/api/v1/namespaces/" + ns + "/configmaps"
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: path, Body: fmt.Sprintf(`{"metadata":{"name":"%s"},"data":{"n":"%d"}}`, name, n)})
		testbed.Upstream.Must(t, api.Request{Method: "PATCH", Path: path + "/" + name, ContentType: api.MergePatch, Body: `{"data":{"n":"more"}}`})
		testbed.Upstream.Must(t, api.Request{Method: "PATCH", Path: "/apis/apps/v1/namespaces/" + ns + "/deployments/press", ContentType: api.MergePatch,
			Body: fmt.Sprintf(`{"spec":{"replicas":%d}}`, n%5)})
		testbed.Upstream.Must(t, api.Request{Method: "DELETE", Path: path + "/" + name})
		results := map[string]int{}
		proxy.AddByLabel(t, "watershed_self_checks_total", "result", results)
		if results["objects"]+results["bytes"] > 0 {
			t.Fatalf("it found differences: %v\n%s", results, proxy.LogTail())
		}
		if n >= 40 && results["same"] >= 300 {
			t.Logf("%d rounds of writes, checks by result: %v", n, results)
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("too few checks: %v", results)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
