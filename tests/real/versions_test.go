package real

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/conformance"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/testbed"
)

// herd is a custom type of one test with several served versions.
type herd struct {
	group string
	// conversion is the conversion in the definition's specification.
	conversion string
	// versions are those of the specification, without which of them is stored.
	versions []string
}

func (h herd) name() string { return "herds." + h.group }

func (h herd) at(version string) conformance.Resource {
	return conformance.Resource{Root: "/apis/" + h.group + "/" + version, Plural: "herds", Namespaced: true}
}

func (h herd) object(version, name, spec string) string {
	return fmt.Sprintf(`{"apiVersion":"%s/%s","kind":"Herd","metadata":{"name":"%s"},"spec":%s}`, h.group, version, name, spec)
}

// definition returns the definition with one version in storage.
func (h herd) definition(stored string) string {
	var versions []string
	for _, v := range h.versions {
		versions = append(versions, strings.Replace(v, "{", fmt.Sprintf(`{"served":true,"storage":%t,`, strings.Contains(v, `"name":"`+stored+`"`)), 1))
	}
	return fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%s"},
		"spec":{"group":"%s","scope":"Namespaced","names":{"plural":"herds","singular":"herd","kind":"Herd","listKind":"HerdList"},
		"conversion":%s,"versions":[%s]}}`, h.name(), h.group, h.conversion, strings.Join(versions, ","))
}

// define creates the type, and waits until both sides serve all of its versions and the proxy
// does so from memory.
func (h herd) define(t *testing.T, stored string, versions ...string) {
	t.Helper()
	testbed.Upstream.Must(t, api.Request{Method: "POST", Path: objects.CRDPath, Body: h.definition(stored)})
	t.Cleanup(func() { testbed.Upstream.Try(api.Request{Method: "DELETE", Path: objects.CRDPath + "/" + h.name()}) })
	for _, v := range versions {
		awaitSame(t, api.Request{Path: h.at(v).Path("", "") + "?resourceVersion=0"})
	}
}

// store changes the stored version. Open watches end: at upstream cleanly, and at the proxy,
// which lists again, with 410.
func (h herd) store(t *testing.T, ns, stored string, versions ...string) {
	t.Helper()
	var before []*api.Stream
	for _, to := range testbed.Targets() {
		for _, v := range versions {
			before = append(before, to.Watch(t, api.Request{Path: h.at(v).Path(ns, "") + "?watch=1"}))
		}
	}
	testbed.Proxied.Must(t, api.Request{Method: "PATCH", Path: objects.CRDPath + "/" + h.name(), ContentType: api.MergePatch, Body: h.definition(stored)})
	for _, watch := range before {
		events, err := watch.Rest(t)
		if err != nil || slices.ContainsFunc(events, func(e string) bool { return e != "ERROR " && !strings.HasPrefix(e, "ADDED ") }) {
			t.Errorf("a watch of before ends with %v after %v", err, events)
		}
	}
	// The proxy may list more than once, because it cannot know when upstream has adopted the
	// change.
	var calm sync.WaitGroup
	for _, v := range versions {
		calm.Go(func() {
			awaitSame(t, api.Request{Path: h.at(v).Path(ns, "") + "?watch=1&resourceVersion=0&timeoutSeconds=3"})
		})
	}
	calm.Wait()
}

// awaitSame waits until both sides give the same 200, the proxy from memory.
func awaitSame(t *testing.T, r api.Request) {
	t.Helper()
	deadline := time.Now().Add(poll.Patience)
	for {
		v := compare.Sides{Right: testbed.Upstream, Asked: testbed.Proxied}.Compare(r)
		if v.Difference == "" && v.Want.Status == 200 && (testbed.Direct || compare.FromMemory(v.Got)) {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%v: still %d, and from %q, after %v: %s", r, v.Want.Status, v.Got.Header.Get("X-Watershed-Source"), poll.Patience, v.Difference)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// plainHerd returns a type whose three versions differ in fields, selectors and printer
// columns.
func plainHerd(t *testing.T) herd {
	const schema = `"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{%s}}}}}`
	return herd{
		group:      testbed.Slug(t) + ".example.test",
		conversion: `{"strategy":"None"}`,
		versions: []string{
			`{"name":"v1","selectableFields":[{"jsonPath":".spec.count"}],` + fmt.Sprintf(schema, `"count":{"type":"integer"},"place":{"type":"string"}`) + `}`,
			`{"name":"v1beta2","deprecated":true,"selectableFields":[{"jsonPath":".spec.place"}],"additionalPrinterColumns":[{"name":"Place","type":"string","jsonPath":".spec.place"}],` +
				fmt.Sprintf(schema, `"place":{"type":"string","default":"meadow"}`) + `}`,
			`{"name":"v1alpha1","deprecated":true,"deprecationWarning":"herds are odd",` + fmt.Sprintf(schema, `"count":{"type":"integer"}`) + `}`,
		},
	}
}

// TestUnconvertedVersionsMatchUpstream reads and watches the versions of a custom type, which
// show different parts of the same objects. Answers equal upstream's, whichever version is
// written and whichever is stored.
func TestUnconvertedVersionsMatchUpstream(t *testing.T) {
	t.Parallel()
	ns := objects.Namespace(t)
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
		var watches []api.Request
		for _, v := range versions {
			for _, accept := range []string{"", api.MetadataJSON, api.MetadataProtobuf} {
				watches = append(watches, api.Request{Path: h.at(v).Path(ns, "") + "?watch=1&resourceVersion=0", Accept: accept})
			}
		}
		watches = append(watches, api.Request{Path: h.at("v1").Path(ns, "") + "?watch=1&resourceVersion=0&fieldSelector=spec.count!%3D3"},
			api.Request{Path: h.at("v1beta2").Path("", "") + "?watch=1&resourceVersion=0&fieldSelector=spec.place!%3Dvalley"})
		name := func(v string) string { return fmt.Sprintf("%s-%d", v, round) }
		events := compare.SameEvents(t, watches, func() string {
			for i, v := range versions {
				testbed.Targets()[i%2].Must(t, api.Request{Method: "POST", Path: h.at(v).Path(ns, ""), Body: h.object(v, name(v), `{"count":2,"place":"hill"}`)})
				other := h.at(versions[(i+1)%3]).Path(ns, name(v))
				testbed.Targets()[(i+1)%2].Must(t, api.Request{Method: "PATCH", Path: other, ContentType: api.MergePatch, Body: `{"metadata":{"labels":{"odd":"1"}},"spec":{"count":3,"place":"valley"}}`})
				testbed.Upstream.Must(t, api.Request{Method: "PATCH", Path: h.at("v1").Path(ns, name(v)), ContentType: api.MergePatch, Body: `{"spec":{"count":2}}`})
			}
			testbed.Proxied.Must(t, api.Request{Method: "DELETE", Path: h.at("v1alpha1").Path(ns, name("v1"))})
			testbed.Upstream.Must(t, api.Request{Method: "POST", Path: h.at("v1").Path(ns, ""), Body: h.object("v1", name("passing"), `{}`)})
			testbed.Proxied.Must(t, api.Request{Method: "DELETE", Path: h.at("v1beta2").Path(ns, "") + "?labelSelector=!odd"})
			testbed.Upstream.Must(t, api.Request{Method: "POST", Path: h.at("v1").Path(ns, ""), Body: h.object("v1", name("last"), `{"count":1}`)})
			return name("last")
		})
		t.Logf("%s is stored: %d events", stored, events)
		for _, v := range versions {
			compare.SameAnswers(t, compare.Reads(t, h.at(v).Path(ns, ""), name("v1alpha1"), selectors[v]...))
		}
	}
}
