package api

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"watershed.test/real/internal/poll"
)

// Request is a raw request. The zero value of every field but Path makes it a GET by the
// administrator.
type Request struct {
	Method string
	Path   string
	Body   string
	// ContentType is JSON unless set.
	ContentType string
	Accept      string
	// User names whose token is sent: "" the administrator's, "-" none, "?" one that nobody
	// has.
	User string
	// Header holds further headers. repeated holds headers that are sent more than once, or
	// with their names unchanged.
	Header   map[string]string
	Repeated http.Header
	// Via is the client whose connections are used, instead of the shared ones.
	Via *http.Client
}

func (r Request) String() string {
	header := fmt.Sprint(r.Header)
	if len(r.Repeated) > 0 {
		header += fmt.Sprint(r.Repeated)
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s %s %s", r.Verb(), r.Path, r.User, header))
}

// Verb returns the HTTP method.
func (r Request) Verb() string {
	if r.Method == "" {
		return http.MethodGet
	}
	return r.Method
}

// Values returns the options in the path.
func (r Request) Values() url.Values {
	_, query, _ := strings.Cut(r.Path, "?")
	values, _ := url.ParseQuery(query)
	return values
}

// IsWatch reports whether the answer may be a stream that lasts until its deadline.
func (r Request) IsWatch() bool {
	if values, present := r.Values()["watch"]; present {
		return values[0] != "0" && !strings.EqualFold(values[0], "false")
	}
	return strings.Contains(r.Path, "/watch/")
}

// Like returns the other request with the path of r.
func (r Request) Like(other Request) Request {
	other.Path = r.Path
	return other
}

// Open sends a request and returns when the answer begins.
func (t Target) Open(ctx context.Context, r Request) (*http.Response, error) {
	var body io.Reader
	if r.Body != "" {
		body = strings.NewReader(r.Body)
	}
	req, err := http.NewRequestWithContext(ctx, r.Verb(), t.URL+r.Path, body)
	if err != nil {
		return nil, err
	}
	if r.Body != "" {
		req.Header.Set("Content-Type", "application/json")
		if r.ContentType != "" {
			req.Header.Set("Content-Type", r.ContentType)
		}
	}
	if r.Accept != "" {
		req.Header.Set("Accept", r.Accept)
	}
	for name, value := range r.Header {
		req.Header.Set(name, value)
	}
	maps.Copy(req.Header, r.Repeated)
	switch r.User {
	case "-":
	case "?":
		req.Header.Set("Authorization", "Bearer nobody-has-this-token")
	default:
		req.Header.Set("Authorization", "Bearer "+t.Tokens.Of(r.User))
	}
	if r.Via != nil {
		return r.Via.Do(req)
	}
	return t.client().Do(req)
}

// Try sends a request and reads the answer.
func (t Target) Try(r Request) (Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), poll.Patience)
	defer cancel()
	resp, err := t.Open(ctx, r)
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return Answer{resp.StatusCode, resp.Header, string(body)}, err
}

// Send does the same and fails the test if there is no answer.
func (t Target) Send(tt *testing.T, r Request) Answer {
	tt.Helper()
	a, err := t.Try(r)
	if err != nil {
		tt.Fatalf("%s, %v: %v", t.Name, r, err)
	}
	return a
}

// Must sends a request of the set-up and fails the test unless it succeeds.
func (t Target) Must(tt *testing.T, r Request) Answer {
	tt.Helper()
	a := t.Send(tt, r)
	if a.Status >= 300 {
		tt.Fatalf("%s, %v: %d %s", t.Name, r, a.Status, a.Body)
	}
	return a
}

// Response is a complete answer. That of a watch reaches to its end.
type Response struct {
	Answer
	Took time.Duration
}

// Ask sends a request and reads the whole answer.
func (t Target) Ask(r Request) (Response, error) { return t.Follow(r, func() {}) }

// Follow does the same, and calls begun when the answer begins.
func (t Target) Follow(r Request, begun func()) (Response, error) {
	// Go's client would otherwise ask for gzip by itself and hide that it did.
	header := map[string]string{"Accept-Encoding": "identity"}
	maps.Copy(header, r.Header)
	r.Header = header
	ctx, cancel := context.WithTimeout(context.Background(), poll.Patience)
	defer cancel()
	since := time.Now()
	resp, err := t.Open(ctx, r)
	begun()
	var body []byte
	if err == nil {
		defer resp.Body.Close()
		body, err = io.ReadAll(resp.Body)
	}
	if err != nil {
		return Response{}, fmt.Errorf("%s, %v, after %v: %w", t.Name, r, time.Since(since), err)
	}
	return Response{Answer{resp.StatusCode, resp.Header, string(body)}, time.Since(since)}, nil
}

// Query is a list of options, in the order in which they are sent.
type Query []string

// Set adds an option unless its value is "unset".
func (q *Query) Set(name, value string) {
	if value != "unset" {
		*q = append(*q, name+"="+url.QueryEscape(value))
	}
}

// On returns a GET of a path with these options.
func (q Query) On(path string) Request {
	if len(q) > 0 {
		path += "?" + strings.Join(q, "&")
	}
	return Request{Path: path}
}

// Options of watches. {version} stands for a version.
const (
	// ResumeWithBookmarks watches from a version, with bookmarks.
	ResumeWithBookmarks = "resourceVersion={version}&allowWatchBookmarks=true"
	// Resume watches from a version.
	Resume = "resourceVersion={version}"
	// StateFirst begins a watch with any state.
	StateFirst = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=0"
	// LatestStateFirst begins a watch with the latest state.
	LatestStateFirst = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
	// FromAnyVersion begins a watch with any state, without an end mark.
	FromAnyVersion = "resourceVersion=0"
)
