package clusters

import (
	"context"
	"fmt"
	"maps"
	"net"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	clientfeatures "k8s.io/client-go/features"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/consistencydetector"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/parallel"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
	"watershed.test/real/internal/usage"
)

// TestDefaultInformersStartFromMemory starts informers with client-go's defaults, which begin
// with a consistent read. For cached types, upstream answers none of these reads. The proxy
// asks it for metadata alone, which proves that memory is new enough.
//
// In the last part each informer lists again at the version of its first state. client-go's own
// check would panic at a difference.
func TestDefaultInformersStartFromMemory(t *testing.T) {
	if !clientfeatures.FeatureGates().Enabled(clientfeatures.WatchListClient) {
		t.Fatal("informers do not begin as they do by default")
	}
	if testbed.Direct {
		t.Skip("without a proxy there is nothing to count")
	}
	c := require.Value(testbed.Start())(t)
	t.Cleanup(c.Stop)
	p := testbed.StartProxy(t, c.ProxyKubeconfig)
	at := c.Upstream()
	w := objects.NewWidget(t)
	at.Must(t, api.Request{Method: "POST", Path: objects.CRDPath, Body: w.Definition(true)})
	w.AwaitServed(t, at)
	w.AwaitServed(t, p.Target)

	const ns, each, size = "default", 20, 40 << 10
	gvr := schema.GroupVersionResource{Group: w.Group, Version: "v1", Resource: w.Plural}
	// The API server does not watch these types itself.
	const small, many = "podtemplates", "controllerrevisions"
	types := []string{small, many, w.Plural}
	paths := map[string]string{small: "/api/v1/namespaces/" + ns + "/" + small, many: "/apis/apps/v1/namespaces/" + ns + "/" + many, w.Plural: w.Path(ns, "")}
	large := strings.Repeat("abcd", size/4)
	object := func(kind, name, large string) string {
		switch kind {
		case small:
			return fmt.Sprintf(`{"metadata":{"name":"%s"},"template":{"metadata":{"annotations":{"large":"%s"}},"spec":{"containers":[{"name":"c","image":"example.test/c:1"}]}}}`, name, large)
		case many:
			return fmt.Sprintf(`{"metadata":{"name":"%s"},"revision":1,"data":{"large":"%s"}}`, name, large)
		}
		return fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Widget","metadata":{"name":"%s"},"spec":{"colour":"%s"}}`, w.Group, name, large)
	}
	for _, kind := range types {
		// The last object is small and is written now and then.
		n := each + 1
		if kind == many {
			// These are too many to be compared one by one.
			n = 300
		}
		parallel.ForEach(4, make([]string, n), func(i int, text string) {
			if i < each {
				text = large
			}
			at.Must(t, api.Request{Method: "POST", Path: paths[kind], Body: object(kind, fmt.Sprint("there-", i), text)})
		})
	}
	// The proxy caches the types from the first request on.
	for kind, accept := range map[string]string{small: api.ProtobufType, many: api.ProtobufType, w.Plural: api.JSONType} {
		a := p.Must(t, api.Request{Path: paths[kind] + "?resourceVersion=0", Accept: accept})
		if source := a.Header.Get("X-Watershed-Source"); source != "snapshot" {
			t.Fatalf("%s come from %q", kind, source)
		}
	}

	stop := make(chan struct{})
	defer close(stop)
	var all []cache.SharedIndexInformer
	config := p.Config()
	open := func(kind string) {
		// Ten informers share a connection; see TestManyInformersCostUpstreamOneWatch.
		if len(all)%10 == 0 {
			config = p.Config()
			config.Dial = (&net.Dialer{Timeout: poll.Patience}).DialContext
		}
		var informer cache.SharedIndexInformer
		switch kind {
		case small, many:
			config.ContentType, config.AcceptContentTypes = api.ProtobufType, api.ProtobufType
			typed := informers.NewSharedInformerFactory(require.Value(kubernetes.NewForConfig(config))(t), 0)
			if informer = typed.Core().V1().PodTemplates().Informer(); kind == many {
				informer = typed.Apps().V1().ControllerRevisions().Informer()
			}
		default:
			informer = dynamicinformer.NewDynamicSharedInformerFactory(require.Value(dynamic.NewForConfig(config))(t), 0).ForResource(gvr).Informer()
		}
		all = append(all, informer)
		go informer.Run(stop)
	}
	synced := func() {
		t.Helper()
		poll.Until(t, fmt.Sprintf("%d informers are in sync", len(all)), func() error {
			late := []int{}
			for i, informer := range all {
				if !informer.HasSynced() {
					late = append(late, i)
				}
			}
			if len(late) > 0 {
				return fmt.Errorf("these are not: %v", late)
			}
			return nil
		})
	}
	// judge compares the costs with those before, and with the size of a complete list. It
	// returns what was forwarded. A read is forwarded if the proof that memory is new enough
	// takes more than three seconds, as on a machine that stalls.
	judge := func(t *testing.T, before usage.Costs, opened int) (passedOn map[string]int) {
		t.Helper()
		now := usage.CountCosts(t, c, p, types)
		if n := usage.Growth(before.Forwarded, now.Forwarded); len(n) > 0 {
			return n
		}
		lists, watched, bytes := map[string]int{}, map[string]int{}, map[string]int{}
		// Watches for the proof may stay open a while longer, and ended ones may not be counted
		// yet.
		poll.Until(t, "upstream has counted the requests of the fence", func() error {
			now = usage.CountCosts(t, c, p, types)
			lists, watched = usage.Growth(before.Lists, now.Lists), usage.Growth(before.Watched, now.Watched)
			bytes = usage.Growth(before.Bytes, now.Bytes)
			asked, askedWatches := usage.Growth(before.AskedLists, now.AskedLists), usage.Growth(before.AskedWatches, now.AskedWatches)
			switch n := usage.Growth(before.Watching, now.Watching); {
			case len(n) > 0:
				return fmt.Errorf("%v more watches are open", n)
			case !maps.Equal(lists, asked):
				return fmt.Errorf("upstream answered %v lists, and for the fence %v", lists, asked)
			case !maps.Equal(watched, askedWatches):
				return fmt.Errorf("upstream answered %v watches, and for the fence %v", watched, askedWatches)
			}
			return nil
		})
		steps := map[string]int{}
		p.AddByLabel(t, "watershed_consistent_reads_total", "outcome", steps)
		t.Logf("%d informers: upstream was asked for %v lists, of %v bytes, and %v short watches; proofs that memory is new enough: %v",
			opened, lists, bytes, watched, steps)
		// A proof may begin with a list that selects nothing, and go on with one of all metadata.
		if n := usage.Total(lists); n > 2*opened {
			t.Errorf("%d informers cost %d lists", opened, n)
		}
		for kind, n := range bytes {
			// All answers together are smaller than one complete list.
			if n >= each*size {
				t.Errorf("upstream's lists of %s were %d bytes", kind, n)
			}
		}
		return nil
	}
	// unlessStalled repeats a part if anything was forwarded.
	unlessStalled := func(t *testing.T, part func() (passedOn map[string]int)) {
		t.Helper()
		var passedOn map[string]int
		for range 4 {
			if passedOn = part(); passedOn == nil {
				return
			}
			t.Logf("forwarded: %v", passedOn)
		}
		t.Errorf("forwarded: %v", passedOn)
	}

	// meanwhile writes until do returns.
	meanwhile := func(t *testing.T, write func(n int), do func()) {
		ctx, cancel := context.WithCancel(t.Context())
		written := make(chan int)
		go func() {
			n := 0
			for ; ctx.Err() == nil; n++ {
				write(n)
				time.Sleep(10 * time.Millisecond)
			}
			written <- n
		}()
		defer func() {
			cancel()
			t.Logf("%d writes meanwhile", <-written)
		}()
		do()
	}
	annotate := func(path string, n int) {
		at.Try(api.Request{Method: "PATCH", Path: path, ContentType: api.MergePatch, Body: fmt.Sprintf(`{"metadata":{"annotations":{"n":"%d"}}}`, n)})
	}
	elsewhere := func(n int) { annotate("/api/v1/namespaces/"+ns, n) }
	everywhere := func(n int) { annotate(paths[types[n%len(types)]]+fmt.Sprint("/there-", each), n) }
	few := []string{small, w.Plural}

	// The first informer of each type also makes the proxy ask whether upstream compresses
	// watches. It does so with a short watch of nothing.
	for _, kind := range types {
		open(kind)
	}
	synced()
	poll.Until(t, "upstream has answered the first watches", func() error {
		watched := usage.CountCosts(t, c, p, types).Watched
		for _, kind := range types {
			if watched[kind] == 0 {
				return fmt.Errorf("no watch of %s has ended", kind)
			}
		}
		return nil
	})

	for _, start := range []struct {
		name  string
		kinds []string
		write func(n int)
	}{
		{"a hundred informers start at once", types, everywhere},
		// These types do not change, but upstream's version grows.
		{"a hundred informers start at once on idle types", few, elsewhere},
	} {
		t.Run(start.name, func(t *testing.T) {
			unlessStalled(t, func() map[string]int {
				before := usage.CountCosts(t, c, p, types)
				meanwhile(t, start.write, func() {
					for i := range 100 {
						open(start.kinds[i%len(start.kinds)])
					}
					synced()
				})
				return judge(t, before, 100)
			})
		})
	}
	t.Run("informers start one after another", func(t *testing.T) {
		unlessStalled(t, func() map[string]int {
			before := usage.CountCosts(t, c, p, types)
			for i := range 40 {
				elsewhere(-i)
				open(few[i%len(few)])
				synced()
			}
			return judge(t, before, 40)
		})
	})
	t.Run("informers check themselves", func(t *testing.T) {
		// This does the same as the environment variable KUBE_WATCHLIST_INCONSISTENCY_DETECTOR.
		defer consistencydetector.SetDataConsistencyDetectionForWatchListEnabledForTest(true)()
		before := usage.CountCosts(t, c, p, types)
		meanwhile(t, everywhere, func() {
			for i := range 30 {
				open(types[i%len(types)])
			}
			synced()
		})
		now := usage.CountCosts(t, c, p, types)
		// Upstream answers an exact version that memory has left behind.
		passedOn := usage.Total(usage.Growth(before.Forwarded, now.Forwarded))
		t.Logf("%d states were compared from memory, %d with upstream", now.Exact-before.Exact, passedOn)
		if n := now.Exact - before.Exact + passedOn; n < 30 {
			t.Errorf("only %d of 30 were compared", n)
		}
	})
	// All informers watch and see the same.
	for _, kind := range types {
		at.Must(t, api.Request{Method: "POST", Path: paths[kind], Body: object(kind, "new", "")})
	}
	poll.Until(t, "all informers know the new objects", func() error {
		for i, informer := range all {
			if _, known, _ := informer.GetStore().GetByKey(ns + "/new"); !known {
				return fmt.Errorf("informer %d does not", i)
			}
		}
		return nil
	})
}
