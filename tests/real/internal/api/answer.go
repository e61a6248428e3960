package api

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Answer is the answer to a raw request.
type Answer struct {
	Status int
	Header http.Header
	Body   string
}

// FromMemory reports whether a source, as watershed names it in X-Watershed-Source, is an answer from
// the objects or events in memory. Forwarded answers are not, nor are refusals, documents, and answers
// that several clients share.
func FromMemory(source string) bool {
	return source == "snapshot" || source == "window" || source == "linearizable"
}

// Plain returns the body uncompressed. Two compressors need not produce the same bytes.
func (a Answer) Plain() (string, error) {
	if a.Header.Get("Content-Encoding") != "gzip" || a.Body == "" {
		return a.Body, nil
	}
	// A compressed watch has many gzip members; this reader reads one after the other.
	unpacked, err := gzip.NewReader(strings.NewReader(a.Body))
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(unpacked)
	return string(text), err
}

// Excerpt returns a part of a text that may be long or binary.
func Excerpt(text string, from int) string {
	from = max(0, from-120)
	to := min(len(text), from+400)
	piece := text[from:to]
	if bytes.ContainsFunc([]byte(piece), func(r rune) bool { return r < ' ' && r != '\n' || r > '~' }) {
		piece = strconv.Quote(piece)
	}
	if to < len(text) {
		piece += fmt.Sprintf("… (%d bytes)", len(text))
	}
	return piece
}

// Items returns the versions of a list's items, by namespace and name.
func (a Answer) Items() (map[string]uint64, error) {
	all := map[string]uint64{}
	if strings.HasPrefix(a.Body, "{") {
		var list struct{ Items []Object }
		err := json.Unmarshal([]byte(a.Body), &list)
		for _, o := range list.Items {
			all[o.Key()] = o.Version()
		}
		return all, err
	}
	raw, err := UnwrapProtobuf([]byte(a.Body))
	if err != nil {
		return nil, err
	}
	_, others, ok := firstField(raw)
	for ok && len(others) > 0 {
		size, n := binary.Uvarint(others[1:])
		if others[0] != 0x12 || n <= 0 || uint64(len(others)-1-n) < size {
			return nil, errors.New("not a list")
		}
		first, _, whole := firstField(others[1+n : 1+n+int(size)])
		var object metav1.ObjectMeta
		if !whole || object.Unmarshal(first) != nil {
			return nil, errors.New("an item without metadata")
		}
		all[object.Namespace+"/"+object.Name] = ParseVersion(object.ResourceVersion)
		others = others[1+n+int(size):]
	}
	if !ok {
		return nil, errors.New("not a list")
	}
	return all, nil
}

// Comparable returns the part of an answer that has to be the same both ways. Versions and
// times differ from one request to the next even without a proxy. words names further texts to
// replace, such as a namespace.
func (a Answer) Comparable(words map[string]string) string {
	var b strings.Builder
	fmt.Fprintln(&b, a.Status)
	for _, name := range []string{"Content-Type", "Warning", "Retry-After", "Www-Authenticate", "X-Content-Type-Options", "Location", "Allow"} {
		for _, v := range a.Header.Values(name) {
			fmt.Fprintf(&b, "%s: %s\n", name, v)
		}
	}
	fmt.Fprintf(&b, "Audit-Id: %v\n", a.Header.Get("Audit-Id") != "")
	b.WriteString(a.Body)
	return Blank(b.String(), words)
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

// Blank replaces words, uids, versions and times in a text, so that runs can be compared.
func Blank(text string, words map[string]string) string {
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
