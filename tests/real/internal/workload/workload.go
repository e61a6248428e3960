// Package workload opens a hundred watches, writes at random meanwhile, and checks what each
// watch saw.
package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/random"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
	"watershed.test/real/internal/watches"
)

// The servers of a stage. Faults happen to the first two. No proxy knows the third, which takes
// the writes and tells the reference.
const (
	FirstServer = iota
	SecondServer
	StableServer
)

// Stage is a cluster for scenarios with faults.
type Stage struct {
	Cluster *testbed.Cluster
	Stable  api.Target
	Widget  objects.Widget
}

// AwaitCustomType makes a server take up the custom type. It does so when first asked, and
// knows the type's history only from there on.
func (s *Stage) AwaitCustomType(t *testing.T, server int) {
	t.Helper()
	s.Widget.AwaitServed(t, api.Target{Name: fmt.Sprint("by server ", server), URL: s.Cluster.Servers[server], CA: s.Cluster.CA, Tokens: s.Cluster.Users})
}

// Scenario is one scenario in progress.
type Scenario struct {
	T        *testing.T
	Stage    *Stage
	to       api.Target
	proxy    *testbed.Proxy
	Spaces   []string
	truths   map[string]*watches.Reference
	Kinds    []watches.Kind
	Watchers []*watches.Watcher
	Relists  bool
	Chance   *rand.Rand
	ctx      context.Context
	running  sync.WaitGroup
}

// Begin creates namespaces for a scenario and starts its references.
func (s *Stage) Begin(t *testing.T, to api.Target, proxy *testbed.Proxy) *Scenario {
	t.Helper()
	seed := random.Seed(t)
	// A deferred cancel would come too late: the clean-up below waits for what ends with the
	// context.
	ctx, cancel := context.WithCancel(context.Background())
	p := &Scenario{T: t, Stage: s, to: to, proxy: proxy, ctx: ctx, Chance: random.Stream(seed, 0),
		truths: map[string]*watches.Reference{}, Kinds: []watches.Kind{watches.ConfigMaps, watches.Pods, watches.KindOf(s.Widget)}}
	t.Cleanup(func() {
		cancel()
		p.running.Wait()
	})
	// In the order of lists, "-b" comes before the name itself.
	for _, suffix := range []string{"", "-b", "0"} {
		name := testbed.Slug(t) + suffix
		s.Stable.Must(t, api.Request{Method: "POST", Path: "/api/v1/namespaces", Body: fmt.Sprintf(`{"metadata":{"name":"%s"}}`, name)})
		p.Spaces = append(p.Spaces, name)
	}
	for _, k := range p.Kinds {
		p.truths[k.Name] = watches.Follow(t, ctx, s.At(s.Stable), k)
	}
	return p
}

// At returns an endpoint with connections of its own.
func (s *Stage) At(to api.Target) watches.Endpoint {
	transport := &http.Transport{TLSClientConfig: to.TLS(), ForceAttemptHTTP2: true}
	return watches.Endpoint{URL: to.URL, Token: s.Cluster.AdminToken, Client: &http.Client{Transport: transport}}
}

// nodeCount is the number of nodes that pods name. Nothing runs there.
const nodeCount = 5

// OpenWatches opens a hundred watches, ten on each connection.
func (p *Scenario) OpenWatches() {
	p.T.Helper()
	widgets := p.Kinds[2]
	a, b, c := p.Spaces[0], p.Spaces[1], p.Spaces[2]
	cast := []struct {
		view                          watches.View
		fromList, fromState, comeBack int
	}{
		{watches.View{Kind: watches.ConfigMaps}, 4, 4, 2},
		{watches.View{Kind: watches.ConfigMaps, Protobuf: true}, 2, 2, 0},
		{watches.View{Kind: watches.ConfigMaps, Namespace: a}, 4, 3, 2},
		{watches.View{Kind: watches.ConfigMaps, Namespace: b, Protobuf: true}, 2, 1, 0},
		{watches.View{Kind: watches.ConfigMaps, Labels: "tier=gold"}, 4, 3, 2},
		{watches.View{Kind: watches.ConfigMaps, Namespace: b, Labels: "tier in (gold,iron)"}, 4, 2, 0},
		{watches.View{Kind: watches.ConfigMaps, Labels: "tier!=gold"}, 2, 2, 0},
		{watches.View{Kind: watches.ConfigMaps, Namespace: c, Labels: "!tier"}, 2, 2, 0},
		{watches.View{Kind: watches.ConfigMaps, Labels: "tier=iron", Protobuf: true}, 2, 1, 0},
		{watches.View{Kind: watches.ConfigMaps, Namespace: a, Fields: "metadata.name=w0-1"}, 3, 2, 1},
		{watches.View{Kind: watches.ConfigMaps, Fields: "metadata.name=w1-2"}, 2, 1, 0},
		{watches.View{Kind: watches.Pods}, 3, 2, 1},
		{watches.View{Kind: watches.Pods, Fields: "spec.nodeName=node-0"}, 1, 1, 0},
		{watches.View{Kind: watches.Pods, Fields: "spec.nodeName=node-1"}, 1, 1, 0},
		{watches.View{Kind: watches.Pods, Fields: "spec.nodeName=node-2"}, 1, 1, 0},
		{watches.View{Kind: watches.Pods, Fields: "spec.nodeName=node-3"}, 1, 1, 0},
		{watches.View{Kind: watches.Pods, Fields: "spec.nodeName=node-4"}, 1, 1, 0},
		{watches.View{Kind: watches.Pods, Fields: "spec.nodeName=node-0", Protobuf: true}, 1, 1, 0},
		{watches.View{Kind: watches.Pods, Namespace: b, Labels: "tier=gold"}, 3, 1, 0},
		{watches.View{Kind: watches.Pods, Labels: "tier=gold", Fields: "spec.nodeName=node-1"}, 2, 0, 0},
		{watches.View{Kind: widgets}, 2, 2, 1},
		{watches.View{Kind: widgets, Labels: "tier=gold"}, 2, 1, 0},
		{watches.View{Kind: widgets, Fields: "spec.size=2"}, 2, 1, 2},
		{watches.View{Kind: widgets, Namespace: a}, 1, 1, 0},
	}
	for _, part := range cast {
		for i, n := range []int{watches.FromList: part.fromList, watches.FromState: part.fromState, watches.ComesBack: part.comeBack} {
			for range n {
				p.Watchers = append(p.Watchers, &watches.Watcher{View: part.view, Habit: watches.Habit(i), Relists: p.Relists})
			}
		}
	}
	if len(p.Watchers) != 100 {
		p.T.Fatalf("there are %d watches", len(p.Watchers))
	}
	p.Chance.Shuffle(len(p.Watchers), func(i, j int) { p.Watchers[i], p.Watchers[j] = p.Watchers[j], p.Watchers[i] })
	var at watches.Endpoint
	for i, w := range p.Watchers {
		if i%10 == 0 {
			at = p.Stage.At(p.to)
			p.T.Cleanup(at.Client.CloseIdleConnections)
		}
		w.At = at
		p.running.Go(func() { w.Run(p.ctx) })
	}
	poll.Until(p.T, "all watches are open", func() error {
		for _, w := range p.Watchers {
			if !w.Open.Load() {
				w.Mutex.Lock()
				defer w.Mutex.Unlock()
				return fmt.Errorf("%v is not open: %v", w, w.Fault)
			}
		}
		return nil
	})
}

// WaitUntilSeen waits until each type, in each encoding, has shown some watcher an event after
// a version. The proxy has then come that far.
func (p *Scenario) WaitUntilSeen(version uint64) {
	p.T.Helper()
	type form struct {
		kind     string
		protobuf bool
	}
	poll.Until(p.T, fmt.Sprint("watches have seen what happened after ", version), func() error {
		seen := map[form]uint64{}
		for _, w := range p.Watchers {
			at := form{w.View.Kind.Name, w.View.Protobuf}
			// A form without an event yet has not come that far.
			seen[at] = max(seen[at], 0)
			w.Mutex.Lock()
			for _, s := range w.Stretches {
				if n := len(s.Events); n > 0 {
					seen[at] = max(seen[at], s.Events[n-1].Version)
				}
			}
			if w.Fault != nil {
				p.T.Errorf("%v: %v", w, w.Fault)
			}
			w.Mutex.Unlock()
		}
		if p.T.Failed() {
			p.T.FailNow()
		}
		for at, newest := range seen {
			if newest <= version {
				return fmt.Errorf("watches of %+v have reached %d", at, newest)
			}
		}
		return nil
	})
}

// Writing holds the random writers.
type Writing struct {
	stop chan struct{}
	done sync.WaitGroup
	// end stops the writers and waits for them.
	end    func()
	writes atomic.Int64
	failed atomic.Pointer[error]
}

// Writers is the number of writers.
const Writers = 3

// Write starts writers at the stable server, with a total rate per second. Each writer has
// names of its own, so it knows what exists.
func (p *Scenario) Write(rate int) *Writing {
	w := &Writing{stop: make(chan struct{})}
	w.end = sync.OnceFunc(func() {
		close(w.stop)
		w.done.Wait()
	})
	// A test that fails does not finish.
	p.T.Cleanup(w.end)
	for i := range Writers {
		chance := rand.New(rand.NewPCG(p.Chance.Uint64(), uint64(i)))
		w.done.Go(func() {
			there := map[string]bool{}
			tick := time.NewTicker(time.Second * Writers / time.Duration(rate))
			defer tick.Stop()
			for n := 0; ; n++ {
				if err := p.WriteOne(chance, i, n, there); err != nil {
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

// WriteOne creates, changes or deletes one object. there holds the paths of the writer's
// objects.
func (p *Scenario) WriteOne(chance *rand.Rand, writer, n int, there map[string]bool) error {
	k := p.Kinds[[]int{0, 0, 0, 0, 0, 1, 1, 1, 2, 2}[chance.IntN(10)]]
	name := fmt.Sprintf("w%d-%d", writer, chance.IntN(8))
	collection := k.Path(p.Spaces[chance.IntN(len(p.Spaces))])
	path := collection + "/" + name

	type object map[string]any
	tier := []any{"gold", "iron", "lead", nil}[chance.IntN(4)]
	meta := object{"labels": object{"tier": tier}, "annotations": object{"n": fmt.Sprint(n)}}
	body := object{"metadata": meta}
	switch k.Name {
	case "configmaps":
		body["data"] = object{"pad": strings.Repeat("<é>", chance.IntN(60))}
	case "widgets":
		body["spec"] = object{"size": chance.IntN(4)}
	}
	r := api.Request{Method: "PATCH", Path: path, ContentType: "application/merge-patch+json"}
	switch {
	case !there[path]:
		r = api.Request{Method: "POST", Path: collection}
		if meta["name"] = name; tier == nil {
			delete(meta, "labels")
		}
		switch k.Name {
		case "pods":
			made := objects.Pod(name, fmt.Sprint("node-", chance.IntN(nodeCount)))
			body["spec"] = made.Spec
		case "widgets":
			body["apiVersion"], body["kind"] = p.Stage.Widget.Group+"/v1", "Widget"
		}
	case chance.IntN(5) == 0:
		r = api.Request{Method: "DELETE", Path: path}
	}
	if r.Method != "DELETE" {
		r.Body = api.JSON(body)
	}
	there[path] = r.Method != "DELETE"
	a, err := p.Stage.Stable.Try(r)
	if err == nil && a.Status >= 300 {
		err = fmt.Errorf("%s: %d %s", r, a.Status, a.Body)
	}
	return err
}

// Finish stops the writers and waits until every watch has seen everything. It fails the test
// for watches that miss something or saw anything else.
func (p *Scenario) Finish(w *Writing) {
	t := p.T
	t.Helper()
	w.end()
	if err := w.failed.Load(); err != nil {
		t.Fatalf("a write failed: %v", *err)
	}
	// A last object of each type shows that the reference is complete.
	for _, k := range p.Kinds {
		body := `{"metadata":{"name":"last"}}`
		switch k.Name {
		case "pods":
			body = api.JSON(objects.Pod("last", "node-0"))
		case "widgets":
			body = p.Stage.Widget.Object("last", 2)
		}
		var last api.Object
		made := p.Stage.Stable.Must(t, api.Request{Method: "POST", Path: k.Path(p.Spaces[0]), Body: body})
		require.NoError(t, json.Unmarshal([]byte(made.Body), &last))
		p.truths[k.Name].WaitFor(t, last.Version())
	}
	total := 0
	for _, tr := range p.truths {
		total += len(tr.ChangesSoFar())
	}

	var problems []error
	for deadline := time.Now().Add(2 * poll.Patience); ; time.Sleep(250 * time.Millisecond) {
		if problems = p.problems(); len(problems) == 0 || time.Now().After(deadline) {
			break
		}
		if errors.Is(problems[0], watches.ErrFault) {
			// This does not improve with time.
			break
		}
	}
	if len(problems) == 0 {
		// Surplus events may come late.
		time.Sleep(500 * time.Millisecond)
		problems = p.problems()
	}
	events, retried, forwarded := 0, 0, 0
	for _, w := range p.Watchers {
		w.Mutex.Lock()
		for _, s := range w.Stretches {
			events += len(s.Events)
		}
		retried += w.Retried
		forwarded += w.Forwarded
		w.Mutex.Unlock()
	}
	t.Logf("%d writes made %d events, and %d in all watches; %d requests were repeated, %d watches were forwarded",
		w.writes.Load(), total, events, retried, forwarded)
	if len(problems) == 0 {
		return
	}
	t.Errorf("%d of %d watches are wrong", len(problems), len(p.Watchers))
	for _, err := range problems[:min(len(problems), 8)] {
		t.Error(err)
	}
	if p.proxy != nil {
		t.Logf("the end of the proxy's log:\n%s", p.proxy.LogTail())
	}
	t.FailNow()
}

// problems returns the errors of wrong watches. Watches that ended come first, because they say
// most.
func (p *Scenario) problems() []error {
	var over, others []error
	for _, w := range p.Watchers {
		switch err := w.Verify(p.truths[w.View.Kind.Name]); {
		case errors.Is(err, watches.ErrFault):
			over = append(over, fmt.Errorf("%v: %w", w, err))
		case err != nil:
			others = append(others, fmt.Errorf("%v: %w", w, err))
		}
	}
	return append(over, others...)
}

// ProxyLists returns how often the proxy listed the watched types.
func ProxyLists(t *testing.T, p *testbed.Proxy) map[string]int {
	t.Helper()
	all := map[string]int{}
	for _, resource := range []string{"configmaps", "pods", "widgets"} {
		all[resource] = p.Sum(t, "watershed_upstream_lists_total", resource)
	}
	return all
}
