package real

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
)

const (
	metadataList     = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	metadataWireList = protobufType + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	table            = "application/json;as=Table;g=meta.k8s.io;v=v1"
)

// reads is what can be asked about a collection and an object in it: gets,
// lists, pages and watches in every form, of whichever version. Both sides have
// come to the newest object when it returns. Selectors are parts of a query.
func reads(t *testing.T, collection, name string, selectors ...string) []request {
	t.Helper()
	all := must(upstream.ok(t, request{path: collection}).items())(t)
	newest := slices.Max(append(slices.Collect(maps.Values(all)), 0))
	if newest > 0 {
		settle(t, collection, newest)
	}
	return readsAt(t, collection, name, newest, selectors...)
}

func readsAt(t *testing.T, collection, name string, newest uint64, selectors ...string) []request {
	t.Helper()
	at := fmt.Sprintf("resourceVersion=%d", newest)
	lists := []query{nil, {"resourceVersion=0"}, {"limit=1"}}
	watches := []query{{"resourceVersion=0"}, {stateFirst}}
	if newest > 0 {
		lists = append(lists, query{at}, query{at, "resourceVersionMatch=Exact"}, query{at, "limit=1"})
		page, _, _ := dissect("application/json", upstream.send(t, request{path: collection + "?limit=1&" + at}).body)
		if page.Continue != "" {
			lists = append(lists, query{"limit=1", "continue=" + url.QueryEscape(page.Continue)})
		}
	}
	for _, s := range selectors {
		lists = append(lists, query{"resourceVersion=0", s})
		watches = append(watches, query{"resourceVersion=0", s})
	}
	var requests []request
	add := func(path string, q query, accept string) {
		r := q.on(path)
		r.accept = accept
		requests = append(requests, r)
	}
	// Those that take their time come first.
	for _, q := range watches {
		for _, accept := range []string{"", protobufType, metadataOnly, metadataWire} {
			add(collection, append(query{"watch=1", "timeoutSeconds=1"}, q...), accept)
		}
	}
	for _, q := range lists {
		for _, accept := range []string{"", protobufType, metadataList, metadataWireList, table} {
			add(collection, q, accept)
		}
	}
	for _, q := range []query{nil, {"resourceVersion=0"}, {at}} {
		for _, accept := range []string{"", protobufType, metadataOnly, metadataWire, table} {
			add(collection+"/"+url.PathEscape(name), q, accept)
		}
	}
	return requests
}

// sameAnswers sends requests both ways and compares status, headers and body. It
// counts upstream's statuses.
func sameAnswers(t *testing.T, requests []request) (statuses map[int]int) {
	t.Helper()
	return sameFindings(t, requests).statuses
}

// sameFindings does it and tells all it has found.
func sameFindings(t *testing.T, requests []request) *findings {
	t.Helper()
	found := &findings{t: t}
	workers(48, requests, func(_ int, r request) {
		found.note(r, sides{upstream, proxied}.compareAtLeisure(r))
	})
	found.report()
	return found
}

// sameEvents has the same watches opened at both sides and then something
// written, of which each watch must see the object that write names. What was
// seen up to that is compared event by event; the number of events is returned.
func sameEvents(t *testing.T, watches []request, write func() (last string)) (events int) {
	t.Helper()
	var all [2][]*live
	var begun sync.WaitGroup
	for i, to := range targets() {
		for _, r := range watches {
			l := &live{}
			all[i] = append(all[i], l)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			begun.Add(1)
			go l.follow(ctx, to, r, begun.Done)
		}
	}
	begun.Wait()
	last := write()
	found := &findings{t: t}
	for j, r := range watches {
		want, got := all[0][j].until(t, last, upstream, r), all[1][j].until(t, last, proxied, r)
		found.note(r, verdict{want.answer, got.answer, sides{upstream, proxied}.differ(r, want, got)})
		frames, _ := want.frames()
		events += len(frames)
	}
	found.report()
	return events
}

// live is an answer that is still coming.
type live struct {
	mutex sync.Mutex
	answer
	err error
}

func (l *live) follow(ctx context.Context, to target, r request, begun func()) {
	r.header = map[string]string{"Accept-Encoding": "identity"}
	resp, err := to.open(ctx, r)
	l.mutex.Lock()
	if l.err = err; err == nil {
		l.status, l.header = resp.StatusCode, resp.Header
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
		l.body += string(piece[:n])
		l.err = err
		l.mutex.Unlock()
		if err != nil {
			return
		}
	}
}

// until is the answer when it has come to an object's first event.
func (l *live) until(t *testing.T, last string, to target, r request) response {
	t.Helper()
	var a answer
	eventually(t, fmt.Sprintf("%s, %v, %s: an event of %s", to.name, r, r.accept, last), func() error {
		l.mutex.Lock()
		defer l.mutex.Unlock()
		a = l.answer
		frames, err := a.frames()
		var seen []string
		for _, f := range frames {
			if err == nil && strings.HasSuffix(f.key, "/"+last) {
				return nil
			}
			seen = append(seen, f.event+" "+f.key)
		}
		if l.err != nil && !errors.Is(l.err, io.EOF) {
			err = l.err
		}
		return fmt.Errorf("%d, %v, so far %v", a.status, err, seen[max(0, len(seen)-5):])
	})
	return response{answer: a}
}
