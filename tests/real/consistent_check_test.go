package real

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
)

// Whether a history is linearizable is hard to tell in general. Here it is not:
// etcd gives every write a version, and every list says of which version it is.
// So the order is known, and what remains is to ask whether each answer is the
// state at its version, and whether versions and time agree.

// moment is a time on the clock of the test, which never goes back.
type moment = time.Duration

// held is an object's name and version.
type held struct {
	key     string
	version uint64
}

// point is one change in a type's history.
type point struct {
	held
	labels labels.Set
	gone   bool
}

// history is all that happened to one type, in the order in which it happened.
type history struct {
	// base is the state before the first change.
	base    []point
	changes []point
}

// write is one that was acknowledged.
type write struct {
	begun, ended moment
	version      uint64
}

// manner is how something was read.
type manner string

const (
	byList  manner = "list"
	byPages manner = "pages"
	byWatch manner = "watch"
	byGet   manner = "get"
	// byEvents is a watch that begins with the next event after the latest state.
	byEvents manner = "events"
)

// reading is one read, and what came of it.
type reading struct {
	manner       manner
	words        string // what was asked for, of whom, for people
	source       string
	begun, ended moment
	// version is that of the list, or of the watch's end mark. That of a get is
	// its object's, or 0 when there was none. Where a watch without a state began
	// is not said.
	version   uint64
	selector  labels.Selector
	namespace string
	// items are in the order in which they came. Of a get it is the name that
	// was asked for.
	items []held
	// partly says that what follows these pages was not read.
	partly bool
	// events and marks are what a watch said after its end mark.
	events []seen
	marks  []mark
}

func (r *reading) selects(p point) bool {
	return (r.namespace == "" || strings.HasPrefix(p.key, r.namespace+"/")) && r.selector.Matches(p.labels)
}

func (r reading) String() string {
	return fmt.Sprintf("%s from %q at %d, %v to %v", r.words, r.source, r.version, r.begun, r.ended)
}

// rule is what an answer can violate.
type rule string

const (
	notThatState   rule = "not the state at its version"
	neverThat      rule = "not what it was at any version it may be of"
	afterWrites    rule = "older than a write that was acknowledged before"
	afterReads     rule = "older than what was read before"
	beforeFuture   rule = "newer than a write that began later"
	eventsAfterEnd rule = "not the events that follow"
)

type violation struct {
	rule    rule
	reading int
	text    string
}

// examine looks at everything that was read of one type.
func examine(h history, writes []write, readings []reading) []violation {
	c := newChecker(h, writes, readings)
	order := make([]int, len(readings))
	for i := range order {
		order[i] = i
	}
	// By version, so that the history is gone through once.
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(readings[a].version, readings[b].version) })
	state := newReplay(h)
	for _, i := range order {
		c.look(i, &readings[i], state)
	}
	slices.SortStableFunc(c.found, func(a, b violation) int { return cmp.Compare(readings[a.reading].begun, readings[b.reading].begun) })
	return c.found
}

// replay is the state of a type at a version that only grows.
type replay struct {
	history history
	next    int
	keys    []string
	objects map[string]point
}

func newReplay(h history) *replay {
	r := &replay{history: h, objects: map[string]point{}}
	for _, p := range h.base {
		r.objects[p.key] = p
	}
	r.keys = slices.Sorted(maps.Keys(r.objects))
	return r
}

func (r *replay) advance(version uint64) {
	for ; r.next < len(r.history.changes) && r.history.changes[r.next].version <= version; r.next++ {
		p := r.history.changes[r.next]
		at, there := slices.BinarySearch(r.keys, p.key)
		switch {
		case p.gone && there:
			r.keys = slices.Delete(r.keys, at, at+1)
		case !p.gone && !there:
			r.keys = slices.Insert(r.keys, at, p.key)
		}
		if r.objects[p.key] = p; p.gone {
			delete(r.objects, p.key)
		}
	}
}

// selected is what a list of this state has.
func (r *replay) selected(selects func(point) bool) []held {
	var all []held
	for _, key := range r.keys {
		if p := r.objects[key]; selects(p) {
			all = append(all, p.held)
		}
	}
	return all
}

type checker struct {
	history history
	// acknowledged and read tell how new what begins at a moment has to be, and
	// ahead what is still to come at a moment.
	acknowledged, read floor
	ahead              ceiling
	// lives has each object's changes.
	lives map[string][]point
	found []violation
}

func newChecker(h history, writes []write, readings []reading) *checker {
	c := &checker{history: h, lives: map[string][]point{}}
	for _, p := range slices.Concat(h.base, h.changes) {
		c.lives[p.key] = append(c.lives[p.key], p)
	}
	var acknowledged, read, begun []stamp
	for _, w := range writes {
		acknowledged = append(acknowledged, stamp{w.ended, w.version})
		begun = append(begun, stamp{w.begun, w.version})
	}
	for _, r := range readings {
		// A version of 0 says nothing, so a get that found nothing does no harm.
		read = append(read, stamp{r.ended, r.version})
	}
	c.acknowledged, c.read, c.ahead = newFloor(acknowledged), newFloor(read), newCeiling(begun)
	return c
}

// look asks everything of one reading. The state must not be beyond it.
func (c *checker) look(i int, r *reading, state *replay) {
	if r.manner == byGet {
		c.get(i, r)
		return
	}
	if r.manner == byEvents {
		c.onward(i, r)
		return
	}
	state.advance(r.version)
	c.contents(i, r, state)
	c.times(i, r)
	if r.manner == byWatch {
		c.events(i, r)
	}
}

func (c *checker) say(broken rule, i int, format string, args ...any) {
	c.found = append(c.found, violation{broken, i, fmt.Sprintf(format, args...)})
}

// contents compares with the state at the version.
func (c *checker) contents(i int, r *reading, state *replay) {
	want := state.selected(r.selects)
	if r.partly {
		want = want[:min(len(want), len(r.items))]
	}
	for j := range max(len(want), len(r.items)) {
		switch {
		case j >= len(r.items):
			c.say(notThatState, i, "%v is missing, there are %d objects and not %d", want[j], len(r.items), len(want))
		case j >= len(want):
			c.say(notThatState, i, "%v is too much, there are %d objects and not %d", r.items[j], len(r.items), len(want))
		case want[j] != r.items[j]:
			c.say(notThatState, i, "object %d is %v, not %v", j, r.items[j], want[j])
		default:
			continue
		}
		return
	}
}

// times compares with what ended before and with what began after.
func (c *checker) times(i int, r *reading) {
	if least := c.acknowledged.at(r.begun); r.version < least {
		c.say(afterWrites, i, "%d was acknowledged", least)
	}
	if least := c.read.at(r.begun); r.version < least {
		c.say(afterReads, i, "%d was read", least)
	}
	if next := c.ahead.at(r.ended); r.version >= next {
		c.say(beforeFuture, i, "%d was written later", next)
	}
}

// get asks whether there was a version, neither too old nor of the future, at
// which the object was what was read.
func (c *checker) get(i int, r *reading) {
	key := r.items[0].key
	oldest, next := max(c.acknowledged.at(r.begun), c.read.at(r.begun)), c.ahead.at(r.ended)
	// The object was this from one change to the next. Before the first it was not there.
	from, was := uint64(0), uint64(0)
	for _, p := range append(slices.Clone(c.lives[key]), point{held: held{key, math.MaxUint64}}) {
		if was == r.version && from < next && p.version > oldest {
			return
		}
		if from, was = p.version, p.version; p.gone {
			was = 0
		}
	}
	c.say(neverThat, i, "%s was not that at any version from %d to before %d", key, oldest, next)
}

// events compares what a watch said after its first state with what happened.
func (c *checker) events(i int, r *reading) {
	happened, next := c.after(r, len(r.events))
	if err := compare(nil, happened, r.events, r.marks); err != nil {
		c.say(eventsAfterEnd, i, "%v", err)
		return
	}
	for _, m := range r.marks {
		switch {
		case m.version < r.version && r.manner == byWatch:
			c.say(eventsAfterEnd, i, "a bookmark of %d after the end mark", m.version)
			return
		case m.version >= next:
			c.say(eventsAfterEnd, i, "a bookmark of %d, and the event of %d was not sent", m.version, next)
			return
		}
	}
}

// onward asks of a watch that began with the next event whether there was a
// version, neither too old nor of the future, on which these events follow.
func (c *checker) onward(i int, r *reading) {
	if len(r.events) == 0 {
		return
	}
	first := r.events[0].version
	if oldest := max(c.acknowledged.at(r.begun), c.read.at(r.begun)); first <= oldest {
		c.say(neverThat, i, "%v, where it was %d before", r.events[0], oldest)
		return
	}
	begun := *r
	state := newReplay(c.history)
	begun.version = first - 1
	if next := c.ahead.at(r.ended); next <= begun.version {
		// What was written when the watch was open already is not before its begin.
		begun.version = next - 1
	}
	state.advance(begun.version)
	begun.items = state.selected(r.selects)
	c.events(i, &begun)
}

// after is the first n events that follow on a reading, and the version of the
// one after these.
func (c *checker) after(r *reading, n int) (happened []seen, next uint64) {
	was := map[string]bool{}
	for _, item := range r.items {
		was[item.key] = true
	}
	changes := c.history.changes
	from := firstOf(changes, func(p point) bool { return p.version > r.version })
	for _, p := range changes[from:] {
		is := !p.gone && r.selects(p)
		s := seen{key: p.key, version: p.version}
		switch {
		case was[p.key] && is:
			s.event = "MODIFIED"
		case was[p.key]:
			s.event = "DELETED"
		case is:
			s.event = "ADDED"
		default:
			continue
		}
		if len(happened) == n {
			return happened, p.version
		}
		was[p.key] = is
		happened = append(happened, s)
	}
	return happened, math.MaxUint64
}

// stamp is a version and when it was known, or begun to be made.
type stamp struct {
	when    moment
	version uint64
}

// floor tells the greatest version that was known before a moment.
type floor []stamp

func newFloor(all []stamp) floor {
	slices.SortFunc(all, func(a, b stamp) int { return cmp.Compare(a.when, b.when) })
	for i := range all[:max(len(all)-1, 0)] {
		all[i+1].version = max(all[i+1].version, all[i].version)
	}
	return all
}

func (f floor) at(when moment) uint64 {
	n := firstOf(f, func(s stamp) bool { return s.when >= when })
	if n == 0 {
		return 0
	}
	return f[n-1].version
}

// ceiling tells the least version that was begun after a moment.
type ceiling []stamp

func newCeiling(all []stamp) ceiling {
	slices.SortFunc(all, func(a, b stamp) int { return cmp.Compare(a.when, b.when) })
	for i := len(all) - 1; i > 0; i-- {
		all[i-1].version = min(all[i-1].version, all[i].version)
	}
	return all
}

func (c ceiling) at(when moment) uint64 {
	n := firstOf(c, func(s stamp) bool { return s.when > when })
	if n == len(c) {
		return math.MaxUint64
	}
	return c[n].version
}

// firstOf is where the part of a sorted slice begins that has a property.
func firstOf[T any](all []T, has func(T) bool) int {
	at, _ := slices.BinarySearchFunc(all, true, func(v T, _ bool) int {
		if has(v) {
			return 1
		}
		return -1
	})
	return at
}
