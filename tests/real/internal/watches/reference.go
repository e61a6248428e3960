package watches

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
)

// Object is an object at one version.
type Object struct {
	Key, namespace string
	Version        uint64
	Labels         labels.Set
	fields         fields.Set
	raw            []byte
}

// Change is one change of an object.
type Change struct {
	Event         string
	Version       uint64
	before, After *Object
}

// View is what a watch selects.
type View struct {
	Kind      Kind
	Namespace string
	Labels    string
	Fields    string
	Protobuf  bool
}

func (v View) String() string {
	s := v.Kind.Name
	for _, part := range []string{v.Namespace, v.Labels, v.Fields} {
		if part != "" {
			s += " " + part
		}
	}
	if v.Protobuf {
		s += " (protobuf)"
	}
	return s
}

func (v View) matcher() func(*Object) bool {
	byLabel, err := labels.Parse(v.Labels)
	if err != nil {
		panic(err)
	}
	byField, err := fields.ParseSelector(v.Fields)
	if err != nil {
		panic(err)
	}
	return func(s *Object) bool {
		return s != nil && (v.Namespace == "" || v.Namespace == s.namespace) && byLabel.Matches(s.Labels) && byField.Matches(s.fields)
	}
}

// Reference holds everything that happened to one type since a version, as an undisturbed watch
// told it.
type Reference struct {
	kind Kind

	mutex   sync.Mutex
	Base    map[string]*Object // the state at from
	from    uint64
	changes []Change
	failed  error
}

// Follow begins a reference with a watch at a server that stays.
func Follow(t *testing.T, ctx context.Context, at Endpoint, k Kind) *Reference {
	t.Helper()
	tr := &Reference{kind: k, Base: map[string]*Object{}}
	began := make(chan error, 1)
	go func() {
		err := tr.run(ctx, at, began)
		tr.mutex.Lock()
		tr.failed = err
		tr.mutex.Unlock()
	}()
	require.NoError(t, poll.Receive(t, "the state of "+k.Name+" from the server that stays", began))
	return tr
}

func (tr *Reference) run(ctx context.Context, at Endpoint, began chan<- error) error {
	query := "?watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=3600"
	resp, err := at.Get(ctx, tr.kind.Path("")+query, "application/json")
	if err != nil {
		began <- err
		return err
	}
	defer resp.Body.Close()
	reader := bufio.NewReader(resp.Body)
	current := map[string]*Object{}
	started := false
	for {
		line, err := reader.ReadBytes('\n')
		if err != nil {
			return fmt.Errorf("the reference watch of %s ended: %w", tr.kind.Name, err)
		}
		e, err := api.ParseWatchLine(line)
		if err != nil {
			return err
		}
		o := e.Object
		s := &Object{Key: o.Key(), namespace: o.Metadata.Namespace, Version: o.Version(), Labels: o.Metadata.Labels, raw: e.Raw,
			fields: fields.Set{"metadata.name": o.Metadata.Name, "metadata.namespace": o.Metadata.Namespace,
				"spec.nodeName": o.Spec.NodeName, "spec.size": strconv.Itoa(o.Spec.Size)}}
		switch {
		case e.Event == "BOOKMARK":
			if !started && o.Metadata.Annotations[api.InitialEventsEnd] == "true" {
				started = true
				tr.from = s.Version
				began <- nil
			}
			continue
		case e.Event == "ERROR":
			return fmt.Errorf("the reference watch of %s got %s", tr.kind.Name, e.Raw)
		case !started:
			tr.Base[s.Key], current[s.Key] = s, s
			continue
		}
		c := Change{Event: e.Event, Version: s.Version, before: current[s.Key], After: s}
		if (e.Event == "ADDED") != (c.before == nil) {
			return fmt.Errorf("the reference contradicts itself at %s %s", e.Event, s.Key)
		}
		if current[s.Key] = s; e.Event == "DELETED" {
			delete(current, s.Key)
		}
		tr.mutex.Lock()
		tr.changes = append(tr.changes, c)
		tr.mutex.Unlock()
	}
}

// WaitFor waits until the reference has reached a version.
func (tr *Reference) WaitFor(t *testing.T, version uint64) {
	t.Helper()
	poll.Until(t, fmt.Sprintf("the reference of %s is at %d", tr.kind.Name, version), func() error {
		tr.mutex.Lock()
		defer tr.mutex.Unlock()
		if tr.failed != nil {
			t.Fatal(tr.failed)
		}
		if n := len(tr.changes); n == 0 || tr.changes[n-1].Version < version {
			return poll.ErrNotYet
		}
		return nil
	})
}

// ChangesSoFar returns all changes that the reference has reached.
func (tr *Reference) ChangesSoFar() []Change {
	tr.mutex.Lock()
	defer tr.mutex.Unlock()
	return tr.changes
}

// after returns the events that a view shows after a version, by the rules of the API's watch
// cache. An update that takes an object out of a view is DELETED. It has the object's last
// state in the view and the update's version.
func (tr *Reference) after(v View, version uint64) []Event {
	matches := v.matcher()
	var all []Event
	for _, c := range tr.ChangesSoFar() {
		if c.Version <= version {
			continue
		}
		was, is := matches(c.before), c.Event != "DELETED" && matches(c.After)
		s := Event{Key: c.After.Key, Version: c.Version}
		switch {
		case !was && !is:
			continue
		case !was && is:
			s.Event, s.sum = "ADDED", tr.kind.sum(c.After.raw, v.Protobuf)
		case was && is:
			s.Event, s.sum = "MODIFIED", tr.kind.sum(c.After.raw, v.Protobuf)
		case c.Event == "DELETED":
			s.Event, s.sum = "DELETED", tr.kind.sum(c.After.raw, v.Protobuf)
		default:
			s.Event, s.sum = "DELETED", tr.kind.sum(withVersion(c.before, c.Version), v.Protobuf)
		}
		all = append(all, s)
	}
	return all
}

func withVersion(s *Object, version uint64) []byte {
	field := func(v uint64) []byte { return fmt.Appendf(nil, `"resourceVersion":"%d"`, v) }
	return bytes.Replace(s.raw, field(s.Version), field(version), 1)
}

// at returns the state of a view at a version, in the order of lists, as the ADDED events of a
// watch.
//
// The version may be older than the reference. Another server's cache of an unchanged type is
// behind, but has the same state.
func (tr *Reference) at(v View, version uint64) []Event {
	objects := map[string]*Object{}
	for key, s := range tr.Base {
		objects[key] = s
	}
	for _, c := range tr.ChangesSoFar() {
		if c.Version > version {
			break
		}
		if objects[c.After.Key] = c.After; c.Event == "DELETED" {
			delete(objects, c.After.Key)
		}
	}
	matches := v.matcher()
	state := []Event{}
	for key, s := range objects {
		if matches(s) {
			state = append(state, Event{"ADDED", key, s.Version, tr.kind.sum(s.raw, v.Protobuf)})
		}
	}
	slices.SortFunc(state, func(a, b Event) int { return cmp.Compare(a.Key, b.Key) })
	return state
}
