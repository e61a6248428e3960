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

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/conformance"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// TestMetadataFromMemoryMatchesUpstream reads PartialObjectMetadata. The proxy makes it from
// memory, and its gets, lists, pages and watches equal upstream's byte for byte.
func TestMetadataFromMemoryMatchesUpstream(t *testing.T) { metadataIsUpstreams(t) }

// metadataIsUpstreams compares such reads, and checks that memory answered them.
func metadataIsUpstreams(t *testing.T) {
	t.Helper()
	ns := objects.Namespace(t)
	w := objects.NewWidget(t)
	w.Define(t, testbed.Upstream)
	w.AwaitServed(t, testbed.Proxied)
	ctx := context.Background()
	core := api.Clientset(t, testbed.Upstream).CoreV1()
	pods, secrets := core.Pods(ns), core.Secrets(ns)
	for i := range 3 {
		p := objects.Pod(fmt.Sprintf("one-%d", i), "node")
		p.Labels = map[string]string{"odd": fmt.Sprint(i % 2)}
		p.Annotations = map[string]string{"note": "<&> \u2028 \"quoted\""}
		p.Finalizers = []string{"example.test/keep"}
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n", UID: "u", Controller: new(true)}}
		require.Value(pods.Create(ctx, p, metav1.CreateOptions{}))(t)
		secret := &corev1.Secret{ObjectMeta: p.ObjectMeta, Data: map[string][]byte{"key": {0, 1, 0xff}}, Type: "example.test/t"}
		require.Value(secrets.Create(ctx, secret, metav1.CreateOptions{}))(t)
		name := fmt.Sprintf("one-%d", i)
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: w.Path(ns, ""), Body: w.Object(name, i)})
		testbed.Upstream.Must(t, api.Request{Method: "PATCH", Path: w.Path(ns, name), ContentType: api.MergePatch, Body: fmt.Sprintf(
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
		{w.Path(ns, ""), "application/json"},
		{w.Path(ns, ""), "application/vnd.kubernetes.protobuf"},
	} {
		t.Run(kind.path[:9]+path.Base(kind.path)+" "+kind.media, func(t *testing.T) {
			equal := func(r api.Request) api.Answer {
				t.Helper()
				want, got := testbed.Upstream.Must(t, r), testbed.Proxied.Must(t, r)
				if !compare.EqualLists(t, want.Body, got.Body) || want.Header.Get("Content-Type") != got.Header.Get("Content-Type") {
					t.Errorf("%v\nupstream: %s %q\nproxied:  %s %q", r, want.Header.Get("Content-Type"), want.Body, got.Header.Get("Content-Type"), got.Body)
				}
				if source := got.Header.Get("X-Watershed-Source"); !testbed.Direct && source != "snapshot" {
					t.Errorf("%v is answered from %q", r, source)
				}
				return want
			}
			// The scope opens before the version that the requests name.
			testbed.Proxied.Must(t, api.Request{Path: kind.path + "?resourceVersion=0", Accept: kind.media + many})
			patch := func(name, body string) (version string) {
				t.Helper()
				a := testbed.Upstream.Must(t, api.Request{Method: "PATCH", Path: kind.path + "/" + name, ContentType: api.MergePatch, Body: body})
				var patched metav1.PartialObjectMetadata
				require.NoError(t, json.Unmarshal([]byte(a.Body), &patched))
				return patched.ResourceVersion
			}
			// A version of this type: that of a list may belong to another type.
			version := patch("one-2", `{"metadata": {"annotations": {"from": "`+kind.media+`"}}}`)
			poll.Until(t, "memory has this version", func() error {
				got := testbed.Proxied.Must(t, api.Request{Path: kind.path + "?resourceVersion=" + version, Accept: kind.media + many})
				if source := got.Header.Get("X-Watershed-Source"); !testbed.Direct && source != "snapshot" {
					return fmt.Errorf("answered from %q", source)
				}
				return nil
			})

			equal(api.Request{Path: kind.path + "/one-1?resourceVersion=0", Accept: kind.media + one})
			exact := kind.path + "?resourceVersionMatch=Exact&resourceVersion=" + version
			for _, selector := range []string{"", "&labelSelector=odd%3D1", "&labelSelector=nothing", "&limit=2", "&limit=1&labelSelector=odd%3D0"} {
				equal(api.Request{Path: exact + selector, Accept: kind.media + many})
			}
			if a := equal(api.Request{Path: exact + "&limit=2", Accept: "application/json" + many}); strings.Contains(a.Body, `"items":null`) {
				t.Errorf("nothing is listed: %s", a.Body)
			}

			// watch reads events, transitions and the last state, up to the event that contains
			// a text.
			watch := func(to api.Target, query, last string) <-chan string {
				read := make(chan string, 1)
				go func() {
					ctx, cancel := context.WithTimeout(ctx, poll.Patience)
					defer cancel()
					resp, err := to.Open(ctx, api.Request{Path: kind.path + "?watch=1&resourceVersion=" + version + query, Accept: kind.media + one})
					if err != nil {
						read <- err.Error()
						return
					}
					defer resp.Body.Close()
					body, err := readUpTo(bufio.NewReader(resp.Body), kind.media == api.ProtobufType, last)
					read <- fmt.Sprint(resp.Status, resp.Header["Content-Type"], body, err)
				}()
				return read
			}
			var reads []<-chan string
			after := "after " + kind.media
			queries := []string{"", "&labelSelector=odd%3D1", "&labelSelector=odd%3D0"}
			for i, query := range queries {
				for _, to := range testbed.Targets() {
					reads = append(reads, watch(to, query, []string{after, "last of odd", after}[i]))
				}
			}
			patch("one-0", `{"metadata": {"labels": {"odd": "1"}}}`)
			patch("one-1", `{"metadata": {"annotations": {"more": "x"}}}`)
			patch("one-0", `{"metadata": {"labels": {"odd": "0"}}}`)
			patch("one-1", `{"metadata": {"annotations": {"more": "last of odd"}}}`)
			// The object has a finalizer, so a deletion only marks it.
			testbed.Upstream.Send(t, api.Request{Method: "DELETE", Path: kind.path + "/one-2"})
			patch("one-2", `{"metadata": {"annotations": {"after": "`+after+`"}}}`)
			for i, query := range queries {
				want, got := poll.Receive(t, "upstream's watch", reads[2*i]), poll.Receive(t, "the proxied watch", reads[2*i+1])
				if want != got || !strings.Contains(want, "200") {
					t.Errorf("%s\nupstream: %q\nproxied:  %q", query, want, got)
				}
			}
			// This is a streamed list and its end mark, whose version is that of a cache.
			digits := regexp.MustCompile(`[0-9]+`)
			streamed := "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
			const end = "initial-events-end"
			lists := []<-chan string{watch(testbed.Upstream, streamed, end), watch(testbed.Proxied, streamed, end)}
			want, got := poll.Receive(t, "upstream's list", lists[0]), poll.Receive(t, "the proxied list", lists[1])
			if digits.ReplaceAllString(want, "N") != digits.ReplaceAllString(got, "N") || !strings.Contains(want, "initial-events-end") {
				t.Errorf("streamed\nupstream: %q\nproxied:  %q", want, got)
			}
			// The proxy refuses what upstream refuses.
			compare.Same(t, api.Request{Path: kind.path + "?resourceVersion=0", Accept: kind.media + one})
			compare.Same(t, api.Request{Path: kind.path + "/one-1?resourceVersion=0", Accept: kind.media + many})
			compare.Same(t, api.Request{Path: kind.path + "/nobody?resourceVersion=0", Accept: kind.media + one})
		})
	}
}

// readUpTo reads whole frames of a watch, up to the first that contains a text.
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

// TestMetadataOfConvertedTypesMatchesUpstream reads types that keep fields in annotations of one
// version. Upstream makes their metadata without these annotations, so the proxy has to as well.
func TestMetadataOfConvertedTypesMatchesUpstream(t *testing.T) {
	for _, r := range convertedReads(t) {
		if a := compare.Same(t, r); a.Status != 200 {
			t.Errorf("%v: %d", r, a.Status)
		}
	}
}

// convertedReads creates such objects and returns reads of them.
func convertedReads(t *testing.T) (requests []api.Request) {
	t.Helper()
	here := "/namespaces/" + objects.Namespace(t)
	const scalers = "/horizontalpodautoscalers"
	for _, made := range []struct{ writing, reading, body string }{
		{"/apis/apps/v1" + here + "/daemonsets", "/apis/apps/v1" + here + "/daemonsets",
			`{"metadata":{"name":"d"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":` + conformance.PodTemplate + `}}`},
		{"/apis/autoscaling/v2" + here + scalers, "/apis/autoscaling/v1" + here + scalers,
			`{"metadata":{"name":"d"},"spec":{"maxReplicas":3,"scaleTargetRef":{"kind":"Deployment","name":"d","apiVersion":"apps/v1"},"metrics":[{"type":"Resource","resource":{"name":"memory","target":{"type":"Utilization","averageUtilization":50}}}]}}`},
	} {
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: made.writing, Body: made.body})
		for _, media := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
			requests = append(requests, []api.Request{
				{Path: made.reading + "?resourceVersion=0", Accept: media + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"},
				{Path: made.reading + "/d?resourceVersion=0", Accept: media + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"},
				{Path: made.reading + "?resourceVersion=0&watch=1&timeoutSeconds=1", Accept: media + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"},
				{Path: made.reading + "/d?resourceVersion=0"},
			}...)
		}
	}
	return requests
}
