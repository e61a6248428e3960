// Package compare sends the same requests to the API server and through watershed, and
// compares the answers byte for byte.
package compare

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/watches"
)

// Sides are two ways to the same API. Right is correct by definition; Asked has to give the
// same answers.
type Sides struct{ Right, Asked api.Target }

// Verdict holds the answers of both sides to one request.
type Verdict struct {
	Want, Got api.Answer
	// Difference is empty if both answers agree.
	Difference string
	// Repeated is true if they did not at first, and one of them might have been a moment old.
	Repeated bool
}

// Compare sends a request to both sides. Upstream's answers may differ over time, so a
// difference counts only if upstream's answers before and after agree. For watches, two at the
// same time have to agree.
func (p Sides) Compare(r api.Request) Verdict {
	ask := p.inTurn
	if r.IsWatch() {
		ask = p.atOnce
	}
	var v Verdict
	// Tables show ages: on a busy machine a second may pass during one attempt after the other.
	for range 20 {
		before, got, after, err := ask(r)
		v = Verdict{Want: before.Answer, Got: got.Answer}
		if err != nil {
			v.Difference = err.Error()
			return v
		}
		if v.Difference = p.Differ(r, before, got); v.Difference == "" {
			return v
		}
		if after == nil {
			again, err := p.Right.Ask(r)
			if err != nil {
				v.Difference = err.Error()
				return v
			}
			after = &again
		}
		if p.Differ(r, *after, got) == "" {
			v.Want, v.Difference = after.Answer, ""
			return v
		}
		if p.Differ(r, before, *after) == "" {
			return v
		}
	}
	v.Difference = "upstream is not of one mind; the last difference: " + v.Difference
	return v
}

// CompareAtLeisure compares again where load may be the cause of a difference. A watch gets
// more time: on a busy machine a second may be too short. A request is repeated if upstream did
// not identify the caller in time, or if the answer may be a moment old.
func (p Sides) CompareAtLeisure(r api.Request) Verdict {
	v := p.Compare(r)
	for range 3 {
		if v.Got.Status != http.StatusServiceUnavailable || v.Got.Header.Get("X-Watershed-Source") != "access" {
			break
		}
		time.Sleep(time.Second)
		v = p.Compare(r)
	}
	// A write may have reached one side only, such as a renewed lease.
	for range 5 {
		if v.Difference == "" || !mayBePast(r, v.Want, v.Got) || strings.Contains(v.Difference, olderThan) {
			break
		}
		time.Sleep(200 * time.Millisecond)
		v = p.Compare(r)
		v.Repeated = true
	}
	if v.Difference != "" && r.IsWatch() && hasSeconds.MatchString(r.Path) {
		r.Path = hasSeconds.ReplaceAllString(r.Path, "${1}timeoutSeconds=12")
		v = p.Compare(r)
	}
	return v
}

// mayBePast reports whether both answers to a get or list are objects, or say that there is none, and
// may be of a state that is neither the latest nor that of one version.
func mayBePast(r api.Request, want, got api.Answer) bool {
	for _, a := range []api.Answer{want, got} {
		if a.Status != http.StatusOK && a.Status != http.StatusNotFound {
			return false
		}
	}
	floor, free := versionFloor(r)
	return !r.IsWatch() && free && floor != latestVersion
}

// olderThan is in the difference of a list that is older than the request allows.
const olderThan = "older than"

// hasSeconds matches the deadline of a watch that lasts for less than ten seconds.
var hasSeconds = regexp.MustCompile(`([?&])timeoutSeconds=[1-9]\b`)

func (p Sides) inTurn(r api.Request) (before, got api.Response, after *api.Response, err error) {
	if before, err = p.Right.Ask(r); err == nil {
		got, err = p.Asked.Ask(r)
	}
	return before, got, nil, err
}

// atOnce opens three watches, each after the one before has begun. Whatever depends on the
// time, such as ages, lies between the outer two.
func (p Sides) atOnce(r api.Request) (before, got api.Response, after *api.Response, err error) {
	after = &api.Response{}
	var all sync.WaitGroup
	var errs [3]error
	for i, to := range []struct {
		api.Target
		into *api.Response
	}{{p.Right, &before}, {p.Asked, &got}, {p.Right, after}} {
		begun := make(chan struct{})
		all.Go(func() { *to.into, errs[i] = to.Follow(r, func() { close(begun) }) })
		<-begun
	}
	all.Wait()
	return before, got, after, errors.Join(errs[:]...)
}

// ownHeaders lists the headers that are not compared, each with the reason.
var ownHeaders = map[string]string{
	"Date":                              "when it was said",
	"Audit-Id":                          "one for each request; only that there is one is compared",
	"X-Watershed-Source":                "watershed's own",
	"X-Kubernetes-Pf-Flowschema-Uid":    "which queue the request took; from memory, none",
	"X-Kubernetes-Pf-Prioritylevel-Uid": "which queue the request took; from memory, none",
	"Content-Length":                    "whether the length is known beforehand; bodies are compared whole",
}

func head(a api.Answer) string {
	names := []string{}
	for name := range a.Header {
		if _, own := ownHeaders[name]; !own {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var b strings.Builder
	fmt.Fprintln(&b, a.Status)
	for _, name := range names {
		fmt.Fprintf(&b, "%s: %q\n", name, a.Header[name])
	}
	fmt.Fprintf(&b, "an Audit-Id: %v\n", a.Header.Get("Audit-Id") != "")
	return b.String()
}

// currentVersion matches upstream's version in the text of a ResourceVersionTooLarge.
var currentVersion = regexp.MustCompile(`(Too large resource version: \d+, current: )\d+`)

// Differ describes the difference between an answer and the right one, or returns "".
func (p Sides) Differ(r api.Request, want, got api.Response) string {
	if w, g := head(want.Answer), head(got.Answer); w != g {
		return fmt.Sprintf("upstream: %s%s\nasked:    %s%s", w, api.Excerpt(want.Body, 0), g, api.Excerpt(got.Body, 0))
	}
	if r.IsWatch() && want.Status == http.StatusOK && r.Verb() == http.MethodGet {
		if wanted, err := want.Frames(); err == nil {
			return p.differInFrames(r, want, got, wanted)
		}
	}
	w, err := want.Plain()
	if err != nil {
		return "upstream's body: " + err.Error()
	}
	g, err := got.Plain()
	if err != nil {
		return "the body: " + err.Error()
	}
	if want.Status == http.StatusGatewayTimeout {
		w, g = currentVersion.ReplaceAllString(w, "${1}N"), currentVersion.ReplaceAllString(g, "${1}N")
	}
	if w == g {
		return ""
	}
	if excuse := p.versionsMayDiffer(r, want.Header.Get("Content-Type"), w, g); excuse != "" {
		return excuse + "\n" + Diff(w, g)
	}
	return ""
}

// versionsMayDiffer compares two lists that need not be of the same version. It returns what is
// wrong, or "".
func (p Sides) versionsMayDiffer(r api.Request, contentType, want, got string) string {
	wanted, restWanted, ok := api.ParseList(contentType, want)
	if !ok {
		return "the bodies differ"
	}
	found, rest, ok := api.ParseList(contentType, got)
	if !ok || rest != restWanted {
		return "the bodies differ"
	}
	floor, free := versionFloor(r)
	if !free {
		token, rightToken, err := p.tokens(found, wanted)
		if found.ResourceVersion != wanted.ResourceVersion || err != nil || token != rightToken {
			return fmt.Sprintf("the versions of lists at one version differ (%v)", err)
		}
		return ""
	}
	w, g := api.ParseVersion(wanted.ResourceVersion), api.ParseVersion(found.ResourceVersion)
	if floor == latestVersion {
		floor = w
	}
	if g < floor {
		return fmt.Sprintf("the list has version %d, "+olderThan+" %d", g, floor)
	}
	if g > w {
		if now, err := p.Right.Revision(); err != nil || g > now {
			return fmt.Sprintf("the list is of %d, and upstream is at %d (%v)", g, now, err)
		}
	}
	if (wanted.Continue == "") != (found.Continue == "") {
		return "one list goes on and the other does not"
	}
	if found.Continue != "" {
		token, rightToken, err := p.tokens(found, wanted)
		if err != nil {
			return "the tokens: " + err.Error()
		}
		if token.Start != rightToken.Start || uint64(token.RV) != g || uint64(rightToken.RV) != w {
			return fmt.Sprintf("the token is %+v in a list of %d; upstream's is %+v in one of %d", token, g, rightToken, w)
		}
	}
	return ""
}

// tokens returns the tokens of both lists in the form in which they are compared.
func (p Sides) tokens(found, wanted metav1.ListMeta) (token, rightToken api.ContinueToken, err error) {
	token, err = api.ParseContinueToken(found.Continue)
	rightToken, rightErr := api.ParseContinueToken(wanted.Continue)
	slash, slashErr := p.Right.WritesSlash()
	return token.Spelled(slash), rightToken.Spelled(slash), errors.Join(err, rightErr, slashErr)
}

// latestVersion stands for the newest version.
const latestVersion = ^uint64(0)

// namesOne matches a field selector that names the one object of a list.
var namesOne = regexp.MustCompile(`(^|,)metadata\.name==?[^,=]+(,|$)`)

// versionFloor reports whether a list may be of another version than upstream's, and the
// version that it must reach. Upstream reads the page of one named object in a namespace from
// etcd as it is now, whatever version the page asks for.
func versionFloor(r api.Request) (floor uint64, free bool) {
	query := r.Values()
	if text := query.Get("continue"); text != "" {
		t, err := api.ParseContinueToken(text)
		return latestVersion, err == nil && t.RV < 0
	}
	text := query.Get("resourceVersion")
	v := api.ParseVersion(text)
	limit, _ := strconv.Atoi(query.Get("limit"))
	switch match := query.Get("resourceVersionMatch"); {
	case match == "" && limit > 0 && v > 0 && strings.Contains(r.Path, "/namespaces/") && namesOne.MatchString(query.Get("fieldSelector")):
		return latestVersion, true
	case match == "Exact", match == "" && limit > 0 && v > 0:
		return 0, false
	case text == "":
		return latestVersion, true
	default:
		return v, true
	}
}

// differInFrames compares two watches event by event. Bookmarks are optional, and may have any
// version that is true. The end mark of the initial events has a fixed place and form.
func (p Sides) differInFrames(r api.Request, want, got api.Response, wanted []api.Frame) string {
	w, err := api.Record(wanted)
	if err != nil {
		return "upstream: " + err.Error()
	}
	found, err := got.Frames()
	if err != nil {
		return "not a watch: " + err.Error()
	}
	g, err := api.Record(found)
	if err != nil {
		return err.Error()
	}
	for i := range max(len(w.Events), len(g.Events)) {
		switch {
		case i >= len(g.Events):
			return fmt.Sprintf("event %d of %d is missing: %v", i, len(w.Events), w.Events[i])
		case i >= len(w.Events):
			return fmt.Sprintf("there is one event more than upstream's %d: %v", len(w.Events), g.Events[i])
		}
		if a, b := withoutVolatileVersions(r, w.Events[i]), withoutVolatileVersions(r, g.Events[i]); a != b {
			return fmt.Sprintf("event %d of %d differs\n%s", i, len(w.Events), Diff(a, b))
		}
	}
	if w.Ended != g.Ended || w.State != g.State {
		return fmt.Sprintf("end marks differ: upstream %v after %d events, asked %v after %d", w.Ended, w.State, g.Ended, g.State)
	}
	if problem := p.wrongBookmarks(r, w, g); problem != "" {
		return problem
	}
	if late := got.Took - want.Took; late < -mostEarly || late > mostLate {
		return fmt.Sprintf("the watch ended after %v, upstream's after %v", got.Took, want.Took)
	}
	return ""
}

// The end of a watch may be so much before or after upstream's. On a busy machine it is late.
const (
	mostEarly = 700 * time.Millisecond
	mostLate  = 20 * time.Second
)

// IsLate reports whether one of two watches only lacks the last events of the other. On a busy
// machine its time may be over before they arrive.
func IsLate(r api.Request, want, got api.Response) bool {
	var both [2]api.Recording
	for i, answer := range []api.Answer{want.Answer, got.Answer} {
		all, err := answer.Frames()
		if err != nil {
			return false
		}
		if both[i], err = api.Record(all); err != nil {
			return false
		}
	}
	n := min(len(both[0].Events), len(both[1].Events))
	for i := range n {
		if withoutVolatileVersions(r, both[0].Events[i]) != withoutVolatileVersions(r, both[1].Events[i]) {
			return false
		}
	}
	return n < max(len(both[0].Events), len(both[1].Events))
}

// retryAfter matches a value that upstream draws at random where it has no watch cache.
var retryAfter = regexp.MustCompile(`"retryAfterSeconds":[123]\b`)

// withoutVolatileVersions returns an event. In an ERROR it replaces the versions that depend on
// the server's state.
func withoutVolatileVersions(r api.Request, f api.Frame) string {
	if f.Event != "ERROR" {
		return f.Raw
	}
	text := currentVersion.ReplaceAllString(f.Raw, "${1}N")
	if text != f.Raw && strings.Contains(r.Path, "/events?") {
		text = retryAfter.ReplaceAllString(text, `"retryAfterSeconds":N`)
	}
	text = oldestVersion.ReplaceAllString(text, "${1}N)")
	return expiredLengths.ReplaceAllString(text, "${1}L${2}L${3}L${4}L${5}")
}

// oldestVersion matches the oldest version that a server knows, in the text of an Expired.
var oldestVersion = regexp.MustCompile(`(too old resource version: \d+ \()\d+\)`)

// expiredLengths matches an Expired in protobuf, whose lengths depend on the digits of that version.
var expiredLengths = regexp.MustCompile(`(?s)^(\n\x05ERROR\x12).(\n).(k8s\x00\n\x0c\n\x02v1\x12\x06Status\x12).(.*?\x12\x07Failure\x1a).(too old resource version)`)

// wrongBookmarks checks the promises and the form of bookmarks, and returns what is wrong.
func (p Sides) wrongBookmarks(r api.Request, w, g api.Recording) string {
	shapes := map[bool]string{}
	for _, m := range w.Marks {
		shapes[m.EndMark] = m.Shape
	}
	var events []watches.Event
	for _, e := range g.Events {
		events = append(events, watches.Event{Event: e.Event, Key: e.Key, Version: e.Version})
	}
	var marks []watches.Bookmark
	floor := api.ParseVersion(r.Values().Get("resourceVersion"))
	for _, m := range g.Marks {
		if shape, known := shapes[m.EndMark]; known && shape != m.Shape {
			return "a bookmark differs\n" + Diff(shape, m.Shape)
		}
		if m.Version < floor {
			return fmt.Sprintf("a bookmark of %d in a watch from %d", m.Version, floor)
		}
		marks = append(marks, watches.Bookmark{Version: m.Version, After: m.After})
	}
	if err := watches.CompareBookmarks(g.State, events, marks); err != nil {
		return err.Error()
	}
	if len(marks) > 0 {
		if now, err := p.Right.Revision(); err != nil || marks[len(marks)-1].Version > now {
			return fmt.Sprintf("a bookmark of %d, and upstream is at %d (%v)", marks[len(marks)-1].Version, now, err)
		}
	}
	return ""
}

// Diff shows two texts around their first difference.
func Diff(want, got string) string {
	i := 0
	for i < len(want) && i < len(got) && want[i] == got[i] {
		i++
	}
	return fmt.Sprintf("they differ from byte %d on\nupstream: %s\nasked:    %s", i, api.Excerpt(want, i), api.Excerpt(got, i))
}
