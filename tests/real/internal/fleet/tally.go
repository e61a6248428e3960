// Package fleet runs the clients of a whole cluster: the control plane, kubelets, controllers,
// and people with kubectl. It counts where their answers came from.
package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"watershed.test/real/internal/api"
)

// Read is a kind of answered read: who asked for what, and where the answer came from.
type Read struct{ Client, Verb, Form, Source string }

// FromMemory reports whether the proxy answered with objects or events that it holds.
func (r Read) FromMemory() bool { return api.FromMemory(r.Source) }

// Forwarded reports whether upstream answered.
func (r Read) Forwarded() bool { return strings.HasPrefix(r.Source, "forward") }

// Tally counts answers to reads.
type Tally struct {
	mutex sync.Mutex
	reads map[Read]int
}

// NewTally returns a tally without answers.
func NewTally() *Tally { return &Tally{reads: map[Read]int{}} }

// Add counts the answer to a request of a client. Writes do not count.
func (y *Tally) Add(client string, request *http.Request, answer *http.Response) {
	if request.Method != http.MethodGet {
		return
	}
	read := Read{Client: client, Verb: "get or list", Form: "objects", Source: answer.Header.Get("X-Watershed-Source")}
	if (api.Request{Path: request.URL.RequestURI()}).IsWatch() {
		read.Verb = "watch"
	}
	if strings.Contains(request.Header.Get("Accept"), "as=Table") {
		read.Form = "Table"
	}
	y.mutex.Lock()
	defer y.mutex.Unlock()
	y.reads[read]++
}

// Reads returns the counts so far.
func (y *Tally) Reads() map[Read]int {
	y.mutex.Lock()
	defer y.mutex.Unlock()
	return maps.Clone(y.reads)
}

// Rows returns a line for each kind of read, the most frequent first.
func Rows(reads map[Read]int) string {
	var text strings.Builder
	kinds := slices.SortedFunc(maps.Keys(reads), func(a, b Read) int {
		return cmp.Or(cmp.Compare(reads[b], reads[a]), cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)))
	})
	for _, kind := range kinds {
		fmt.Fprintf(&text, "%7d %s: %s of %s, %s\n", reads[kind], kind.Client, kind.Verb, kind.Form, kind.Source)
	}
	return text.String()
}

// transport counts the answers that it carries.
type transport struct {
	client string
	tally  *Tally
	next   http.RoundTripper
}

func (t transport) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := t.next.RoundTrip(request)
	if err == nil {
		t.tally.Add(t.client, request, answer)
	}
	return answer, err
}

// Wrap returns what makes a client's transport count its answers.
func (y *Tally) Wrap(client string) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper { return transport{client, y, next} }
}
