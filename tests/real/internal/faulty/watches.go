package faulty

import (
	"bytes"
	"fmt"
	"net/url"
	"regexp"
	"strconv"

	"watershed.test/real/internal/api"
)

var versionInEvent = regexp.MustCompile(`"resourceVersion":"(\d+)"`)

// shiftVersion adds a number to the version in an event.
func shiftVersion(line []byte, by int) []byte {
	at := versionInEvent.FindSubmatchIndex(line)
	v, _ := strconv.Atoi(string(line[at[2]:at[3]]))
	return []byte(fmt.Sprint(string(line[:at[2]]), v+by, string(line[at[3]:])))
}

// InWatches returns the faults that show in events during writes.
func InWatches() []Fault {
	is := func(line []byte, event string) bool { return bytes.HasPrefix(line, []byte(`{"type":"`+event)) }
	// nth alters the nth event of a type.
	nth := func(event string, n int, alter func(line []byte) [][]byte) func(url.Values) func([]byte) [][]byte {
		return func(url.Values) func([]byte) [][]byte {
			left := n
			return func(line []byte) [][]byte {
				if is(line, event) {
					if left--; left == 0 {
						return alter(line)
					}
				}
				return [][]byte{line}
			}
		}
	}
	one := func(alter func([]byte) []byte) func([]byte) [][]byte {
		return func(line []byte) [][]byte { return [][]byte{alter(line)} }
	}
	return []Fault{
		{Name: "dropped ADDED", events: nth("ADDED", 3, func([]byte) [][]byte { return nil })},
		{Name: "dropped MODIFIED", events: nth("MODIFIED", 2, func([]byte) [][]byte { return nil })},
		{Name: "dropped DELETED", events: nth("DELETED", 1, func([]byte) [][]byte { return nil })},
		{Name: "repeated", events: nth("MODIFIED", 3, func(line []byte) [][]byte { return [][]byte{line, line} })},
		{Name: "swapped", events: func(url.Values) func([]byte) [][]byte {
			n := 0
			var held []byte
			return func(line []byte) [][]byte {
				if is(line, "BOOKMARK") {
					return [][]byte{line}
				}
				switch n++; n {
				case 4:
					held = line
					return nil
				case 5:
					return [][]byte{line, held}
				}
				return [][]byte{line}
			}
		}},
		{Name: "version of DELETED", events: nth("DELETED", 1, one(func(line []byte) []byte { return shiftVersion(line, -1) }))},
		{Name: "state of DELETED", events: nth("DELETED", 1, one(func(line []byte) []byte {
			return regexp.MustCompile(`"n":"\d+"`).ReplaceAll(line, []byte(`"n":"later"`))
		}))},
		{Name: "other type", events: nth("MODIFIED", 1, one(func(line []byte) []byte { return bytes.Replace(line, []byte("MODIFIED"), []byte("ADDED"), 1) }))},
		{Name: "bookmark ahead", events: func(url.Values) func([]byte) [][]byte {
			return one(func(line []byte) []byte {
				if is(line, "BOOKMARK") {
					// Other tests write between two events of this one.
					return shiftVersion(line, 50)
				}
				return line
			})
		}},
		{Name: "bookmark of the future", events: func(url.Values) func([]byte) [][]byte {
			return one(func(line []byte) []byte {
				if is(line, "BOOKMARK") {
					return shiftVersion(line, 1e6)
				}
				return line
			})
		}},
		{Name: "bookmark of the past", events: func(url.Values) func([]byte) [][]byte {
			return one(func(line []byte) []byte {
				if is(line, "BOOKMARK") {
					return shiftVersion(line, -100)
				}
				return line
			})
		}},
		{Name: "bookmark of another form", events: func(url.Values) func([]byte) [][]byte {
			return one(func(line []byte) []byte {
				if is(line, "BOOKMARK") {
					return bytes.Replace(line, []byte(`"kind":"ConfigMap",`), nil, 1)
				}
				return line
			})
		}},
		{Name: "end mark too early", events: func(query url.Values) func([]byte) [][]byte {
			var held []byte
			return func(line []byte) [][]byte {
				if is(line, "ADDED") && held == nil && query.Has("sendInitialEvents") {
					held = line
					return nil
				}
				if bytes.Contains(line, []byte(api.InitialEventsEnd)) {
					return [][]byte{line, held}
				}
				return [][]byte{line}
			}
		}},
		{Name: "no end mark", events: func(url.Values) func([]byte) [][]byte {
			return func(line []byte) [][]byte {
				if bytes.Contains(line, []byte(api.InitialEventsEnd)) {
					return nil
				}
				return [][]byte{line}
			}
		}},
		{Name: "ends early", events: func(url.Values) func([]byte) [][]byte {
			n := 0
			return func(line []byte) [][]byte {
				if n++; n > 12 {
					return [][]byte{nil}
				}
				return [][]byte{line}
			}
		}},
	}
}
