package real

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// sides are two ways to the same API: the one that is right by definition, and
// the one that has to be like it.
type sides struct{ right, asked target }

// verdict is how one request was answered both ways.
type verdict struct {
	want, got answer
	// difference is empty if there is none.
	difference string
}

// compare sends a request both ways. Nothing is compared with what upstream may
// have said at another moment: a difference counts only if upstream gives one
// answer before and after, or two at once if it is a watch.
func (p sides) compare(r request) verdict {
	ask := p.inTurn
	if r.isWatch() {
		ask = p.atOnce
	}
	var v verdict
	for range 5 {
		before, got, after, err := ask(r)
		v = verdict{want: before.answer, got: got.answer}
		if err != nil {
			v.difference = err.Error()
			return v
		}
		if v.difference = p.differ(r, before, got); v.difference == "" {
			return v
		}
		if after == nil {
			again, err := p.right.ask(r)
			if err != nil {
				v.difference = err.Error()
				return v
			}
			after = &again
		}
		if p.differ(r, *after, got) == "" {
			v.want, v.difference = after.answer, ""
			return v
		}
		if p.differ(r, before, *after) == "" {
			return v
		}
	}
	v.difference = "upstream is not of one mind; the last difference: " + v.difference
	return v
}

// compareAtLeisure gives a watch that differs more time: on a busy machine a
// second may be over before all is said. And it asks again where the proxy says
// that upstream did not tell it in time who is asking.
func (p sides) compareAtLeisure(r request) verdict {
	v := p.compare(r)
	for range 3 {
		if v.got.status != http.StatusServiceUnavailable || v.got.header.Get("X-Watershed-Source") != "access" {
			break
		}
		time.Sleep(time.Second)
		v = p.compare(r)
	}
	if v.difference != "" && r.isWatch() && hasSeconds.MatchString(r.path) {
		r.path = hasSeconds.ReplaceAllString(r.path, "${1}timeoutSeconds=12")
		v = p.compare(r)
	}
	return v
}

// hasSeconds is the time of a watch that lasts for few of them.
var hasSeconds = regexp.MustCompile(`([?&])timeoutSeconds=[1-9]\b`)

func (p sides) inTurn(r request) (before, got response, after *response, err error) {
	if before, err = p.right.ask(r); err == nil {
		got, err = p.asked.ask(r)
	}
	return before, got, nil, err
}

// atOnce opens three watches, each when the one before has begun: what depends
// on the moment, as ages do, is between the outer two.
func (p sides) atOnce(r request) (before, got response, after *response, err error) {
	after = &response{}
	var all sync.WaitGroup
	var errs [3]error
	for i, to := range []struct {
		target
		into *response
	}{{p.right, &before}, {p.asked, &got}, {p.right, after}} {
		begun := make(chan struct{})
		all.Go(func() { *to.into, errs[i] = to.follow(r, func() { close(begun) }) })
		<-begun
	}
	all.Wait()
	return before, got, after, errors.Join(errs[:]...)
}

// response is a whole answer; that of a watch goes to its end.
type response struct {
	answer
	took time.Duration
}

// ask sends a request and takes in all of the answer.
func (t target) ask(r request) (response, error) { return t.follow(r, func() {}) }

// follow also says when the answer has begun.
func (t target) follow(r request, begun func()) (response, error) {
	// Go's client would ask for gzip by itself and hide it.
	header := map[string]string{"Accept-Encoding": "identity"}
	maps.Copy(header, r.header)
	r.header = header
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	since := time.Now()
	resp, err := t.open(ctx, r)
	begun()
	var body []byte
	if err == nil {
		defer resp.Body.Close()
		body, err = io.ReadAll(resp.Body)
	}
	if err != nil {
		return response{}, fmt.Errorf("%s, %v, after %v: %w", t.name, r, time.Since(since), err)
	}
	return response{answer{resp.StatusCode, resp.Header, string(body)}, time.Since(since)}, nil
}

func (r request) query() url.Values {
	_, query, _ := strings.Cut(r.path, "?")
	values, _ := url.ParseQuery(query)
	return values
}

// isWatch says that the answer may be a stream that ends at its deadline.
func (r request) isWatch() bool {
	if values, present := r.query()["watch"]; present {
		return values[0] != "0" && !strings.EqualFold(values[0], "false")
	}
	return strings.Contains(r.path, "/watch/")
}

// ownHeaders are not compared, each for a reason.
var ownHeaders = map[string]string{
	"Date":                              "when it was said",
	"Audit-Id":                          "one for each request; only that there is one is compared",
	"X-Watershed-Source":                "watershed's own",
	"X-Kubernetes-Pf-Flowschema-Uid":    "which queue the request took; from memory, none",
	"X-Kubernetes-Pf-Prioritylevel-Uid": "which queue the request took; from memory, none",
	"Content-Length":                    "whether the length is known beforehand; bodies are compared whole",
}

func (a answer) head() string {
	names := []string{}
	for name := range a.header {
		if _, own := ownHeaders[name]; !own {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var b strings.Builder
	fmt.Fprintln(&b, a.status)
	for _, name := range names {
		fmt.Fprintf(&b, "%s: %q\n", name, a.header[name])
	}
	fmt.Fprintf(&b, "an Audit-Id: %v\n", a.header.Get("Audit-Id") != "")
	return b.String()
}

// plain is the body uncompressed. Two compressors need not agree on the bytes.
func (a answer) plain() (string, error) {
	if a.header.Get("Content-Encoding") != "gzip" || a.body == "" {
		return a.body, nil
	}
	// This reads one member after the other, as watches have many.
	unpacked, err := gzip.NewReader(strings.NewReader(a.body))
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(unpacked)
	return string(text), err
}

// currentVersion is in the text of a ResourceVersionTooLarge.
var currentVersion = regexp.MustCompile(`(Too large resource version: \d+, current: )\d+`)

// differ says how an answer differs from the right one.
func (p sides) differ(r request, want, got response) string {
	if w, g := want.head(), got.head(); w != g {
		return fmt.Sprintf("upstream: %s%s\nasked:    %s%s", w, excerpt(want.body, 0), g, excerpt(got.body, 0))
	}
	if r.isWatch() && want.status == http.StatusOK && r.verb() == http.MethodGet {
		if wanted, err := want.frames(); err == nil {
			return p.differInFrames(r, want, got, wanted)
		}
	}
	w, err := want.plain()
	if err != nil {
		return "upstream's body: " + err.Error()
	}
	g, err := got.plain()
	if err != nil {
		return "the body: " + err.Error()
	}
	if want.status == http.StatusGatewayTimeout {
		w, g = currentVersion.ReplaceAllString(w, "${1}N"), currentVersion.ReplaceAllString(g, "${1}N")
	}
	if w == g {
		return ""
	}
	if excuse := p.versionsMayDiffer(r, want.header.Get("Content-Type"), w, g); excuse != "" {
		return excuse + "\n" + apart(w, g)
	}
	return ""
}

// versionsMayDiffer compares two lists whose versions are not the same, as is
// the right of two lists that need not be of one version. It yields what is
// wrong.
func (p sides) versionsMayDiffer(r request, contentType, want, got string) string {
	wanted, restWanted, ok := dissect(contentType, want)
	if !ok {
		return "the bodies differ"
	}
	found, rest, ok := dissect(contentType, got)
	if !ok || rest != restWanted {
		return "the bodies differ"
	}
	floor, free := freedom(r.query())
	if !free {
		t, err := parseToken(found.Continue)
		rightToken, rightErr := parseToken(wanted.Continue)
		if found.ResourceVersion != wanted.ResourceVersion || err != nil || rightErr != nil || p.right.spelled(t) != p.right.spelled(rightToken) {
			return "the versions of lists at one version differ"
		}
		return ""
	}
	w, g := version(wanted.ResourceVersion), version(found.ResourceVersion)
	if floor == latest {
		floor = w
	}
	if g < floor {
		return fmt.Sprintf("the list is of %d, before %d", g, floor)
	}
	if g > w {
		if now, err := p.right.revision(); err != nil || g > now {
			return fmt.Sprintf("the list is of %d, and upstream is at %d (%v)", g, now, err)
		}
	}
	if (wanted.Continue == "") != (found.Continue == "") {
		return "one list goes on and the other does not"
	}
	if found.Continue != "" {
		t, err := parseToken(found.Continue)
		rightToken, rightErr := parseToken(wanted.Continue)
		if err != nil || rightErr != nil {
			return fmt.Sprintf("the token: %v; upstream's: %v", err, rightErr)
		}
		if p.right.spelled(t).Start != p.right.spelled(rightToken).Start || uint64(t.RV) != g || uint64(rightToken.RV) != w {
			return fmt.Sprintf("the token is %+v in a list of %d; upstream's is %+v in one of %d", t, g, rightToken, w)
		}
	}
	return ""
}

// latest stands for the newest version there is.
const latest = ^uint64(0)

// freedom says whether a list may be of another version than upstream's, and
// which it must not be older than.
func freedom(query url.Values) (floor uint64, free bool) {
	if text := query.Get("continue"); text != "" {
		t, err := parseToken(text)
		return latest, err == nil && t.RV < 0
	}
	text := query.Get("resourceVersion")
	v := version(text)
	limit, _ := strconv.Atoi(query.Get("limit"))
	switch match := query.Get("resourceVersionMatch"); {
	case match == "Exact", match == "" && limit > 0 && v > 0:
		return 0, false
	case text == "":
		return latest, true
	default:
		return v, true
	}
}

// token is what a continue token holds.
type token struct {
	V     string `json:"v"`
	RV    int64  `json:"rv"`
	Start string `json:"start"`
}

func parseToken(text string) (t token, err error) {
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(raw, &t)
	}
	return t, err
}

func (t token) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte(asJSON(t)))
}

var spellings sync.Map

// writesSlash says how upstream spells the keys in continue tokens. Where it takes
// pages at a version from etcd, as older releases do, they have no slash at the
// beginning. All releases read both.
func (t target) writesSlash() bool {
	learned, _ := spellings.LoadOrStore(t.url, sync.OnceValue(func() bool {
		v, err := t.revision()
		if err != nil {
			panic(err)
		}
		a, err := t.try(request{path: fmt.Sprintf("/api/v1/namespaces?limit=1&resourceVersion=%d", v)})
		if err != nil {
			panic(err)
		}
		page, _, _ := dissect("application/json", a.body)
		token, err := parseToken(page.Continue)
		if err != nil || token.Start == "" {
			panic(fmt.Sprintf("upstream gives no token: %v %s", err, a.body))
		}
		return strings.HasPrefix(token.Start, "/")
	}))
	return learned.(func() bool)()
}

// spelled is a token as it counts: to the letter where upstream writes the slash,
// and otherwise without it.
func (t target) spelled(token token) token {
	if !t.writesSlash() {
		token.Start = strings.TrimPrefix(token.Start, "/")
	}
	return token
}

// revision is the version that all of the API has come to.
func (t target) revision() (uint64, error) {
	a, err := t.try(request{path: "/api/v1/namespaces?limit=1"})
	if err != nil {
		return 0, err
	}
	list, _, ok := dissect("application/json", a.body)
	if !ok {
		return 0, fmt.Errorf("%d %s", a.status, a.body)
	}
	return version(list.ResourceVersion), nil
}

// dissect takes the version and the token out of a list, of whatever form. The
// rest is every other byte.
func dissect(contentType, body string) (list metav1.ListMeta, rest string, ok bool) {
	switch kind, _, _ := strings.Cut(contentType, ";"); kind {
	case "application/json":
		return dissectJSON(body)
	case "application/yaml":
		return dissectYAML(body)
	case "application/vnd.kubernetes.protobuf":
		return dissectProtobuf(body)
	}
	return list, "", false
}

func dissectJSON(body string) (list metav1.ListMeta, rest string, ok bool) {
	d := json.NewDecoder(strings.NewReader(body))
	if first, err := d.Token(); err != nil || first != json.Delim('{') {
		return list, "", false
	}
	isList := false
	var raw json.RawMessage
	var from, to int64
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return list, "", false
		}
		var value json.RawMessage
		if d.Decode(&value) != nil {
			return list, "", false
		}
		switch key {
		case "metadata":
			raw, to = value, d.InputOffset()
			from = to - int64(len(value))
		case "items", "rows":
			isList = true
		}
	}
	if !isList || json.Unmarshal(raw, &list) != nil {
		return list, "", false
	}
	return list, body[:from] + blanked(body[from:to], list) + body[to:], true
}

// blanked hides the version and token of a list in the text they are from.
func blanked(text string, list metav1.ListMeta) string {
	if list.ResourceVersion != "" {
		text = strings.Replace(text, `"`+list.ResourceVersion+`"`, `"VERSION"`, 1)
	}
	if list.Continue != "" {
		text = strings.Replace(text, list.Continue, "TOKEN", 1)
	}
	return text
}

var (
	yamlMetadata = regexp.MustCompile(`(?m)^metadata:\n(?:  .*\n)*`)
	yamlVersion  = regexp.MustCompile(`(?m)^  resourceVersion: "(\d+)"$`)
	yamlContinue = regexp.MustCompile(`(?m)^  continue: (\S+)$`)
)

func dissectYAML(body string) (list metav1.ListMeta, rest string, ok bool) {
	if !strings.Contains(body, "\nitems:") {
		return list, "", false
	}
	at := yamlMetadata.FindStringIndex(body)
	if at == nil {
		return list, "", false
	}
	block := body[at[0]:at[1]]
	if m := yamlVersion.FindStringSubmatch(block); m != nil {
		list.ResourceVersion = m[1]
	}
	if m := yamlContinue.FindStringSubmatch(block); m != nil && m[1] != `""` {
		list.Continue = m[1]
	}
	return list, body[:at[0]] + blanked(block, list) + body[at[1]:], true
}

func dissectProtobuf(body string) (list metav1.ListMeta, rest string, ok bool) {
	var envelope runtime.Unknown
	raw, enveloped := strings.CutPrefix(body, "k8s\x00")
	if !enveloped || envelope.Unmarshal([]byte(raw)) != nil || !strings.HasSuffix(envelope.Kind, "List") {
		return list, "", false
	}
	first, others, ok := firstField(envelope.Raw)
	if !ok || list.Unmarshal(first) != nil {
		return list, "", false
	}
	shell := list
	shell.ResourceVersion, shell.Continue = "", ""
	envelope.Raw = nil
	return list, fmt.Sprintf("%+v %+v %s", envelope, asJSON(shell), others), true
}

// firstField splits a protobuf message after its field 1, a message itself. In
// Kubernetes this is the metadata of lists and objects alike.
func firstField(message []byte) (first, others []byte, ok bool) {
	if len(message) == 0 || message[0] != 0x0a {
		return nil, nil, false
	}
	size, n := binary.Uvarint(message[1:])
	if n <= 0 || uint64(len(message)-1-n) < size {
		return nil, nil, false
	}
	return message[1+n : 1+n+int(size)], message[1+n+int(size):], true
}

// frame is one event of a watch in whatever form.
type frame struct {
	event   string
	key     string
	version uint64
	endMark bool
	raw     string
	// shape is all of a bookmark but its version.
	shape string
}

func (f frame) String() string {
	return fmt.Sprintf("%s %s at %d: %s", f.event, f.key, f.version, excerpt(f.raw, 0))
}

// frames takes a watch apart.
func (a answer) frames() ([]frame, error) {
	body, err := a.plain()
	if err != nil {
		return nil, err
	}
	switch kind, _, _ := strings.Cut(a.header.Get("Content-Type"), ";"); kind {
	case "application/json":
		return framesOfJSON(body)
	case "application/vnd.kubernetes.protobuf":
		return framesOfProtobuf(body)
	default:
		return nil, errors.New("no watch is of type " + kind)
	}
}

func framesOfJSON(body string) (all []frame, err error) {
	for line := range strings.Lines(body) {
		p, err := parseJSON([]byte(line))
		if err != nil {
			return all, err
		}
		if p.event == "" || !strings.HasSuffix(line, "\n") {
			return all, fmt.Errorf("not an event: %q", line)
		}
		f := frame{event: p.event, key: p.object.key(), version: p.object.version(), endMark: strings.Contains(line, endMark), raw: line}
		if f.event == "BOOKMARK" {
			f.shape = strings.ReplaceAll(line, fmt.Sprintf(`"resourceVersion":"%d"`, f.version), `"resourceVersion":"VERSION"`)
		}
		all = append(all, f)
	}
	return all, nil
}

func framesOfProtobuf(body string) (all []frame, err error) {
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
		f := frame{event: event.Type, raw: string(text)}
		if event.Type != "ERROR" {
			var object metav1.ObjectMeta
			first, others, ok := firstField(envelope.Raw)
			if !ok || object.Unmarshal(first) != nil {
				return all, fmt.Errorf("an object without metadata: %q", wrapped)
			}
			f.key, f.version = object.Namespace+"/"+object.Name, version(object.ResourceVersion)
			f.endMark = object.Annotations[endMark] == "true"
			// The lengths around the version depend on its own.
			field := append([]byte{0x32, byte(len(object.ResourceVersion))}, object.ResourceVersion...)
			f.shape = fmt.Sprintf("%s %v %q %q", f.event, envelope.TypeMeta, bytes.Replace(first, field, []byte("VERSION"), 1), others)
		}
		all = append(all, f)
	}
}

// recorded is the events of a watch apart from its bookmarks.
type recorded struct {
	events []frame
	// after is how many events were before a bookmark.
	marks []struct {
		frame
		after int
	}
	// state is how many events were before the end mark.
	state int
	ended bool
}

func record(all []frame) (r recorded, err error) {
	for _, f := range all {
		if f.event != "BOOKMARK" {
			r.events = append(r.events, f)
			continue
		}
		if f.endMark {
			if r.ended {
				return r, errors.New("a second end of initial events")
			}
			r.state, r.ended = len(r.events), true
		}
		r.marks = append(r.marks, struct {
			frame
			after int
		}{f, len(r.events)})
	}
	return r, nil
}

// differInFrames compares two watches event by event. Bookmarks may come or not
// and be of any version that is true; the end of the initial events has its
// place among the events, and its form.
func (p sides) differInFrames(r request, want, got response, wanted []frame) string {
	w, err := record(wanted)
	if err != nil {
		return "upstream: " + err.Error()
	}
	found, err := got.frames()
	if err != nil {
		return "not a watch: " + err.Error()
	}
	g, err := record(found)
	if err != nil {
		return err.Error()
	}
	for i := range max(len(w.events), len(g.events)) {
		switch {
		case i >= len(g.events):
			return fmt.Sprintf("event %d of %d is missing: %v", i, len(w.events), w.events[i])
		case i >= len(w.events):
			return fmt.Sprintf("there is an event more than upstream's %d: %v", len(w.events), g.events[i])
		}
		if a, b := steady(r, w.events[i]), steady(r, g.events[i]); a != b {
			return fmt.Sprintf("event %d of %d differs\n%s", i, len(w.events), apart(a, b))
		}
	}
	if w.ended != g.ended || w.state != g.state {
		return fmt.Sprintf("the initial events end: upstream %v after %d, asked %v after %d", w.ended, w.state, g.ended, g.state)
	}
	if problem := p.wrongMarks(r, w, g); problem != "" {
		return problem
	}
	if early := want.took - got.took; early > 700*time.Millisecond {
		return fmt.Sprintf("the watch ended after %v, upstream's after %v", got.took, want.took)
	}
	return ""
}

// isLate says that one of two watches only lacks the last events of the other: on
// a busy machine its time may be over before they are there.
func isLate(r request, want, got response) bool {
	var both [2]recorded
	for i, answer := range []answer{want.answer, got.answer} {
		all, err := answer.frames()
		if err != nil {
			return false
		}
		if both[i], err = record(all); err != nil {
			return false
		}
	}
	n := min(len(both[0].events), len(both[1].events))
	for i := range n {
		if steady(r, both[0].events[i]) != steady(r, both[1].events[i]) {
			return false
		}
	}
	return n < max(len(both[0].events), len(both[1].events))
}

// retryAfter is drawn by lot where upstream has no watch cache.
var retryAfter = regexp.MustCompile(`"retryAfterSeconds":[123]\b`)

// steady is an event, but for the version an ERROR says its server has come to or
// begins with.
func steady(r request, f frame) string {
	if f.event != "ERROR" {
		return f.raw
	}
	text := currentVersion.ReplaceAllString(f.raw, "${1}N")
	if text != f.raw && strings.Contains(r.path, "/events?") {
		text = retryAfter.ReplaceAllString(text, `"retryAfterSeconds":N`)
	}
	return oldestVersion.ReplaceAllString(text, "${1}N)")
}

// oldestVersion is in the text of an Expired: what this server can go on from.
var oldestVersion = regexp.MustCompile(`(too old resource version: \d+ \()\d+\)`)

// wrongMarks checks what bookmarks promise, and that they look like upstream's.
func (p sides) wrongMarks(r request, w, g recorded) string {
	shapes := map[bool]string{}
	for _, m := range w.marks {
		shapes[m.endMark] = m.shape
	}
	var events []seen
	for _, e := range g.events {
		events = append(events, seen{event: e.event, key: e.key, version: e.version})
	}
	var marks []mark
	floor := version(r.query().Get("resourceVersion"))
	for _, m := range g.marks {
		if shape, known := shapes[m.endMark]; known && shape != m.shape {
			return "a bookmark differs\n" + apart(shape, m.shape)
		}
		if m.version < floor {
			return fmt.Sprintf("a bookmark of %d in a watch from %d", m.version, floor)
		}
		marks = append(marks, mark{m.version, m.after})
	}
	if err := compareMarks(g.state, events, marks); err != nil {
		return err.Error()
	}
	if len(marks) > 0 {
		if now, err := p.right.revision(); err != nil || marks[len(marks)-1].version > now {
			return fmt.Sprintf("a bookmark of %d, and upstream is at %d (%v)", marks[len(marks)-1].version, now, err)
		}
	}
	return ""
}

// excerpt is a piece of a text that may be long or binary.
func excerpt(text string, from int) string {
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

// apart shows two texts around their first difference.
func apart(want, got string) string {
	i := 0
	for i < len(want) && i < len(got) && want[i] == got[i] {
		i++
	}
	return fmt.Sprintf("they part at byte %d\nupstream: %s\nasked:    %s", i, excerpt(want, i), excerpt(got, i))
}

// items is the versions of what is in a list, by namespace and name.
func (a answer) items() (map[string]uint64, error) {
	all := map[string]uint64{}
	if strings.HasPrefix(a.body, "{") {
		var list struct{ Items []parsedObject }
		err := json.Unmarshal([]byte(a.body), &list)
		for _, o := range list.Items {
			all[o.key()] = o.version()
		}
		return all, err
	}
	raw, err := unwrap([]byte(a.body))
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
		all[object.Namespace+"/"+object.Name] = version(object.ResourceVersion)
		others = others[1+n+int(size):]
	}
	if !ok {
		return nil, errors.New("not a list")
	}
	return all, nil
}
