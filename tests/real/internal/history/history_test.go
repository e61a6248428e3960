package history

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"watershed.test/real/internal/watches"
)

// Correct reads pass. Each wrong read is found, for the right reason.
func TestConsistencyCheckFindsPlantedFaults(t *testing.T) {
	gold, iron := labels.Set{"tier": "gold"}, labels.Set{"tier": "iron"}
	p := func(key string, version uint64, l labels.Set) ObjectState {
		return ObjectState{ObjectVersion: ObjectVersion{"n/" + key, version}, Labels: l}
	}
	gone := func(key string, version uint64, l labels.Set) ObjectState {
		return ObjectState{ObjectVersion: ObjectVersion{"n/" + key, version}, Labels: l, Gone: true}
	}
	h := History{
		Base: []ObjectState{p("a", 10, gold)},
		Changes: []ObjectState{
			p("b", 20, gold),
			p("b", 30, iron),
			gone("a", 40, gold),
			p("c", 50, gold), // comes and goes
			gone("c", 60, gold),
			p("a", 70, gold), // comes back
		},
	}
	// The writes follow one another. The one of version 50 is not acknowledged.
	writes := []Write{{20, 29, 20}, {30, 39, 30}, {40, 49, 40}, {60, 69, 60}, {70, 79, 70}}
	all := labels.Everything()
	golden := labels.SelectorFromSet(gold)
	of := func(items ...any) (list []ObjectVersion) {
		for i := 0; i < len(items); i += 2 {
			list = append(list, ObjectVersion{"n/" + items[i].(string), uint64(items[i+1].(int))})
		}
		return list
	}
	event := func(event, key string, version uint64) watches.Event {
		return watches.Event{Event: event, Key: "n/" + key, Version: version}
	}
	first := Read{Manner: List, Begun: 31, Ended: 35, Version: 30, Selector: all, Items: of("a", 10, "b", 30)}
	follows := func(version uint64, events []watches.Event, marks ...watches.Bookmark) Read {
		return Read{Manner: Watch, Begun: 31, Ended: 35, Version: version, Selector: all, Items: of("a", 10, "b", 30), Events: events, Marks: marks}
	}
	rest := []watches.Event{event("DELETED", "a", 40), event("ADDED", "c", 50), event("DELETED", "c", 60), event("ADDED", "a", 70)}
	onward := func(begun, ended Moment, events ...watches.Event) Read {
		return Read{Manner: Events, Begun: begun, Ended: ended, Selector: all, Events: events}
	}
	get := func(key string, begun, ended Moment, version uint64) Read {
		return Read{Manner: Get, Begun: begun, Ended: ended, Version: version, Selector: all, Items: of(key, 0)}
	}

	for _, c := range []struct {
		name     string
		readings []Read // the last one counts
		want     []Rule
	}{
		{"the state", []Read{first}, nil},
		{"the state, while something is written", []Read{{Manner: List, Begun: 31, Ended: 45, Version: 40, Selector: all, Items: of("b", 30)}}, nil},
		{"the same, as it was before", []Read{{Manner: List, Begun: 31, Ended: 45, Version: 39, Selector: all, Items: of("a", 10, "b", 30)}}, nil},
		{"between two versions of the type", []Read{{Manner: List, Begun: 80, Ended: 90, Version: 75, Selector: all, Items: of("a", 70, "b", 30)}}, nil},
		{"a selection", []Read{{Manner: List, Begun: 31, Ended: 35, Version: 30, Selector: golden, Items: of("a", 10)}}, nil},
		{"another namespace", []Read{{Manner: List, Begun: 31, Ended: 35, Version: 30, Selector: all, Namespace: "m"}}, nil},
		{"the first page", []Read{{Manner: Pages, Begun: 31, Ended: 35, Version: 30, Selector: all, Items: of("a", 10), Partial: true}}, nil},

		{"true once, and too old", []Read{{Manner: List, Begun: 51, Ended: 52, Version: 30, Selector: all, Items: of("a", 10, "b", 30)}}, []Rule{StaleAfterWrite}},
		{"too old, and says it is not", []Read{{Manner: List, Begun: 51, Ended: 52, Version: 40, Selector: all, Items: of("a", 10, "b", 30)}}, []Rule{WrongState}},
		{"a deletion that was not seen", []Read{{Manner: List, Begun: 51, Ended: 52, Version: 42, Selector: all, Items: of("a", 10, "b", 30)}}, []Rule{WrongState}},
		{"what was there between two versions", []Read{{Manner: List, Begun: 70, Ended: 79, Version: 65, Selector: all, Items: of("b", 30, "c", 50)}}, []Rule{WrongState}},
		{"an old version of an object", []Read{{Manner: List, Begun: 31, Ended: 35, Version: 30, Selector: all, Items: of("a", 10, "b", 20)}}, []Rule{WrongState}},
		{"what is not selected", []Read{{Manner: List, Begun: 31, Ended: 35, Version: 30, Selector: golden, Items: of("a", 10, "b", 30)}}, []Rule{WrongState}},
		{"a page that leaves one out", []Read{{Manner: Pages, Begun: 31, Ended: 35, Version: 30, Selector: all, Items: of("b", 30), Partial: true}}, []Rule{WrongState}},
		{"a last page too early", []Read{{Manner: Pages, Begun: 31, Ended: 35, Version: 30, Selector: all, Items: of("a", 10)}}, []Rule{WrongState}},
		{"in another order", []Read{{Manner: List, Begun: 31, Ended: 35, Version: 30, Selector: all, Items: of("b", 30, "a", 10)}}, []Rule{WrongState}},
		{"from the future", []Read{{Manner: List, Begun: 31, Ended: 35, Version: 40, Selector: all, Items: of("b", 30)}}, []Rule{FromTheFuture}},
		{"back in time", []Read{
			{Manner: List, Begun: 50, Ended: 53, Version: 50, Selector: all, Items: of("b", 30, "c", 50)},
			{Manner: List, Begun: 54, Ended: 55, Version: 45, Selector: all, Items: of("b", 30)}}, []Rule{StaleAfterRead}},
		{"at the same time", []Read{
			{Manner: List, Begun: 50, Ended: 55, Version: 50, Selector: all, Items: of("b", 30, "c", 50)},
			{Manner: List, Begun: 54, Ended: 55, Version: 45, Selector: all, Items: of("b", 30)}}, nil},

		{"a watch", []Read{follows(30, rest, watches.Bookmark{Version: 35, After: 0}, watches.Bookmark{Version: 70, After: 4}, watches.Bookmark{Version: 99, After: 4})}, nil},
		{"a watch that was ended", []Read{follows(30, rest[:2])}, nil},
		{"an end mark of too high a version", []Read{follows(40, rest)}, []Rule{WrongState, FromTheFuture, WrongEvents}},
		{"an event that is lost", []Read{follows(30, slices.Delete(slices.Clone(rest), 1, 2))}, []Rule{WrongEvents}},
		{"an event too many", []Read{follows(30, append(slices.Clone(rest), event("MODIFIED", "a", 80)))}, []Rule{WrongEvents}},
		{"an event twice", []Read{follows(30, slices.Insert(slices.Clone(rest), 0, rest[0]))}, []Rule{WrongEvents}},
		{"another event", []Read{follows(30, []watches.Event{event("MODIFIED", "a", 40)})}, []Rule{WrongEvents}},
		{"a bookmark amidst what it says was sent", []Read{follows(30, rest[:2], watches.Bookmark{Version: 50, After: 1})}, []Rule{WrongEvents}},
		{"a bookmark in place of an event", []Read{follows(30, rest[:2], watches.Bookmark{Version: 60, After: 2})}, []Rule{WrongEvents}},
		{"a bookmark from before the end mark", []Read{follows(30, rest[:2], watches.Bookmark{Version: 29, After: 0})}, []Rule{WrongEvents}},
		{"leaving a selection", []Read{{Manner: Watch, Begun: 20, Ended: 25, Version: 20, Selector: golden, Items: of("a", 10, "b", 20),
			Events: []watches.Event{event("DELETED", "b", 30), event("DELETED", "a", 40)}}}, nil},
		{"leaving a selection unseen", []Read{{Manner: Watch, Begun: 20, Ended: 25, Version: 20, Selector: golden, Items: of("a", 10, "b", 20),
			Events: []watches.Event{event("DELETED", "a", 40)}}}, []Rule{WrongEvents}},

		{"a watch from now on", []Read{onward(33, 35, rest...)}, nil},
		{"a watch from now on that is told where it is", []Read{{Manner: Events, Begun: 33, Ended: 35, Selector: all, Events: rest, Marks: []watches.Bookmark{{Version: 30, After: 0}, {Version: 45, After: 1}}}}, nil},
		{"a watch from now on that saw nothing", []Read{onward(33, 35)}, nil},
		{"a watch from now on that was opened slowly", []Read{onward(33, 65, rest[2:]...)}, nil},
		{"a watch from now on that begins too early", []Read{onward(51, 55, rest...)}, []Rule{ImpossibleState}},
		{"a watch from now on that begins too late", []Read{onward(33, 35, rest[1:]...)}, []Rule{WrongEvents}},
		{"a watch from now on that loses something", []Read{onward(33, 35, rest[0], rest[2])}, []Rule{WrongEvents}},

		{"a get", []Read{get("b", 31, 35, 30)}, nil},
		{"a get of what was replaced", []Read{get("b", 41, 45, 20)}, []Rule{ImpossibleState}},
		{"a get while it is replaced", []Read{get("b", 25, 35, 20)}, nil},
		{"a get of nothing", []Read{get("c", 31, 35, 0)}, nil},
		{"a get that finds nothing", []Read{get("b", 31, 35, 0)}, []Rule{ImpossibleState}},
		{"a get of what is yet to be made", []Read{get("a", 51, 55, 70)}, []Rule{ImpossibleState}},
		{"a get behind a list", []Read{
			{Manner: List, Begun: 50, Ended: 53, Version: 50, Selector: all, Items: of("b", 30, "c", 50)}, get("c", 54, 55, 0)}, []Rule{ImpossibleState}},
	} {
		var got []Rule
		for _, v := range Check(h, writes, c.readings) {
			if v.Read == len(c.readings)-1 {
				got = append(got, v.Rule)
			} else {
				t.Errorf("%s: %s: %s", c.name, v.Rule, v.Text)
			}
		}
		slices.Sort(got)
		slices.Sort(c.want)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: found %q, not %q", c.name, got, c.want)
		}
	}
}
