package real

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestEveryType reads each type that upstream names in discovery, and each
// subresource, in every way that it may or may not have: types without watch
// (componentstatuses), without list (bindings, reviews), with neither.
func TestEveryType(t *testing.T) {
	ns := namespace(t)
	upstream.ok(t, request{method: "POST", path: "/api/v1/namespaces/" + ns + "/pods", body: asJSON(pod("one", ""))})
	var requests []request
	add := func(path string, queries ...string) {
		for _, q := range queries {
			requests = append(requests, request{path: path + q})
		}
	}
	count := map[string]int{}
	for _, root := range servedVersions(t) {
		var list metav1.APIResourceList
		check(t, json.Unmarshal([]byte(upstream.ok(t, request{path: root}).body), &list))
		for _, r := range list.APIResources {
			path := root
			if r.Namespaced {
				path += "/namespaces/" + ns
			}
			plural, sub, isSub := strings.Cut(r.Name, "/")
			path += "/" + plural
			if isSub {
				name := map[string]string{"pods": "one", "namespaces": ns}[plural]
				if name == "" {
					name = "nobody"
				}
				path += "/" + name + "/" + sub
				if !strings.Contains("exec attach portforward proxy log", sub) {
					count["subresources"]++
					add(path, "", "?resourceVersion=0", "?watch=1&timeoutSeconds=1", "/more")
				}
				continue
			}
			for _, verb := range []string{"list", "watch"} {
				if !slices.Contains(r.Verbs, verb) {
					count["types without "+verb]++
				}
			}
			count["types"]++
			if plural == "componentstatuses" {
				// Upstream asks all of them at once, and lists them in the order in which they answer.
				add(path, "?labelSelector=a%3Db", "?fieldSelector=metadata.name%3Detcd-0", "?watch=1&timeoutSeconds=1", "?watch=1&resourceVersion=0")
				add(path+"/etcd-0", "", "?resourceVersion=0", "?watch=1")
				continue
			}
			add(path, "?watch=1&timeoutSeconds=1&resourceVersion=0", "?watch=1&timeoutSeconds=1&"+stateFirst, "", "?resourceVersion=0", "?resourceVersion=1&resourceVersionMatch=NotOlderThan", "?limit=1")
			add(path+"/nobody", "", "?resourceVersion=0", "?watch=1&timeoutSeconds=1")
			if r.Namespaced {
				add(root+"/"+plural, "?resourceVersion=0", "?watch=1&timeoutSeconds=1&resourceVersion=0")
				add(root+"/"+plural+"/nobody", "?resourceVersion=0")
			} else {
				add(root+"/namespaces/"+ns+"/"+plural, "?resourceVersion=0", "?watch=1&timeoutSeconds=1&resourceVersion=0")
			}
			for _, accept := range []string{protobufType, metadataList, metadataWireList} {
				requests = append(requests, request{path: path + "?resourceVersion=0", accept: accept})
			}
			requests = append(requests, request{path: path + "?watch=1&timeoutSeconds=1&resourceVersion=0", accept: protobufType})
		}
	}
	t.Logf("%v", count)
	if count["types"] < 50 || count["types without list"] < 5 || count["types without watch"] < 6 || count["subresources"] < 20 {
		t.Errorf("discovery tells of %v", count)
	}
	// Those that take their time come first.
	slices.SortStableFunc(requests, func(a, b request) int { return lasts(b) - lasts(a) })
	sameAnswers(t, requests)
}

// servedVersions is the path of each version of each group, but for those that
// another test's definitions made.
func servedVersions(t *testing.T) []string {
	t.Helper()
	roots := []string{"/api/v1"}
	var groups metav1.APIGroupList
	check(t, json.Unmarshal([]byte(upstream.ok(t, request{path: "/apis"}).body), &groups))
	for _, g := range groups.Groups {
		for _, v := range g.Versions {
			if !strings.HasSuffix(g.Name, ".test") {
				roots = append(roots, "/apis/"+v.GroupVersion)
			}
		}
	}
	return roots
}

// TestReviewsAndBindings: types and subresources that can only be created, by
// whom may and by whom may not.
func TestReviewsAndBindings(t *testing.T) {
	const authorization, authentication = "/apis/authorization.k8s.io/v1", "/apis/authentication.k8s.io/v1"
	ns := namespace(t)
	what := `"spec":{"resourceAttributes":{"verb":"get","resource":"pods","namespace":"` + ns + `"}}`
	var requests []request
	for path, body := range map[string]string{
		authorization + "/selfsubjectaccessreviews":                        `{` + what + `}`,
		authorization + "/subjectaccessreviews":                            `{` + strings.Replace(what, `{`, `{"user":"alice",`, 1) + `}`,
		authorization + "/namespaces/" + ns + "/localsubjectaccessreviews": `{` + strings.Replace(what, `{`, `{"user":"alice",`, 1) + `}`,
		authentication + "/selfsubjectreviews":                             `{}`,
		authentication + "/tokenreviews":                                   `{"spec":{"token":"` + shared.Tokens["bob"] + `"}}`,
		"/api/v1/namespaces/" + ns + "/serviceaccounts/nobody/token":       `{"spec":{"audiences":["a"]}}`,
		"/api/v1/namespaces/" + ns + "/bindings":                           `{"metadata":{"name":"nobody"},"target":{"kind":"Node","name":"n"}}`,
		"/api/v1/namespaces/" + ns + "/pods/nobody/binding":                `{"metadata":{"name":"nobody"},"target":{"kind":"Node","name":"n"}}`,
		"/api/v1/namespaces/" + ns + "/pods/nobody/eviction":               `{"metadata":{"name":"nobody"}}`,
		"/api/v1/namespaces/" + ns + "/finalize?dryRun=All":                `{"metadata":{"name":"` + ns + `"},"spec":{"finalizers":["kubernetes"]}}`,
		"/api/v1/namespaces/" + ns + "/configmaps/finalize":                `{}`,
		"/api/v1/componentstatuses":                                        `{}`,
	} {
		for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
			for _, user := range []string{"", "bob"} {
				requests = append(requests, request{method: method, path: path, body: body, user: user})
			}
		}
	}
	for status, n := range sameAnswers(t, requests) {
		t.Logf("%d: %d", status, n)
	}
}

// TestVersionsOfBuiltIns: what is written through one version of a built-in type
// is read and watched in the others.
func TestVersionsOfBuiltIns(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	v1 := sort{root: "/apis/autoscaling/v1", plural: "horizontalpodautoscalers"}
	v2 := sort{root: "/apis/autoscaling/v2", plural: "horizontalpodautoscalers"}
	const scaled = `"scaleTargetRef":{"kind":"Deployment","name":"d","apiVersion":"apps/v1"},"maxReplicas":3`
	var watches []request
	for _, v := range []sort{v1, v2} {
		proxied.ok(t, request{path: v.path("", "") + "?resourceVersion=0"})
		for _, accept := range []string{"", protobufType, metadataOnly, metadataWire} {
			watches = append(watches, request{path: v.path(ns, "") + "?watch=1&resourceVersion=0", accept: accept},
				request{path: v.path("", "") + "?watch=1&resourceVersion=0&labelSelector=mine%3D" + ns, accept: accept})
		}
	}
	object := func(name, spec string) string {
		return fmt.Sprintf(`{"metadata":{"name":"%s","labels":{"mine":"%s"}},"spec":{%s%s}}`, name, ns, scaled, spec)
	}
	events := sameEvents(t, watches, func() string {
		proxied.ok(t, request{method: "POST", path: v1.path(ns, ""), body: object("one", `,"targetCPUUtilizationPercentage":50`)})
		upstream.ok(t, request{method: "POST", path: v2.path(ns, ""), body: object("two", `,"metrics":[{"type":"Resource","resource":{"name":"memory","target":{"type":"Utilization","averageUtilization":50}}}]`)})
		proxied.ok(t, request{method: "PATCH", path: v2.path(ns, "one"), contentType: mergePatch, body: `{"spec":{"behavior":{"scaleDown":{"stabilizationWindowSeconds":5}}}}`})
		upstream.ok(t, request{method: "PATCH", path: v1.path(ns, "two"), contentType: mergePatch, body: `{"spec":{"minReplicas":2}}`})
		proxied.ok(t, request{method: "PATCH", path: v2.path(ns, "two"), contentType: mergePatch, body: `{"metadata":{"labels":{"mine":"no"}}}`})
		proxied.ok(t, request{method: "DELETE", path: v1.path(ns, "") + "?labelSelector=mine%3Dno"})
		upstream.ok(t, request{method: "POST", path: v2.path(ns, ""), body: object("last", "")})
		return "last"
	})
	t.Logf("%d events", events)
	for _, v := range []sort{v1, v2} {
		sameAnswers(t, reads(t, v.path(ns, ""), "one", "labelSelector=mine", "fieldSelector=spec.maxReplicas%3D3"))
	}
}

// TestEventsChurn: both event APIs show one burst of events that come, count on
// and go, and each shows it as upstream does.
func TestEventsChurn(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	core := sort{root: "/api/v1", plural: "events"}
	grouped := sort{root: "/apis/events.k8s.io/v1", plural: "events"}
	for _, s := range []sort{core, grouped} {
		for _, accept := range []string{"", protobufType} {
			proxied.ok(t, request{path: s.path("", "") + "?resourceVersion=0", accept: accept})
		}
	}
	// Upstream takes the state of events from etcd, and after a watch of it has
	// begun; so these begin at a version.
	begin := fmt.Sprintf("?watch=1&resourceVersion=%d", must(upstream.revision())(t))
	var watches []request
	for _, s := range []sort{core, grouped} {
		for _, accept := range []string{"", protobufType, metadataOnly, metadataWire} {
			watches = append(watches, request{path: s.path(ns, "") + begin, accept: accept})
		}
	}
	selected := func(s sort, field string) {
		for _, accept := range []string{"", protobufType} {
			watches = append(watches, request{path: s.path("", "") + begin + "&labelSelector=!none&fieldSelector=" + url.QueryEscape(field+",metadata.namespace="+ns), accept: accept})
		}
	}
	selected(core, "involvedObject.name!=pod-1")
	selected(core, "reason=Churned")
	selected(grouped, "regarding.name!=pod-1")
	selected(grouped, "reason=Churned,type!=Warning")
	object := func(s sort, n int) string {
		if s.root == grouped.root {
			return fmt.Sprintf(`{"metadata":{"name":"e%d"},"eventTime":"2026-01-01T00:00:00.000000Z","reportingController":"test","reportingInstance":"i","action":"a","type":"Normal","reason":"Churned","note":"n","regarding":{"kind":"Pod","namespace":"%s","name":"pod-%d"}}`, n, ns, n%3)
		}
		return fmt.Sprintf(`{"metadata":{"name":"e%d"},"type":"Normal","reason":"Churned","message":"m","involvedObject":{"kind":"Pod","namespace":"%s","name":"pod-%d"},"source":{"component":"test"}}`, n, ns, n%3)
	}
	const burst = 240
	events := sameEvents(t, watches, func() string {
		numbers := make([]int, burst)
		workers(8, numbers, func(n int, _ int) {
			made, seen := []sort{core, grouped}[n%2], []sort{core, grouped}[n/2%2]
			through := targets()[n/4%2]
			for _, r := range []request{
				{method: "POST", path: made.path(ns, ""), body: object(made, n)},
				{method: "PATCH", path: core.path(ns, fmt.Sprint("e", n)), contentType: mergePatch, body: fmt.Sprintf(`{"count":%d,"lastTimestamp":"2026-01-01T00:00:00Z"}`, n)},
				{method: "DELETE", path: seen.path(ns, fmt.Sprint("e", n))},
			} {
				if n%3 == 2 && r.method == "DELETE" {
					continue
				}
				if a, err := through.try(r); err != nil || a.status >= 300 {
					t.Errorf("%v: %d %s %v", r, a.status, a.body, err)
				}
			}
		})
		proxied.ok(t, request{method: "DELETE", path: core.path(ns, "") + "?fieldSelector=involvedObject.name%3Dpod-1"})
		last := strings.Replace(object(core, burst), fmt.Sprintf(`"e%d"`, burst), `"last"`, 1)
		upstream.ok(t, request{method: "POST", path: core.path(ns, ""), body: last})
		return "last"
	})
	t.Logf("%d events", events)
	if events < burst*len(watches) {
		t.Errorf("hardly anything was seen: %d events in %d watches", events, len(watches))
	}
	for _, s := range []sort{core, grouped} {
		requests := reads(t, s.path(ns, ""), "last", "fieldSelector=reason%3DChurned")
		for i, r := range requests {
			requests[i].path = strings.Replace(r.path, "timeoutSeconds=1", "timeoutSeconds=3", 1)
		}
		sameAnswers(t, requests)
	}
}
