package robustness

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

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/faulty"
	"watershed.test/real/internal/history"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/random"
	"watershed.test/real/internal/relay"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/watches"
)

// WithConnectionsCut cuts all connections to upstream again and again.
func (s *Run) WithConnectionsCut(t *testing.T, lasting time.Duration) {
	chance := s.chance()
	relays := []*relay.Relay{relay.Start(t, s.cluster.Servers[killedServer]), relay.Start(t, s.cluster.Servers[stableServer])}
	b := s.begin(t, s.replicas(t, relays[0].URL(), relays[1].URL())...)
	b.write(lasting)
	b.readAll(8, 4, 40*time.Millisecond)
	cuts := 0
	end := time.Now().Add(lasting)
	// On a busy machine there may be no connection yet.
	latest := end.Add(poll.Patience)
	for now := time.Now(); now.Before(end) || cuts == 0 && now.Before(latest); now = time.Now() {
		time.Sleep(random.Between(chance, 300*time.Millisecond, 1200*time.Millisecond))
		cuts += relays[chance.IntN(2)].Cut(chance)
	}
	b.finish()
	t.Logf("%d connections were cut", cuts)
	if cuts == 0 {
		t.Error("no connection was cut")
	}
}

// WithServerKilled kills one of the API servers and starts it again.
func (s *Run) WithServerKilled(t *testing.T, lasting time.Duration) {
	b := s.begin(t, s.replicas(t, s.cluster.Servers...)...)
	b.write(lasting)
	b.readAll(8, 4, 40*time.Millisecond)
	time.Sleep(lasting / 5)
	require.NoError(t, s.cluster.Command(fmt.Sprint("kill ", killedServer)))
	time.Sleep(lasting / 5)
	require.NoError(t, s.cluster.Command(fmt.Sprint("start ", killedServer)))
	s.awaitCustomType(t)
	time.Sleep(lasting * 2 / 5)
	b.finish()
}

// WithWatchesBehind delays upstream's watches but not its lists, so that memory is always
// behind. Some readers are led around the proof that memory is new enough. Their reads have to
// be found stale.
func (s *Run) WithWatchesBehind(t *testing.T, lasting time.Duration) {
	var servers []string
	for i := range s.cluster.Servers {
		servers = append(servers, s.startSlowed(t, i))
	}
	b := s.begin(t, s.replicas(t, servers...)...)
	var around []api.Target
	for _, p := range b.replicas {
		around = append(around, faulty.Start(t, p.Target, aroundFence))
	}
	misled := newJournal()
	b.write(lasting)
	// Most readers wait most of the time.
	b.readAll(80, 30, 40*time.Millisecond)
	b.read(misled, 3, 2, 60*time.Millisecond, around...)
	time.Sleep(lasting)
	b.enough(misled, 30, history.List, history.Watch, history.Get)
	b.finish()
	b.report("reads around the fence", misled)
	writes, _ := b.resolve()
	byRule, byKind := map[history.Rule]int{}, map[history.ReadKind]int{}
	wrong := 0
	for _, k := range s.kinds {
		answers := map[int]bool{}
		readings := misled.readings[k.Name]
		for _, v := range history.Check(historyOf(s.truths[k.Name]), writes[k.Name], readings) {
			byRule[v.Rule]++
			byKind[readings[v.Read].Manner]++
			answers[v.Read] = true
		}
		wrong += len(answers)
	}
	t.Logf("%d stale answers are found: %v, %v", wrong, byRule, byKind)
	// Each has a proof of its own: a comparison of everything, one of a selection, and one for many
	// gets.
	for _, kind := range []history.ReadKind{history.List, history.Watch, history.Get} {
		if byKind[kind] == 0 {
			t.Errorf("no %s around the proof is found stale", kind)
		}
	}
	if byRule[history.StaleAfterWrite] == 0 {
		t.Error("the check does not find stale reads from memory")
	}
	if byRule[history.WrongState]+byRule[history.WrongEvents]+byRule[history.FromTheFuture] > 0 {
		t.Error("memory may be old, but must be consistent")
	}
}

// aroundFence asks for any version instead of the latest.
var aroundFence = faulty.Fault{Name: "without the fence", Asked: func(query url.Values) {
	if query.Get("resourceVersion") == "" && query.Get("continue") == "" {
		query.Set("resourceVersion", "0")
	}
}}

// startSlowed runs a proxy of an API server that delays what watches say and passes everything
// else at once. It shows the server's own certificate.
func (s *Run) startSlowed(t *testing.T, server int) string {
	t.Helper()
	to := s.server(server)
	dir := filepath.Dir(s.cluster.CA)
	certificate := require.Value(tls.LoadX509KeyPair(filepath.Join(dir, "apiserver.crt"), filepath.Join(dir, "apiserver.key")))(t)
	transport := &http.Transport{TLSClientConfig: to.TLS(), ForceAttemptHTTP2: true}
	chance, mutex := s.chance(), sync.Mutex{}
	address := require.Value(url.Parse(to.URL))(t)
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
					return random.Between(chance, 300*time.Millisecond, 1500*time.Millisecond)
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

// heldBack is a body that delays each piece. Pieces stay in order, and their delays overlap.
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

// plantedFault makes an answer wrong, if the answer is one in which the fault would show.
type plantedFault struct {
	name  string
	rule  history.Rule
	alter func(r *history.Read, at *plantedSite) bool
}

// plantedSite is the material for planted faults.
type plantedSite struct {
	history  history.History
	checker  *history.Checker
	readings []history.Read
	chance   *rand.Rand
}

var plantedFaults = []plantedFault{
	{"a list that was true once", history.StaleAfterWrite, func(r *history.Read, at *plantedSite) bool {
		least := at.checker.Acknowledged.At(r.Begun)
		for _, i := range at.chance.Perm(len(at.readings)) {
			if old := at.readings[i]; old.Manner == history.List && r.Manner == history.List && old.Version < least &&
				old.Selector.String() == r.Selector.String() && old.Namespace == r.Namespace {
				r.Version, r.Items = old.Version, old.Items
				return true
			}
		}
		return false
	}},
	{"a list older than one before", history.StaleAfterRead, func(r *history.Read, at *plantedSite) bool {
		// The list is no older than any write, because nothing was written between the two.
		least, read := at.checker.Acknowledged.At(r.Begun), at.checker.Read.At(r.Begun)
		if r.Manner != history.List || least >= read {
			return false
		}
		r.Version = least
		return true
	}},
	{"a list with an object that was deleted", history.WrongState, func(r *history.Read, at *plantedSite) bool {
		if r.Manner != history.List {
			return false
		}
		var gone []history.ObjectVersion
		last := map[string]history.ObjectState{}
		for _, p := range at.history.Changes {
			if p.Version > r.Version {
				break
			}
			if before, known := last[p.Key]; known && p.Gone && r.Selects(before) {
				gone = append(gone, before.ObjectVersion)
			}
			last[p.Key] = p
		}
		gone = slices.DeleteFunc(gone, func(g history.ObjectVersion) bool {
			return slices.ContainsFunc(r.Items, func(h history.ObjectVersion) bool { return h.Key == g.Key })
		})
		if len(gone) == 0 {
			return false
		}
		g := gone[at.chance.IntN(len(gone))]
		i := history.SearchFirst(r.Items, func(h history.ObjectVersion) bool { return h.Key > g.Key })
		r.Items = slices.Insert(slices.Clone(r.Items), i, g)
		return true
	}},
	{"a list that lacks an object", history.WrongState, func(r *history.Read, at *plantedSite) bool {
		if r.Manner != history.List || len(r.Items) == 0 {
			return false
		}
		i := at.chance.IntN(len(r.Items))
		r.Items = slices.Delete(slices.Clone(r.Items), i, i+1)
		return true
	}},
	{"pages of two versions", history.WrongState, func(r *history.Read, at *plantedSite) bool {
		if r.Manner != history.Pages {
			return false
		}
		for i, item := range r.Items {
			for _, p := range at.history.Changes {
				if p.Key == item.Key && p.Version > item.Version && !p.Gone {
					r.Items = slices.Clone(r.Items)
					r.Items[i].Version = p.Version
					return true
				}
			}
		}
		return false
	}},
	{"a list of a version to come", history.FromTheFuture, func(r *history.Read, at *plantedSite) bool {
		next := at.checker.Ahead.At(r.Ended)
		if r.Manner != history.List || next > 1<<62 {
			return false
		}
		r.Version = next
		return true
	}},
	{"an end mark of too high a version", history.WrongEvents, func(r *history.Read, at *plantedSite) bool {
		if r.Manner != history.Watch || len(r.Events) == 0 {
			return false
		}
		r.Version = r.Events[0].Version
		return true
	}},
	{"an event lost after the end mark", history.WrongEvents, func(r *history.Read, at *plantedSite) bool {
		if r.Manner != history.Watch || len(r.Events) < 2 {
			return false
		}
		i := at.chance.IntN(len(r.Events) - 1)
		r.Events = slices.Delete(slices.Clone(r.Events), i, i+1)
		r.Marks = nil
		return true
	}},
	{"an event that comes twice", history.WrongEvents, func(r *history.Read, at *plantedSite) bool {
		if r.Manner != history.Watch || len(r.Events) == 0 {
			return false
		}
		i := at.chance.IntN(len(r.Events))
		r.Events = slices.Insert(slices.Clone(r.Events), i, r.Events[i])
		r.Marks = nil
		return true
	}},
	{"two events swapped", history.WrongEvents, func(r *history.Read, at *plantedSite) bool {
		if r.Manner != history.Watch || len(r.Events) < 2 {
			return false
		}
		r.Events = slices.Clone(r.Events)
		i := at.chance.IntN(len(r.Events) - 1)
		r.Events[i], r.Events[i+1] = r.Events[i+1], r.Events[i]
		r.Marks = nil
		return true
	}},
	{"a bookmark ahead of what was sent", history.WrongEvents, func(r *history.Read, at *plantedSite) bool {
		if r.Manner != history.Watch {
			return false
		}
		_, next := at.checker.After(r, len(r.Events))
		r.Marks = append(slices.Clone(r.Marks), watches.Bookmark{Version: next, After: len(r.Events)})
		return next < 1<<62
	}},
	{"a get of what was replaced", history.ImpossibleState, func(r *history.Read, at *plantedSite) bool {
		if r.Manner != history.Get {
			return false
		}
		oldest := at.checker.Acknowledged.At(r.Begun)
		life := at.checker.Lives[r.Items[0].Key]
		for i, p := range life {
			if i+1 < len(life) && life[i+1].Version <= oldest && !p.Gone {
				r.Version = p.Version
				return true
			}
		}
		return false
	}},
}

// plantedPerType bounds the answers of a type in which each fault is planted.
const plantedPerType = 25

// names returns the names of faults.
func names(faults []plantedFault) (all []string) {
	for _, f := range faults {
		all = append(all, f.name)
	}
	return all
}

// plant puts each fault into correct answers. The check has to find every one. It returns the faults
// that no answer was fit for.
func (b *phase) plant(faults []plantedFault) (left []plantedFault) {
	b.t.Helper()
	writes, _ := b.resolve()
	chance := b.stage.chance()
	for _, f := range faults {
		made, found := 0, 0
		for _, k := range b.stage.kinds {
			all := b.journal.readings[k.Name]
			h := historyOf(b.stage.truths[k.Name])
			at := &plantedSite{h, history.NewChecker(h, writes[k.Name], all), all, chance}
			n := 0
			for _, i := range chance.Perm(len(all)) {
				r := all[i]
				if n == plantedPerType || !f.alter(&r, at) {
					continue
				}
				n++
				sees := *at.checker
				sees.Found = nil
				sees.Look(i, &r, history.NewReplay(h))
				if slices.ContainsFunc(sees.Found, func(v history.Violation) bool { return v.Rule == f.rule }) {
					found++
				} else {
					b.t.Errorf("%s is not found: %v", f.name, r)
				}
			}
			made += n
		}
		b.t.Logf("planted %s: found %d of %d", f.name, found, made)
		if made == 0 {
			left = append(left, f)
		}
	}
	return left
}
