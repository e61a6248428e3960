package robustness

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/history"
	"watershed.test/real/internal/parallel"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/random"
	"watershed.test/real/internal/watches"
)

// acknowledgedWrite is an acknowledged write. A deletion has the version before it.
type acknowledgedWrite struct {
	history.Write
	kind, key string
	gone      bool
}

// writer writes objects whose names belong to it, so it knows which exist.
type writer struct {
	number int
	// there holds the versions of existing objects by path.
	there map[string]uint64
	// born counts how often a name was given up. A failed write may have happened all the same,
	// even later.
	born map[string]int
	n    int
}

const namesPerWriter = 8

func (s *Run) object(k watches.Kind, name, tier string) string {
	type object map[string]any
	meta := object{"name": name, "annotations": object{"at": s.now().String()}}
	if tier != "" {
		meta["labels"] = object{"tier": tier}
	}
	body := object{"metadata": meta}
	switch k.Name {
	case "limitranges":
		body["spec"] = object{"limits": []any{}}
	case s.widget.Plural:
		body["apiVersion"], body["kind"], body["spec"] = s.widget.Group+"/v1", "Widget", object{"size": 1}
	}
	return api.JSON(body)
}

// write changes an object in one step or two.
func (w *writer) write(b *phase, chance *rand.Rand, to api.Target) {
	k := b.stage.kinds[[]int{0, 0, 0, 0, 1, 1, 2, 2, 2}[chance.IntN(9)]]
	slot := fmt.Sprintf("w%d-%d", w.number, chance.IntN(namesPerWriter))
	ns := b.stage.spaces[chance.IntN(len(b.stage.spaces))]
	path := k.Path(ns) + "/" + w.name(k.Path(ns)+"/"+slot, slot)
	_, there := w.there[path]
	dice := chance.IntN(10)
	switch {
	case there && dice < 6:
		w.do(b, chance, to, k, ns, path, http.MethodPatch)
	case there && dice < 8:
		w.do(b, chance, to, k, ns, path, http.MethodDelete)
	case there:
		// The object returns at once and is another one.
		if w.do(b, chance, to, k, ns, path, http.MethodDelete) {
			w.do(b, chance, to, k, ns, path, http.MethodPost)
		}
	case dice < 7:
		w.do(b, chance, to, k, ns, path, http.MethodPost)
	default:
		// The object is gone before most readers have seen it.
		if w.do(b, chance, to, k, ns, path, http.MethodPost) {
			w.do(b, chance, to, k, ns, path, http.MethodDelete)
		}
	}
}

func (w *writer) name(slot, name string) string { return fmt.Sprintf("%s-%d", name, w.born[slot]) }

// toggle creates an object, or deletes it if it exists.
func (w *writer) toggle(b *phase, chance *rand.Rand, to api.Target, k watches.Kind, ns, name string) {
	path := k.Path(ns) + "/" + name
	method := http.MethodPost
	if _, there := w.there[path]; there {
		method = http.MethodDelete
	}
	w.do(b, chance, to, k, ns, path, method)
}

// do sends one write and records it.
func (w *writer) do(b *phase, chance *rand.Rand, to api.Target, k watches.Kind, ns, path, method string) bool {
	collection, name := path[:strings.LastIndexByte(path, '/')], path[strings.LastIndexByte(path, '/')+1:]
	r := api.Request{Method: method, Path: path}
	tier := []string{"gold", "iron", "lead", ""}[chance.IntN(4)]
	w.n++
	switch method {
	case http.MethodPost:
		r.Path, r.Body = collection, b.stage.object(k, name, tier)
	case http.MethodPatch:
		r.ContentType = "application/merge-patch+json"
		r.Body = fmt.Sprintf(`{"metadata":{"labels":{"tier":%s},"annotations":{"n":"%d-%d"}}}`,
			map[bool]string{true: "null", false: `"` + tier + `"`}[tier == ""], w.number, w.n)
	}
	done := acknowledgedWrite{kind: k.Name, key: ns + "/" + name, gone: method == http.MethodDelete}
	done.Version, done.Begun = w.there[path], b.stage.now()
	a, err := to.Try(r)
	done.Ended = b.stage.now()
	if err == nil && a.Status >= 300 {
		err = fmt.Errorf("%d %.300s", a.Status, a.Body)
	}
	var object api.Object
	if err == nil && !done.gone {
		err = json.Unmarshal([]byte(a.Body), &object)
	}
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if err != nil {
		b.failed[summary(err)]++
		delete(w.there, path)
		// Names end in the number of names that were given up before.
		slot := path[:max(strings.LastIndexByte(path, '-'), 0)]
		w.born[slot]++
		return false
	}
	if done.gone {
		delete(w.there, path)
	} else {
		done.Version = object.Version()
		w.there[path] = done.Version
	}
	b.written = append(b.written, done)
	return true
}

var number = regexp.MustCompile(`\d\d+|https://[^ "]+`)

// summary returns what errors of one kind have in common.
func summary(err error) string {
	text := number.ReplaceAllString(err.Error(), "N")
	for _, word := range []string{"connection refused", "connection reset", "EOF", "deadline exceeded", "could not be reached", "may have done this or not", "INTERNAL_ERROR"} {
		if strings.Contains(text, word) {
			return word
		}
	}
	return fmt.Sprintf("%.200s", text)
}

// reader is a client that reads once.
type reader struct {
	bout    *phase
	journal *journal
	chance  *rand.Rand
	place   watches.Endpoint
}

// readPlan says what a client reads, and in which form.
type readPlan struct {
	kind      watches.Kind
	namespace string
	selector  string
	// These two select the Accept header.
	protobuf, metadata bool
}

func (w readPlan) String() string {
	s := fmt.Sprintf("%s %s %q", w.kind.Name, w.namespace, w.selector)
	if w.protobuf {
		s += " protobuf"
	}
	if w.metadata {
		s += " metadata"
	}
	return s
}

func (w readPlan) accept(list bool) string {
	form := api.JSONType
	if w.protobuf {
		form = api.ProtobufType
	}
	if w.metadata {
		form += ";as=PartialObjectMetadata"
		if list {
			form += "List"
		}
		form += ";g=meta.k8s.io;v=v1"
	}
	return form
}

func (w readPlan) query() url.Values {
	values := url.Values{}
	if w.selector != "" {
		values.Set("labelSelector", w.selector)
	}
	return values
}

func (l *reader) wish() readPlan {
	kinds := l.bout.stage.kinds
	w := readPlan{kind: kinds[[]int{0, 0, 0, 1, 1, 2, 2, 2, 3, 3}[l.chance.IntN(10)]], metadata: l.chance.IntN(3) == 0}
	w.protobuf = l.chance.IntN(2) == 0 && (w.metadata || w.kind.Name != l.bout.stage.widget.Plural)
	if l.chance.IntN(3) == 0 {
		w.selector = selectorTexts[l.chance.IntN(len(selectorTexts))]
	}
	if l.chance.IntN(3) == 0 {
		w.namespace = l.bout.stage.spaces[l.chance.IntN(len(l.bout.stage.spaces))]
	}
	return w
}

func (l *reader) reading(m history.ReadKind, w readPlan) history.Read {
	return history.Read{Manner: m, Words: fmt.Sprintf("%s of %v from %s", m, w, l.place.URL),
		Selector: selectors[w.selector], Namespace: w.namespace, Begun: l.bout.stage.now()}
}

// note records a read.
func (l *reader) note(w readPlan, r history.Read) {
	l.journal.mutex.Lock()
	defer l.journal.mutex.Unlock()
	l.journal.readings[w.kind.Name] = append(l.journal.readings[w.kind.Name], r)
	source := r.Source
	if r.Manner == history.Get {
		source = "get " + source
	}
	l.journal.sources[source]++
}

func (l *reader) failed(err error) {
	l.journal.mutex.Lock()
	defer l.journal.mutex.Unlock()
	l.journal.failures++
	l.journal.failed[summary(err)]++
}

func (l *reader) odd(format string, args ...any) {
	l.journal.mutex.Lock()
	defer l.journal.mutex.Unlock()
	l.journal.odd = append(l.journal.odd, fmt.Sprintf(format, args...))
}

// get reads one object, which upstream answers.
func (l *reader) get(w readPlan) {
	w.namespace = l.bout.stage.spaces[l.chance.IntN(2)]
	l.getNamed(w, fmt.Sprintf("w%d-%d-0", l.chance.IntN(4), l.chance.IntN(namesPerWriter)))
}

// gets reads many objects at once, so that they share a proof.
func (l *reader) gets(w readPlan) {
	var names []string
	for i := range 4 * namesPerWriter {
		names = append(names, fmt.Sprintf("w%d-%d-0", i/namesPerWriter, i%namesPerWriter))
	}
	for _, namespace := range l.bout.stage.spaces {
		w.namespace = namespace
		in := w
		parallel.ForEach(len(names), names, func(_ int, name string) { l.getNamed(in, name) })
	}
}

func (l *reader) getNamed(w readPlan, name string) {
	w.selector, w.metadata, w.protobuf = "", false, false
	r := l.reading(history.Get, w)
	r.Items = []history.ObjectVersion{{Key: w.namespace + "/" + name}}
	a, err := l.fetch(w.kind.Path(w.namespace)+"/"+name, w.accept(false))
	r.Ended = l.bout.stage.now()
	if err == nil && a.Status != http.StatusOK && a.Status != http.StatusNotFound {
		err = fmt.Errorf("%d %.200s", a.Status, a.Body)
	}
	if err == nil && a.Status == http.StatusOK {
		var object api.Object
		err = json.Unmarshal([]byte(a.Body), &object)
		r.Version = object.Version()
	}
	if err != nil {
		l.failed(err)
		return
	}
	r.Source = a.Header.Get("X-Watershed-Source")
	l.note(w, r)
}

func (l *reader) fetch(path, accept string) (api.Answer, error) {
	ctx, cancel := context.WithTimeout(l.bout.ctx, poll.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.place.URL+path, nil)
	if err != nil {
		return api.Answer{}, err
	}
	req.Header.Set("Authorization", "Bearer "+l.place.Token)
	req.Header.Set("Accept", accept)
	resp, err := l.place.Client.Do(req)
	if err != nil {
		return api.Answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return api.Answer{Status: resp.StatusCode, Header: resp.Header, Body: string(body)}, err
}

// list reads the latest state, at once or in pages.
func (l *reader) list(w readPlan) {
	query := w.query()
	how, pages := history.List, 1
	if l.chance.IntN(3) == 0 {
		how, pages = history.Pages, 1+l.chance.IntN(12)
		query.Set("limit", []string{"1", "3", "50"}[l.chance.IntN(3)])
	}
	r := l.reading(how, w)
	for page := range pages {
		a, err := l.fetch(w.kind.Path(w.namespace)+"?"+query.Encode(), w.accept(true))
		at := l.bout.stage.now()
		if err == nil && a.Status != http.StatusOK {
			err = fmt.Errorf("%d %.200s", a.Status, a.Body)
		}
		var list metav1.PartialObjectMetadataList
		if err == nil {
			err = decode(w, []byte(a.Body), &list)
		}
		if err != nil {
			l.failed(err)
			if page == 0 {
				return
			}
			r.Partial = true
			break
		}
		if page == 0 {
			// This answer determines the version. Later pages are of the past.
			r.Ended, r.Version, r.Source = at, api.ParseVersion(list.ResourceVersion), a.Header.Get("X-Watershed-Source")
		} else if api.ParseVersion(list.ResourceVersion) != r.Version {
			l.odd("%v: page %d is of %s", r, page, list.ResourceVersion)
		}
		for _, item := range list.Items {
			r.Items = append(r.Items, history.ObjectVersion{Key: item.Namespace + "/" + item.Name, Version: api.ParseVersion(item.ResourceVersion)})
		}
		if r.Partial = list.Continue != ""; !r.Partial {
			break
		}
		query.Set("continue", list.Continue)
	}
	l.note(w, r)
}

type unmarshaler interface{ Unmarshal([]byte) error }

// decode reads metadata alone, which every object and list has in the same place.
func decode(w readPlan, text []byte, into unmarshaler) error {
	if !w.protobuf {
		return json.Unmarshal(text, into)
	}
	raw, err := api.UnwrapProtobuf(text)
	if err != nil {
		return err
	}
	return into.Unmarshal(raw)
}

// watch reads the latest state by a watch that begins with it, and follows it for a while.
// Sometimes it follows the events alone.
func (l *reader) watch(w readPlan) {
	how, marked := history.Watch, false
	if l.chance.IntN(4) == 0 {
		how, marked = history.Events, true
	}
	query := w.query()
	query.Set("watch", "1")
	query.Set("timeoutSeconds", "60")
	query.Set("allowWatchBookmarks", "true")
	query.Set("resourceVersionMatch", "NotOlderThan")
	query.Set("sendInitialEvents", fmt.Sprint(how == history.Watch))
	ctx, cancel := context.WithTimeout(l.bout.ctx, poll.Patience)
	defer cancel()
	r := l.reading(how, w)
	resp, err := l.place.Get(ctx, w.kind.Path(w.namespace)+"?"+query.Encode(), w.accept(false))
	if err != nil {
		l.failed(err)
		return
	}
	defer resp.Body.Close()
	r.Source = resp.Header.Get("X-Watershed-Source")
	reader := bufio.NewReaderSize(resp.Body, 16<<10)
	follow := func() {
		r.Ended = l.bout.stage.now()
		time.AfterFunc(random.Between(l.chance, 100*time.Millisecond, 2*time.Second), cancel)
	}
	if marked {
		follow()
	}
	for {
		event, object, err := readMetadata(w, reader)
		if err != nil && ctx.Err() == nil {
			l.failed(fmt.Errorf("a watch of %s from %q ended, marked %v: %w", w.kind.Name, r.Source, marked, err))
		}
		if err != nil && !marked {
			return
		}
		if err != nil {
			break
		}
		item := history.ObjectVersion{Key: object.Namespace + "/" + object.Name, Version: api.ParseVersion(object.ResourceVersion)}
		switch {
		case event == "BOOKMARK" && !marked && object.Annotations[api.InitialEventsEnd] == "true":
			marked = true
			r.Version = item.Version
			follow()
		case event == "BOOKMARK" && marked:
			r.Marks = append(r.Marks, watches.Bookmark{Version: item.Version, After: len(r.Events)})
		case event == "ADDED" && !marked:
			r.Items = append(r.Items, item)
		case (event == "ADDED" || event == "MODIFIED" || event == "DELETED") && marked:
			r.Events = append(r.Events, watches.Event{Event: event, Key: item.Key, Version: item.Version})
		default:
			l.odd("%v: %s of %v, marked: %v", r, event, item, marked)
			return
		}
	}
	l.note(w, r)
}

var errToldError = errors.New("an ERROR event")

// readMetadata reads the next event of a watch. An ERROR event is returned as an error.
func readMetadata(w readPlan, r *bufio.Reader) (event string, object metav1.PartialObjectMetadata, err error) {
	var raw []byte
	if !w.protobuf {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return "", object, err
		}
		var frame struct {
			Type   string
			Object json.RawMessage
		}
		if err := json.Unmarshal(line, &frame); err != nil {
			return "", object, err
		}
		event, raw = frame.Type, frame.Object
	} else {
		var size [4]byte
		if _, err := io.ReadFull(r, size[:]); err != nil {
			return "", object, err
		}
		text := make([]byte, binary.BigEndian.Uint32(size[:]))
		if _, err := io.ReadFull(r, text); err != nil {
			return "", object, err
		}
		var frame metav1.WatchEvent
		if err := frame.Unmarshal(text); err != nil {
			return "", object, err
		}
		event, raw = frame.Type, frame.Object.Raw
	}
	if event == "ERROR" {
		return event, object, fmt.Errorf("%w: %.200q", errToldError, bytes.TrimSpace(raw))
	}
	return event, object, decode(w, raw, &object)
}
