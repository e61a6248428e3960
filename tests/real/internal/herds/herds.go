// Package herds defines custom types in several versions, with and without a webhook that
// converts them.
package herds

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

// Herd is a custom type of one test with several served versions.
type Herd struct {
	group string
	// conversion is the conversion in the definition's specification.
	conversion string
	// versions are those of the specification, without which of them is stored.
	versions []string
}

func (h Herd) name() string { return "herds." + h.group }

// At returns the type in one of its versions.
func (h Herd) At(version string) conformance.Resource {
	return conformance.Resource{Root: "/apis/" + h.group + "/" + version, Plural: "herds", Namespaced: true}
}

// Object returns an object in one version.
func (h Herd) Object(version, name, spec string) string {
	return fmt.Sprintf(`{"apiVersion":"%s/%s","kind":"Herd","metadata":{"name":"%s"},"spec":%s}`, h.group, version, name, spec)
}

// definition returns the definition with one version in storage.
func (h Herd) definition(stored string) string {
	var versions []string
	for _, v := range h.versions {
		versions = append(versions, strings.Replace(v, "{", fmt.Sprintf(`{"served":true,"storage":%t,`, strings.Contains(v, `"name":"`+stored+`"`)), 1))
	}
	return fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%s"},
		"spec":{"group":"%s","scope":"Namespaced","names":{"plural":"herds","singular":"herd","kind":"Herd","listKind":"HerdList"},
		"conversion":%s,"versions":[%s]}}`, h.name(), h.group, h.conversion, strings.Join(versions, ","))
}

// Define creates the type, and waits until both sides serve all of its versions and the proxy
// does so from memory.
func (h Herd) Define(t *testing.T, stored string, versions ...string) {
	t.Helper()
	testbed.Upstream.Must(t, api.Request{Method: "POST", Path: objects.CRDPath, Body: h.definition(stored)})
	t.Cleanup(func() { testbed.Upstream.Try(api.Request{Method: "DELETE", Path: objects.CRDPath + "/" + h.name()}) })
	for _, v := range versions {
		AwaitSame(t, api.Request{Path: h.At(v).Path("", "") + "?resourceVersion=0"})
	}
}

// Store changes the stored version. Open watches end without an error.
func (h Herd) Store(t *testing.T, ns, stored string, versions ...string) {
	t.Helper()
	var before []*api.Stream
	for _, to := range testbed.Targets() {
		for _, v := range versions {
			before = append(before, to.Watch(t, api.Request{Path: h.At(v).Path(ns, "") + "?watch=1"}))
		}
	}
	testbed.Proxied.Must(t, api.Request{Method: "PATCH", Path: objects.CRDPath + "/" + h.name(), ContentType: api.MergePatch, Body: h.definition(stored)})
	for _, watch := range before {
		events, err := watch.Rest(t)
		if err != nil || slices.ContainsFunc(events, func(e string) bool { return !strings.HasPrefix(e, "ADDED ") }) {
			t.Errorf("a watch of before ends with %v after %v", err, events)
		}
	}
	// The proxy may list more than once, because it cannot know when upstream has adopted the
	// change.
	var calm sync.WaitGroup
	for _, v := range versions {
		calm.Go(func() {
			AwaitSame(t, api.Request{Path: h.At(v).Path(ns, "") + "?watch=1&resourceVersion=0&timeoutSeconds=3"})
		})
	}
	calm.Wait()
}

// AwaitSame waits until both sides give the same 200, the proxy from memory.
func AwaitSame(t *testing.T, r api.Request) {
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

// Plain returns a type whose three versions differ in fields, selectors and printer
// columns.
func Plain(t *testing.T) Herd {
	const schema = `"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{%s}}}}}`
	return Herd{
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
