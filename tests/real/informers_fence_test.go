package real

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
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
)

// costs are what upstream did for the types that are watched, by its own count,
// and what the proxy did there, by its own.
type costs struct {
	// watching is how many watches are open, and watched how many were. lists
	// is how many lists were answered, and bytes how large these were together.
	watching, watched, lists, bytes map[string]int
	// asked is what the fence asked for: lists of metadata, and watches.
	askedLists, askedWatches map[string]int
	// forwarded is what was passed on, and why.
	forwarded map[string]int
	exact     int
}

func countCosts(t *testing.T, c *cluster, p *ownProxy, types []string) costs {
	t.Helper()
	of := func() map[string]int { return map[string]int{} }
	all := costs{of(), of(), of(), of(), of(), of(), of(), 0}
	text := c.upstream().ok(t, request{path: "/metrics"}).body
	for _, name := range types {
		l := measure(t, c, name)
		all.watching[name], all.watched[name], all.lists[name] = l.watching, l.watched, l.lists
		for line := range strings.Lines(text) {
			metric, labels, _ := strings.Cut(line, "{")
			if metric == "apiserver_response_sizes_sum" && strings.Contains(labels, fmt.Sprintf(`resource="%s"`, name)) && strings.Contains(labels, `verb="LIST"`) {
				all.bytes[name] += value(line)
			}
		}
	}
	for line := range strings.Lines(must(p.metrics())(t)) {
		metric, labels, _ := strings.Cut(line, "{")
		i := slices.IndexFunc(types, func(name string) bool { return strings.Contains(labels, fmt.Sprintf(`resource="%s"`, name)) })
		if i < 0 {
			continue
		}
		switch {
		case metric == "watershed_fence_upstream_requests_total" && strings.Contains(labels, `request="watch"`):
			all.askedWatches[types[i]] += value(line)
		case metric == "watershed_fence_upstream_requests_total":
			all.askedLists[types[i]] += value(line)
		case metric == "watershed_requests_total" && strings.Contains(labels, `source="forward"`) && !strings.Contains(labels, `reason="not-a-read"`):
			all.forwarded[labels] += value(line)
		case metric == "watershed_requests_total" && strings.Contains(labels, `verb="list"`) && strings.Contains(labels, `source="snapshot"`):
			all.exact += value(line)
		}
	}
	return all
}

// value is that of a line of metrics.
func value(line string) int {
	var n float64
	fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &n)
	return int(n)
}

func grown(from, to map[string]int) map[string]int {
	by := map[string]int{}
	for name, n := range to {
		if n != from[name] {
			by[name] = n - from[name]
		}
	}
	return by
}

// TestInformersStartAtTheFence: informers with client-go's defaults begin with a
// consistent read. Of types that the proxy has, upstream is asked for none of
// them. It is asked for metadata alone, to show that memory is new enough.
//
// In the last part each informer lists again at the very version that its first
// state was of, and would panic if there were a difference: client-go's own check.
func TestInformersStartAtTheFence(t *testing.T) {
	if !clientfeatures.FeatureGates().Enabled(clientfeatures.WatchListClient) {
		t.Fatal("informers do not begin as they do by default")
	}
	if direct {
		t.Skip("without a proxy there is nothing to count")
	}
	c := must(startBareCluster())(t)
	t.Cleanup(c.stop)
	p := startProxy(t, c.ProxyKubeconfig)
	at := c.upstream()
	w := newWidget(t)
	at.ok(t, request{method: "POST", path: definitions, body: w.definition(true)})
	w.awaitServed(t, at)
	w.awaitServed(t, p.target)

	const ns, each, size = "default", 20, 40 << 10
	gvr := schema.GroupVersionResource{Group: w.group, Version: "v1", Resource: w.plural}
	// The API server follows none of these itself.
	const small, many = "podtemplates", "controllerrevisions"
	types := []string{small, many, w.plural}
	paths := map[string]string{small: "/api/v1/namespaces/" + ns + "/" + small, many: "/apis/apps/v1/namespaces/" + ns + "/" + many, w.plural: w.path(ns, "")}
	large := strings.Repeat("abcd", size/4)
	object := func(kind, name, large string) string {
		switch kind {
		case small:
			return fmt.Sprintf(`{"metadata":{"name":"%s"},"template":{"metadata":{"annotations":{"large":"%s"}},"spec":{"containers":[{"name":"c","image":"example.test/c:1"}]}}}`, name, large)
		case many:
			return fmt.Sprintf(`{"metadata":{"name":"%s"},"revision":1,"data":{"large":"%s"}}`, name, large)
		}
		return fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Widget","metadata":{"name":"%s"},"spec":{"colour":"%s"}}`, w.group, name, large)
	}
	for _, kind := range types {
		// The last one is small, and written now and then.
		n := each + 1
		if kind == many {
			// Too many to be compared one by one.
			n = 300
		}
		workers(4, make([]string, n), func(i int, text string) {
			if i < each {
				text = large
			}
			at.try(request{method: "POST", path: paths[kind], body: object(kind, fmt.Sprint("there-", i), text)})
		})
	}
	// The proxy has the types when it is first asked for them.
	for kind, accept := range map[string]string{small: protobufType, many: protobufType, w.plural: jsonType} {
		a := p.ok(t, request{path: paths[kind] + "?resourceVersion=0", accept: accept})
		if source := a.header.Get("X-Watershed-Source"); source != "snapshot" {
			t.Fatalf("%s come from %q", kind, source)
		}
	}

	stop := make(chan struct{})
	defer close(stop)
	var all []cache.SharedIndexInformer
	config := p.config()
	open := func(kind string) {
		// Ten share a connection; see TestManyInformersOneWatch.
		if len(all)%10 == 0 {
			config = p.config()
			config.Dial = (&net.Dialer{Timeout: patience}).DialContext
		}
		var informer cache.SharedIndexInformer
		switch kind {
		case small, many:
			config.ContentType, config.AcceptContentTypes = protobufType, protobufType
			typed := informers.NewSharedInformerFactory(must(kubernetes.NewForConfig(config))(t), 0)
			if informer = typed.Core().V1().PodTemplates().Informer(); kind == many {
				informer = typed.Apps().V1().ControllerRevisions().Informer()
			}
		default:
			informer = dynamicinformer.NewDynamicSharedInformerFactory(must(dynamic.NewForConfig(config))(t), 0).ForResource(gvr).Informer()
		}
		all = append(all, informer)
		go informer.Run(stop)
	}
	synced := func() {
		t.Helper()
		eventually(t, fmt.Sprintf("%d informers are in sync", len(all)), func() error {
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
	// judge compares with before, and with what a list of everything takes. It
	// yields what was passed on, as it is where the proof that memory is new enough
	// takes longer than three seconds: on a machine that stalls.
	judge := func(t *testing.T, before costs, opened int) (passedOn map[string]int) {
		t.Helper()
		now := countCosts(t, c, p, types)
		if n := grown(before.forwarded, now.forwarded); len(n) > 0 {
			return n
		}
		lists, watched, bytes := map[string]int{}, map[string]int{}, map[string]int{}
		// Watches that caught up may be open a while longer, and what is over may
		// not be counted yet.
		eventually(t, "upstream did what the fence asked for", func() error {
			now = countCosts(t, c, p, types)
			lists, watched = grown(before.lists, now.lists), grown(before.watched, now.watched)
			bytes = grown(before.bytes, now.bytes)
			asked, askedWatches := grown(before.askedLists, now.askedLists), grown(before.askedWatches, now.askedWatches)
			switch n := grown(before.watching, now.watching); {
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
		p.addUp(t, "watershed_fence_reads_total", "step", steps)
		t.Logf("%d informers: upstream was asked for %v lists, of %v bytes, and %v short watches; shown new enough by now: %v",
			opened, lists, bytes, watched, steps)
		for kind, n := range bytes {
			// All of them together do not make up for one list of everything.
			if n >= each*size {
				t.Errorf("upstream's lists of %s were %d bytes", kind, n)
			}
		}
		return nil
	}
	// unlessStalled lets a part begin again if something was passed on.
	unlessStalled := func(t *testing.T, part func() (passedOn map[string]int)) {
		t.Helper()
		var passedOn map[string]int
		for range 4 {
			if passedOn = part(); passedOn == nil {
				return
			}
			t.Logf("passed on: %v", passedOn)
		}
		t.Errorf("passed on: %v", passedOn)
	}

	// meanwhile writes for as long as something else goes on.
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
		at.try(request{method: "PATCH", path: path, contentType: mergePatch, body: fmt.Sprintf(`{"metadata":{"annotations":{"n":"%d"}}}`, n)})
	}
	elsewhere := func(n int) { annotate("/api/v1/namespaces/"+ns, n) }
	everywhere := func(n int) { annotate(paths[types[n%len(types)]]+fmt.Sprint("/there-", each), n) }
	few := []string{small, w.plural}

	// The first of each type also lets the proxy ask whether upstream compresses
	// watches, with a watch of nothing that is over at once.
	for _, kind := range types {
		open(kind)
	}
	synced()
	eventually(t, "upstream has answered that", func() error {
		watched := countCosts(t, c, p, types).watched
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
		{"at once", types, everywhere},
		// Nothing happens to these types, but the version that upstream is at grows.
		{"at once, idle", few, elsewhere},
	} {
		t.Run(start.name, func(t *testing.T) {
			unlessStalled(t, func() map[string]int {
				before := countCosts(t, c, p, types)
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
	t.Run("one after another", func(t *testing.T) {
		unlessStalled(t, func() map[string]int {
			before := countCosts(t, c, p, types)
			for i := range 40 {
				elsewhere(-i)
				open(few[i%len(few)])
				synced()
			}
			return judge(t, before, 40)
		})
	})
	t.Run("checked by themselves", func(t *testing.T) {
		// What the environment's KUBE_WATCHLIST_INCONSISTENCY_DETECTOR does.
		defer consistencydetector.SetDataConsistencyDetectionForWatchListEnabledForTest(true)()
		before := countCosts(t, c, p, types)
		meanwhile(t, everywhere, func() {
			for i := range 30 {
				open(types[i%len(types)])
			}
			synced()
		})
		now := countCosts(t, c, p, types)
		// An exact version is upstream's to answer when memory has left it behind.
		passedOn := total(grown(before.forwarded, now.forwarded))
		t.Logf("%d states were compared from memory, %d with upstream", now.exact-before.exact, passedOn)
		if n := now.exact - before.exact + passedOn; n < 30 {
			t.Errorf("only %d of 30 were compared", n)
		}
	})
	// All of them watch, and see the same.
	for _, kind := range types {
		at.ok(t, request{method: "POST", path: paths[kind], body: object(kind, "new", "")})
	}
	eventually(t, "all informers know the new objects", func() error {
		for i, informer := range all {
			if _, known, _ := informer.GetStore().GetByKey(ns + "/new"); !known {
				return fmt.Errorf("informer %d does not", i)
			}
		}
		return nil
	})
}
