package faulty

import (
	"bytes"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"watershed.test/real/internal/api"
)

// InAnswers returns the faults that show in requests and answers.
func InAnswers() []Fault {
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
	return []Fault{
		{Name: "stale list", Twice: true, answer: func(path string, _ http.Header, body []byte) []byte {
			mutex.Lock()
			defer mutex.Unlock()
			if first[path] == nil {
				first[path] = body
			}
			return first[path]
		}},
		{Name: "missing field", answer: of(`"uid":"[^"]+",`, ``)},
		{Name: "missing object", answer: of(`\{"metadata":\{"name":"b".*?\}\},`, ``)},
		{Name: "object changed", answer: of(`u003c`, `u003C`)},
		{Name: "limit off by one", Asked: func(query url.Values) {
			if n, err := strconv.Atoi(query.Get("limit")); err == nil && n > 0 {
				query.Set("limit", strconv.Itoa(n+1))
			}
		}},
		{Name: "limit ignored", Asked: func(query url.Values) { query.Del("limit") }},
		{Name: "token of the wrong version", answer: alterToken(func(t *api.ContinueToken) { t.RV-- })},
		{Name: "token for the wrong place", answer: alterToken(func(t *api.ContinueToken) { t.Start = strings.Replace(t.Start, "\x00", "0\x00", 1) })},
		{Name: "remaining count", answer: of(`"remainingItemCount":(\d+)`, `"remainingItemCount":1$1`)},
		{Name: "missing header", answer: func(_ string, h http.Header, body []byte) []byte { h.Del("Cache-Control"); return body }},
		{Name: "wrong content type", answer: func(_ string, h http.Header, body []byte) []byte {
			h.Set("Content-Type", "application/json; charset=utf-8")
			return body
		}},
		{Name: "list of a version to come", answer: of(`"metadata":\{"resourceVersion":"(\d+)"`, `"metadata":{"resourceVersion":"1$1"`)},
		{Name: "list of a version long past", answer: of(`"metadata":\{"resourceVersion":"\d+"`, `"metadata":{"resourceVersion":"7"`)},
		{Name: "newest instead of exact", Asked: func(query url.Values) {
			if query.Get("resourceVersionMatch") == "Exact" && api.ParseVersion(query.Get("resourceVersion")) > 0 {
				query.Set("resourceVersionMatch", "NotOlderThan")
			}
		}},
		{Name: "other reason", answer: of(`"reason":"(Expired|NotFound|BadRequest)"`, `"reason":"Gone"`)},
		{Name: "other words", answer: of(`"message":"[A-Za-z]`, `"message":"Z`)},
		{Name: "selector ignored", Asked: func(query url.Values) { query.Del("labelSelector") }},
		{Name: "other indentation", answer: of(`\n {4}"`, "\n\t\t\"")},
		{Name: "line end behind indented JSON", answer: of(`\n\}$`, "\n}\n")},
		{Name: "no newline", answer: func(_ string, _ http.Header, body []byte) []byte { return bytes.TrimSuffix(body, []byte("\n")) }},
	}
}

func alterToken(alter func(*api.ContinueToken)) func(string, http.Header, []byte) []byte {
	pattern := regexp.MustCompile(`"continue":"([^"]+)"`)
	return func(_ string, _ http.Header, body []byte) []byte {
		found := pattern.FindSubmatch(body)
		if found == nil {
			return body
		}
		t, err := api.ParseContinueToken(string(found[1]))
		if err != nil {
			return body
		}
		alter(&t)
		return bytes.Replace(body, found[1], []byte(t.String()), 1)
	}
}
