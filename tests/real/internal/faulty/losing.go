package faulty

import (
	"bytes"
	"net/url"
	"sync"
)

// Losing is a fault that loses single events of watches on command. Watches go on as if the
// events had been sent.
type Losing struct {
	mutex sync.Mutex
	text  []byte
	lost  int
}

// Fault returns the fault, for Start. It reads JSON only.
func (l *Losing) Fault() Fault {
	return Fault{Name: "loses events", events: func(url.Values) func([]byte) [][]byte {
		return func(line []byte) [][]byte {
			l.mutex.Lock()
			defer l.mutex.Unlock()
			if l.text != nil && bytes.Contains(line, l.text) {
				l.text = nil
				l.lost++
				return [][]byte{}
			}
			return [][]byte{line}
		}
	}}
}

// LoseNext makes it lose the next event that contains a text.
func (l *Losing) LoseNext(text string) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.text = []byte(text)
}

// Lost returns the number of events that were lost.
func (l *Losing) Lost() int {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.lost
}
