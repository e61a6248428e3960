package real

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

// cutting cuts all connections to upstream again and again.
func (s *robustness) cutting(t *testing.T, lasting time.Duration) {
	chance := s.chance()
	relays := []*relay{startRelay(t, s.cluster.Servers[mortal]), startRelay(t, s.cluster.Servers[immortal])}
	b := s.begin(t, s.replicas(t, relays[0].url(), relays[1].url())...)
	b.write(lasting)
	b.readAll(8, 4, 40*time.Millisecond)
	cuts := 0
	for end := time.Now().Add(lasting); time.Now().Before(end) || cuts == 0; {
		time.Sleep(between(chance, 300*time.Millisecond, 1200*time.Millisecond))
		cuts += relays[chance.IntN(2)].cut(chance)
	}
	b.finish()
	t.Logf("%d connections were cut", cuts)
	if cuts == 0 {
		t.Error("nothing was cut")
	}
}

// killing kills one of the API servers, which comes back.
func (s *robustness) killing(t *testing.T, lasting time.Duration) {
	b := s.begin(t, s.replicas(t, s.cluster.Servers...)...)
	b.write(lasting)
	b.readAll(8, 4, 40*time.Millisecond)
	time.Sleep(lasting / 5)
	check(t, s.cluster.tell(fmt.Sprint("kill ", mortal)))
	time.Sleep(lasting / 5)
	check(t, s.cluster.tell(fmt.Sprint("start ", mortal)))
	s.wake(t)
	time.Sleep(lasting * 2 / 5)
	b.finish()
}

// lagging lets lists of upstream be fast and watches slow. Memory is always
// behind then, and who answers from it without a proof is caught: other readers
// are led around the fence.
func (s *robustness) lagging(t *testing.T, lasting time.Duration) {
	var servers []string
	for i := range s.cluster.Servers {
		servers = append(servers, s.startSlowed(t, i))
	}
	b := s.begin(t, s.replicas(t, servers...)...)
	var around []target
	for _, p := range b.replicas {
		around = append(around, startFaulty(t, p.target, withoutFence))
	}
	misled := newJournal()
	b.write(lasting)
	// Most wait most of the time.
	b.readAll(80, 30, 40*time.Millisecond)
	b.read(misled, 3, 2, 60*time.Millisecond, around...)
	time.Sleep(lasting)
	b.enough(misled, 30, byList)
	b.finish()
	b.report("reads around the fence", misled)
	writes, _ := b.resolve()
	byRule := map[rule]int{}
	wrong := 0
	for _, k := range s.kinds {
		answers := map[int]bool{}
		for _, v := range examine(historyOf(s.truths[k.name]), writes[k.name], misled.readings[k.name]) {
			byRule[v.rule]++
			answers[v.reading] = true
		}
		wrong += len(answers)
	}
	t.Logf("%d answers around the fence are found to be wrong: %v", wrong, byRule)
	if byRule[afterWrites] == 0 {
		t.Error("serving whatever is in memory is not found")
	}
	if byRule[notThatState]+byRule[eventsAfterEnd]+byRule[beforeFuture] > 0 {
		t.Error("what is in memory is old, but should be true")
	}
}

// withoutFence asks for any version where the latest is asked for.
var withoutFence = fault{name: "without the fence", asked: func(query url.Values) {
	if query.Get("resourceVersion") == "" && query.Get("continue") == "" {
		query.Set("resourceVersion", "0")
	}
}}

// startSlowed runs a way to an API server on which what watches say arrives
// late, and everything else at once. It shows the server's own certificate.
func (s *robustness) startSlowed(t *testing.T, server int) string {
	t.Helper()
	to := s.server(server)
	dir := filepath.Dir(s.cluster.CA)
	certificate := must(tls.LoadX509KeyPair(filepath.Join(dir, "apiserver.crt"), filepath.Join(dir, "apiserver.key")))(t)
	transport := &http.Transport{TLSClientConfig: to.tls(), ForceAttemptHTTP2: true}
	chance, mutex := s.chance(), sync.Mutex{}
	address := must(url.Parse(to.url))(t)
	silent := log.New(io.Discard, "", 0)
	slowed := httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      silent,
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(address) },
		ModifyResponse: func(resp *http.Response) error {
			if resp.Request.URL.Query().Has("watch") {
				resp.Body = holdBack(resp.Body, func() time.Duration {
					mutex.Lock()
					defer mutex.Unlock()
					return between(chance, 300*time.Millisecond, 1500*time.Millisecond)
				})
			}
			return nil
		},
	})
	slowed.Config.ErrorLog = silent
	slowed.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	slowed.EnableHTTP2 = true
	slowed.StartTLS()
	t.Cleanup(func() {
		slowed.CloseClientConnections()
		slowed.Close()
		transport.CloseIdleConnections()
	})
	return slowed.URL
}

// heldBack is a body of which every piece comes later than it was sent. Pieces
// stay in order, and are held back side by side.
type heldBack struct {
	*io.PipeReader
	body io.Closer
	over chan struct{}
	once sync.Once
}

func holdBack(body io.ReadCloser, delay func() time.Duration) *heldBack {
	reader, writer := io.Pipe()
	h := &heldBack{PipeReader: reader, body: body, over: make(chan struct{})}
	type piece struct {
		text []byte
		due  time.Time
	}
	pieces := make(chan piece, 1<<12)
	go func() {
		defer close(pieces)
		for {
			buffer := make([]byte, 16<<10)
			n, err := body.Read(buffer)
			if n > 0 {
				select {
				case pieces <- piece{buffer[:n], time.Now().Add(delay())}:
				case <-h.over:
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	go func() {
		defer writer.Close()
		for p := range pieces {
			select {
			case <-time.After(time.Until(p.due)):
			case <-h.over:
				return
			}
			if _, err := writer.Write(p.text); err != nil {
				return
			}
		}
	}()
	return h
}

func (h *heldBack) Close() error {
	h.once.Do(func() { close(h.over) })
	return errors.Join(h.PipeReader.Close(), h.body.Close())
}

// planted is a way in which an answer could be wrong. It alters a reading, if
// that is one in which it would show.
type planted struct {
	name  string
	rule  rule
	alter func(r *reading, at *site) bool
}

// site is what a planted fault is made of.
type site struct {
	history  history
	checker  *checker
	readings []reading
	chance   *rand.Rand
}

var plantedFaults = []planted{
	{"a list that was true once", afterWrites, func(r *reading, at *site) bool {
		least := at.checker.acknowledged.at(r.begun)
		for _, i := range at.chance.Perm(len(at.readings)) {
			if old := at.readings[i]; old.manner == byList && r.manner == byList && old.version < least &&
				old.selector.String() == r.selector.String() && old.namespace == r.namespace {
				r.version, r.items = old.version, old.items
				return true
			}
		}
		return false
	}},
	{"a list older than one before", afterReads, func(r *reading, at *site) bool {
		// It is no older than any write: nothing happened between the two.
		least, read := at.checker.acknowledged.at(r.begun), at.checker.read.at(r.begun)
		if r.manner != byList || least >= read {
			return false
		}
		r.version = least
		return true
	}},
	{"a list with an object that was deleted", notThatState, func(r *reading, at *site) bool {
		if r.manner != byList {
			return false
		}
		var gone []held
		last := map[string]point{}
		for _, p := range at.history.changes {
			if p.version > r.version {
				break
			}
			if before, known := last[p.key]; known && p.gone && r.selects(before) {
				gone = append(gone, before.held)
			}
			last[p.key] = p
		}
		gone = slices.DeleteFunc(gone, func(g held) bool {
			return slices.ContainsFunc(r.items, func(h held) bool { return h.key == g.key })
		})
		if len(gone) == 0 {
			return false
		}
		g := gone[at.chance.IntN(len(gone))]
		i := firstOf(r.items, func(h held) bool { return h.key > g.key })
		r.items = slices.Insert(slices.Clone(r.items), i, g)
		return true
	}},
	{"a list that lacks an object", notThatState, func(r *reading, at *site) bool {
		if r.manner != byList || len(r.items) == 0 {
			return false
		}
		i := at.chance.IntN(len(r.items))
		r.items = slices.Delete(slices.Clone(r.items), i, i+1)
		return true
	}},
	{"pages of two versions", notThatState, func(r *reading, at *site) bool {
		if r.manner != byPages {
			return false
		}
		for i, item := range r.items {
			for _, p := range at.history.changes {
				if p.key == item.key && p.version > item.version && !p.gone {
					r.items = slices.Clone(r.items)
					r.items[i].version = p.version
					return true
				}
			}
		}
		return false
	}},
	{"a list of a version to come", beforeFuture, func(r *reading, at *site) bool {
		next := at.checker.ahead.at(r.ended)
		if r.manner != byList || next > 1<<62 {
			return false
		}
		r.version = next
		return true
	}},
	{"an end mark of too high a version", eventsAfterEnd, func(r *reading, at *site) bool {
		if r.manner != byWatch || len(r.events) == 0 {
			return false
		}
		r.version = r.events[0].version
		return true
	}},
	{"an event lost after the end mark", eventsAfterEnd, func(r *reading, at *site) bool {
		if r.manner != byWatch || len(r.events) < 2 {
			return false
		}
		i := at.chance.IntN(len(r.events) - 1)
		r.events = slices.Delete(slices.Clone(r.events), i, i+1)
		r.marks = nil
		return true
	}},
	{"an event that comes twice", eventsAfterEnd, func(r *reading, at *site) bool {
		if r.manner != byWatch || len(r.events) == 0 {
			return false
		}
		i := at.chance.IntN(len(r.events))
		r.events = slices.Insert(slices.Clone(r.events), i, r.events[i])
		r.marks = nil
		return true
	}},
	{"two events swapped", eventsAfterEnd, func(r *reading, at *site) bool {
		if r.manner != byWatch || len(r.events) < 2 {
			return false
		}
		r.events = slices.Clone(r.events)
		i := at.chance.IntN(len(r.events) - 1)
		r.events[i], r.events[i+1] = r.events[i+1], r.events[i]
		r.marks = nil
		return true
	}},
	{"a bookmark ahead of what was sent", eventsAfterEnd, func(r *reading, at *site) bool {
		if r.manner != byWatch {
			return false
		}
		_, next := at.checker.after(r, len(r.events))
		r.marks = append(slices.Clone(r.marks), mark{next, len(r.events)})
		return next < 1<<62
	}},
	{"a get of what was replaced", neverThat, func(r *reading, at *site) bool {
		if r.manner != byGet {
			return false
		}
		oldest := at.checker.acknowledged.at(r.begun)
		life := at.checker.lives[r.items[0].key]
		for i, p := range life {
			if i+1 < len(life) && life[i+1].version <= oldest && !p.gone {
				r.version = p.version
				return true
			}
		}
		return false
	}},
}

// most is how many answers of a type each fault is planted in.
const most = 25

// plant puts each fault into answers that were right. Every one has to be found.
func (b *bout) plant() {
	b.t.Helper()
	writes, _ := b.resolve()
	chance := b.stage.chance()
	var without []string
	for _, f := range plantedFaults {
		made, found := 0, 0
		for _, k := range b.stage.kinds {
			all := b.journal.readings[k.name]
			h := historyOf(b.stage.truths[k.name])
			at := &site{h, newChecker(h, writes[k.name], all), all, chance}
			n := 0
			for _, i := range chance.Perm(len(all)) {
				r := all[i]
				if n == most || !f.alter(&r, at) {
					continue
				}
				n++
				sees := *at.checker
				sees.found = nil
				sees.look(i, &r, newReplay(h))
				if slices.ContainsFunc(sees.found, func(v violation) bool { return v.rule == f.rule }) {
					found++
				} else {
					b.t.Errorf("%s is not found: %v", f.name, r)
				}
			}
			made += n
		}
		b.t.Logf("planted %s: found %d of %d", f.name, found, made)
		if made == 0 {
			without = append(without, f.name)
		}
	}
	// A slow machine reads little, and then there is not always a place.
	if len(without) > 3 {
		b.t.Errorf("there was nothing to plant these in: %q", without)
	}
}
