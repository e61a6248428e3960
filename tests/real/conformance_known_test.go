package real

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// knownDifference is a way in which watershed is not like upstream, and is known
// not to be. Each has a request that shows it: when that one no longer differs,
// the entry has to go.
type knownDifference struct {
	name, reason string
	// is tells whether a difference is this one.
	is func(r request, want, got answer) bool
	// shown are requests that differ.
	shown func(t *testing.T) []request
}

var knownDifferences = []knownDifference{
	{
		name:   "gzip of watches",
		reason: "upstream compresses watches that begin with the state and end it with a bookmark; from memory they are not",
		is: func(r request, want, got answer) bool {
			return r.isWatch() && want.header.Get("Content-Encoding") == "gzip" && got.header.Get("Content-Encoding") == "" && fromMemory(got)
		},
		shown: func(t *testing.T) []request {
			r := request{path: "/api/v1/namespaces?watch=1&resourceVersion=0&allowWatchBookmarks=true&timeoutSeconds=1", header: map[string]string{"Accept-Encoding": "gzip"}}
			if upstream.send(t, r).header.Get("Content-Encoding") == "" {
				t.Skip("this release compresses no watches")
			}
			return []request{r}
		},
	},
}

func fromMemory(a answer) bool {
	return !strings.HasPrefix(a.header.Get("X-Watershed-Source"), "forward")
}

// findings collects the differences of many requests.
type findings struct {
	t *testing.T

	mutex sync.Mutex
	// pairs were compared, sources is from where they were answered.
	pairs, differences int
	sources            map[string]int
	known              map[string]int
	statuses           map[int]int
}

// shownDifferences is how many differences are told at length.
const shownDifferences = 12

func (f *findings) note(r request, v verdict) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.sources == nil {
		f.sources, f.known, f.statuses = map[string]int{}, map[string]int{}, map[int]int{}
	}
	f.pairs++
	f.sources[v.got.header.Get("X-Watershed-Source")]++
	f.statuses[v.want.status]++
	if v.difference == "" {
		return
	}
	for _, k := range knownDifferences {
		if k.is(r, v.want, v.got) {
			f.known[k.name]++
			return
		}
	}
	if f.differences++; f.differences <= shownDifferences {
		f.t.Errorf("%v Accept: %q, answered from %q\n%s", r, r.accept, v.got.header.Get("X-Watershed-Source"), v.difference)
	}
}

func (f *findings) report() {
	f.t.Helper()
	if f.differences > 0 {
		f.t.Errorf("%d of %d pairs differ", f.differences, f.pairs)
	}
	f.t.Logf("%d pairs; answered from %v; statuses %v; known differences %v", f.pairs, f.sources, f.statuses, f.known)
}

// seeded is the seed of a test's choices: REAL_SEED, or a new one.
func seeded(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("REAL_SEED"); text != "" {
		must(fmt.Sscan(text, &seed))(t)
	}
	t.Logf("REAL_SEED=%d", seed)
	return seed
}

func chances(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }

// conformanceKnown: what is listed as different still is.
func conformanceKnown(t *testing.T) {
	if direct {
		t.Skip("upstream does not differ from itself")
	}
	for _, k := range knownDifferences {
		t.Run(strings.ReplaceAll(k.name, " ", "-"), func(t *testing.T) {
			for _, r := range k.shown(t) {
				v := sides{upstream, proxied}.compare(r)
				if v.difference == "" || !k.is(r, v.want, v.got) {
					t.Errorf("%v, answered from %q: this no longer differs (%s); take it from the list", r, v.got.header.Get("X-Watershed-Source"), k.reason)
				}
			}
		})
	}
}
