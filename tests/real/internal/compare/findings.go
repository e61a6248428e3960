package compare

import (
	"strings"
	"sync"
	"testing"

	"watershed.test/real/internal/api"
)

// KnownDifference is a way in which watershed is known to differ from upstream. Its requests
// show the difference. Once they no longer do, the entry has to be removed.
type KnownDifference struct {
	Name, Reason string
	// Is reports whether a difference is this one.
	Is func(r api.Request, want, got api.Answer) bool
	// Shown returns requests that differ.
	Shown func(t *testing.T) []api.Request
}

// KnownDifferences lists all known differences. There are none at present.
var KnownDifferences []KnownDifference

// FromMemory reports whether watershed answered without upstream.
func FromMemory(a api.Answer) bool {
	return !strings.HasPrefix(a.Header.Get("X-Watershed-Source"), "forward")
}

// Findings collects the differences of many requests.
type Findings struct {
	T *testing.T

	mutex sync.Mutex
	// pairs counts the compared requests; sources counts the proxy's answers by their source.
	pairs, differences int
	// repeated counts pairs that were compared again, as one answer might have been a moment old.
	repeated int
	Sources  map[string]int
	known    map[string]int
	Statuses map[int]int
}

// ShownDifferences is the number of differences that are reported at length.
const ShownDifferences = 12

// Add records a verdict and reports its difference, if that is not known.
func (f *Findings) Add(r api.Request, v Verdict) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.Sources == nil {
		f.Sources, f.known, f.Statuses = map[string]int{}, map[string]int{}, map[int]int{}
	}
	f.pairs++
	if v.Repeated {
		f.repeated++
	}
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

// Report fails the test if anything differed, and logs the counts.
func (f *Findings) Report() {
	f.T.Helper()
	if f.differences > 0 {
		f.T.Errorf("%d of %d pairs differ", f.differences, f.pairs)
	}
	// Writes of this moment are few.
	if most := 5 + f.pairs/50; f.repeated > most {
		f.T.Errorf("%d of %d pairs differed at first", f.repeated, f.pairs)
	}
	f.T.Logf("%d pairs; answered from %v; statuses %v; known differences %v", f.pairs, f.Sources, f.Statuses, f.known)
}
