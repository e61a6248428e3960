package clusters

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/balancer"
	"watershed.test/real/internal/informertest"
	"watershed.test/real/internal/metrics"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
	"watershed.test/real/internal/usage"
)

// TestInformersMoveBetweenReplicasWithoutListing replaces three proxies behind a balancer, one
// after the other, during writes. An informer that moves to another replica continues from its
// version. It sees each change once and does not list again.
func TestInformersMoveBetweenReplicasWithoutListing(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy")
	}
	c := require.Value(testbed.Start())(t)
	t.Cleanup(c.Stop)
	at := c.Upstream()
	w := objects.NewWidget(t)
	at.Must(t, api.Request{Method: "POST", Path: objects.CRDPath, Body: w.Definition(true)})
	w.AwaitServed(t, at)

	// All replicas show one certificate, as the pods of a Deployment do.
	first := testbed.StartProxy(t, c.ProxyKubeconfig)
	pair := filepath.Dir(first.CA)
	start := func() *testbed.Proxy {
		t.Helper()
		p := testbed.RunProxy(t, c.ProxyKubeconfig, "--config", testbed.CacheEverything, "--drain-seconds", "10",
			"--tls-cert", filepath.Join(pair, "tls.crt"), "--tls-key", filepath.Join(pair, "tls.key"))
		p.CA = first.CA
		return p
	}
	replicas := []*testbed.Proxy{first, start(), start()}
	balance := balancer.Start(t)
	balance.Set(replicas...)
	front := api.Target{Name: "balanced", URL: balance.URL(), CA: first.CA, Tokens: first.Tokens}

	const ns, builtIn = "default", "podtemplates"
	types := []string{builtIn, w.Plural}
	gvr := schema.GroupVersionResource{Group: w.Group, Version: "v1", Resource: w.Plural}
	paths := map[string]string{builtIn: "/api/v1/namespaces/" + ns + "/" + builtIn, w.Plural: w.Path(ns, "")}
	object := func(kind, name string) string {
		if kind == builtIn {
			return fmt.Sprintf(`{"metadata":{"name":"%s","labels":{"even":"yes"}},"template":{"spec":{"containers":[{"name":"c","image":"example.test/c:1"}]}}}`, name)
		}
		return fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Widget","metadata":{"name":"%s","labels":{"even":"yes"}},"spec":{"size":1}}`, w.Group, name)
	}
	for _, kind := range types {
		for i := range 30 {
			at.Must(t, api.Request{Method: "POST", Path: paths[kind], Body: object(kind, fmt.Sprint("there-", i))})
		}
	}

	// Default informers, each with a connection of its own.
	type follower struct {
		kind     string
		informer cache.SharedIndexInformer
		counted  *informertest.Beginnings
		told     *informertest.Tale
	}
	stop := make(chan struct{})
	defer close(stop)
	open := func(kind string, protobuf bool) *follower {
		f := &follower{kind: kind, counted: &informertest.Beginnings{}, told: &informertest.Tale{By: map[string][]string{}}}
		config := &rest.Config{Host: front.URL, BearerToken: c.AdminToken, TLSClientConfig: rest.TLSClientConfig{CAFile: front.CA}}
		// This keeps client-go from sharing connections between configurations.
		config.Dial = (&net.Dialer{Timeout: poll.Patience}).DialContext
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			f.counted.Next = next
			return f.counted
		})
		if protobuf {
			config.ContentType, config.AcceptContentTypes = api.ProtobufType, api.ProtobufType
		}
		if kind == builtIn {
			f.informer = informers.NewSharedInformerFactory(require.Value(kubernetes.NewForConfig(config))(t), 0).Core().V1().PodTemplates().Informer()
		} else {
			f.informer = dynamicinformer.NewDynamicSharedInformerFactory(require.Value(dynamic.NewForConfig(config))(t), 0).ForResource(gvr).Informer()
		}
		require.Value(f.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { f.told.Note(o, "") },
			UpdateFunc: func(_, o any) { f.told.Note(o, "") },
			DeleteFunc: func(o any) { f.told.Note(o, informertest.Deleted) },
		}))(t)
		go f.informer.Run(stop)
		return f
	}
	var all []*follower
	for range 4 {
		all = append(all, open(builtIn, true), open(builtIn, false), open(w.Plural, false))
	}
	for _, f := range all {
		poll.Until(t, "an informer on "+f.kind+" is in sync", func() error {
			if !f.informer.HasSynced() {
				return poll.ErrNotYet
			}
			return nil
		})
	}
	balance.Mutex.Lock()
	if len(balance.Passed) != 3 {
		t.Errorf("connections went to %v, not to three replicas", balance.Passed)
	}
	balance.Mutex.Unlock()
	begun := map[*follower]int{}
	for _, f := range all {
		begun[f] = len(f.counted.Count().Began)
	}

	// written holds the versions of each object while proxies came and went.
	written := map[string]map[string][]string{builtIn: {}, w.Plural: {}}
	ctx, cancel := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	for _, kind := range types {
		writing.Go(func() {
			chance, history := rand.New(rand.NewPCG(3, uint64(len(kind)))), written[kind]
			there := []string{}
			for i := 0; ctx.Err() == nil; i++ {
				var name, told string
				var err error
				switch n := chance.IntN(6); {
				case len(there) < 5 || n == 0:
					name = fmt.Sprint("made-", i)
					told, err = writtenVersion(at, api.Request{Method: "POST", Path: paths[kind], Body: object(kind, name)})
					there = append(there, name)
				case n == 1 && len(there) > 10:
					name, told = there[0], informertest.Deleted
					_, err = writtenVersion(at, api.Request{Method: "DELETE", Path: paths[kind] + "/" + name})
					there = there[1:]
				default:
					name = there[chance.IntN(len(there))]
					body := fmt.Sprintf(`{"metadata":{"annotations":{"n":"%d"}}}`, i)
					told, err = writtenVersion(at, api.Request{Method: "PATCH", Path: paths[kind] + "/" + name, ContentType: api.MergePatch, Body: body})
				}
				if err != nil {
					t.Error(err)
					return
				}
				history[name] = append(history[name], told)
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	finish := sync.OnceFunc(func() {
		cancel()
		writing.Wait()
	})
	defer finish()

	// A token of one replica is valid at the others and gives the same page.
	page := first.Must(t, api.Request{Path: paths[builtIn] + "?limit=7"})
	var list struct{ Metadata struct{ Continue string } }
	require.NoError(t, json.Unmarshal([]byte(page.Body), &list))
	rest := api.Request{Path: paths[builtIn] + "?limit=7&continue=" + url.QueryEscape(list.Metadata.Continue)}
	want := at.Must(t, rest)
	for i, replica := range replicas {
		if got := replica.Must(t, rest); got.Body != want.Body {
			t.Errorf("replica %d has another second page:\n%s\nupstream:\n%s", i, got.Body, want.Body)
		}
	}

	before := map[string]usage.Requests{}
	own, states := map[string]int{}, map[string]int{}
	// owned counts the proxies' own lists at upstream: those for the fence, and one for each scope
	// of a custom type. Scopes of built-in types begin with a watch, unless memory is limited. It is
	// called before a proxy ends, and in the end for those that remain.
	owned := func(p *testbed.Proxy, sign int) {
		for sample := range metrics.Samples(require.Value(p.Metrics())(t)) {
			kind, n := sample.Label("resource"), sign*int(sample.Value)
			isState := sample.Name == "watershed_upstream_lists_total"
			isProof := sample.Name == "watershed_freshness_checks_total" && sample.Label("request") != "watch"
			switch {
			case !slices.Contains(types, kind):
			case isState && kind == builtIn:
				states[kind] += n
			case isState || isProof:
				own[kind] += n
			}
		}
	}
	for _, kind := range types {
		before[kind] = usage.Measure(t, c, kind)
	}
	for _, p := range replicas {
		owned(p, -1)
	}
	for i, old := range replicas {
		fresh := start()
		replicas[i] = fresh
		balance.Set(replicas...)
		owned(old, 1)
		t.Logf("%s: proxy %d is to end", time.Now().Format("05.000"), i)
		require.NoError(t, syscall.Kill(old.PID, syscall.SIGTERM))
		poll.Until(t, "the old proxy has ended", func() error {
			if err := syscall.Kill(old.PID, 0); err == nil {
				return poll.ErrNotYet
			}
			return nil
		})
		if text := string(require.Value(os.ReadFile(old.Log))(t)); !strings.Contains(text, "stopped") || strings.Contains(text, "are cut") {
			t.Errorf("proxy %d did not end in order:\n%s", i, old.LogTail())
		}
	}
	// Every informer has moved and sees what follows.
	finish()
	for _, kind := range types {
		last := api.Request{Method: "POST", Path: paths[kind], Body: object(kind, "last")}
		written[kind]["last"] = []string{require.Value(writtenVersion(at, last))(t)}
	}
	moved, changes, sources := 0, 0, map[string]int{}
	for i, f := range all {
		if count := f.counted.Count(); len(count.Began) != begun[f] {
			t.Errorf("informer %d (%s) began anew: %v; all its requests:\n%s", i, f.kind, count.Began[begun[f]:], strings.Join(count.All, "\n"))
			continue
		}
		poll.Until(t, fmt.Sprintf("informer %d (%s) was told everything", i, f.kind), func() error {
			f.told.Mutex.Lock()
			defer f.told.Mutex.Unlock()
			for name, history := range written[f.kind] {
				if got := f.told.By[name]; !slices.Equal(got, history) {
					return fmt.Errorf("%s: it saw %v, and written was %v", name, got, history)
				}
			}
			if len(f.told.Lost) > 0 {
				return fmt.Errorf("not reported: %v", f.told.Lost)
			}
			return nil
		})
		count := f.counted.Count()
		if len(count.Began) != begun[f] {
			t.Errorf("informer %d (%s) began anew: %v; all its requests:\n%s", i, f.kind, count.Began[begun[f]:], strings.Join(count.All, "\n"))
		}
		moved += count.WentOn
		for source, n := range count.Sources {
			sources[source] += n
		}
	}
	for _, kind := range types {
		for _, history := range written[kind] {
			changes += len(history)
		}
	}
	if moved < len(all) {
		t.Errorf("%d informers continued only %d times", len(all), moved)
	}
	for _, p := range replicas {
		owned(p, 1)
	}
	for _, kind := range types {
		poll.Until(t, "upstream's lists are the proxies' own", func() error {
			lists := usage.Measure(t, c, kind).Minus(before[kind]).Lists
			if lists != own[kind] && lists != own[kind]+states[kind] {
				return fmt.Errorf("%d lists of %s were answered upstream, of which the proxies asked for %d", lists, kind, own[kind])
			}
			return nil
		})
	}
	t.Logf("%d informers saw each of %d changes, and continued %d times; answered from %v", len(all), changes, moved, sources)

	// This shows that a list would be counted.
	listed := usage.Measure(t, c, builtIn).Lists
	late := open(builtIn, true)
	poll.Until(t, "a late informer is in sync", func() error {
		if !late.informer.HasSynced() {
			return poll.ErrNotYet
		}
		return nil
	})
	if count := late.counted.Count(); len(count.Began) != 1 {
		t.Errorf("a starting informer was counted as %v", count.Began)
	}
	at.Must(t, api.Request{Path: paths[builtIn]})
	poll.Until(t, "a list at upstream is counted", func() error {
		if n := usage.Measure(t, c, builtIn).Lists; n <= listed {
			return poll.ErrNotYet
		}
		return nil
	})
}

// writtenVersion sends a write and returns the version in its answer.
func writtenVersion(at api.Target, r api.Request) (string, error) {
	a, err := at.Try(r)
	if err != nil {
		return "", err
	}
	if a.Status >= 300 {
		return "", fmt.Errorf("%v: %d %s", r, a.Status, a.Body)
	}
	var o api.Object
	err = json.Unmarshal([]byte(a.Body), &o)
	return o.Metadata.ResourceVersion, err
}
