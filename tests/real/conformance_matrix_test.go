package real

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// conformanceFull asks for every cell of the matrices, not for a sample.
var conformanceFull = os.Getenv("CONFORMANCE_FULL") != "" || conformanceWrite

// conformanceWrite has the tables of docs/conformance.md written anew.
var conformanceWrite = os.Getenv("CONFORMANCE_WRITE") != ""

// axis is one option of a request and the values that are tried.
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

// matrices are all combinations of the options of each kind of read.
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
	ask  func(*terrain, map[string]string) request
	// sample is of how many cells the short form takes one.
	sample func(map[string]string) uint64
}

// cell is one combination: a value for each axis.
type cell []string

func (m *matrix) cells() []cell {
	var box [][]string
	for _, a := range m.axes {
		box = append(box, a.values)
	}
	return boxed(box)
}

// boxed is all combinations of some values of each axis.
func boxed(box [][]string) []cell {
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

// refused says that upstream takes such a list for malformed.
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

// terrain is the objects of one type that the matrices are about, and versions
// of its history.
type terrain struct {
	collection string
	// old is followed by an update, a deletion and a creation; current is that
	// of the last of them.
	old, current uint64
	// valid is a continue token of upstream's for the old version.
	valid          string
	there, deleted string
}

func (t *terrain) version(name string) string {
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

// query puts options together, in the order they are given.
type query []string

func (q *query) set(name, value string) {
	if value != "unset" {
		*q = append(*q, name+"="+url.QueryEscape(value))
	}
}

func (q query) on(path string) request {
	if len(q) > 0 {
		path += "?" + strings.Join(q, "&")
	}
	return request{path: path}
}

func askGet(t *terrain, values map[string]string) request {
	name := map[string]string{"there": t.there, "deleted": t.deleted, "never there": "nobody"}[values["object"]]
	var q query
	q.set("resourceVersion", t.version(values["resourceVersion"]))
	return q.on(t.collection + "/" + name)
}

func askList(t *terrain, values map[string]string) request {
	var q query
	q.set("resourceVersion", t.version(values["resourceVersion"]))
	q.set("resourceVersionMatch", strings.Replace(values["resourceVersionMatch"], "garbage", "Foo", 1))
	q.set("limit", strings.NewReplacer("huge", "1000000000000", "garbage", "abc").Replace(values["limit"]))
	switch c := values["continue"]; c {
	case "valid":
		q.set("continue", t.valid)
	case "garbage":
		q.set("continue", "garbage")
	case "expired", "inconsistent":
		valid, err := parseToken(t.valid)
		if err != nil {
			panic(err)
		}
		valid.RV = map[string]int64{"expired": 1, "inconsistent": -1}[c]
		q.set("continue", valid.String())
	}
	q.set("sendInitialEvents", values["sendInitialEvents"])
	return q.on(t.collection)
}

func askWatch(t *terrain, values map[string]string) request {
	q := query{"watch=1"}
	q.set("resourceVersion", t.version(values["resourceVersion"]))
	q.set("resourceVersionMatch", strings.Replace(values["resourceVersionMatch"], "garbage", "Foo", 1))
	q.set("sendInitialEvents", values["sendInitialEvents"])
	q.set("allowWatchBookmarks", values["allowWatchBookmarks"])
	switch {
	case values["resourceVersion"] == "future" && values["sendInitialEvents"] != "unset":
		// Upstream waits three seconds for the version, and says so then.
		q.set("timeoutSeconds", "5")
	case values["type"] == "events":
		// The history comes from etcd, which takes its time for many at once.
		q.set("timeoutSeconds", "4")
	default:
		q.set("timeoutSeconds", "1")
	}
	return q.on(t.collection)
}

// outcome is how one cell was answered, in the words of the tables.
type outcome struct{ upstream, ours, source string }

func (o outcome) String() string { return o.upstream + " | " + o.ours + " | " + o.source }

// inShort is an answer in a few words.
func inShort(r request, t *terrain, a answer) string {
	if a.status != 200 {
		var status metav1.Status
		if json.Unmarshal([]byte(a.body), &status) != nil {
			return fmt.Sprint(a.status)
		}
		words := strings.TrimSpace(fmt.Sprintf("%d %s", a.status, status.Reason))
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
		} else if a.status == 400 || a.status == 500 {
			text, _, _ := strings.Cut(status.Message, ":")
			words += ": " + text
		}
		if status.Continue != "" {
			words += ", with a new token"
		}
		return words
	}
	if r.isWatch() {
		return watchInShort(a)
	}
	list, _, ok := dissect("application/json", a.body)
	if !ok {
		return "200, the object"
	}
	var items struct{ Items []json.RawMessage }
	json.Unmarshal([]byte(a.body), &items)
	words := "200, all"
	switch {
	case list.Continue != "":
		words = fmt.Sprintf("200, page of %d", len(items.Items))
	case r.query().Get("continue") != "":
		words = "200, the rest"
	}
	if version(list.ResourceVersion) == t.old {
		words += ", at old"
	}
	return words
}

func watchInShort(a answer) string {
	all, err := a.frames()
	if err != nil {
		return "200, " + err.Error()
	}
	r, err := record(all)
	if err != nil {
		return "200, " + err.Error()
	}
	words := "200, "
	added := 0
	for _, e := range r.events {
		if e.event == "ADDED" {
			added++
		}
		if e.event == "ERROR" {
			var status struct{ Object metav1.Status }
			json.Unmarshal([]byte(e.raw), &status)
			return fmt.Sprintf("200, ERROR %d %s", status.Object.Code, status.Object.Reason)
		}
	}
	switch {
	case len(r.events) == 0:
		words += "silent"
	case added == len(r.events) && added >= objects:
		words += "the state"
	default:
		words += "what came after"
	}
	if r.ended {
		words += ", end mark"
	}
	return words
}

// objects is how many of each type there are at either version.
const objects = 5

// furnishMatrix makes what the matrices are about.
func furnishMatrix(t *testing.T) map[string]*terrain {
	t.Helper()
	ns := namespace(t)
	w := newWidget(t)
	w.define(t, upstream)
	w.awaitServed(t, proxied)
	here := "/api/v1/namespaces/" + ns
	own := "matrix-" + ns[strings.LastIndexByte(ns, '-')+1:] + "-"
	makers := map[string]struct {
		collection, prefix string
		body               func(name string) string
	}{
		"configmaps": {here + "/configmaps", "", func(name string) string { return asJSON(configMap(name, "a", "<&>")) }},
		"namespaces": {"/api/v1/namespaces", own, func(name string) string { return fmt.Sprintf(`{"metadata":{"name":"%s"}}`, name) }},
		"events": {here + "/events", "", func(name string) string {
			return fmt.Sprintf(`{"metadata":{"name":"%s"},"type":"Normal","reason":"Test","message":"%s","involvedObject":{"kind":"Pod","namespace":"%s","name":"p"}}`, name, name, ns)
		}},
		"custom": {w.path(ns, ""), "", func(name string) string { return w.object(name, 3) }},
	}
	terrains := map[string]*terrain{}
	for kind, m := range makers {
		g := &terrain{collection: m.collection, there: m.prefix + "a", deleted: m.prefix + "c"}
		terrains[kind] = g
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			upstream.ok(t, request{method: "POST", path: g.collection, body: m.body(m.prefix + name)})
		}
		// The proxy has the type from here on.
		proxied.ok(t, request{path: g.collection + "?resourceVersion=0"})
	}
	for kind, m := range makers {
		g := terrains[kind]
		list, _, _ := dissect("application/json", upstream.ok(t, request{path: g.collection}).body)
		g.old = version(list.ResourceVersion)
		upstream.ok(t, request{method: "PATCH", path: g.collection + "/" + m.prefix + "b", contentType: mergePatch, body: `{"metadata":{"labels":{"odd":"1"}}}`})
		if upstream.ok(t, request{method: "DELETE", path: g.collection + "/" + g.deleted}); kind == "namespaces" {
			finalize(t, g.deleted)
		}
		var last parsedObject
		check(t, json.Unmarshal([]byte(upstream.ok(t, request{method: "POST", path: g.collection, body: m.body(m.prefix + "f")}).body), &last))
		g.current = last.version()
		page, _, _ := dissect("application/json", upstream.ok(t, request{path: fmt.Sprintf("%s?limit=2&resourceVersion=%d", g.collection, g.old)}).body)
		if g.valid = page.Continue; g.valid == "" {
			t.Fatalf("%s: upstream gives no token", kind)
		}
		settle(t, g.collection, g.current)
	}
	return terrains
}

// finalize ends a namespace that is being deleted; nobody else does.
func finalize(t *testing.T, name string) {
	t.Helper()
	client := kubeClient(t, upstream).CoreV1().Namespaces()
	ns := must(client.Get(context.Background(), name, metav1.GetOptions{}))(t)
	ns.Spec.Finalizers = nil
	must(client.Finalize(context.Background(), ns, metav1.UpdateOptions{}))(t)
}

// settle waits until both sides' memory has come to a version, in each encoding
// that the type has.
func settle(t *testing.T, collection string, version uint64) {
	t.Helper()
	for _, to := range targets() {
		for _, accept := range []string{"", protobufType} {
			eventually(t, fmt.Sprintf("%s has %s of %d as %q", to.name, collection, version, accept), func() error {
				a, err := to.try(request{path: fmt.Sprintf("%s?resourceVersionMatch=NotOlderThan&resourceVersion=%d", collection, version), accept: accept})
				if err == nil && (a.status != 200 && a.status != 406 || strings.Contains(a.header.Get("X-Watershed-Source"), "version-ahead")) {
					err = fmt.Errorf("%d from %s", a.status, a.header.Get("X-Watershed-Source"))
				}
				return err
			})
		}
	}
}

// workers send requests at the same time; most of the time of some is waiting.
func workers[T any](n int, all []T, do func(int, T)) {
	next := make(chan int)
	var running sync.WaitGroup
	for range n {
		running.Go(func() {
			for i := range next {
				do(i, all[i])
			}
		})
	}
	for i := range all {
		next <- i
	}
	close(next)
	running.Wait()
}

// conformanceMatrix sends every combination of the options of gets, lists
// and watches both ways, for a built-in type, one without namespaces, events and
// a custom type. The short form takes a sample, another one each time.
func conformanceMatrix(t *testing.T) {
	seed := seeded(t)
	terrains := furnishMatrix(t)
	results := make([]map[string]outcome, len(matrices))
	// Most of the time of a sample is waiting for versions and deadlines.
	var running sync.WaitGroup
	for i, m := range matrices {
		if m.name == "Watch" && conformanceFull {
			running.Wait()
		}
		running.Go(func() { results[i] = m.run(t, seed, terrains) })
	}
	running.Wait()
	// The table is of one release.
	if !direct && os.Getenv("REAL_BIN") == "" {
		holdTable(t, results)
	}
}

func (m *matrix) run(t *testing.T, seed uint64, terrains map[string]*terrain) map[string]outcome {
	began := time.Now()
	cells := m.cells()
	if m.sample != nil && !conformanceFull {
		cells = slices.DeleteFunc(cells, func(c cell) bool {
			h := fnv.New64a()
			fmt.Fprint(h, seed, c)
			return h.Sum64()%m.sample(m.values(c)) != 0
		})
	}
	// What makes upstream wait comes first, beside the rest.
	slices.SortStableFunc(cells, func(a, b cell) int { return waits(m.values(b)) - waits(m.values(a)) })
	outcomes := make([]outcome, len(cells))
	found := &findings{t: t}
	workers(64, cells, func(i int, c cell) {
		values := m.values(c)
		g := terrains[values["type"]]
		r := m.ask(g, values)
		v := sides{upstream, proxied}.compareAtLeisure(r)
		found.note(r, v)
		o := outcome{upstream: inShort(r, g, v.want), ours: "the same", source: v.got.header.Get("X-Watershed-Source")}
		if v.difference != "" {
			o.ours = inShort(r, g, v.got)
		}
		outcomes[i] = o
	})
	found.report()
	results := map[string]outcome{}
	for i, c := range cells {
		results[strings.Join(c, "|")] = outcomes[i]
	}
	t.Logf("%s: %d of %d cells in %v", m.name, len(cells), len(m.cells()), time.Since(began).Round(time.Millisecond))
	return results
}

func waits(values map[string]string) int {
	if values["resourceVersion"] == "future" || values["type"] == "events" {
		return 1
	}
	return 0
}
