package api

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"watershed.test/real/internal/poll"
)

// Event is one line of a JSON watch.
type Event struct {
	Type   string
	Object struct {
		Kind     string
		Message  string
		Code     int
		Metadata struct {
			Name            string
			ResourceVersion string
			Annotations     map[string]string
		}
	}
	Raw string
}

func (e Event) String() string { return e.Type + " " + e.Object.Metadata.Name }

// Stream is an open JSON watch.
type Stream struct {
	Events chan Event
	// ended yields the error that ended the stream, or nil after a clean end.
	ended  chan error
	status int
	Header http.Header
}

// Watch opens a watch and closes it at the end of the test.
func (t Target) Watch(tt *testing.T, r Request) *Stream {
	tt.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	resp, err := t.Open(ctx, r)
	if err != nil {
		cancel()
		tt.Fatalf("%s, %v: %v", t.Name, r, err)
	}
	s := &Stream{Events: make(chan Event, 1000), ended: make(chan error, 1), status: resp.StatusCode, Header: resp.Header}
	tt.Cleanup(func() { cancel(); resp.Body.Close() })
	go func() {
		lines := bufio.NewReader(Uncompressed(resp))
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				if errors.Is(err, io.EOF) && line == "" {
					err = nil
				}
				close(s.Events)
				s.ended <- err
				return
			}
			e := Event{Raw: line}
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				e.Type = "unreadable: " + err.Error()
			}
			s.Events <- e
		}
	}()
	return s
}

// Uncompressed returns the body uncompressed. A read waits for no more input than it needs.
func Uncompressed(resp *http.Response) io.Reader {
	if resp.Header.Get("Content-Encoding") != "gzip" {
		return resp.Body
	}
	return &lazyGunzip{from: resp.Body}
}

// lazyGunzip reads the gzip header at the first Read: a watch may not have sent any byte yet.
type lazyGunzip struct {
	from    io.Reader
	members *gzip.Reader
}

func (g *lazyGunzip) Read(into []byte) (n int, err error) {
	if g.members == nil {
		if g.members, err = gzip.NewReader(g.from); err != nil {
			return 0, err
		}
	}
	return g.members.Read(into)
}

// Next returns the next event that is not a bookmark.
func (s *Stream) Next(t *testing.T) Event {
	t.Helper()
	deadline := time.After(poll.Patience)
	for {
		select {
		case e, open := <-s.Events:
			if !open {
				t.Fatal("the watch ended instead of yielding an event")
			}
			if e.Type != "BOOKMARK" {
				return e
			}
		case <-deadline:
			t.Fatalf("no event after %v", poll.Patience)
		}
	}
}

// Rest returns all events up to the end of the stream, without bookmarks, and the error that
// ended it.
func (s *Stream) Rest(t *testing.T) ([]string, error) {
	t.Helper()
	deadline := time.After(poll.Patience)
	var all []string
	for {
		select {
		// Taken while the stream is open: it stands still once many events wait.
		case e, open := <-s.Events:
			if !open {
				return all, <-s.ended
			}
			if e.Type != "BOOKMARK" {
				all = append(all, e.String())
			}
		case <-deadline:
			t.Fatalf("the end of the watch: not after %v; %d events came", poll.Patience, len(all))
		}
	}
}
