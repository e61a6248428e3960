package real

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// fault is what a proxy could do wrong. Each function is nil, or alters its part.
type fault struct {
	name   string
	asked  func(query url.Values)
	header func(of http.Header)
	answer func(path string, header http.Header, body []byte) []byte
	// events yields, for a watch, what becomes of each of its lines.
	events func(query url.Values) func(line []byte) [][]byte
	// twice says that it takes two looks at the same to see it.
	twice bool
}

// faultsOfAnswers show in what is asked and answered.
func faultsOfAnswers() []fault {
	of := func(pattern, replacement string) func(string, http.Header, []byte) []byte {
		p := regexp.MustCompile(pattern)
		return func(_ string, _ http.Header, body []byte) []byte {
			done := false
			return p.ReplaceAllFunc(body, func(found []byte) []byte {
				if done {
					return found
				}
				done = true
				return p.ReplaceAll(found, []byte(replacement))
			})
		}
	}
	var mutex sync.Mutex
	first := map[string][]byte{}
	return []fault{
		{name: "stale list", twice: true, answer: func(path string, _ http.Header, body []byte) []byte {
			mutex.Lock()
			defer mutex.Unlock()
			if first[path] == nil {
				first[path] = body
			}
			return first[path]
		}},
		{name: "missing field", answer: of(`"uid":"[^"]+",`, ``)},
		{name: "missing object", answer: of(`\{"metadata":\{"name":"b".*?\}\},`, ``)},
		{name: "object changed", answer: of(`u003c`, `u003C`)},
		{name: "limit off by one", asked: func(query url.Values) {
			if n, err := strconv.Atoi(query.Get("limit")); err == nil && n > 0 {
				query.Set("limit", strconv.Itoa(n+1))
			}
		}},
		{name: "limit ignored", asked: func(query url.Values) { query.Del("limit") }},
		{name: "token of the wrong version", answer: retoken(func(t *token) { t.RV-- })},
		{name: "token for the wrong place", answer: retoken(func(t *token) { t.Start = strings.Replace(t.Start, "\x00", "0\x00", 1) })},
		{name: "remaining count", answer: of(`"remainingItemCount":(\d+)`, `"remainingItemCount":1$1`)},
		{name: "missing header", answer: func(_ string, h http.Header, body []byte) []byte { h.Del("Cache-Control"); return body }},
		{name: "wrong content type", answer: func(_ string, h http.Header, body []byte) []byte {
			h.Set("Content-Type", "application/json; charset=utf-8")
			return body
		}},
		{name: "list of a version to come", answer: of(`"metadata":\{"resourceVersion":"(\d+)"`, `"metadata":{"resourceVersion":"1$1"`)},
		{name: "list of a version long past", answer: of(`"metadata":\{"resourceVersion":"\d+"`, `"metadata":{"resourceVersion":"7"`)},
		{name: "newest instead of exact", asked: func(query url.Values) {
			if query.Get("resourceVersionMatch") == "Exact" && version(query.Get("resourceVersion")) > 0 {
				query.Set("resourceVersionMatch", "NotOlderThan")
			}
		}},
		{name: "other reason", answer: of(`"reason":"(Expired|NotFound|BadRequest)"`, `"reason":"Gone"`)},
		{name: "other words", answer: of(`"message":"[A-Za-z]`, `"message":"Z`)},
		{name: "selector ignored", asked: func(query url.Values) { query.Del("labelSelector") }},
		{name: "no newline", answer: func(_ string, _ http.Header, body []byte) []byte { return bytes.TrimSuffix(body, []byte("\n")) }},
	}
}

func retoken(alter func(*token)) func(string, http.Header, []byte) []byte {
	pattern := regexp.MustCompile(`"continue":"([^"]+)"`)
	return func(_ string, _ http.Header, body []byte) []byte {
		found := pattern.FindSubmatch(body)
		if found == nil {
			return body
		}
		t, err := parseToken(string(found[1]))
		if err != nil {
			return body
		}
		alter(&t)
		return bytes.Replace(body, found[1], []byte(t.String()), 1)
	}
}

var versionInEvent = regexp.MustCompile(`"resourceVersion":"(\d+)"`)

// shift adds to the version in an event.
func shift(line []byte, by int) []byte {
	at := versionInEvent.FindSubmatchIndex(line)
	v, _ := strconv.Atoi(string(line[at[2]:at[3]]))
	return []byte(fmt.Sprint(string(line[:at[2]]), v+by, string(line[at[3]:])))
}

// faultsOfWatches show in the events while others write.
func faultsOfWatches() []fault {
	is := func(line []byte, event string) bool { return bytes.HasPrefix(line, []byte(`{"type":"`+event)) }
	// The nth event of a type becomes something else.
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
	return []fault{
		{name: "dropped ADDED", events: nth("ADDED", 3, func([]byte) [][]byte { return nil })},
		{name: "dropped MODIFIED", events: nth("MODIFIED", 2, func([]byte) [][]byte { return nil })},
		{name: "dropped DELETED", events: nth("DELETED", 1, func([]byte) [][]byte { return nil })},
		{name: "repeated", events: nth("MODIFIED", 3, func(line []byte) [][]byte { return [][]byte{line, line} })},
		{name: "swapped", events: func(url.Values) func([]byte) [][]byte {
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
		{name: "version of DELETED", events: nth("DELETED", 1, one(func(line []byte) []byte { return shift(line, -1) }))},
		{name: "state of DELETED", events: nth("DELETED", 1, one(func(line []byte) []byte {
			return regexp.MustCompile(`"n":"\d+"`).ReplaceAll(line, []byte(`"n":"later"`))
		}))},
		{name: "other type", events: nth("MODIFIED", 1, one(func(line []byte) []byte { return bytes.Replace(line, []byte("MODIFIED"), []byte("ADDED"), 1) }))},
		{name: "bookmark ahead", events: func(url.Values) func([]byte) [][]byte {
			return one(func(line []byte) []byte {
				if is(line, "BOOKMARK") {
					return shift(line, 5)
				}
				return line
			})
		}},
		{name: "bookmark of the future", events: func(url.Values) func([]byte) [][]byte {
			return one(func(line []byte) []byte {
				if is(line, "BOOKMARK") {
					return shift(line, 1e6)
				}
				return line
			})
		}},
		{name: "bookmark of the past", events: func(url.Values) func([]byte) [][]byte {
			return one(func(line []byte) []byte {
				if is(line, "BOOKMARK") {
					return shift(line, -100)
				}
				return line
			})
		}},
		{name: "bookmark of another form", events: func(url.Values) func([]byte) [][]byte {
			return one(func(line []byte) []byte {
				if is(line, "BOOKMARK") {
					return bytes.Replace(line, []byte(`"kind":"ConfigMap",`), nil, 1)
				}
				return line
			})
		}},
		{name: "end mark too early", events: func(query url.Values) func([]byte) [][]byte {
			var held []byte
			return func(line []byte) [][]byte {
				if is(line, "ADDED") && held == nil && query.Has("sendInitialEvents") {
					held = line
					return nil
				}
				if bytes.Contains(line, []byte(endMark)) {
					return [][]byte{line, held}
				}
				return [][]byte{line}
			}
		}},
		{name: "no end mark", events: func(url.Values) func([]byte) [][]byte {
			return func(line []byte) [][]byte {
				if bytes.Contains(line, []byte(endMark)) {
					return nil
				}
				return [][]byte{line}
			}
		}},
		{name: "ends early", events: func(url.Values) func([]byte) [][]byte {
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

// startFaulty runs a proxy in front of another place that does one thing wrong.
func startFaulty(t *testing.T, before target, f fault) target {
	t.Helper()
	to := must(url.Parse(before.url))(t)
	transport := &http.Transport{TLSClientConfig: before.tls(), ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	server := httptest.NewServer(&httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1,
		// Clients that go away are no news.
		ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			if f.header != nil {
				f.header(r.Out.Header)
			}
			if f.asked != nil {
				query := r.Out.URL.Query()
				f.asked(query)
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
	return target{name: "faulty", url: server.URL, ca: before.ca}
}

// alterEvents passes a watch on line by line; an event that becomes nothing at
// all is its end.
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

// conformanceFaults puts proxies with one fault each in watershed's place. The
// comparison has to see every fault, and none where there is none.
func conformanceFaults(t *testing.T) {
	t.Run("answers", faultyAnswers)
	t.Run("watches", faultyWatches)
}

func faultyAnswers(t *testing.T) {
	terrains := furnishMatrix(t)
	var probes []request
	for _, m := range matrices {
		for _, c := range m.cells() {
			values := m.values(c)
			if v := values["resourceVersion"]; refused(values) || m.name == "Watch" || v == "future" || v == "ancient" ||
				values["type"] != "configmaps" || slices.Contains([]string{"0", "-1", "huge", "3"}, values["limit"]) {
				continue
			}
			probes = append(probes, m.ask(terrains["configmaps"], values))
		}
	}
	probes = append(probes, request{path: terrains["configmaps"].collection + "?labelSelector=odd%3D1"})
	faults := append(faultsOfAnswers(), fault{name: "none", twice: true})
	places := make([]target, len(faults))
	for i, f := range faults {
		places[i] = startFaulty(t, upstream, f)
	}
	seen := make([][]string, len(faults))
	for round := range 2 {
		if round == 1 {
			// Something happens between two looks at the same.
			upstream.ok(t, request{method: "DELETE", path: terrains["configmaps"].collection + "/e"})
		}
		workers(4, places, func(i int, place target) {
			if round == 0 && !faults[i].twice {
				return
			}
			for _, r := range probes {
				if v := (sides{upstream, place}).compare(r); v.difference != "" {
					seen[i] = append(seen[i], fmt.Sprintf("%v\n%s", r, v.difference))
				}
			}
		})
	}
	report(t, faults, seen)
	t.Logf("%d faults, %d requests for each", len(faults)-1, len(probes))
}

// faultyWatches lasts longer where little is written in a second: a fault has
// something to happen to only once there was an event of its kind.
func faultyWatches(t *testing.T) {
	const longest = 40
	for seconds, enough := 5, false; !enough; seconds *= 2 {
		t.Run(fmt.Sprint(seconds, " seconds"), func(t *testing.T) { enough = faultyWatchesFor(t, seconds, seconds >= longest) })
		enough = enough || seconds >= longest
	}
}

// faultyWatchesFor yields whether enough was written to judge by.
func faultyWatchesFor(t *testing.T, seconds int, last bool) bool {
	chance := chances(seeded(t), 3)
	suffix := fmt.Sprint("-f", seconds)
	s := putOn(t, chance, suffix)
	var requests []request
	for _, l := range []look{
		{"configmaps", "", "", "", "", since},
		{"configmaps", "", "tier=gold", "", "", since},
		{"configmaps", "", "tier!=lead", "", "", stateFirst},
	} {
		requests = append(requests, s.request(l, seconds, suffix))
	}
	faults := append(faultsOfWatches(), fault{name: "none"})
	places := []target{upstream}
	for _, f := range faults {
		places = append(places, startFaulty(t, upstream, f))
	}
	// A moment for the first states to be there.
	for i := range 6 {
		upstream.ok(t, request{method: "POST", path: "/api/v1/namespaces/watched" + suffix + "/configmaps", body: asJSON(configMap(fmt.Sprint("early-", i)))})
	}
	time.Sleep(200 * time.Millisecond)
	all := s.run(chance, places, requests, seconds)
	count := map[string]int{}
	for _, e := range must(all[0][0].frames())(t) {
		count[e.event]++
	}
	if !last && (count["MODIFIED"] < 20 || count["DELETED"] < 10) {
		t.Logf("hardly anything was written: %v", count)
		return false
	}
	for j, r := range requests {
		// The last is the one without a fault.
		if !last && isLate(r, all[0][j], all[len(faults)][j]) {
			t.Logf("%v: not all was there when its time was over", r)
			return false
		}
	}
	seen := make([][]string, len(faults))
	for i := range faults {
		for j, r := range requests {
			if difference := (sides{upstream, places[i+1]}).differ(r, all[0][j], all[i+1][j]); difference != "" {
				seen[i] = append(seen[i], fmt.Sprintf("%v\n%s", r, difference))
			}
		}
	}
	report(t, faults, seen)
	return true
}

// report fails the test for each fault that was not seen, and for what was seen
// without one.
func report(t *testing.T, faults []fault, seen [][]string) {
	t.Helper()
	for i, f := range faults {
		switch {
		case f.name == "none" && len(seen[i]) > 0:
			t.Errorf("a difference without a fault: %s", seen[i][0])
		case f.name != "none" && len(seen[i]) == 0:
			t.Errorf("%s: not seen", f.name)
		case f.name != "none":
			problem := strings.Join(strings.Split(seen[i][0], "\n")[1:], " / ")
			t.Logf("%s: seen %d times, first: %.160q", f.name, len(seen[i]), problem)
		}
	}
}
