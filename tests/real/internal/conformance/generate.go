package conformance

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

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/parallel"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/random"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// pairs returns the number of request pairs to generate.
func pairs(t *testing.T) int {
	if text := os.Getenv("CONFORMANCE_PAIRS"); text != "" {
		return require.Value(strconv.Atoi(text))(t)
	}
	return 1500
}

// Resource is a type for which requests are generated.
type Resource struct {
	// Root is the path of the type's version, such as /apis/apps/v1.
	Root, Plural string
	Namespaced   bool
	// body is an object without its metadata, in which NS stands for the namespace. If it is
	// empty, no objects are made.
	body string
	// fields are field selectors with values that occur.
	fields []string
}

// Path returns the path of a collection or of an object.
func (s Resource) Path(ns, name string) string {
	path := s.Root
	if ns != "" {
		path += "/namespaces/" + ns
	}
	path += "/" + s.Plural
	if name != "" {
		path += "/" + name
	}
	return path
}

const (
	PodTemplate = `{"metadata":{"labels":{"a":"b"}},"spec":{"restartPolicy":"Always","containers":[{"name":"c","image":"example.test/c:1"}]}}`
	jobTemplate = `{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"example.test/c:1"}]}}`
	gadgets     = "gadgets.conformance.test"
	beacons     = "beacons.conformance.test"
)

var resources = []Resource{
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
	{"/api/v1", "replicationcontrollers", true, `"spec":{"replicas":0,"selector":{"a":"b"},"template":` + PodTemplate + `}`, []string{"status.replicas=0"}},
	{"/api/v1", "limitranges", true, `"spec":{"limits":[]}`, nil},
	{"/api/v1", "persistentvolumeclaims", true, `"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}`, nil},
	{"/api/v1", "events", true, `"type":"Normal","reason":"Tested","message":"m","involvedObject":{"kind":"Pod","namespace":"NS","name":"p"},"source":{"component":"test"}`,
		[]string{"reason=Tested", "involvedObject.kind=Pod", "involvedObject.name=q", "source=test", "type=Normal", "reportingComponent="}},
	{"/apis/events.k8s.io/v1", "events", true, "", []string{"regarding.kind=Pod", "reason=Tested", "reportingController="}},
	{"/api/v1", "namespaces", false, "", []string{"status.phase=Active", "metadata.name=conf"}},
	{"/api/v1", "nodes", false, `"spec":{"unschedulable":true}`, []string{"spec.unschedulable=true", "spec.unschedulable!=true"}},
	{"/apis/apps/v1", "deployments", true, `"spec":{"replicas":1,"selector":{"matchLabels":{"a":"b"}},"template":` + PodTemplate + `}`, nil},
	{"/apis/apps/v1", "statefulsets", true, `"spec":{"replicas":1,"serviceName":"s","selector":{"matchLabels":{"a":"b"}},"template":` + PodTemplate + `}`, nil},
	{"/apis/apps/v1", "daemonsets", true, `"spec":{"selector":{"matchLabels":{"a":"b"}},"template":` + PodTemplate + `}`, nil},
	{"/apis/autoscaling/v2", "horizontalpodautoscalers", true, `"spec":{"maxReplicas":3,"scaleTargetRef":{"kind":"Deployment","name":"alpha","apiVersion":"apps/v1"},"metrics":[{"type":"Resource","resource":{"name":"memory","target":{"type":"Utilization","averageUtilization":50}}}]}`, nil},
	{"/apis/autoscaling/v1", "horizontalpodautoscalers", true, "", nil},
	{"/apis/batch/v1", "jobs", true, `"spec":{"template":` + jobTemplate + `}`, []string{"status.successful=0"}},
	{"/apis/batch/v1", "cronjobs", true, `"spec":{"schedule":"* * * * *","jobTemplate":{"spec":{"template":` + jobTemplate + `}}}`, nil},
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

// apiVersion returns the apiVersion of the type's objects.
func (s Resource) apiVersion() string {
	return strings.TrimPrefix(strings.TrimPrefix(s.Root, "/apis/"), "/api/")
}

var (
	namespaces  = []string{"conf", "conf-b", "conf0"}
	objectNames = []string{"alpha", "beta", "alpha-b", "alpha.b", "gamma"}
)

// generator makes random requests, and the random writes between them.
type generator struct {
	t      *testing.T
	chance *rand.Rand
	// there holds the paths of existing objects.
	there map[string]bool
	// current is the version after all writes; old is that of the batch before.
	current, old uint64
	// own is the newest version among each type's objects.
	own    map[string]uint64
	tokens map[string]string
}

func (g *generator) furnish() {
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
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: objects.CRDPath, Body: definition})
	}
	for _, plural := range []string{"gadgets", "beacons"} {
		for _, to := range testbed.Targets() {
			(objects.Widget{Group: "conformance.test", Plural: plural}).AwaitServed(t, to)
		}
	}
	for _, ns := range namespaces {
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: "/api/v1/namespaces", Body: `{"metadata":{"name":"` + ns + `","labels":{"tier":"gold"}}}`})
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
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: rbac + path, Body: body})
	}
	for _, may := range []api.Request{{Path: "/api/v1/namespaces/conf/configmaps", User: "alice"}, {Path: "/api/v1/nodes", User: "bob"}} {
		for _, to := range testbed.Targets() {
			poll.Until(t, "the rights take effect", func() error {
				if a := to.Send(t, may); a.Status != 200 {
					return fmt.Errorf("%d", a.Status)
				}
				return nil
			})
		}
	}
	for _, s := range resources {
		for i := range 2 * len(namespaces) {
			g.write(s, namespaces[i%len(namespaces)], objectNames[i/len(namespaces)])
		}
	}
	g.turn()
}

// write creates, changes or deletes one object.
func (g *generator) write(s Resource, ns, name string) {
	if s.body == "" {
		return
	}
	if !s.Namespaced {
		ns = ""
	}
	if s.Plural != "configmaps" {
		// Some types do not accept dots in names.
		name = strings.ReplaceAll(name, ".", "0")
	}
	path := s.Path(ns, name)
	tier := []string{"gold", "iron", "lead"}[g.chance.IntN(3)]
	r := api.Request{Method: "POST", Path: s.Path(ns, "")}
	switch {
	case !g.there[path]:
		r.Body = fmt.Sprintf(`{"metadata":{"name":"%s","labels":{"tier":"%s","app":"%s"}},%s}`, name, tier, name, strings.ReplaceAll(s.body, "NS", ns))
		if strings.Contains(s.Root, "conformance.test") {
			kind := strings.ToUpper(s.Plural[:1]) + strings.TrimSuffix(s.Plural[1:], "s")
			r.Body = fmt.Sprintf(`{"apiVersion":"%s","kind":"%s",%s`, s.apiVersion(), kind, r.Body[1:])
		}
	case g.chance.IntN(3) == 0:
		r = api.Request{Method: "DELETE", Path: path, Body: `{"propagationPolicy":"Background","gracePeriodSeconds":0}`}
	default:
		r = api.Request{Method: "PATCH", Path: path, ContentType: api.MergePatch,
			Body: fmt.Sprintf(`{"metadata":{"labels":{"tier":"%s"},"annotations":{"n":"%d"}}}`, tier, g.chance.IntN(1000))}
	}
	// Deleted claims stay: the controller that removes them does not run here.
	stays := r.Method != "DELETE" || s.Plural == "persistentvolumeclaims"
	a := testbed.Targets()[g.chance.IntN(2)].Send(g.t, r)
	switch {
	case a.Status == http.StatusNotFound && g.there[path]:
		// Upstream may have removed the object itself: some releases do so with a service's
		// endpoints.
		stays = false
	case a.Status >= 300:
		g.t.Fatalf("%v: %d %s", r, a.Status, a.Body)
	}
	g.there[path] = stays
}

// turn ends a batch of writes. It waits until both sides have seen them, and collects new
// versions and tokens to ask for.
func (g *generator) turn() {
	t := g.t
	g.old, g.current = g.current, require.Value(testbed.Upstream.Revision())(t)
	if g.old == 0 {
		g.old = g.current
	}
	g.tokens, g.own = map[string]string{}, map[string]uint64{}
	for _, s := range resources {
		for _, ns := range []string{"", "conf"} {
			if ns != "" && !s.Namespaced {
				continue
			}
			a := testbed.Upstream.Send(t, api.Request{Path: s.Path(ns, "") + "?limit=2"})
			if list, _, ok := api.ParseList("application/json", a.Body); ok && list.Continue != "" {
				g.tokens[s.Path(ns, "")] = list.Continue
			}
		}
		if s.body == "" {
			continue
		}
		want := require.Value(testbed.Upstream.Must(t, api.Request{Path: s.Path("", "")}).Items())(t)
		for _, v := range want {
			g.own[s.Path("", "")] = max(g.own[s.Path("", "")], v)
		}
		for _, accept := range []string{"", api.ProtobufType} {
			g.settle(s, accept, want)
		}
	}
}

// settle waits until answers from memory equal upstream's present state.
func (g *generator) settle(s Resource, accept string, want map[string]uint64) {
	for _, to := range testbed.Targets() {
		poll.Until(g.t, to.Name+" has the newest "+s.Plural, func() error {
			a, err := to.Try(api.Request{Path: s.Path("", "") + "?resourceVersion=0", Accept: accept})
			if err != nil || a.Status == http.StatusNotAcceptable {
				return err
			}
			got, err := a.Items()
			if err == nil && !maps.Equal(got, want) {
				err = poll.ErrNotYet
			}
			return err
		})
	}
}

// weighted is a choice between values, each with a weight.
type weighted []struct {
	weight int
	value  string
}

func (d weighted) pick(chance *rand.Rand) string {
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

// unset stands for an option that is not given.
const unset = "\x00"

var (
	acceptsDrawn = weighted{
		{50, ""}, {8, "application/json"}, {16, api.ProtobufType}, {8, api.ProtobufType + ",application/json"}, {4, "*/*"}, {2, "application/yaml"},
		{4, "application/json;as=Table;g=meta.k8s.io;v=v1"}, {2, "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"},
		{4, "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}, {4, "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"},
		{3, api.ProtobufType + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"},
		{3, api.ProtobufType + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}, {1, "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1beta1"},
		{1, "application/json;as=Table"}, {1, "application/json;as=Foo;g=meta.k8s.io;v=v1,application/json"}, {1, "application/json;as=Foo;g=meta.k8s.io;v=v1"},
		{1, "text/html"}, {1, "application/*"}, {1, "text/html, application/xhtml+xml, */*;q=0.8"}, {1, "application/json;q=0.2, " + api.ProtobufType + ";q=0.9"},
		{1, "application/yaml;q=0.1,application/json;q=0.1"}, {1, "application/cbor"}, {1, "application/cbor, application/json"}, {1, api.ProtobufType + ";q=0, application/json"},
		{1, "application/json;pretty=1"}, {1, "application/json;charset=utf-8"}, {1, "application/json;stream=watch"}, {1, api.ProtobufType + ";stream=watch"}, {1, "application/json;stream=other"},
		{1, "APPLICATION/JSON"}, {1, "application/json;q=abc"}, {1, ", ,application/json"}, {1, "application/json; as=PartialObjectMetadata; v=v1; g=meta.k8s.io"},
		{1, "application/json;profile=x"}, {1, "nonsense"}, {1, "*/*;q=0.1, " + api.ProtobufType}, {1, "application/json, */*"},
	}
	versionsDrawn = weighted{
		{30, unset}, {40, "0"}, {4, "{current}"}, {8, "{own}"}, {8, "{old}"}, {2, "1"}, {1, "007"}, {1, "abc"}, {1, ""}, {1, "-1"}, {1, "18446744073709551616"}, {1, "0x10"}, {1, "00"},
	}
	matchesDrawn   = weighted{{80, unset}, {8, "NotOlderThan"}, {8, "Exact"}, {1, ""}, {1, "exact"}}
	limitsDrawn    = weighted{{70, unset}, {6, "1"}, {6, "2"}, {4, "5"}, {3, "500"}, {1, "0"}, {1, "-1"}, {1, "abc"}, {1, ""}, {1, "9223372036854775808"}}
	continuesDrawn = weighted{{90, unset}, {8, "{token}"}, {1, "abc"}, {1, ""}, {1, "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTEsInN0YXJ0IjoiYVx1MDAwMCJ9"}}
	labelsDrawn    = weighted{
		{70, unset}, {6, "tier=gold"}, {3, "tier!=gold"}, {3, "tier in (gold,iron)"}, {2, "tier notin (gold)"}, {2, "tier"}, {2, "!tier"}, {1, "tier=gold,app=alpha"}, {1, "app==beta"},
		{1, ""}, {1, "tier="}, {1, "tier in ()"}, {1, "tier gt gold"}, {1, "n>5"}, {1, "_x=1"}, {1, "tier=_x"}, {1, "tier=gold,"}, {1, ",tier=gold"}, {1, "tier in (gold"}, {1, "  tier  =  gold "}, {1, "a=b=c"}, {1, "tier=gold,tier=iron"},
	}
	fieldsDrawn = weighted{
		{66, unset}, {5, "metadata.name=alpha"}, {2, "metadata.name!=alpha"}, {1, "metadata.name=nobody"}, {3, "metadata.namespace=conf"}, {1, "metadata.namespace!=conf"}, {14, "{field}"},
		{1, "metadata.name=alpha,metadata.namespace=conf"}, {1, "metadata.name=alpha,metadata.name=beta"}, {1, ""}, {1, "="}, {1, "metadata.name"}, {1, "spec.nothing=1"}, {1, `metadata.name=a\,b`}, {1, `metadata.name=\x`},
		{1, "metadata.name=a=b"}, {1, "metadata.name==alpha"}, {1, "metadata.uid=1"}, {1, " metadata.name=alpha"}, {1, ",metadata.name=alpha,"}, {1, "metadata.labels=x"},
	}
	prettyDrawn    = weighted{{80, unset}, {8, "true"}, {4, "1"}, {3, "false"}, {2, ""}, {1, "abc"}, {1, "T"}, {1, "0"}}
	encodingsDrawn = weighted{{70, ""}, {16, "gzip"}, {2, "gzip, deflate, br"}, {1, "gzip;q=0"}, {1, "*"}, {1, "br"}, {1, "GZIP"}}
	agentsDrawn    = weighted{{74, ""}, {12, "curl/8.9.1"}, {6, "Mozilla/5.0 (X11)"}, {3, "Wget/1.2"}, {2, "kubectl/v1.37.1"}, {1, "Curl/8"}, {1, "my-curl/8"}, {1, "Mozilla/4.0"}}
	usersDrawn     = weighted{{88, ""}, {5, "alice"}, {4, "bob"}, {1, "-"}, {1, "?"}}
	methodsDrawn   = weighted{{96, "GET"}, {3, "HEAD"}, {1, "OPTIONS"}}
	watchesDrawn   = weighted{{20, "watch=1"}, {10, "watch=true"}, {1, "watch"}, {1, "watch="}, {1, "watch=abc"}, {1, "watch=TRUE"}, {1, "watch=1&watch=0"}}
	notWatchDrawn  = weighted{{95, ""}, {1, "watch=0"}, {1, "watch=false"}, {1, "watch=FALSE"}, {1, "watch=0&watch=1"}}
	statesDrawn    = weighted{{70, unset}, {20, "true"}, {5, "false"}, {1, ""}}
	bookmarksDrawn = weighted{{40, unset}, {50, "true"}, {5, "false"}, {1, ""}}
	oddPathsDrawn  = weighted{
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

// generate returns a random request. Values that are known only later are in braces.
func (g *generator) generate() api.Request {
	c := g.chance
	s := resources[c.IntN(len(resources))]
	ns := ""
	if s.Namespaced && c.IntN(3) > 0 {
		ns = namespaces[c.IntN(len(namespaces))]
		if c.IntN(2) == 0 {
			ns = "conf"
		}
	}
	r := api.Request{Method: methodsDrawn.pick(c), Accept: acceptsDrawn.pick(c), User: usersDrawn.pick(c), Header: map[string]string{}}
	for name, value := range map[string]string{"Accept-Encoding": encodingsDrawn.pick(c), "User-Agent": agentsDrawn.pick(c)} {
		if value != "" {
			r.Header[name] = value
		}
	}
	if r.User == "" && c.IntN(60) == 0 {
		r.Header["Impersonate-User"] = []string{"alice", "bob", "nobody"}[c.IntN(3)]
	}
	var q api.Query
	add := func(name string, d weighted) {
		if value := d.pick(c); value != unset {
			q = append(q, name+"="+value)
		}
	}
	switch n := c.IntN(100); {
	case n < 14:
		if s.Namespaced && ns == "" {
			ns = "conf"
		}
		name := append([]string{"nobody", "conf"}, objectNames...)[c.IntN(len(objectNames)+2)]
		r.Path = s.Path(ns, name)
		add("resourceVersion", versionsDrawn)
		if c.IntN(15) == 0 {
			q = append(q, "watch=1")
		}
	case n < 20:
		r.Path = oddPathsDrawn.pick(c)
		if c.IntN(3) == 0 {
			add("resourceVersion", versionsDrawn)
		}
		if strings.Contains(r.Path, "/watch") {
			q = append(q, "timeoutSeconds=1")
		}
	case n < 32:
		r.Path = s.Path(ns, "")
		q = append(q, watchesDrawn.pick(c), "timeoutSeconds="+map[bool]string{true: "2", false: "1"}[s.Plural == "events"])
		add("resourceVersion", versionsDrawn)
		if state := statesDrawn.pick(c); state != unset {
			q = append(q, "sendInitialEvents="+state)
			if c.IntN(8) > 0 {
				q = append(q, "resourceVersionMatch=NotOlderThan")
			}
		} else {
			add("resourceVersionMatch", weighted{{95, unset}, {5, "NotOlderThan"}})
		}
		add("allowWatchBookmarks", bookmarksDrawn)
		add("labelSelector", labelsDrawn)
		add("fieldSelector", fieldsDrawn)
	default:
		r.Path = s.Path(ns, "")
		if c.IntN(50) == 0 {
			r.Path += "/"
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
	collection, _, _ := strings.Cut(r.Path, "?")
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
			q[i] = name + "={own " + s.Path("", "") + "}"
		}
		if value == "{token}" {
			q[i] = name + "={token " + strings.TrimSuffix(collection, "/") + "}"
		}
	}
	if path, own, found := strings.Cut(r.Path, "?"); found {
		r.Path, q = path, append(q, own)
	}
	return q.On(r.Path).Like(r)
}

// now replaces the values in braces by those of this moment.
func (g *generator) now(r api.Request) api.Request {
	r.Path = strings.NewReplacer("{current}", fmt.Sprint(g.current), "{old}", fmt.Sprint(g.old)).Replace(r.Path)
	if before, after, found := strings.Cut(r.Path, "{own "); found {
		collection, rest, _ := strings.Cut(after, "}")
		v, known := g.own[collection]
		if !known {
			v = g.current
		}
		r.Path = before + fmt.Sprint(v) + rest
	}
	if before, after, found := strings.Cut(r.Path, "{token "); found {
		collection, rest, _ := strings.Cut(after, "}")
		token := g.tokens[collection]
		if token == "" {
			token = g.tokens["/api/v1/configmaps"]
		}
		r.Path = before + url.QueryEscape(token) + rest
	}
	return r
}

// Generated sends random requests to both sides. Between batches, objects are created, changed
// and deleted.
func Generated(t *testing.T) { GeneratedBetween(t, func(func()) {}) }

// GeneratedBetween does the same, and calls a function between batches. That may replace
// upstream. It is given a function that makes both sides forget old versions: those that are asked
// for are younger then.
func GeneratedBetween(t *testing.T, between func(renew func())) {
	seed := random.Seed(t)
	g := &generator{t: t, chance: random.Stream(seed, 1), there: map[string]bool{}}
	began := time.Now()
	g.furnish()
	t.Logf("objects created in %v", time.Since(began).Round(time.Millisecond))
	found := &compare.Findings{T: t}
	const batch = 250
	for left := pairs(t); left > 0; left -= batch {
		var all []api.Request
		for range min(batch, left) {
			all = append(all, g.now(g.generate()))
		}
		// Watches last until their deadline, so they start first.
		slices.SortStableFunc(all, func(a, b api.Request) int { return WatchSeconds(b) - WatchSeconds(a) })
		parallel.ForEach(24, all, func(_ int, r api.Request) {
			found.Add(r, compare.Sides{Right: testbed.Upstream, Asked: testbed.Proxied}.CompareAtLeisure(r))
		})
		if left > batch {
			for range 40 {
				g.write(resources[g.chance.IntN(len(resources))], namespaces[g.chance.IntN(len(namespaces))], objectNames[g.chance.IntN(len(objectNames))])
			}
			g.turn()
			between(g.renew)
		}
	}
	found.Report()
	t.Logf("%v in all", time.Since(began).Round(time.Millisecond))
}

// renew changes an object of every type until no older version is asked for.
func (g *generator) renew() {
	for range 2 {
		for _, s := range resources {
			for _, name := range objectNames[:2] {
				g.write(s, namespaces[0], name)
			}
		}
		g.turn()
	}
}

// WatchSeconds returns the deadline of a watch, or 0.
func WatchSeconds(r api.Request) int {
	seconds, _ := strconv.Atoi(r.Values().Get("timeoutSeconds"))
	return seconds
}
