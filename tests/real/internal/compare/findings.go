package compare

import (
	"sync"
	"testing"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/testbed"
)

// FromMemory reports whether watershed answered with objects or events that it holds.
func FromMemory(a api.Answer) bool { return api.FromMemory(a.Header.Get("X-Watershed-Source")) }

// Findings collects the differences of many requests.
type Findings struct {
	T *testing.T

	mutex sync.Mutex
	// pairs counts the compared requests; sources counts the proxy's answers by their source.
	pairs, differences int
	// repeated counts pairs that were compared again, as one answer might have been a moment old.
	repeated int
	Sources  map[string]int
	Statuses map[int]int
	// Events counts the compared events of watches that were open meanwhile.
	Events int
}

// FromMemory returns the number of answers with objects or events that the proxy holds.
func (f *Findings) FromMemory() (n int) {
	for source, count := range f.Sources {
		if api.FromMemory(source) {
			n += count
		}
	}
	return n
}

// RequireSources fails the test unless each of these is the source of an answer. With REAL_DIRECT
// there are no sources.
func (f *Findings) RequireSources(sources ...string) {
	f.T.Helper()
	for _, source := range sources {
		if f.Sources[source] == 0 && !testbed.Direct {
			f.T.Errorf("no answer is from %q: %v", source, f.Sources)
		}
	}
}

// ShownDifferences is the number of differences that are reported at length.
const ShownDifferences = 12

// Add records a verdict and reports its difference.
func (f *Findings) Add(r api.Request, v Verdict) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.Sources == nil {
		f.Sources, f.Statuses = map[string]int{}, map[int]int{}
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
	f.T.Logf("%d pairs; answered from %v; statuses %v", f.pairs, f.Sources, f.Statuses)
}
