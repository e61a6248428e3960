package real

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/testbed"
)

// ofOneAnswer are headers that differ from one answer to the next.
var ofOneAnswer = []string{"Date", "Audit-Id", "X-Watershed-Source", "X-Kubernetes-Pf-Flowschema-Uid", "X-Kubernetes-Pf-Prioritylevel-Uid", "Content-Length"}

func wholeAnswer(a api.Answer) string {
	var b strings.Builder
	fmt.Fprintln(&b, a.Status)
	for _, name := range slices.Sorted(maps.Keys(a.Header)) {
		if !slices.Contains(ofOneAnswer, name) {
			fmt.Fprintf(&b, "%s: %q\n", name, a.Header[name])
		}
	}
	return b.String() + a.Body
}

// TestDiscoveryAndOpenAPIMatchUpstream compares headers and bytes of discovery and OpenAPI, in
// every form that clients ask for.
func TestDiscoveryAndOpenAPIMatchUpstream(t *testing.T) {
	w := objects.NewWidget(t)
	w.Define(t, testbed.Upstream)
	w.AwaitServed(t, testbed.Proxied)
	type documents struct {
		paths, accepts []string
		// forwarded marks documents that the proxy does not cache.
		forwarded bool
	}
	sources := map[string]int{}
	for _, d := range []documents{
		{paths: []string{"/api", "/api/", "/apis", "/api?timeout=32s", "/apis?timeout=32s"}, accepts: []string{"", "application/json", aggregatedDiscovery, "application/vnd.kubernetes.protobuf", "text/plain"}},
		{paths: []string{"/api/v1", "/apis/apps", "/apis/apps/v1", "/apis/" + w.Group, "/apis/" + w.Group + "/v1", "/version", "/version/", "/api/v1/", "/apis/apps/", "/apis/apps/v1/"}, accepts: []string{"", "application/json", "application/vnd.kubernetes.protobuf, */*", "application/yaml"}},
		{paths: []string{"/openapi/v2"}, accepts: []string{"application/json", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"}},
		{paths: []string{"/openapi/v3", "/openapi/v3/apis/apps/v1", "/openapi/v3/api/v1", "/openapi/v3/apis/" + w.Group + "/v1"}, accepts: []string{"application/json", "application/com.github.proto-openapi.spec.v3@v1.0+protobuf"}},
		{paths: []string{"/apis/no.such.group", "/apis/apps/v7", "/openapi/v3/apis/apps/v1?hash=old", "/openapi/v3/", "/version//"}, accepts: []string{"application/json"}, forwarded: true},
	} {
		for _, path := range d.paths {
			for _, accept := range d.accepts {
				for _, encoding := range []string{"identity", "gzip", "gzip;q=0", "br, gzip;q=0.5"} {
					r := api.Request{Path: path, Accept: accept, Header: map[string]string{"Accept-Encoding": encoding}}
					etag := sameDocument(t, r, d.forwarded, sources)
					if encoding != "gzip" || etag == "" {
						continue
					}
					for _, known := range []string{etag, `"other"`, "W/" + etag, etag + `, "other"`, "*"} {
						r.Header = map[string]string{"Accept-Encoding": encoding, "If-None-Match": known}
						sameDocument(t, r, true, sources)
					}
				}
			}
		}
	}
	t.Logf("answered from %v", sources)
	if !testbed.Direct && sources["document"] < 100 {
		t.Errorf("too few documents came from memory: %v", sources)
	}
	// Callers without rights and unknown callers are refused.
	for _, user := range []string{"-", "?"} {
		for _, path := range []string{"/api", "/apis", "/version", "/openapi/v2"} {
			compare.Same(t, api.Request{Path: path, User: user})
		}
	}
	for _, method := range []string{"HEAD", "POST", "DELETE", "OPTIONS"} {
		compare.Same(t, api.Request{Method: method, Path: "/apis"})
	}
}

// sameDocument compares until nothing changed between both sides. Other tests define types at
// the same time.
func sameDocument(t *testing.T, r api.Request, mayBeForwarded bool, sources map[string]int) (etag string) {
	t.Helper()
	poll.Until(t, r.String()+" "+r.Accept+" is the same", func() error {
		before, got, after := testbed.Upstream.Send(t, r), testbed.Proxied.Send(t, r), testbed.Upstream.Send(t, r)
		want := wholeAnswer(before)
		if want != wholeAnswer(after) {
			return fmt.Errorf("upstream changes")
		}
		if got := wholeAnswer(got); got != want {
			return fmt.Errorf("%s", compare.Diff(want, got))
		}
		source := got.Header.Get("X-Watershed-Source")
		sources[source]++
		if !testbed.Direct && !mayBeForwarded && got.Status == 200 && source != "document" {
			t.Errorf("%v is answered from %q", r, source)
		}
		etag = before.Header.Get("Etag")
		return nil
	})
	return etag
}
