package real

import (
	"bufio"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// answer is what a raw request was answered with.
type answer struct {
	status int
	header http.Header
	body   string
}

// clients are kept by address and CA: a proxy may get the port of one that has ended.
var clients sync.Map

// client is the plain HTTP client for this way to the API.
func (t target) client() *http.Client {
	key := [2]string{t.url, t.ca}
	if c, ok := clients.Load(key); ok {
		return c.(*http.Client)
	}
	c, _ := clients.LoadOrStore(key, &http.Client{
		Transport: &http.Transport{TLSClientConfig: t.tls(), ForceAttemptHTTP2: true},
		// A redirect is an answer like any other.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	})
	return c.(*http.Client)
}

func (t target) tls() *tls.Config {
	pem, err := os.ReadFile(t.ca)
	if err != nil {
		panic(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	return &tls.Config{RootCAs: roots}
}

// request is one raw request; the zero value of all but path is a GET by the
// administrator.
type request struct {
	method string
	path   string
	body   string
	// contentType defaults to JSON.
	contentType string
	accept      string
	// user is whose token to send: "" for the administrator, "-" for none,
	// "?" for one that nobody has.
	user string
	// header has whatever else is to be sent; repeated is what is sent more than
	// once, or with names as they are.
	header   map[string]string
	repeated http.Header
	// via is the client with the connections to use, if not those of all.
	via *http.Client
}

func (r request) String() string {
	header := fmt.Sprint(r.header)
	if len(r.repeated) > 0 {
		header += fmt.Sprint(r.repeated)
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s %s %s", r.verb(), r.path, r.user, header))
}

func (r request) verb() string {
	if r.method == "" {
		return http.MethodGet
	}
	return r.method
}

func (t target) open(ctx context.Context, r request) (*http.Response, error) {
	var body io.Reader
	if r.body != "" {
		body = strings.NewReader(r.body)
	}
	req, err := http.NewRequestWithContext(ctx, r.verb(), t.url+r.path, body)
	if err != nil {
		return nil, err
	}
	if r.body != "" {
		req.Header.Set("Content-Type", "application/json")
		if r.contentType != "" {
			req.Header.Set("Content-Type", r.contentType)
		}
	}
	if r.accept != "" {
		req.Header.Set("Accept", r.accept)
	}
	for name, value := range r.header {
		req.Header.Set(name, value)
	}
	maps.Copy(req.Header, r.repeated)
	switch r.user {
	case "-":
	case "?":
		req.Header.Set("Authorization", "Bearer nobody-has-this-token")
	case "":
		req.Header.Set("Authorization", "Bearer "+shared.AdminToken)
	default:
		req.Header.Set("Authorization", "Bearer "+shared.Tokens[r.user])
	}
	if r.via != nil {
		return r.via.Do(req)
	}
	return t.client().Do(req)
}

func (t target) try(r request) (answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	resp, err := t.open(ctx, r)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(body)}, err
}

func (t target) send(tt *testing.T, r request) answer {
	tt.Helper()
	a, err := t.try(r)
	if err != nil {
		tt.Fatalf("%s, %v: %v", t.name, r, err)
	}
	return a
}

// ok sends a request that has to succeed, for set-up.
func (t target) ok(tt *testing.T, r request) answer {
	tt.Helper()
	a := t.send(tt, r)
	if a.status >= 300 {
		tt.Fatalf("%s, %v: %d %s", t.name, r, a.status, a.body)
	}
	return a
}

// comparable is the part of an answer that has to be the same both ways.
// Versions, times and the like differ from one request to the next even without
// a proxy; words names further texts to blank, such as a namespace.
func (a answer) comparable(words map[string]string) string {
	var b strings.Builder
	fmt.Fprintln(&b, a.status)
	for _, name := range []string{"Content-Type", "Warning", "Retry-After", "Www-Authenticate", "X-Content-Type-Options", "Location", "Allow"} {
		for _, v := range a.header.Values(name) {
			fmt.Fprintf(&b, "%s: %s\n", name, v)
		}
	}
	fmt.Fprintf(&b, "Audit-Id: %v\n", a.header.Get("Audit-Id") != "")
	b.WriteString(a.body)
	return blank(b.String(), words)
}

var volatile = []struct {
	pattern     *regexp.Regexp
	replacement string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UUID"},
	{regexp.MustCompile(`"resourceVersion": ?"[0-9]+"`), `"resourceVersion":"RV"`},
	{regexp.MustCompile(`resourceVersion: "[0-9]+"`), `resourceVersion: "RV"`},
	{regexp.MustCompile(`in record \(\d+\)`), "in record (RV)"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
}

func blank(text string, words map[string]string) string {
	// Longer words first: one may contain another.
	keys := slices.SortedFunc(maps.Keys(words), func(a, b string) int { return len(b) - len(a) })
	for _, k := range keys {
		text = strings.ReplaceAll(text, k, words[k])
	}
	for _, v := range volatile {
		text = v.pattern.ReplaceAllString(text, v.replacement)
	}
	return text
}

// same sends a request that changes nothing both ways and compares the answers.
func same(t *testing.T, r request) answer {
	t.Helper()
	want, got := upstream.send(t, r), proxied.send(t, r)
	if w, g := want.comparable(nil), got.comparable(nil); w != g {
		t.Errorf("%v\nupstream: %s\nproxied:  %s", r, w, g)
	}
	t.Logf("%v: %d", r, want.status)
	return want
}

// event is one line of a JSON watch.
type event struct {
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
	raw string
}

func (e event) String() string { return e.Type + " " + e.Object.Metadata.Name }

// stream is an open JSON watch.
type stream struct {
	events chan event
	// ended yields how the stream ended: nil for a clean end.
	ended  chan error
	status int
	header http.Header
}

// watch opens a watch that is closed with the test.
func (t target) watch(tt *testing.T, r request) *stream {
	tt.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	resp, err := t.open(ctx, r)
	if err != nil {
		cancel()
		tt.Fatalf("%s, %v: %v", t.name, r, err)
	}
	s := &stream{events: make(chan event, 1000), ended: make(chan error, 1), status: resp.StatusCode, header: resp.Header}
	tt.Cleanup(func() { cancel(); resp.Body.Close() })
	go func() {
		lines := bufio.NewReader(unpacked(resp))
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				if errors.Is(err, io.EOF) && line == "" {
					err = nil
				}
				close(s.events)
				s.ended <- err
				return
			}
			e := event{raw: line}
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				e.Type = "unreadable: " + err.Error()
			}
			s.events <- e
		}
	}()
	return s
}

// unpacked is the body as it was before its compression. Whoever reads it waits for
// no more than what is read.
func unpacked(resp *http.Response) io.Reader {
	if resp.Header.Get("Content-Encoding") != "gzip" {
		return resp.Body
	}
	return &gunzip{from: resp.Body}
}

// gunzip waits for the first bytes only when it is read: a watch may have none.
type gunzip struct {
	from    io.Reader
	members *gzip.Reader
}

func (g *gunzip) Read(into []byte) (n int, err error) {
	if g.members == nil {
		if g.members, err = gzip.NewReader(g.from); err != nil {
			return 0, err
		}
	}
	return g.members.Read(into)
}

// next is the next event that is not a bookmark.
func (s *stream) next(t *testing.T) event {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case e, open := <-s.events:
			if !open {
				t.Fatal("the watch ended instead of yielding an event")
			}
			if e.Type != "BOOKMARK" {
				return e
			}
		case <-deadline:
			t.Fatalf("no event after %v", patience)
		}
	}
}

// rest is everything up to the end of the stream, without bookmarks, and how it
// ended.
func (s *stream) rest(t *testing.T) ([]string, error) {
	t.Helper()
	err := within(t, "the end of the watch", s.ended)
	var all []string
	for e := range s.events {
		if e.Type != "BOOKMARK" {
			all = append(all, e.String())
		}
	}
	return all, err
}

var continueToken = regexp.MustCompile(`"continue": ?"[^"]+"`)

// blankTokens hides continue tokens: they hold a version, and are as good in
// either of the two spellings that upstream itself uses.
func blankTokens(text string) string {
	return continueToken.ReplaceAllString(text, `"continue":"TOKEN"`)
}
