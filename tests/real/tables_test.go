package real

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/fleet"
	"watershed.test/real/internal/kubectl"
	"watershed.test/real/internal/metrics"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/parallel"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
	"watershed.test/real/internal/usage"
)

const (
	tableV1      = "application/json;as=Table;v=v1;g=meta.k8s.io"
	tableV1Beta1 = "application/json;as=Table;v=v1beta1;g=meta.k8s.io"
	// tableOfKubectl is what kubectl get sends.
	tableOfKubectl = fleet.AcceptOfKubectl
)

// tableObject is an object to be printed, and the status that it gets.
type tableObject struct{ path, name, spec, status string }

// plural returns the plural name of the object's type.
func (o tableObject) plural() string { return o.path[strings.LastIndex(o.path, "/")+1:] }

// before returns a moment that lies as far back, as JSON.
func before(age time.Duration) string {
	return `"` + time.Now().Add(-age).UTC().Format(time.RFC3339) + `"`
}

// unusualPods are pods that printers have cases for.
func unusualPods(ns string) (all []tableObject) {
	path := "/api/v1/namespaces/" + ns + "/pods"
	const main = `"containers":[{"name":"main","image":"example.test/main:1"},{"name":"side","image":"i"}]`
	ended := func(code int, more string) string {
		return fmt.Sprintf(`{"terminated":{"exitCode":%d%s,"finishedAt":%s}}`, code, more, before(90*time.Minute))
	}
	container := func(name, state, more string) string {
		return fmt.Sprintf(`{"name":"%s","image":"i","imageID":"","ready":false,"restartCount":0,"state":%s%s}`, name, state, more)
	}
	running := `{"running":{"startedAt":` + before(time.Hour) + `}}`
	ready := `,"ready":true,"started":true`
	for i, p := range []struct{ spec, status string }{
		{main, ""},
		{main + `,"nodeName":"far"`, `"phase":"Running","podIPs":[{"ip":"10.0.0.1"}],"podIP":"10.0.0.1","conditions":[{"type":"Ready","status":"True"}],"containerStatuses":[` + container("main", running, ready) + `,` + container("side", running, ready) + `]`},
		{main, `"phase":"Running","containerStatuses":[` + container("main", `{"waiting":{"reason":"CrashLoopBackOff"}}`, `,"restartCount":7,"lastState":`+ended(1, "")) + `,` + container("side", running, ready) + `]`},
		{main, `"phase":"Succeeded","containerStatuses":[` + container("main", ended(0, `,"reason":"Completed"`), "") + `]`},
		{main, `"phase":"Failed","reason":"Evicted","message":"<&>"`},
		{main, `"phase":"Failed","containerStatuses":[` + container("main", ended(137, `,"signal":9`), "") + `,` + container("side", ended(3, ""), "") + `]`},
		{main, `"phase":"Running","containerStatuses":[` + container("main", ended(0, `,"reason":"Completed"`), "") + `,` + container("side", running, ready) + `]`},
		{main, `"phase":"Running","conditions":[{"type":"Ready","status":"True"}],"containerStatuses":[` + container("main", ended(0, `,"reason":"Completed"`), "") + `,` + container("side", running, ready) + `]`},
		{main, `"phase":"Failed","containerStatuses":[` + container("main", ended(0, `,"reason":"Completed"`), "") + `,` + container("side", ended(1, `,"reason":"Error"`), "") + `]`},
		{main, `"phase":"Running","containerStatuses":[` + container("main", ended(0, `,"reason":"Completed"`), "") + `,` + container("side", ended(2, `,"reason":"OOMKilled"`), "") + `,` + container("third", running, ready) + `]`},
		{main, `"phase":"Pending","conditions":[{"type":"PodScheduled","status":"False","reason":"SchedulingGated"}]`},
		{main, `"phase":"Pending","nominatedNodeName":"soon"`},
		{main + `,"readinessGates":[{"conditionType":"a.test/x"},{"conditionType":"a.test/y"}]`, `"conditions":[{"type":"a.test/x","status":"True"},{"type":"a.test/y","status":"False"}]`},
		{main + `,"initContainers":[{"name":"one","image":"i"},{"name":"two","image":"i"}]`, `"phase":"Pending","initContainerStatuses":[` + container("one", ended(0, ""), "") + `,` + container("two", running, "") + `]`},
		{main + `,"initContainers":[{"name":"one","image":"i"}]`, `"phase":"Pending","initContainerStatuses":[` + container("one", ended(2, ""), `,"restartCount":3,"lastState":`+ended(2, "")) + `]`},
		{main + `,"initContainers":[{"name":"one","image":"i"}]`, `"phase":"Pending","initContainerStatuses":[` + container("one", ended(2, `,"reason":"Error"`), "") + `]`},
		{main + `,"initContainers":[{"name":"one","image":"i"}]`, `"phase":"Pending","initContainerStatuses":[` + container("one", ended(2, `,"signal":11`), "") + `]`},
		{main + `,"initContainers":[{"name":"one","image":"i"}]`, `"phase":"Pending","initContainerStatuses":[` + container("one", `{"waiting":{"reason":"ImagePullBackOff"}}`, "") + `]`},
		{main + `,"initContainers":[{"name":"one","image":"i"}]`, `"phase":"Pending","initContainerStatuses":[` + container("one", `{"waiting":{"reason":"PodInitializing"}}`, "") + `]`},
		{main + `,"initContainers":[{"name":"one","image":"i","restartPolicy":"Always"}]`, `"phase":"Running","conditions":[{"type":"Initialized","status":"True"}],"initContainerStatuses":[` + container("one", running, `,"ready":true,"started":true,"restartCount":2,"lastState":`+ended(2, "")) + `],"containerStatuses":[` + container("main", running, ready) + `]`},
		{main + `,"initContainers":[{"name":"one","image":"i","restartPolicy":"Always"}]`, `"phase":"Pending","initContainerStatuses":[` + container("one", running, `,"started":false`) + `]`},
	} {
		all = append(all, tableObject{path, fmt.Sprintf("pod-%d", i), `"spec":{` + p.spec + `}`, p.status})
	}
	return append(all, tableObject{path, "leaving", `"spec":{` + main + `}`, `"phase":"Running"`})
}

// unusualWorkloads are objects of the other types, some without a status.
func unusualWorkloads(ns string) []tableObject {
	in := func(group, plural string) string { return group + "/namespaces/" + ns + "/" + plural }
	core, apps, batch := "/api/v1", "/apis/apps/v1", "/apis/batch/v1"
	const containers = `"spec":{"restartPolicy":"%s","containers":[{"name":"main","image":"example.test/main:1"},{"name":"side","image":"i"}]%s}`
	template := func(policy, more string) string {
		return `"template":{"metadata":{"labels":{"app":"x","tier":"y"}},` + fmt.Sprintf(containers, policy, more) + `}`
	}
	always, never := template("Always", ""), template("Never", "")
	selector := `"selector":{"matchLabels":{"app":"x"},"matchExpressions":[{"key":"tier","operator":"In","values":["z","y"]},{"key":"app","operator":"Exists"},{"key":"none","operator":"DoesNotExist"},{"key":"a","operator":"NotIn","values":["b"]}]},`
	job := func(name, spec, status string) tableObject {
		return tableObject{in(batch, "jobs"), name, `"spec":{` + spec + never + `}`, status}
	}
	condition := func(kind string) string { return `"conditions":[{"type":"` + kind + `","status":"True"}]` }
	started := `"startTime":` + before(100*time.Minute)
	const networking, policy, rbac = "/apis/networking.k8s.io/v1", "/apis/policy/v1", "/apis/rbac.authorization.k8s.io/v1"
	const rule = `"http":{"paths":[{"path":"/","pathType":"Prefix","backend":{"service":{"name":"s","port":{"name":"http"}}}}]}`
	const subjects = `"subjects":[{"kind":"ServiceAccount","namespace":"far","name":"b"},{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"<z>"},{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"a"},{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":"g:1"}]`
	return []tableObject{
		{in(apps, "deployments"), "plain", `"spec":{"selector":{"matchLabels":{"app":"x"}},` + always + `}`, ""},
		{in(apps, "deployments"), "scaled", `"spec":{"replicas":3,` + selector + always + `}`, `"replicas":3,"updatedReplicas":2,"readyReplicas":1,"availableReplicas":1`},
		{in(apps, "replicasets"), "plain", `"spec":{"replicas":0,` + selector + always + `}`, `"replicas":2,"readyReplicas":1,"observedGeneration":1`},
		{in(apps, "statefulsets"), "plain", `"spec":{"serviceName":"s",` + selector + always + `}`, `"replicas":1,"readyReplicas":1`},
		{in(apps, "daemonsets"), "plain", `"spec":{` + selector + always + `}`, ""},
		{in(apps, "daemonsets"), "noted", `"spec":{` + selector + template("Always", `,"nodeSelector":{"b":"1","a":"2","a-b":"3"}`) + `}`, `"desiredNumberScheduled":5,"currentNumberScheduled":4,"numberReady":3,"updatedNumberScheduled":2,"numberAvailable":1,"numberMisscheduled":0`},
		job("plain", "", ""),
		job("many", `"completions":5,"parallelism":2,`, started+`,"succeeded":2`),
		job("parallel", `"parallelism":3,`, started),
		job("suspended", `"suspend":true,`, condition("Suspended")),
		job("failing", "", started+`,`+condition("FailureTarget")),
		job("succeeding", `"completionMode":"Indexed","completions":2,"successPolicy":{"rules":[{"succeededCount":1}]},`, started+`,`+condition("SuccessCriteriaMet")),
		{in(batch, "cronjobs"), "plain", `"spec":{"schedule":"*/5 * * * *","jobTemplate":{"spec":{` + never + `}}}`, ""},
		{in(batch, "cronjobs"), "zoned", `"spec":{"schedule":"0 0 * * 1","timeZone":"Etc/UTC","suspend":true,"jobTemplate":{"spec":{` + never + `}}}`, `"lastScheduleTime":` + before(50*time.Hour) + `,"active":[{"name":"a"},{"name":"b"}]`},
		{in(core, "services"), "plain", `"spec":{"selector":{"b":"1","a":"2"},"ports":[{"name":"a","port":80},{"name":"b","port":81,"protocol":"UDP"}]}`, ""},
		{in(core, "services"), "headless", `"spec":{"clusterIP":"None"}`, ""},
		{in(core, "services"), "external", `"spec":{"type":"ExternalName","externalName":"example.test"}`, ""},
		{in(core, "services"), "balanced", `"spec":{"type":"LoadBalancer","externalIPs":["192.0.2.7"],"ports":[{"port":80}]}`, `"loadBalancer":{"ingress":[{"ip":"192.0.2.2"},{"hostname":"b.test"},{"ip":"192.0.2.1"}]}`},
		{in(core, "services"), "pending", `"spec":{"type":"LoadBalancer","ports":[{"port":80}]}`, ""},
		{in(core, "services"), "node-port", `"spec":{"type":"NodePort","externalIPs":["192.0.2.7","192.0.2.8"],"ports":[{"port":80}]}`, ""},
		{in("/apis/discovery.k8s.io/v1", "endpointslices"), "many", `"addressType":"IPv4","ports":[{"name":"a","port":1},{"name":"x"},{"name":"y"},{"name":"d","port":4}],"endpoints":[{"addresses":["192.0.2.1","192.0.2.2"]},{"addresses":["192.0.2.3"]},{"addresses":["192.0.2.4"]}]`, ""},
		{in("/apis/discovery.k8s.io/v1", "endpointslices"), "none", `"addressType":"IPv6","ports":null,"endpoints":null`, ""},
		{in(core, "configmaps"), "empty", `"data":{}`, ""},
		{in(core, "configmaps"), "full", `"data":{"a":"1","b":"<&>"},"binaryData":{"c":"AA=="}`, ""},
		{in(core, "serviceaccounts"), "account", `"secrets":[{"name":"a"}]`, ""},
		{in("/apis/coordination.k8s.io/v1", "leases"), "held", `"spec":{"holderIdentity":"somebody <here>"}`, ""},
		{in("/apis/coordination.k8s.io/v1", "leases"), "free", `"spec":{}`, ""},
		{"/api/v1/persistentvolumes", ns + "-plain", `"spec":{"capacity":{"storage":"1024Mi"},"accessModes":["ReadWriteMany","ReadWriteOnce"],"hostPath":{"path":"/x"}}`, ""},
		{"/api/v1/persistentvolumes", ns + "-full", `"spec":{"capacity":{"storage":"1500M"},"accessModes":["ReadWriteOncePod"],"volumeMode":"Block","storageClassName":"fast","volumeAttributesClassName":"gold","persistentVolumeReclaimPolicy":"Delete","claimRef":{"namespace":"` + ns + `","name":"bound"},"csi":{"driver":"d.test","volumeHandle":"v"}}`, `"phase":"Failed","reason":"<Lost>"`},
		{in(core, "persistentvolumeclaims"), "pending", `"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}`, ""},
		{in(core, "persistentvolumeclaims"), "bound", `"spec":{"accessModes":["ReadOnlyMany","ReadWriteOnce"],"storageClassName":"fast","volumeName":"v","volumeMode":"Block","volumeAttributesClassName":"gold","resources":{"requests":{"storage":"1Gi"}}}`, `"phase":"Bound","accessModes":["ReadOnlyMany","ReadWriteOnce"],"capacity":{"storage":"2048Mi"}`},
		{in(core, "persistentvolumeclaims"), "lost", `"spec":{"accessModes":["ReadWriteMany"],"storageClassName":"","volumeName":"gone","resources":{"requests":{"storage":"1Gi"}}}`, `"phase":"Lost"`},
		{in(networking, "ingresses"), "plain", `"spec":{"defaultBackend":{"service":{"name":"s","port":{"number":80}}}}`, ""},
		{in(networking, "ingresses"), "few", `"spec":{"ingressClassName":"c","rules":[{"host":"a.test"},{"host":"b.test"},{"host":"c.test"}],"tls":[{"hosts":["a.test"]}]}`, `"loadBalancer":{"ingress":[{"ip":"192.0.2.2"},{"hostname":"a-rather-long-name.test"},{"ip":"192.0.2.1"},{"ip":"192.0.2.2"}]}`},
		{in(networking, "ingresses"), "many", `"spec":{"rules":[{"host":"a.test"},{` + rule + `},{"host":"c.test"},{"host":"d.test"},{"host":"e.test"}]}`, ""},
		{in(networking, "networkpolicies"), "all", `"spec":{"podSelector":{}}`, ""},
		{in(networking, "networkpolicies"), "some", `"spec":{"podSelector":` + strings.TrimSuffix(strings.TrimPrefix(selector, `"selector":`), ",") + `}`, ""},
		{in(policy, "poddisruptionbudgets"), "plain", `"spec":{}`, ""},
		{in(policy, "poddisruptionbudgets"), "least", `"spec":{"minAvailable":"50%"}`, `"disruptionsAllowed":2,"currentHealthy":3,"desiredHealthy":1,"expectedPods":3`},
		{in(policy, "poddisruptionbudgets"), "most", `"spec":{"maxUnavailable":0}`, ""},
		{in(rbac, "rolebindings"), "empty", `"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"view"}`, ""},
		{in(rbac, "rolebindings"), "full", `"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"none"},` + subjects, ""},
		{rbac + "/clusterrolebindings", ns + "-full", `"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"none"},` + subjects, ""},
		{"/api/v1/nodes", ns + "-bare", `"spec":{}`, ""},
		{"/api/v1/nodes", ns + "-full", `"spec":{"unschedulable":true}`, `"conditions":[{"type":"Ready","status":"False"},{"type":"Ready","status":"True"}],"addresses":[{"type":"Hostname","address":"h"},{"type":"InternalIP","address":"192.0.2.1"},{"type":"ExternalIP","address":"192.0.2.2"}],"nodeInfo":{"kubeletVersion":"v1","osImage":"os","kernelVersion":"6","containerRuntimeVersion":"c://1","architecture":"amd64","bootID":"","machineID":"","systemUUID":"","kubeProxyVersion":"","operatingSystem":""}`},
	}
}

// eventsOfAges are events whose moments lie all kinds of time back.
func eventsOfAges(ns string) (all []tableObject) {
	path := "/api/v1/namespaces/" + ns + "/events"
	day := 24 * time.Hour
	for i, age := range []time.Duration{-time.Minute, -time.Second, 0, 59 * time.Second, 119 * time.Second, 10*time.Minute - time.Second, 2 * time.Hour, 3*time.Hour + time.Minute, 7*time.Hour + 30*time.Minute, 8 * time.Hour, 47 * time.Hour, 3*day + 5*time.Hour, 9 * day, 700 * day, 800 * day, 1460 * day, 4000 * day} {
		all = append(all, tableObject{path, fmt.Sprintf("aged-%d", i), fmt.Sprintf(`"involvedObject":{"kind":"Pod","name":"p","namespace":"%s","fieldPath":"spec.containers{main}"},"reason":"R","type":"Normal","message":" a\n<b> ","source":{"component":"c","host":"h"},"firstTimestamp":%s,"lastTimestamp":%s,"count":%d`, ns, before(2*age), before(age), i), ""})
	}
	return append(all,
		tableObject{path, "single", fmt.Sprintf(`"involvedObject":{"kind":"Pod","namespace":"%s"},"eventTime":"%s","reportingComponent":"r.test/c","reportingInstance":"i","action":"A","reason":"R","type":"Warning"`, ns, time.Now().Add(-time.Hour).UTC().Format("2006-01-02T15:04:05.000000Z")), ""},
		tableObject{path, "bare", fmt.Sprintf(`"involvedObject":{"namespace":"%s"}`, ns), ""})
}

// makeObjects creates the objects, in parallel.
func makeObjects(t *testing.T, all []tableObject) {
	t.Helper()
	parallel.ForEach(8, all, func(_ int, o tableObject) {
		body := fmt.Sprintf(`{"metadata":{"name":"%s","labels":{"odd":"%d","node-role.kubernetes.io/worker":"","kubernetes.io/role":"extra"},"annotations":{"note":"<&>"},"finalizers":["example.test/keep"]},%s}`, o.name, len(o.name)%2, o.spec)
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: o.path, Body: body})
		if o.status != "" {
			testbed.Upstream.Must(t, api.Request{Method: "PATCH", Path: o.path + "/" + o.name + "/status", ContentType: api.MergePatch, Body: `{"status":{` + o.status + `}}`})
		}
		if o.name == "leaving" {
			testbed.Upstream.Must(t, api.Request{Method: "DELETE", Path: o.path + "/" + o.name})
		}
	})
}

// namespaced returns the objects that are deleted with their namespace.
func namespaced(all []tableObject) []tableObject {
	return slices.DeleteFunc(all, func(o tableObject) bool { return !strings.Contains(o.path, "/namespaces/") })
}

// awaitFromMemory waits until a Table comes from memory. The proxy asks again after a second if it
// could not learn the Table's form.
func awaitFromMemory(t *testing.T, r api.Request) {
	t.Helper()
	if testbed.Direct {
		return
	}
	poll.Until(t, fmt.Sprint(r, " is answered from memory"), func() error {
		if got := testbed.Proxied.Send(t, r); !compare.FromMemory(got) {
			return fmt.Errorf("the source is %q", got.Header.Get("X-Watershed-Source"))
		}
		return nil
	})
}

// nobodyYet names no object of a collection that has none.
const nobodyYet = "nobody-yet"

// compareTables compares Tables of a collection and of an object in it with upstream's, byte for byte.
func compareTables(t *testing.T, collection, name string) {
	t.Helper()
	testbed.Proxied.Must(t, api.Request{Path: collection + "?resourceVersion=0"})
	var requests []api.Request
	for _, accept := range []string{tableV1, tableV1Beta1, tableOfKubectl} {
		for _, query := range []string{
			"?resourceVersion=0", "?limit=500", "?limit=2", "?resourceVersion=0&includeObject=None", "?resourceVersion=0&includeObject=Object",
			"?resourceVersion=0&labelSelector=odd%3D1", "?resourceVersion=0&labelSelector=none", "?resourceVersion=0&includeObject=Foo", "?resourceVersion=0&pretty=true",
			"/" + name + "?resourceVersion=0", "/" + name + "?resourceVersion=0&includeObject=Object", "/nobody?resourceVersion=0",
		} {
			requests = append(requests, api.Request{Path: collection + query, Accept: accept})
		}
		for _, query := range []string{"", "&includeObject=None", "&includeObject=Object", "&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"} {
			requests = append(requests, api.Request{Path: collection + "?watch=1&timeoutSeconds=1&resourceVersion=0" + query, Accept: accept})
		}
	}
	for _, query := range []string{"?resourceVersion=0", "?resourceVersion=0&labelSelector=odd%3D1", "?limit=500"} {
		for _, accept := range []string{tableV1, tableV1Beta1, tableOfKubectl} {
			awaitFromMemory(t, api.Request{Path: collection + query, Accept: accept})
		}
	}
	awaitFromMemory(t, api.Request{Path: collection + "/" + name + "?resourceVersion=0", Accept: tableOfKubectl})
	found := compare.CompareAll(t, requests)
	found.RequireSources("snapshot", "linearizable")
	forwarded := 0
	for source, n := range found.Sources {
		// On a busy machine a proof may be late.
		if strings.HasPrefix(source, "forward") && source != "forward; reason=unproven" {
			forwarded += n
		}
	}
	if name == nobodyYet {
		// Watches of a type without objects are forwarded.
		forwarded -= found.Sources["forward; reason=table"]
	}
	if refused := found.Statuses[http.StatusBadRequest] + found.Statuses[http.StatusNotFound]; forwarded > refused {
		t.Errorf("more than the %d refusals are forwarded: %v", refused, found.Sources)
	}
}

// TestTablesFromMemoryMatchUpstream compares what kubectl get asks for: lists, gets, pages and
// watches of unusual objects, in both versions of the Table.
func TestTablesFromMemoryMatchUpstream(t *testing.T) {
	ns := objects.Namespace(t)
	all := append(append(unusualPods(ns), unusualWorkloads(ns)...), eventsOfAges(ns)...)
	makeObjects(t, all)
	t.Cleanup(func() {
		for _, o := range all {
			if !strings.Contains(o.path, "/namespaces/") {
				testbed.Upstream.Try(api.Request{Method: "PATCH", Path: o.path + "/" + o.name, ContentType: api.MergePatch, Body: `{"metadata":{"finalizers":null}}`})
				testbed.Upstream.Try(api.Request{Method: "DELETE", Path: o.path + "/" + o.name})
			}
		}
	})
	names := map[string]string{"/api/v1/namespaces": ns}
	for _, o := range all {
		names[o.path] = o.name
	}
	// Other tests leave many config maps. While nothing is written, a list of a few of them costs upstream less
	// than to prove it, and is forwarded.
	beside := tableObject{"/api/v1/namespaces/" + objects.Namespace(t) + "/configmaps", "beside", `"data":{}`, ""}
	makeObjects(t, []tableObject{beside})
	for path, name := range names {
		t.Run(path[strings.LastIndex(path, "/")+1:], func(t *testing.T) {
			if strings.HasSuffix(path, "/"+beside.plural()) {
				defer keepWriting(beside)()
			}
			compareTables(t, path, name)
		})
	}
}

// TestTablesOfCustomTypesMatchUpstream has columns of all types, with values that fit them and
// values that do not.
func TestTablesOfCustomTypesMatchUpstream(t *testing.T) {
	ns := objects.Namespace(t)
	w := objects.NewWidget(t)
	columns := `"additionalPrinterColumns":[` + strings.Join([]string{
		`{"name":"Text","type":"string","jsonPath":".spec.text","description":"a <text>"}`,
		`{"name":"Any","type":"string","jsonPath":".spec.any","priority":1}`,
		`{"name":"Integer","type":"integer","format":"int64","jsonPath":".spec.any"}`,
		`{"name":"Number","type":"number","jsonPath":".spec.any"}`,
		`{"name":"Boolean","type":"boolean","jsonPath":".spec.any"}`,
		`{"name":"Date","type":"date","jsonPath":".spec.date"}`,
		`{"name":"Ready","type":"string","jsonPath":".spec.conditions[?(@.type==\"Ready\")].status"}`,
		`{"name":"First","type":"string","jsonPath":".spec.list[0]"}`,
		`{"name":"Last","type":"string","jsonPath":".spec.list[-1]"}`,
		`{"name":"All","type":"string","jsonPath":".spec.list[*]"}`,
		`{"name":"Label","type":"string","jsonPath":".metadata.labels.example\\.test/a"}`,
		`{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}`,
	}, ",") + `]`
	definition := w.Definition(false)
	from, to := strings.Index(definition, `"additionalPrinterColumns"`), strings.Index(definition, `"selectableFields"`)
	definition = definition[:from] + columns + "," + definition[to:]
	definition = strings.Replace(definition, `"properties":{"size"`, `"x-kubernetes-preserve-unknown-fields":true,"properties":{"size"`, 1)
	testbed.Upstream.Must(t, api.Request{Method: "POST", Path: objects.CRDPath, Body: definition})
	t.Cleanup(func() { testbed.Upstream.Try(api.Request{Method: "DELETE", Path: objects.CRDPath + "/" + w.Name()}) })
	for _, to := range testbed.Targets() {
		w.AwaitServed(t, to)
	}
	compareTables(t, w.Path(ns, ""), nobodyYet)
	for i, spec := range []string{
		`"text":"<&> \"quoted\" ü","any":7,"date":` + before(5*time.Hour) + `,"conditions":[{"type":"Other","status":"x"},{"type":"Ready","status":"True"}],"list":["a",{"b":[1,"<"]},3]`,
		`"any":"text","date":"","conditions":[],"list":[]`,
		`"any":true,"date":"null","conditions":[{"status":"x"}],"list":[null]`,
		`"any":null,"text":null,"date":null,"conditions":null,"list":null`,
		`"any":{"b":1,"a":[true,null,"<"]},"date":7,"conditions":[{"type":7}],"list":{"a":1}`,
		`"any":-9007199254740993,"conditions":"x","list":"x"`,
		`"any":[]`,
		``,
		`"any":1234567890.5,"date":"2024-01-01T00:00:00.5+02:00"`,
		`"any":-0.25,"date":"never"`,
		`"any":0.00001,"date":"2024-01-01"`,
		`"any":1e18,"list":[1e21,0.000001]`,
		`"any":9223372036854775807,"date":"2024-01-01T00:00:00-00:30"`,
	} {
		body := fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Widget","metadata":{"name":"w-%d","labels":{"odd":"%d","example.test/a":"b"}},"spec":{%s}}`, w.Group, i, i%2, spec)
		if i == 5 {
			body = strings.Replace(body, "-9007199254740993", "-9007199254740991", 1)
		}
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: w.Path(ns, ""), Body: body})
	}
	compareTables(t, w.Path(ns, ""), "w-0")
	// An integer that is too large is upstream's to print.
	testbed.Upstream.Must(t, api.Request{Method: "POST", Path: w.Path(ns, ""), Body: fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Widget","metadata":{"name":"float"},"spec":{"any":1e19}}`, w.Group)})
	r := api.Request{Path: w.Path(ns, "") + "?limit=500", Accept: tableOfKubectl}
	poll.Until(t, "the list is forwarded", func() error {
		got := testbed.Proxied.Must(t, r)
		if source := got.Header.Get("X-Watershed-Source"); !testbed.Direct && source != "forward; reason=table" {
			return fmt.Errorf("the source is %q", source)
		}
		return nil
	})
	compare.CompareAll(t, []api.Request{r})
	// So is the watch behind such a list, as kubectl get --watch has it, after each change of the number.
	for _, number := range []string{"1e20", "1e21"} {
		list, _, _ := api.ParseList("application/json", testbed.Upstream.Must(t, api.Request{Path: w.Path(ns, "")}).Body)
		testbed.Upstream.Must(t, api.Request{
			Method: "PATCH", Path: w.Path(ns, "float"), ContentType: api.MergePatch, Body: `{"spec":{"any":` + number + `}}`,
		})
		watch := api.Request{
			Path: w.Path(ns, "") + "?watch=1&timeoutSeconds=2&resourceVersion=" + list.ResourceVersion, Accept: tableOfKubectl,
		}
		if events := testbed.Proxied.Must(t, watch); strings.Contains(string(events.Body), "Expired") {
			t.Fatalf("after a change to %s: %s", number, events.Body)
		}
		compare.CompareAll(t, []api.Request{watch})
	}
}

// TestTablesAreWatched watches as Tables what came, changed and went.
func TestTablesAreWatched(t *testing.T) {
	ns := objects.Namespace(t)
	path := "/api/v1/namespaces/" + ns + "/configmaps"
	testbed.Proxied.Must(t, api.Request{Path: path + "?resourceVersion=0"})
	list, _, _ := api.ParseList("application/json", testbed.Upstream.Must(t, api.Request{Path: path}).Body)
	make := func(name string, odd int) {
		body := fmt.Sprintf(`{"metadata":{"name":"%s","labels":{"odd":"%d"}},"data":{"a":"1"}}`, name, odd)
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: path, Body: body})
	}
	patch := func(name, body string) {
		testbed.Upstream.Must(t, api.Request{Method: "PATCH", Path: path + "/" + name, ContentType: api.MergePatch, Body: body})
	}
	make("c-0", 0)
	make("c-1", 1)
	patch("c-1", `{"data":{"b":"2"}}`)
	patch("c-1", `{"metadata":{"labels":{"odd":"0"}}}`)
	patch("c-0", `{"metadata":{"labels":{"odd":"1"}}}`)
	testbed.Upstream.Must(t, api.Request{Method: http.MethodDelete, Path: path + "/c-0"})
	make("last", 1)
	var watches []api.Request
	for _, accept := range []string{tableV1Beta1, tableOfKubectl} {
		for _, query := range []string{"", "&includeObject=None", "&includeObject=Object", "&labelSelector=odd%3D1", "&allowWatchBookmarks=true"} {
			watches = append(watches, api.Request{Path: path + "?watch=1&timeoutSeconds=2&resourceVersion=" + list.ResourceVersion + query, Accept: accept})
		}
	}
	awaitFromMemory(t, api.Request{Path: path + "?resourceVersion=0", Accept: tableOfKubectl})
	compare.CompareAll(t, watches).RequireSources("window")
}

// TestATableWatchThatBeginsWithNothingShowsTheFirstObject watches a type of which there is no object at all, as kubectl
// get --watch does: a list, and a watch from its version.
func TestATableWatchThatBeginsWithNothingShowsTheFirstObject(t *testing.T) {
	ns := objects.Namespace(t)
	w := objects.NewWidget(t)
	testbed.Upstream.Must(t, api.Request{Method: "POST", Path: objects.CRDPath, Body: w.Definition(false)})
	t.Cleanup(func() { testbed.Upstream.Try(api.Request{Method: "DELETE", Path: objects.CRDPath + "/" + w.Name()}) })
	for _, to := range testbed.Targets() {
		w.AwaitServed(t, to)
	}
	path := w.Path(ns, "")
	awaitFromMemory(t, api.Request{Path: path + "?resourceVersion=0"})
	list, _, _ := api.ParseList("application/json", testbed.Proxied.Must(t, api.Request{Path: path + "?limit=500"}).Body)
	testbed.Proxied.Must(t, api.Request{Path: path + "?limit=500", Accept: tableOfKubectl})
	watch := testbed.Proxied.Watch(t, api.Request{Path: path + "?watch=1&resourceVersion=" + list.ResourceVersion, Accept: tableOfKubectl})
	for _, name := range []string{"first", "second"} {
		body := fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Widget","metadata":{"name":"%s"},"spec":{}}`, w.Group, name)
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: path, Body: body})
		e := poll.Receive(t, "the object "+name, watch.Events)
		if e.Type != "ADDED" || e.Object.Kind != "Table" || !strings.Contains(e.Raw, `"`+name+`"`) {
			t.Fatalf("the object %s came as %s", name, e.Raw)
		}
	}
}

// kubectlGetsFromMemory compares what kubectl get prints of a type. It counts where the lists came
// from: none may be forwarded for what it asks. An object of the type is written all the while. Where
// nothing is, and other tests have left many objects of it, a list of a few of them costs upstream
// less than to prove it, and is forwarded.
func kubectlGetsFromMemory(t *testing.T, written tableObject, line string) {
	t.Helper()
	if testbed.Direct {
		kubectl.Same(t, kubectl.Args(line))
		return
	}
	proxy := &testbed.Proxy{Admin: testbed.Shared.ProxyAdmin}
	lists := func() map[string]int {
		counts := map[string]int{}
		for sample := range metrics.Samples(require.Value(proxy.Metrics())(t)) {
			if sample.Name == "watershed_requests_total" && sample.Label("resource") == written.plural() && sample.Label("verb") == "list" {
				counts[sample.Label("source")] += int(sample.Value)
			}
		}
		return counts
	}
	defer keepWriting(written)()
	poll.Until(t, "kubectl "+line+" is answered from memory", func() error {
		before := lists()
		kubectl.Same(t, kubectl.Args(line))
		by := usage.Growth(before, lists())
		if len(by) == 0 {
			t.Fatalf("no list of %s is counted", written.plural())
		}
		if by["linearizable"] != usage.Total(by) {
			return fmt.Errorf("it is answered from %v", by)
		}
		return nil
	})
}

// keepWriting writes an annotation of the object again and again, until the returned function is called.
func keepWriting(o tableObject) (end func()) {
	ended, left := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(left)
		for i := 0; ; i++ {
			select {
			case <-ended:
				return
			case <-time.After(10 * time.Millisecond):
			}
			body := fmt.Sprintf(`{"metadata":{"annotations":{"written":"%d"}}}`, i)
			// A write that fails is followed by the next one.
			testbed.Upstream.Try(api.Request{Method: http.MethodPatch, Path: o.path + "/" + o.name, ContentType: api.MergePatch, Body: body})
		}
	}()
	return func() {
		close(ended)
		<-left
	}
}

// TestKubectlGetsTablesFromMemory runs kubectl get for each type that is printed here.
func TestKubectlGetsTablesFromMemory(t *testing.T) {
	ns := objects.Namespace(t)
	all := append(namespaced(unusualWorkloads(ns)), unusualPods(ns)[:5]...)
	makeObjects(t, all)
	first := func(plural string) tableObject {
		return all[slices.IndexFunc(all, func(o tableObject) bool { return o.plural() == plural })]
	}
	for _, plural := range []string{"pods", "deployments", "replicasets", "statefulsets", "daemonsets", "services", "endpointslices", "jobs", "cronjobs", "configmaps", "persistentvolumeclaims", "ingresses"} {
		for _, form := range []string{"", " -o wide", " -l odd=1", " --show-labels"} {
			kubectlGetsFromMemory(t, first(plural), "--namespace "+ns+" get "+plural+form)
		}
	}
	kubectlGetsFromMemory(t, first("pods"), "get pods -A -l app=nothing")
	node := tableObject{path: "/api/v1/nodes", name: ns}
	testbed.Upstream.Must(t, api.Request{Method: "POST", Path: node.path, Body: `{"metadata":{"name":"` + ns + `"}}`})
	t.Cleanup(func() { testbed.Upstream.Try(api.Request{Method: "DELETE", Path: node.path + "/" + ns}) })
	kubectlGetsFromMemory(t, node, "get nodes")
	// A get of one object is forwarded.
	kubectl.Same(t, kubectl.Args("get namespace "+ns))
}
