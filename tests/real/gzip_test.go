package real

import (
	"compress/gzip"
	"context"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestCompressed: lists and objects above upstream's threshold are compressed
// for who asks for it, as upstream reads the question, and nothing else is.
func TestCompressed(t *testing.T) {
	ns := namespace(t)
	here := "/api/v1/namespaces/" + ns + "/configmaps"
	ctx := context.Background()
	proxied.ok(t, request{path: here + "?resourceVersion=0"})
	var version string
	for _, name := range []string{"one", "two", "three"} {
		cm := configMap(name)
		cm.Data["text"] = strings.Repeat(name+" ", 12_000)
		version = must(kubeClient(t, upstream).CoreV1().ConfigMaps(ns).Create(ctx, cm, metav1.CreateOptions{}))(t).ResourceVersion
	}
	huge := configMap("huge")
	huge.Data["text"] = strings.Repeat("x", 200_000)
	version = must(kubeClient(t, upstream).CoreV1().ConfigMaps(ns).Create(ctx, huge, metav1.CreateOptions{}))(t).ResourceVersion

	for _, path := range []string{
		here + "?resourceVersionMatch=Exact&resourceVersion=" + version,
		here + "?limit=2&resourceVersion=" + version,
		here + "?labelSelector=app%3Dtwo&resourceVersionMatch=Exact&resourceVersion=" + version,
		here + "/huge?resourceVersion=" + version,
		here + "/one?resourceVersion=" + version,
		here + "/nobody?resourceVersion=" + version,
	} {
		for _, accept := range []string{"gzip", "identity", "deflate, gzip;q=1.0", "br , gzip", "gzip;q=0", "*"} {
			read := func(to target) (string, string) {
				resp := must(to.open(ctx, request{path: path, header: map[string]string{"Accept-Encoding": accept}}))(t)
				defer resp.Body.Close()
				body := io.Reader(resp.Body)
				if resp.Header.Get("Content-Encoding") == "gzip" {
					member := must(gzip.NewReader(body))(t)
					member.Multistream(false)
					body = member
				}
				headers := maps.Clone(resp.Header)
				for _, moving := range []string{"Audit-Id", "Date", "X-Watershed-Source", "Content-Length"} {
					headers.Del(moving)
				}
				for name := range headers {
					if strings.HasPrefix(name, "X-Kubernetes-Pf") {
						headers.Del(name)
					}
				}
				if source := resp.Header.Get("X-Watershed-Source"); to.name == "proxied" && !direct && source != "snapshot" {
					t.Errorf("%s is answered from %q", path, source)
				}
				text := ""
				for _, name := range slices.Sorted(maps.Keys(headers)) {
					text += name + ": " + strings.Join(headers[name], ", ") + "\n"
				}
				return resp.Status + "\n" + text, string(must(io.ReadAll(body))(t))
			}
			wantHead, wantBody := read(upstream)
			gotHead, gotBody := read(proxied)
			if wantHead != gotHead || !equalLists(wantBody, gotBody) {
				t.Errorf("%s, %q: bodies equal: %v\nupstream: %s\nproxied:  %s", path, accept, wantBody == gotBody, wantHead, gotHead)
			}
		}
	}
}
