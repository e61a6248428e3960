package real

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/conformance"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/parallel"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// TestEveryTypeInDiscoveryMatchesUpstream reads every type and subresource in discovery in
// every way that some types lack: types without watch (componentstatuses), without list
// (bindings, reviews), and without both.
func TestEveryTypeInDiscoveryMatchesUpstream(t *testing.T) {
	ns := objects.Namespace(t)
	testbed.Upstream.Must(t, api.Request{Method: "POST", Path: "/api/v1/namespaces/" + ns + "/pods", Body: api.JSON(objects.Pod("one", ""))})
	var requests []api.Request
	add := func(path string, queries ...string) {
		for _, q := range queries {
			requests = append(requests, api.Request{Path: path + q})
		}
	}
	count := map[string]int{}
	for _, root := range servedVersions(t) {
		var list metav1.APIResourceList
		require.NoError(t, json.Unmarshal([]byte(testbed.Upstream.Must(t, api.Request{Path: root}).Body), &list))
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
				// Upstream asks all components at once, and lists them in the order of their
				// answers.
				add(path, "?labelSelector=a%3Db", "?fieldSelector=metadata.name%3Detcd-0", "?watch=1&timeoutSeconds=1", "?watch=1&resourceVersion=0")
				add(path+"/etcd-0", "", "?resourceVersion=0", "?watch=1")
				continue
			}
			add(path, "?watch=1&timeoutSeconds=1&resourceVersion=0", "?watch=1&timeoutSeconds=1&"+api.StateFirst, "", "?resourceVersion=0", "?resourceVersion=1&resourceVersionMatch=NotOlderThan", "?limit=1")
			add(path+"/nobody", "", "?resourceVersion=0", "?watch=1&timeoutSeconds=1")
			if r.Namespaced {
				add(root+"/"+plural, "?resourceVersion=0", "?watch=1&timeoutSeconds=1&resourceVersion=0")
				add(root+"/"+plural+"/nobody", "?resourceVersion=0")
			} else {
				add(root+"/namespaces/"+ns+"/"+plural, "?resourceVersion=0", "?watch=1&timeoutSeconds=1&resourceVersion=0")
			}
			for _, accept := range []string{api.ProtobufType, api.MetadataListJSON, api.MetadataListProtobuf} {
				requests = append(requests, api.Request{Path: path + "?resourceVersion=0", Accept: accept})
			}
			requests = append(requests, api.Request{Path: path + "?watch=1&timeoutSeconds=1&resourceVersion=0", Accept: api.ProtobufType})
		}
	}
	t.Logf("%v", count)
	if count["types"] < 50 || count["types without list"] < 5 || count["types without watch"] < 6 || count["subresources"] < 20 {
		t.Errorf("discovery has %v", count)
	}
	// The slow requests come first.
	slices.SortStableFunc(requests, func(a, b api.Request) int { return conformance.WatchSeconds(b) - conformance.WatchSeconds(a) })
	compare.SameAnswers(t, requests)
}

// servedVersions returns the path of each version of each group, without those that other tests
// define.
func servedVersions(t *testing.T) []string {
	t.Helper()
	roots := []string{"/api/v1"}
	var groups metav1.APIGroupList
	require.NoError(t, json.Unmarshal([]byte(testbed.Upstream.Must(t, api.Request{Path: "/apis"}).Body), &groups))
	for _, g := range groups.Groups {
		for _, v := range g.Versions {
			if !strings.HasSuffix(g.Name, ".test") {
				roots = append(roots, "/apis/"+v.GroupVersion)
			}
		}
	}
	return roots
}

// TestCreateOnlyTypesMatchUpstream creates objects of types and subresources that can only be
// created, with and without the right to.
func TestCreateOnlyTypesMatchUpstream(t *testing.T) {
	const authorization, authentication = "/apis/authorization.k8s.io/v1", "/apis/authentication.k8s.io/v1"
	ns := objects.Namespace(t)
	what := `"spec":{"resourceAttributes":{"verb":"get","resource":"pods","namespace":"` + ns + `"}}`
	var requests []api.Request
	for path, body := range map[string]string{
		authorization + "/selfsubjectaccessreviews":                        `{` + what + `}`,
		authorization + "/subjectaccessreviews":                            `{` + strings.Replace(what, `{`, `{"user":"alice",`, 1) + `}`,
		authorization + "/namespaces/" + ns + "/localsubjectaccessreviews": `{` + strings.Replace(what, `{`, `{"user":"alice",`, 1) + `}`,
		authentication + "/selfsubjectreviews":                             `{}`,
		authentication + "/tokenreviews":                                   `{"spec":{"token":"` + testbed.Shared.Users.Of("bob") + `"}}`,
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
				requests = append(requests, api.Request{Method: method, Path: path, Body: body, User: user})
			}
		}
	}
	for status, n := range compare.SameAnswers(t, requests) {
		t.Logf("%d: %d", status, n)
	}
}

// TestVersionsOfBuiltInTypesMatchUpstream writes through one version of a built-in type, and
// reads and watches in the others.
func TestVersionsOfBuiltInTypesMatchUpstream(t *testing.T) {
	t.Parallel()
	ns := objects.Namespace(t)
	v1 := conformance.Resource{Root: "/apis/autoscaling/v1", Plural: "horizontalpodautoscalers"}
	v2 := conformance.Resource{Root: "/apis/autoscaling/v2", Plural: "horizontalpodautoscalers"}
	const scaled = `"scaleTargetRef":{"kind":"Deployment","name":"d","apiVersion":"apps/v1"},"maxReplicas":3`
	var watches []api.Request
	for _, v := range []conformance.Resource{v1, v2} {
		testbed.Proxied.Must(t, api.Request{Path: v.Path("", "") + "?resourceVersion=0"})
		for _, accept := range []string{"", api.ProtobufType, api.MetadataJSON, api.MetadataProtobuf} {
			watches = append(watches, api.Request{Path: v.Path(ns, "") + "?watch=1&resourceVersion=0", Accept: accept},
				api.Request{Path: v.Path("", "") + "?watch=1&resourceVersion=0&labelSelector=mine%3D" + ns, Accept: accept})
		}
	}
	object := func(name, spec string) string {
		return fmt.Sprintf(`{"metadata":{"name":"%s","labels":{"mine":"%s"}},"spec":{%s%s}}`, name, ns, scaled, spec)
	}
	events := compare.SameEvents(t, watches, func() string {
		testbed.Proxied.Must(t, api.Request{Method: "POST", Path: v1.Path(ns, ""), Body: object("one", `,"targetCPUUtilizationPercentage":50`)})
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: v2.Path(ns, ""), Body: object("two", `,"metrics":[{"type":"Resource","resource":{"name":"memory","target":{"type":"Utilization","averageUtilization":50}}}]`)})
		testbed.Proxied.Must(t, api.Request{Method: "PATCH", Path: v2.Path(ns, "one"), ContentType: api.MergePatch, Body: `{"spec":{"behavior":{"scaleDown":{"stabilizationWindowSeconds":5}}}}`})
		testbed.Upstream.Must(t, api.Request{Method: "PATCH", Path: v1.Path(ns, "two"), ContentType: api.MergePatch, Body: `{"spec":{"minReplicas":2}}`})
		testbed.Proxied.Must(t, api.Request{Method: "PATCH", Path: v2.Path(ns, "two"), ContentType: api.MergePatch, Body: `{"metadata":{"labels":{"mine":"no"}}}`})
		testbed.Proxied.Must(t, api.Request{Method: "DELETE", Path: v1.Path(ns, "") + "?labelSelector=mine%3Dno"})
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: v2.Path(ns, ""), Body: object("last", "")})
		return "last"
	})
	t.Logf("%d events", events)
	for _, v := range []conformance.Resource{v1, v2} {
		compare.SameAnswers(t, compare.Reads(t, v.Path(ns, ""), "one", "labelSelector=mine", "fieldSelector=spec.maxReplicas%3D3"))
	}
}

// TestBothEventAPIsShowABurstOfEvents makes a burst of events that are created, counted up and
// deleted. Both event APIs show it as upstream does.
func TestBothEventAPIsShowABurstOfEvents(t *testing.T) {
	t.Parallel()
	ns := objects.Namespace(t)
	core := conformance.Resource{Root: "/api/v1", Plural: "events"}
	grouped := conformance.Resource{Root: "/apis/events.k8s.io/v1", Plural: "events"}
	for _, s := range []conformance.Resource{core, grouped} {
		for _, accept := range []string{"", api.ProtobufType} {
			testbed.Proxied.Must(t, api.Request{Path: s.Path("", "") + "?resourceVersion=0", Accept: accept})
		}
	}
	// Upstream reads the state of events from etcd after the watch has begun. These watches
	// therefore begin at a version.
	begin := fmt.Sprintf("?watch=1&resourceVersion=%d", require.Value(testbed.Upstream.Revision())(t))
	var watches []api.Request
	for _, s := range []conformance.Resource{core, grouped} {
		for _, accept := range []string{"", api.ProtobufType, api.MetadataJSON, api.MetadataProtobuf} {
			watches = append(watches, api.Request{Path: s.Path(ns, "") + begin, Accept: accept})
		}
	}
	selected := func(s conformance.Resource, field string) {
		for _, accept := range []string{"", api.ProtobufType} {
			watches = append(watches, api.Request{Path: s.Path("", "") + begin + "&labelSelector=!none&fieldSelector=" + url.QueryEscape(field+",metadata.namespace="+ns), Accept: accept})
		}
	}
	selected(core, "involvedObject.name!=pod-1")
	selected(core, "reason=Churned")
	selected(grouped, "regarding.name!=pod-1")
	selected(grouped, "reason=Churned,type!=Warning")
	object := func(s conformance.Resource, n int) string {
		if s.Root == grouped.Root {
			return fmt.Sprintf(`{"metadata":{"name":"e%d"},"eventTime":"2026-01-01T00:00:00.000000Z","reportingController":"test","reportingInstance":"i","action":"a","type":"Normal","reason":"Churned","note":"n","regarding":{"kind":"Pod","namespace":"%s","name":"pod-%d"}}`, n, ns, n%3)
		}
		return fmt.Sprintf(`{"metadata":{"name":"e%d"},"type":"Normal","reason":"Churned","message":"m","involvedObject":{"kind":"Pod","namespace":"%s","name":"pod-%d"},"source":{"component":"test"}}`, n, ns, n%3)
	}
	const burst = 240
	events := compare.SameEvents(t, watches, func() string {
		numbers := make([]int, burst)
		parallel.ForEach(8, numbers, func(n int, _ int) {
			made, seen := []conformance.Resource{core, grouped}[n%2], []conformance.Resource{core, grouped}[n/2%2]
			through := testbed.Targets()[n/4%2]
			for _, r := range []api.Request{
				{Method: "POST", Path: made.Path(ns, ""), Body: object(made, n)},
				{Method: "PATCH", Path: core.Path(ns, fmt.Sprint("e", n)), ContentType: api.MergePatch, Body: fmt.Sprintf(`{"count":%d,"lastTimestamp":"2026-01-01T00:00:00Z"}`, n)},
				{Method: "DELETE", Path: seen.Path(ns, fmt.Sprint("e", n))},
			} {
				if n%3 == 2 && r.Method == "DELETE" {
					continue
				}
				if a, err := through.Try(r); err != nil || a.Status >= 300 {
					t.Errorf("%v: %d %s %v", r, a.Status, a.Body, err)
				}
			}
		})
		testbed.Proxied.Must(t, api.Request{Method: "DELETE", Path: core.Path(ns, "") + "?fieldSelector=involvedObject.name%3Dpod-1"})
		last := strings.Replace(object(core, burst), fmt.Sprintf(`"e%d"`, burst), `"last"`, 1)
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: core.Path(ns, ""), Body: last})
		return "last"
	})
	t.Logf("%d events", events)
	if events < burst*len(watches) {
		t.Errorf("too few events: %d in %d watches", events, len(watches))
	}
	for _, s := range []conformance.Resource{core, grouped} {
		requests := compare.Reads(t, s.Path(ns, ""), "last", "fieldSelector=reason%3DChurned")
		for i, r := range requests {
			requests[i].Path = strings.Replace(r.Path, "timeoutSeconds=1", "timeoutSeconds=3", 1)
		}
		compare.SameAnswers(t, requests)
	}
}
