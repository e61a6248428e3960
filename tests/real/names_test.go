package real

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/conformance"
	"watershed.test/real/internal/herds"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/testbed"
)

// oddType is a custom type whose names resemble something else.
type oddType struct {
	plural, singular, kind, list string
	namespaced                   bool
	versions                     []string
	// reached says who answers: nobody, if no path leads to the type; upstream alone; or the
	// proxy as well.
	reached string
}

const oddGroup = "v1.apis.watch.namespaces.odd-types.example.test"

var oddTypes = []oddType{
	{"watches", "watch-e", "Watch", "WatchList", true, []string{"v1"}, ""},
	{"watch", "watch1", "Watch1", "Watch1List", true, []string{"v1"}, "nobody"},
	{"proxies", "proxy-e", "Proxy", "ProxyList", false, []string{"v1"}, ""},
	{"proxy", "proxy1", "Proxy1", "Proxy1List", false, []string{"v1"}, "nobody"},
	{"namespaces", "namespace", "Namespace", "NamespaceList", false, []string{"v1"}, "upstream"},
	{"nodes", "node", "Node", "NodeList", true, []string{"v1"}, ""},
	{"pods", "pod", "Pod", "PodList", true, []string{"v1"}, ""},
	{"events", "event", "Event", "EventList", true, []string{"v1", "v1alpha1", "v2beta3"}, ""},
	{"status", "status", "Status", "StatusList", true, []string{"v1"}, ""},
	{"finalize", "finalize", "Finalize", "FinalizeList", false, []string{"v1"}, ""},
	{"scale", "scale", "Scale", "ScaleList", true, []string{"v1"}, ""},
	{"log", "log", "Log", "LogList", true, []string{"v1"}, ""},
	{"sheep", "sheep", "Sheep", "Flock", true, []string{"v1", "v10", "one-two"}, ""},
	{"lists", "list", "List", "ListList", true, []string{"v1"}, ""},
	{"api", "apis", "Apis", "ApisList", false, []string{"v1"}, ""},
	{"a-b", "a-c", "DashD", "DashList", true, []string{"v1"}, ""},
}

func (o oddType) definition() string {
	var versions []string
	for i, v := range o.versions {
		versions = append(versions, fmt.Sprintf(`{"name":"%s","served":true,"storage":%t,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}`, v, i == 0))
	}
	scope := map[bool]string{true: "Namespaced", false: "Cluster"}[o.namespaced]
	return fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%[1]s.%[2]s"},
		"spec":{"group":"%[2]s","scope":"%[3]s","names":{"plural":"%[1]s","singular":"%[4]s","kind":"%[5]s","listKind":"%[6]s"},"versions":[%[7]s]}}`,
		o.plural, oddGroup, scope, o.singular, o.kind, o.list, strings.Join(versions, ","))
}

// TestOddlyNamedTypesMatchUpstream reads types that are named like verbs, subresources, parts
// of paths or types of other groups. Their group and versions have odd names, too.
func TestOddlyNamedTypesMatchUpstream(t *testing.T) {
	t.Parallel()
	ns := objects.Namespace(t)
	for i, o := range oddTypes {
		testbed.Targets()[i%2].Must(t, api.Request{Method: "POST", Path: objects.CRDPath, Body: o.definition()})
		t.Cleanup(func() {
			testbed.Upstream.Try(api.Request{Method: "DELETE", Path: objects.CRDPath + "/" + o.plural + "." + oddGroup})
		})
	}
	var requests []api.Request
	for _, o := range oddTypes {
		in := map[bool]string{true: ns, false: ""}[o.namespaced]
		poll.Until(t, o.plural+" is established", func() error {
			if a := testbed.Upstream.Send(t, api.Request{Path: objects.CRDPath + "/" + o.plural + "." + oddGroup}); !strings.Contains(a.Body, `"type":"Established","status":"True"`) {
				return errors.New(a.Body)
			}
			return nil
		})
		for _, version := range o.versions {
			s := conformance.Resource{Root: "/apis/" + oddGroup + "/" + version, Plural: o.plural}
			list := api.Request{Path: s.Path("", "") + "?resourceVersion=0"}
			if o.reached != "nobody" {
				poll.Until(t, o.plural+" is served", func() error {
					if a := testbed.Upstream.Send(t, list); a.Status != 200 {
						return fmt.Errorf("%d %s", a.Status, a.Body)
					}
					return nil
				})
			}
			if o.reached == "" {
				herds.AwaitSame(t, list)
			}
			// Each version creates objects of its own.
			for i, name := range []string{"watch", "status", "namespaces", "a.b-c.0", ns} {
				object := fmt.Sprintf(`{"apiVersion":"%s/%s","kind":"%s","metadata":{"name":"%s%s"},"status":{"watch":1}}`, oddGroup, version, o.kind, name, version[1:])
				made := testbed.Targets()[i%2].Send(t, api.Request{Method: "POST", Path: s.Path(in, ""), Body: object})
				// Upstream takes the collection of "status" for a part of its namespace.
				if o.reached == "" && o.plural != "status" && made.Status != 201 {
					t.Errorf("%s %s is not created: %d %s", o.plural, name, made.Status, made.Body)
				}
			}
			name := "watch" + version[1:]
			if a := testbed.Upstream.Send(t, api.Request{Path: s.Path(in, name)}); a.Status == 200 {
				requests = append(requests, compare.Reads(t, s.Path(in, ""), name)...)
			}
			for _, path := range []string{
				s.Path("", ""), s.Path("", "watch1"), s.Path(ns, ""), s.Path(ns, "watch1"), s.Path(ns, "") + "/", s.Path(in, name) + "/status", s.Path(in, "status1") + "/status", s.Path(in, name) + "/",
				s.Root + "/namespaces/" + ns, s.Root + "/watch/" + o.plural, s.Root + "/watch/namespaces/" + ns + "/" + o.plural, s.Path(in, ns+version[1:]), s.Path(in, "namespaces1"),
			} {
				requests = append(requests, api.Request{Path: path + "?timeoutSeconds=1"}, api.Request{Path: path + "?timeoutSeconds=1&resourceVersion=0"}, api.Request{Path: path + "?timeoutSeconds=1&resourceVersion=0&watch=1"})
			}
		}
	}
	slices.SortStableFunc(requests, func(a, b api.Request) int { return conformance.WatchSeconds(b) - conformance.WatchSeconds(a) })
	t.Logf("%v", compare.SameAnswers(t, requests))
}

// TestOddlyNamedObjectsMatchUpstream reads names that need escaping or resemble something else,
// through paths that spell them in several ways.
func TestOddlyNamedObjectsMatchUpstream(t *testing.T) {
	t.Parallel()
	ns := objects.Namespace(t)
	roles := conformance.Resource{Root: "/apis/rbac.authorization.k8s.io/v1", Plural: "roles"}
	cms := conformance.Resource{Root: "/api/v1", Plural: "configmaps"}
	names := []string{"system:odd", "Upper", "watch", "namespaces", "with space", "a+b", "a&b=c", "a?b", "a#b", "ünï", "\"quoted\"", "a;b,c", "~(x)*!'$@", "...", "a\\b", "<&>", "a|b", "`", "[x]", "tab\tbed"}
	for i, name := range names {
		testbed.Targets()[i%2].Must(t, api.Request{Method: "POST", Path: roles.Path(ns, ""), Body: api.JSON(map[string]any{"metadata": map[string]any{"name": name}})})
	}
	for _, name := range []string{"..", ".", "a/b", "a%b", ""} {
		var texts []string
		for _, to := range testbed.Targets() {
			texts = append(texts, to.Send(t, api.Request{Method: "POST", Path: roles.Path(ns, ""), Body: api.JSON(map[string]any{"metadata": map[string]any{"name": name}})}).Comparable(nil))
		}
		if texts[0] != texts[1] {
			t.Errorf("%q is refused\nupstream: %s\nproxied:  %s", name, texts[0], texts[1])
		}
	}
	for _, name := range []string{"a.b.c", "one", "watch"} {
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: cms.Path(ns, ""), Body: fmt.Sprintf(`{"metadata":{"name":"%s"}}`, name)})
	}
	requests := append(compare.Reads(t, roles.Path(ns, ""), "system:odd", "fieldSelector=metadata.name%3Dsystem:odd"), compare.Reads(t, cms.Path(ns, ""), "a.b.c")...)
	add := func(path string) {
		for _, q := range []string{"", "?resourceVersion=0", "?resourceVersion=0&watch=1"} {
			requests = append(requests, api.Request{Path: path + q})
		}
	}
	for _, name := range names {
		for _, spelled := range []string{url.PathEscape(name), url.QueryEscape(name), inHex(name, "%%%02x"), inHex(name, "%%%02X"), inHex(name, "%%25%02X"), url.PathEscape(name) + "/", url.PathEscape(name) + "%2F", url.PathEscape(name) + "%20", strings.ToUpper(url.PathEscape(name))} {
			add(roles.Path(ns, "") + "/" + spelled)
		}
		escaped := strings.NewReplacer(`\`, `\\`, ",", `\,`, "=", `\=`).Replace(name)
		for _, selector := range []string{"metadata.name=" + escaped, "metadata.name==" + name, "metadata.name!=" + escaped, "metadata.name=" + escaped + ",metadata.namespace=" + ns} {
			for _, q := range []string{"?resourceVersion=0&fieldSelector=", "?fieldSelector=", "?watch=1&timeoutSeconds=1&resourceVersion=0&fieldSelector="} {
				requests = append(requests, api.Request{Path: roles.Path(ns, "") + q + url.QueryEscape(selector)})
			}
		}
	}
	here := "/api/v1/namespaces/" + ns
	for _, path := range []string{
		here + "/configmaps/%61.b.c", here + "/configmaps/a%2Eb%2ec", here + "/configmaps/a%252Eb", here + "/configmaps/A.B.C", here + "/configmaps/a.b.c/", here + "/configmaps/a.b.c//",
		here + "/configmaps//a.b.c", here + "//configmaps/a.b.c", here + "/./configmaps/a.b.c", here + "/configmaps/./a.b.c", here + "/configmaps/../configmaps/a.b.c", here + "/configmaps/..", here + "/configmaps/.",
		here + "/configmaps/%2e%2e", here + "/configmaps/%2e%2e/configmaps", here + "/configmaps/..%2Fsecrets", here + "/configmaps/a%00b", here + "/configmaps/%ff", here + "/configmaps/a.b.c;x=1", here + "/configmaps;x/a.b.c",
		here + "/configmaps/a.b.c/status", here + "/configmaps/a.b.c/a/b/c", here + "/configmaps/watch/watch", here + "/watch", here + "/watch/configmaps", "/api/v1/watch/watch/configmaps", "/api/v1/watch/namespaces/" + ns + "/configmaps/watch",
		"/api/v1/watch/namespaces/" + ns + "/configmaps/a%2Eb.c", "//api/v1/namespaces/" + ns + "/configmaps", "/api/v1/../v1/namespaces/" + ns + "/configmaps", "/api/v1/namespaces/" + strings.ToUpper(ns) + "/configmaps",
		"/api/v1/namespaces/" + inHex(ns, "%%%02x") + "/configmaps", "/api/v1/%6eamespaces/" + ns + "/configmaps", "/%61pi/v1/namespaces/" + ns + "/configmaps", "/api%2Fv1/namespaces/" + ns + "/configmaps", "/API/v1/configmaps", "/api/V1/configmaps",
		"/api/v1/namespaces/" + ns + "%2Fconfigmaps", "/api/v1/namespaces/" + ns + "/configmaps%2Fa.b.c", "/api/v1/namespaces/" + ns + "/", "/api/v1/namespaces/" + ns + "/configmaps%20", "/api/v1/namespaces/%20/configmaps", "/api/v1/namespaces/-/configmaps", "/api/v1/namespaces/*/configmaps",
	} {
		add(path)
	}
	for i, r := range requests {
		if strings.Contains(r.Path, "/watch/") || strings.Contains(r.Path, "watch=1") && !strings.Contains(r.Path, "timeoutSeconds") {
			join := map[bool]string{true: "&", false: "?"}[strings.Contains(r.Path, "?")]
			requests[i].Path += join + "timeoutSeconds=1"
		}
	}
	t.Logf("%v", compare.SameAnswers(t, requests))
}

func inHex(text, form string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		fmt.Fprintf(&b, form, c)
	}
	return b.String()
}
