package real

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fewestCombinations is how many users × reads there have to be.
const fewestCombinations = 300

// accessMatrix is objects in two namespaces, two nodes, and users with all kinds
// of rights to them.
type accessMatrix struct {
	t           *testing.T
	here, there string
	widget      widget
	rights      rights
	users       []string
	// gone is a user whose service account is deleted while the test runs.
	gone string
}

// TestAccessMatrix: whoever asks for whatever, the proxy's answer is the one that
// upstream has for them: the same objects, or the same refusal to the letter. Then
// rights change, and it is so again.
func TestAccessMatrix(t *testing.T) {
	m := newAccessMatrix(t)
	requests := m.combinations(m.users)
	if len(requests) < fewestCombinations {
		t.Fatalf("only %d combinations", len(requests))
	}
	t.Logf("%d combinations of %d users and %d reads", len(requests), len(m.users), len(requests)/len(m.users))

	m.bothVerdicts(sameFindings(t, requests))
	m.leaksAreSeen(requests)

	all := append(requests, m.combinations([]string{m.gone})...)
	concerned := m.combinations([]string{"bob", "viewer", "local", "auditor", "named", "dangling", "nobody", "system:node:east", "system:node:west", m.gone})
	m.change()
	m.agree("after the change", concerned)

	m.changeBack()
	m.agree("after the change back", concerned)
	m.bothVerdicts(sameFindings(t, without(all, request.isWatch)))
}

func newAccessMatrix(t *testing.T) *accessMatrix {
	t.Helper()
	m := &accessMatrix{t: t, here: namespace(t), there: namespace(t), widget: newWidget(t)}
	m.rights = newRights(t, m.here)
	m.widget.define(t, upstream)
	m.widget.awaitServed(t, proxied)
	ctx := context.Background()
	core := kubeClient(t, upstream).CoreV1()

	for _, node := range []string{"east", "west"} {
		upstream.ok(t, request{method: "POST", path: "/api/v1/nodes", body: fmt.Sprintf(`{"metadata":{"name":"%s","labels":{"app":"%s"}}}`, node, node)})
		upstream.ok(t, request{method: "POST", path: leases, body: fmt.Sprintf(`{"metadata":{"name":"%s"}}`, node)})
		t.Cleanup(func() {
			upstream.try(request{method: "DELETE", path: "/api/v1/nodes/" + node})
			upstream.try(request{method: "DELETE", path: leases + "/" + node})
		})
	}
	for _, ns := range []string{m.here, m.there} {
		for _, name := range []string{"apple", "pear", "quince"} {
			must(core.ConfigMaps(ns).Create(ctx, configMap(name, "in", ns), metav1.CreateOptions{}))(t)
			must(core.Secrets(ns).Create(ctx, &corev1.Secret{ObjectMeta: configMap(name).ObjectMeta, StringData: map[string]string{"in": ns}}, metav1.CreateOptions{}))(t)
			upstream.ok(t, request{method: "POST", path: m.widget.path(ns, ""), body: m.widget.object(name, 3)})
		}
		for _, name := range []string{"reader", "idle"} {
			must(core.ServiceAccounts(ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))(t)
		}
	}
	m.run("apple", "east", "apple")
	m.run("pear", "west", "pear")
	m.run("quince", "", "quince")

	r, read := m.rights, readVerbs
	both := []string{"configmaps", "pods"}
	r.role("", "viewer", may("", both, read), may("coordination.k8s.io", []string{"leases"}, read))
	r.bind("", "viewer", user("viewer"))
	// Cluster-wide rights that hold in one namespace only.
	r.role("", "builders", may("", []string{"configmaps", "secrets"}, read), may("", []string{"nodes"}, read))
	r.bindTo(m.here, "builders", "ClusterRole", group("builders"))
	r.role(m.here, "local", may("", []string{"configmaps"}, read), may("", []string{"pods"}, []string{"get"}))
	r.bind(m.here, "local", user("local"))
	r.role(m.there, "local", may("", []string{"pods", "secrets"}, []string{"list"}), may("", []string{"configmaps"}, []string{"watch"}))
	r.bind(m.there, "local", user("local"))
	r.role(m.there, "auditors", may("", []string{"configmaps", "secrets"}, read), may(m.widget.group, []string{"*"}, read))
	r.bind(m.there, "auditors", group("auditors"))
	r.role(m.here, "named", may("", []string{"configmaps", "secrets"}, read, "apple"), may("", []string{"pods"}, read, "pear"), may(m.widget.group, []string{"widgets"}, read, "apple"))
	r.bind(m.here, "named", user("named"))
	r.role("", "named", may("", []string{"nodes"}, read, "east"), may("", []string{"namespaces"}, read, m.there))
	r.bind("", "named", user("named"))
	// The role that is meant does not exist, which refusals tell.
	r.bind(m.here, "dangling", user("dangling"))
	r.role(m.here, "owner", may("*", []string{"*"}, []string{"*"}))
	r.bind(m.here, "owner", user("owner"))
	r.role("", "parts", may("", []string{"pods/status", "pods/log", "*/scale", "namespaces/status"}, read))
	r.bind("", "parts", user("parts"))
	r.role(m.here, "accounts", may("", both, read))
	r.bind(m.here, "accounts",
		account(m.here, "reader"), group("system:serviceaccounts:"+m.there))

	m.users = []string{"", "-", "?", "bob", "viewer", "local", "auditor", "named", "dangling", "owner", "parts", "nobody",
		"system:node:east", "system:node:west", "system:node:alone", "nameless",
		accountToken(t, m.here, "reader"), accountToken(t, m.here, "idle"), accountToken(t, m.there, "idle"), accountToken(t, m.here, "reader", "https://elsewhere.test")}

	// Both ways remember an accepted token for some seconds.
	m.gone = accountToken(t, m.there, "reader")
	for _, to := range targets() {
		to.ok(t, request{path: m.collection("configmaps") + "?resourceVersion=0", user: m.gone})
	}
	check(t, core.ServiceAccounts(m.there).Delete(ctx, "reader", metav1.DeleteOptions{}))

	for _, plural := range []string{"configmaps", "pods"} {
		list := upstream.ok(t, request{path: m.collection(plural)})
		newest := must(list.items())(t)
		var version uint64
		for _, v := range newest {
			version = max(version, v)
		}
		settle(t, m.collection(plural), version)
	}
	m.granted(map[string]int{"viewer": 200, "bob": 200, "local": 200, "owner": 200, m.users[16]: 200, "nobody": 403})
	m.await(request{path: m.collection("configmaps") + "/apple", user: "system:node:east"}, 200)
	m.await(request{path: m.collection("configmaps") + "/pear", user: "system:node:west"}, 200)
	return m
}

const leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"

func (m *accessMatrix) collection(plural string) string {
	return "/api/v1/namespaces/" + m.here + "/" + plural
}

// run makes a pod that a node runs and that mounts a config map and a secret.
func (m *accessMatrix) run(name, node, mounts string) {
	m.t.Helper()
	p := pod(name, node)
	p.Spec.Volumes = []corev1.Volume{
		{Name: "c", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: mounts}}}},
		{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: mounts}}},
	}
	p.Spec.ServiceAccountName = "idle"
	must(kubeClient(m.t, upstream).CoreV1().Pods(m.here).Create(context.Background(), p, metav1.CreateOptions{}))(m.t)
}

// reads is what every user asks for.
func (m *accessMatrix) reads() []request {
	const rv0 = "resourceVersion=0"
	var all []request
	get := func(paths ...string) {
		for _, path := range paths {
			all = append(all, request{path: path})
		}
	}
	watch := func(collection string, options ...string) {
		get(collection + "?watch=1&timeoutSeconds=1&" + strings.Join(options, "&"))
	}
	nodes := "/api/v1/nodes"
	// Those that take their time come first.
	for _, plural := range []string{"configmaps", "pods"} {
		watch(m.collection(plural), rv0)
		watch(m.collection(plural), stateFirst, "fieldSelector=metadata.name%3Dapple")
		watch("/api/v1/namespaces/"+m.there+"/"+plural, rv0)
		watch("/api/v1/"+plural, rv0, "labelSelector=app%3Dapple")
	}
	watch(m.collection("secrets"), rv0, "fieldSelector=metadata.name%3Dapple")
	watch("/api/v1/pods", rv0, "fieldSelector=spec.nodeName%3Deast")
	watch("/api/v1/pods", "fieldSelector=spec.nodeName%3Dwest")
	watch(nodes, rv0, "fieldSelector=metadata.name%3Deast")
	watch(m.widget.path(m.here, ""), rv0)

	for _, plural := range []string{"configmaps", "pods", "secrets"} {
		here := m.collection(plural)
		get(here+"/apple?"+rv0, here+"/apple", here+"/pear?"+rv0, here+"/absent?"+rv0,
			"/api/v1/namespaces/"+m.there+"/"+plural+"/apple?"+rv0,
			here+"?"+rv0, here, here+"?limit=1&"+rv0, here+"?limit=2",
			here+"?fieldSelector=metadata.name%3Dapple&"+rv0,
			here+"?fieldSelector=metadata.name%21%3Dapple&"+rv0,
			here+"?labelSelector=app%3Dapple&"+rv0,
			here+"?labelSelector=app+in+%28apple%2Cpear%29%2C%21none&"+rv0,
			"/api/v1/namespaces/"+m.there+"/"+plural+"?"+rv0,
			"/api/v1/namespaces/"+m.there+"/"+plural,
			"/api/v1/"+plural+"?labelSelector=app%3Dapple&"+rv0,
			"/api/v1/"+plural+"?labelSelector=app%3Dapple")
	}
	for _, selector := range []string{"spec.nodeName%3Deast", "spec.nodeName%3D%3Dwest", "spec.nodeName%21%3Deast", "spec.nodeName%3D",
		"spec.nodeName%3Deast%2Cstatus.phase%3DPending", "metadata.name%3Dapple%2Cspec.nodeName%3Dwest", "metadata.name%3Dpear"} {
		get("/api/v1/pods?"+rv0+"&fieldSelector="+selector, m.collection("pods")+"?fieldSelector="+selector)
	}
	get(m.collection("pods")+"/quince?"+rv0, m.collection("pods")+"/apple/status", m.collection("pods")+"/pear/log",
		nodes+"/east?"+rv0, nodes+"/west", nodes+"?"+rv0, nodes+"?fieldSelector=metadata.name%3Deast&"+rv0,
		nodes+"?fieldSelector=metadata.name%3Dwest",
		leases+"/east?"+rv0, leases+"/west?"+rv0, leases+"/east", leases+"?fieldSelector=metadata.name%3Deast&"+rv0,
		"/api/v1/namespaces/"+m.here+"?"+rv0, "/api/v1/namespaces/"+m.there+"?"+rv0,
		"/api/v1/namespaces?"+rv0+"&fieldSelector=metadata.name%3D"+m.there,
		m.collection("serviceaccounts")+"/idle?"+rv0, m.collection("serviceaccounts")+"/reader",
		m.widget.path(m.here, "apple")+"?"+rv0, m.widget.path(m.here, "")+"?"+rv0, m.widget.path(m.there, ""), m.widget.path("", "")+"?"+rv0,
		m.widget.path(m.here, "")+"?fieldSelector=metadata.name%3Dapple",
		"/apis/rbac.authorization.k8s.io/v1/namespaces/"+m.here+"/roles?"+rv0,
		"/api/v1/nothings", "/api", "/apis/"+m.widget.group+"/v1", "/version", "/openapi/v3", "/healthz")
	for _, accept := range []string{protobufType, table, metadataList} {
		all = append(all, request{path: m.collection("configmaps") + "?" + rv0, accept: accept},
			request{path: "/api/v1/namespaces/" + m.there + "/pods", accept: accept})
	}
	return all
}

func (m *accessMatrix) combinations(users []string) []request {
	var all []request
	for _, r := range m.reads() {
		for _, user := range users {
			r.user = user
			all = append(all, r)
		}
	}
	return all
}

func without(requests []request, unwanted func(request) bool) []request {
	return slices.DeleteFunc(slices.Clone(requests), unwanted)
}

// bothVerdicts asks that what was compared were grants and refusals, both of them
// from memory as well.
func (m *accessMatrix) bothVerdicts(found *findings) {
	m.t.Helper()
	for status, fewest := range map[int]int{200: 100, 403: 100, 401: 10, 404: 5} {
		if found.statuses[status] < fewest {
			m.t.Errorf("only %d answers with %d", found.statuses[status], status)
		}
	}
	if memory := found.sources["snapshot"] + found.sources["fence"] + found.sources["window"]; !direct && memory < 100 {
		m.t.Errorf("only %d grants from memory", memory)
	}
	if found.sources["access"] < 100 && !direct {
		m.t.Errorf("only %d refusals by the proxy", found.sources["access"])
	}
}

// leaksAreSeen: a proxy that asked upstream as the administrator would be found
// with each single answer that it has no right to give.
func (m *accessMatrix) leaksAreSeen(requests []request) {
	m.t.Helper()
	leaky := startFaulty(m.t, upstream, fault{name: "asks as the administrator", header: func(h http.Header) { h.Set("Authorization", "Bearer "+shared.AdminToken) }})
	var mutex sync.Mutex
	refused, missed := 0, []request{}
	// One in three will do: each is looked at in the same way.
	var some []request
	for i, r := range without(requests, request.isWatch) {
		if i%3 == 0 {
			some = append(some, r)
		}
	}
	workers(16, some, func(_ int, r request) {
		v := sides{upstream, leaky}.compare(r)
		mutex.Lock()
		defer mutex.Unlock()
		if v.want.status != 401 && v.want.status != 403 {
			return
		}
		refused++
		if v.difference == "" {
			missed = append(missed, r)
		}
	})
	if refused < 100 || len(missed) > 0 {
		m.t.Errorf("of %d leaks, %d were not seen: %v", refused, len(missed), missed)
	}
	m.t.Logf("%d planted leaks seen", refused)
}

// await waits for upstream itself to have learned of a change.
func (m *accessMatrix) await(r request, status int) {
	m.t.Helper()
	eventually(m.t, fmt.Sprintf("upstream answers %v with %d", r, status), func() error {
		if a := upstream.send(m.t, r); a.status != status {
			return fmt.Errorf("%d %s", a.status, a.body)
		}
		return nil
	})
}

// granted waits for upstream's verdicts on lists of the config maps.
func (m *accessMatrix) granted(statuses map[string]int) {
	m.t.Helper()
	for user, status := range statuses {
		m.await(request{path: m.collection("configmaps"), user: user}, status)
	}
}

// change gives and takes rights in every way there is.
func (m *accessMatrix) change() {
	m.t.Helper()
	r := m.rights
	r.role(m.here, "nobody", may("", []string{"configmaps"}, readVerbs))
	r.bind(m.here, "nobody", user("nobody"))
	r.role("", "readers", may("", []string{"pods"}, readVerbs))
	r.bind("", "readers", group("readers"))
	r.role(m.here, "dangling", may("", []string{"configmaps", "pods"}, readVerbs))
	r.role(m.here, "local", may("", []string{"pods"}, readVerbs))
	r.role(m.here, "named", may("", []string{"configmaps", "secrets"}, readVerbs, "pear"))
	r.unbind("", "viewer")
	r.unbind(m.here, "builders")
	// What may a node: east no longer runs what mounts apple, west does.
	m.stop("apple")
	m.run("plum", "west", "apple")

	m.granted(map[string]int{"nobody": 200, "dangling": 200, "local": 403, "viewer": 403, "bob": 403, m.gone: 401})
	m.await(request{path: "/api/v1/pods", user: "auditor"}, 200)
	m.await(request{path: m.collection("secrets") + "/pear", user: "named"}, 200)
	m.await(request{path: m.collection("secrets") + "/apple", user: "system:node:west"}, 200)
	m.await(request{path: m.collection("secrets") + "/apple", user: "system:node:east"}, 403)
}

func (m *accessMatrix) changeBack() {
	m.t.Helper()
	r := m.rights
	r.unbind(m.here, "nobody")
	r.unbind("", "readers")
	r.dropRole(m.here, "dangling")
	r.role(m.here, "local", may("", []string{"configmaps"}, readVerbs), may("", []string{"pods"}, []string{"get"}))
	r.role(m.here, "named", may("", []string{"configmaps", "secrets"}, readVerbs, "apple"))
	r.bind("", "viewer", user("viewer"))
	r.bindTo(m.here, "builders", "ClusterRole", group("builders"))
	m.stop("plum")
	m.run("apple", "east", "apple")

	m.granted(map[string]int{"nobody": 403, "dangling": 403, "local": 200, "viewer": 200, "bob": 200, m.gone: 401})
	m.await(request{path: "/api/v1/pods", user: "auditor"}, 403)
	m.await(request{path: m.collection("secrets") + "/pear", user: "named"}, 403)
	m.await(request{path: m.collection("secrets") + "/apple", user: "system:node:west"}, 403)
	m.await(request{path: m.collection("secrets") + "/apple", user: "system:node:east"}, 200)
}

// stop deletes a pod, which is gone at once.
func (m *accessMatrix) stop(name string) {
	m.t.Helper()
	upstream.ok(m.t, request{method: "DELETE", path: m.collection("pods") + "/" + name})
}

// agree waits until each answer of the proxy has become upstream's: verdicts may
// be remembered for a while.
func (m *accessMatrix) agree(when string, requests []request) {
	m.t.Helper()
	since := time.Now()
	late, rounds := 0, 0
	left := requests
	eventually(m.t, when+", the answers are upstream's", func() error {
		var mutex sync.Mutex
		var differ []request
		var first error
		workers(48, left, func(_ int, r request) {
			v := sides{upstream, proxied}.compare(r)
			if v.difference == "" {
				return
			}
			mutex.Lock()
			defer mutex.Unlock()
			differ = append(differ, r)
			first = fmt.Errorf("%v, answered from %q\n%s", r, v.got.header.Get("X-Watershed-Source"), v.difference)
		})
		if rounds++; rounds == 1 {
			late = len(differ)
		}
		left = differ
		return first
	})
	m.t.Logf("%s: %d answers, %d of which were late; all were upstream's after %v", when, len(requests), late, time.Since(since).Round(100*time.Millisecond))
}
