package conformance

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// pastRead is a read of an old version, and what answers it.
type pastRead struct {
	request api.Request
	source  string
	// gone is a part of upstream's refusal once etcd has compacted the version.
	gone string
}

// EventsHistory compares reads of events at a version that memory no longer has: while etcd has
// it, and once it is compacted. Upstream has no watch cache of events.
func EventsHistory(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy of its own")
	}
	proxy := testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig, "--config", testbed.CacheEverything, "--window-mib", "0").Target
	collection := "/api/v1/namespaces/" + objects.Namespace(t) + "/events"
	create := func(name string) uint64 {
		body := fmt.Sprintf(`{"metadata":{"name":"%s"},"involvedObject":{"kind":"Namespace","namespace":"%s"}}`, name, strings.Split(collection, "/")[4])
		var made api.Object
		require.NoError(t, json.Unmarshal([]byte(testbed.Upstream.Must(t, api.Request{Method: "POST", Path: collection, Body: body}).Body), &made))
		return made.Version()
	}
	create("a")
	old := create("b")
	page, _, _ := api.ParseList("application/json", testbed.Upstream.Must(t, api.Request{Path: collection + "?limit=1"}).Body)
	forms := []string{"", api.ProtobufType}
	for _, accept := range forms {
		proxy.Must(t, api.Request{Path: collection + "?resourceVersion=0", Accept: accept})
	}
	create("c")
	last := create("d")
	for _, accept := range forms {
		poll.Until(t, "memory has the last event", func() error {
			answer := proxy.Send(t, api.Request{Path: fmt.Sprintf("%s?resourceVersion=%d", collection, last), Accept: accept})
			if source := answer.Header.Get("X-Watershed-Source"); source != "snapshot" {
				return fmt.Errorf("the list comes from %q", source)
			}
			return nil
		})
	}

	const goneWatch = "The resourceVersion for the provided watch is too old."
	var reads []pastRead
	add := func(source, gone, query string) {
		for _, accept := range forms {
			reads = append(reads, pastRead{api.Request{Path: collection + "?" + query, Accept: accept}, source, gone})
		}
	}
	at := fmt.Sprintf("resourceVersion=%d", old)
	watch := "watch=1&timeoutSeconds=2&allowWatchBookmarks=true&" + at
	add("forward; reason=before-history", goneWatch, watch)
	add("forward; reason=before-history", goneWatch, watch+"&sendInitialEvents=false&resourceVersionMatch=NotOlderThan")
	add("snapshot", "", watch+"&sendInitialEvents=true&resourceVersionMatch=NotOlderThan")
	add("forward; reason=exact-version", "The resourceVersion for the provided list is too old.", at+"&resourceVersionMatch=Exact")
	add("forward; reason=exact-version", "The resourceVersion for the provided list is too old.", at+"&limit=1")
	add("forward; reason=exact-version", "The provided continue parameter is too old", "limit=1&continue="+page.Continue)
	t.Run("held-by-etcd", func(t *testing.T) { comparePast(t, proxy, reads, false) })
	require.NoError(t, testbed.Shared.Command("compact"))
	t.Run("compacted", func(t *testing.T) { comparePast(t, proxy, reads, true) })
}

// comparePast sends the reads to both sides.
func comparePast(t *testing.T, proxy api.Target, reads []pastRead, compacted bool) {
	sides := compare.Sides{Right: testbed.Upstream, Asked: proxy}
	for _, read := range reads {
		v := sides.CompareAtLeisure(read.request)
		if v.Difference != "" {
			t.Errorf("%v: %s", read.request, v.Difference)
		}
		if source := v.Got.Header.Get("X-Watershed-Source"); source != read.source {
			t.Errorf("%v: answered from %q, want %q", read.request, source, read.source)
		}
		if refused := read.gone != "" && strings.Contains(v.Want.Body, read.gone); refused != (compacted && read.gone != "") {
			t.Errorf("%v: upstream answers %q", read.request, v.Want.Body)
		}
	}
}
