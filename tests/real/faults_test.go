package real

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The servers of a stage: two that faults happen to, and one that no proxy
// knows. It takes the writes and tells the truth all the while.
const (
	first = iota
	second
	keeper
)

// stage is where the faults play.
type stage struct {
	cluster *cluster
	keeper  target
	widget  widget
}

// TestUpstreamFaults opens a hundred watches through watershed, writes at
// random, does to upstream what happens to API servers and networks, and asks
// of every watch that it saw exactly what happened, event by event. What
// happened is known from a watch at an API server that none of it befalls.
func TestUpstreamFaults(t *testing.T) {
	t.Parallel()
	if direct {
		t.Skip("watches at the API server itself do end")
	}
	c := must(startBareCluster("--apiservers", "3"))(t)
	t.Cleanup(c.stop)
	s := &stage{cluster: c, widget: newWidget(t), keeper: target{name: "keeper", url: c.Servers[keeper], ca: c.CA}}
	s.keeper.ok(t, request{method: "POST", path: definitions, body: s.widget.definition(false)})
	for i := range c.Servers {
		s.wake(t, i)
	}

	// First of all: what is held for right here is right by the API server.
	t.Run("none", s.withoutFaults)
	t.Run("connections cut", s.connectionsCut)
	t.Run("servers in turn", s.serversInTurn)
	t.Run("black hole", s.blackHole)
	t.Run("only server", s.onlyServer)
}

// Without a proxy and without a fault, watches at the API server see what is
// derived from the reference. This tests the test.
func (s *stage) withoutFaults(t *testing.T) {
	p := s.begin(t, target{name: "upstream", url: s.cluster.Servers[first], ca: s.cluster.CA}, nil)
	w := p.write(80)
	p.openAll()
	time.Sleep(3 * time.Second)
	p.finish(w)
}

// Connections are cut all the time. The API servers have all the history, so no
// client notices.
func (s *stage) connectionsCut(t *testing.T) {
	relays := []*relay{startRelay(t, s.cluster.Servers[first]), startRelay(t, s.cluster.Servers[second])}
	s.wake(t, first)
	s.wake(t, second)
	proxy := startProxy(t, s.cluster.ProxyKubeconfig, relays[0].url(), relays[1].url())
	p := s.begin(t, proxy.target, proxy)
	w := p.write(140)
	p.openAll()
	lists, resumes := proxy.lists(t), proxy.sum(t, "watershed_upstream_resumes_total", "")
	cuts, resumed := 0, 0
	began := time.Now()
	eventually(t, "enough is cut", func() error {
		time.Sleep(300*time.Millisecond + time.Duration(p.chance.IntN(700))*time.Millisecond)
		for _, r := range relays {
			cuts += r.cut(p.chance)
		}
		resumed = proxy.sum(t, "watershed_upstream_resumes_total", "") - resumes
		if cuts < 10 || resumed < 10 || time.Since(began) < 6*time.Second {
			return fmt.Errorf("%d connections were cut, upstream watches resumed %d times", cuts, resumed)
		}
		return nil
	})
	p.finish(w)
	t.Logf("%d connections were cut, upstream watches resumed %d times", cuts, resumed)
	if after := proxy.lists(t); !maps.Equal(lists, after) {
		t.Errorf("upstream was listed again: %v, and before %v", after, lists)
	}
}

// wake has a server take up the custom type. It does so when first asked, and
// then knows the type's history only from there on.
func (s *stage) wake(t *testing.T, server int) {
	t.Helper()
	s.widget.awaitServed(t, target{name: fmt.Sprint("by server ", server), url: s.cluster.Servers[server], ca: s.cluster.CA})
}

// One of two API servers is killed and comes back, then the other. The one that
// stays has the history, so no client notices.
func (s *stage) serversInTurn(t *testing.T) {
	proxy := startProxy(t, s.cluster.ProxyKubeconfig, s.cluster.Servers[first], s.cluster.Servers[second])
	p := s.begin(t, proxy.target, proxy)
	s.wake(t, first)
	s.wake(t, second)
	w := p.write(60)
	p.openAll()
	lists := proxy.lists(t)
	for _, server := range []int{first, second, first, second} {
		check(t, s.cluster.tell(fmt.Sprint("kill ", server)))
		time.Sleep(time.Second)
		check(t, s.cluster.tell(fmt.Sprint("start ", server)))
		s.wake(t, server)
		// The new one knows the history only from its start on. Something has
		// to happen to every type before the other may go.
		p.haveSeen(must(s.keeper.revision())(t))
	}
	p.finish(w)
	if after := proxy.lists(t); !maps.Equal(lists, after) {
		t.Errorf("upstream was listed again: %v, and before %v", after, lists)
	}
}

// The connections to upstream stay open, but nothing comes through them: TCP
// would notice in a quarter of an hour.
func (s *stage) blackHole(t *testing.T) {
	r := startRelay(t, s.cluster.Servers[first])
	proxy := startProxy(t, s.cluster.ProxyKubeconfig, r.url())
	p := s.begin(t, proxy.target, proxy)
	w := p.write(60)
	p.openAll()
	lists := proxy.lists(t)
	time.Sleep(time.Second)
	stuck, at := r.swallow(), time.Now()
	time.Sleep(2 * time.Second)
	p.finish(w)
	t.Logf("%d connections were black holes, and all was caught up %v later", stuck, time.Since(at).Round(time.Second))
	if stuck == 0 {
		t.Error("there was no connection")
	}
	if after := proxy.lists(t); !maps.Equal(lists, after) {
		t.Errorf("upstream was listed again: %v, and before %v", after, lists)
	}
}

// The only API server is killed and comes back, and meanwhile things changed.
// What happened is lost to the proxy, and it says so: clients are told 410 and
// list again, from the proxy, which itself lists once.
func (s *stage) onlyServer(t *testing.T) {
	proxy := startProxy(t, s.cluster.ProxyKubeconfig, s.cluster.Servers[first])
	p := s.begin(t, proxy.target, proxy)
	w := p.write(80)
	p.relists = true
	p.openAll()
	lists := proxy.lists(t)
	time.Sleep(2 * time.Second)
	check(t, s.cluster.tell(fmt.Sprint("kill ", first)))
	for _, w := range p.watchers {
		w.mutex.Lock()
		w.forwarded, w.forwardedLists = 0, 0
		w.mutex.Unlock()
	}
	time.Sleep(1500 * time.Millisecond)
	check(t, s.cluster.tell(fmt.Sprint("start ", first)))
	time.Sleep(3 * time.Second)
	p.finish(w)

	// While the API server is away for longer than the proxy knows whose a token
	// is, and while it comes back and does not know the proxy's rights yet, what
	// clients ask is passed on. It is upstream then that tells 410, even if memory
	// has not lost anything yet; and its list may be followed by the proxy's 410.
	expired := 0
	passedOn := map[string]load{}
	for _, w := range p.watchers {
		all, own := w.expired()
		expired += all
		if own > 1 {
			t.Errorf("%v was told 410 %d times, %d of them by the proxy", w, all, own)
		}
		lists, watches := w.passedOn()
		l := passedOn[w.view.kind.name]
		passedOn[w.view.kind.name] = load{lists: l.lists + lists, watched: l.watched + watches}
		there := &watcher{view: w.view, at: s.at(s.keeper)}
		_, state, err := there.readList(must(there.get(t.Context(), ""))(t))
		check(t, err)
		want := map[string]uint64{}
		for _, o := range state {
			want[o.key] = o.version
		}
		if got := w.final(); !maps.Equal(got, want) {
			t.Errorf("%v came to %v, upstream to %v", w, got, want)
		}
	}
	t.Logf("%d of %d watches were told 410; passed on: %+v", expired, len(p.watchers), passedOn)

	// One list for each type and representation, however many clients.
	cost := map[string]int{}
	for name, n := range proxy.lists(t) {
		cost[name] = n - lists[name]
	}
	t.Logf("the proxy listed again: %v", cost)
	for name, n := range map[string]int{"configmaps": 2, "pods": 2, "widgets": 1} {
		if cost[name] > n {
			t.Errorf("the proxy listed %s %d times", name, cost[name])
		}
		// The new server counts from zero. It follows a type or two itself, and
		// answers what is passed on; such a watch may be open to this day.
		eventually(t, "what "+name+" cost the new server", func() error {
			more := passedOn[name]
			if l := measure(t, s.cluster, name); l.watching > n+2 || l.lists > n+2+more.lists {
				return fmt.Errorf("it is %+v, %+v of it passed on", l, more)
			}
			return nil
		})
	}
}

// play is one scenario on its way.
type play struct {
	t        *testing.T
	stage    *stage
	to       target
	proxy    *ownProxy
	spaces   []string
	truths   map[string]*truth
	kinds    []kind
	watchers []*watcher
	relists  bool
	chance   *rand.Rand
	ctx      context.Context
	running  sync.WaitGroup
}

// begin makes namespaces of its own for a scenario, and follows the truth.
func (s *stage) begin(t *testing.T, to target, proxy *ownProxy) *play {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("REAL_SEED"); text != "" {
		must(fmt.Sscan(text, &seed))(t)
	}
	t.Logf("REAL_SEED=%d", seed)
	// Cleanup, not defer: what is waited for below ends with the context.
	ctx, cancel := context.WithCancel(context.Background())
	p := &play{t: t, stage: s, to: to, proxy: proxy, ctx: ctx, chance: rand.New(rand.NewPCG(seed, 0)),
		truths: map[string]*truth{}, kinds: []kind{ofConfigMaps, ofPods, kindOf(s.widget)}}
	t.Cleanup(func() {
		cancel()
		p.running.Wait()
	})
	// In the order of lists, "-b" comes before the name itself.
	for _, suffix := range []string{"", "-b", "0"} {
		name := slug(t) + suffix
		s.keeper.ok(t, request{method: "POST", path: "/api/v1/namespaces", body: fmt.Sprintf(`{"metadata":{"name":"%s"}}`, name)})
		p.spaces = append(p.spaces, name)
	}
	for _, k := range p.kinds {
		p.truths[k.name] = learn(t, ctx, s.at(s.keeper), k)
	}
	return p
}

// at is a way to a target by connections of its own.
func (s *stage) at(to target) watchPlace {
	transport := &http.Transport{TLSClientConfig: to.tls(), ForceAttemptHTTP2: true}
	return watchPlace{url: to.url, token: s.cluster.AdminToken, client: &http.Client{Transport: transport}}
}

// nodes are where pods are. There is nobody there to run them.
const nodes = 5

// openAll opens a hundred watches, ten to a connection.
func (p *play) openAll() {
	p.t.Helper()
	widgets := p.kinds[2]
	a, b, c := p.spaces[0], p.spaces[1], p.spaces[2]
	cast := []struct {
		view                          view
		fromList, fromState, comeBack int
	}{
		{view{kind: ofConfigMaps}, 4, 4, 2},
		{view{kind: ofConfigMaps, protobuf: true}, 2, 2, 0},
		{view{kind: ofConfigMaps, namespace: a}, 4, 3, 2},
		{view{kind: ofConfigMaps, namespace: b, protobuf: true}, 2, 1, 0},
		{view{kind: ofConfigMaps, labels: "tier=gold"}, 4, 3, 2},
		{view{kind: ofConfigMaps, namespace: b, labels: "tier in (gold,iron)"}, 4, 2, 0},
		{view{kind: ofConfigMaps, labels: "tier!=gold"}, 2, 2, 0},
		{view{kind: ofConfigMaps, namespace: c, labels: "!tier"}, 2, 2, 0},
		{view{kind: ofConfigMaps, labels: "tier=iron", protobuf: true}, 2, 1, 0},
		{view{kind: ofConfigMaps, namespace: a, fields: "metadata.name=w0-1"}, 3, 2, 1},
		{view{kind: ofConfigMaps, fields: "metadata.name=w1-2"}, 2, 1, 0},
		{view{kind: ofPods}, 3, 2, 1},
		{view{kind: ofPods, fields: "spec.nodeName=node-0"}, 1, 1, 0},
		{view{kind: ofPods, fields: "spec.nodeName=node-1"}, 1, 1, 0},
		{view{kind: ofPods, fields: "spec.nodeName=node-2"}, 1, 1, 0},
		{view{kind: ofPods, fields: "spec.nodeName=node-3"}, 1, 1, 0},
		{view{kind: ofPods, fields: "spec.nodeName=node-4"}, 1, 1, 0},
		{view{kind: ofPods, fields: "spec.nodeName=node-0", protobuf: true}, 1, 1, 0},
		{view{kind: ofPods, namespace: b, labels: "tier=gold"}, 3, 1, 0},
		{view{kind: ofPods, labels: "tier=gold", fields: "spec.nodeName=node-1"}, 2, 0, 0},
		{view{kind: widgets}, 2, 2, 1},
		{view{kind: widgets, labels: "tier=gold"}, 2, 1, 0},
		{view{kind: widgets, fields: "spec.size=2"}, 2, 1, 2},
		{view{kind: widgets, namespace: a}, 1, 1, 0},
	}
	for _, part := range cast {
		for i, n := range []int{fromList: part.fromList, fromState: part.fromState, comesBack: part.comeBack} {
			for range n {
				p.watchers = append(p.watchers, &watcher{view: part.view, habit: habit(i), relists: p.relists})
			}
		}
	}
	if len(p.watchers) != 100 {
		p.t.Fatalf("there are %d watches", len(p.watchers))
	}
	p.chance.Shuffle(len(p.watchers), func(i, j int) { p.watchers[i], p.watchers[j] = p.watchers[j], p.watchers[i] })
	var at watchPlace
	for i, w := range p.watchers {
		if i%10 == 0 {
			at = p.stage.at(p.to)
			p.t.Cleanup(at.client.CloseIdleConnections)
		}
		w.at = at
		p.running.Go(func() { w.run(p.ctx) })
	}
	eventually(p.t, "all watches are open", func() error {
		for _, w := range p.watchers {
			if !w.open.Load() {
				w.mutex.Lock()
				defer w.mutex.Unlock()
				return fmt.Errorf("%v is not: %v", w, w.fault)
			}
		}
		return nil
	})
}

// haveSeen waits until each type, in each representation, brought somebody what
// happened after a version: so far the proxy has come with it.
func (p *play) haveSeen(version uint64) {
	p.t.Helper()
	type form struct {
		kind     string
		protobuf bool
	}
	eventually(p.t, fmt.Sprint("watches have seen what happened after ", version), func() error {
		seen := map[form]uint64{}
		for _, w := range p.watchers {
			at := form{w.view.kind.name, w.view.protobuf}
			w.mutex.Lock()
			for _, s := range w.stretches {
				if n := len(s.events); n > 0 {
					seen[at] = max(seen[at], s.events[n-1].version)
				}
			}
			if w.fault != nil {
				p.t.Errorf("%v: %v", w, w.fault)
			}
			w.mutex.Unlock()
		}
		if p.t.Failed() {
			p.t.FailNow()
		}
		for at, newest := range seen {
			if newest <= version {
				return fmt.Errorf("those of %+v have come to %d", at, newest)
			}
		}
		return nil
	})
}

// writing is the random writers at work.
type writing struct {
	stop   chan struct{}
	done   sync.WaitGroup
	writes atomic.Int64
	failed atomic.Pointer[error]
}

const writers = 3

// write begins to write, so many times a second, at the server that stays. Each
// writer has names of its own, and so knows what is there.
func (p *play) write(rate int) *writing {
	w := &writing{stop: make(chan struct{})}
	for i := range writers {
		chance := rand.New(rand.NewPCG(p.chance.Uint64(), uint64(i)))
		w.done.Go(func() {
			there := map[string]bool{}
			tick := time.NewTicker(time.Second * writers / time.Duration(rate))
			defer tick.Stop()
			for n := 0; ; n++ {
				if err := p.writeOne(chance, i, n, there); err != nil {
					w.failed.Store(&err)
					return
				}
				w.writes.Add(1)
				select {
				case <-w.stop:
					return
				case <-tick.C:
				}
			}
		})
	}
	return w
}

func (p *play) writeOne(chance *rand.Rand, writer, n int, there map[string]bool) error {
	k := p.kinds[[]int{0, 0, 0, 0, 0, 1, 1, 1, 2, 2}[chance.IntN(10)]]
	name := fmt.Sprintf("w%d-%d", writer, chance.IntN(8))
	collection := k.path(p.spaces[chance.IntN(len(p.spaces))])
	path := collection + "/" + name

	type object map[string]any
	tier := []any{"gold", "iron", "lead", nil}[chance.IntN(4)]
	meta := object{"labels": object{"tier": tier}, "annotations": object{"n": fmt.Sprint(n)}}
	body := object{"metadata": meta}
	switch k.name {
	case "configmaps":
		body["data"] = object{"pad": strings.Repeat("<é>", chance.IntN(60))}
	case "widgets":
		body["spec"] = object{"size": chance.IntN(4)}
	}
	r := request{method: "PATCH", path: path, contentType: "application/merge-patch+json"}
	switch {
	case !there[path]:
		r = request{method: "POST", path: collection}
		if meta["name"] = name; tier == nil {
			delete(meta, "labels")
		}
		switch k.name {
		case "pods":
			made := pod(name, fmt.Sprint("node-", chance.IntN(nodes)))
			body["spec"] = made.Spec
		case "widgets":
			body["apiVersion"], body["kind"] = p.stage.widget.group+"/v1", "Widget"
		}
	case chance.IntN(5) == 0:
		r = request{method: "DELETE", path: path}
	}
	if r.method != "DELETE" {
		r.body = asJSON(body)
	}
	there[path] = r.method != "DELETE"
	a, err := p.stage.keeper.try(r)
	if err == nil && a.status >= 300 {
		err = fmt.Errorf("%s: %d %s", r, a.status, a.body)
	}
	return err
}

// finish ends the writing, waits until every watch has seen all of it, and
// fails the test for those that do not or that saw anything else.
func (p *play) finish(w *writing) {
	t := p.t
	t.Helper()
	close(w.stop)
	w.done.Wait()
	if err := w.failed.Load(); err != nil {
		t.Fatalf("writing: %v", *err)
	}
	// A last object of each type tells that the reference is through.
	for _, k := range p.kinds {
		body := `{"metadata":{"name":"last"}}`
		switch k.name {
		case "pods":
			body = asJSON(pod("last", "node-0"))
		case "widgets":
			body = p.stage.widget.object("last", 2)
		}
		var last parsedObject
		made := p.stage.keeper.ok(t, request{method: "POST", path: k.path(p.spaces[0]), body: body})
		check(t, json.Unmarshal([]byte(made.body), &last))
		p.truths[k.name].has(t, last.version())
	}
	total := 0
	for _, tr := range p.truths {
		total += len(tr.known())
	}

	var problems []error
	for deadline := time.Now().Add(2 * patience); ; time.Sleep(250 * time.Millisecond) {
		if problems = p.problems(); len(problems) == 0 || time.Now().After(deadline) {
			break
		}
		if errors.Is(problems[0], errFault) {
			// It does not get better.
			break
		}
	}
	if len(problems) == 0 {
		// What comes too much may come late.
		time.Sleep(500 * time.Millisecond)
		problems = p.problems()
	}
	events, retried, forwarded := 0, 0, 0
	for _, w := range p.watchers {
		w.mutex.Lock()
		for _, s := range w.stretches {
			events += len(s.events)
		}
		retried += w.retried
		forwarded += w.forwarded
		w.mutex.Unlock()
	}
	t.Logf("%d writes were %d events, and %d in all watches; %d requests had to be sent again, %d watches were forwarded",
		w.writes.Load(), total, events, retried, forwarded)
	if len(problems) == 0 {
		return
	}
	t.Errorf("%d of %d watches are not what they had to be", len(problems), len(p.watchers))
	for _, err := range problems[:min(len(problems), 8)] {
		t.Error(err)
	}
	if p.proxy != nil {
		t.Logf("the end of the proxy's log:\n%s", p.proxy.tail())
	}
	t.FailNow()
}

// problems are the watches that are not what they had to be, first those that
// are over: they say most.
func (p *play) problems() []error {
	var over, others []error
	for _, w := range p.watchers {
		switch err := w.verify(p.truths[w.view.kind.name]); {
		case errors.Is(err, errFault):
			over = append(over, fmt.Errorf("%v: %w", w, err))
		case err != nil:
			others = append(others, fmt.Errorf("%v: %w", w, err))
		}
	}
	return append(over, others...)
}

// lists is how often the proxy listed the types that are watched here.
func (p *ownProxy) lists(t *testing.T) map[string]int {
	t.Helper()
	all := map[string]int{}
	for _, resource := range []string{"configmaps", "pods", "widgets"} {
		all[resource] = p.sum(t, "watershed_upstream_lists_total", resource)
	}
	return all
}
