package api

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Frame is one event of a watch in any encoding.
type Frame struct {
	Event   string
	Key     string
	Version uint64
	EndMark bool
	Raw     string
	// Shape is a bookmark without its version.
	Shape string
}

func (f Frame) String() string {
	return fmt.Sprintf("%s %s at %d: %s", f.Event, f.Key, f.Version, Excerpt(f.Raw, 0))
}

// Frames splits the body of a watch into its events.
func (a Answer) Frames() ([]Frame, error) {
	body, err := a.Plain()
	if err != nil {
		return nil, err
	}
	switch kind, _, _ := strings.Cut(a.Header.Get("Content-Type"), ";"); kind {
	case "application/json":
		return framesOfJSON(body)
	case "application/vnd.kubernetes.protobuf":
		return framesOfProtobuf(body)
	default:
		return nil, errors.New("not a media type of watches: " + kind)
	}
}

func framesOfJSON(body string) (all []Frame, err error) {
	for line := range strings.Lines(body) {
		p, err := ParseWatchLine([]byte(line))
		if err != nil {
			return all, err
		}
		if p.Event == "" || !strings.HasSuffix(line, "\n") {
			return all, fmt.Errorf("not an event: %q", line)
		}
		f := Frame{Event: p.Event, Key: p.Object.Key(), Version: p.Object.Version(), EndMark: strings.Contains(line, InitialEventsEnd), Raw: line}
		if f.Event == "BOOKMARK" {
			f.Shape = strings.ReplaceAll(line, fmt.Sprintf(`"resourceVersion":"%d"`, f.Version), `"resourceVersion":"VERSION"`)
		}
		all = append(all, f)
	}
	return all, nil
}

func framesOfProtobuf(body string) (all []Frame, err error) {
	from := bufio.NewReader(strings.NewReader(body))
	for {
		var size [4]byte
		if _, err := io.ReadFull(from, size[:]); err == io.EOF {
			return all, nil
		} else if err != nil {
			return all, err
		}
		text := make([]byte, binary.BigEndian.Uint32(size[:]))
		if _, err := io.ReadFull(from, text); err != nil {
			return all, err
		}
		var event metav1.WatchEvent
		if err := event.Unmarshal(text); err != nil {
			return all, err
		}
		var envelope runtime.Unknown
		wrapped, ok := bytes.CutPrefix(event.Object.Raw, []byte("k8s\x00"))
		if !ok || envelope.Unmarshal(wrapped) != nil {
			return all, fmt.Errorf("not an object: %q", event.Object.Raw)
		}
		f := Frame{Event: event.Type, Raw: string(text)}
		if event.Type != "ERROR" {
			var object metav1.ObjectMeta
			first, others, ok := firstField(envelope.Raw)
			if !ok || object.Unmarshal(first) != nil {
				return all, fmt.Errorf("an object without metadata: %q", wrapped)
			}
			f.Key, f.Version = object.Namespace+"/"+object.Name, ParseVersion(object.ResourceVersion)
			f.EndMark = object.Annotations[InitialEventsEnd] == "true"
			// The lengths around the version depend on the version's own length.
			field := append([]byte{0x32, byte(len(object.ResourceVersion))}, object.ResourceVersion...)
			f.Shape = fmt.Sprintf("%s %v %q %q", f.Event, envelope.TypeMeta, bytes.Replace(first, field, []byte("VERSION"), 1), others)
		}
		all = append(all, f)
	}
}

// RecordedBookmark is a bookmark and the number of events before it.
type RecordedBookmark struct {
	Frame
	After int
}

// Recording holds the events of a watch apart from its bookmarks.
type Recording struct {
	Events []Frame
	Marks  []RecordedBookmark
	// State is the number of events before the end mark.
	State int
	Ended bool
}

// Record sorts the frames of a watch into events and bookmarks.
func Record(all []Frame) (r Recording, err error) {
	for _, f := range all {
		if f.Event != "BOOKMARK" {
			r.Events = append(r.Events, f)
			continue
		}
		if f.EndMark {
			if r.Ended {
				return r, errors.New("a second end of initial events")
			}
			r.State, r.Ended = len(r.Events), true
		}
		r.Marks = append(r.Marks, RecordedBookmark{f, len(r.Events)})
	}
	return r, nil
}

// InitialEventsEnd is the annotation of the bookmark that ends the initial events.
const InitialEventsEnd = "k8s.io/initial-events-end"

// ParsedFrame is one frame of a watch, parsed.
type ParsedFrame struct {
	Event  string
	Raw    []byte
	Object Object
	Sum    uint64
}

// Object is the part of an object, or of a Status, that tests look at.
type Object struct {
	Metadata struct {
		Name, Namespace, ResourceVersion string
		Labels, Annotations              map[string]string
	}
	Spec struct {
		NodeName string
		Size     int
	}
	// These fields belong to a Status.
	Code    int
	Reason  string
	Message string
}

// Key returns namespace/name.
func (o *Object) Key() string { return o.Metadata.Namespace + "/" + o.Metadata.Name }

// Version returns the object's resourceVersion.
func (o *Object) Version() uint64 { return ParseVersion(o.Metadata.ResourceVersion) }

// ParseVersion returns a resourceVersion as a number. Text that is no version becomes 0, which
// no object has.
func ParseVersion(text string) uint64 {
	v, _ := strconv.ParseUint(text, 10, 64)
	return v
}

// ParseWatchLine parses one line of a JSON watch.
func ParseWatchLine(line []byte) (ParsedFrame, error) {
	var frame struct {
		Type   string
		Object json.RawMessage
	}
	if err := json.Unmarshal(line, &frame); err != nil {
		return ParsedFrame{}, fmt.Errorf("%w in %q", err, line)
	}
	p := ParsedFrame{Event: frame.Type, Raw: frame.Object}
	err := json.Unmarshal(frame.Object, &p.Object)
	return p, err
}

// UnwrapProtobuf removes the envelope that Kubernetes puts around protobuf.
func UnwrapProtobuf(text []byte) ([]byte, error) {
	var envelope runtime.Unknown
	raw, ok := bytes.CutPrefix(text, []byte("k8s\x00"))
	if !ok {
		return nil, fmt.Errorf("not protobuf: %q", text)
	}
	err := envelope.Unmarshal(raw)
	return envelope.Raw, err
}
