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

// Response is a whole answer; that of a watch goes to its end.
type Response struct {
	Answer
	Took time.Duration
}

// Ask sends a request and takes in all of the answer.
func (t Target) Ask(r Request) (Response, error) { return t.Follow(r, func() {}) }

// Follow also says when the answer has begun.
func (t Target) Follow(r Request, begun func()) (Response, error) {
	// Go's client would ask for gzip by itself and hide it.
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

func (r Request) Values() url.Values {
	_, query, _ := strings.Cut(r.Path, "?")
	values, _ := url.ParseQuery(query)
	return values
}

// IsWatch says that the answer may be a stream that ends at its deadline.
func (r Request) IsWatch() bool {
	if values, present := r.Values()["watch"]; present {
		return values[0] != "0" && !strings.EqualFold(values[0], "false")
	}
	return strings.Contains(r.Path, "/watch/")
}

// Like takes all but the path from another request.
func (r Request) Like(other Request) Request {
	other.Path = r.Path
	return other
}

// Query puts options together, in the order they are given.
type Query []string

func (q *Query) Set(name, value string) {
	if value != "unset" {
		*q = append(*q, name+"="+url.QueryEscape(value))
	}
}

func (q Query) On(path string) Request {
	if len(q) > 0 {
		path += "?" + strings.Join(q, "&")
	}
	return Request{Path: path}
}

const ResumeWithBookmarks = "resourceVersion={version}&allowWatchBookmarks=true"

const Resume = "resourceVersion={version}"

const StateFirst = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=0"

const LatestStateFirst = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"

const FromAnyVersion = "resourceVersion=0"

// Request is one raw request; the zero value of all but path is a GET by the
// administrator.
type Request struct {
	Method string
	Path   string
	Body   string
	// ContentType defaults to JSON.
	ContentType string
	Accept      string
	// User is whose token to send: "" for the administrator, "-" for none,
	// "?" for one that nobody has.
	User string
	// Header has whatever else is to be sent; repeated is what is sent more than
	// once, or with names as they are.
	Header   map[string]string
	Repeated http.Header
	// Via is the client with the connections to use, if not those of all.
	Via *http.Client
}

func (r Request) String() string {
	header := fmt.Sprint(r.Header)
	if len(r.Repeated) > 0 {
		header += fmt.Sprint(r.Repeated)
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s %s %s", r.Verb(), r.Path, r.User, header))
}

func (r Request) Verb() string {
	if r.Method == "" {
		return http.MethodGet
	}
	return r.Method
}

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

func (t Target) Send(tt *testing.T, r Request) Answer {
	tt.Helper()
	a, err := t.Try(r)
	if err != nil {
		tt.Fatalf("%s, %v: %v", t.Name, r, err)
	}
	return a
}

// Must sends a request that has to succeed, for set-up.
func (t Target) Must(tt *testing.T, r Request) Answer {
	tt.Helper()
	a := t.Send(tt, r)
	if a.Status >= 300 {
		tt.Fatalf("%s, %v: %d %s", t.Name, r, a.Status, a.Body)
	}
	return a
}
