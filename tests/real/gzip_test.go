package real

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientfeatures "k8s.io/client-go/features"
	clientfeaturestesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
	"watershed.test/real/internal/usage"
)

// TestListsAndObjectsAreCompressedLikeUpstream compares compression. Lists and objects above
// upstream's threshold are compressed for clients that ask for it, as upstream reads the
// header. Nothing else is.
func TestListsAndObjectsAreCompressedLikeUpstream(t *testing.T) {
	ns := objects.Namespace(t)
	here := "/api/v1/namespaces/" + ns + "/configmaps"
	ctx := context.Background()
	testbed.Proxied.Must(t, api.Request{Path: here + "?resourceVersion=0"})
	var version string
	for _, name := range []string{"one", "two", "three"} {
		cm := objects.ConfigMap(name)
		cm.Data["text"] = strings.Repeat(name+" ", 12_000)
		version = require.Value(api.Clientset(t, testbed.Upstream).CoreV1().ConfigMaps(ns).Create(ctx, cm, metav1.CreateOptions{}))(t).ResourceVersion
	}
	huge := objects.ConfigMap("huge")
	huge.Data["text"] = strings.Repeat("x", 200_000)
	version = require.Value(api.Clientset(t, testbed.Upstream).CoreV1().ConfigMaps(ns).Create(ctx, huge, metav1.CreateOptions{}))(t).ResourceVersion
	compare.Settle(t, here, api.ParseVersion(version))

	for _, path := range []string{
		here + "?resourceVersionMatch=Exact&resourceVersion=" + version,
		here + "?limit=2&resourceVersion=" + version,
		here + "?labelSelector=app%3Dtwo&resourceVersionMatch=Exact&resourceVersion=" + version,
		here + "/huge?resourceVersion=" + version,
		here + "/one?resourceVersion=" + version,
		here + "/nobody?resourceVersion=" + version,
	} {
		for _, accept := range []string{"gzip", "identity", "deflate, gzip;q=1.0", "br , gzip", "gzip;q=0", "*"} {
			read := func(to api.Target) (string, string) {
				resp := require.Value(to.Open(ctx, api.Request{Path: path, Header: map[string]string{"Accept-Encoding": accept}}))(t)
				defer resp.Body.Close()
				body := io.Reader(resp.Body)
				if resp.Header.Get("Content-Encoding") == "gzip" {
					member := require.Value(gzip.NewReader(body))(t)
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
				if source := resp.Header.Get("X-Watershed-Source"); to.Name == "proxied" && !testbed.Direct && source != "snapshot" {
					t.Errorf("%s is answered from %q", path, source)
				}
				text := ""
				for _, name := range slices.Sorted(maps.Keys(headers)) {
					text += name + ": " + strings.Join(headers[name], ", ") + "\n"
				}
				return resp.Status + "\n" + text, string(require.Value(io.ReadAll(body))(t))
			}
			wantHead, wantBody := read(testbed.Upstream)
			gotHead, gotBody := read(testbed.Proxied)
			if wantHead != gotHead || !compare.EqualLists(t, wantBody, gotBody) {
				t.Errorf("%s, %q: bodies equal: %v\nupstream: %s\nproxied:  %s", path, accept, wantBody == gotBody, wantHead, gotHead)
			}
		}
	}
}

// gzipped are the headers of a client that accepts gzip.
var gzipped = map[string]string{"Accept-Encoding": "gzip"}

// compressionOfWatch returns the compression of a short watch of a collection.
func compressionOfWatch(t *testing.T, by api.Target, collection, accept string) string {
	t.Helper()
	r := api.Request{Path: collection + "?watch=1&resourceVersion=0&allowWatchBookmarks=true&timeoutSeconds=1", Accept: accept, Header: gzipped}
	return by.Send(t, r).Header.Get("Content-Encoding")
}

// awaitCompression waits until the proxy compresses watches of a collection in this way. On a busy
// machine it may serve the first one before it knows whether upstream compresses them.
func awaitCompression(t *testing.T, collection, accept, want string) {
	t.Helper()
	poll.Until(t, "the proxy knows whether upstream compresses watches", func() error {
		if got := compressionOfWatch(t, testbed.Proxied, collection, accept); got != want {
			return fmt.Errorf("not %q but %q", want, got)
		}
		return nil
	})
}

// knowsOfCompression waits until the proxy knows whether upstream compresses watches of config
// maps.
func knowsOfCompression(t *testing.T) {
	t.Helper()
	const maps = "/api/v1/configmaps"
	for _, accept := range []string{api.JSONType, api.ProtobufType} {
		awaitCompression(t, maps, accept, compressionOfWatch(t, testbed.Upstream, maps, accept))
	}
}

// TestLearningOfCompressionLooksAtNoObject counts the objects that upstream looks at for what watches
// begin with, while the proxy learns whether upstream compresses the watches of a type that it holds.
func TestLearningOfCompressionLooksAtNoObject(t *testing.T) {
	w, ns := objects.NewWidget(t), objects.Namespace(t)
	w.Define(t, testbed.Upstream)
	for i := range 10 {
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: w.Path(ns, ""), Body: w.Object(fmt.Sprint("w-", i), i)})
	}
	w.AwaitServed(t, testbed.Proxied)
	compare.AwaitHeld(t, testbed.Proxied, w.Path("", ""))
	compresses := compressionOfWatch(t, testbed.Upstream, "/api/v1/configmaps", api.JSONType)
	before := usage.InitialEvents(t, testbed.Upstream, w.Group)
	awaitCompression(t, w.Path("", ""), api.JSONType, compresses)
	if after := usage.InitialEvents(t, testbed.Upstream, w.Group); !testbed.Direct && after != before {
		t.Errorf("upstream looked at %d objects", after-before)
	}
}

// TestCompressedWatchesMatchUpstream compares compressed watches: the same clients get them,
// with the same content.
func TestCompressedWatchesMatchUpstream(t *testing.T) {
	ns := objects.Namespace(t)
	here := "/api/v1/namespaces/" + ns + "/configmaps?watch=1&timeoutSeconds=2&"
	ctx := context.Background()
	client := api.Clientset(t, testbed.Upstream).CoreV1().ConfigMaps(ns)
	for i := range 100 {
		cm := objects.ConfigMap(fmt.Sprintf("cm-%d", i), "text", strings.Repeat("word ", 100))
		require.Value(client.Create(ctx, cm, metav1.CreateOptions{}))(t)
	}
	version := require.Value(client.List(ctx, metav1.ListOptions{}))(t).ResourceVersion
	knowsOfCompression(t)

	var requests []api.Request
	for _, query := range []string{
		"resourceVersion=0&allowWatchBookmarks=true",
		"resourceVersion=0",
		"resourceVersion=0&allowWatchBookmarks=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan",
		"resourceVersion=0&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
		"resourceVersion=0&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
		"sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=" + version,
		"sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
		"sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=0&labelSelector=app%3Dcm-7",
		"sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=0&labelSelector=app%3Dnobody",
		"sendInitialEvents=true&allowWatchBookmarks=true&resourceVersion=0",
		"allowWatchBookmarks=true&resourceVersion=" + version,
		"allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=100000000",
	} {
		for _, accept := range []string{api.JSONType, api.ProtobufType, api.MetadataJSON} {
			requests = append(requests, api.Request{Path: here + query, Accept: accept, Header: gzipped})
		}
	}
	for _, encoding := range []string{"identity", "br , gzip", "deflate, gzip;q=1.0", "*", "GZIP"} {
		requests = append(requests, api.Request{Path: here + "resourceVersion=0&allowWatchBookmarks=true", Header: map[string]string{"Accept-Encoding": encoding}})
	}
	var asked sync.WaitGroup
	var mutex sync.Mutex
	compressed := map[string]int{}
	for _, r := range requests {
		asked.Go(func() {
			v := compare.Sides{Right: testbed.Upstream, Asked: testbed.Proxied}.CompareAtLeisure(r)
			if v.Difference != "" {
				t.Errorf("%v Accept: %q, answered from %q\n%s", r, r.Accept, v.Got.Header.Get("X-Watershed-Source"), v.Difference)
			}
			mutex.Lock()
			defer mutex.Unlock()
			if v.Want.Header.Get("Content-Encoding") != "" {
				compressed[v.Got.Header.Get("X-Watershed-Source")]++
			}
		})
	}
	asked.Wait()
	t.Logf("compressed of %d, by where they are from: %v", len(requests), compressed)
	// Some releases do not compress watches.
	if compressionOfWatch(t, testbed.Upstream, "/api/v1/configmaps", api.JSONType) != "" && compressed["snapshot"] == 0 && !testbed.Direct {
		t.Errorf("no compressed watch comes from memory: %v", compressed)
	}
}

// TestCompressedWatchesArePrompt reads each event of a compressed watch before anything else
// happens.
func TestCompressedWatchesArePrompt(t *testing.T) {
	ns := objects.Namespace(t)
	ctx := context.Background()
	client := api.Clientset(t, testbed.Upstream).CoreV1().ConfigMaps(ns)
	knowsOfCompression(t)
	require.Value(client.Create(ctx, objects.ConfigMap("first", "text", "here"), metav1.CreateOptions{}))(t)

	watch := func(to api.Target, labels string) *api.Stream {
		return to.Watch(t, api.Request{
			Path: "/api/v1/namespaces/" + ns + "/configmaps?watch=1&resourceVersion=0&allowWatchBookmarks=true&labelSelector=" + labels, Header: gzipped})
	}
	same := func(labels string) func(what string) {
		want, got := watch(testbed.Upstream, labels), watch(testbed.Proxied, labels)
		if w, g := want.Header.Get("Content-Encoding"), got.Header.Get("Content-Encoding"); w != g {
			t.Errorf("upstream's is compressed by %q, the proxy's by %q", w, g)
		} else if source := got.Header.Get("X-Watershed-Source"); w != "" && !testbed.Direct && source != "snapshot" {
			t.Errorf("it is answered from %q", source)
		}
		return func(what string) {
			t.Helper()
			w, g := want.Next(t), got.Next(t)
			if w.Raw != g.Raw || w.String() != what {
				t.Errorf("%s:\nupstream: %s\nproxied:  %s", what, w.Raw, g.Raw)
			}
		}
	}
	// The first watch has upstream's own frames. The second needs frames of the proxy's.
	whole, gold := same(""), same("tier%3Dgold")
	whole("ADDED first")
	for i := range 5 {
		name := fmt.Sprintf("cm-%d", i)
		require.Value(client.Create(ctx, objects.ConfigMap(name), metav1.CreateOptions{}))(t)
		whole("ADDED " + name)
		for _, tier := range []string{"gold", "iron"} {
			patch := fmt.Sprintf(`{"metadata":{"labels":{"tier":"%s"}}}`, tier)
			require.Value(client.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(t)
			whole("MODIFIED " + name)
			gold(map[string]string{"gold": "ADDED ", "iron": "DELETED "}[tier] + name)
		}
	}
	require.NoError(t, client.Delete(ctx, "first", metav1.DeleteOptions{}))
	whole("DELETED first")
}

// seenBy records the answers to watches.
type seenBy struct {
	next http.RoundTripper

	mutex sync.Mutex
	// answers counts the answers to watches that begin with the state, by compression and
	// source.
	answers map[string]int
}

func (s *seenBy) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := s.next.RoundTrip(r)
	if err == nil && r.URL.Query().Get("sendInitialEvents") == "true" {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		source, _, _ := strings.Cut(resp.Header.Get("X-Watershed-Source"), ";")
		s.answers[fmt.Sprintf("%d compressed=%v %s", resp.StatusCode, resp.Uncompressed, source)]++
	}
	return resp, err
}

// TestInformersFollowCompressedWatches runs client-go's informers, which ask for gzip by
// default. They open compressed watches and follow each event promptly.
func TestInformersFollowCompressedWatches(t *testing.T) {
	clientfeaturestesting.SetFeatureDuringTest(t, clientfeatures.WatchListClient, true)
	knowsOfCompression(t)
	if !testbed.Direct {
		compare.AwaitStreamed(t, testbed.Proxied, "/api/v1/configmaps")
	}
	for _, contentType := range []string{api.JSONType, api.ProtobufType} {
		t.Run(contentType, func(t *testing.T) {
			ns := objects.Namespace(t)
			ctx := context.Background()
			write := api.Clientset(t, testbed.Upstream).CoreV1().ConfigMaps(ns)
			require.Value(write.Create(ctx, objects.ConfigMap("first"), metav1.CreateOptions{}))(t)
			answers := map[string]map[string]int{}
			for _, to := range testbed.Targets() {
				config := to.Config()
				config.ContentType, config.AcceptContentTypes = contentType, contentType
				seen := &seenBy{answers: map[string]int{}}
				config.Wrap(func(next http.RoundTripper) http.RoundTripper {
					seen.next = next
					return seen
				})
				factory := informers.NewSharedInformerFactoryWithOptions(require.Value(kubernetes.NewForConfig(config))(t), 0, informers.WithNamespace(ns),
					informers.WithTweakListOptions(func(o *metav1.ListOptions) {
						// Without a version it is a consistent read, which is forwarded.
						if o.ResourceVersion == "" {
							o.ResourceVersion = "0"
						}
					}))
				informer := factory.Core().V1().ConfigMaps().Informer()
				stop := make(chan struct{})
				defer close(stop)
				go informer.Run(stop)
				knows := func(name string) {
					t.Helper()
					poll.Until(t, to.Name+" knows "+name, func() error {
						if _, known, _ := informer.GetStore().GetByKey(ns + "/" + name); !known || !informer.HasSynced() {
							return poll.ErrNotYet
						}
						return nil
					})
				}
				knows("first")
				// Each event has to arrive before the next is made.
				for i := range 5 {
					name := fmt.Sprintf("%s-%d", to.Name, i)
					require.Value(write.Create(ctx, objects.ConfigMap(name), metav1.CreateOptions{}))(t)
					knows(name)
				}
				seen.mutex.Lock()
				answers[to.Name] = maps.Clone(seen.answers)
				seen.mutex.Unlock()
			}
			t.Log(answers)
			if testbed.Direct {
				return
			}
			if len(answers["upstream"]) == 0 {
				t.Error("no informer opened a watch that begins with the state")
			}
			for how, n := range answers["upstream"] {
				got := answers["proxied"][how+"snapshot"]
				if !strings.Contains(how, "compressed=true") {
					// On releases that do not compress, requests are forwarded for other
					// reasons.
					got += answers["proxied"][how+"forward"]
				}
				if got != n {
					t.Errorf("informers' watches are answered in another way: %v", answers)
				}
			}
		})
	}
}
