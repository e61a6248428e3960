// Package faulty runs proxies that do one thing wrong, to show that a comparison sees it.
package faulty

import (
	"bufio"
	"bytes"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/require"
)

// Fault is one thing that a proxy may do wrong. Each function is nil or alters its part.
type Fault struct {
	Name   string
	Asked  func(query url.Values)
	Header func(of http.Header)
	answer func(path string, header http.Header, body []byte) []byte
	// events returns, for a watch, a function that replaces each of its lines.
	events func(query url.Values) func(line []byte) [][]byte
	// Twice marks a fault that shows only when the same request is sent twice.
	Twice bool
}

// Start runs a proxy with one fault in front of another target.
func Start(t *testing.T, before api.Target, f Fault) api.Target {
	t.Helper()
	to := require.Value(url.Parse(before.URL))(t)
	transport := &http.Transport{TLSClientConfig: before.TLS(), ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	server := httptest.NewServer(&httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1,
		// A client that goes away is not worth a log line.
		ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			if f.Header != nil {
				f.Header(r.Out.Header)
			}
			if f.Asked != nil {
				query := r.Out.URL.Query()
				f.Asked(query)
				r.Out.URL.RawQuery = query.Encode()
			}
		},
		ModifyResponse: func(resp *http.Response) error {
			if resp.Request.URL.Query().Has("watch") {
				if f.events != nil && resp.StatusCode == http.StatusOK {
					resp.Body = alterEvents(resp.Body, f.events(resp.Request.URL.Query()))
				}
				return nil
			}
			if f.answer == nil {
				return nil
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			body = f.answer(resp.Request.URL.RequestURI(), resp.Header, body)
			resp.Header.Del("Content-Length")
			resp.ContentLength = int64(len(body))
			resp.Body = io.NopCloser(bytes.NewReader(body))
			return err
		},
	})
	t.Cleanup(server.Close)
	return api.Target{Name: "faulty", URL: server.URL, CA: before.CA, Tokens: before.Tokens}
}

// alterEvents passes a watch on line by line. A line that is replaced by nil ends the watch.
func alterEvents(body io.ReadCloser, alter func([]byte) [][]byte) io.ReadCloser {
	reader, writer := io.Pipe()
	go func() {
		defer body.Close()
		defer writer.Close()
		lines := bufio.NewReader(body)
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			for _, altered := range alter(line) {
				if altered == nil {
					return
				}
				if _, err := writer.Write(altered); err != nil {
					return
				}
			}
		}
	}()
	return reader
}

// Report fails the test for each fault that was not found, and for differences without a fault.
func Report(t *testing.T, faults []Fault, seen [][]string) {
	t.Helper()
	for i, f := range faults {
		switch {
		case f.Name == "none" && len(seen[i]) > 0:
			t.Errorf("a difference without a fault: %s", seen[i][0])
		case f.Name != "none" && len(seen[i]) == 0:
			t.Errorf("%s: not found", f.Name)
		case f.Name != "none":
			problem := strings.Join(strings.Split(seen[i][0], "\n")[1:], " / ")
			t.Logf("%s: found %d times, first: %.160q", f.Name, len(seen[i]), problem)
		}
	}
}
