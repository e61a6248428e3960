package compare

import (
	"strings"
	"sync"
	"testing"

	"watershed.test/real/internal/api"
)

// knownDifference is a way in which watershed is not like upstream, and is known
// not to be. Each has a request that shows it: when that one no longer differs,
// the entry has to go.
type knownDifference struct {
	Name, Reason string
	// Is tells whether a difference is this one.
	Is func(r api.Request, want, got api.Answer) bool
	// Shown are requests that differ.
	Shown func(t *testing.T) []api.Request
}

// KnownDifferences has none at present.
var KnownDifferences []knownDifference

func FromMemory(a api.Answer) bool {
	return !strings.HasPrefix(a.Header.Get("X-Watershed-Source"), "forward")
}

// Findings collects the differences of many requests.
type Findings struct {
	T *testing.T

	mutex sync.Mutex
	// pairs were compared, sources is from where they were answered.
	pairs, differences int
	Sources            map[string]int
	known              map[string]int
	Statuses           map[int]int
}

// ShownDifferences is how many differences are told at length.
const ShownDifferences = 12

func (f *Findings) Add(r api.Request, v Verdict) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.Sources == nil {
		f.Sources, f.known, f.Statuses = map[string]int{}, map[string]int{}, map[int]int{}
	}
	f.pairs++
	f.Sources[v.Got.Header.Get("X-Watershed-Source")]++
	f.Statuses[v.Want.Status]++
	if v.Difference == "" {
		return
	}
	for _, k := range KnownDifferences {
		if k.Is(r, v.Want, v.Got) {
			f.known[k.Name]++
			return
		}
	}
	if f.differences++; f.differences <= ShownDifferences {
		f.T.Errorf("%v Accept: %q, answered from %q\n%s", r, r.Accept, v.Got.Header.Get("X-Watershed-Source"), v.Difference)
	}
}

func (f *Findings) Report() {
	f.T.Helper()
	if f.differences > 0 {
		f.T.Errorf("%d of %d pairs differ", f.differences, f.pairs)
	}
	f.T.Logf("%d pairs; answered from %v; statuses %v; known differences %v", f.pairs, f.Sources, f.Statuses, f.known)
}
