package real

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
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

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// balancer passes each new connection on to the next of its servers, as a
// Service does: one that is taken out gets no new ones, and keeps those it has.
type balancer struct {
	listener net.Listener
	mutex    sync.Mutex
	servers  []string
	next     int
	passed   map[string]int
	open     map[net.Conn]struct{}
}

func startBalancer(t *testing.T) *balancer {
	t.Helper()
	b := &balancer{listener: must(net.Listen("tcp", "127.0.0.1:0"))(t), passed: map[string]int{}, open: map[net.Conn]struct{}{}}
	go func() {
		for {
			client, err := b.listener.Accept()
			if err != nil {
				return
			}
			go b.pass(client)
		}
	}()
	t.Cleanup(func() {
		b.listener.Close()
		b.mutex.Lock()
		defer b.mutex.Unlock()
		for c := range b.open {
			c.Close()
		}
	})
	return b
}

func (b *balancer) url() string { return "https://" + b.listener.Addr().String() }

func (b *balancer) set(servers ...*ownProxy) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.servers = nil
	for _, server := range servers {
		b.servers = append(b.servers, strings.TrimPrefix(server.url, "https://"))
	}
}

func (b *balancer) pass(client net.Conn) {
	b.mutex.Lock()
	to := b.servers[b.next%len(b.servers)]
	b.next++
	b.passed[to]++
	b.mutex.Unlock()
	server, err := net.Dial("tcp", to)
	if err != nil {
		client.(*net.TCPConn).SetLinger(0)
		client.Close()
		return
	}
	b.mutex.Lock()
	b.open[client], b.open[server] = struct{}{}, struct{}{}
	b.mutex.Unlock()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		both.Go(func() {
			io.Copy(way[0], way[1])
			way[0].(*net.TCPConn).CloseWrite()
		})
	}
	both.Wait()
	client.Close()
	server.Close()
	b.mutex.Lock()
	delete(b.open, client)
	delete(b.open, server)
	b.mutex.Unlock()
}

// beginnings counts the requests of an informer that begin at nothing, and
// those that go on from a version.
type beginnings struct {
	next    http.RoundTripper
	mutex   sync.Mutex
	began   []string
	all     []string
	wentOn  int
	sources map[string]int
}

func (b *beginnings) RoundTrip(r *http.Request) (*http.Response, error) {
	query := r.URL.Query()
	version := query.Get("resourceVersion")
	goesOn := query.Get("watch") != "" && query.Get("sendInitialEvents") == "" && version != "" && version != "0"
	asked := time.Now()
	response, err := b.next.RoundTrip(r)
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if goesOn {
		b.wentOn++
	} else {
		b.began = append(b.began, r.URL.RequestURI())
	}
	source := fmt.Sprint(err)
	if err == nil {
		source = response.Header.Get("X-Watershed-Source")
		b.sources[source]++
	}
	b.all = append(b.all, fmt.Sprintf("%v %s: %s", asked.Format("05.000"), query.Get("resourceVersion"), source))
	return response, err
}

// count is how many requests began at nothing and how many went on.
func (b *beginnings) count() (began []string, wentOn int) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return slices.Clone(b.began), b.wentOn
}

// tale is what an informer told of each object: its versions in order, and
// that it was deleted.
type tale struct {
	mutex sync.Mutex
	by    map[string][]string
	// lost is what was found out by comparing, not told.
	lost []string
}

func (s *tale) note(object any, what string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		s.lost = append(s.lost, unknown.Key)
		return
	}
	access, err := meta.Accessor(object)
	if err != nil {
		s.lost = append(s.lost, err.Error())
		return
	}
	if what == "" {
		what = access.GetResourceVersion()
	}
	s.by[access.GetName()] = append(s.by[access.GetName()], what)
}

const deleted = "deleted"

// TestReplicas: three proxies behind a balancer that are replaced one after the
// other, under writes. An informer that moves from one to another goes on with
// the version it had: it is told each change once, and does not list again.
func TestReplicas(t *testing.T) {
	if direct {
		t.Skip("it is about proxies")
	}
	c := must(startBareCluster())(t)
	t.Cleanup(c.stop)
	at := c.upstream()
	w := newWidget(t)
	at.ok(t, request{method: "POST", path: definitions, body: w.definition(true)})
	w.awaitServed(t, at)

	// All show one certificate, as the pods of a Deployment do.
	first := startProxy(t, c.ProxyKubeconfig)
	pair := filepath.Dir(first.ca)
	start := func() *ownProxy {
		t.Helper()
		p := runProxy(t, c.ProxyKubeconfig, "--config", everythingKept, "--drain-seconds", "10",
			"--tls-cert", filepath.Join(pair, "tls.crt"), "--tls-key", filepath.Join(pair, "tls.key"))
		p.ca = first.ca
		return p
	}
	replicas := []*ownProxy{first, start(), start()}
	balance := startBalancer(t)
	balance.set(replicas...)
	front := target{name: "balanced", url: balance.url(), ca: first.ca}

	const ns, builtIn = "default", "podtemplates"
	types := []string{builtIn, w.plural}
	gvr := schema.GroupVersionResource{Group: w.group, Version: "v1", Resource: w.plural}
	paths := map[string]string{builtIn: "/api/v1/namespaces/" + ns + "/" + builtIn, w.plural: w.path(ns, "")}
	object := func(kind, name string) string {
		if kind == builtIn {
			return fmt.Sprintf(`{"metadata":{"name":"%s","labels":{"even":"yes"}},"template":{"spec":{"containers":[{"name":"c","image":"example.test/c:1"}]}}}`, name)
		}
		return fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Widget","metadata":{"name":"%s","labels":{"even":"yes"}},"spec":{"size":1}}`, w.group, name)
	}
	versionIn := func(a answer) string {
		var o struct {
			Metadata struct{ ResourceVersion string }
		}
		check(t, json.Unmarshal([]byte(a.body), &o))
		return o.Metadata.ResourceVersion
	}
	for _, kind := range types {
		for i := range 30 {
			at.ok(t, request{method: "POST", path: paths[kind], body: object(kind, fmt.Sprint("there-", i))})
		}
	}

	// Informers as they are by default, each with a connection of its own.
	type follower struct {
		kind     string
		informer cache.SharedIndexInformer
		counted  *beginnings
		told     *tale
	}
	stop := make(chan struct{})
	defer close(stop)
	open := func(kind string, protobuf bool) *follower {
		f := &follower{kind: kind, counted: &beginnings{sources: map[string]int{}}, told: &tale{by: map[string][]string{}}}
		config := &rest.Config{Host: front.url, BearerToken: c.AdminToken, TLSClientConfig: rest.TLSClientConfig{CAFile: front.ca}}
		// What keeps client-go from sharing connections between configurations.
		config.Dial = (&net.Dialer{Timeout: patience}).DialContext
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			f.counted.next = next
			return f.counted
		})
		if protobuf {
			config.ContentType, config.AcceptContentTypes = protobufType, protobufType
		}
		if kind == builtIn {
			f.informer = informers.NewSharedInformerFactory(must(kubernetes.NewForConfig(config))(t), 0).Core().V1().PodTemplates().Informer()
		} else {
			f.informer = dynamicinformer.NewDynamicSharedInformerFactory(must(dynamic.NewForConfig(config))(t), 0).ForResource(gvr).Informer()
		}
		must(f.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { f.told.note(o, "") },
			UpdateFunc: func(_, o any) { f.told.note(o, "") },
			DeleteFunc: func(o any) { f.told.note(o, deleted) },
		}))(t)
		go f.informer.Run(stop)
		return f
	}
	var all []*follower
	for range 4 {
		all = append(all, open(builtIn, true), open(builtIn, false), open(w.plural, false))
	}
	for _, f := range all {
		eventually(t, "an informer on "+f.kind+" is in sync", func() error {
			if !f.informer.HasSynced() {
				return errNotYet
			}
			return nil
		})
	}
	balance.mutex.Lock()
	if len(balance.passed) != 3 {
		t.Errorf("connections went to %v, not to three replicas", balance.passed)
	}
	balance.mutex.Unlock()
	begun := map[*follower]int{}
	for _, f := range all {
		began, _ := f.counted.count()
		begun[f] = len(began)
	}

	// What was written of each object while proxies came and went.
	written := map[string]map[string][]string{builtIn: {}, w.plural: {}}
	ctx, cancel := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	for _, kind := range types {
		writing.Go(func() {
			chance, history := rand.New(rand.NewPCG(3, uint64(len(kind)))), written[kind]
			there := []string{}
			for i := 0; ctx.Err() == nil; i++ {
				switch n := chance.IntN(6); {
				case len(there) < 5 || n == 0:
					name := fmt.Sprint("made-", i)
					history[name] = []string{versionIn(at.ok(t, request{method: "POST", path: paths[kind], body: object(kind, name)}))}
					there = append(there, name)
				case n == 1 && len(there) > 10:
					at.ok(t, request{method: "DELETE", path: paths[kind] + "/" + there[0]})
					history[there[0]] = append(history[there[0]], deleted)
					there = there[1:]
				default:
					name := there[chance.IntN(len(there))]
					body := fmt.Sprintf(`{"metadata":{"annotations":{"n":"%d"}}}`, i)
					changed := at.ok(t, request{method: "PATCH", path: paths[kind] + "/" + name, contentType: mergePatch, body: body})
					history[name] = append(history[name], versionIn(changed))
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	finish := sync.OnceFunc(func() {
		cancel()
		writing.Wait()
	})
	defer finish()

	// A token of one replica is good at the others, and says the same there.
	page := first.ok(t, request{path: paths[builtIn] + "?limit=7"})
	var list struct{ Metadata struct{ Continue string } }
	check(t, json.Unmarshal([]byte(page.body), &list))
	rest := request{path: paths[builtIn] + "?limit=7&continue=" + url.QueryEscape(list.Metadata.Continue)}
	want := at.ok(t, rest)
	for i, replica := range replicas {
		if got := replica.ok(t, rest); got.body != want.body {
			t.Errorf("replica %d has another second page:\n%s\nupstream:\n%s", i, got.body, want.body)
		}
	}

	before := map[string]load{}
	own := map[string]int{}
	// owned is what the proxies listed at upstream for themselves: once for each
	// scope, and what the fence asks for. To be called before a proxy ends, and for
	// those that are left at the end.
	owned := func(p *ownProxy, sign int) {
		for line := range strings.Lines(must(p.metrics())(t)) {
			name, labels, _ := strings.Cut(line, "{")
			for _, kind := range types {
				ours := name == "watershed_upstream_lists_total" || name == "watershed_fence_upstream_requests_total" && !strings.Contains(labels, `request="watch"`)
				if ours && strings.Contains(labels, fmt.Sprintf(`resource="%s"`, kind)) {
					own[kind] += sign * value(line)
				}
			}
		}
	}
	for _, kind := range types {
		before[kind] = measure(t, c, kind)
	}
	for _, p := range replicas {
		owned(p, -1)
	}
	for i, old := range replicas {
		fresh := start()
		replicas[i] = fresh
		balance.set(replicas...)
		owned(old, 1)
		t.Logf("%s: proxy %d is to end", time.Now().Format("05.000"), i)
		check(t, syscall.Kill(old.pid, syscall.SIGTERM))
		eventually(t, "the old proxy has ended", func() error {
			if err := syscall.Kill(old.pid, 0); err == nil {
				return errNotYet
			}
			return nil
		})
		if text := string(must(os.ReadFile(old.log))(t)); !strings.Contains(text, "stopped") || strings.Contains(text, "are cut") {
			t.Errorf("proxy %d did not end in order:\n%s", i, old.tail())
		}
	}
	// Everybody has moved, and is told of what comes.
	finish()
	for _, kind := range types {
		written[kind]["last"] = []string{versionIn(at.ok(t, request{method: "POST", path: paths[kind], body: object(kind, "last")}))}
	}
	moved, changes, sources := 0, 0, map[string]int{}
	for i, f := range all {
		if began, _ := f.counted.count(); len(began) != begun[f] {
			t.Errorf("informer %d (%s) began anew: %v; all its requests:\n%s", i, f.kind, began[begun[f]:], strings.Join(f.counted.all, "\n"))
			continue
		}
		eventually(t, fmt.Sprintf("informer %d (%s) was told everything", i, f.kind), func() error {
			f.told.mutex.Lock()
			defer f.told.mutex.Unlock()
			for name, history := range written[f.kind] {
				if got := f.told.by[name]; !slices.Equal(got, history) {
					return fmt.Errorf("of %s it was told %v, and written was %v", name, got, history)
				}
			}
			if len(f.told.lost) > 0 {
				return fmt.Errorf("not told: %v", f.told.lost)
			}
			return nil
		})
		began, wentOn := f.counted.count()
		if len(began) != begun[f] {
			t.Errorf("informer %d (%s) began anew: %v; all its requests:\n%s", i, f.kind, began[begun[f]:], strings.Join(f.counted.all, "\n"))
		}
		moved += wentOn
		for source, n := range f.counted.sources {
			sources[source] += n
		}
	}
	for _, kind := range types {
		for _, history := range written[kind] {
			changes += len(history)
		}
	}
	if moved < len(all) {
		t.Errorf("%d informers went on only %d times", len(all), moved)
	}
	for _, p := range replicas {
		owned(p, 1)
	}
	for _, kind := range types {
		eventually(t, "upstream's lists are the proxies' own", func() error {
			lists := measure(t, c, kind).minus(before[kind]).lists
			if lists != own[kind] {
				return fmt.Errorf("%d lists of %s were answered upstream, of which the proxies asked for %d", lists, kind, own[kind])
			}
			return nil
		})
	}
	t.Logf("%d informers were told each of %d changes, and went on %d times; answered from %v", len(all), changes, moved, sources)

	// That a list would be seen here.
	listed := measure(t, c, builtIn).lists
	late := open(builtIn, true)
	eventually(t, "a late informer is in sync", func() error {
		if !late.informer.HasSynced() {
			return errNotYet
		}
		return nil
	})
	if began, _ := late.counted.count(); len(began) != 1 {
		t.Errorf("an informer that begins was counted as %v", began)
	}
	at.ok(t, request{path: paths[builtIn]})
	eventually(t, "a list at upstream is counted", func() error {
		if n := measure(t, c, builtIn).lists; n <= listed {
			return errNotYet
		}
		return nil
	})
}
