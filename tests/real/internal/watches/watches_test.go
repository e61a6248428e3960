package watches

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"watershed.test/real/internal/require"
)

// referenceOf makes a reference of lines "EVENT name version tier".
func referenceOf(t *testing.T, lines ...string) *Reference {
	t.Helper()
	tr := &Reference{kind: ConfigMaps, Base: map[string]*Object{}, from: 10}
	current := map[string]*Object{}
	for _, line := range lines {
		var event, name, tier string
		var version uint64
		require.Value(fmt.Sscan(line, &event, &name, &version, &tier))(t)
		s := &Object{Key: "ns/" + name, namespace: "ns", Version: version, Labels: labels.Set{"tier": tier},
			fields: fields.Set{"metadata.name": name},
			raw:    fmt.Appendf(nil, `{"metadata":{"name":"%s","namespace":"ns","resourceVersion":"%d","labels":{"tier":"%s"}}}`, name, version, tier)}
		if event == "BASE" {
			tr.Base[s.Key], current[s.Key] = s, s
			continue
		}
		tr.changes = append(tr.changes, Change{Event: event, Version: version, before: current[s.Key], After: s})
		if current[s.Key] = s; event == "DELETED" {
			delete(current, s.Key)
		}
	}
	return tr
}

// All tests of watches rely on the comparison, so this test shows that it finds planted faults.
func TestWatchComparisonFindsPlantedFaults(t *testing.T) {
	tr := referenceOf(t,
		"BASE b 3 gold", "BASE a 7 gold", "BASE c 9 iron",
		"MODIFIED a 11 gold", // stays
		"ADDED d 12 iron",    // not in view
		"MODIFIED d 13 gold", // comes in
		"MODIFIED a 15 iron", // goes out
		"MODIFIED a 16 iron", // out of view
		"DELETED b 18 gold",  // deleted
		"MODIFIED d 20 gold", // stays
	)
	v := View{Kind: ConfigMaps, Labels: "tier=gold"}
	state := tr.at(v, 10)
	events := tr.after(v, 10)
	var words []string
	for _, s := range slices.Concat(state, events) {
		words = append(words, fmt.Sprintf("%s %s %d", s.Event, s.Key, s.Version))
	}
	const want = "ADDED ns/a 7, ADDED ns/b 3, MODIFIED ns/a 11, ADDED ns/d 13, DELETED ns/a 15, DELETED ns/b 18, MODIFIED ns/d 20"
	if got := strings.Join(words, ", "); got != want {
		t.Fatalf("derived\n%s\nnot\n%s", got, want)
	}
	left := withVersion(tr.changes[0].After, 15)
	if !strings.Contains(string(left), `"resourceVersion":"15"`) || !strings.Contains(string(left), "gold") ||
		events[2].sum != ConfigMaps.sum(left, false) {
		t.Fatalf("the DELETED does not have the last state in the view: %s", left)
	}

	// sound returns a watcher that saw everything. The faults below alter it.
	sound := func() *Watcher {
		return &Watcher{View: v, Habit: FromState, Stretches: []*Segment{{
			began: 10, marked: true, stateSize: len(state), Events: slices.Concat(state, events),
			marks: []Bookmark{{10, 2}, {14, 4}, {20, 7}},
		}}}
	}
	if err := sound().Verify(tr); err != nil {
		t.Fatal(err)
	}
	faults := map[string]func(s *Segment){
		"dropped":          func(s *Segment) { s.Events = slices.Delete(s.Events, 3, 4) },
		"dropped last":     func(s *Segment) { s.Events = s.Events[:6] },
		"dropped of state": func(s *Segment) { s.Events = s.Events[1:]; s.stateSize-- },
		"swapped":          func(s *Segment) { s.Events[4], s.Events[5] = s.Events[5], s.Events[4] },
		"swapped in state": func(s *Segment) { s.Events[0], s.Events[1] = s.Events[1], s.Events[0] },
		"repeated":         func(s *Segment) { s.Events = slices.Insert(s.Events, 4, s.Events[3]) },
		"repeated last":    func(s *Segment) { s.Events = append(s.Events, s.Events[6]) },
		// The version of the object instead of that of its leaving.
		"version of DELETED": func(s *Segment) { s.Events[4].Version = 11 },
		// The state outside the view instead of the last one in it.
		"object of DELETED": func(s *Segment) { s.Events[4].sum = ConfigMaps.sum(tr.changes[3].After.raw, false) },
		"type":              func(s *Segment) { s.Events[4].Event = "MODIFIED" },
		"object":            func(s *Segment) { s.Events[3].sum++ },
		"bookmark ahead":    func(s *Segment) { s.marks[1].Version = 15 },
		"bookmark behind":   func(s *Segment) { s.marks[1].Version = 12 },
		"bookmark back":     func(s *Segment) { s.marks = append(s.marks, Bookmark{19, 7}) },
		"mark in the state": func(s *Segment) { s.marks[0].After = 1 },
	}
	for name, plant := range faults {
		w := sound()
		plant(w.Stretches[0])
		err := w.Verify(tr)
		if err == nil {
			t.Errorf("%s: not found", name)
			continue
		}
		t.Logf("%s: %v", name, err)
	}

	// A 410 may come early, but nothing before it may be missing, and the list after it must be
	// a state that existed.
	expired := func() *Watcher {
		w := &Watcher{View: v, Habit: FromList}
		listed := func(version uint64) []Event {
			all := tr.at(v, version)
			for i := range all {
				all[i].sum = 0
			}
			return all
		}
		w.Stretches = []*Segment{
			{began: 10, listed: listed(10), Events: events[:2]},
			{began: 16, listed: listed(16), Events: tr.after(v, 16)},
		}
		return w
	}
	if err := expired().Verify(tr); err != nil {
		t.Fatal(err)
	}
	for name, plant := range map[string]func(w *Watcher){
		"gap before 410":     func(w *Watcher) { w.Stretches[0].Events = w.Stretches[0].Events[1:] },
		"gap after the list": func(w *Watcher) { w.Stretches[1].Events = w.Stretches[1].Events[1:] },
		"list of old":        func(w *Watcher) { w.Stretches[1].listed = w.Stretches[0].listed },
		"list lacks one":     func(w *Watcher) { w.Stretches[1].listed = w.Stretches[1].listed[1:] },
	} {
		w := expired()
		plant(w)
		if w.Verify(tr) == nil {
			t.Errorf("%s: not found", name)
		}
	}
}
