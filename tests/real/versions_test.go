package real

import (
	"fmt"
	"testing"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/herds"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/testbed"
)

// TestUnconvertedVersionsMatchUpstream reads and watches the versions of a custom type, which
// show different parts of the same objects. Answers equal upstream's, whichever version is
// written and whichever is stored.
func TestUnconvertedVersionsMatchUpstream(t *testing.T) {
	t.Parallel()
	ns := objects.Namespace(t)
	h := herds.Plain(t)
	versions := []string{"v1", "v1beta2", "v1alpha1"}
	h.Define(t, "v1beta2", versions...)
	selectors := map[string][]string{
		"v1":      {"fieldSelector=spec.count%3D2", "fieldSelector=spec.place%3Dhill"},
		"v1beta2": {"fieldSelector=spec.place%3Dhill", "fieldSelector=spec.place%3Dmeadow", "labelSelector=odd"},
	}
	for round, stored := range []string{"v1beta2", "v1"} {
		if round > 0 {
			h.Store(t, ns, stored, versions...)
		}
		var watches []api.Request
		for _, v := range versions {
			for _, accept := range []string{"", api.MetadataJSON, api.MetadataProtobuf} {
				watches = append(watches, api.Request{Path: h.At(v).Path(ns, "") + "?watch=1&resourceVersion=0", Accept: accept})
			}
		}
		watches = append(watches, api.Request{Path: h.At("v1").Path(ns, "") + "?watch=1&resourceVersion=0&fieldSelector=spec.count!%3D3"},
			api.Request{Path: h.At("v1beta2").Path("", "") + "?watch=1&resourceVersion=0&fieldSelector=spec.place!%3Dvalley"})
		name := func(v string) string { return fmt.Sprintf("%s-%d", v, round) }
		events := compare.SameEvents(t, watches, func() string {
			for i, v := range versions {
				testbed.Targets()[i%2].Must(t, api.Request{Method: "POST", Path: h.At(v).Path(ns, ""), Body: h.Object(v, name(v), `{"count":2,"place":"hill"}`)})
				other := h.At(versions[(i+1)%3]).Path(ns, name(v))
				testbed.Targets()[(i+1)%2].Must(t, api.Request{Method: "PATCH", Path: other, ContentType: api.MergePatch, Body: `{"metadata":{"labels":{"odd":"1"}},"spec":{"count":3,"place":"valley"}}`})
				testbed.Upstream.Must(t, api.Request{Method: "PATCH", Path: h.At("v1").Path(ns, name(v)), ContentType: api.MergePatch, Body: `{"spec":{"count":2}}`})
			}
			testbed.Proxied.Must(t, api.Request{Method: "DELETE", Path: h.At("v1alpha1").Path(ns, name("v1"))})
			testbed.Upstream.Must(t, api.Request{Method: "POST", Path: h.At("v1").Path(ns, ""), Body: h.Object("v1", name("passing"), `{}`)})
			testbed.Proxied.Must(t, api.Request{Method: "DELETE", Path: h.At("v1beta2").Path(ns, "") + "?labelSelector=!odd"})
			testbed.Upstream.Must(t, api.Request{Method: "POST", Path: h.At("v1").Path(ns, ""), Body: h.Object("v1", name("last"), `{"count":1}`)})
			return name("last")
		})
		t.Logf("%s is stored: %d events", stored, events)
		for _, v := range versions {
			compare.SameAnswers(t, compare.Reads(t, h.At(v).Path(ns, ""), name("v1alpha1"), selectors[v]...))
		}
	}
}
