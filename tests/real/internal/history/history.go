// Package history checks that recorded reads are linearizable: each answer is the state at
// its version, and versions agree with time.
package history

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"watershed.test/real/internal/watches"
)

// Linearizability is hard to decide in general. Here it is easy: etcd gives every write a
// version, and every list names its version. So the order is known. It remains to check that
// each answer is the state at its version, and that versions agree with time.

// Moment is a time on the test's clock, which never goes back.
type Moment = time.Duration

// ObjectVersion is the name and version of an object.
type ObjectVersion struct {
	Key     string
	Version uint64
}

// ObjectState is the state of an object after one change.
type ObjectState struct {
	ObjectVersion
	Labels labels.Set
	Gone   bool
}

// History is all changes of one type, in order.
type History struct {
	// Base is the state before the first change.
	Base    []ObjectState
	Changes []ObjectState
}

// Write is an acknowledged write.
type Write struct {
	Begun, Ended Moment
	Version      uint64
}

// ReadKind is a way to read.
type ReadKind string

// The ways to read the latest state.
const (
	List  ReadKind = "list"
	Pages ReadKind = "pages"
	Watch ReadKind = "watch"
	Get   ReadKind = "get"
	// Events is a watch that begins with the next event after the latest state.
	Events ReadKind = "events"
)

// Read is one read and its answer.
type Read struct {
	Manner       ReadKind
	Words        string // what was asked for, of whom, for people
	Source       string
	Begun, Ended Moment
	// Version is the version of the list, or of the watch's end mark. That of a get is its
	// object's, or 0 without an object. A watch without an initial state does not say its
	// version.
	Version   uint64
	Selector  labels.Selector
	Namespace string
	// Items are in the order in which they came. A get has one: the name that it asked for.
	Items []ObjectVersion
	// Partial marks pages of which the rest was not read.
	Partial bool
	// Events and Marks are the events and bookmarks of a watch after its end mark.
	Events []watches.Event
	Marks  []watches.Bookmark
}

// Selects reports whether a read selects an object.
func (r *Read) Selects(p ObjectState) bool {
	return (r.Namespace == "" || strings.HasPrefix(p.Key, r.Namespace+"/")) && r.Selector.Matches(p.Labels)
}

func (r Read) String() string {
	return fmt.Sprintf("%s from %q at %d, %v to %v", r.Words, r.Source, r.Version, r.Begun, r.Ended)
}

// Rule is a rule that an answer can violate.
type Rule string

// The rules. README.md explains them.
const (
	WrongState      Rule = "not the state at its version"
	ImpossibleState Rule = "not what it was at any version it may be of"
	StaleAfterWrite Rule = "older than a write that was acknowledged before"
	StaleAfterRead  Rule = "older than what was read before"
	FromTheFuture   Rule = "newer than a write that began later"
	WrongEvents     Rule = "not the events that follow"
)

// Violation is a rule that a read violates.
type Violation struct {
	Rule Rule
	Read int
	Text string
}

// Check checks all reads of one type and returns the violations.
func Check(h History, writes []Write, readings []Read) []Violation {
	c := NewChecker(h, writes, readings)
	order := make([]int, len(readings))
	for i := range order {
		order[i] = i
	}
	// Reads are checked by version, so that one pass through the history suffices.
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(readings[a].Version, readings[b].Version) })
	state := NewReplay(h)
	for _, i := range order {
		c.Look(i, &readings[i], state)
	}
	slices.SortStableFunc(c.Found, func(a, b Violation) int { return cmp.Compare(readings[a.Read].Begun, readings[b.Read].Begun) })
	return c.Found
}

// Replay is the state of a type at a version that only grows.
type Replay struct {
	history History
	next    int
	keys    []string
	objects map[string]ObjectState
}

// NewReplay returns the state before the first change.
func NewReplay(h History) *Replay {
	r := &Replay{history: h, objects: map[string]ObjectState{}}
	for _, p := range h.Base {
		r.objects[p.Key] = p
	}
	r.keys = slices.Sorted(maps.Keys(r.objects))
	return r
}

func (r *Replay) advance(version uint64) {
	for ; r.next < len(r.history.Changes) && r.history.Changes[r.next].Version <= version; r.next++ {
		p := r.history.Changes[r.next]
		at, there := slices.BinarySearch(r.keys, p.Key)
		switch {
		case p.Gone && there:
			r.keys = slices.Delete(r.keys, at, at+1)
		case !p.Gone && !there:
			r.keys = slices.Insert(r.keys, at, p.Key)
		}
		if r.objects[p.Key] = p; p.Gone {
			delete(r.objects, p.Key)
		}
	}
}

// selected returns the items of a list of this state.
func (r *Replay) selected(selects func(ObjectState) bool) []ObjectVersion {
	var all []ObjectVersion
	for _, key := range r.keys {
		if p := r.objects[key]; selects(p) {
			all = append(all, p.ObjectVersion)
		}
	}
	return all
}

// Checker checks reads of one type, one by one.
type Checker struct {
	history History
	// Acknowledged and Read tell the least version that a read may have by its begin. Ahead
	// tells the first version that it may not have by its end.
	Acknowledged, Read Floor
	Ahead              Ceiling
	// Lives holds the changes of each object.
	Lives map[string][]ObjectState
	Found []Violation
}

// NewChecker returns a checker that knows all writes and reads.
func NewChecker(h History, writes []Write, readings []Read) *Checker {
	c := &Checker{history: h, Lives: map[string][]ObjectState{}}
	for _, p := range slices.Concat(h.Base, h.Changes) {
		c.Lives[p.Key] = append(c.Lives[p.Key], p)
	}
	var acknowledged, read, begun []stamp
	for _, w := range writes {
		acknowledged = append(acknowledged, stamp{w.Ended, w.Version})
		begun = append(begun, stamp{w.Begun, w.Version})
	}
	for _, r := range readings {
		// A version of 0 says nothing, so a get that found nothing does no harm.
		read = append(read, stamp{r.Ended, r.Version})
	}
	c.Acknowledged, c.Read, c.Ahead = newFloor(acknowledged), newFloor(read), newCeiling(begun)
	return c
}

// Look checks one read. The state must not be beyond the read's version.
func (c *Checker) Look(i int, r *Read, state *Replay) {
	if r.Manner == Get {
		c.get(i, r)
		return
	}
	if r.Manner == Events {
		c.onward(i, r)
		return
	}
	state.advance(r.Version)
	c.contents(i, r, state)
	c.times(i, r)
	if r.Manner == Watch {
		c.events(i, r)
	}
}

func (c *Checker) say(broken Rule, i int, format string, args ...any) {
	c.Found = append(c.Found, Violation{broken, i, fmt.Sprintf(format, args...)})
}

// contents compares a read with the state at its version.
func (c *Checker) contents(i int, r *Read, state *Replay) {
	want := state.selected(r.Selects)
	if r.Partial {
		want = want[:min(len(want), len(r.Items))]
	}
	for j := range max(len(want), len(r.Items)) {
		switch {
		case j >= len(r.Items):
			c.say(WrongState, i, "%v is missing, there are %d objects and not %d", want[j], len(r.Items), len(want))
		case j >= len(want):
			c.say(WrongState, i, "%v is too much, there are %d objects and not %d", r.Items[j], len(r.Items), len(want))
		case want[j] != r.Items[j]:
			c.say(WrongState, i, "object %d is %v, not %v", j, r.Items[j], want[j])
		default:
			continue
		}
		return
	}
}

// times compares a read's version with what ended before it and with what began after it.
func (c *Checker) times(i int, r *Read) {
	if least := c.Acknowledged.At(r.Begun); r.Version < least {
		c.say(StaleAfterWrite, i, "%d was acknowledged", least)
	}
	if least := c.Read.At(r.Begun); r.Version < least {
		c.say(StaleAfterRead, i, "%d was read", least)
	}
	if next := c.Ahead.At(r.Ended); r.Version >= next {
		c.say(FromTheFuture, i, "%d was written later", next)
	}
}

// get checks that the object was what was read at some version that is neither too old nor in
// the future.
func (c *Checker) get(i int, r *Read) {
	key := r.Items[0].Key
	oldest, next := max(c.Acknowledged.At(r.Begun), c.Read.At(r.Begun)), c.Ahead.At(r.Ended)
	// The object kept this version from one change to the next. Before the first change it did
	// not exist.
	from, was := uint64(0), uint64(0)
	for _, p := range append(slices.Clone(c.Lives[key]), ObjectState{ObjectVersion: ObjectVersion{key, math.MaxUint64}}) {
		if was == r.Version && from < next && p.Version > oldest {
			return
		}
		if from, was = p.Version, p.Version; p.Gone {
			was = 0
		}
	}
	c.say(ImpossibleState, i, "%s was not that at any version from %d to before %d", key, oldest, next)
}

// events compares the events after a watch's initial state with the history.
func (c *Checker) events(i int, r *Read) {
	happened, next := c.After(r, len(r.Events))
	if err := watches.Compare(nil, happened, r.Events, r.Marks); err != nil {
		c.say(WrongEvents, i, "%v", err)
		return
	}
	for _, m := range r.Marks {
		switch {
		case m.Version < r.Version && r.Manner == Watch:
			c.say(WrongEvents, i, "a bookmark of %d after the end mark", m.Version)
			return
		case m.Version >= next:
			c.say(WrongEvents, i, "a bookmark of %d, and the event of %d was not sent", m.Version, next)
			return
		}
	}
}

// onward checks a watch that began with the next event. Its events have to follow some version
// that is neither too old nor in the future.
func (c *Checker) onward(i int, r *Read) {
	if len(r.Events) == 0 {
		return
	}
	first := r.Events[0].Version
	if oldest := max(c.Acknowledged.At(r.Begun), c.Read.At(r.Begun)); first <= oldest {
		c.say(ImpossibleState, i, "%v, where it was %d before", r.Events[0], oldest)
		return
	}
	begun := *r
	state := NewReplay(c.history)
	begun.Version = first - 1
	if next := c.Ahead.At(r.Ended); next <= begun.Version {
		// Writes that began after the watch was open are not before its begin.
		begun.Version = next - 1
	}
	state.advance(begun.Version)
	begun.Items = state.selected(r.Selects)
	c.events(i, &begun)
}

// After returns the first n events that follow a read, and the version of the event after
// these.
func (c *Checker) After(r *Read, n int) (happened []watches.Event, next uint64) {
	was := map[string]bool{}
	for _, item := range r.Items {
		was[item.Key] = true
	}
	changes := c.history.Changes
	from := SearchFirst(changes, func(p ObjectState) bool { return p.Version > r.Version })
	for _, p := range changes[from:] {
		is := !p.Gone && r.Selects(p)
		s := watches.Event{Key: p.Key, Version: p.Version}
		switch {
		case was[p.Key] && is:
			s.Event = "MODIFIED"
		case was[p.Key]:
			s.Event = "DELETED"
		case is:
			s.Event = "ADDED"
		default:
			continue
		}
		if len(happened) == n {
			return happened, p.Version
		}
		was[p.Key] = is
		happened = append(happened, s)
	}
	return happened, math.MaxUint64
}

// stamp is a version and the time at which it was known, or at which its write began.
type stamp struct {
	when    Moment
	version uint64
}

// Floor tells the greatest version that was known before a moment.
type Floor []stamp

func newFloor(all []stamp) Floor {
	slices.SortFunc(all, func(a, b stamp) int { return cmp.Compare(a.when, b.when) })
	for i := range all[:max(len(all)-1, 0)] {
		all[i+1].version = max(all[i+1].version, all[i].version)
	}
	return all
}

// At returns the greatest version before a moment, or 0.
func (f Floor) At(when Moment) uint64 {
	n := SearchFirst(f, func(s stamp) bool { return s.when >= when })
	if n == 0 {
		return 0
	}
	return f[n-1].version
}

// Ceiling tells the least version whose write began after a moment.
type Ceiling []stamp

func newCeiling(all []stamp) Ceiling {
	slices.SortFunc(all, func(a, b stamp) int { return cmp.Compare(a.when, b.when) })
	for i := len(all) - 1; i > 0; i-- {
		all[i-1].version = min(all[i-1].version, all[i].version)
	}
	return all
}

// At returns the least version after a moment, or the greatest number.
func (c Ceiling) At(when Moment) uint64 {
	n := SearchFirst(c, func(s stamp) bool { return s.when > when })
	if n == len(c) {
		return math.MaxUint64
	}
	return c[n].version
}

// SearchFirst returns the index of the first element that has a property, in a slice sorted by
// it.
func SearchFirst[T any](all []T, has func(T) bool) int {
	at, _ := slices.BinarySearchFunc(all, true, func(v T, _ bool) int {
		if has(v) {
			return 1
		}
		return -1
	})
	return at
}
