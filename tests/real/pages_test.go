package real

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// event returns an event about its namespace.
func event(ns, name string, odd int) string {
	return fmt.Sprintf(`{"metadata":{"name":"%s","labels":{"odd":"%d"}},"involvedObject":{"kind":"Namespace","name":"%s","namespace":"%s"}}`, name, odd, ns, ns)
}

// TestPagesAtAVersionComeFromMemory reads lists at a past version page by page. Each answer
// comes from memory and equals upstream's byte for byte, tokens included. Events are among them,
// of which upstream has no watch cache.
func TestPagesAtAVersionComeFromMemory(t *testing.T) {
	ns, other := objects.Namespace(t), objects.Namespace(t)
	w := objects.NewWidget(t)
	w.Define(t, testbed.Upstream)
	w.AwaitServed(t, testbed.Proxied)
	ctx := context.Background()
	cms := func(ns string) interface {
		Delete(context.Context, string, metav1.DeleteOptions) error
	} {
		return api.Clientset(t, testbed.Upstream).CoreV1().ConfigMaps(ns)
	}
	for i := range 7 {
		for _, in := range []string{ns, other} {
			name := fmt.Sprintf("one-%d", i)
			cm := objects.ConfigMap(name)
			cm.Labels["odd"] = fmt.Sprint(i % 2)
			require.Value(api.Clientset(t, testbed.Upstream).CoreV1().ConfigMaps(in).Create(ctx, cm, metav1.CreateOptions{}))(t)
			testbed.Upstream.Must(t, api.Request{Method: "POST", Path: w.Path(in, ""), Body: w.Object(name, i)})
			testbed.Upstream.Must(t, api.Request{Method: "POST", Path: "/api/v1/namespaces/" + in + "/events", Body: event(in, name, i%2)})
		}
	}
	for _, path := range []string{"/api/v1/configmaps", w.Path("", ""), "/api/v1/events", "/apis/events.k8s.io/v1/events"} {
		testbed.Proxied.Must(t, api.Request{Path: path + "?resourceVersion=0"})
	}
	const protobuf = "application/vnd.kubernetes.protobuf"
	testbed.Proxied.Must(t, api.Request{Path: "/api/v1/configmaps?resourceVersion=0", Accept: protobuf})
	var list struct{ Metadata metav1.ListMeta }
	require.NoError(t, json.Unmarshal([]byte(testbed.Upstream.Must(t, api.Request{Path: w.Path("", "") + "?limit=1"}).Body), &list))
	version := list.Metadata.ResourceVersion
	// From here on the list is in the past.
	for i := range 100 {
		for _, in := range []string{ns, other} {
			require.Value(api.Clientset(t, testbed.Upstream).CoreV1().ConfigMaps(in).Create(ctx, objects.ConfigMap(fmt.Sprintf("later-%d", i)), metav1.CreateOptions{}))(t)
		}
	}
	for i := range 3 {
		require.NoError(t, cms(ns).Delete(ctx, fmt.Sprintf("one-%d", 2*i), metav1.DeleteOptions{}))
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: "/api/v1/namespaces/" + ns + "/events", Body: event(ns, fmt.Sprintf("later-%d", i), 1)})
		testbed.Upstream.Must(t, api.Request{Method: "DELETE", Path: fmt.Sprintf("/api/v1/namespaces/%s/events/one-%d", other, 2*i)})
		testbed.Upstream.Must(t, api.Request{Method: "DELETE", Path: w.Path(ns, fmt.Sprintf("one-%d", i))})
		testbed.Upstream.Must(t, api.Request{Method: "PATCH", Path: w.Path(other, fmt.Sprintf("one-%d", i)), ContentType: api.MergePatch, Body: `{"spec":{"colour":"late"}}`})
	}

	equal := func(r api.Request) (token string) {
		t.Helper()
		want, got := testbed.Upstream.Must(t, r), testbed.Proxied.Must(t, r)
		if !compare.EqualLists(t, want.Body, got.Body) {
			t.Fatalf("%v\nupstream: %s\nproxied:  %s", r, want.Body, got.Body)
		}
		if source := got.Header.Get("X-Watershed-Source"); !testbed.Direct && source != "snapshot" {
			t.Errorf("%v is answered from %q", r, source)
		}
		var list struct{ Metadata metav1.ListMeta }
		if r.Accept == "" {
			require.NoError(t, json.Unmarshal([]byte(want.Body), &list))
		}
		return list.Metadata.Continue
	}
	pages := 0
	for _, path := range []string{
		"/api/v1/configmaps", "/api/v1/namespaces/" + ns + "/configmaps", "/api/v1/namespaces/" + other + "/configmaps",
		w.Path("", ""), w.Path(ns, ""), w.Path(other, ""),
		"/api/v1/events", "/api/v1/namespaces/" + ns + "/events", "/apis/events.k8s.io/v1/namespaces/" + other + "/events",
	} {
		equal(api.Request{Path: path + "?resourceVersionMatch=Exact&resourceVersion=" + version})
		selectors := []string{"", "&labelSelector=odd%3D1", "&labelSelector=odd", "&labelSelector=nothing", "&fieldSelector=metadata.name!%3Done-3"}
		limits := []string{"1", "3", "7", "8", "1000"}
		switch {
		case strings.HasSuffix(path, "/events"):
			selectors, limits = selectors[:2], []string{"1", "3", "1000"}
		case path == "/api/v1/configmaps":
			// Other tests left hundreds of objects, some of them large: small pages would take a minute.
			limits = []string{"100", "1000"}
		}
		for _, selector := range selectors {
			for _, limit := range limits {
				query := fmt.Sprintf("?limit=%s%s&resourceVersion=%s", limit, selector, version)
				token := equal(api.Request{Path: path + query})
				if again := equal(api.Request{Path: path + query + "&resourceVersionMatch=Exact"}); again != token {
					t.Errorf("%s: token %s, and exact %s", query, token, again)
				}
				for token != "" {
					pages++
					if pages%5 == 0 {
						// Releases differ in whether version 0 lifts the limit.
						compare.Same(t, api.Request{Path: path + "?resourceVersion=0&limit=2&continue=" + url.QueryEscape(token) + selector})
					}
					token = equal(api.Request{Path: path + fmt.Sprintf("?limit=%s%s&continue=%s", limit, selector, url.QueryEscape(token))})
				}
			}
		}
	}
	t.Logf("%d pages", pages)
	if pages < 150 {
		t.Errorf("only %d pages follow from tokens", pages)
	}
	equal(api.Request{Path: "/api/v1/configmaps?limit=3&resourceVersion=" + version, Accept: protobuf})

	// The proxy itself refuses what upstream refuses. It forwards what is not in memory.
	token := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	for query, refused := range map[string]bool{
		"?resourceVersionMatch=Exact&resourceVersion=1":                                                                    false,
		"?resourceVersionMatch=Exact&resourceVersion=0":                                                                    true,
		"?resourceVersionMatch=Exact":                                                                                      true,
		"?continue=x":                                                                                                      true,
		"?continue=" + token(`{"v":"meta.k8s.io/v1","rv":1,"start":"/a\u0000"}`):                                           false,
		"?continue=" + token(`{"v":"meta.k8s.io/v1","rv":0,"start":"/a\u0000"}`):                                           true,
		"?continue=" + token(`{"v":"v2","rv":5,"start":"/a\u0000"}`):                                                       true,
		"?continue=" + token(`{"v":"meta.k8s.io/v1","rv":5,"start":"../a\u0000"}`):                                         true,
		"?resourceVersion=" + version + "&continue=" + token(`{"v":"meta.k8s.io/v1","rv":`+version+`,"start":"/a\u0000"}`): true,
		"?limit=-1&resourceVersion=" + version:                                                                             false,
		"?limit=2&fieldSelector=metadata.name%3Done-1&resourceVersion=" + version:                                          false,
		"?limit=2&fieldSelector=metadata.namespace%3D" + ns + "&resourceVersion=" + version:                                false,
	} {
		if a := compare.Same(t, api.Request{Path: "/api/v1/configmaps" + query}); a.Status >= 400 != refused {
			t.Errorf("upstream answers %s with %d %s", query, a.Status, api.Excerpt(a.Body, 0))
		}
	}
	// The text contains the version that upstream has reached.
	tooLarge := api.Request{Path: "/api/v1/configmaps?resourceVersionMatch=Exact&resourceVersion=" + version + "0000"}
	moving := regexp.MustCompile(`current: \d+`)
	want, got := testbed.Upstream.Send(t, tooLarge), testbed.Proxied.Send(t, tooLarge)
	if want.Status < 500 || want.Status != got.Status || moving.ReplaceAllString(want.Body, "") != moving.ReplaceAllString(got.Body, "") {
		t.Errorf("%v\nupstream: %d %s\nproxied:  %d %s", tooLarge, want.Status, want.Body, got.Status, got.Body)
	}
	// These tokens begin where nothing is, or belong to another list.
	for _, after := range []string{"zzz", "a", ns + "/one-3", "one-3"} {
		for _, start := range []string{after, "/" + after} {
			text := require.Value(json.Marshal(map[string]any{"v": "meta.k8s.io/v1", "rv": json.Number(version), "start": start + "\x00"}))(t)
			for _, path := range []string{"/api/v1/configmaps", "/api/v1/namespaces/" + ns + "/configmaps"} {
				equal(api.Request{Path: path + "?limit=2&continue=" + token(string(text))})
			}
		}
	}
}

// TestPagesOfOneNodesPodsLikeUpstream asks for pages of what upstream finds by an index. A full page
// may be followed by an empty one or by none, as the version, the namespace and the release have it.
func TestPagesOfOneNodesPodsLikeUpstream(t *testing.T) {
	t.Parallel()
	ns, other := objects.Namespace(t), objects.Namespace(t)
	ctx := context.Background()
	node, elsewhere := testbed.Slug(t), testbed.Slug(t)+"-elsewhere"
	for _, pod := range []struct{ in, name, node string }{
		{ns, "a", node}, {ns, "b", elsewhere}, {ns, "c", node}, {ns, "d", ""}, {other, "a", node}, {other, "b", elsewhere},
	} {
		p := objects.Pod(pod.name, pod.node)
		require.Value(api.Clientset(t, testbed.Upstream).CoreV1().Pods(pod.in).Create(ctx, p, metav1.CreateOptions{}))(t)
	}
	var requests []api.Request
	for _, path := range []string{"/api/v1/pods", "/api/v1/namespaces/" + ns + "/pods", "/api/v1/namespaces/" + other + "/pods"} {
		version := fmt.Sprint(compare.SettleNewest(t, path))
		for _, selector := range []string{
			"spec.nodeName%3D" + node, "spec.host%3D" + node, "spec.nodeName%3D" + elsewhere, "spec.nodeName%3D", "spec.nodeName%3Dnowhere",
			"spec.nodeName%21%3D" + node, "spec.nodeName%3D" + node + ",metadata.name%3Da",
		} {
			for limit := 1; limit <= 4; limit++ {
				for _, at := range []string{"", "&resourceVersion=0", "&resourceVersionMatch=NotOlderThan&resourceVersion=" + version, "&resourceVersionMatch=Exact&resourceVersion=" + version} {
					requests = append(requests, api.Request{Path: fmt.Sprintf("%s?fieldSelector=%s&limit=%d%s", path, selector, limit, at)})
				}
			}
		}
	}
	found := compare.CompareAll(t, requests)
	if fromMemory := found.Sources["snapshot"] + found.Sources["linearizable"]; !testbed.Direct && fromMemory < len(requests)/3 {
		t.Errorf("few pages come from memory: %v", found.Sources)
	}
}
