package real

import (
	"fmt"
	"strings"
	"testing"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/testbed"
)

// TestDeprecatedWatchPathsLikeUpstream watches on paths with /watch/ in them: collections and
// single objects, in all representations. Each answer is upstream's own, and comes from memory
// where upstream does not refuse.
func TestDeprecatedWatchPathsLikeUpstream(t *testing.T) {
	t.Parallel()
	ns := objects.Namespace(t)
	objects.Furnish(t, ns)
	w := objects.NewWidget(t)
	w.Define(t, testbed.Upstream)
	for i, name := range []string{"apple", "pear"} {
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: w.Path(ns, ""), Body: w.Object(name, i)})
	}
	collections := []string{"/api/v1/namespaces/" + ns + "/configmaps", w.Path(ns, "")}
	w.AwaitServed(t, testbed.Proxied)
	// Watches from these versions come from memory: the proxy has listed both types by then.
	since := map[string]uint64{}
	for _, collection := range collections {
		if !testbed.Direct {
			compare.AwaitHeld(t, testbed.Proxied, collection)
			compare.AwaitStreamed(t, testbed.Proxied, collection)
		}
		since[collection] = api.ParseVersion(listVersion(t, collection))
		testbed.Upstream.Must(t, api.Request{Method: "PATCH", Path: collection + "/apple", ContentType: api.MergePatch, Body: `{"metadata":{"labels":{"app":"cider"}}}`})
		compare.SettleNewest(t, collection)
	}

	var plain, others []api.Request
	for _, collection := range collections {
		path := strings.Replace(collection, "/namespaces/", "/watch/namespaces/", 1)
		for _, subject := range []string{path, path + "/apple", path + "/nobody"} {
			for _, query := range []string{
				"", "resourceVersion=0", fmt.Sprintf("resourceVersion=%d", since[collection]), "watch=1&resourceVersion=0&allowWatchBookmarks=true", "watch=0&allowWatchBookmarks=1",
				"limit=1&resourceVersion=0", "resourceVersion=0&labelSelector=app%3Dpear", "watch=1&" + api.StateFirst,
			} {
				accepts := []string{api.JSONType, api.ProtobufType + "," + api.JSONType, api.MetadataJSON}
				if subject != path {
					accepts = accepts[:1]
				}
				for _, accept := range accepts {
					plain = append(plain, api.Request{Path: subject + "?timeoutSeconds=1&" + query, Accept: accept})
				}
			}
			for _, query := range []string{
				"resourceVersionMatch=NotOlderThan&resourceVersion=0", "resourceVersionMatch=Exact&resourceVersion=0", api.StateFirst, "continue=x", "sendInitialEvents=false", "resourceVersion=x",
				"fieldSelector=metadata.name%3Dapple", "fieldSelector=metadata.name%3Dpear", "fieldSelector=metadata.namespace%3D" + ns, "fieldSelector=%2C",
			} {
				others = append(others, api.Request{Path: subject + "?timeoutSeconds=1&" + query})
			}
		}
	}
	for _, path := range []string{"/api/v1/watch/namespaces/" + ns, "/api/v1/watch/namespaces/nobody"} {
		plain = append(plain, api.Request{Path: path + "?timeoutSeconds=1&resourceVersion=0"})
	}
	others = append(others, api.Request{Path: "/api/v1/watch/configmaps/apple"}, api.Request{Path: "/api/v1/watch/nodes/apple?timeoutSeconds=1"})
	found := compare.CompareAll(t, plain)
	compare.CompareAll(t, others)
	found.RequireSources("snapshot", "window")
	requireUnforwarded(t, found)
}

// requireUnforwarded fails the test for forwarded answers.
func requireUnforwarded(t *testing.T, found *compare.Findings) {
	t.Helper()
	for source, n := range found.Sources {
		// A proof may take too long on a busy machine.
		if strings.HasPrefix(source, "forward") && source != "forward; reason=unproven" {
			t.Errorf("%d answers are from %q", n, source)
		}
	}
}

func listVersion(t *testing.T, collection string) string {
	t.Helper()
	list, _, _ := api.ParseList(api.JSONType, testbed.Upstream.Must(t, api.Request{Path: collection}).Body)
	return list.ResourceVersion
}

// TestShortPagesLikeUpstream asks for pages that have everything: by name, and of events. They come
// from memory, and longer lists of events from upstream.
func TestShortPagesLikeUpstream(t *testing.T) {
	t.Parallel()
	ns := objects.Namespace(t)
	objects.Furnish(t, ns)
	events := "/api/v1/namespaces/" + ns + "/events"
	for _, name := range []string{"one", "two", "three"} {
		body := fmt.Sprintf(`{"metadata":{"name":"%s"},"involvedObject":{"kind":"Pod","namespace":"%s","name":"%s"},"reason":"R"}`, name, ns, name)
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: events, Body: body})
	}
	maps := "/api/v1/namespaces/" + ns + "/configmaps"
	for _, collection := range []string{"/api/v1/namespaces", "/api/v1/configmaps", "/api/v1/events", "/apis/events.k8s.io/v1/events"} {
		compare.AwaitHeld(t, testbed.Proxied, collection)
	}
	compare.SettleNewest(t, events)
	compare.SettleNewest(t, maps)
	whole := []string{
		maps + "?limit=1&fieldSelector=metadata.name%3Dapple", maps + "?limit=500&fieldSelector=metadata.name%3Dnobody",
		maps + "?limit=1&fieldSelector=metadata.name%3Dpear%2Cmetadata.namespace%21%3Dx", "/api/v1/namespaces?limit=1&fieldSelector=metadata.name%3D" + ns,
		events + "?limit=4", events + "?limit=4&resourceVersion=0", events + "?limit=2&fieldSelector=involvedObject.name%3Done", events + "?limit=2&fieldSelector=metadata.name%3Done",
		events + "?limit=1&fieldSelector=involvedObject.name%3Dnobody", "/apis/events.k8s.io/v1/namespaces/" + ns + "/events?limit=500",
	}
	parts := []string{
		events + "?limit=3", events + "?limit=1", events + "?limit=2&resourceVersion=0", events + "?limit=1&fieldSelector=involvedObject.name%3Done", events + "?limit=4&resourceVersion=1",
		maps + "?limit=1&fieldSelector=metadata.name%21%3Dapple", "/api/v1/configmaps?limit=1&fieldSelector=metadata.name%3Dapple", maps + "?limit=1&fieldSelector=metadata.namespace%3D" + ns,
		maps + "?limit=1&fieldSelector=metadata.name%3D", maps + "?limit=1&fieldSelector=metadata.name%3Dapple&resourceVersion=1",
	}
	requests := func(paths []string) (all []api.Request) {
		for _, path := range paths {
			for _, accept := range []string{api.JSONType, api.ProtobufType, api.MetadataListJSON} {
				all = append(all, api.Request{Path: path, Accept: accept})
			}
		}
		return all
	}
	found := compare.CompareAll(t, requests(whole))
	compare.CompareAll(t, requests(parts))
	found.RequireSources("snapshot", "linearizable")
	requireUnforwarded(t, found)
}

// TestCustomTypesNamedEventsHaveAWatchCache asks for pages of a custom type named like the API
// server's events. Version 0 lifts their limit, as that of other custom types.
func TestCustomTypesNamedEventsHaveAWatchCache(t *testing.T) {
	t.Parallel()
	ns := objects.Namespace(t)
	w := objects.NewWidget(t)
	w.Plural = "events"
	w.Define(t, testbed.Upstream)
	for i, name := range []string{"a", "b", "c"} {
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: w.Path(ns, ""), Body: w.Object(name, i)})
	}
	for _, query := range []string{"?resourceVersion=0&limit=1", "?limit=1"} {
		r := api.Request{Path: w.Path(ns, "") + query}
		// Version 0 may be a moment old on either side, and a proof late.
		poll.Until(t, "upstream's answer to "+query+" from memory", func() error {
			want, got := testbed.Upstream.Send(t, r), testbed.Proxied.Send(t, r)
			w, g := compare.BlankTokens(want.Comparable(nil)), compare.BlankTokens(got.Comparable(nil))
			source := got.Header.Get("X-Watershed-Source")
			if w != g || !testbed.Direct && strings.HasPrefix(source, "forward") {
				return fmt.Errorf("\nupstream: %s\nproxied: %s from %q", w, g, source)
			}
			return nil
		})
	}
}
