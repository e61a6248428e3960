package real

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/conformance"
	"watershed.test/real/internal/herds"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// TestConvertedVersionsMatchUpstream writes in one version, and reads and watches in the other.
// Answers equal upstream's, whichever version is stored.
func TestConvertedVersionsMatchUpstream(t *testing.T) {
	t.Parallel()
	ns := objects.Namespace(t)
	h := herds.Converted(t, herds.NewWebhook(t))
	h.Define(t, "v1", "v1", "v2")
	v1, v2 := h.At("v1"), h.At("v2")
	for _, stored := range []string{"v1", "v2"} {
		if stored == "v2" {
			h.Store(t, ns, stored, "v1", "v2")
		}
		var watches []api.Request
		for _, v := range []conformance.Resource{v1, v2} {
			for _, accept := range []string{"", api.MetadataJSON, api.MetadataProtobuf} {
				watches = append(watches, api.Request{Path: v.Path(ns, "") + "?watch=1&resourceVersion=0", Accept: accept})
			}
			watches = append(watches, api.Request{Path: v.Path("", "") + "?watch=1&labelSelector=form!%3Dv0&resourceVersion=0"})
		}
		watches = append(watches, api.Request{Path: v1.Path(ns, "") + "?watch=1&resourceVersion=0&fieldSelector=spec.heads!%3D7"},
			api.Request{Path: v2.Path(ns, "") + "?watch=1&resourceVersion=0&fieldSelector=spec.amount!%3D7"})
		one, two, last := "one-"+stored, "two-"+stored, "last-"+stored
		events := compare.SameEvents(t, watches, func() string {
			testbed.Proxied.Must(t, api.Request{Method: "POST", Path: v1.Path(ns, ""), Body: h.Object("v1", one, `{"heads":"3"}`)})
			testbed.Upstream.Must(t, api.Request{Method: "POST", Path: v2.Path(ns, ""), Body: h.Object("v2", two, `{"amount":4}`)})
			testbed.Proxied.Must(t, api.Request{Method: "PATCH", Path: v2.Path(ns, one), ContentType: api.MergePatch, Body: `{"spec":{"amount":7}}`})
			testbed.Upstream.Must(t, api.Request{Method: "PATCH", Path: v1.Path(ns, two), ContentType: api.MergePatch, Body: `{"spec":{"heads":"7"}}`})
			testbed.Proxied.Must(t, api.Request{Method: "PATCH", Path: v2.Path(ns, one), ContentType: api.MergePatch, Body: `{"metadata":{"labels":{"mine":"1"}},"spec":{"amount":8}}`})
			for i, v := range []string{"v1", "v2"} {
				testbed.Proxied.Must(t, api.Request{Method: "POST", Path: h.At(v).Path(ns, ""), Body: h.Object(v, "passing-"+v, `{}`)})
				testbed.Targets()[i].Must(t, api.Request{Method: "DELETE", Path: h.At(v).Path(ns, "") + "?labelSelector=form%3D" + v + ",!mine"})
			}
			testbed.Upstream.Must(t, api.Request{Method: "POST", Path: v1.Path(ns, ""), Body: h.Object("v1", last, `{"heads":"1"}`)})
			return last
		})
		t.Logf("%s is stored: %d events", stored, events)
		compare.SameAnswers(t, compare.Reads(t, v1.Path(ns, ""), one, "labelSelector=form%3Dv1", "labelSelector=form%3Dv2", "fieldSelector=spec.heads%3D8", "fieldSelector=spec.amount%3D8"))
		compare.SameAnswers(t, compare.Reads(t, v2.Path(ns, ""), one, "labelSelector=form%3Dv1", "labelSelector=form%3Dv2", "fieldSelector=spec.amount%3D8"))
	}
}

// TestFailedConversionsAreRefusedLikeUpstream breaks the webhook. Upstream refuses what it
// cannot convert, and the proxy passes the refusal on. Reads of any version are answered from
// earlier conversions; upstream does so only until its cache gives up. No watch misses a late
// conversion.
func TestFailedConversionsAreRefusedLikeUpstream(t *testing.T) {
	t.Parallel()
	ns := objects.Namespace(t)
	c := herds.NewWebhook(t)
	h := herds.Converted(t, c)
	v1, v2 := h.At("v1"), h.At("v2")
	list := api.Request{Path: v2.Path(ns, "") + "?resourceVersion=0"}

	// The webhook fails from the beginning, so v2 has never been converted.
	c.Broken.Store(true)
	h.Define(t, "v1", "v1")
	testbed.Upstream.Must(t, api.Request{Method: "POST", Path: v1.Path(ns, ""), Body: h.Object("v1", "one", `{"heads":"3"}`)})
	refused := []api.Request{{Path: v2.Path(ns, "")}, {Path: v2.Path(ns, "") + "?limit=1"}, {Path: v2.Path(ns, "one")}}
	if statuses := compare.SameAnswers(t, refused); statuses[200]+statuses[404] > 0 {
		t.Errorf("upstream answers %v", statuses)
	}
	compare.SameAnswers(t, compare.Reads(t, v1.Path(ns, ""), "one"))
	c.Broken.Store(false)
	herds.AwaitSame(t, api.Request{Path: v2.Path(ns, "one") + "?resourceVersion=0"})

	// The webhook fails later: nothing has changed since, and earlier conversions remain. An
	// upstream that reads past states from etcd would have to convert them again.
	known := compare.Reads(t, v2.Path(ns, ""), "one", "labelSelector=form%3Dv2")
	if !require.Value(testbed.Upstream.WritesSlash())(t) {
		known = slices.DeleteFunc(known, func(r api.Request) bool {
			return strings.Contains(r.Path, "=Exact") || strings.Contains(r.Path, "limit=1")
		})
	}
	watches := map[string]*api.Stream{}
	for _, to := range testbed.Targets() {
		watches[to.Name] = to.Watch(t, api.Request{Path: v2.Path(ns, "") + "?watch=1&resourceVersion=0"})
		watches[to.Name].Next(t)
	}
	c.Broken.Store(true)
	compare.SameAnswers(t, known)

	// These changes cannot be converted.
	before := testbed.Proxied.Must(t, list)
	var two api.Object
	require.NoError(t, json.Unmarshal([]byte(testbed.Proxied.Must(t, api.Request{Method: "POST", Path: v1.Path(ns, ""), Body: h.Object("v1", "two", `{"heads":"4"}`)}).Body), &two))
	testbed.Proxied.Must(t, api.Request{Method: "DELETE", Path: v1.Path(ns, "one")})
	refused = append(refused[:2], api.Request{Path: v2.Path(ns, "two")}, api.Request{Path: v2.Path(ns, "two") + "?resourceVersion=" + two.Metadata.ResourceVersion},
		api.Request{Method: "POST", Path: v2.Path(ns, "") + "?dryRun=All", Body: h.Object("v2", "three", `{"amount":1}`)})
	if statuses := compare.SameAnswers(t, refused); statuses[200]+statuses[404] > 0 {
		t.Errorf("upstream answers %v", statuses)
	}
	compare.SameAnswers(t, compare.Reads(t, v1.Path(ns, ""), "two"))
	for _, to := range testbed.Targets() {
		if a := to.Send(t, list); a.Body != before.Body && (to.Name == "proxied" || a.Status != 429) {
			t.Errorf("%s: any version was\n%s\nand is\n%d %s", to.Name, before.Body, a.Status, a.Body)
		}
	}

	// The webhook works again.
	c.Broken.Store(false)
	seen := map[string][]string{}
	for _, to := range testbed.Targets() {
		for {
			// The channel yields nothing if the watch has ended.
			e := poll.Receive(t, "the watch continues", watches[to.Name].Events)
			if e.Type == "" || e.Object.Code == 410 {
				break
			}
			if seen[to.Name] = append(seen[to.Name], e.String()); e.Type == "DELETED" {
				break
			}
		}
		if s := strings.Join(seen[to.Name], ", "); s != "ADDED two, DELETED one" && s != "" {
			t.Errorf("%s: the watch continued with %s", to.Name, s)
		}
	}
	t.Logf("the watches continued with %v", seen)
	herds.AwaitSame(t, list)
	compare.SameAnswers(t, compare.Reads(t, v2.Path(ns, ""), "two", "labelSelector=form%3Dv2"))
}
