// Package robustness runs the clients and faults of TestConsistentReadsAreLinearizable, and records what
// the clients read.
package robustness

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/history"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/parallel"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/random"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
	"watershed.test/real/internal/usage"
	"watershed.test/real/internal/watches"
	"watershed.test/real/internal/workload"
)

// The two API servers: killedServer is killed now and then, stableServer stays and tells the
// reference.
const (
	killedServer = iota
	stableServer
)

var (
	// The proxy compares small types object by object. This type is not small.
	secrets = watches.Kind{Name: "secrets", Collection: "/api/v1/secrets"}
	// This type is hardly ever written.
	limitRanges = watches.Kind{Name: "limitranges", Collection: "/api/v1/limitranges"}
)

const manySecrets = 300

// Run holds the servers, clients and references of one test of consistent reads.
type Run struct {
	cluster *testbed.Cluster
	widget  objects.Widget
	kinds   []watches.Kind
	spaces  []string
	truths  map[string]*watches.Reference
	writers []*writer
	seed    uint64
	streams uint64
	// Config is the replicas' configuration file.
	Config string
	// ProvenGets is the number of gets that shared proofs, in all phases so far.
	ProvenGets int
	began      time.Time
}

// New starts a cluster of two API servers with objects in it.
func New(t *testing.T) *Run {
	t.Helper()
	seed := random.Seed(t)
	c := require.Value(testbed.Start("--apiservers", "2"))(t)
	t.Cleanup(c.Stop)
	s := &Run{cluster: c, Config: testbed.CacheEverything, widget: objects.NewWidget(t), truths: map[string]*watches.Reference{}, seed: seed, began: time.Now()}
	s.kinds = []watches.Kind{watches.ConfigMaps, secrets, watches.KindOf(s.widget), limitRanges}
	at := s.server(stableServer)
	at.Must(t, api.Request{Method: "POST", Path: objects.CRDPath, Body: s.widget.Definition(false)})
	s.awaitCustomType(t)
	// In the order of lists, "-b" comes before the name itself.
	s.spaces = []string{"robust", "robust-b"}
	for _, name := range s.spaces {
		at.Must(t, api.Request{Method: "POST", Path: "/api/v1/namespaces", Body: fmt.Sprintf(`{"metadata":{"name":"%s"}}`, name)})
	}
	parallel.ForEach(8, make([]struct{}, manySecrets), func(i int, _ struct{}) {
		body := fmt.Sprintf(`{"metadata":{"name":"still-%03d","labels":{"tier":"lead"}}}`, i)
		at.Must(t, api.Request{Method: "POST", Path: secrets.Path(s.spaces[i%2]), Body: body})
	})
	at.Must(t, api.Request{Method: "POST", Path: limitRanges.Path(s.spaces[0]), Body: `{"metadata":{"name":"still"},"spec":{"limits":[]}}`})
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	for _, k := range s.kinds {
		s.truths[k.Name] = watches.Follow(t, ctx, s.place(at), k)
	}
	if n := len(s.truths["secrets"].Base); n < manySecrets {
		t.Fatalf("there are %d secrets", n)
	}
	for i := range 4 {
		s.writers = append(s.writers, &writer{number: i, there: map[string]uint64{}, born: map[string]int{}})
	}
	return s
}

func (s *Run) server(i int) api.Target {
	return api.Target{Name: fmt.Sprint("server ", i), URL: s.cluster.Servers[i], CA: s.cluster.CA, Tokens: s.cluster.Users}
}

// awaitCustomType makes every server take up the custom type; see
// workload.Stage.AwaitCustomType.
func (s *Run) awaitCustomType(t *testing.T) {
	t.Helper()
	for i := range s.cluster.Servers {
		s.widget.AwaitServed(t, s.server(i))
	}
}

func (s *Run) place(to api.Target) watches.Endpoint {
	return (&workload.Stage{Cluster: s.cluster}).At(to)
}

func (s *Run) now() history.Moment { return time.Since(s.began) }

// chance returns a random stream of its own, so that no client's choices depend on another's
// speed.
func (s *Run) chance() *rand.Rand {
	s.streams++
	return random.Stream(s.seed, s.streams)
}

// phase is a period of writes and reads under one kind of fault.
type phase struct {
	t     *testing.T
	stage *Run
	// replicas are the proxies under test.
	replicas []*testbed.Proxy
	// stop is closed by end, which ends writers and readers. They first finish their present step.
	stop    chan struct{}
	end     func()
	ctx     context.Context
	running sync.WaitGroup
	journal *journal

	mutex   sync.Mutex
	written []acknowledgedWrite
	failed  map[string]int
}

// journal records what some readers read, by type.
type journal struct {
	mutex    sync.Mutex
	readings map[string][]history.Read
	sources  map[string]int
	failed   map[string]int
	failures int
	// odd collects answers that are wrong whatever happened.
	odd []string
}

func newJournal() *journal {
	return &journal{readings: map[string][]history.Read{}, sources: map[string]int{}, failed: map[string]int{}}
}

func (s *Run) begin(t *testing.T, replicas ...*testbed.Proxy) *phase {
	ctx, cancel := context.WithCancel(context.Background())
	b := &phase{t: t, stage: s, replicas: replicas, stop: make(chan struct{}), ctx: ctx, journal: newJournal(), failed: map[string]int{}}
	b.end = sync.OnceFunc(func() { close(b.stop) })
	t.Cleanup(func() {
		// A phase that fails has not finished.
		b.end()
		cancel()
		b.running.Wait()
	})
	return b
}

// pause waits between two steps. It returns false when the phase ends.
func (b *phase) pause(d time.Duration) bool {
	select {
	case <-b.stop:
		return false
	case <-time.After(d):
		return true
	}
}

// write writes through every way to the API, and writes the quiet type through each way in
// turn.
func (b *phase) write(lasting time.Duration) {
	ways := []api.Target{b.stage.server(stableServer), b.stage.server(killedServer), b.replicas[0].Target, b.replicas[1].Target}
	for i, w := range b.stage.writers {
		chance := b.stage.chance()
		b.running.Go(func() {
			for b.pause(random.Between(chance, 5*time.Millisecond, 50*time.Millisecond)) {
				w.write(b, chance, ways[i])
			}
		})
	}
	chance := b.stage.chance()
	b.running.Go(func() { b.writeQuietType(chance, ways, lasting*2/10) })
}

// writeQuietType writes a type that is otherwise silent. After each write it asks both replicas
// while they may not know of it yet.
func (b *phase) writeQuietType(chance *rand.Rand, ways []api.Target, silence time.Duration) {
	places := b.places(ways[2:])
	w := &writer{number: 9, there: map[string]uint64{}, born: map[string]int{}}
	name := fmt.Sprint("lone-", b.stage.now().Milliseconds())
	for _, times := range []int{2, 1, 1, 2} {
		if !b.pause(silence) {
			return
		}
		to := ways[chance.IntN(len(ways))]
		for range times {
			w.toggle(b, chance, to, limitRanges, b.stage.spaces[1], w.name(limitRanges.Path(b.stage.spaces[1])+"/"+name, name))
		}
		for _, place := range places {
			for range 3 {
				l := reader{bout: b, journal: b.journal, chance: random.Stream(chance.Uint64(), 0), place: place}
				b.running.Go(func() {
					l.list(readPlan{kind: limitRanges})
					l.watch(readPlan{kind: limitRanges})
				})
			}
		}
	}
}

// places returns endpoints with connections of their own.
func (b *phase) places(fronts []api.Target) (places []watches.Endpoint) {
	for _, f := range fronts {
		place := b.stage.place(f)
		b.t.Cleanup(place.Client.CloseIdleConnections)
		places = append(places, place)
	}
	return places
}

// read starts clients that list and get, and others that watch.
func (b *phase) read(j *journal, lists, watches int, pause time.Duration, fronts ...api.Target) {
	places := b.places(fronts)
	for i := range lists + watches {
		chance := b.stage.chance()
		b.running.Go(func() {
			for b.pause(random.Between(chance, time.Millisecond, pause)) {
				l := reader{bout: b, journal: j, chance: chance, place: places[chance.IntN(len(places))]}
				switch {
				case i >= lists:
					l.watch(l.wish())
				case chance.IntN(20) == 0:
					l.gets(l.wish())
				case chance.IntN(8) == 0:
					l.get(l.wish())
				default:
					l.list(l.wish())
				}
			}
		})
	}
}

// finish ends the phase and checks what was read.
func (b *phase) finish() {
	t := b.t
	t.Helper()
	b.end()
	b.running.Wait()
	b.await()
	writes, changes := b.resolve()
	b.report("reads", b.journal)
	b.stage.ProvenGets += b.journal.sources["get linearizable"]
	if violations := b.examine(b.journal, writes); len(violations) > 0 {
		t.Errorf("%d answers are wrong", len(violations))
		for _, v := range violations[:min(len(violations), 10)] {
			t.Error(v)
		}
	}
	for _, odd := range b.journal.odd {
		t.Error(odd)
	}
	steps, asked := map[string]int{}, map[string]int{}
	for _, p := range b.replicas {
		p.AddByLabel(t, "watershed_consistent_reads_total", "outcome", steps)
		p.AddByLabel(t, "watershed_freshness_checks_total", "request", asked)
	}
	t.Logf("%d writes, %d of them failed: %v; %d changes in all; proofs that memory is new enough: %v, requests for them: %v",
		len(b.written)+usage.Total(b.failed), usage.Total(b.failed), b.failed, changes, steps, asked)
	if b.journal.sources["linearizable"] == 0 {
		t.Error("no consistent read was answered from memory")
	}
}

func (b *phase) report(name string, j *journal) {
	by := map[history.ReadKind]int{}
	n := 0
	for _, readings := range j.readings {
		for _, r := range readings {
			by[r.Manner]++
			n++
		}
	}
	b.t.Logf("%d %s: %v, from %v; %d failed: %v", n, name, by, j.sources, j.failures, j.failed)
}

// await waits until the references have everything that happened.
func (b *phase) await() {
	at := b.stage.server(stableServer)
	for _, k := range b.stage.kinds {
		path := k.Path(b.stage.spaces[0])
		var last api.Object
		made := at.Must(b.t, api.Request{Method: "POST", Path: path, Body: b.stage.object(k, "last", "")})
		require.NoError(b.t, json.Unmarshal([]byte(made.Body), &last))
		b.stage.truths[k.Name].WaitFor(b.t, last.Version())
		at.Must(b.t, api.Request{Method: "DELETE", Path: path + "/last"})
	}
}

// resolve fills in the versions of deletions, which their answers do not tell. It also returns
// the number of all changes.
func (b *phase) resolve() (writes map[string][]history.Write, changes int) {
	deleted := map[string]map[string][]uint64{}
	for name, tr := range b.stage.truths {
		deleted[name] = map[string][]uint64{}
		for _, c := range tr.ChangesSoFar() {
			changes++
			if c.Event == "DELETED" {
				deleted[name][c.After.Key] = append(deleted[name][c.After.Key], c.Version)
			}
		}
	}
	writes = map[string][]history.Write{}
	for _, w := range b.written {
		if w.gone {
			// Nobody else writes these names.
			all := deleted[w.kind][w.key]
			i := history.SearchFirst(all, func(v uint64) bool { return v > w.Version })
			if i == len(all) {
				b.t.Fatalf("the deletion of %s %s after %d is not in the reference", w.kind, w.key, w.Version)
			}
			w.Version = all[i]
		}
		writes[w.kind] = append(writes[w.kind], w.Write)
	}
	return writes, changes
}

func historyOf(tr *watches.Reference) history.History {
	p := func(s *watches.Object, version uint64, gone bool) history.ObjectState {
		return history.ObjectState{ObjectVersion: history.ObjectVersion{Key: s.Key, Version: version}, Labels: s.Labels, Gone: gone}
	}
	h := history.History{}
	for _, s := range tr.Base {
		h.Base = append(h.Base, p(s, s.Version, false))
	}
	for _, c := range tr.ChangesSoFar() {
		h.Changes = append(h.Changes, p(c.After, c.Version, c.Event == "DELETED"))
	}
	return h
}

// examine returns descriptions of all violations in a journal.
func (b *phase) examine(j *journal, writes map[string][]history.Write) (all []string) {
	for _, k := range b.stage.kinds {
		for _, v := range history.Check(historyOf(b.stage.truths[k.Name]), writes[k.Name], j.readings[k.Name]) {
			all = append(all, fmt.Sprintf("%s: %s (%v)", v.Rule, v.Text, j.readings[k.Name][v.Read]))
		}
	}
	return all
}

// phasesToPlant bounds the phases whose answers faults are planted in.
const phasesToPlant = 5

// WithoutFaults runs phases without faults, in which no read or write may fail. One is enough, unless
// a planted fault has found no answer to show in.
func (s *Run) WithoutFaults(t *testing.T, lasting time.Duration) {
	left := plantedFaults
	for range phasesToPlant {
		if left = s.withoutFaults(t, lasting, left); len(left) == 0 || t.Failed() {
			return
		}
		t.Logf("no answer was fit for these planted faults yet: %q", names(left))
	}
	t.Errorf("in %d phases no answer was fit for these planted faults: %q", phasesToPlant, names(left))
}

// withoutFaults runs one such phase, and plants faults in its answers. It returns those that no answer
// was fit for.
func (s *Run) withoutFaults(t *testing.T, lasting time.Duration, faults []plantedFault) (left []plantedFault) {
	b := s.begin(t, s.replicas(t, s.cluster.Servers...)...)
	b.write(lasting)
	b.readAll(8, 4, 40*time.Millisecond)
	time.Sleep(lasting)
	b.enough(b.journal, 20, history.List, history.Pages, history.Watch, history.Get)
	if s.Config == testbed.CacheEverything {
		b.shareProofs()
	}
	b.finish()
	if b.journal.failures+usage.Total(b.failed) > 0 {
		t.Errorf("%d reads and %d writes failed without a fault", b.journal.failures, usage.Total(b.failed))
	}
	return b.plant(faults)
}

// enough waits until there are enough writes, and enough reads of each kind, to judge by. A
// slow machine takes longer.
func (b *phase) enough(j *journal, least int, manners ...history.ReadKind) {
	b.t.Helper()
	poll.Until(b.t, "there are enough writes and reads", func() error {
		b.mutex.Lock()
		writes := len(b.written)
		b.mutex.Unlock()
		if writes < 100 {
			return fmt.Errorf("only %d writes", writes)
		}
		j.mutex.Lock()
		defer j.mutex.Unlock()
		by := map[history.ReadKind]int{}
		for _, readings := range j.readings {
			for _, r := range readings {
				by[r.Manner]++
			}
		}
		for _, m := range manners {
			if by[m] < least {
				return fmt.Errorf("only %v reads", by)
			}
		}
		return nil
	})
}

// shareProofs gets objects through many clients until a get is answered from memory. Gets share a
// proof when many come at the same time, and how many do depends on the machine.
func (b *phase) shareProofs() {
	b.t.Helper()
	l := reader{bout: b, journal: b.journal, chance: b.stage.chance(), place: b.places([]api.Target{b.replicas[0].Target})[0]}
	poll.Until(b.t, "gets share a proof", func() error {
		parallel.ForEach(100, make([]struct{}, 1000), func(i int, _ struct{}) {
			l.getNamed(readPlan{kind: secrets, namespace: b.stage.spaces[i%2]}, fmt.Sprintf("still-%03d", i%manySecrets))
		})
		b.journal.mutex.Lock()
		defer b.journal.mutex.Unlock()
		if b.journal.sources["get linearizable"] == 0 {
			return fmt.Errorf("the answers came from %v", b.journal.sources)
		}
		return nil
	})
}

func (b *phase) readAll(lists, watches int, pause time.Duration) {
	b.read(b.journal, lists, watches, pause, b.replicas[0].Target, b.replicas[1].Target)
}

// replicas starts two proxies that know the same servers in opposite order.
func (s *Run) replicas(t *testing.T, servers ...string) []*testbed.Proxy {
	t.Helper()
	other := slices.Clone(servers)
	slices.Reverse(other)
	return []*testbed.Proxy{testbed.StartProxyWithConfig(t, s.Config, s.cluster.ProxyKubeconfig, servers...), testbed.StartProxyWithConfig(t, s.Config, s.cluster.ProxyKubeconfig, other...)}
}

// selectors are the label selectors of the readers; most reads select everything.
var selectors = func() map[string]labels.Selector {
	all := map[string]labels.Selector{}
	for _, text := range []string{"", "tier=gold", "tier in (gold,iron)", "!tier", "tier!=lead"} {
		s, err := labels.Parse(text)
		if err != nil {
			panic(err)
		}
		all[text] = s
	}
	return all
}()

var selectorTexts = slices.Sorted(maps.Keys(selectors))
