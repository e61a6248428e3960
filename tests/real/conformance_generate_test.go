package real

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// conformancePairs is how many pairs of requests are generated.
func conformancePairs(t *testing.T) int {
	if text := os.Getenv("CONFORMANCE_PAIRS"); text != "" {
		return must(strconv.Atoi(text))(t)
	}
	return 1500
}

// sort is a type of objects that requests are generated for.
type sort struct {
	// root is the path of its version, such as /apis/apps/v1.
	root, plural string
	namespaced   bool
	// body is an object without its metadata; no objects are made if it is
	// empty. NS in it is the namespace.
	body string
	// fields are what a selector may name, with values that occur.
	fields []string
}

func (s sort) path(ns, name string) string {
	path := s.root
	if ns != "" {
		path += "/namespaces/" + ns
	}
	path += "/" + s.plural
	if name != "" {
		path += "/" + name
	}
	return path
}

const (
	template = `{"metadata":{"labels":{"a":"b"}},"spec":{"restartPolicy":"Always","containers":[{"name":"c","image":"example.test/c:1"}]}}`
	once     = `{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"example.test/c:1"}]}}`
	gadgets  = "gadgets.conformance.test"
	beacons  = "beacons.conformance.test"
)

var sorts = []sort{
	{"/api/v1", "configmaps", true, `"data":{"a":"<&>é\u2028","b":""}`, []string{"metadata.namespace=conf"}},
	{"/api/v1", "configmaps", true, "", nil},
	{"/api/v1", "secrets", true, `"type":"Opaque","data":{"k":"AAECAwQ="}`, []string{"type=Opaque", "type!=Opaque"}},
	{"/api/v1", "pods", true, `"spec":{"nodeName":"node-0","containers":[{"name":"c","image":"example.test/c:1"}]}`,
		[]string{"spec.nodeName=node-0", "spec.nodeName=", "status.phase=Pending", "status.phase!=Pending", "spec.restartPolicy=Always", "spec.host=node-0",
			"status.podIP=", "status.podIPs=", "spec.schedulerName=default-scheduler", "spec.hostNetwork=false", "spec.serviceAccountName=default", "status.nominatedNodeName="}},
	{"/api/v1", "pods", true, "", []string{"spec.nodeName=node-0"}},
	{"/api/v1", "services", true, `"spec":{"clusterIP":"None","selector":{"a":"b"}}`, []string{"spec.clusterIP=None", "spec.type=ClusterIP"}},
	{"/api/v1", "serviceaccounts", true, `"automountServiceAccountToken":false`, nil},
	{"/api/v1", "endpoints", true, `"subsets":[]`, nil},
	{"/api/v1", "replicationcontrollers", true, `"spec":{"replicas":0,"selector":{"a":"b"},"template":` + template + `}`, []string{"status.replicas=0"}},
	{"/api/v1", "limitranges", true, `"spec":{"limits":[]}`, nil},
	{"/api/v1", "persistentvolumeclaims", true, `"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}`, nil},
	{"/api/v1", "events", true, `"type":"Normal","reason":"Tested","message":"m","involvedObject":{"kind":"Pod","namespace":"NS","name":"p"},"source":{"component":"test"}`,
		[]string{"reason=Tested", "involvedObject.kind=Pod", "involvedObject.name=q", "source=test", "type=Normal", "reportingComponent="}},
	{"/apis/events.k8s.io/v1", "events", true, "", []string{"regarding.kind=Pod", "reason=Tested", "reportingController="}},
	{"/api/v1", "namespaces", false, "", []string{"status.phase=Active", "metadata.name=conf"}},
	{"/api/v1", "nodes", false, `"spec":{"unschedulable":true}`, []string{"spec.unschedulable=true", "spec.unschedulable!=true"}},
	{"/apis/apps/v1", "deployments", true, `"spec":{"replicas":1,"selector":{"matchLabels":{"a":"b"}},"template":` + template + `}`, nil},
	{"/apis/apps/v1", "statefulsets", true, `"spec":{"replicas":1,"serviceName":"s","selector":{"matchLabels":{"a":"b"}},"template":` + template + `}`, nil},
	{"/apis/apps/v1", "daemonsets", true, `"spec":{"selector":{"matchLabels":{"a":"b"}},"template":` + template + `}`, nil},
	{"/apis/autoscaling/v2", "horizontalpodautoscalers", true, `"spec":{"maxReplicas":3,"scaleTargetRef":{"kind":"Deployment","name":"alpha","apiVersion":"apps/v1"},"metrics":[{"type":"Resource","resource":{"name":"memory","target":{"type":"Utilization","averageUtilization":50}}}]}`, nil},
	{"/apis/autoscaling/v1", "horizontalpodautoscalers", true, "", nil},
	{"/apis/batch/v1", "jobs", true, `"spec":{"template":` + once + `}`, []string{"status.successful=0"}},
	{"/apis/batch/v1", "cronjobs", true, `"spec":{"schedule":"* * * * *","jobTemplate":{"spec":{"template":` + once + `}}}`, nil},
	{"/apis/policy/v1", "poddisruptionbudgets", true, `"spec":{"minAvailable":1,"selector":{}}`, nil},
	{"/apis/discovery.k8s.io/v1", "endpointslices", true, `"addressType":"IPv4","endpoints":[]`, nil},
	{"/apis/networking.k8s.io/v1", "ingresses", true, `"spec":{"defaultBackend":{"service":{"name":"s","port":{"number":80}}}}`, nil},
	{"/apis/networking.k8s.io/v1", "networkpolicies", true, `"spec":{"podSelector":{}}`, nil},
	{"/apis/rbac.authorization.k8s.io/v1", "roles", true, `"rules":[]`, nil},
	{"/apis/rbac.authorization.k8s.io/v1", "clusterroles", false, "", nil},
	{"/apis/storage.k8s.io/v1", "storageclasses", false, `"provisioner":"example.test/p"`, nil},
	{"/apis/scheduling.k8s.io/v1", "priorityclasses", false, `"value":5`, nil},
	{"/apis/certificates.k8s.io/v1", "certificatesigningrequests", false, "", []string{"spec.signerName=x"}},
	{"/apis/apiextensions.k8s.io/v1", "customresourcedefinitions", false, "", nil},
	{"/apis/apiregistration.k8s.io/v1", "apiservices", false, "", nil},
	{"/apis/resource.k8s.io/v1", "resourceslices", false, "", []string{"spec.driver=x", "spec.nodeName="}},
	{"/apis/conformance.test/v1", "gadgets", true, `"spec":{"size":2,"colour":"red","free":{"z":1,"a":[1.5,"<"]}}`, []string{"spec.size=2", "spec.size!=2", "spec.colour=red", "spec.colour="}},
	{"/apis/conformance.test/v1beta1", "gadgets", true, "", []string{"spec.size=2", "spec.colour=red"}},
	{"/apis/conformance.test/v1", "beacons", false, `"light":true`, nil},
	{"/api/v1", "nothings", true, "", nil},
	{"/apis/apps/v1beta9", "deployments", true, "", nil},
	{"/apis/nobody.test/v1", "things", true, "", nil},
}

// apiVersion is what objects of a sort say of themselves.
func (s sort) apiVersion() string {
	return strings.TrimPrefix(strings.TrimPrefix(s.root, "/apis/"), "/api/")
}

var (
	grounds     = []string{"conf", "conf-b", "conf0"}
	objectNames = []string{"alpha", "beta", "alpha-b", "alpha.b", "gamma"}
)

// ground is what generated requests are about, and how it changes.
type ground struct {
	t      *testing.T
	chance *rand.Rand
	// there is what exists, by path.
	there map[string]bool
	// current is the version all writes have come to, old that of the batch before.
	current, old uint64
	// own is the newest version among each type's objects.
	own    map[string]uint64
	tokens map[string]string
}

func (g *ground) furnish() {
	t := g.t
	for _, definition := range []string{
		`{"metadata":{"name":"` + gadgets + `"},"spec":{"group":"conformance.test","scope":"Namespaced","names":{"plural":"gadgets","singular":"gadget","kind":"Gadget","listKind":"GadgetList","shortNames":["gd"]},"versions":[
			{"name":"v1","served":true,"storage":true,"selectableFields":[{"jsonPath":".spec.size"},{"jsonPath":".spec.colour"}],"additionalPrinterColumns":[{"name":"Size","type":"integer","jsonPath":".spec.size"}],
				"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true,"properties":{"size":{"type":"integer"},"colour":{"type":"string"}}}}}}},
			{"name":"v1beta1","served":true,"storage":false,"deprecated":true,"selectableFields":[{"jsonPath":".spec.size"}],
				"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"size":{"type":"integer"},"colour":{"type":"string"}}}}}}}]}}`,
		`{"metadata":{"name":"` + beacons + `"},"spec":{"group":"conformance.test","scope":"Cluster","names":{"plural":"beacons","singular":"beacon","kind":"Beacon","listKind":"BeaconList"},"versions":[
			{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"light":{"type":"boolean"}}}}}]}}`,
	} {
		upstream.ok(t, request{method: "POST", path: definitions, body: definition})
	}
	for _, plural := range []string{"gadgets", "beacons"} {
		for _, to := range targets() {
			(widget{group: "conformance.test", plural: plural}).awaitServed(t, to)
		}
	}
	for _, ns := range grounds {
		upstream.ok(t, request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"` + ns + `","labels":{"tier":"gold"}}}`})
	}
	const rbac = "/apis/rbac.authorization.k8s.io/v1"
	for path, body := range map[string]string{
		"/namespaces/conf/roles": `{"metadata":{"name":"some"},"rules":[
			{"apiGroups":["","conformance.test"],"resources":["configmaps","pods","gadgets"],"verbs":["get","list","watch"]},
			{"apiGroups":[""],"resources":["secrets"],"resourceNames":["alpha"],"verbs":["get","list","watch"]},
			{"apiGroups":[""],"resources":["services"],"verbs":["get"]}]}`,
		"/namespaces/conf/rolebindings": `{"metadata":{"name":"some"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"some"},
			"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"alice"}]}`,
		"/clusterroles": `{"metadata":{"name":"some"},"rules":[{"apiGroups":["","apps","batch"],"resources":["configmaps","nodes","deployments","jobs"],"verbs":["list","watch"]}]}`,
		"/clusterrolebindings": `{"metadata":{"name":"some"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"some"},
			"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":"builders"}]}`,
	} {
		upstream.ok(t, request{method: "POST", path: rbac + path, body: body})
	}
	for _, may := range []request{{path: "/api/v1/namespaces/conf/configmaps", user: "alice"}, {path: "/api/v1/nodes", user: "bob"}} {
		for _, to := range targets() {
			eventually(t, "the rights arrive", func() error {
				if a := to.send(t, may); a.status != 200 {
					return fmt.Errorf("%d", a.status)
				}
				return nil
			})
		}
	}
	for _, s := range sorts {
		for i := range 2 * len(grounds) {
			g.write(s, grounds[i%len(grounds)], objectNames[i/len(grounds)])
		}
	}
	g.turn()
}

// write makes, changes or removes one object.
func (g *ground) write(s sort, ns, name string) {
	if s.body == "" {
		return
	}
	if !s.namespaced {
		ns = ""
	}
	if s.plural != "configmaps" {
		// Not every type takes dots.
		name = strings.ReplaceAll(name, ".", "0")
	}
	path := s.path(ns, name)
	tier := []string{"gold", "iron", "lead"}[g.chance.IntN(3)]
	r := request{method: "POST", path: s.path(ns, "")}
	switch {
	case !g.there[path]:
		r.body = fmt.Sprintf(`{"metadata":{"name":"%s","labels":{"tier":"%s","app":"%s"}},%s}`, name, tier, name, strings.ReplaceAll(s.body, "NS", ns))
		if strings.Contains(s.root, "conformance.test") {
			kind := strings.ToUpper(s.plural[:1]) + strings.TrimSuffix(s.plural[1:], "s")
			r.body = fmt.Sprintf(`{"apiVersion":"%s","kind":"%s",%s`, s.apiVersion(), kind, r.body[1:])
		}
	case g.chance.IntN(3) == 0:
		r = request{method: "DELETE", path: path, body: `{"propagationPolicy":"Background","gracePeriodSeconds":0}`}
	default:
		r = request{method: "PATCH", path: path, contentType: mergePatch,
			body: fmt.Sprintf(`{"metadata":{"labels":{"tier":"%s"},"annotations":{"n":"%d"}}}`, tier, g.chance.IntN(1000))}
	}
	// Claims stay, to be deleted by a controller that is not here.
	stays := r.method != "DELETE" || s.plural == "persistentvolumeclaims"
	a := targets()[g.chance.IntN(2)].send(g.t, r)
	switch {
	case a.status == http.StatusNotFound && g.there[path]:
		// Upstream may have removed it itself: some releases do so with a service's endpoints.
		stays = false
	case a.status >= 300:
		g.t.Fatalf("%v: %d %s", r, a.status, a.body)
	}
	g.there[path] = stays
}

// turn ends the writes of a batch: everyone has seen them, and there are new
// versions and tokens to ask for.
func (g *ground) turn() {
	t := g.t
	g.old, g.current = g.current, must(upstream.revision())(t)
	if g.old == 0 {
		g.old = g.current
	}
	g.tokens, g.own = map[string]string{}, map[string]uint64{}
	for _, s := range sorts {
		for _, ns := range []string{"", "conf"} {
			if ns != "" && !s.namespaced {
				continue
			}
			a := upstream.send(t, request{path: s.path(ns, "") + "?limit=2"})
			if list, _, ok := dissect("application/json", a.body); ok && list.Continue != "" {
				g.tokens[s.path(ns, "")] = list.Continue
			}
		}
		if s.body == "" {
			continue
		}
		want := must(upstream.ok(t, request{path: s.path("", "")}).items())(t)
		for _, v := range want {
			g.own[s.path("", "")] = max(g.own[s.path("", "")], v)
		}
		for _, accept := range []string{"", protobufType} {
			g.settle(s, accept, want)
		}
	}
}

// settle waits until answers from memory have what upstream has now.
func (g *ground) settle(s sort, accept string, want map[string]uint64) {
	for _, to := range targets() {
		eventually(g.t, to.name+" has the newest "+s.plural, func() error {
			a, err := to.try(request{path: s.path("", "") + "?resourceVersion=0", accept: accept})
			if err != nil || a.status == http.StatusNotAcceptable {
				return err
			}
			got, err := a.items()
			if err == nil && !maps.Equal(got, want) {
				err = errNotYet
			}
			return err
		})
	}
}

// draw is one of some values, each with a weight.
type draw []struct {
	weight int
	value  string
}

func (d draw) pick(chance *rand.Rand) string {
	total := 0
	for _, v := range d {
		total += v.weight
	}
	n := chance.IntN(total)
	for _, v := range d {
		if n -= v.weight; n < 0 {
			return v.value
		}
	}
	panic("unreachable")
}

// unset is an option that is not given.
const unset = "\x00"

var (
	acceptsDrawn = draw{
		{50, ""}, {8, "application/json"}, {16, protobufType}, {8, protobufType + ",application/json"}, {4, "*/*"}, {2, "application/yaml"},
		{4, "application/json;as=Table;g=meta.k8s.io;v=v1"}, {2, "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"},
		{4, "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}, {4, "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"},
		{3, protobufType + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"},
		{3, protobufType + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}, {1, "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1beta1"},
		{1, "application/json;as=Table"}, {1, "application/json;as=Foo;g=meta.k8s.io;v=v1,application/json"}, {1, "application/json;as=Foo;g=meta.k8s.io;v=v1"},
		{1, "text/html"}, {1, "application/*"}, {1, "text/html, application/xhtml+xml, */*;q=0.8"}, {1, "application/json;q=0.2, " + protobufType + ";q=0.9"},
		{1, "application/yaml;q=0.1,application/json;q=0.1"}, {1, "application/cbor"}, {1, "application/cbor, application/json"}, {1, protobufType + ";q=0, application/json"},
		{1, "application/json;pretty=1"}, {1, "application/json;charset=utf-8"}, {1, "application/json;stream=watch"}, {1, protobufType + ";stream=watch"}, {1, "application/json;stream=other"},
		{1, "APPLICATION/JSON"}, {1, "application/json;q=abc"}, {1, ", ,application/json"}, {1, "application/json; as=PartialObjectMetadata; v=v1; g=meta.k8s.io"},
		{1, "application/json;profile=x"}, {1, "nonsense"}, {1, "*/*;q=0.1, " + protobufType}, {1, "application/json, */*"},
	}
	versionsDrawn = draw{
		{30, unset}, {40, "0"}, {4, "{current}"}, {8, "{own}"}, {8, "{old}"}, {2, "1"}, {1, "007"}, {1, "abc"}, {1, ""}, {1, "-1"}, {1, "18446744073709551616"}, {1, "0x10"}, {1, "00"},
	}
	matchesDrawn   = draw{{80, unset}, {8, "NotOlderThan"}, {8, "Exact"}, {1, ""}, {1, "exact"}}
	limitsDrawn    = draw{{70, unset}, {6, "1"}, {6, "2"}, {4, "5"}, {3, "500"}, {1, "0"}, {1, "-1"}, {1, "abc"}, {1, ""}, {1, "9223372036854775808"}}
	continuesDrawn = draw{{90, unset}, {8, "{token}"}, {1, "abc"}, {1, ""}, {1, "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTEsInN0YXJ0IjoiYVx1MDAwMCJ9"}}
	labelsDrawn    = draw{
		{70, unset}, {6, "tier=gold"}, {3, "tier!=gold"}, {3, "tier in (gold,iron)"}, {2, "tier notin (gold)"}, {2, "tier"}, {2, "!tier"}, {1, "tier=gold,app=alpha"}, {1, "app==beta"},
		{1, ""}, {1, "tier="}, {1, "tier in ()"}, {1, "tier gt gold"}, {1, "n>5"}, {1, "_x=1"}, {1, "tier=_x"}, {1, "tier=gold,"}, {1, ",tier=gold"}, {1, "tier in (gold"}, {1, "  tier  =  gold "}, {1, "a=b=c"}, {1, "tier=gold,tier=iron"},
	}
	fieldsDrawn = draw{
		{66, unset}, {5, "metadata.name=alpha"}, {2, "metadata.name!=alpha"}, {1, "metadata.name=nobody"}, {3, "metadata.namespace=conf"}, {1, "metadata.namespace!=conf"}, {14, "{field}"},
		{1, "metadata.name=alpha,metadata.namespace=conf"}, {1, "metadata.name=alpha,metadata.name=beta"}, {1, ""}, {1, "="}, {1, "metadata.name"}, {1, "spec.nothing=1"}, {1, `metadata.name=a\,b`}, {1, `metadata.name=\x`},
		{1, "metadata.name=a=b"}, {1, "metadata.name==alpha"}, {1, "metadata.uid=1"}, {1, " metadata.name=alpha"}, {1, ",metadata.name=alpha,"}, {1, "metadata.labels=x"},
	}
	prettyDrawn    = draw{{93, unset}, {2, "true"}, {1, "1"}, {1, "false"}, {1, ""}, {1, "abc"}}
	encodingsDrawn = draw{{70, ""}, {16, "gzip"}, {2, "gzip, deflate, br"}, {1, "gzip;q=0"}, {1, "*"}, {1, "br"}, {1, "GZIP"}}
	agentsDrawn    = draw{{90, ""}, {3, "curl/8.9.1"}, {2, "Mozilla/5.0 (X11)"}, {1, "Wget/1.2"}, {2, "kubectl/v1.37.1"}}
	usersDrawn     = draw{{88, ""}, {5, "alice"}, {4, "bob"}, {1, "-"}, {1, "?"}}
	methodsDrawn   = draw{{96, "GET"}, {3, "HEAD"}, {1, "OPTIONS"}}
	watchesDrawn   = draw{{20, "watch=1"}, {10, "watch=true"}, {1, "watch"}, {1, "watch="}, {1, "watch=abc"}, {1, "watch=TRUE"}, {1, "watch=1&watch=0"}}
	notWatchDrawn  = draw{{95, ""}, {1, "watch=0"}, {1, "watch=false"}, {1, "watch=FALSE"}, {1, "watch=0&watch=1"}}
	statesDrawn    = draw{{70, unset}, {20, "true"}, {5, "false"}, {1, ""}}
	bookmarksDrawn = draw{{40, unset}, {50, "true"}, {5, "false"}, {1, ""}}
	oddPathsDrawn  = draw{
		{2, "/"}, {2, "/api"}, {2, "/apis"}, {2, "/api/v1"}, {2, "/apis/apps"}, {2, "/apis/apps/v1"}, {1, "/apis/conformance.test/v1"}, {1, "/api/v2"}, {1, "/apis/nobody.test"},
		{1, "/version"}, {1, "/healthz"}, {1, "/livez/ping"}, {1, "/nothing"}, {1, "/api/v1/"}, {1, "/api//v1/configmaps"}, {1, "//api/v1/configmaps"}, {1, "/api/v1/configmaps/"}, {1, "/api/v1/configmaps//"},
		{1, "/api/v1/namespaces/conf//configmaps"}, {1, "/api/v1/namespaces/conf/configmaps/alpha/"}, {1, "/api/v1/namespaces/conf/configmaps/alpha/status"}, {1, "/api/v1/namespaces/conf/pods/alpha/status"},
		{1, "/api/v1/namespaces/conf/pods/alpha/nothing"}, {1, "/api/v1/namespaces/conf/deployments"}, {1, "/api/v1/namespaces/conf/status"}, {1, "/api/v1/namespaces/conf/finalize"}, {1, "/api/v1/namespaces/conf/nodes"},
		{1, "/api/v1/nodes/alpha/status"}, {1, "/api/v1/configmaps/alpha"}, {1, "/api/v1/namespaces/conf/namespaces"}, {1, "/api/v1/namespaces/conf/namespaces/conf"}, {1, "/api/v1/Configmaps"}, {1, "/api/v1/configmap"},
		{1, "/api/v1/namespaces//configmaps"}, {1, "/api/v1/namespaces/conf/configmaps/%61lpha"}, {1, "/api/v1/namespaces/conf/configmaps/a%2Fb"}, {1, "/api/v1/namespaces/%63onf/configmaps"}, {1, "/api/v1/namespaces/../configmaps"},
		{1, "/api/v1/namespaces/conf/configmaps/ALPHA"}, {1, "/api/v1/namespaces/nobody/configmaps"}, {1, "/api/v1/namespaces/nobody/configmaps/alpha"}, {1, "/api/v1/namespaces/Bad_Name/configmaps"},
		{1, "/apis/apps/v1/namespaces/conf/deployments/alpha/scale"}, {1, "/apis/conformance.test/v1/namespaces/conf/gadgets/alpha/status"}, {1, "/apis/conformance.test/v1/namespaces/conf/beacons"}, {1, "/apis/conformance.test/v1/gadgets/alpha"},
		{1, "/api/v1/watch/configmaps"}, {1, "/api/v1/watch/namespaces/conf/configmaps"}, {1, "/api/v1/watch/namespaces/conf/configmaps/alpha"}, {1, "/apis/apps/v1/watch/deployments"}, {1, "/apis/conformance.test/v1/watch/gadgets"},
		{1, "/api/v1/watch"}, {1, "/api/v1/watch/componentstatuses"}, {1, "/api/v1/componentstatuses?watch=1"}, {1, "/openapi/v3"}, {1, "/.well-known/openid-configuration"}, {1, "/api/v1/namespaces/conf/pods/alpha/log"}, {1, "/api/v1/proxy/nodes/alpha"},
	}
)

// generate makes up a request. What only a moment knows is in braces.
func (g *ground) generate() request {
	c := g.chance
	s := sorts[c.IntN(len(sorts))]
	ns := ""
	if s.namespaced && c.IntN(3) > 0 {
		ns = grounds[c.IntN(len(grounds))]
		if c.IntN(2) == 0 {
			ns = "conf"
		}
	}
	r := request{method: methodsDrawn.pick(c), accept: acceptsDrawn.pick(c), user: usersDrawn.pick(c), header: map[string]string{}}
	for name, value := range map[string]string{"Accept-Encoding": encodingsDrawn.pick(c), "User-Agent": agentsDrawn.pick(c)} {
		if value != "" {
			r.header[name] = value
		}
	}
	if r.user == "" && c.IntN(60) == 0 {
		r.header["Impersonate-User"] = []string{"alice", "bob", "nobody"}[c.IntN(3)]
	}
	var q query
	add := func(name string, d draw) {
		if value := d.pick(c); value != unset {
			q = append(q, name+"="+value)
		}
	}
	switch n := c.IntN(100); {
	case n < 14:
		if s.namespaced && ns == "" {
			ns = "conf"
		}
		name := append([]string{"nobody", "conf"}, objectNames...)[c.IntN(len(objectNames)+2)]
		r.path = s.path(ns, name)
		add("resourceVersion", versionsDrawn)
		if c.IntN(15) == 0 {
			q = append(q, "watch=1")
		}
	case n < 20:
		r.path = oddPathsDrawn.pick(c)
		if c.IntN(3) == 0 {
			add("resourceVersion", versionsDrawn)
		}
		if strings.Contains(r.path, "/watch") {
			q = append(q, "timeoutSeconds=1")
		}
	case n < 32:
		r.path = s.path(ns, "")
		q = append(q, watchesDrawn.pick(c), "timeoutSeconds="+map[bool]string{true: "2", false: "1"}[s.plural == "events"])
		add("resourceVersion", versionsDrawn)
		if state := statesDrawn.pick(c); state != unset {
			q = append(q, "sendInitialEvents="+state)
			if c.IntN(8) > 0 {
				q = append(q, "resourceVersionMatch=NotOlderThan")
			}
		} else {
			add("resourceVersionMatch", draw{{95, unset}, {5, "NotOlderThan"}})
		}
		add("allowWatchBookmarks", bookmarksDrawn)
		add("labelSelector", labelsDrawn)
		add("fieldSelector", fieldsDrawn)
	default:
		r.path = s.path(ns, "")
		if c.IntN(50) == 0 {
			r.path += "/"
		}
		add("resourceVersion", versionsDrawn)
		add("resourceVersionMatch", matchesDrawn)
		add("limit", limitsDrawn)
		add("continue", continuesDrawn)
		add("labelSelector", labelsDrawn)
		add("fieldSelector", fieldsDrawn)
		if w := notWatchDrawn.pick(c); w != "" {
			q = append(q, w)
		}
		if c.IntN(60) == 0 {
			q = append(q, []string{"timeout=32s", "timeout=abc", "timeout=0", "timeoutSeconds=abc", "unknown=1", "export=true", "includeObject=Object", "includeObject=Foo", "limit=1&limit=2", "%zz", "&&", "a=b;c=d", "sendInitialEvents=true"}[c.IntN(13)])
		}
	}
	add("pretty", prettyDrawn)
	c.Shuffle(len(q), func(i, j int) { q[i], q[j] = q[j], q[i] })
	collection, _, _ := strings.Cut(r.path, "?")
	for i, option := range q {
		name, value, given := strings.Cut(option, "=")
		if value == "{field}" {
			if value = "metadata.name=beta"; len(s.fields) > 0 {
				value = s.fields[c.IntN(len(s.fields))]
			}
		}
		if given && value != "{token}" && strings.HasSuffix(name, "Selector") {
			q[i] = name + "=" + url.QueryEscape(value)
		}
		if value == "{own}" {
			q[i] = name + "={own " + s.path("", "") + "}"
		}
		if value == "{token}" {
			q[i] = name + "={token " + strings.TrimSuffix(collection, "/") + "}"
		}
	}
	if path, own, found := strings.Cut(r.path, "?"); found {
		r.path, q = path, append(q, own)
	}
	return q.on(r.path).like(r)
}

// like takes all but the path from another request.
func (r request) like(other request) request {
	other.path = r.path
	return other
}

// now fills in what only this moment knows.
func (g *ground) now(r request) request {
	r.path = strings.NewReplacer("{current}", fmt.Sprint(g.current), "{old}", fmt.Sprint(g.old)).Replace(r.path)
	if before, after, found := strings.Cut(r.path, "{own "); found {
		collection, rest, _ := strings.Cut(after, "}")
		v, known := g.own[collection]
		if !known {
			v = g.current
		}
		r.path = before + fmt.Sprint(v) + rest
	}
	if before, after, found := strings.Cut(r.path, "{token "); found {
		collection, rest, _ := strings.Cut(after, "}")
		token := g.tokens[collection]
		if token == "" {
			token = g.tokens["/api/v1/configmaps"]
		}
		r.path = before + url.QueryEscape(token) + rest
	}
	return r
}

// conformanceGenerated sends generated requests both ways. Between batches of
// them objects are made, changed and removed.
func conformanceGenerated(t *testing.T) {
	seed := seeded(t)
	g := &ground{t: t, chance: chances(seed, 1), there: map[string]bool{}}
	began := time.Now()
	g.furnish()
	t.Logf("furnished in %v", time.Since(began).Round(time.Millisecond))
	found := &findings{t: t}
	const batch = 250
	for left := conformancePairs(t); left > 0; left -= batch {
		var all []request
		for range min(batch, left) {
			all = append(all, g.now(g.generate()))
		}
		// Watches take their time, whatever else is done.
		slices.SortStableFunc(all, func(a, b request) int { return lasts(b) - lasts(a) })
		workers(24, all, func(_ int, r request) { found.note(r, sides{upstream, proxied}.compareAtLeisure(r)) })
		if left > batch {
			for range 40 {
				g.write(sorts[g.chance.IntN(len(sorts))], grounds[g.chance.IntN(len(grounds))], objectNames[g.chance.IntN(len(objectNames))])
			}
			g.turn()
		}
	}
	found.report()
	t.Logf("%v in all", time.Since(began).Round(time.Millisecond))
}

func lasts(r request) int {
	seconds, _ := strconv.Atoi(r.query().Get("timeoutSeconds"))
	return seconds
}
