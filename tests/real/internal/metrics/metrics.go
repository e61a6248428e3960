// Package metrics reads what watershed and API servers tell at /metrics.
package metrics

import (
	"iter"
	"strconv"
	"strings"
)

// Sample is a line of metrics.
type Sample struct {
	Name string
	// Labels are all labels as they are written.
	Labels string
	Value  float64
}

// Samples returns the samples of a text.
func Samples(text string) iter.Seq[Sample] {
	return func(yield func(Sample) bool) {
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			at := strings.LastIndexByte(line, ' ')
			if at < 0 || line[0] == '#' {
				continue
			}
			value, err := strconv.ParseFloat(line[at+1:], 64)
			if err != nil {
				continue
			}
			name, labels, _ := strings.Cut(line[:at], "{")
			if !yield(Sample{name, strings.TrimSuffix(labels, "}"), value}) {
				return
			}
		}
	}
}

// Label returns the value of a label, or "" if there is none.
func (s Sample) Label(name string) string {
	_, rest, _ := strings.Cut(","+s.Labels, ","+name+`="`)
	value, _, _ := strings.Cut(rest, `"`)
	return value
}
