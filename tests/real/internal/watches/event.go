// Package watches records what watches of the API say, and compares it with what happened.
package watches

import (
	"fmt"
	"slices"
)

// Event is one event of a watch.
type Event struct {
	Event   string
	Key     string
	Version uint64
	sum     uint64
}

func (s Event) String() string {
	return fmt.Sprintf("%s %s at %d (%08x)", s.Event, s.Key, s.Version, uint32(s.sum))
}

// Bookmark is a bookmark and the number of events before it.
type Bookmark struct {
	Version uint64
	After   int
}

// Compare returns the difference between a watch and what it had to be. That is the initial
// state as ADDED events, where it began with one, and then all events in order.
func Compare(state, events, got []Event, marks []Bookmark) error {
	want := slices.Concat(state, events)
	for i := range max(len(want), len(got)) {
		switch {
		case i >= len(got):
			return fmt.Errorf("event %d of %d is missing: %v", i, len(want), want[i])
		case i >= len(want):
			return fmt.Errorf("there is one event more than the %d that happened: %v", len(want), got[i])
		case want[i] != got[i]:
			return fmt.Errorf("event %d of %d is %v, not %v", i, len(want), got[i], want[i])
		}
	}
	return CompareBookmarks(len(state), got, marks)
}

// CompareBookmarks checks that everything up to a bookmark's version was sent, and that
// bookmarks never go back.
func CompareBookmarks(state int, got []Event, marks []Bookmark) error {
	var last uint64
	for _, m := range marks {
		switch {
		case m.Version < last:
			return fmt.Errorf("a bookmark of %d after one of %d", m.Version, last)
		case m.After > state && m.Version < got[m.After-1].Version:
			return fmt.Errorf("a bookmark of %d after %v", m.Version, got[m.After-1])
		case m.After < state:
			return fmt.Errorf("a bookmark of %d among the initial events", m.Version)
		case m.After < len(got) && m.Version >= got[m.After].Version:
			return fmt.Errorf("a bookmark of %d before %v", m.Version, got[m.After])
		}
		last = m.Version
	}
	return nil
}
