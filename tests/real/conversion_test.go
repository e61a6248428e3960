package real

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/conformance"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// converter is a webhook that converts herds between v1, with spec.heads in digits, and v2,
// with spec.amount as a number. It also labels each object with its version, as webhooks may.
type converter struct {
	*httptest.Server
	broken atomic.Bool
}

func newConverter(t *testing.T) *converter {
	c := &converter{}
	c.Server = httptest.NewTLSServer(http.HandlerFunc(c.answer))
	t.Cleanup(c.Close)
	return c
}

// conversion returns the webhook's place in a definition.
func (c *converter) conversion() string {
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate().Raw})
	return api.JSON(map[string]any{"strategy": "Webhook", "webhook": map[string]any{"conversionReviewVersions": []string{"v1"},
		"clientConfig": map[string]any{"url": c.URL + "/convert", "caBundle": authority}}})
}

func (c *converter) answer(w http.ResponseWriter, r *http.Request) {
	var review struct {
		APIVersion, Kind string
		Request          struct {
			UID, DesiredAPIVersion string
			Objects                []map[string]any
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || c.broken.Load() {
		http.Error(w, fmt.Sprintf("out of order (%v)", err), http.StatusInternalServerError)
		return
	}
	for _, o := range review.Request.Objects {
		convert(o, review.Request.DesiredAPIVersion)
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprint(w, api.JSON(map[string]any{"apiVersion": review.APIVersion, "kind": review.Kind, "response": map[string]any{
		"uid": review.Request.UID, "convertedObjects": review.Request.Objects, "result": map[string]any{"status": "Success"}}}))
}

func convert(herd map[string]any, to string) {
	herd["apiVersion"] = to
	_, version, _ := strings.Cut(to, "/")
	spec := herd["spec"].(map[string]any)
	if heads, has := spec["heads"].(string); has && version == "v2" {
		delete(spec, "heads")
		spec["amount"], _ = strconv.Atoi(heads)
	}
	if amount, has := spec["amount"].(float64); has && version == "v1" {
		delete(spec, "amount")
		spec["heads"] = fmt.Sprint(amount)
	}
	metadata := herd["metadata"].(map[string]any)
	if metadata["labels"] == nil {
		metadata["labels"] = map[string]any{}
	}
	metadata["labels"].(map[string]any)["form"] = version
}

func convertedHerd(t *testing.T, c *converter) herd {
	const schema = `"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{%s}}}}}`
	return herd{
		group:      testbed.Slug(t) + ".example.test",
		conversion: c.conversion(),
		versions: []string{
			`{"name":"v1","selectableFields":[{"jsonPath":".spec.heads"}],` + fmt.Sprintf(schema, `"heads":{"type":"string"}`) + `}`,
			`{"name":"v2","selectableFields":[{"jsonPath":".spec.amount"}],"additionalPrinterColumns":[{"name":"Amount","type":"integer","jsonPath":".spec.amount"}],` +
				fmt.Sprintf(schema, `"amount":{"type":"integer"}`) + `}`,
		},
	}
}

// TestConvertedVersionsMatchUpstream writes in one version, and reads and watches in the other.
// Answers equal upstream's, whichever version is stored.
func TestConvertedVersionsMatchUpstream(t *testing.T) {
	t.Parallel()
	ns := objects.Namespace(t)
	h := convertedHerd(t, newConverter(t))
	h.define(t, "v1", "v1", "v2")
	v1, v2 := h.at("v1"), h.at("v2")
	for _, stored := range []string{"v1", "v2"} {
		if stored == "v2" {
			h.store(t, ns, stored, "v1", "v2")
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
			testbed.Proxied.Must(t, api.Request{Method: "POST", Path: v1.Path(ns, ""), Body: h.object("v1", one, `{"heads":"3"}`)})
			testbed.Upstream.Must(t, api.Request{Method: "POST", Path: v2.Path(ns, ""), Body: h.object("v2", two, `{"amount":4}`)})
			testbed.Proxied.Must(t, api.Request{Method: "PATCH", Path: v2.Path(ns, one), ContentType: api.MergePatch, Body: `{"spec":{"amount":7}}`})
			testbed.Upstream.Must(t, api.Request{Method: "PATCH", Path: v1.Path(ns, two), ContentType: api.MergePatch, Body: `{"spec":{"heads":"7"}}`})
			testbed.Proxied.Must(t, api.Request{Method: "PATCH", Path: v2.Path(ns, one), ContentType: api.MergePatch, Body: `{"metadata":{"labels":{"mine":"1"}},"spec":{"amount":8}}`})
			for i, v := range []string{"v1", "v2"} {
				testbed.Proxied.Must(t, api.Request{Method: "POST", Path: h.at(v).Path(ns, ""), Body: h.object(v, "passing-"+v, `{}`)})
				testbed.Targets()[i].Must(t, api.Request{Method: "DELETE", Path: h.at(v).Path(ns, "") + "?labelSelector=form%3D" + v + ",!mine"})
			}
			testbed.Upstream.Must(t, api.Request{Method: "POST", Path: v1.Path(ns, ""), Body: h.object("v1", last, `{"heads":"1"}`)})
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
	c := newConverter(t)
	h := convertedHerd(t, c)
	v1, v2 := h.at("v1"), h.at("v2")
	list := api.Request{Path: v2.Path(ns, "") + "?resourceVersion=0"}

	// The webhook fails from the beginning, so v2 has never been converted.
	c.broken.Store(true)
	h.define(t, "v1", "v1")
	testbed.Upstream.Must(t, api.Request{Method: "POST", Path: v1.Path(ns, ""), Body: h.object("v1", "one", `{"heads":"3"}`)})
	refused := []api.Request{{Path: v2.Path(ns, "")}, {Path: v2.Path(ns, "") + "?limit=1"}, {Path: v2.Path(ns, "one")}}
	if statuses := compare.SameAnswers(t, refused); statuses[200]+statuses[404] > 0 {
		t.Errorf("upstream answers %v", statuses)
	}
	compare.SameAnswers(t, compare.Reads(t, v1.Path(ns, ""), "one"))
	c.broken.Store(false)
	awaitSame(t, api.Request{Path: v2.Path(ns, "one") + "?resourceVersion=0"})

	// The webhook fails later: nothing has changed since, and earlier conversions remain. An
	// upstream that reads past states from etcd would have to convert them again.
	known := compare.Reads(t, v2.Path(ns, ""), "one", "labelSelector=form%3Dv2")
	if !testbed.Upstream.WritesSlash() {
		known = slices.DeleteFunc(known, func(r api.Request) bool {
			return strings.Contains(r.Path, "=Exact") || strings.Contains(r.Path, "limit=1")
		})
	}
	watches := map[string]*api.Stream{}
	for _, to := range testbed.Targets() {
		watches[to.Name] = to.Watch(t, api.Request{Path: v2.Path(ns, "") + "?watch=1&resourceVersion=0"})
		watches[to.Name].Next(t)
	}
	c.broken.Store(true)
	compare.SameAnswers(t, known)

	// These changes cannot be converted.
	before := testbed.Proxied.Must(t, list)
	var two api.Object
	require.NoError(t, json.Unmarshal([]byte(testbed.Proxied.Must(t, api.Request{Method: "POST", Path: v1.Path(ns, ""), Body: h.object("v1", "two", `{"heads":"4"}`)}).Body), &two))
	testbed.Proxied.Must(t, api.Request{Method: "DELETE", Path: v1.Path(ns, "one")})
	refused = append(refused[:2], api.Request{Path: v2.Path(ns, "two")}, api.Request{Path: v2.Path(ns, "two") + "?resourceVersion=" + two.Metadata.ResourceVersion},
		api.Request{Method: "POST", Path: v2.Path(ns, "") + "?dryRun=All", Body: h.object("v2", "three", `{"amount":1}`)})
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
	c.broken.Store(false)
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
	awaitSame(t, list)
	compare.SameAnswers(t, compare.Reads(t, v2.Path(ns, ""), "two", "labelSelector=form%3Dv2"))
}
