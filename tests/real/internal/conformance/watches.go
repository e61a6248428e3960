package conformance

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

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/random"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
	"watershed.test/real/internal/watches"
	"watershed.test/real/internal/workload"
)

// watchQuery selects what is watched during the writes, and in which form.
type watchQuery struct {
	kind           string
	namespace      string
	labels, fields string
	accept         string
	// from is the rest of the query. {version} in it stands for the version before the first
	// write.
	from string
}

var watchQueries = []watchQuery{
	{"configmaps", "", "", "", "", api.ResumeWithBookmarks},
	{"configmaps", "", "", "", api.ProtobufType, api.ResumeWithBookmarks},
	{"configmaps", "", "", "", "", api.StateFirst},
	{"configmaps", "", "", "", api.ProtobufType, api.LatestStateFirst},
	{"configmaps", "", "", "", api.MetadataJSON, api.ResumeWithBookmarks},
	{"configmaps", "", "", "", api.MetadataProtobuf, api.StateFirst},
	{"configmaps", "watched", "", "", "", api.FromAnyVersion},
	{"configmaps", "watched-b", "", "", api.ProtobufType, api.Resume},
	{"configmaps", "", "tier=gold", "", "", api.ResumeWithBookmarks},
	{"configmaps", "", "tier=gold", "", api.ProtobufType, api.ResumeWithBookmarks},
	{"configmaps", "", "tier=gold", "", "", api.StateFirst},
	{"configmaps", "", "tier=gold", "", api.MetadataJSON, api.Resume},
	{"configmaps", "", "tier=gold", "", api.MetadataProtobuf, api.ResumeWithBookmarks},
	{"configmaps", "", "tier!=gold", "", api.ProtobufType, api.FromAnyVersion},
	{"configmaps", "watched", "tier in (gold,iron)", "", "", api.ResumeWithBookmarks},
	{"configmaps", "watched-b", "!tier", "", api.ProtobufType, api.StateFirst},
	{"configmaps", "", "", "metadata.name=w0-1", "", api.ResumeWithBookmarks},
	{"configmaps", "", "", "metadata.name!=w1-2", api.ProtobufType, api.ResumeWithBookmarks},
	{"configmaps", "", "tier=gold", "metadata.namespace=watched", "", api.ResumeWithBookmarks},
	{"pods", "", "", "", api.ProtobufType, api.ResumeWithBookmarks},
	{"pods", "", "", "spec.nodeName=node-0", "", api.ResumeWithBookmarks},
	{"pods", "", "", "spec.nodeName=node-1", api.ProtobufType, api.StateFirst},
	{"pods", "watched", "tier=gold", "spec.nodeName!=node-1", api.ProtobufType, api.ResumeWithBookmarks},
	{"pods", "", "tier", "status.phase=Pending", "", api.Resume},
	{"pods", "", "tier=iron", "", api.MetadataProtobuf, api.ResumeWithBookmarks},
	{"widgets", "", "", "", "", api.ResumeWithBookmarks},
	{"widgets", "", "", "", api.MetadataProtobuf, api.ResumeWithBookmarks},
	{"widgets", "", "tier=gold", "", "", api.StateFirst},
	{"widgets", "", "", "spec.size=2", "", api.ResumeWithBookmarks},
	{"widgets", "watched", "", "spec.size!=2", api.MetadataJSON, api.ResumeWithBookmarks},
	{"widgets", "", "tier!=gold", "spec.size=1", "", api.FromAnyVersion},
}

// watchRun holds objects that are written at random and watched meanwhile.
type watchRun struct {
	t      *testing.T
	plays  []*workload.Scenario
	kinds  map[string]watches.Kind
	before uint64
}

var watchedNamespaces = []string{"watched", "watched-b", "watched0"}

// newWatchRun creates the namespaces, the custom type and a few objects.
func newWatchRun(t *testing.T, chance *rand.Rand, suffix string) *watchRun {
	t.Helper()
	s := &workload.Stage{Cluster: testbed.Shared, Widget: objects.NewWidget(t)}
	s.Widget.Define(t, testbed.Upstream)
	var namespaces []string
	for _, name := range watchedNamespaces {
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: "/api/v1/namespaces", Body: fmt.Sprintf(`{"metadata":{"name":"%s"}}`, name+suffix)})
		namespaces = append(namespaces, name+suffix)
	}
	w := &watchRun{t: t, kinds: map[string]watches.Kind{}}
	all := []watches.Kind{watches.ConfigMaps, watches.Pods, watches.KindOf(s.Widget)}
	for _, k := range all {
		w.kinds[k.Name] = k
	}
	for _, to := range testbed.Targets() {
		s.Widget.AwaitServed(t, to)
		through := *s
		through.Stable = to
		w.plays = append(w.plays, &workload.Scenario{T: t, Stage: &through, Spaces: namespaces, Kinds: all, Chance: chance})
	}
	for _, k := range all {
		for _, accept := range []string{"", api.ProtobufType} {
			testbed.Proxied.Send(t, api.Request{Path: k.Path("") + "?resourceVersion=0", Accept: accept})
		}
	}
	w.before = require.Value(testbed.Upstream.Revision())(t)
	return w
}

func (s *watchRun) request(l watchQuery, seconds int, suffix string) api.Request {
	q := api.Query{"watch=1", fmt.Sprintf("timeoutSeconds=%d", seconds), strings.ReplaceAll(l.from, "{version}", fmt.Sprint(s.before))}
	for name, value := range map[string]string{"labelSelector": l.labels, "fieldSelector": l.fields} {
		if value != "" {
			q = append(q, name+"="+url.QueryEscape(strings.ReplaceAll(value, "watched", "watched"+suffix)))
		}
	}
	ns := strings.ReplaceAll(l.namespace, "watched", "watched"+suffix)
	if strings.HasPrefix(l.namespace, "watched-") {
		ns = l.namespace + suffix
	}
	r := q.On(s.kinds[l.kind].Path(ns))
	r.Accept = l.accept
	return r
}

// run opens all watches at all places, writes meanwhile, and returns the answers of each place.
func (s *watchRun) run(chance *rand.Rand, places []api.Target, requests []api.Request, seconds int) [][]api.Response {
	t := s.t
	all := make([][]api.Response, len(places))
	var begun, ended sync.WaitGroup
	for i, place := range places {
		all[i] = make([]api.Response, len(requests))
		for j, r := range requests {
			begun.Add(1)
			ended.Go(func() {
				var err error
				if all[i][j], err = place.Follow(r, begun.Done); err != nil {
					t.Error(err)
				}
			})
		}
	}
	// The last fifth of the time lets the writes arrive.
	deadline := time.Now().Add(time.Duration(seconds) * time.Second * 4 / 5)
	begun.Wait()
	var writing sync.WaitGroup
	for i := range workload.Writers {
		chance := rand.New(rand.NewPCG(chance.Uint64(), uint64(i)))
		writing.Go(func() {
			there := map[string]bool{}
			for n := 0; time.Now().Before(deadline); n++ {
				if err := s.plays[n%len(s.plays)].WriteOne(chance, i, n, there); err != nil {
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

// Watches opens every watch at both sides, writes at random through both, and compares the
// events byte by byte.
func Watches(t *testing.T) {
	seconds := 6
	if os.Getenv("CONFORMANCE_FULL") != "" {
		seconds = 25
	}
	const attempts = 3
	for attempt, enough := 1, false; !enough && attempt <= attempts; attempt++ {
		t.Run(fmt.Sprint(seconds, " seconds"), func(t *testing.T) {
			enough = watchesFor(t, seconds, fmt.Sprint("-w", seconds), attempt == attempts)
		})
		seconds *= 2
	}
}

// codingOf returns the Content-Encoding of a watch.
func codingOf(t *testing.T, to api.Target, r api.Request) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), poll.Patience)
	defer cancel()
	resp := require.Value(to.Open(ctx, r))(t)
	defer resp.Body.Close()
	return resp.Header.Get("Content-Encoding")
}

// watchesFor reports whether the time sufficed for everything that was written.
func watchesFor(t *testing.T, seconds int, suffix string, last bool) bool {
	chance := random.Stream(random.Seed(t), 2)
	s := newWatchRun(t, chance, suffix)
	var requests []api.Request
	for _, l := range watchQueries {
		r := s.request(l, seconds, suffix)
		requests = append(requests, r)
		// Upstream compresses these watches.
		if strings.HasPrefix(l.from, "sendInitialEvents") {
			r.Header = map[string]string{"Accept-Encoding": "gzip"}
			requests = append(requests, r)
			// On a busy machine the proxy may serve the first such watch before it knows that.
			poll.Until(t, "both sides compress the watch alike", func() error {
				if want, got := codingOf(t, testbed.Upstream, r), codingOf(t, testbed.Proxied, r); want != got {
					return fmt.Errorf("not %q but %q", want, got)
				}
				return nil
			})
		}
	}
	all := s.run(chance, testbed.Targets(), requests, seconds)
	for i, r := range requests {
		if !last && compare.IsLate(r, all[0][i], all[1][i]) {
			t.Logf("%v: its time was over before everything arrived", r)
			return false
		}
	}
	found := &compare.Findings{T: t}
	count := map[string]int{}
	for i, r := range requests {
		want, got := all[0][i], all[1][i]
		v := compare.Verdict{Want: want.Answer, Got: got.Answer, Difference: compare.Sides{Right: testbed.Upstream, Asked: testbed.Proxied}.Differ(r, want, got)}
		found.Add(r, v)
		events, err := want.Frames()
		require.NoError(t, err)
		if len(events) == 0 {
			if !last {
				return false
			}
			t.Errorf("%v has no events", r)
		}
		for _, e := range events {
			count[e.Event]++
		}
	}
	found.Report()
	t.Logf("%d watches on each side saw %v", len(requests), count)
	if count["MODIFIED"] < 40 || count["DELETED"] < 20 {
		if last {
			t.Errorf("too few events: %v", count)
		}
		return t.Failed()
	}
	return true
}
