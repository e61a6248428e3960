package relay

import (
	"crypto/tls"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/require"
)

// BadAnswer is an answer that no API server gives.
type BadAnswer string

// The answers of an Answers relay in place of the API server's.
const (
	// NotFound is 404 with a load balancer's page.
	NotFound BadAnswer = "404"
	// Page is the same page with status 200.
	Page BadAnswer = "page"
	// Garbage has the API server's status and headers, and a body that means nothing.
	Garbage BadAnswer = "garbage"
	// Silence is no answer while it lasts, and then a cut.
	Silence BadAnswer = "silence"
)

const page = "<html><body>default backend</body></html>\n"

// Answers passes HTTP requests on to an API server, and answers some of them badly on command.
type Answers struct {
	server *httptest.Server

	mutex sync.Mutex
	// bad is the answer to requests whose path ends with resource; none if empty.
	bad      BadAnswer
	resource string
	// healed is closed when bad answers end.
	healed  chan struct{}
	streams map[*stream]struct{}
}

// StartAnswers relays to an API server, with that server's own certificate.
func StartAnswers(t *testing.T, to api.Target, certificate, key string) *Answers {
	t.Helper()
	a := &Answers{healed: make(chan struct{}), streams: map[*stream]struct{}{}}
	transport := &http.Transport{TLSClientConfig: to.TLS(), ForceAttemptHTTP2: true}
	address := require.Value(url.Parse(to.URL))(t)
	proxy := &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1,
		// A client that goes away is not worth a log line.
		ErrorLog:       log.New(io.Discard, "", 0),
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(address) },
		ModifyResponse: a.modify,
	}
	a.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.refuse(w, r) {
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	a.server.EnableHTTP2 = true
	a.server.TLS = &tls.Config{Certificates: []tls.Certificate{require.Value(tls.LoadX509KeyPair(certificate, key))(t)}}
	a.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	a.server.StartTLS()
	t.Cleanup(func() {
		a.Heal()
		a.server.CloseClientConnections()
		a.server.Close()
		transport.CloseIdleConnections()
	})
	return a
}

// URL returns the address for clients.
func (a *Answers) URL() string { return a.server.URL }

// Spoil cuts the open watches of a resource and answers all requests for it badly from now on.
func (a *Answers) Spoil(resource string, with BadAnswer) {
	a.mutex.Lock()
	a.bad, a.resource = with, resource
	a.mutex.Unlock()
	for _, s := range a.open(resource) {
		s.end(nil)
	}
}

// Heal ends bad answers.
func (a *Answers) Heal() {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.bad = ""
	close(a.healed)
	a.healed = make(chan struct{})
}

// Disturb puts garbage into each open watch of a resource, and ends it.
func (a *Answers) Disturb(resource string) {
	for _, s := range a.open(resource) {
		s.end([]byte("\x00\x00\x00\x05garbage\n"))
	}
}

// Watching returns the number of open watches of a resource.
func (a *Answers) Watching(resource string) int { return len(a.open(resource)) }

func (a *Answers) open(resource string) (all []*stream) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	for s := range a.streams {
		if s.resource == resource {
			all = append(all, s)
		}
	}
	return all
}

// badFor returns the bad answer to a request, and the end of bad answers.
func (a *Answers) badFor(r *http.Request) (BadAnswer, <-chan struct{}) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if resourceOf(r) != a.resource {
		return "", nil
	}
	return a.bad, a.healed
}

// resourceOf returns the last part of the path, which names the resource of a list or watch.
func resourceOf(r *http.Request) string {
	return r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
}

// refuse answers a request badly, if the API server is not needed for that.
func (a *Answers) refuse(w http.ResponseWriter, r *http.Request) bool {
	bad, healed := a.badFor(r)
	switch bad {
	case NotFound, Page:
		w.Header().Set("Content-Type", "text/html")
		if bad == NotFound {
			w.WriteHeader(http.StatusNotFound)
		}
		io.WriteString(w, page)
		return true
	case Silence:
		select {
		case <-healed:
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler)
	}
	return false
}

// modify replaces bodies by garbage, and keeps open watches in view.
func (a *Answers) modify(resp *http.Response) error {
	if bad, _ := a.badFor(resp.Request); bad == Garbage {
		resp.Body.Close()
		resp.Header.Del("Content-Length")
		resp.ContentLength = -1
		resp.Body = io.NopCloser(strings.NewReader("\x00\x00\x00\x05garbage\n"))
		return nil
	}
	if resp.StatusCode == http.StatusOK && resp.Request.URL.Query().Has("watch") {
		resp.Body = a.follow(resourceOf(resp.Request), resp.Body)
	}
	return nil
}

// stream is an open watch.
type stream struct {
	resource string
	upstream io.ReadCloser
	chunks   chan chunk
	rest     chunk
	once     sync.Once
	// over is closed when the watch ends here. last is what the client gets before that.
	over chan struct{}
	last []byte
	gone func()
}

type chunk struct {
	data []byte
	err  error
}

func (a *Answers) follow(resource string, upstream io.ReadCloser) *stream {
	s := &stream{resource: resource, upstream: upstream, chunks: make(chan chunk), over: make(chan struct{})}
	s.gone = func() {
		a.mutex.Lock()
		defer a.mutex.Unlock()
		delete(a.streams, s)
	}
	a.mutex.Lock()
	a.streams[s] = struct{}{}
	a.mutex.Unlock()
	go s.read()
	return s
}

// read passes on what the API server sends.
func (s *stream) read() {
	for {
		buffer := make([]byte, 32<<10)
		n, err := s.upstream.Read(buffer)
		select {
		case s.chunks <- chunk{buffer[:n], err}:
		case <-s.over:
			return
		}
		if err != nil {
			return
		}
	}
}

// Read returns the next bytes for the client.
func (s *stream) Read(p []byte) (int, error) {
	for len(s.rest.data) == 0 && s.rest.err == nil {
		select {
		case s.rest = <-s.chunks:
		case <-s.over:
			s.rest = chunk{s.last, io.ErrUnexpectedEOF}
		}
	}
	if len(s.rest.data) == 0 {
		return 0, s.rest.err
	}
	n := copy(p, s.rest.data)
	s.rest.data = s.rest.data[n:]
	return n, nil
}

// Close ends the watch at the API server.
func (s *stream) Close() error {
	s.gone()
	s.end(nil)
	return s.upstream.Close()
}

// end cuts the watch after these bytes.
func (s *stream) end(last []byte) {
	s.once.Do(func() {
		s.last = last
		close(s.over)
	})
}
