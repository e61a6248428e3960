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
)

// converter is a webhook that converts herds between v1, which has a spec.heads
// in digits, and v2, which has a spec.amount in numbers. It also labels what it
// converted with the version it is in, as webhooks may.
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

// conversion is how a definition names it.
func (c *converter) conversion() string {
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate().Raw})
	return asJSON(map[string]any{"strategy": "Webhook", "webhook": map[string]any{"conversionReviewVersions": []string{"v1"},
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
	fmt.Fprint(w, asJSON(map[string]any{"apiVersion": review.APIVersion, "kind": review.Kind, "response": map[string]any{
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
		group:      slug(t) + ".example.test",
		conversion: c.conversion(),
		versions: []string{
			`{"name":"v1","selectableFields":[{"jsonPath":".spec.heads"}],` + fmt.Sprintf(schema, `"heads":{"type":"string"}`) + `}`,
			`{"name":"v2","selectableFields":[{"jsonPath":".spec.amount"}],"additionalPrinterColumns":[{"name":"Amount","type":"integer","jsonPath":".spec.amount"}],` +
				fmt.Sprintf(schema, `"amount":{"type":"integer"}`) + `}`,
		},
	}
}

// TestVersionsWithConversion: what is written in one version is read and watched
// in the other as upstream converts it, whichever is stored.
func TestVersionsWithConversion(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	h := convertedHerd(t, newConverter(t))
	h.define(t, "v1", "v1", "v2")
	v1, v2 := h.at("v1"), h.at("v2")
	for _, stored := range []string{"v1", "v2"} {
		if stored == "v2" {
			h.store(t, ns, stored, "v1", "v2")
		}
		var watches []request
		for _, v := range []sort{v1, v2} {
			for _, accept := range []string{"", metadataOnly, metadataWire} {
				watches = append(watches, request{path: v.path(ns, "") + "?watch=1&resourceVersion=0", accept: accept})
			}
			watches = append(watches, request{path: v.path("", "") + "?watch=1&labelSelector=form!%3Dv0&resourceVersion=0"})
		}
		watches = append(watches, request{path: v1.path(ns, "") + "?watch=1&resourceVersion=0&fieldSelector=spec.heads!%3D7"},
			request{path: v2.path(ns, "") + "?watch=1&resourceVersion=0&fieldSelector=spec.amount!%3D7"})
		one, two, last := "one-"+stored, "two-"+stored, "last-"+stored
		events := sameEvents(t, watches, func() string {
			proxied.ok(t, request{method: "POST", path: v1.path(ns, ""), body: h.object("v1", one, `{"heads":"3"}`)})
			upstream.ok(t, request{method: "POST", path: v2.path(ns, ""), body: h.object("v2", two, `{"amount":4}`)})
			proxied.ok(t, request{method: "PATCH", path: v2.path(ns, one), contentType: mergePatch, body: `{"spec":{"amount":7}}`})
			upstream.ok(t, request{method: "PATCH", path: v1.path(ns, two), contentType: mergePatch, body: `{"spec":{"heads":"7"}}`})
			proxied.ok(t, request{method: "PATCH", path: v2.path(ns, one), contentType: mergePatch, body: `{"metadata":{"labels":{"mine":"1"}},"spec":{"amount":8}}`})
			for i, v := range []string{"v1", "v2"} {
				proxied.ok(t, request{method: "POST", path: h.at(v).path(ns, ""), body: h.object(v, "passing-"+v, `{}`)})
				targets()[i].ok(t, request{method: "DELETE", path: h.at(v).path(ns, "") + "?labelSelector=form%3D" + v + ",!mine"})
			}
			upstream.ok(t, request{method: "POST", path: v1.path(ns, ""), body: h.object("v1", last, `{"heads":"1"}`)})
			return last
		})
		t.Logf("%s is stored: %d events", stored, events)
		sameAnswers(t, reads(t, v1.path(ns, ""), one, "labelSelector=form%3Dv1", "labelSelector=form%3Dv2", "fieldSelector=spec.heads%3D8", "fieldSelector=spec.amount%3D8"))
		sameAnswers(t, reads(t, v2.path(ns, ""), one, "labelSelector=form%3Dv1", "labelSelector=form%3Dv2", "fieldSelector=spec.amount%3D8"))
	}
}

// TestConversionFails: what upstream cannot convert it refuses, and so it does
// through the proxy. A read of any version is answered from what was converted
// before; upstream does the same until its cache has given up, and the proxy goes
// on with it. No watch misses what could not be converted at first.
func TestConversionFails(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	c := newConverter(t)
	h := convertedHerd(t, c)
	v1, v2 := h.at("v1"), h.at("v2")
	list := request{path: v2.path(ns, "") + "?resourceVersion=0"}

	// It fails from the beginning: nothing is known of v2.
	c.broken.Store(true)
	h.define(t, "v1", "v1")
	upstream.ok(t, request{method: "POST", path: v1.path(ns, ""), body: h.object("v1", "one", `{"heads":"3"}`)})
	refused := []request{{path: v2.path(ns, "")}, {path: v2.path(ns, "") + "?limit=1"}, {path: v2.path(ns, "one")}}
	if statuses := sameAnswers(t, refused); statuses[200]+statuses[404] > 0 {
		t.Errorf("upstream answers %v", statuses)
	}
	sameAnswers(t, reads(t, v1.path(ns, ""), "one"))
	c.broken.Store(false)
	awaitSame(t, request{path: v2.path(ns, "one") + "?resourceVersion=0"})

	// It fails later: nothing has changed, and what was converted is there. An
	// upstream that takes states of the past from etcd would have to convert those.
	known := reads(t, v2.path(ns, ""), "one", "labelSelector=form%3Dv2")
	if !upstream.writesSlash() {
		known = slices.DeleteFunc(known, func(r request) bool {
			return strings.Contains(r.path, "=Exact") || strings.Contains(r.path, "limit=1")
		})
	}
	watches := map[string]*stream{}
	for _, to := range targets() {
		watches[to.name] = to.watch(t, request{path: v2.path(ns, "") + "?watch=1&resourceVersion=0"})
		watches[to.name].next(t)
	}
	c.broken.Store(true)
	sameAnswers(t, known)

	// Changes that cannot be converted.
	before := proxied.ok(t, list)
	var two parsedObject
	check(t, json.Unmarshal([]byte(proxied.ok(t, request{method: "POST", path: v1.path(ns, ""), body: h.object("v1", "two", `{"heads":"4"}`)}).body), &two))
	proxied.ok(t, request{method: "DELETE", path: v1.path(ns, "one")})
	refused = append(refused[:2], request{path: v2.path(ns, "two")}, request{path: v2.path(ns, "two") + "?resourceVersion=" + two.Metadata.ResourceVersion},
		request{method: "POST", path: v2.path(ns, "") + "?dryRun=All", body: h.object("v2", "three", `{"amount":1}`)})
	if statuses := sameAnswers(t, refused); statuses[200]+statuses[404] > 0 {
		t.Errorf("upstream answers %v", statuses)
	}
	sameAnswers(t, reads(t, v1.path(ns, ""), "two"))
	for _, to := range targets() {
		if a := to.send(t, list); a.body != before.body && (to.name == "proxied" || a.status != 429) {
			t.Errorf("%s: any version was\n%s\nand is\n%d %s", to.name, before.body, a.status, a.body)
		}
	}

	// And it is back.
	c.broken.Store(false)
	seen := map[string][]string{}
	for _, to := range targets() {
		for {
			// Nothing, if the watch has ended.
			e := within(t, "what the watch goes on with", watches[to.name].events)
			if e.Type == "" || e.Object.Code == 410 {
				break
			}
			if seen[to.name] = append(seen[to.name], e.String()); e.Type == "DELETED" {
				break
			}
		}
		if s := strings.Join(seen[to.name], ", "); s != "ADDED two, DELETED one" && s != "" {
			t.Errorf("%s: the watch went on with %s", to.name, s)
		}
	}
	t.Logf("the watches went on with %v", seen)
	awaitSame(t, list)
	sameAnswers(t, reads(t, v2.path(ns, ""), "two", "labelSelector=form%3Dv2"))
}
