package real

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestMetadataOnly: PartialObjectMetadata is cut out of what is in memory, and
// is upstream's to the byte, in gets, lists, pages and watches.
func TestMetadataOnly(t *testing.T) { metadataIsUpstreams(t) }

// metadataIsUpstreams compares, and asks that it comes from memory.
func metadataIsUpstreams(t *testing.T) {
	t.Helper()
	ns := namespace(t)
	w := newWidget(t)
	w.define(t, upstream)
	w.awaitServed(t, proxied)
	ctx := context.Background()
	core := kubeClient(t, upstream).CoreV1()
	pods, secrets := core.Pods(ns), core.Secrets(ns)
	for i := range 3 {
		p := pod(fmt.Sprintf("one-%d", i), "node")
		p.Labels = map[string]string{"odd": fmt.Sprint(i % 2)}
		p.Annotations = map[string]string{"note": "<&> \u2028 \"quoted\""}
		p.Finalizers = []string{"example.test/keep"}
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n", UID: "u", Controller: new(true)}}
		must(pods.Create(ctx, p, metav1.CreateOptions{}))(t)
		secret := &corev1.Secret{ObjectMeta: p.ObjectMeta, Data: map[string][]byte{"key": {0, 1, 0xff}}, Type: "example.test/t"}
		must(secrets.Create(ctx, secret, metav1.CreateOptions{}))(t)
		name := fmt.Sprintf("one-%d", i)
		upstream.ok(t, request{method: "POST", path: w.path(ns, ""), body: w.object(name, i)})
		upstream.ok(t, request{method: "PATCH", path: w.path(ns, name), contentType: mergePatch, body: fmt.Sprintf(
			`{"metadata": {"labels": {"odd": "%d"}, "annotations": {"note": "<&> \"quoted\""}, "finalizers": ["example.test/keep"],
			"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": true, "blockOwnerDeletion": false}]}}`, i%2)})
	}
	const one, many = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1", ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	podPath, secretPath := "/api/v1/namespaces/"+ns+"/pods", "/api/v1/namespaces/"+ns+"/secrets"
	for _, kind := range []struct{ path, media string }{
		{podPath, "application/json"},
		{podPath, "application/vnd.kubernetes.protobuf"},
		{secretPath, "application/json"},
		{secretPath, "application/vnd.kubernetes.protobuf"},
		{w.path(ns, ""), "application/json"},
		{w.path(ns, ""), "application/vnd.kubernetes.protobuf"},
	} {
		t.Run(kind.path[:9]+path.Base(kind.path)+" "+kind.media, func(t *testing.T) {
			equal := func(r request) answer {
				t.Helper()
				want, got := upstream.ok(t, r), proxied.ok(t, r)
				if !equalLists(want.body, got.body) || want.header.Get("Content-Type") != got.header.Get("Content-Type") {
					t.Errorf("%v\nupstream: %s %q\nproxied:  %s %q", r, want.header.Get("Content-Type"), want.body, got.header.Get("Content-Type"), got.body)
				}
				if source := got.header.Get("X-Watershed-Source"); !direct && source != "snapshot" {
					t.Errorf("%v is answered from %q", r, source)
				}
				return want
			}
			// The scope is opened before the version that is asked for.
			proxied.ok(t, request{path: kind.path + "?resourceVersion=0", accept: kind.media + many})
			patch := func(name, body string) (version string) {
				t.Helper()
				a := upstream.ok(t, request{method: "PATCH", path: kind.path + "/" + name, contentType: mergePatch, body: body})
				var patched metav1.PartialObjectMetadata
				check(t, json.Unmarshal([]byte(a.body), &patched))
				return patched.ResourceVersion
			}
			// A version of this type: that of a list may be another type's.
			version := patch("one-2", `{"metadata": {"annotations": {"from": "`+kind.media+`"}}}`)

			equal(request{path: kind.path + "/one-1?resourceVersion=0", accept: kind.media + one})
			exact := kind.path + "?resourceVersionMatch=Exact&resourceVersion=" + version
			for _, selector := range []string{"", "&labelSelector=odd%3D1", "&labelSelector=nothing", "&limit=2", "&limit=1&labelSelector=odd%3D0"} {
				equal(request{path: exact + selector, accept: kind.media + many})
			}
			if a := equal(request{path: exact + "&limit=2", accept: "application/json" + many}); strings.Contains(a.body, `"items":null`) {
				t.Errorf("nothing is listed: %s", a.body)
			}

			// Events, transitions and the last state, as they come.
			// It is read up to the event that has the text.
			watch := func(to target, query, last string) <-chan string {
				read := make(chan string, 1)
				go func() {
					ctx, cancel := context.WithTimeout(ctx, patience)
					defer cancel()
					resp, err := to.open(ctx, request{path: kind.path + "?watch=1&resourceVersion=" + version + query, accept: kind.media + one})
					if err != nil {
						read <- err.Error()
						return
					}
					defer resp.Body.Close()
					body, err := readUpTo(bufio.NewReader(resp.Body), kind.media == protobufType, last)
					read <- fmt.Sprint(resp.Status, resp.Header["Content-Type"], body, err)
				}()
				return read
			}
			var reads []<-chan string
			after := "after " + kind.media
			queries := []string{"", "&labelSelector=odd%3D1", "&labelSelector=odd%3D0"}
			for i, query := range queries {
				for _, to := range targets() {
					reads = append(reads, watch(to, query, []string{after, "last of odd", after}[i]))
				}
			}
			patch("one-0", `{"metadata": {"labels": {"odd": "1"}}}`)
			patch("one-1", `{"metadata": {"annotations": {"more": "x"}}}`)
			patch("one-0", `{"metadata": {"labels": {"odd": "0"}}}`)
			patch("one-1", `{"metadata": {"annotations": {"more": "last of odd"}}}`)
			// It has a finalizer, and so is only marked.
			upstream.send(t, request{method: "DELETE", path: kind.path + "/one-2"})
			patch("one-2", `{"metadata": {"annotations": {"after": "`+after+`"}}}`)
			for i, query := range queries {
				want, got := within(t, "upstream's watch", reads[2*i]), within(t, "the proxied watch", reads[2*i+1])
				if want != got || !strings.Contains(want, "200") {
					t.Errorf("%s\nupstream: %q\nproxied:  %q", query, want, got)
				}
			}
			// A streamed list and its end mark, whose version is that of a cache.
			digits := regexp.MustCompile(`[0-9]+`)
			streamed := "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
			const end = "initial-events-end"
			lists := []<-chan string{watch(upstream, streamed, end), watch(proxied, streamed, end)}
			want, got := within(t, "upstream's list", lists[0]), within(t, "the proxied list", lists[1])
			if digits.ReplaceAllString(want, "N") != digits.ReplaceAllString(got, "N") || !strings.Contains(want, "initial-events-end") {
				t.Errorf("streamed\nupstream: %q\nproxied:  %q", want, got)
			}
			// What upstream refuses is refused.
			same(t, request{path: kind.path + "?resourceVersion=0", accept: kind.media + one})
			same(t, request{path: kind.path + "/one-1?resourceVersion=0", accept: kind.media + many})
			same(t, request{path: kind.path + "/nobody?resourceVersion=0", accept: kind.media + one})
		})
	}
}

// readUpTo reads whole frames of a watch, up to the first that has a text in it.
func readUpTo(from *bufio.Reader, framed bool, last string) (string, error) {
	all := []byte{}
	for {
		var frame []byte
		var err error
		if framed {
			frame = make([]byte, 4)
			if _, err = io.ReadFull(from, frame); err == nil {
				frame = append(frame, make([]byte, binary.BigEndian.Uint32(frame))...)
				_, err = io.ReadFull(from, frame[4:])
			}
		} else {
			frame, err = from.ReadBytes('\n')
		}
		if all = append(all, frame...); err != nil || bytes.Contains(frame, []byte(last)) {
			return string(all), err
		}
	}
}

// TestMetadataOfConvertedTypes: some types keep a part of themselves in their
// annotations, in the served version alone. Upstream makes the metadata without
// them, so it is asked.
func TestMetadataOfConvertedTypes(t *testing.T) {
	for _, r := range convertedReads(t) {
		if a := same(t, r); a.status != 200 {
			t.Errorf("%v: %d", r, a.status)
		}
	}
}

// convertedReads makes such objects, and reads of them.
func convertedReads(t *testing.T) (requests []request) {
	t.Helper()
	here := "/namespaces/" + namespace(t)
	const scalers = "/horizontalpodautoscalers"
	for _, made := range []struct{ writing, reading, body string }{
		{"/apis/apps/v1" + here + "/daemonsets", "/apis/apps/v1" + here + "/daemonsets",
			`{"metadata":{"name":"d"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":` + template + `}}`},
		{"/apis/autoscaling/v2" + here + scalers, "/apis/autoscaling/v1" + here + scalers,
			`{"metadata":{"name":"d"},"spec":{"maxReplicas":3,"scaleTargetRef":{"kind":"Deployment","name":"d","apiVersion":"apps/v1"},"metrics":[{"type":"Resource","resource":{"name":"memory","target":{"type":"Utilization","averageUtilization":50}}}]}}`},
	} {
		upstream.ok(t, request{method: "POST", path: made.writing, body: made.body})
		for _, media := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
			requests = append(requests, []request{
				{path: made.reading + "?resourceVersion=0", accept: media + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"},
				{path: made.reading + "/d?resourceVersion=0", accept: media + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"},
				{path: made.reading + "?resourceVersion=0&watch=1&timeoutSeconds=1", accept: media + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"},
				{path: made.reading + "/d?resourceVersion=0"},
			}...)
		}
	}
	return requests
}
