package conformance

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/parallel"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/random"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// fullMatrix selects every cell of the matrices instead of a sample.
var fullMatrix = os.Getenv("CONFORMANCE_FULL") != "" || writeTable

// writeTable makes the test write the tables of docs/conformance.md.
var writeTable = os.Getenv("CONFORMANCE_WRITE") != ""

// axis is one option of a request with the values to try.
type axis struct {
	name   string
	values []string
}

var (
	versionAxis = axis{"resourceVersion", []string{"unset", "0", "current", "old", "ancient", "future", "garbage"}}
	matchAxis   = axis{"resourceVersionMatch", []string{"unset", "Exact", "NotOlderThan", "garbage"}}
	statesAxis  = axis{"sendInitialEvents", []string{"unset", "true", "false"}}
	typeAxis    = axis{"type", []string{"configmaps", "namespaces", "events", "custom"}}
)

// matrices combine all options of each kind of read.
var matrices = []*matrix{
	{
		name: "Get",
		axes: []axis{versionAxis, {"object", []string{"there", "deleted", "never there"}}, typeAxis},
		ask:  askGet,
	},
	{
		name: "List",
		axes: []axis{
			statesAxis,
			{"continue", []string{"unset", "valid", "expired", "inconsistent", "garbage"}},
			matchAxis, versionAxis, typeAxis,
			{"limit", []string{"unset", "0", "1", "3", "huge", "-1", "garbage"}},
		},
		ask: askList,
		sample: func(values map[string]string) uint64 {
			if refused(values) {
				return 32
			}
			return 2
		},
	},
	{
		name:   "Watch",
		axes:   []axis{statesAxis, matchAxis, versionAxis, {"allowWatchBookmarks", []string{"unset", "true", "false"}}, typeAxis},
		ask:    askWatch,
		sample: func(map[string]string) uint64 { return 3 },
	},
}

type matrix struct {
	name string
	axes []axis
	ask  func(*matrixObjects, map[string]string) api.Request
	// sample returns n where the short form takes one cell of n.
	sample func(map[string]string) uint64
}

// part chooses cells of a matrix.
type part func(*matrix, cell) bool

// everyCell is all of a matrix.
func everyCell(*matrix, cell) bool { return true }

// sampled returns a part that differs with the seed.
func sampled(seed uint64) part {
	return func(m *matrix, c cell) bool {
		return m.sample == nil || c.hash(seed)%m.sample(m.values(c)) == 0
	}
}

// oneOf returns the part of this number, of so many parts of equal size. Together they have every
// cell.
func oneOf(parts, number int, seed uint64) part {
	return func(_ *matrix, c cell) bool { return c.hash(seed)%uint64(parts) == uint64(number) }
}

// cell is one combination: a value for each axis.
type cell []string

func (c cell) hash(seed uint64) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, seed, c)
	return h.Sum64()
}

func (m *matrix) cells() []cell {
	var box [][]string
	for _, a := range m.axes {
		box = append(box, a.values)
	}
	return combinations(box)
}

// combinations returns all combinations of some values of each axis.
func combinations(box [][]string) []cell {
	all := []cell{nil}
	for _, values := range box {
		var longer []cell
		for _, c := range all {
			for _, v := range values {
				longer = append(longer, append(slices.Clone(c), v))
			}
		}
		all = longer
	}
	return all
}

// refused reports whether upstream rejects such a list as malformed.
func refused(values map[string]string) bool {
	match, v, token := values["resourceVersionMatch"], values["resourceVersion"], values["continue"]
	return values["limit"] == "garbage" || values["sendInitialEvents"] != "unset" || match == "garbage" ||
		match != "unset" && (v == "unset" || token != "unset") || token != "unset" && v != "unset" && v != "0"
}

func (m *matrix) values(c cell) map[string]string {
	values := map[string]string{}
	for i, a := range m.axes {
		values[a.name] = c[i]
	}
	return values
}

// matrixObjects are the objects of one type in the matrices, and versions of their history.
type matrixObjects struct {
	collection string
	// An update, a deletion and a creation follow old. current is the version of the last of
	// them.
	old, current uint64
	// valid is upstream's continue token for the old version.
	valid          string
	there, deleted string
}

func (t *matrixObjects) version(name string) string {
	switch name {
	case "current":
		return fmt.Sprint(t.current)
	case "old":
		return fmt.Sprint(t.old)
	case "ancient":
		return "1"
	case "future":
		return fmt.Sprint(t.current + 1e9)
	case "garbage":
		return "abc"
	}
	return name
}

func askGet(t *matrixObjects, values map[string]string) api.Request {
	name := map[string]string{"there": t.there, "deleted": t.deleted, "never there": "nobody"}[values["object"]]
	var q api.Query
	q.Set("resourceVersion", t.version(values["resourceVersion"]))
	return q.On(t.collection + "/" + name)
}

func askList(t *matrixObjects, values map[string]string) api.Request {
	var q api.Query
	q.Set("resourceVersion", t.version(values["resourceVersion"]))
	q.Set("resourceVersionMatch", strings.Replace(values["resourceVersionMatch"], "garbage", "Foo", 1))
	q.Set("limit", strings.NewReplacer("huge", "1000000000000", "garbage", "abc").Replace(values["limit"]))
	switch c := values["continue"]; c {
	case "valid":
		q.Set("continue", t.valid)
	case "garbage":
		q.Set("continue", "garbage")
	case "expired", "inconsistent":
		valid, err := api.ParseContinueToken(t.valid)
		if err != nil {
			panic(err)
		}
		valid.RV = map[string]int64{"expired": 1, "inconsistent": -1}[c]
		q.Set("continue", valid.String())
	}
	q.Set("sendInitialEvents", values["sendInitialEvents"])
	return q.On(t.collection)
}

func askWatch(t *matrixObjects, values map[string]string) api.Request {
	q := api.Query{"watch=1"}
	q.Set("resourceVersion", t.version(values["resourceVersion"]))
	q.Set("resourceVersionMatch", strings.Replace(values["resourceVersionMatch"], "garbage", "Foo", 1))
	q.Set("sendInitialEvents", values["sendInitialEvents"])
	q.Set("allowWatchBookmarks", values["allowWatchBookmarks"])
	switch {
	case values["resourceVersion"] == "future" && values["sendInitialEvents"] != "unset":
		// Upstream waits three seconds for the version before it refuses.
		q.Set("timeoutSeconds", "5")
	case values["type"] == "events":
		// The history comes from etcd, which is slow for many requests at once.
		q.Set("timeoutSeconds", "4")
	default:
		q.Set("timeoutSeconds", "1")
	}
	return q.On(t.collection)
}

// outcome describes the answers to one cell in the words of the tables.
type outcome struct{ upstream, ours, source string }

func (o outcome) String() string { return o.upstream + " | " + o.ours + " | " + o.source }

// inShort describes an answer in a few words.
func inShort(r api.Request, t *matrixObjects, a api.Answer) string {
	if a.Status != 200 {
		var status metav1.Status
		if json.Unmarshal([]byte(a.Body), &status) != nil {
			return fmt.Sprint(a.Status)
		}
		words := strings.TrimSpace(fmt.Sprintf("%d %s", a.Status, status.Reason))
		var causes []string
		if status.Details != nil {
			for _, c := range status.Details.Causes {
				if cause := cmp.Or(c.Field, string(c.Type)); !slices.Contains(causes, cause) {
					causes = append(causes, cause)
				}
			}
		}
		if len(causes) > 0 {
			words += ": " + strings.Join(causes, ", ")
		} else if a.Status == 400 || a.Status == 500 {
			text, _, _ := strings.Cut(status.Message, ":")
			words += ": " + text
		}
		if status.Continue != "" {
			words += ", with a new token"
		}
		return words
	}
	if r.IsWatch() {
		return watchInShort(a)
	}
	list, _, ok := api.ParseList("application/json", a.Body)
	if !ok {
		return "200, the object"
	}
	var items struct{ Items []json.RawMessage }
	json.Unmarshal([]byte(a.Body), &items)
	words := "200, all"
	switch {
	case list.Continue != "":
		words = fmt.Sprintf("200, page of %d", len(items.Items))
	case r.Values().Get("continue") != "":
		words = "200, the rest"
	}
	if api.ParseVersion(list.ResourceVersion) == t.old {
		words += ", at old"
	}
	return words
}

func watchInShort(a api.Answer) string {
	all, err := a.Frames()
	if err != nil {
		return "200, " + err.Error()
	}
	r, err := api.Record(all)
	if err != nil {
		return "200, " + err.Error()
	}
	words := "200, "
	added := 0
	for _, e := range r.Events {
		if e.Event == "ADDED" {
			added++
		}
		if e.Event == "ERROR" {
			var status struct{ Object metav1.Status }
			json.Unmarshal([]byte(e.Raw), &status)
			return fmt.Sprintf("200, ERROR %d %s", status.Object.Code, status.Object.Reason)
		}
	}
	switch {
	case len(r.Events) == 0:
		words += "silent"
	case added == len(r.Events) && added >= objectsPerType:
		words += "the state"
	default:
		words += "what came after"
	}
	if r.Ended {
		words += ", initial-events-end bookmark"
	}
	return words
}

// objectsPerType is the number of objects of each type at either version.
const objectsPerType = 5

// furnishMatrix creates the objects for the matrices.
func furnishMatrix(t *testing.T) map[string]*matrixObjects {
	t.Helper()
	ns := objects.Namespace(t)
	w := objects.NewWidget(t)
	w.Define(t, testbed.Upstream)
	w.AwaitServed(t, testbed.Proxied)
	here := "/api/v1/namespaces/" + ns
	own := "matrix-" + ns[strings.LastIndexByte(ns, '-')+1:] + "-"
	makers := map[string]struct {
		collection, prefix string
		body               func(name string) string
	}{
		"configmaps": {here + "/configmaps", "", func(name string) string { return api.JSON(objects.ConfigMap(name, "a", "<&>")) }},
		"namespaces": {"/api/v1/namespaces", own, func(name string) string { return fmt.Sprintf(`{"metadata":{"name":"%s"}}`, name) }},
		"events": {here + "/events", "", func(name string) string {
			return fmt.Sprintf(`{"metadata":{"name":"%s"},"type":"Normal","reason":"Test","message":"%s","involvedObject":{"kind":"Pod","namespace":"%s","name":"p"}}`, name, name, ns)
		}},
		"custom": {w.Path(ns, ""), "", func(name string) string { return w.Object(name, 3) }},
	}
	terrains := map[string]*matrixObjects{}
	for kind, m := range makers {
		g := &matrixObjects{collection: m.collection, there: m.prefix + "a", deleted: m.prefix + "c"}
		terrains[kind] = g
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			testbed.Upstream.Must(t, api.Request{Method: "POST", Path: g.collection, Body: m.body(m.prefix + name)})
		}
		// The proxy caches the type from here on.
		testbed.Proxied.Must(t, api.Request{Path: g.collection + "?resourceVersion=0"})
	}
	for kind, m := range makers {
		g := terrains[kind]
		list, _, _ := api.ParseList("application/json", testbed.Upstream.Must(t, api.Request{Path: g.collection}).Body)
		g.old = api.ParseVersion(list.ResourceVersion)
		testbed.Upstream.Must(t, api.Request{Method: "PATCH", Path: g.collection + "/" + m.prefix + "b", ContentType: api.MergePatch, Body: `{"metadata":{"labels":{"odd":"1"}}}`})
		if testbed.Upstream.Must(t, api.Request{Method: "DELETE", Path: g.collection + "/" + g.deleted}); kind == "namespaces" {
			finalize(t, g.deleted)
		}
		var last api.Object
		require.NoError(t, json.Unmarshal([]byte(testbed.Upstream.Must(t, api.Request{Method: "POST", Path: g.collection, Body: m.body(m.prefix + "f")}).Body), &last))
		g.current = last.Version()
		page, _, _ := api.ParseList("application/json", testbed.Upstream.Must(t, api.Request{Path: fmt.Sprintf("%s?limit=2&resourceVersion=%d", g.collection, g.old)}).Body)
		if g.valid = page.Continue; g.valid == "" {
			t.Fatalf("%s: upstream returns no token", kind)
		}
		compare.Settle(t, g.collection, g.current)
	}
	return terrains
}

// finalize ends the deletion of a namespace, which no controller does here.
func finalize(t *testing.T, name string) {
	t.Helper()
	client := api.Clientset(t, testbed.Upstream).CoreV1().Namespaces()
	ns := require.Value(client.Get(context.Background(), name, metav1.GetOptions{}))(t)
	ns.Spec.Finalizers = nil
	require.Value(client.Finalize(context.Background(), ns, metav1.UpdateOptions{}))(t)
}

// Matrix sends every combination of the options of gets, lists and watches to both sides. It
// does so for a built-in type, one without namespaces, events and a custom type. The short form
// takes a different sample each time.
func Matrix(t *testing.T) {
	chosen := sampled(random.Seed(t))
	if fullMatrix {
		chosen = everyCell
	}
	results := runMatrices(t, chosen)
	// The table describes one release.
	if !testbed.Direct && os.Getenv("REAL_BIN") == "" {
		holdTable(t, results)
	}
}

// MatrixBetween sends every combination in parts, each about objects of its own, and calls a
// function between parts. That may replace upstream.
func MatrixBetween(t *testing.T, parts int, between func()) {
	seed := random.Seed(t)
	for number := range parts {
		if number > 0 {
			between()
		}
		t.Run(fmt.Sprint("part-", number), func(t *testing.T) { runMatrices(t, oneOf(parts, number, seed)) })
	}
}

// runMatrices creates objects and sends the chosen cells of all matrices. Returns the outcomes.
func runMatrices(t *testing.T, chosen part) []map[string]outcome {
	terrains := furnishMatrix(t)
	results := make([]map[string]outcome, len(matrices))
	// A sample mostly waits for versions and deadlines, so the matrices run side by side.
	var running sync.WaitGroup
	for i, m := range matrices {
		if m.name == "Watch" && fullMatrix {
			running.Wait()
		}
		running.Go(func() { results[i] = m.run(t, chosen, terrains) })
	}
	running.Wait()
	return results
}

func (m *matrix) run(t *testing.T, chosen part, terrains map[string]*matrixObjects) map[string]outcome {
	began := time.Now()
	cells := slices.DeleteFunc(m.cells(), func(c cell) bool { return !chosen(m, c) })
	// Requests that make upstream wait come first, beside the rest.
	slices.SortStableFunc(cells, func(a, b cell) int { return waits(m.values(b)) - waits(m.values(a)) })
	outcomes := make([]outcome, len(cells))
	found := &compare.Findings{T: t}
	parallel.ForEach(64, cells, func(i int, c cell) {
		values := m.values(c)
		g := terrains[values["type"]]
		r := m.ask(g, values)
		v := compareOnceProven(r)
		found.Add(r, v)
		o := outcome{upstream: inShort(r, g, v.Want), ours: "the same", source: v.Got.Header.Get("X-Watershed-Source")}
		if v.Difference != "" {
			o.ours = inShort(r, g, v.Got)
		}
		outcomes[i] = o
	})
	found.Report()
	results := map[string]outcome{}
	for i, c := range cells {
		results[strings.Join(c, "|")] = outcomes[i]
	}
	t.Logf("%s: %d of %d cells in %v", m.name, len(cells), len(m.cells()), time.Since(began).Round(time.Millisecond))
	return results
}

// compareOnceProven compares the answers to a request. On a busy machine the proof that memory is
// new enough may be late. Upstream answers then, for some seconds, and the request is repeated.
func compareOnceProven(r api.Request) (v compare.Verdict) {
	for deadline := time.Now().Add(poll.Patience); ; time.Sleep(time.Second) {
		v = compare.Sides{Right: testbed.Upstream, Asked: testbed.Proxied}.CompareAtLeisure(r)
		source := v.Got.Header.Get("X-Watershed-Source")
		isLate := source == "forward; reason=unproven" || source == "coalesced"
		if v.Difference != "" || !isLate || time.Now().After(deadline) {
			return v
		}
	}
}

func waits(values map[string]string) int {
	if values["resourceVersion"] == "future" || values["type"] == "events" {
		return 1
	}
	return 0
}
