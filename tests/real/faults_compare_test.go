package real

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// told makes a truth out of lines "EVENT name version tier".
func told(t *testing.T, lines ...string) *truth {
	t.Helper()
	tr := &truth{kind: ofConfigMaps, base: map[string]*stored{}, from: 10}
	current := map[string]*stored{}
	for _, line := range lines {
		var event, name, tier string
		var version uint64
		must(fmt.Sscan(line, &event, &name, &version, &tier))(t)
		s := &stored{key: "ns/" + name, namespace: "ns", version: version, labels: labels.Set{"tier": tier},
			fields: fields.Set{"metadata.name": name},
			raw:    fmt.Appendf(nil, `{"metadata":{"name":"%s","namespace":"ns","resourceVersion":"%d","labels":{"tier":"%s"}}}`, name, version, tier)}
		if event == "BASE" {
			tr.base[s.key], current[s.key] = s, s
			continue
		}
		tr.changes = append(tr.changes, change{event: event, version: version, before: current[s.key], after: s})
		if current[s.key] = s; event == "DELETED" {
			delete(current, s.key)
		}
	}
	return tr
}

// The comparison is what all of this stands on, so it is shown to see what it
// is there to see.
func TestComparisonSeesPlantedFaults(t *testing.T) {
	tr := told(t,
		"BASE b 3 gold", "BASE a 7 gold", "BASE c 9 iron",
		"MODIFIED a 11 gold", // stays
		"ADDED d 12 iron",    // not in view
		"MODIFIED d 13 gold", // comes in
		"MODIFIED a 15 iron", // goes out
		"MODIFIED a 16 iron", // out of view
		"DELETED b 18 gold",  // deleted
		"MODIFIED d 20 gold", // stays
	)
	v := view{kind: ofConfigMaps, labels: "tier=gold"}
	state := tr.at(v, 10)
	events := tr.after(v, 10)
	var words []string
	for _, s := range slices.Concat(state, events) {
		words = append(words, fmt.Sprintf("%s %s %d", s.event, s.key, s.version))
	}
	const want = "ADDED ns/a 7, ADDED ns/b 3, MODIFIED ns/a 11, ADDED ns/d 13, DELETED ns/a 15, DELETED ns/b 18, MODIFIED ns/d 20"
	if got := strings.Join(words, ", "); got != want {
		t.Fatalf("derived\n%s\nnot\n%s", got, want)
	}
	left := withVersion(tr.changes[0].after, 15)
	if !strings.Contains(string(left), `"resourceVersion":"15"`) || !strings.Contains(string(left), "gold") ||
		events[2].sum != ofConfigMaps.sum(left, false) {
		t.Fatalf("what left the view is not its last state in it: %s", left)
	}

	// A watcher that saw it all, and what can go wrong with it.
	sound := func() *watcher {
		return &watcher{view: v, habit: fromState, stretches: []*stretch{{
			began: 10, marked: true, stateSize: len(state), events: slices.Concat(state, events),
			marks: []mark{{10, 2}, {14, 4}, {20, 7}},
		}}}
	}
	if err := sound().verify(tr); err != nil {
		t.Fatal(err)
	}
	faults := map[string]func(s *stretch){
		"dropped":          func(s *stretch) { s.events = slices.Delete(s.events, 3, 4) },
		"dropped last":     func(s *stretch) { s.events = s.events[:6] },
		"dropped of state": func(s *stretch) { s.events = s.events[1:]; s.stateSize-- },
		"swapped":          func(s *stretch) { s.events[4], s.events[5] = s.events[5], s.events[4] },
		"swapped in state": func(s *stretch) { s.events[0], s.events[1] = s.events[1], s.events[0] },
		"repeated":         func(s *stretch) { s.events = slices.Insert(s.events, 4, s.events[3]) },
		"repeated last":    func(s *stretch) { s.events = append(s.events, s.events[6]) },
		// The version that the object had, not that of its leaving.
		"version of DELETED": func(s *stretch) { s.events[4].version = 11 },
		// The state that took it out of the view, not the last one in it.
		"object of DELETED": func(s *stretch) { s.events[4].sum = ofConfigMaps.sum(tr.changes[3].after.raw, false) },
		"type":              func(s *stretch) { s.events[4].event = "MODIFIED" },
		"object":            func(s *stretch) { s.events[3].sum++ },
		"bookmark ahead":    func(s *stretch) { s.marks[1].version = 15 },
		"bookmark behind":   func(s *stretch) { s.marks[1].version = 12 },
		"bookmark back":     func(s *stretch) { s.marks = append(s.marks, mark{19, 7}) },
		"mark in the state": func(s *stretch) { s.marks[0].after = 1 },
	}
	for name, plant := range faults {
		w := sound()
		plant(w.stretches[0])
		err := w.verify(tr)
		if err == nil {
			t.Errorf("%s: not seen", name)
			continue
		}
		t.Logf("%s: %v", name, err)
	}

	// A 410 may come early, but nothing may be missing before it, and the list
	// after it must be a state there was.
	expired := func() *watcher {
		w := &watcher{view: v, habit: fromList}
		listed := func(version uint64) []seen {
			all := tr.at(v, version)
			for i := range all {
				all[i].sum = 0
			}
			return all
		}
		w.stretches = []*stretch{
			{began: 10, listed: listed(10), events: events[:2]},
			{began: 16, listed: listed(16), events: tr.after(v, 16)},
		}
		return w
	}
	if err := expired().verify(tr); err != nil {
		t.Fatal(err)
	}
	for name, plant := range map[string]func(w *watcher){
		"gap before 410":     func(w *watcher) { w.stretches[0].events = w.stretches[0].events[1:] },
		"gap after the list": func(w *watcher) { w.stretches[1].events = w.stretches[1].events[1:] },
		"list of old":        func(w *watcher) { w.stretches[1].listed = w.stretches[0].listed },
		"list lacks one":     func(w *watcher) { w.stretches[1].listed = w.stretches[1].listed[1:] },
	} {
		w := expired()
		plant(w)
		if w.verify(tr) == nil {
			t.Errorf("%s: not seen", name)
		}
	}
}
