package compare

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/parallel"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// Settle waits until the memory of both sides has reached a version, in each encoding of the
// type.
func Settle(t *testing.T, collection string, version uint64) {
	t.Helper()
	for _, to := range testbed.Targets() {
		for _, accept := range []string{"", api.ProtobufType} {
			poll.Until(t, fmt.Sprintf("%s has %s of %d as %q", to.Name, collection, version, accept), func() error {
				a, err := to.Try(api.Request{Path: fmt.Sprintf("%s?resourceVersionMatch=NotOlderThan&resourceVersion=%d", collection, version), Accept: accept})
				if err == nil && (a.Status != 200 && a.Status != 406 || strings.Contains(a.Header.Get("X-Watershed-Source"), "version-ahead")) {
					err = fmt.Errorf("%d from %s", a.Status, a.Header.Get("X-Watershed-Source"))
				}
				return err
			})
		}
	}
}

// SettleNewest waits until the memory of both sides has the newest object of a collection, and
// returns its version, or 0 if there is none. The list's own version may be later. Memory of a type
// without bookmarks, as events are, then waits for an event that may never come.
func SettleNewest(t *testing.T, collection string) uint64 {
	t.Helper()
	versions := require.Value(testbed.Upstream.Must(t, api.Request{Path: collection}).Items())(t)
	newest := slices.Max(append(slices.Collect(maps.Values(versions)), 0))
	if newest > 0 {
		Settle(t, collection, newest)
	}
	return newest
}

// Reads returns the requests for a collection and an object in it: gets, lists, pages and
// watches, in every form and of different versions. It first waits until both sides have the
// newest object. selectors are parts of a query.
func Reads(t *testing.T, collection, name string, selectors ...string) []api.Request {
	t.Helper()
	return readsAtVersion(t, collection, name, SettleNewest(t, collection), selectors...)
}

func readsAtVersion(t *testing.T, collection, name string, newest uint64, selectors ...string) []api.Request {
	t.Helper()
	at := fmt.Sprintf("resourceVersion=%d", newest)
	lists := []api.Query{nil, {"resourceVersion=0"}, {"limit=1"}}
	watches := []api.Query{{"resourceVersion=0"}, {api.StateFirst}}
	if newest > 0 {
		lists = append(lists, api.Query{at}, api.Query{at, "resourceVersionMatch=Exact"}, api.Query{at, "limit=1"})
		page, _, _ := api.ParseList("application/json", testbed.Upstream.Send(t, api.Request{Path: collection + "?limit=1&" + at}).Body)
		if page.Continue != "" {
			lists = append(lists, api.Query{"limit=1", "continue=" + url.QueryEscape(page.Continue)})
		}
	}
	for _, s := range selectors {
		lists = append(lists, api.Query{"resourceVersion=0", s})
		watches = append(watches, api.Query{"resourceVersion=0", s})
	}
	var requests []api.Request
	add := func(path string, q api.Query, accept string) {
		r := q.On(path)
		r.Accept = accept
		requests = append(requests, r)
	}
	// The slow requests come first.
	for _, q := range watches {
		for _, accept := range []string{"", api.ProtobufType, api.MetadataJSON, api.MetadataProtobuf} {
			add(collection, append(api.Query{"watch=1", "timeoutSeconds=1"}, q...), accept)
		}
	}
	for _, q := range lists {
		for _, accept := range []string{"", api.ProtobufType, api.MetadataListJSON, api.MetadataListProtobuf, api.TableJSON} {
			add(collection, q, accept)
		}
	}
	for _, q := range []api.Query{nil, {"resourceVersion=0"}, {at}} {
		for _, accept := range []string{"", api.ProtobufType, api.MetadataJSON, api.MetadataProtobuf, api.TableJSON} {
			add(collection+"/"+url.PathEscape(name), q, accept)
		}
	}
	return requests
}

// SameAnswers sends requests to both sides and compares status, headers and body. It returns
// the number of answers by upstream's status.
func SameAnswers(t *testing.T, requests []api.Request) (statuses map[int]int) {
	t.Helper()
	return CompareAll(t, requests).Statuses
}

// CompareAll does the same and returns everything it found.
func CompareAll(t *testing.T, requests []api.Request) *Findings {
	t.Helper()
	found := &Findings{T: t}
	parallel.ForEach(48, requests, func(_ int, r api.Request) {
		found.Add(r, Sides{testbed.Upstream, testbed.Proxied}.CompareAtLeisure(r))
	})
	found.Report()
	return found
}

// SameEvents opens the same watches at both sides and then calls write. Each watch has to see
// the object that write names. All events up to that one are compared; their number is
// returned.
func SameEvents(t *testing.T, watches []api.Request, write func() (last string)) (events int) {
	t.Helper()
	return Events(t, watches, write).Events
}

// Events does the same and returns everything it found.
func Events(t *testing.T, watches []api.Request, write func() (last string)) *Findings {
	t.Helper()
	var all [2][]*openAnswer
	var begun sync.WaitGroup
	for i, to := range testbed.Targets() {
		for _, r := range watches {
			l := &openAnswer{}
			all[i] = append(all[i], l)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			begun.Add(1)
			go l.follow(ctx, to, r, begun.Done)
		}
	}
	begun.Wait()
	last := write()
	found := &Findings{T: t}
	for j, r := range watches {
		want, got := all[0][j].until(t, last, testbed.Upstream, r), all[1][j].until(t, last, testbed.Proxied, r)
		difference := Sides{testbed.Upstream, testbed.Proxied}.Differ(r, want, got)
		found.Add(r, Verdict{Want: want.Answer, Got: got.Answer, Difference: difference})
		frames, _ := want.Frames()
		found.Events += len(frames)
	}
	found.Report()
	return found
}

// openAnswer is an answer that is still arriving.
type openAnswer struct {
	mutex sync.Mutex
	api.Answer
	err error
}

func (l *openAnswer) follow(ctx context.Context, to api.Target, r api.Request, begun func()) {
	r.Header = map[string]string{"Accept-Encoding": "identity"}
	resp, err := to.Open(ctx, r)
	l.mutex.Lock()
	if l.err = err; err == nil {
		l.Status, l.Header = resp.StatusCode, resp.Header
	}
	l.mutex.Unlock()
	begun()
	if err != nil {
		return
	}
	defer resp.Body.Close()
	for piece := make([]byte, 16<<10); ; {
		n, err := resp.Body.Read(piece)
		l.mutex.Lock()
		l.Body += string(piece[:n])
		l.err = err
		l.mutex.Unlock()
		if err != nil {
			return
		}
	}
}

// until waits for the first event of an object and returns the answer up to then.
func (l *openAnswer) until(t *testing.T, last string, to api.Target, r api.Request) api.Response {
	t.Helper()
	var a api.Answer
	poll.Until(t, fmt.Sprintf("%s, %v, %s: an event of %s", to.Name, r, r.Accept, last), func() error {
		l.mutex.Lock()
		defer l.mutex.Unlock()
		a = l.Answer
		frames, err := a.Frames()
		var seen []string
		for _, f := range frames {
			if err == nil && strings.HasSuffix(f.Key, "/"+last) {
				return nil
			}
			seen = append(seen, f.Event+" "+f.Key)
		}
		if l.err != nil && !errors.Is(l.err, io.EOF) {
			err = l.err
		}
		return fmt.Errorf("%d, %v, so far %v", a.Status, err, seen[max(0, len(seen)-5):])
	})
	return api.Response{Answer: a}
}
