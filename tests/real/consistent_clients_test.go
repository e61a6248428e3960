package real

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
)

// written is a write that was acknowledged; of a deletion, the version before it.
type written struct {
	write
	kind, key string
	gone      bool
}

// scribe is a writer. It has names of its own, and so knows what is there.
type scribe struct {
	number int
	// there is the version of each object that exists, by path.
	there map[string]uint64
	// born is how often a name had to be given up: a write failed, and may have
	// happened all the same, even later.
	born map[string]int
	n    int
}

const slots = 8

func (s *robustness) object(k kind, name, tier string) string {
	type object map[string]any
	meta := object{"name": name, "annotations": object{"at": s.now().String()}}
	if tier != "" {
		meta["labels"] = object{"tier": tier}
	}
	body := object{"metadata": meta}
	switch k.name {
	case "limitranges":
		body["spec"] = object{"limits": []any{}}
	case s.widget.plural:
		body["apiVersion"], body["kind"], body["spec"] = s.widget.group+"/v1", "Widget", object{"size": 1}
	}
	return asJSON(body)
}

// write changes something, in one step or two.
func (w *scribe) write(b *bout, chance *rand.Rand, to target) {
	k := b.stage.kinds[[]int{0, 0, 0, 0, 1, 1, 2, 2, 2}[chance.IntN(9)]]
	slot := fmt.Sprintf("w%d-%d", w.number, chance.IntN(slots))
	ns := b.stage.spaces[chance.IntN(len(b.stage.spaces))]
	path := k.path(ns) + "/" + w.name(k.path(ns)+"/"+slot, slot)
	_, there := w.there[path]
	dice := chance.IntN(10)
	switch {
	case there && dice < 6:
		w.do(b, chance, to, k, ns, path, http.MethodPatch)
	case there && dice < 8:
		w.do(b, chance, to, k, ns, path, http.MethodDelete)
	case there:
		// It comes back at once, and is another one.
		if w.do(b, chance, to, k, ns, path, http.MethodDelete) {
			w.do(b, chance, to, k, ns, path, http.MethodPost)
		}
	case dice < 7:
		w.do(b, chance, to, k, ns, path, http.MethodPost)
	default:
		// It is gone before most have seen it.
		if w.do(b, chance, to, k, ns, path, http.MethodPost) {
			w.do(b, chance, to, k, ns, path, http.MethodDelete)
		}
	}
}

func (w *scribe) name(slot, name string) string { return fmt.Sprintf("%s-%d", name, w.born[slot]) }

// toggle makes an object, or removes it.
func (w *scribe) toggle(b *bout, chance *rand.Rand, to target, k kind, ns, name string) {
	path := k.path(ns) + "/" + name
	method := http.MethodPost
	if _, there := w.there[path]; there {
		method = http.MethodDelete
	}
	w.do(b, chance, to, k, ns, path, method)
}

// do writes once, and records it.
func (w *scribe) do(b *bout, chance *rand.Rand, to target, k kind, ns, path, method string) bool {
	collection, name := path[:strings.LastIndexByte(path, '/')], path[strings.LastIndexByte(path, '/')+1:]
	r := request{method: method, path: path}
	tier := []string{"gold", "iron", "lead", ""}[chance.IntN(4)]
	w.n++
	switch method {
	case http.MethodPost:
		r.path, r.body = collection, b.stage.object(k, name, tier)
	case http.MethodPatch:
		r.contentType = "application/merge-patch+json"
		r.body = fmt.Sprintf(`{"metadata":{"labels":{"tier":%s},"annotations":{"n":"%d-%d"}}}`,
			map[bool]string{true: "null", false: `"` + tier + `"`}[tier == ""], w.number, w.n)
	}
	done := written{kind: k.name, key: ns + "/" + name, gone: method == http.MethodDelete}
	done.version, done.begun = w.there[path], b.stage.now()
	a, err := to.try(r)
	done.ended = b.stage.now()
	if err == nil && a.status >= 300 {
		err = fmt.Errorf("%d %.300s", a.status, a.body)
	}
	var object parsedObject
	if err == nil && !done.gone {
		err = json.Unmarshal([]byte(a.body), &object)
	}
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if err != nil {
		b.failed[summary(err)]++
		delete(w.there, path)
		// Names end in the count of those given up before.
		slot := path[:max(strings.LastIndexByte(path, '-'), 0)]
		w.born[slot]++
		return false
	}
	if done.gone {
		delete(w.there, path)
	} else {
		done.version = object.version()
		w.there[path] = done.version
	}
	b.written = append(b.written, done)
	return true
}

var number = regexp.MustCompile(`\d\d+|https://[^ "]+`)

// summary is what errors of one kind have in common.
func summary(err error) string {
	text := number.ReplaceAllString(err.Error(), "N")
	for _, word := range []string{"connection refused", "connection reset", "EOF", "deadline exceeded", "could not be reached", "INTERNAL_ERROR"} {
		if strings.Contains(text, word) {
			return word
		}
	}
	return fmt.Sprintf("%.200s", text)
}

// lector is a client about to read something.
type lector struct {
	bout    *bout
	journal *journal
	chance  *rand.Rand
	place   watchPlace
}

// wish is what a client reads, and how.
type wish struct {
	kind      kind
	namespace string
	selector  string
	// accept is one of the forms below.
	protobuf, metadata bool
}

func (w wish) String() string {
	s := fmt.Sprintf("%s %s %q", w.kind.name, w.namespace, w.selector)
	if w.protobuf {
		s += " protobuf"
	}
	if w.metadata {
		s += " metadata"
	}
	return s
}

func (w wish) accept(list bool) string {
	form := jsonType
	if w.protobuf {
		form = protobufType
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

func (w wish) query() url.Values {
	values := url.Values{}
	if w.selector != "" {
		values.Set("labelSelector", w.selector)
	}
	return values
}

func (l *lector) wish() wish {
	kinds := l.bout.stage.kinds
	w := wish{kind: kinds[[]int{0, 0, 0, 1, 1, 2, 2, 2, 3, 3}[l.chance.IntN(10)]], metadata: l.chance.IntN(3) == 0}
	w.protobuf = l.chance.IntN(2) == 0 && (w.metadata || w.kind.name != l.bout.stage.widget.plural)
	if l.chance.IntN(3) == 0 {
		w.selector = selectorTexts[l.chance.IntN(len(selectorTexts))]
	}
	if l.chance.IntN(3) == 0 {
		w.namespace = l.bout.stage.spaces[l.chance.IntN(len(l.bout.stage.spaces))]
	}
	return w
}

func (l *lector) reading(m manner, w wish) reading {
	return reading{manner: m, words: fmt.Sprintf("%s of %v from %s", m, w, l.place.url),
		selector: selectors[w.selector], namespace: w.namespace, begun: l.bout.stage.now()}
}

// note keeps what was read.
func (l *lector) note(w wish, r reading) {
	l.journal.mutex.Lock()
	defer l.journal.mutex.Unlock()
	l.journal.readings[w.kind.name] = append(l.journal.readings[w.kind.name], r)
	if r.manner != byGet {
		l.journal.sources[r.source]++
	}
}

func (l *lector) failed(err error) {
	l.journal.mutex.Lock()
	defer l.journal.mutex.Unlock()
	l.journal.failures++
	l.journal.failed[summary(err)]++
}

func (l *lector) odd(format string, args ...any) {
	l.journal.mutex.Lock()
	defer l.journal.mutex.Unlock()
	l.journal.odd = append(l.journal.odd, fmt.Sprintf(format, args...))
}

// get reads one object, which upstream answers.
func (l *lector) get(w wish) {
	w.selector, w.metadata, w.protobuf = "", false, false
	w.namespace = l.bout.stage.spaces[l.chance.IntN(2)]
	name := fmt.Sprintf("w%d-%d-0", l.chance.IntN(4), l.chance.IntN(slots))
	r := l.reading(byGet, w)
	r.items = []held{{key: w.namespace + "/" + name}}
	a, err := l.fetch(w.kind.path(w.namespace)+"/"+name, w.accept(false))
	r.ended = l.bout.stage.now()
	if err == nil && a.status != http.StatusOK && a.status != http.StatusNotFound {
		err = fmt.Errorf("%d %.200s", a.status, a.body)
	}
	if err == nil && a.status == http.StatusOK {
		var object parsedObject
		err = json.Unmarshal([]byte(a.body), &object)
		r.version = object.version()
	}
	if err != nil {
		l.failed(err)
		return
	}
	r.source = a.header.Get("X-Watershed-Source")
	l.note(w, r)
}

func (l *lector) fetch(path, accept string) (answer, error) {
	ctx, cancel := context.WithTimeout(l.bout.ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.place.url+path, nil)
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Authorization", "Bearer "+l.place.token)
	req.Header.Set("Accept", accept)
	resp, err := l.place.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(body)}, err
}

// list reads the latest state, at once or in pages.
func (l *lector) list(w wish) {
	query := w.query()
	how, pages := byList, 1
	if l.chance.IntN(3) == 0 {
		how, pages = byPages, 1+l.chance.IntN(12)
		query.Set("limit", []string{"1", "3", "50"}[l.chance.IntN(3)])
	}
	r := l.reading(how, w)
	for page := range pages {
		a, err := l.fetch(w.kind.path(w.namespace)+"?"+query.Encode(), w.accept(true))
		at := l.bout.stage.now()
		if err == nil && a.status != http.StatusOK {
			err = fmt.Errorf("%d %.200s", a.status, a.body)
		}
		var list metav1.PartialObjectMetadataList
		if err == nil {
			err = decode(w, []byte(a.body), &list)
		}
		if err != nil {
			l.failed(err)
			if page == 0 {
				return
			}
			r.partly = true
			break
		}
		if page == 0 {
			// With this answer the version is decided. Later pages are of the past.
			r.ended, r.version, r.source = at, version(list.ResourceVersion), a.header.Get("X-Watershed-Source")
		} else if version(list.ResourceVersion) != r.version {
			l.odd("%v: page %d is of %s", r, page, list.ResourceVersion)
		}
		for _, item := range list.Items {
			r.items = append(r.items, held{item.Namespace + "/" + item.Name, version(item.ResourceVersion)})
		}
		if r.partly = list.Continue != ""; !r.partly {
			break
		}
		query.Set("continue", list.Continue)
	}
	l.note(w, r)
}

type unmarshaler interface{ Unmarshal([]byte) error }

// decode reads metadata alone, which has its place in every object and list.
func decode(w wish, text []byte, into unmarshaler) error {
	if !w.protobuf {
		return json.Unmarshal(text, into)
	}
	raw, err := unwrap(text)
	if err != nil {
		return err
	}
	return into.Unmarshal(raw)
}

// watch reads the latest state by a watch that begins with it, and then for a
// while what follows; or what follows alone.
func (l *lector) watch(w wish) {
	how, marked := byWatch, false
	if l.chance.IntN(4) == 0 {
		how, marked = byEvents, true
	}
	query := w.query()
	query.Set("watch", "1")
	query.Set("timeoutSeconds", "60")
	query.Set("allowWatchBookmarks", "true")
	query.Set("resourceVersionMatch", "NotOlderThan")
	query.Set("sendInitialEvents", fmt.Sprint(how == byWatch))
	ctx, cancel := context.WithTimeout(l.bout.ctx, patience)
	defer cancel()
	r := l.reading(how, w)
	resp, err := l.place.get(ctx, w.kind.path(w.namespace)+"?"+query.Encode(), w.accept(false))
	if err != nil {
		l.failed(err)
		return
	}
	defer resp.Body.Close()
	r.source = resp.Header.Get("X-Watershed-Source")
	reader := bufio.NewReaderSize(resp.Body, 16<<10)
	follow := func() {
		r.ended = l.bout.stage.now()
		time.AfterFunc(between(l.chance, 100*time.Millisecond, 2*time.Second), cancel)
	}
	if marked {
		follow()
	}
	for {
		event, object, err := readMetadata(w, reader)
		if err != nil && ctx.Err() == nil {
			l.failed(fmt.Errorf("a watch ended, marked %v: %w", marked, err))
		}
		if err != nil && !marked {
			return
		}
		if err != nil {
			break
		}
		item := held{object.Namespace + "/" + object.Name, version(object.ResourceVersion)}
		switch {
		case event == "BOOKMARK" && !marked && object.Annotations[endMark] == "true":
			marked = true
			r.version = item.version
			follow()
		case event == "BOOKMARK" && marked:
			r.marks = append(r.marks, mark{item.version, len(r.events)})
		case event == "ADDED" && !marked:
			r.items = append(r.items, item)
		case (event == "ADDED" || event == "MODIFIED" || event == "DELETED") && marked:
			r.events = append(r.events, seen{event: event, key: item.key, version: item.version})
		default:
			l.odd("%v: %s of %v, marked: %v", r, event, item, marked)
			return
		}
	}
	l.note(w, r)
}

var errToldError = errors.New("told of an error")

// readMetadata reads the next event of a watch. An ERROR is an error.
func readMetadata(w wish, r *bufio.Reader) (event string, object metav1.PartialObjectMetadata, err error) {
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
