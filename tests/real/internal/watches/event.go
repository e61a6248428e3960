// Package watches records what watches of the API say, and compares it with what happened.
package watches

import (
	"fmt"
	"slices"
)

// Event is one event.
type Event struct {
	Event   string
	Key     string
	Version uint64
	sum     uint64
}

func (s Event) String() string {
	return fmt.Sprintf("%s %s at %d (%08x)", s.Event, s.Key, s.Version, uint32(s.sum))
}

// Bookmark is a bookmark, and how many events had come before it.
type Bookmark struct {
	Version uint64
	After   int
}

// Compare says where a watch differs from what it had to be: the first state as
// ADDED events, where it began with one, and all events after it in their order.
func Compare(state, events, got []Event, marks []Bookmark) error {
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
	return CompareBookmarks(len(state), got, marks)
}

// CompareBookmarks checks what bookmarks promise: everything up to their version
// has been said, and they never go back.
func CompareBookmarks(state int, got []Event, marks []Bookmark) error {
	var last uint64
	for _, m := range marks {
		switch {
		case m.Version < last:
			return fmt.Errorf("a bookmark of %d after one of %d", m.Version, last)
		case m.After > state && m.Version < got[m.After-1].Version:
			return fmt.Errorf("a bookmark of %d after %v", m.Version, got[m.After-1])
		case m.After < state:
			return fmt.Errorf("a bookmark of %d amidst the initial events", m.Version)
		case m.After < len(got) && m.Version >= got[m.After].Version:
			return fmt.Errorf("a bookmark of %d before %v", m.Version, got[m.After])
		}
		last = m.Version
	}
	return nil
}
