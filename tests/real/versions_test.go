package real

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// herd is a custom type of one test's own with several served versions.
type herd struct {
	group string
	// conversion is that of the definition's specification.
	conversion string
	// versions are those of the specification, but for which of them is stored.
	versions []string
}

func (h herd) name() string { return "herds." + h.group }

func (h herd) at(version string) sort {
	return sort{root: "/apis/" + h.group + "/" + version, plural: "herds", namespaced: true}
}

func (h herd) object(version, name, spec string) string {
	return fmt.Sprintf(`{"apiVersion":"%s/%s","kind":"Herd","metadata":{"name":"%s"},"spec":%s}`, h.group, version, name, spec)
}

// definition is the type's, with one version in storage.
func (h herd) definition(stored string) string {
	var versions []string
	for _, v := range h.versions {
		versions = append(versions, strings.Replace(v, "{", fmt.Sprintf(`{"served":true,"storage":%t,`, strings.Contains(v, `"name":"`+stored+`"`)), 1))
	}
	return fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%s"},
		"spec":{"group":"%s","scope":"Namespaced","names":{"plural":"herds","singular":"herd","kind":"Herd","listKind":"HerdList"},
		"conversion":%s,"versions":[%s]}}`, h.name(), h.group, h.conversion, strings.Join(versions, ","))
}

// define creates the type and waits until both sides serve all of its versions,
// the proxy from memory.
func (h herd) define(t *testing.T, stored string, versions ...string) {
	t.Helper()
	upstream.ok(t, request{method: "POST", path: definitions, body: h.definition(stored)})
	t.Cleanup(func() { upstream.try(request{method: "DELETE", path: definitions + "/" + h.name()}) })
	for _, v := range versions {
		awaitSame(t, request{path: h.at(v).path("", "") + "?resourceVersion=0"})
	}
}

// store has another version stored from now on. Watches of before end then: at
// upstream cleanly, and at the proxy, which lists again, with 410.
func (h herd) store(t *testing.T, ns, stored string, versions ...string) {
	t.Helper()
	var before []*stream
	for _, to := range targets() {
		for _, v := range versions {
			before = append(before, to.watch(t, request{path: h.at(v).path(ns, "") + "?watch=1"}))
		}
	}
	proxied.ok(t, request{method: "PATCH", path: definitions + "/" + h.name(), contentType: mergePatch, body: h.definition(stored)})
	for _, watch := range before {
		events, err := watch.rest(t)
		if err != nil || slices.ContainsFunc(events, func(e string) bool { return e != "ERROR " && !strings.HasPrefix(e, "ADDED ") }) {
			t.Errorf("a watch of before ends with %v after %v", err, events)
		}
	}
	// It may list more than once, as it cannot know when upstream has taken up the change.
	var calm sync.WaitGroup
	for _, v := range versions {
		calm.Go(func() {
			awaitSame(t, request{path: h.at(v).path(ns, "") + "?watch=1&resourceVersion=0&timeoutSeconds=3"})
		})
	}
	calm.Wait()
}

// awaitSame waits until both sides have one answer of 200, the proxy from memory.
func awaitSame(t *testing.T, r request) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		v := sides{upstream, proxied}.compare(r)
		if v.difference == "" && v.want.status == 200 && (direct || fromMemory(v.got)) {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%v: still %d, and from %q, after %v: %s", r, v.want.status, v.got.header.Get("X-Watershed-Source"), patience, v.difference)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// plainHerd has three versions that differ in what they know of an object, and
// in what it can be selected and printed by.
func plainHerd(t *testing.T) herd {
	const schema = `"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{%s}}}}}`
	return herd{
		group:      slug(t) + ".example.test",
		conversion: `{"strategy":"None"}`,
		versions: []string{
			`{"name":"v1","selectableFields":[{"jsonPath":".spec.count"}],` + fmt.Sprintf(schema, `"count":{"type":"integer"},"place":{"type":"string"}`) + `}`,
			`{"name":"v1beta2","deprecated":true,"selectableFields":[{"jsonPath":".spec.place"}],"additionalPrinterColumns":[{"name":"Place","type":"string","jsonPath":".spec.place"}],` +
				fmt.Sprintf(schema, `"place":{"type":"string","default":"meadow"}`) + `}`,
			`{"name":"v1alpha1","deprecated":true,"deprecationWarning":"herds are odd",` + fmt.Sprintf(schema, `"count":{"type":"integer"}`) + `}`,
		},
	}
}

// TestVersionsWithoutConversion: a custom type's versions differ in what they
// show of the same objects, and each is watched and read as upstream shows it,
// whichever is written and whichever is stored.
func TestVersionsWithoutConversion(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	h := plainHerd(t)
	versions := []string{"v1", "v1beta2", "v1alpha1"}
	h.define(t, "v1beta2", versions...)
	selectors := map[string][]string{
		"v1":      {"fieldSelector=spec.count%3D2", "fieldSelector=spec.place%3Dhill"},
		"v1beta2": {"fieldSelector=spec.place%3Dhill", "fieldSelector=spec.place%3Dmeadow", "labelSelector=odd"},
	}
	for round, stored := range []string{"v1beta2", "v1"} {
		if round > 0 {
			h.store(t, ns, stored, versions...)
		}
		var watches []request
		for _, v := range versions {
			for _, accept := range []string{"", metadataOnly, metadataWire} {
				watches = append(watches, request{path: h.at(v).path(ns, "") + "?watch=1&resourceVersion=0", accept: accept})
			}
		}
		watches = append(watches, request{path: h.at("v1").path(ns, "") + "?watch=1&resourceVersion=0&fieldSelector=spec.count!%3D3"},
			request{path: h.at("v1beta2").path("", "") + "?watch=1&resourceVersion=0&fieldSelector=spec.place!%3Dvalley"})
		name := func(v string) string { return fmt.Sprintf("%s-%d", v, round) }
		events := sameEvents(t, watches, func() string {
			for i, v := range versions {
				targets()[i%2].ok(t, request{method: "POST", path: h.at(v).path(ns, ""), body: h.object(v, name(v), `{"count":2,"place":"hill"}`)})
				other := h.at(versions[(i+1)%3]).path(ns, name(v))
				targets()[(i+1)%2].ok(t, request{method: "PATCH", path: other, contentType: mergePatch, body: `{"metadata":{"labels":{"odd":"1"}},"spec":{"count":3,"place":"valley"}}`})
				upstream.ok(t, request{method: "PATCH", path: h.at("v1").path(ns, name(v)), contentType: mergePatch, body: `{"spec":{"count":2}}`})
			}
			proxied.ok(t, request{method: "DELETE", path: h.at("v1alpha1").path(ns, name("v1"))})
			upstream.ok(t, request{method: "POST", path: h.at("v1").path(ns, ""), body: h.object("v1", name("passing"), `{}`)})
			proxied.ok(t, request{method: "DELETE", path: h.at("v1beta2").path(ns, "") + "?labelSelector=!odd"})
			upstream.ok(t, request{method: "POST", path: h.at("v1").path(ns, ""), body: h.object("v1", name("last"), `{"count":1}`)})
			return name("last")
		})
		t.Logf("%s is stored: %d events", stored, events)
		for _, v := range versions {
			sameAnswers(t, reads(t, h.at(v).path(ns, ""), name("v1alpha1"), selectors[v]...))
		}
	}
}
