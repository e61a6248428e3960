package real

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// look is what is watched while others write, and in which form.
type look struct {
	kind           string
	namespace      string
	labels, fields string
	accept         string
	// from is the rest of the query; {version} in it is the one before the
	// first write.
	from string
}

const (
	metadataOnly = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	metadataWire = protobufType + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	since        = "resourceVersion={version}&allowWatchBookmarks=true"
	sinceBare    = "resourceVersion={version}"
	stateFirst   = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=0"
	stateLatest  = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
	legacy       = "resourceVersion=0"
)

var looks = []look{
	{"configmaps", "", "", "", "", since},
	{"configmaps", "", "", "", protobufType, since},
	{"configmaps", "", "", "", "", stateFirst},
	{"configmaps", "", "", "", protobufType, stateLatest},
	{"configmaps", "", "", "", metadataOnly, since},
	{"configmaps", "", "", "", metadataWire, stateFirst},
	{"configmaps", "watched", "", "", "", legacy},
	{"configmaps", "watched-b", "", "", protobufType, sinceBare},
	{"configmaps", "", "tier=gold", "", "", since},
	{"configmaps", "", "tier=gold", "", protobufType, since},
	{"configmaps", "", "tier=gold", "", "", stateFirst},
	{"configmaps", "", "tier=gold", "", metadataOnly, sinceBare},
	{"configmaps", "", "tier=gold", "", metadataWire, since},
	{"configmaps", "", "tier!=gold", "", protobufType, legacy},
	{"configmaps", "watched", "tier in (gold,iron)", "", "", since},
	{"configmaps", "watched-b", "!tier", "", protobufType, stateFirst},
	{"configmaps", "", "", "metadata.name=w0-1", "", since},
	{"configmaps", "", "", "metadata.name!=w1-2", protobufType, since},
	{"configmaps", "", "tier=gold", "metadata.namespace=watched", "", since},
	{"pods", "", "", "", protobufType, since},
	{"pods", "", "", "spec.nodeName=node-0", "", since},
	{"pods", "", "", "spec.nodeName=node-1", protobufType, stateFirst},
	{"pods", "watched", "tier=gold", "spec.nodeName!=node-1", protobufType, since},
	{"pods", "", "tier", "status.phase=Pending", "", sinceBare},
	{"pods", "", "tier=iron", "", metadataWire, since},
	{"widgets", "", "", "", "", since},
	{"widgets", "", "", "", metadataWire, since},
	{"widgets", "", "tier=gold", "", "", stateFirst},
	{"widgets", "", "", "spec.size=2", "", since},
	{"widgets", "watched", "", "spec.size!=2", metadataOnly, since},
	{"widgets", "", "tier!=gold", "spec.size=1", "", legacy},
}

// show is a cluster's objects, written at random, and watched meanwhile.
type show struct {
	t      *testing.T
	plays  []*play
	kinds  map[string]kind
	before uint64
}

var showGrounds = []string{"watched", "watched-b", "watched0"}

// putOn makes the namespaces and the custom type, and a few objects.
func putOn(t *testing.T, chance *rand.Rand, suffix string) *show {
	t.Helper()
	s := &stage{cluster: shared, widget: newWidget(t)}
	s.widget.define(t, upstream)
	var namespaces []string
	for _, name := range showGrounds {
		upstream.ok(t, request{method: "POST", path: "/api/v1/namespaces", body: fmt.Sprintf(`{"metadata":{"name":"%s"}}`, name+suffix)})
		namespaces = append(namespaces, name+suffix)
	}
	w := &show{t: t, kinds: map[string]kind{}}
	all := []kind{ofConfigMaps, ofPods, kindOf(s.widget)}
	for _, k := range all {
		w.kinds[k.name] = k
	}
	for _, to := range targets() {
		s.widget.awaitServed(t, to)
		through := *s
		through.keeper = to
		w.plays = append(w.plays, &play{t: t, stage: &through, spaces: namespaces, kinds: all, chance: chance})
	}
	for _, k := range all {
		for _, accept := range []string{"", protobufType} {
			proxied.send(t, request{path: k.path("") + "?resourceVersion=0", accept: accept})
		}
	}
	w.before = must(upstream.revision())(t)
	return w
}

func (s *show) request(l look, seconds int, suffix string) request {
	q := query{"watch=1", fmt.Sprintf("timeoutSeconds=%d", seconds), strings.ReplaceAll(l.from, "{version}", fmt.Sprint(s.before))}
	for name, value := range map[string]string{"labelSelector": l.labels, "fieldSelector": l.fields} {
		if value != "" {
			q = append(q, name+"="+url.QueryEscape(strings.ReplaceAll(value, "watched", "watched"+suffix)))
		}
	}
	ns := strings.ReplaceAll(l.namespace, "watched", "watched"+suffix)
	if strings.HasPrefix(l.namespace, "watched-") {
		ns = l.namespace + suffix
	}
	r := q.on(s.kinds[l.kind].path(ns))
	r.accept = l.accept
	return r
}

// run opens all watches at all places, writes while they are open, and yields
// what each place's watches saw.
func (s *show) run(chance *rand.Rand, places []target, requests []request, seconds int) [][]response {
	t := s.t
	all := make([][]response, len(places))
	var begun, ended sync.WaitGroup
	for i, place := range places {
		all[i] = make([]response, len(requests))
		for j, r := range requests {
			begun.Add(1)
			ended.Go(func() {
				var err error
				if all[i][j], err = place.follow(r, begun.Done); err != nil {
					t.Error(err)
				}
			})
		}
	}
	// The last fifth of the time is for what was written to arrive.
	deadline := time.Now().Add(time.Duration(seconds) * time.Second * 4 / 5)
	begun.Wait()
	var writing sync.WaitGroup
	for i := range writers {
		chance := rand.New(rand.NewPCG(chance.Uint64(), uint64(i)))
		writing.Go(func() {
			there := map[string]bool{}
			for n := 0; time.Now().Before(deadline); n++ {
				if err := s.plays[n%len(s.plays)].writeOne(chance, i, n, there); err != nil {
					t.Error(err)
					return
				}
				time.Sleep(8 * time.Millisecond)
			}
		})
	}
	writing.Wait()
	ended.Wait()
	return all
}

// conformanceWatches opens every look at both sides, writes at random through
// both, and compares what was seen, event by event and byte by byte.
func conformanceWatches(t *testing.T) {
	seconds := 6
	if os.Getenv("CONFORMANCE_FULL") != "" {
		seconds = 25
	}
	const attempts = 3
	for attempt, enough := 1, false; !enough && attempt <= attempts; attempt++ {
		t.Run(fmt.Sprint(seconds, " seconds"), func(t *testing.T) {
			enough = conformanceWatchesFor(t, seconds, fmt.Sprint("-w", seconds), attempt == attempts)
		})
		seconds *= 2
	}
}

// codingOf is how a watch that begins is compressed.
func codingOf(t *testing.T, to target, r request) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	resp := must(to.open(ctx, r))(t)
	defer resp.Body.Close()
	return resp.Header.Get("Content-Encoding")
}

// conformanceWatchesFor yields whether the time was enough for all that was written.
func conformanceWatchesFor(t *testing.T, seconds int, suffix string, last bool) bool {
	chance := chances(seeded(t), 2)
	s := putOn(t, chance, suffix)
	var requests []request
	for _, l := range looks {
		r := s.request(l, seconds, suffix)
		requests = append(requests, r)
		// Upstream compresses these.
		if strings.HasPrefix(l.from, "sendInitialEvents") {
			r.header = map[string]string{"Accept-Encoding": "gzip"}
			requests = append(requests, r)
			// On a busy machine the first may be served before that is known.
			eventually(t, "it is known whether they are compressed", func() error {
				if want, got := codingOf(t, upstream, r), codingOf(t, proxied, r); want != got {
					return fmt.Errorf("not %q but %q", want, got)
				}
				return nil
			})
		}
	}
	all := s.run(chance, targets(), requests, seconds)
	for i, r := range requests {
		if !last && isLate(r, all[0][i], all[1][i]) {
			t.Logf("%v: not all was there when its time was over", r)
			return false
		}
	}
	found := &findings{t: t}
	count := map[string]int{}
	for i, r := range requests {
		want, got := all[0][i], all[1][i]
		v := verdict{want.answer, got.answer, sides{upstream, proxied}.differ(r, want, got)}
		found.note(r, v)
		events, err := want.frames()
		check(t, err)
		if len(events) == 0 {
			if !last {
				return false
			}
			t.Errorf("%v saw nothing", r)
		}
		for _, e := range events {
			count[e.event]++
		}
	}
	found.report()
	t.Logf("%d watches on each side saw %v", len(requests), count)
	if count["MODIFIED"] < 40 || count["DELETED"] < 20 {
		if last {
			t.Errorf("hardly anything was seen: %v", count)
		}
		return t.Failed()
	}
	return true
}
