package real

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"
)

// The servers of the robustness test: one that is killed now and then, and one
// that stays, and tells what happened.
const (
	mortal = iota
	immortal
)

var (
	// The proxy compares small types object by object; this one is not small.
	ofSecrets = kind{name: "secrets", collection: "/api/v1/secrets"}
	// And of this one hardly anything is ever written.
	ofLimitRanges = kind{name: "limitranges", collection: "/api/v1/limitranges"}
)

const manySecrets = 300

// robustness is where consistent reads are put to the test.
type robustness struct {
	cluster *cluster
	widget  widget
	kinds   []kind
	spaces  []string
	truths  map[string]*truth
	writers []*scribe
	seed    uint64
	streams uint64
	// config is the configuration of the replicas.
	config string
	began  time.Time
}

// TestConsistentReads has many clients write, directly and through two replicas,
// and many others read the latest state through both. Every answer has to be the
// state at its version, no older than whatever was written or read before it was
// asked for, and no newer than what came after. See consistent_check_test.go.
func TestConsistentReads(t *testing.T) {
	if direct {
		t.Skip("it is the proxy's promise that is tested")
	}
	t.Parallel()
	s := newRobustness(t)
	lasting := 5 * time.Second
	end := time.Now()
	if text := os.Getenv("ROBUSTNESS_SECONDS"); text != "" {
		lasting = 15 * time.Second
		end = end.Add(time.Duration(must(strconv.Atoi(text))(t)) * time.Second)
	}
	for round := 0; round == 0 || time.Now().Before(end) && !t.Failed(); round++ {
		t.Run("none", func(t *testing.T) { s.quiet(t, lasting) })
		t.Run("connections cut", func(t *testing.T) { s.cutting(t, lasting) })
		t.Run("server killed", func(t *testing.T) { s.killing(t, lasting) })
		t.Run("watches behind", func(t *testing.T) { s.lagging(t, lasting+2*time.Second) })
	}
}

// TestConsistentReadsOfParts does so with replicas whose scopes are parts of types
// that come and go.
func TestConsistentReadsOfParts(t *testing.T) {
	if direct {
		t.Skip("it is the proxy's promise that is tested")
	}
	t.Parallel()
	s := newRobustness(t)
	s.config = "testdata/parts.yaml"
	t.Run("none", func(t *testing.T) { s.quiet(t, 5*time.Second) })
	t.Run("connections cut", func(t *testing.T) { s.cutting(t, 5*time.Second) })
}

func newRobustness(t *testing.T) *robustness {
	t.Helper()
	seed := seeded(t)
	c := must(startBareCluster("--apiservers", "2"))(t)
	t.Cleanup(c.stop)
	s := &robustness{cluster: c, config: everythingKept, widget: newWidget(t), truths: map[string]*truth{}, seed: seed, began: time.Now()}
	s.kinds = []kind{ofConfigMaps, ofSecrets, kindOf(s.widget), ofLimitRanges}
	at := s.server(immortal)
	at.ok(t, request{method: "POST", path: definitions, body: s.widget.definition(false)})
	s.wake(t)
	// In the order of lists, "-b" comes before the name itself.
	s.spaces = []string{"robust", "robust-b"}
	for _, name := range s.spaces {
		at.ok(t, request{method: "POST", path: "/api/v1/namespaces", body: fmt.Sprintf(`{"metadata":{"name":"%s"}}`, name)})
	}
	workers(8, make([]struct{}, manySecrets), func(i int, _ struct{}) {
		body := fmt.Sprintf(`{"metadata":{"name":"still-%03d","labels":{"tier":"lead"}}}`, i)
		at.try(request{method: "POST", path: ofSecrets.path(s.spaces[i%2]), body: body})
	})
	at.ok(t, request{method: "POST", path: ofLimitRanges.path(s.spaces[0]), body: `{"metadata":{"name":"still"},"spec":{"limits":[]}}`})
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	for _, k := range s.kinds {
		s.truths[k.name] = learn(t, ctx, s.place(at), k)
	}
	if n := len(s.truths["secrets"].base); n < manySecrets {
		t.Fatalf("there are %d secrets", n)
	}
	for i := range 4 {
		s.writers = append(s.writers, &scribe{number: i, there: map[string]uint64{}, born: map[string]int{}})
	}
	return s
}

func (s *robustness) server(i int) target {
	return target{name: fmt.Sprint("server ", i), url: s.cluster.Servers[i], ca: s.cluster.CA}
}

// wake has every server take up the custom type; see stage.wake.
func (s *robustness) wake(t *testing.T) {
	t.Helper()
	for i := range s.cluster.Servers {
		s.widget.awaitServed(t, s.server(i))
	}
}

func (s *robustness) place(to target) watchPlace { return (&stage{cluster: s.cluster}).at(to) }

func (s *robustness) now() moment { return time.Since(s.began) }

// chance is a stream of its own: what one client does is not what another's
// speed makes of it.
func (s *robustness) chance() *rand.Rand {
	s.streams++
	return chances(s.seed, s.streams)
}

// bout is one phase: a while of writing and reading, while something happens.
type bout struct {
	t     *testing.T
	stage *robustness
	// replicas are the proxies, and fronts what readers ask.
	replicas []*ownProxy
	// stop ends writers and readers; what they are at, they finish.
	stop    chan struct{}
	ctx     context.Context
	running sync.WaitGroup
	journal *journal

	mutex   sync.Mutex
	written []written
	failed  map[string]int
}

// journal is what some readers read, by type.
type journal struct {
	mutex    sync.Mutex
	readings map[string][]reading
	sources  map[string]int
	failed   map[string]int
	failures int
	// odd is what no answer has, whatever happened.
	odd []string
}

func newJournal() *journal {
	return &journal{readings: map[string][]reading{}, sources: map[string]int{}, failed: map[string]int{}}
}

func (s *robustness) begin(t *testing.T, replicas ...*ownProxy) *bout {
	ctx, cancel := context.WithCancel(context.Background())
	b := &bout{t: t, stage: s, replicas: replicas, stop: make(chan struct{}), ctx: ctx, journal: newJournal(), failed: map[string]int{}}
	t.Cleanup(func() {
		cancel()
		b.running.Wait()
	})
	return b
}

// pause waits between two steps; false when it is time to stop.
func (b *bout) pause(d time.Duration) bool {
	select {
	case <-b.stop:
		return false
	case <-time.After(d):
		return true
	}
}

func between(chance *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(chance.Int64N(int64(most-least)))
}

// write has every way to the API written through, and the quiet type once each way.
func (b *bout) write(lasting time.Duration) {
	ways := []target{b.stage.server(immortal), b.stage.server(mortal), b.replicas[0].target, b.replicas[1].target}
	for i, w := range b.stage.writers {
		chance := b.stage.chance()
		b.running.Go(func() {
			for b.pause(between(chance, 5*time.Millisecond, 50*time.Millisecond)) {
				w.write(b, chance, ways[i])
			}
		})
	}
	chance := b.stage.chance()
	b.running.Go(func() { b.lone(chance, ways, lasting*2/10) })
}

// lone writes the quiet type: after a long silence something comes and goes at
// once, something appears, and goes. Each time both replicas are asked while they
// may not have heard of it.
func (b *bout) lone(chance *rand.Rand, ways []target, silence time.Duration) {
	places := b.places(ways[2:])
	w := &scribe{number: 9, there: map[string]uint64{}, born: map[string]int{}}
	name := fmt.Sprint("lone-", b.stage.now().Milliseconds())
	for _, times := range []int{2, 1, 1, 2} {
		if !b.pause(silence) {
			return
		}
		to := ways[chance.IntN(len(ways))]
		for range times {
			w.toggle(b, chance, to, ofLimitRanges, b.stage.spaces[1], w.name(ofLimitRanges.path(b.stage.spaces[1])+"/"+name, name))
		}
		for _, place := range places {
			for range 3 {
				l := lector{bout: b, journal: b.journal, chance: chances(chance.Uint64(), 0), place: place}
				b.running.Go(func() {
					l.list(wish{kind: ofLimitRanges})
					l.watch(wish{kind: ofLimitRanges})
				})
			}
		}
	}
}

// places are ways by connections of their own.
func (b *bout) places(fronts []target) (places []watchPlace) {
	for _, f := range fronts {
		place := b.stage.place(f)
		b.t.Cleanup(place.client.CloseIdleConnections)
		places = append(places, place)
	}
	return places
}

// read has some clients list and get, and others watch.
func (b *bout) read(j *journal, lists, watches int, pause time.Duration, fronts ...target) {
	places := b.places(fronts)
	for i := range lists + watches {
		chance := b.stage.chance()
		b.running.Go(func() {
			for b.pause(between(chance, time.Millisecond, pause)) {
				l := lector{bout: b, journal: j, chance: chance, place: places[chance.IntN(len(places))]}
				switch {
				case i >= lists:
					l.watch(l.wish())
				case chance.IntN(8) == 0:
					l.get(l.wish())
				default:
					l.list(l.wish())
				}
			}
		})
	}
}

// finish ends the phase and judges what was read.
func (b *bout) finish() {
	t := b.t
	t.Helper()
	close(b.stop)
	b.running.Wait()
	b.await()
	writes, changes := b.resolve()
	b.report("reads", b.journal)
	if violations := b.examine(b.journal, writes); len(violations) > 0 {
		t.Errorf("%d answers were not what they had to be", len(violations))
		for _, v := range violations[:min(len(violations), 10)] {
			t.Error(v)
		}
	}
	for _, odd := range b.journal.odd {
		t.Error(odd)
	}
	steps, asked := map[string]int{}, map[string]int{}
	for _, p := range b.replicas {
		p.addUp(t, "watershed_fence_reads_total", "step", steps)
		p.addUp(t, "watershed_fence_upstream_requests_total", "request", asked)
	}
	t.Logf("%d writes, %d of them failed: %v; %d changes in all; reads shown new enough: %v, by asking: %v",
		len(b.written)+total(b.failed), total(b.failed), b.failed, changes, steps, asked)
	if b.journal.sources["fence"] == 0 {
		t.Error("nothing was answered behind the fence")
	}
}

func (b *bout) report(name string, j *journal) {
	by := map[manner]int{}
	n := 0
	for _, readings := range j.readings {
		for _, r := range readings {
			by[r.manner]++
			n++
		}
	}
	b.t.Logf("%d %s: %v, from %v; %d failed: %v", n, name, by, j.sources, j.failures, j.failed)
}

func total(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// await waits until what happened is known.
func (b *bout) await() {
	at := b.stage.server(immortal)
	for _, k := range b.stage.kinds {
		path := k.path(b.stage.spaces[0])
		var last parsedObject
		made := at.ok(b.t, request{method: "POST", path: path, body: b.stage.object(k, "last", "")})
		check(b.t, json.Unmarshal([]byte(made.body), &last))
		b.stage.truths[k.name].has(b.t, last.version())
		at.ok(b.t, request{method: "DELETE", path: path + "/last"})
	}
}

// resolve adds to deletions, whose answers do not tell it, at which version they
// happened. It also says how much happened in all.
func (b *bout) resolve() (writes map[string][]write, changes int) {
	deleted := map[string]map[string][]uint64{}
	for name, tr := range b.stage.truths {
		deleted[name] = map[string][]uint64{}
		for _, c := range tr.known() {
			changes++
			if c.event == "DELETED" {
				deleted[name][c.after.key] = append(deleted[name][c.after.key], c.version)
			}
		}
	}
	writes = map[string][]write{}
	for _, w := range b.written {
		if w.gone {
			// Nobody else writes these names.
			all := deleted[w.kind][w.key]
			i := firstOf(all, func(v uint64) bool { return v > w.version })
			if i == len(all) {
				b.t.Fatalf("the deletion of %s %s after %d is not in the reference", w.kind, w.key, w.version)
			}
			w.version = all[i]
		}
		writes[w.kind] = append(writes[w.kind], w.write)
	}
	return writes, changes
}

func historyOf(tr *truth) history {
	p := func(s *stored, version uint64, gone bool) point {
		return point{held: held{s.key, version}, labels: s.labels, gone: gone}
	}
	h := history{}
	for _, s := range tr.base {
		h.base = append(h.base, p(s, s.version, false))
	}
	for _, c := range tr.known() {
		h.changes = append(h.changes, p(c.after, c.version, c.event == "DELETED"))
	}
	return h
}

// examine is what a journal has that it should not.
func (b *bout) examine(j *journal, writes map[string][]write) (all []string) {
	for _, k := range b.stage.kinds {
		for _, v := range examine(historyOf(b.stage.truths[k.name]), writes[k.name], j.readings[k.name]) {
			all = append(all, fmt.Sprintf("%s: %s (%v)", v.rule, v.text, j.readings[k.name][v.reading]))
		}
	}
	return all
}

// quiet is a while in which nothing goes wrong. No read may fail either.
func (s *robustness) quiet(t *testing.T, lasting time.Duration) {
	b := s.begin(t, s.replicas(t, s.cluster.Servers...)...)
	b.write(lasting)
	b.readAll(8, 4, 40*time.Millisecond)
	time.Sleep(lasting)
	b.enough(b.journal, 20, byList, byPages, byWatch, byGet)
	b.finish()
	if b.journal.failures+total(b.failed) > 0 {
		t.Errorf("%d reads and %d writes failed without a fault", b.journal.failures, total(b.failed))
	}
	b.plant()
}

// enough waits until others have written, and readers have read in every manner, so
// often that there is something to judge by. A slow machine takes longer.
func (b *bout) enough(j *journal, least int, manners ...manner) {
	b.t.Helper()
	eventually(b.t, "enough is written and read", func() error {
		b.mutex.Lock()
		writes := len(b.written)
		b.mutex.Unlock()
		if writes < 100 {
			return fmt.Errorf("only %d writes", writes)
		}
		j.mutex.Lock()
		defer j.mutex.Unlock()
		by := map[manner]int{}
		for _, readings := range j.readings {
			for _, r := range readings {
				by[r.manner]++
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

func (b *bout) readAll(lists, watches int, pause time.Duration) {
	b.read(b.journal, lists, watches, pause, b.replicas[0].target, b.replicas[1].target)
}

// replicas are two proxies that know the same servers, in another order.
func (s *robustness) replicas(t *testing.T, servers ...string) []*ownProxy {
	t.Helper()
	other := slices.Clone(servers)
	slices.Reverse(other)
	return []*ownProxy{startConfigured(t, s.config, s.cluster.ProxyKubeconfig, servers...), startConfigured(t, s.config, s.cluster.ProxyKubeconfig, other...)}
}

// selectors are what readers ask for; most ask for everything.
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
