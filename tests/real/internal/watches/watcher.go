package watches

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/poll"
)

// readJSON reads the next frame. io.EOF is a clean end between two frames.
func readJSON(r *bufio.Reader, k Kind) (api.ParsedFrame, error) {
	line, err := r.ReadBytes('\n')
	if err == io.EOF && len(line) > 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return api.ParsedFrame{}, err
	}
	p, err := api.ParseWatchLine(line)
	p.Sum = k.sum(p.Raw, false)
	return p, err
}

func readProtobuf(r *bufio.Reader, k Kind) (api.ParsedFrame, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return api.ParsedFrame{}, err
	}
	text := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(r, text); err != nil {
		return api.ParsedFrame{}, io.ErrUnexpectedEOF
	}
	var frame metav1.WatchEvent
	if err := frame.Unmarshal(text); err != nil {
		return api.ParsedFrame{}, err
	}
	raw, err := api.UnwrapProtobuf(frame.Object.Raw)
	if err != nil {
		return api.ParsedFrame{}, err
	}
	p := api.ParsedFrame{Event: frame.Type}
	if frame.Type == "ERROR" {
		var status metav1.Status
		err := status.Unmarshal(raw)
		p.Object.Code, p.Object.Reason, p.Object.Message = int(status.Code), string(status.Reason), status.Message
		return p, err
	}
	typed := k.typed()
	if err := typed.Unmarshal(raw); err != nil {
		return api.ParsedFrame{}, err
	}
	p.Object.Metadata.Name, p.Object.Metadata.Namespace = typed.GetName(), typed.GetNamespace()
	p.Object.Metadata.ResourceVersion, p.Object.Metadata.Annotations = typed.GetResourceVersion(), typed.GetAnnotations()
	p.Sum = meaning(typed)
	return p, nil
}

// Endpoint is an address to watch at, with the connections to use.
type Endpoint struct {
	URL    string
	Token  string
	Client *http.Client
}

// Get sends a GET. Every status but 200 is an error.
func (p Endpoint) Get(ctx context.Context, path, accept string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+p.Token)
	req.Header.Set("Accept", accept)
	resp, err := p.Client.Do(req)
	if err == nil && resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return resp, err
}

// Habit is the way in which a watcher begins, and continues when its watch ends.
type Habit int

const (
	// FromList lists at version 0 and watches from there, for as long as it can.
	FromList Habit = iota
	// FromState lets the watch begin with the state.
	FromState
	// ComesBack opens short watches. Each begins at the last bookmark or event of the one
	// before.
	ComesBack
)

const shortWatch = 4 * time.Second

// Segment is an unbroken part of what a watcher saw. An Expired ends it.
type Segment struct {
	// began is the version at which the watch began. A watch with the state names it in its end
	// mark.
	began uint64
	// listed is the content of the list; stateSize is the number of initial events.
	listed    []Event
	stateSize int
	marked    bool
	// fromMemory reports that the final Expired came from the proxy itself.
	fromMemory bool
	Events     []Event
	marks      []Bookmark
}

// Watcher is a client that watches and records what it saw.
type Watcher struct {
	View  View
	Habit Habit
	At    Endpoint
	// Relists makes it begin anew after a 410, as clients do.
	Relists bool

	Mutex     sync.Mutex
	Stretches []*Segment
	// Fault is the error of a watch that should not have ended.
	Fault error
	// These count what is allowed but should be rare.
	Retried, Forwarded, ForwardedLists int
	Open                               atomic.Bool
}

func (w *Watcher) String() string {
	return w.View.String() + []string{"", ", with state", ", short"}[w.Habit]
}

// Run watches until the context ends, and records an end that came earlier.
func (w *Watcher) Run(ctx context.Context) {
	err := w.live(ctx)
	if ctx.Err() == nil {
		w.Mutex.Lock()
		w.Fault = err
		w.Mutex.Unlock()
	}
}

var errExpired = errors.New("410 Expired")

func (w *Watcher) live(ctx context.Context) error {
	for {
		s := &Segment{}
		from := uint64(0)
		if w.Habit != FromState {
			listed, err := retry(ctx, w, &w.ForwardedLists, func() (*http.Response, error) { return w.Get(ctx, "resourceVersion=0") })
			if err != nil {
				return fmt.Errorf("list: %w", err)
			}
			if s.began, s.listed, err = w.ReadList(listed); err != nil {
				return fmt.Errorf("list: %w", err)
			}
			from = s.began
		}
		w.Mutex.Lock()
		w.Stretches = append(w.Stretches, s)
		w.Mutex.Unlock()
		for {
			query := fmt.Sprintf("watch=1&allowWatchBookmarks=true&resourceVersion=%d", from)
			if w.Habit == FromState {
				query = "watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0"
			}
			if w.Habit == ComesBack {
				query += fmt.Sprintf("&timeoutSeconds=%d", shortWatch/time.Second)
			} else {
				query += "&timeoutSeconds=3600"
			}
			var opened time.Time
			resp, err := retry(ctx, w, &w.Forwarded, func() (*http.Response, error) {
				// The time is taken before the watch begins: no watch may be shorter than asked
				// for.
				opened = time.Now()
				return w.Get(ctx, query)
			})
			if err != nil {
				return fmt.Errorf("open: %w", err)
			}
			source := resp.Header.Get("X-Watershed-Source")
			memory := !strings.HasPrefix(source, "forward")
			if !memory && w.Habit != ComesBack {
				resp.Body.Close()
				return fmt.Errorf("the watch was forwarded: %s", source)
			}
			err = w.read(resp, s, &from)
			switch {
			case errors.Is(err, errExpired):
				if !w.Relists {
					return err
				}
				s.fromMemory = memory
			case w.Habit != ComesBack:
				return fmt.Errorf("the watch ended after %v: %w", time.Since(opened).Round(time.Millisecond), err)
			case !memory && !errors.Is(err, errNonsense):
				// Upstream could not identify the caller, so the request was forwarded and
				// ended with upstream.
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

// retry repeats a request until it is answered. A proxy may not know its callers while upstream
// is away. Answers from upstream are counted.
func retry(ctx context.Context, w *Watcher, passedOn *int, ask func() (*http.Response, error)) (*http.Response, error) {
	deadline := time.Now().Add(poll.Patience)
	for {
		resp, err := ask()
		if resp != nil && strings.HasPrefix(resp.Header.Get("X-Watershed-Source"), "forward") && resp.StatusCode < 500 {
			w.Mutex.Lock()
			*passedOn++
			w.Mutex.Unlock()
		}
		if err == nil || ctx.Err() != nil || time.Now().After(deadline) {
			return resp, err
		}
		w.Mutex.Lock()
		w.Retried++
		w.Mutex.Unlock()
		time.Sleep(100 * time.Millisecond)
	}
}

// Get sends a read of the watcher's view.
func (w *Watcher) Get(ctx context.Context, query string) (*http.Response, error) {
	accept := "application/json"
	if w.View.Protobuf {
		accept = api.ProtobufType
	}
	values := url.Values{}
	if w.View.Labels != "" {
		values.Set("labelSelector", w.View.Labels)
	}
	if w.View.Fields != "" {
		values.Set("fieldSelector", w.View.Fields)
	}
	return w.At.Get(ctx, w.View.Kind.Path(w.View.Namespace)+"?"+query+"&"+values.Encode(), accept)
}

// ReadList returns the version and the content of a list.
func (w *Watcher) ReadList(resp *http.Response) (uint64, []Event, error) {
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil, err
	}
	all := []Event{}
	if w.View.Protobuf {
		list := w.View.Kind.list()
		raw, err := api.UnwrapProtobuf(text)
		if err == nil {
			err = list.Unmarshal(raw)
		}
		if err != nil {
			return 0, nil, err
		}
		meta.EachListItem(list, func(object runtime.Object) error {
			o := object.(protobufObject)
			all = append(all, Event{Event: "ADDED", Key: o.GetNamespace() + "/" + o.GetName(), Version: api.ParseVersion(o.GetResourceVersion())})
			return nil
		})
		return api.ParseVersion(list.GetResourceVersion()), all, nil
	}
	var list struct {
		Metadata struct{ ResourceVersion string }
		Items    []api.Object
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return 0, nil, err
	}
	for _, o := range list.Items {
		all = append(all, Event{Event: "ADDED", Key: o.Key(), Version: o.Version()})
	}
	return api.ParseVersion(list.Metadata.ResourceVersion), all, nil
}

var errNonsense = errors.New("not what a watch says")

// read reads a watch until it ends.
func (w *Watcher) read(resp *http.Response, s *Segment, from *uint64) error {
	defer resp.Body.Close()
	w.Open.Store(true)
	reader := bufio.NewReaderSize(resp.Body, 16<<10)
	next := readJSON
	if w.View.Protobuf {
		next = readProtobuf
	}
	for {
		p, err := next(reader, w.View.Kind)
		if err != nil {
			return err
		}
		o := &p.Object
		w.Mutex.Lock()
		switch p.Event {
		case "ADDED", "MODIFIED", "DELETED":
			s.Events = append(s.Events, Event{p.Event, o.Key(), o.Version(), p.Sum})
			*from = o.Version()
		case "BOOKMARK":
			if o.Metadata.Annotations[api.InitialEventsEnd] == "true" {
				if s.marked || w.Habit != FromState {
					err = fmt.Errorf("%w: an end of initial events at %d", errNonsense, o.Version())
				}
				s.marked, s.stateSize, s.began = true, len(s.Events), o.Version()
			}
			s.marks = append(s.marks, Bookmark{o.Version(), len(s.Events)})
			*from = o.Version()
		case "ERROR":
			err = fmt.Errorf("%w: %d %s %s", errNonsense, o.Code, o.Reason, o.Message)
			if o.Code == http.StatusGone && o.Reason == "Expired" {
				// Only a clean end may follow it.
				if _, end := next(reader, w.View.Kind); end != io.EOF {
					err = fmt.Errorf("%w: %v after an Expired", errNonsense, end)
				} else {
					err = errExpired
				}
			}
		default:
			err = fmt.Errorf("%w: an event %q", errNonsense, p.Event)
		}
		w.Mutex.Unlock()
		if err != nil {
			return err
		}
	}
}

// ErrFault marks a watch that ended and should not have.
var ErrFault = errors.New("the watch ended")

// Verify compares everything that the watcher saw with what happened.
func (w *Watcher) Verify(tr *Reference) error {
	w.Mutex.Lock()
	defer w.Mutex.Unlock()
	if w.Fault != nil {
		return fmt.Errorf("%w: %w", ErrFault, w.Fault)
	}
	for i, s := range w.Stretches {
		last := i == len(w.Stretches)-1
		if w.Habit == FromState && !s.marked {
			return fmt.Errorf("segment %d: the state is incomplete after %d events", i, len(s.Events))
		}
		state := tr.at(w.View, s.began)
		if w.Habit != FromState {
			listed := slices.Clone(state)
			for j := range listed {
				listed[j].sum = 0
			}
			if err := Compare(listed, nil, s.listed, nil); err != nil {
				return fmt.Errorf("segment %d, the list at %d: %w", i, s.began, err)
			}
			state = nil
		} else if s.stateSize != len(state) {
			return fmt.Errorf("segment %d: %d initial events before the mark of %d, not %d", i, s.stateSize, s.began, len(state))
		}
		events := tr.after(w.View, s.began)
		if seen := len(s.Events) - len(state); !last && seen < len(events) {
			// The 410 may come at any point, but nothing before it may be lost.
			events = events[:max(seen, 0)]
		}
		if err := Compare(state, events, s.Events, s.marks); err != nil {
			return fmt.Errorf("segment %d, from %d: %w", i, s.began, err)
		}
	}
	if len(w.Stretches) == 0 {
		return errors.New("the watcher never began")
	}
	return nil
}

// Expired returns how often the watcher got a 410, and how often the proxy itself sent it.
func (w *Watcher) Expired() (all, fromMemory int) {
	w.Mutex.Lock()
	defer w.Mutex.Unlock()
	for _, s := range w.Stretches[:max(len(w.Stretches)-1, 0)] {
		if all++; s.fromMemory {
			fromMemory++
		}
	}
	return all, fromMemory
}

// PassedOn returns the numbers of its lists and watches that upstream answered.
func (w *Watcher) PassedOn() (lists, watches int) {
	w.Mutex.Lock()
	defer w.Mutex.Unlock()
	return w.ForwardedLists, w.Forwarded
}

// Final returns the state that follows from what the watcher saw.
func (w *Watcher) Final() map[string]uint64 {
	w.Mutex.Lock()
	defer w.Mutex.Unlock()
	objects := map[string]uint64{}
	s := w.Stretches[len(w.Stretches)-1]
	for _, e := range slices.Concat(s.listed, s.Events) {
		if objects[e.Key] = e.Version; e.Event == "DELETED" {
			delete(objects, e.Key)
		}
	}
	return objects
}
