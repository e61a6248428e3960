package real

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

// TestConsistencyCheckSeesPlantedFaults: what is right passes, and each thing
// that is not is found, for the reason that it has.
func TestConsistencyCheckSeesPlantedFaults(t *testing.T) {
	gold, iron := labels.Set{"tier": "gold"}, labels.Set{"tier": "iron"}
	p := func(key string, version uint64, l labels.Set) point {
		return point{held: held{"n/" + key, version}, labels: l}
	}
	gone := func(key string, version uint64, l labels.Set) point {
		return point{held: held{"n/" + key, version}, labels: l, gone: true}
	}
	h := history{
		base: []point{p("a", 10, gold)},
		changes: []point{
			p("b", 20, gold),
			p("b", 30, iron),
			gone("a", 40, gold),
			p("c", 50, gold), // comes and goes
			gone("c", 60, gold),
			p("a", 70, gold), // comes back
		},
	}
	// Written one after the other. That of 50 is not acknowledged.
	writes := []write{{20, 29, 20}, {30, 39, 30}, {40, 49, 40}, {60, 69, 60}, {70, 79, 70}}
	all := labels.Everything()
	golden := labels.SelectorFromSet(gold)
	of := func(items ...any) (list []held) {
		for i := 0; i < len(items); i += 2 {
			list = append(list, held{"n/" + items[i].(string), uint64(items[i+1].(int))})
		}
		return list
	}
	event := func(event, key string, version uint64) seen {
		return seen{event: event, key: "n/" + key, version: version}
	}
	first := reading{manner: byList, begun: 31, ended: 35, version: 30, selector: all, items: of("a", 10, "b", 30)}
	follows := func(version uint64, events []seen, marks ...mark) reading {
		return reading{manner: byWatch, begun: 31, ended: 35, version: version, selector: all, items: of("a", 10, "b", 30), events: events, marks: marks}
	}
	rest := []seen{event("DELETED", "a", 40), event("ADDED", "c", 50), event("DELETED", "c", 60), event("ADDED", "a", 70)}
	onward := func(begun, ended moment, events ...seen) reading {
		return reading{manner: byEvents, begun: begun, ended: ended, selector: all, events: events}
	}
	get := func(key string, begun, ended moment, version uint64) reading {
		return reading{manner: byGet, begun: begun, ended: ended, version: version, selector: all, items: of(key, 0)}
	}

	for _, c := range []struct {
		name     string
		readings []reading // the last one counts
		want     []rule
	}{
		{"the state", []reading{first}, nil},
		{"the state, while something is written", []reading{{manner: byList, begun: 31, ended: 45, version: 40, selector: all, items: of("b", 30)}}, nil},
		{"the same, as it was before", []reading{{manner: byList, begun: 31, ended: 45, version: 39, selector: all, items: of("a", 10, "b", 30)}}, nil},
		{"between two versions of the type", []reading{{manner: byList, begun: 80, ended: 90, version: 75, selector: all, items: of("a", 70, "b", 30)}}, nil},
		{"a selection", []reading{{manner: byList, begun: 31, ended: 35, version: 30, selector: golden, items: of("a", 10)}}, nil},
		{"another namespace", []reading{{manner: byList, begun: 31, ended: 35, version: 30, selector: all, namespace: "m"}}, nil},
		{"the first page", []reading{{manner: byPages, begun: 31, ended: 35, version: 30, selector: all, items: of("a", 10), partly: true}}, nil},

		{"true once, and too old", []reading{{manner: byList, begun: 51, ended: 52, version: 30, selector: all, items: of("a", 10, "b", 30)}}, []rule{afterWrites}},
		{"too old, and says it is not", []reading{{manner: byList, begun: 51, ended: 52, version: 40, selector: all, items: of("a", 10, "b", 30)}}, []rule{notThatState}},
		{"a deletion that was not seen", []reading{{manner: byList, begun: 51, ended: 52, version: 42, selector: all, items: of("a", 10, "b", 30)}}, []rule{notThatState}},
		{"what was there between two versions", []reading{{manner: byList, begun: 70, ended: 79, version: 65, selector: all, items: of("b", 30, "c", 50)}}, []rule{notThatState}},
		{"an old version of an object", []reading{{manner: byList, begun: 31, ended: 35, version: 30, selector: all, items: of("a", 10, "b", 20)}}, []rule{notThatState}},
		{"what is not selected", []reading{{manner: byList, begun: 31, ended: 35, version: 30, selector: golden, items: of("a", 10, "b", 30)}}, []rule{notThatState}},
		{"a page that leaves one out", []reading{{manner: byPages, begun: 31, ended: 35, version: 30, selector: all, items: of("b", 30), partly: true}}, []rule{notThatState}},
		{"a last page too early", []reading{{manner: byPages, begun: 31, ended: 35, version: 30, selector: all, items: of("a", 10)}}, []rule{notThatState}},
		{"in another order", []reading{{manner: byList, begun: 31, ended: 35, version: 30, selector: all, items: of("b", 30, "a", 10)}}, []rule{notThatState}},
		{"from the future", []reading{{manner: byList, begun: 31, ended: 35, version: 40, selector: all, items: of("b", 30)}}, []rule{beforeFuture}},
		{"back in time", []reading{
			{manner: byList, begun: 50, ended: 53, version: 50, selector: all, items: of("b", 30, "c", 50)},
			{manner: byList, begun: 54, ended: 55, version: 45, selector: all, items: of("b", 30)}}, []rule{afterReads}},
		{"at the same time", []reading{
			{manner: byList, begun: 50, ended: 55, version: 50, selector: all, items: of("b", 30, "c", 50)},
			{manner: byList, begun: 54, ended: 55, version: 45, selector: all, items: of("b", 30)}}, nil},

		{"a watch", []reading{follows(30, rest, mark{35, 0}, mark{70, 4}, mark{99, 4})}, nil},
		{"a watch that was ended", []reading{follows(30, rest[:2])}, nil},
		{"an end mark of too high a version", []reading{follows(40, rest)}, []rule{notThatState, beforeFuture, eventsAfterEnd}},
		{"an event that is lost", []reading{follows(30, slices.Delete(slices.Clone(rest), 1, 2))}, []rule{eventsAfterEnd}},
		{"an event too many", []reading{follows(30, append(slices.Clone(rest), event("MODIFIED", "a", 80)))}, []rule{eventsAfterEnd}},
		{"an event twice", []reading{follows(30, slices.Insert(slices.Clone(rest), 0, rest[0]))}, []rule{eventsAfterEnd}},
		{"another event", []reading{follows(30, []seen{event("MODIFIED", "a", 40)})}, []rule{eventsAfterEnd}},
		{"a bookmark amidst what it says was sent", []reading{follows(30, rest[:2], mark{50, 1})}, []rule{eventsAfterEnd}},
		{"a bookmark in place of an event", []reading{follows(30, rest[:2], mark{60, 2})}, []rule{eventsAfterEnd}},
		{"a bookmark from before the end mark", []reading{follows(30, rest[:2], mark{29, 0})}, []rule{eventsAfterEnd}},
		{"leaving a selection", []reading{{manner: byWatch, begun: 20, ended: 25, version: 20, selector: golden, items: of("a", 10, "b", 20),
			events: []seen{event("DELETED", "b", 30), event("DELETED", "a", 40)}}}, nil},
		{"leaving a selection unseen", []reading{{manner: byWatch, begun: 20, ended: 25, version: 20, selector: golden, items: of("a", 10, "b", 20),
			events: []seen{event("DELETED", "a", 40)}}}, []rule{eventsAfterEnd}},

		{"a watch from now on", []reading{onward(33, 35, rest...)}, nil},
		{"a watch from now on that is told where it is", []reading{{manner: byEvents, begun: 33, ended: 35, selector: all, events: rest, marks: []mark{{30, 0}, {45, 1}}}}, nil},
		{"a watch from now on that saw nothing", []reading{onward(33, 35)}, nil},
		{"a watch from now on that was opened slowly", []reading{onward(33, 65, rest[2:]...)}, nil},
		{"a watch from now on that begins too early", []reading{onward(51, 55, rest...)}, []rule{neverThat}},
		{"a watch from now on that begins too late", []reading{onward(33, 35, rest[1:]...)}, []rule{eventsAfterEnd}},
		{"a watch from now on that loses something", []reading{onward(33, 35, rest[0], rest[2])}, []rule{eventsAfterEnd}},

		{"a get", []reading{get("b", 31, 35, 30)}, nil},
		{"a get of what was replaced", []reading{get("b", 41, 45, 20)}, []rule{neverThat}},
		{"a get while it is replaced", []reading{get("b", 25, 35, 20)}, nil},
		{"a get of nothing", []reading{get("c", 31, 35, 0)}, nil},
		{"a get that finds nothing", []reading{get("b", 31, 35, 0)}, []rule{neverThat}},
		{"a get of what is yet to be made", []reading{get("a", 51, 55, 70)}, []rule{neverThat}},
		{"a get behind a list", []reading{
			{manner: byList, begun: 50, ended: 53, version: 50, selector: all, items: of("b", 30, "c", 50)}, get("c", 54, 55, 0)}, []rule{neverThat}},
	} {
		var got []rule
		for _, v := range examine(h, writes, c.readings) {
			if v.reading == len(c.readings)-1 {
				got = append(got, v.rule)
			} else {
				t.Errorf("%s: %s: %s", c.name, v.rule, v.text)
			}
		}
		slices.Sort(got)
		slices.Sort(c.want)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: found %q, not %q", c.name, got, c.want)
		}
	}
}
