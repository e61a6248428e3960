package real

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// kind is a type that is watched here.
type kind struct {
	name       string // the plural
	collection string // its path without a namespace
	// typed and list are what protobuf is decoded into; nil where there is none.
	typed func() protobufObject
	list  func() protobufList
}

type protobufObject interface {
	runtime.Object
	metav1.Object
	Unmarshal([]byte) error
}

type protobufList interface {
	runtime.Object
	metav1.ListInterface
	Unmarshal([]byte) error
}

var (
	ofConfigMaps = kind{"configmaps", "/api/v1/configmaps",
		func() protobufObject { return &corev1.ConfigMap{} }, func() protobufList { return &corev1.ConfigMapList{} }}
	ofPods = kind{"pods", "/api/v1/pods",
		func() protobufObject { return &corev1.Pod{} }, func() protobufList { return &corev1.PodList{} }}
)

func kindOf(w widget) kind { return kind{name: w.plural, collection: w.path("", "")} }

func (k kind) path(ns string) string {
	if ns == "" {
		return k.collection
	}
	i := strings.LastIndexByte(k.collection, '/')
	return k.collection[:i] + "/namespaces/" + ns + k.collection[i:]
}

// sum is a short stand-in for an object. That of JSON is one of the very bytes.
// Protobuf is compared by meaning: decoded, and written again as JSON.
func (k kind) sum(raw []byte, byMeaning bool) uint64 {
	if byMeaning {
		typed := k.typed()
		if err := json.Unmarshal(raw, typed); err != nil {
			panic(err)
		}
		return meaning(typed)
	}
	h := fnv.New64a()
	h.Write(raw)
	return h.Sum64()
}

func meaning(object protobufObject) uint64 {
	// Protobuf says the type beside the object, not in it.
	object.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(""))
	text, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	h := fnv.New64a()
	h.Write(text)
	return h.Sum64()
}

// seen is one event.
type seen struct {
	event   string
	key     string
	version uint64
	sum     uint64
}

func (s seen) String() string {
	return fmt.Sprintf("%s %s at %d (%08x)", s.event, s.key, s.version, uint32(s.sum))
}

// mark is a bookmark, and how many events had come before it.
type mark struct {
	version uint64
	after   int
}

// compare says where a watch differs from what it had to be: the first state as
// ADDED events, where it began with one, and all events after it in their order.
func compare(state, events, got []seen, marks []mark) error {
	want := slices.Concat(state, events)
	for i := range max(len(want), len(got)) {
		switch {
		case i >= len(got):
			return fmt.Errorf("event %d of %d is missing: %v", i, len(want), want[i])
		case i >= len(want):
			return fmt.Errorf("there is an event more than the %d that happened: %v", len(want), got[i])
		case want[i] != got[i]:
			return fmt.Errorf("event %d of %d is %v, not %v", i, len(want), got[i], want[i])
		}
	}
	return compareMarks(len(state), got, marks)
}

// compareMarks checks what bookmarks promise: everything up to their version
// has been said, and they never go back.
func compareMarks(state int, got []seen, marks []mark) error {
	var last uint64
	for _, m := range marks {
		switch {
		case m.version < last:
			return fmt.Errorf("a bookmark of %d after one of %d", m.version, last)
		case m.after > state && m.version < got[m.after-1].version:
			return fmt.Errorf("a bookmark of %d after %v", m.version, got[m.after-1])
		case m.after < state:
			return fmt.Errorf("a bookmark of %d amidst the initial events", m.version)
		case m.after < len(got) && m.version >= got[m.after].version:
			return fmt.Errorf("a bookmark of %d before %v", m.version, got[m.after])
		}
		last = m.version
	}
	return nil
}

// stored is an object at one version.
type stored struct {
	key, namespace string
	version        uint64
	labels         labels.Set
	fields         fields.Set
	raw            []byte
}

// change is what happened to one object.
type change struct {
	event         string
	version       uint64
	before, after *stored
}

// view is what a watch asked to see.
type view struct {
	kind      kind
	namespace string
	labels    string
	fields    string
	protobuf  bool
}

func (v view) String() string {
	s := v.kind.name
	for _, part := range []string{v.namespace, v.labels, v.fields} {
		if part != "" {
			s += " " + part
		}
	}
	if v.protobuf {
		s += " (protobuf)"
	}
	return s
}

func (v view) matcher() func(*stored) bool {
	byLabel, err := labels.Parse(v.labels)
	if err != nil {
		panic(err)
	}
	byField, err := fields.ParseSelector(v.fields)
	if err != nil {
		panic(err)
	}
	return func(s *stored) bool {
		return s != nil && (v.namespace == "" || v.namespace == s.namespace) && byLabel.Matches(s.labels) && byField.Matches(s.fields)
	}
}

// truth is everything that happened to one type since some version, as a watch
// of all of it told that nobody disturbed.
type truth struct {
	kind kind

	mutex   sync.Mutex
	base    map[string]*stored // the state at from
	from    uint64
	changes []change
	failed  error
}

// learn begins a truth with a watch at a server that stays.
func learn(t *testing.T, ctx context.Context, at watchPlace, k kind) *truth {
	t.Helper()
	tr := &truth{kind: k, base: map[string]*stored{}}
	began := make(chan error, 1)
	go func() {
		err := tr.run(ctx, at, began)
		tr.mutex.Lock()
		tr.failed = err
		tr.mutex.Unlock()
	}()
	check(t, within(t, "the state of "+k.name+" from the server that stays", began))
	return tr
}

func (tr *truth) run(ctx context.Context, at watchPlace, began chan<- error) error {
	query := "?watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=3600"
	resp, err := at.get(ctx, tr.kind.path("")+query, "application/json")
	if err != nil {
		began <- err
		return err
	}
	defer resp.Body.Close()
	reader := bufio.NewReader(resp.Body)
	current := map[string]*stored{}
	started := false
	for {
		line, err := reader.ReadBytes('\n')
		if err != nil {
			return fmt.Errorf("the reference watch of %s ended: %w", tr.kind.name, err)
		}
		e, err := parseJSON(line)
		if err != nil {
			return err
		}
		o := e.object
		s := &stored{key: o.key(), namespace: o.Metadata.Namespace, version: o.version(), labels: o.Metadata.Labels, raw: e.raw,
			fields: fields.Set{"metadata.name": o.Metadata.Name, "metadata.namespace": o.Metadata.Namespace,
				"spec.nodeName": o.Spec.NodeName, "spec.size": strconv.Itoa(o.Spec.Size)}}
		switch {
		case e.event == "BOOKMARK":
			if !started && o.Metadata.Annotations[endMark] == "true" {
				started = true
				tr.from = s.version
				began <- nil
			}
			continue
		case e.event == "ERROR":
			return fmt.Errorf("the reference watch of %s got %s", tr.kind.name, e.raw)
		case !started:
			tr.base[s.key], current[s.key] = s, s
			continue
		}
		c := change{event: e.event, version: s.version, before: current[s.key], after: s}
		if (e.event == "ADDED") != (c.before == nil) {
			return fmt.Errorf("the reference itself does not add up at %s %s", e.event, s.key)
		}
		if current[s.key] = s; e.event == "DELETED" {
			delete(current, s.key)
		}
		tr.mutex.Lock()
		tr.changes = append(tr.changes, c)
		tr.mutex.Unlock()
	}
}

// has waits until the truth has come to a version.
func (tr *truth) has(t *testing.T, version uint64) {
	t.Helper()
	eventually(t, fmt.Sprintf("the reference of %s is at %d", tr.kind.name, version), func() error {
		tr.mutex.Lock()
		defer tr.mutex.Unlock()
		if tr.failed != nil {
			t.Fatal(tr.failed)
		}
		if n := len(tr.changes); n == 0 || tr.changes[n-1].version < version {
			return errNotYet
		}
		return nil
	})
}

func (tr *truth) known() []change {
	tr.mutex.Lock()
	defer tr.mutex.Unlock()
	return tr.changes
}

// after is what a view sees of all changes after a version. It is the table of
// the API's own watch cache: what an update takes out of a view is DELETED,
// with the last state that was in it at the version of the update.
func (tr *truth) after(v view, version uint64) []seen {
	matches := v.matcher()
	var all []seen
	for _, c := range tr.known() {
		if c.version <= version {
			continue
		}
		was, is := matches(c.before), c.event != "DELETED" && matches(c.after)
		s := seen{key: c.after.key, version: c.version}
		switch {
		case !was && !is:
			continue
		case !was && is:
			s.event, s.sum = "ADDED", tr.kind.sum(c.after.raw, v.protobuf)
		case was && is:
			s.event, s.sum = "MODIFIED", tr.kind.sum(c.after.raw, v.protobuf)
		case c.event == "DELETED":
			s.event, s.sum = "DELETED", tr.kind.sum(c.after.raw, v.protobuf)
		default:
			s.event, s.sum = "DELETED", tr.kind.sum(withVersion(c.before, c.version), v.protobuf)
		}
		all = append(all, s)
	}
	return all
}

func withVersion(s *stored, version uint64) []byte {
	field := func(v uint64) []byte { return fmt.Appendf(nil, `"resourceVersion":"%d"`, v) }
	return bytes.Replace(s.raw, field(s.version), field(version), 1)
}

// at is the state of a view at a version, in the order of lists, as the ADDED
// events of a watch that begins with it.
//
// A version from before the reference will do: another server's cache of a type
// on which nothing happened is behind, but it is not of another state.
func (tr *truth) at(v view, version uint64) []seen {
	objects := map[string]*stored{}
	for key, s := range tr.base {
		objects[key] = s
	}
	for _, c := range tr.known() {
		if c.version > version {
			break
		}
		if objects[c.after.key] = c.after; c.event == "DELETED" {
			delete(objects, c.after.key)
		}
	}
	matches := v.matcher()
	state := []seen{}
	for key, s := range objects {
		if matches(s) {
			state = append(state, seen{"ADDED", key, s.version, tr.kind.sum(s.raw, v.protobuf)})
		}
	}
	slices.SortFunc(state, func(a, b seen) int { return cmp.Compare(a.key, b.key) })
	return state
}

const endMark = "k8s.io/initial-events-end"

// parsed is one frame of a watch.
type parsed struct {
	event  string
	raw    []byte
	object parsedObject
	sum    uint64
}

type parsedObject struct {
	Metadata struct {
		Name, Namespace, ResourceVersion string
		Labels, Annotations              map[string]string
	}
	Spec struct {
		NodeName string
		Size     int
	}
	// Of a Status.
	Code    int
	Reason  string
	Message string
}

func (o *parsedObject) key() string { return o.Metadata.Namespace + "/" + o.Metadata.Name }

func (o *parsedObject) version() uint64 { return version(o.Metadata.ResourceVersion) }

// version is a resourceVersion as the number it is; what is none becomes 0,
// which is not the version of anything.
func version(text string) uint64 {
	v, _ := strconv.ParseUint(text, 10, 64)
	return v
}

func parseJSON(line []byte) (parsed, error) {
	var frame struct {
		Type   string
		Object json.RawMessage
	}
	if err := json.Unmarshal(line, &frame); err != nil {
		return parsed{}, fmt.Errorf("%w in %q", err, line)
	}
	p := parsed{event: frame.Type, raw: frame.Object}
	err := json.Unmarshal(frame.Object, &p.object)
	return p, err
}

// readJSON reads the next frame. io.EOF is a clean end between two frames.
func readJSON(r *bufio.Reader, k kind) (parsed, error) {
	line, err := r.ReadBytes('\n')
	if err == io.EOF && len(line) > 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return parsed{}, err
	}
	p, err := parseJSON(line)
	p.sum = k.sum(p.raw, false)
	return p, err
}

// unwrap takes protobuf out of the envelope that Kubernetes puts around it.
func unwrap(text []byte) ([]byte, error) {
	var envelope runtime.Unknown
	raw, ok := bytes.CutPrefix(text, []byte("k8s\x00"))
	if !ok {
		return nil, fmt.Errorf("not protobuf: %q", text)
	}
	err := envelope.Unmarshal(raw)
	return envelope.Raw, err
}

func readProtobuf(r *bufio.Reader, k kind) (parsed, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return parsed{}, err
	}
	text := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(r, text); err != nil {
		return parsed{}, io.ErrUnexpectedEOF
	}
	var frame metav1.WatchEvent
	if err := frame.Unmarshal(text); err != nil {
		return parsed{}, err
	}
	raw, err := unwrap(frame.Object.Raw)
	if err != nil {
		return parsed{}, err
	}
	p := parsed{event: frame.Type}
	if frame.Type == "ERROR" {
		var status metav1.Status
		err := status.Unmarshal(raw)
		p.object.Code, p.object.Reason, p.object.Message = int(status.Code), string(status.Reason), status.Message
		return p, err
	}
	typed := k.typed()
	if err := typed.Unmarshal(raw); err != nil {
		return parsed{}, err
	}
	p.object.Metadata.Name, p.object.Metadata.Namespace = typed.GetName(), typed.GetNamespace()
	p.object.Metadata.ResourceVersion, p.object.Metadata.Annotations = typed.GetResourceVersion(), typed.GetAnnotations()
	p.sum = meaning(typed)
	return p, nil
}

// watchPlace is where watches are sent, and by which connections.
type watchPlace struct {
	url    string
	token  string
	client *http.Client
}

func (p watchPlace) get(ctx context.Context, path, accept string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+p.token)
	req.Header.Set("Accept", accept)
	resp, err := p.client.Do(req)
	if err == nil && resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return resp, err
}

// how a watcher begins, and goes on when its watch ends.
type habit int

const (
	// fromList lists at version 0 and watches from there, for as long as it can.
	fromList habit = iota
	// fromState lets the watch begin with the state.
	fromState
	// comesBack asks for short watches, and begins each where the last ended:
	// at its last bookmark or event.
	comesBack
)

const shortWatch = 4 * time.Second

// stretch is one unbroken part of what a watcher saw: after it, an Expired.
type stretch struct {
	// began is where the watch began; with the state, where its end mark says.
	began uint64
	// state is what the list had, or how many first events are the state.
	listed    []seen
	stateSize int
	marked    bool
	// fromMemory says that the Expired at its end was the proxy's own.
	fromMemory bool
	events     []seen
	marks      []mark
}

// watcher is a client that watches, and keeps what it saw.
type watcher struct {
	view  view
	habit habit
	at    watchPlace
	// relists says that it begins anew after a 410, as clients do.
	relists bool

	mutex     sync.Mutex
	stretches []*stretch
	// fault is an end that should not have come.
	fault error
	// retried and forwarded count what is allowed, but should be rare.
	retried, forwarded, forwardedLists int
	open                               atomic.Bool
}

func (w *watcher) String() string {
	return w.view.String() + []string{"", ", with state", ", short"}[w.habit]
}

func (w *watcher) run(ctx context.Context) {
	err := w.live(ctx)
	if ctx.Err() == nil {
		w.mutex.Lock()
		w.fault = err
		w.mutex.Unlock()
	}
}

var errExpired = errors.New("410 Expired")

func (w *watcher) live(ctx context.Context) error {
	for {
		s := &stretch{}
		from := uint64(0)
		if w.habit != fromState {
			listed, err := again(ctx, w, &w.forwardedLists, func() (*http.Response, error) { return w.get(ctx, "resourceVersion=0") })
			if err != nil {
				return fmt.Errorf("list: %w", err)
			}
			if s.began, s.listed, err = w.readList(listed); err != nil {
				return fmt.Errorf("list: %w", err)
			}
			from = s.began
		}
		w.mutex.Lock()
		w.stretches = append(w.stretches, s)
		w.mutex.Unlock()
		for {
			query := fmt.Sprintf("watch=1&allowWatchBookmarks=true&resourceVersion=%d", from)
			if w.habit == fromState {
				query = "watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0"
			}
			if w.habit == comesBack {
				query += fmt.Sprintf("&timeoutSeconds=%d", shortWatch/time.Second)
			} else {
				query += "&timeoutSeconds=3600"
			}
			var opened time.Time
			resp, err := again(ctx, w, &w.forwarded, func() (*http.Response, error) {
				// Before it begins, however late this learns of that: no watch may be shorter.
				opened = time.Now()
				return w.get(ctx, query)
			})
			if err != nil {
				return fmt.Errorf("open: %w", err)
			}
			source := resp.Header.Get("X-Watershed-Source")
			memory := !strings.HasPrefix(source, "forward")
			if !memory && w.habit != comesBack {
				resp.Body.Close()
				return fmt.Errorf("the watch was passed on: %s", source)
			}
			err = w.read(resp, s, &from)
			switch {
			case errors.Is(err, errExpired):
				if !w.relists {
					return err
				}
				s.fromMemory = memory
			case w.habit != comesBack:
				return fmt.Errorf("the watch ended after %v: %w", time.Since(opened).Round(time.Millisecond), err)
			case !memory && !errors.Is(err, errNonsense):
				// Asked while upstream could not say who the caller is, it was
				// passed on, and shared upstream's fate.
				continue
			case err != io.EOF || time.Since(opened) < shortWatch-500*time.Millisecond:
				return fmt.Errorf("a watch of %v ended after %v: %w", shortWatch, time.Since(opened).Round(time.Millisecond), err)
			default:
				continue
			}
			break
		}
	}
}

// again tries until there is an answer. While upstream is away a proxy may not
// know who is asking; clients try again. What upstream answers is counted.
func again(ctx context.Context, w *watcher, passedOn *int, ask func() (*http.Response, error)) (*http.Response, error) {
	deadline := time.Now().Add(patience)
	for {
		resp, err := ask()
		if resp != nil && strings.HasPrefix(resp.Header.Get("X-Watershed-Source"), "forward") && resp.StatusCode < 500 {
			w.mutex.Lock()
			*passedOn++
			w.mutex.Unlock()
		}
		if err == nil || ctx.Err() != nil || time.Now().After(deadline) {
			return resp, err
		}
		w.mutex.Lock()
		w.retried++
		w.mutex.Unlock()
		time.Sleep(100 * time.Millisecond)
	}
}

func (w *watcher) get(ctx context.Context, query string) (*http.Response, error) {
	accept := "application/json"
	if w.view.protobuf {
		accept = protobufType
	}
	values := url.Values{}
	if w.view.labels != "" {
		values.Set("labelSelector", w.view.labels)
	}
	if w.view.fields != "" {
		values.Set("fieldSelector", w.view.fields)
	}
	return w.at.get(ctx, w.view.kind.path(w.view.namespace)+"?"+query+"&"+values.Encode(), accept)
}

// readList reads a list: its version, and what is in it.
func (w *watcher) readList(resp *http.Response) (uint64, []seen, error) {
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil, err
	}
	all := []seen{}
	if w.view.protobuf {
		list := w.view.kind.list()
		raw, err := unwrap(text)
		if err == nil {
			err = list.Unmarshal(raw)
		}
		if err != nil {
			return 0, nil, err
		}
		meta.EachListItem(list, func(object runtime.Object) error {
			o := object.(protobufObject)
			all = append(all, seen{event: "ADDED", key: o.GetNamespace() + "/" + o.GetName(), version: version(o.GetResourceVersion())})
			return nil
		})
		return version(list.GetResourceVersion()), all, nil
	}
	var list struct {
		Metadata struct{ ResourceVersion string }
		Items    []parsedObject
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return 0, nil, err
	}
	for _, o := range list.Items {
		all = append(all, seen{event: "ADDED", key: o.key(), version: o.version()})
	}
	return version(list.Metadata.ResourceVersion), all, nil
}

var errNonsense = errors.New("not what a watch says")

// read takes a watch in until it ends.
func (w *watcher) read(resp *http.Response, s *stretch, from *uint64) error {
	defer resp.Body.Close()
	w.open.Store(true)
	reader := bufio.NewReaderSize(resp.Body, 16<<10)
	next := readJSON
	if w.view.protobuf {
		next = readProtobuf
	}
	for {
		p, err := next(reader, w.view.kind)
		if err != nil {
			return err
		}
		o := &p.object
		w.mutex.Lock()
		switch p.event {
		case "ADDED", "MODIFIED", "DELETED":
			s.events = append(s.events, seen{p.event, o.key(), o.version(), p.sum})
			*from = o.version()
		case "BOOKMARK":
			if o.Metadata.Annotations[endMark] == "true" {
				if s.marked || w.habit != fromState {
					err = fmt.Errorf("%w: an end of initial events at %d", errNonsense, o.version())
				}
				s.marked, s.stateSize, s.began = true, len(s.events), o.version()
			}
			s.marks = append(s.marks, mark{o.version(), len(s.events)})
			*from = o.version()
		case "ERROR":
			err = fmt.Errorf("%w: %d %s %s", errNonsense, o.Code, o.Reason, o.Message)
			if o.Code == http.StatusGone && o.Reason == "Expired" {
				// Nothing may follow it but a clean end.
				if _, end := next(reader, w.view.kind); end != io.EOF {
					err = fmt.Errorf("%w: %v after an Expired", errNonsense, end)
				} else {
					err = errExpired
				}
			}
		default:
			err = fmt.Errorf("%w: an event %q", errNonsense, p.event)
		}
		w.mutex.Unlock()
		if err != nil {
			return err
		}
	}
}

// errFault is a watch that is over and should not be.
var errFault = errors.New("over")

// verify compares all that the watcher saw with what happened.
func (w *watcher) verify(tr *truth) error {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.fault != nil {
		return fmt.Errorf("%w: %w", errFault, w.fault)
	}
	for i, s := range w.stretches {
		last := i == len(w.stretches)-1
		if w.habit == fromState && !s.marked {
			return fmt.Errorf("stretch %d: the state is not through after %d events", i, len(s.events))
		}
		state := tr.at(w.view, s.began)
		if w.habit != fromState {
			listed := slices.Clone(state)
			for j := range listed {
				listed[j].sum = 0
			}
			if err := compare(listed, nil, s.listed, nil); err != nil {
				return fmt.Errorf("stretch %d, the list at %d: %w", i, s.began, err)
			}
			state = nil
		} else if s.stateSize != len(state) {
			return fmt.Errorf("stretch %d: %d initial events before the mark of %d, not %d", i, s.stateSize, s.began, len(state))
		}
		events := tr.after(w.view, s.began)
		if seen := len(s.events) - len(state); !last && seen < len(events) {
			// The 410 may come at any point, and nothing is lost before it.
			events = events[:max(seen, 0)]
		}
		if err := compare(state, events, s.events, s.marks); err != nil {
			return fmt.Errorf("stretch %d, from %d: %w", i, s.began, err)
		}
	}
	if len(w.stretches) == 0 {
		return errors.New("it never began")
	}
	return nil
}

// expired is how often the watcher was told 410, and how often by the proxy itself.
func (w *watcher) expired() (all, fromMemory int) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for _, s := range w.stretches[:max(len(w.stretches)-1, 0)] {
		if all++; s.fromMemory {
			fromMemory++
		}
	}
	return all, fromMemory
}

// passedOn is how many of its lists and watches upstream answered.
func (w *watcher) passedOn() (lists, watches int) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.forwardedLists, w.forwarded
}

// final is the state the watcher has come to, by its own account.
func (w *watcher) final() map[string]uint64 {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	objects := map[string]uint64{}
	s := w.stretches[len(w.stretches)-1]
	for _, e := range slices.Concat(s.listed, s.events) {
		if objects[e.key] = e.version; e.event == "DELETED" {
			delete(objects, e.key)
		}
	}
	return objects
}
