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

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/faulty"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/parallel"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/rights"
	"watershed.test/real/internal/testbed"
)

// fewestCombinations is the least number of users × reads.
const fewestCombinations = 2000

// accessMatrix holds objects in two namespaces, two nodes, and users with rights of all kinds.
type accessMatrix struct {
	t           *testing.T
	here, there string
	widget      objects.Widget
	rights      rights.Rights
	users       []string
	// gone is a user whose service account is deleted during the test.
	gone string
}

// TestEveryUserGetsUpstreamsAnswer compares the answers to every user's reads: the same
// objects, or the same refusal byte for byte. It compares those of some users again after rights have
// changed, and of all users after they have changed back.
func TestEveryUserGetsUpstreamsAnswer(t *testing.T) {
	m := newAccessMatrix(t)
	requests := m.combinations(m.users)
	if len(requests) < fewestCombinations {
		t.Fatalf("only %d combinations", len(requests))
	}
	t.Logf("%d combinations of %d users and %d reads", len(requests), len(m.users), len(requests)/len(m.users))

	m.bothVerdicts(compare.CompareAll(t, requests))
	m.leaksAreSeen(requests)

	all := append(requests, m.combinations([]string{m.gone})...)
	concerned := m.combinations([]string{"bob", "viewer", "local", "auditor", "named", "dangling", "nobody", "system:node:east", "system:node:west", m.gone})
	m.change()
	m.agree("after the change", concerned)

	m.changeBack()
	m.agree("after the change back", concerned)
	m.bothVerdicts(compare.CompareAll(t, without(all, api.Request.IsWatch)))
}

func newAccessMatrix(t *testing.T) *accessMatrix {
	t.Helper()
	m := &accessMatrix{t: t, here: objects.Namespace(t), there: objects.Namespace(t), widget: objects.NewWidget(t)}
	m.rights = rights.New(t, m.here)
	m.widget.Define(t, testbed.Upstream)
	m.widget.AwaitServed(t, testbed.Proxied)
	ctx := context.Background()
	core := api.Clientset(t, testbed.Upstream).CoreV1()

	for _, node := range []string{"east", "west"} {
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: "/api/v1/nodes", Body: fmt.Sprintf(`{"metadata":{"name":"%s","labels":{"app":"%s"}}}`, node, node)})
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: leases, Body: fmt.Sprintf(`{"metadata":{"name":"%s"}}`, node)})
		t.Cleanup(func() {
			testbed.Upstream.Try(api.Request{Method: "DELETE", Path: "/api/v1/nodes/" + node})
			testbed.Upstream.Try(api.Request{Method: "DELETE", Path: leases + "/" + node})
		})
	}
	for _, ns := range []string{m.here, m.there} {
		for _, name := range []string{"apple", "pear", "quince"} {
			require.Value(core.ConfigMaps(ns).Create(ctx, objects.ConfigMap(name, "in", ns), metav1.CreateOptions{}))(t)
			require.Value(core.Secrets(ns).Create(ctx, &corev1.Secret{ObjectMeta: objects.ConfigMap(name).ObjectMeta, StringData: map[string]string{"in": ns}}, metav1.CreateOptions{}))(t)
			testbed.Upstream.Must(t, api.Request{Method: "POST", Path: m.widget.Path(ns, ""), Body: m.widget.Object(name, 3)})
		}
		for _, name := range []string{"reader", "idle"} {
			require.Value(core.ServiceAccounts(ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))(t)
		}
	}
	m.run("apple", "east", "apple")
	m.run("pear", "west", "pear")
	m.run("quince", "", "quince")

	r, read := m.rights, rights.ReadVerbs
	both := []string{"configmaps", "pods"}
	r.Role("", "viewer", rights.May("", both, read), rights.May("coordination.k8s.io", []string{"leases"}, read))
	r.Bind("", "viewer", rights.User("viewer"))
	// Cluster-wide rules that are bound in one namespace only.
	r.Role("", "builders", rights.May("", []string{"configmaps", "secrets"}, read), rights.May("", []string{"nodes"}, read))
	r.BindTo(m.here, "builders", "ClusterRole", rights.Group("builders"))
	r.Role(m.here, "local", rights.May("", []string{"configmaps"}, read), rights.May("", []string{"pods"}, []string{"get"}))
	r.Bind(m.here, "local", rights.User("local"))
	r.Role(m.there, "local", rights.May("", []string{"pods", "secrets"}, []string{"list"}), rights.May("", []string{"configmaps"}, []string{"watch"}))
	r.Bind(m.there, "local", rights.User("local"))
	r.Role(m.there, "auditors", rights.May("", []string{"configmaps", "secrets"}, read), rights.May(m.widget.Group, []string{"*"}, read))
	r.Bind(m.there, "auditors", rights.Group("auditors"))
	// The empty name is a mistake that grants no object: no question about all names may find it.
	r.Role(m.here, "named", rights.May("", []string{"configmaps", "secrets"}, read, "apple", ""), rights.May("", []string{"pods"}, read, "pear"), rights.May(m.widget.Group, []string{"widgets"}, read, "apple"))
	r.Bind(m.here, "named", rights.User("named"))
	r.Role("", "named", rights.May("", []string{"nodes"}, read, "east"), rights.May("", []string{"namespaces"}, read, m.there))
	r.Bind("", "named", rights.User("named"))
	// The bound role does not exist, which refusals mention.
	r.Bind(m.here, "dangling", rights.User("dangling"))
	r.Role(m.here, "owner", rights.May("*", []string{"*"}, []string{"*"}))
	r.Bind(m.here, "owner", rights.User("owner"))
	r.Role("", "parts", rights.May("", []string{"pods/status", "pods/log", "*/scale", "namespaces/status"}, read))
	r.Bind("", "parts", rights.User("parts"))
	r.Role(m.here, "accounts", rights.May("", both, read))
	r.Bind(m.here, "accounts",
		rights.Account(m.here, "reader"), rights.Group("system:serviceaccounts:"+m.there))

	m.users = []string{"", "-", "?", "bob", "viewer", "local", "auditor", "named", "dangling", "owner", "parts", "nobody",
		"system:node:east", "system:node:west", "system:node:alone", "nameless",
		rights.AccountToken(t, m.here, "reader"), rights.AccountToken(t, m.here, "idle"), rights.AccountToken(t, m.there, "idle"), rights.AccountToken(t, m.here, "reader", "https://elsewhere.test")}

	// Both ways remember an accepted token for some seconds.
	m.gone = rights.AccountToken(t, m.there, "reader")
	for _, to := range testbed.Targets() {
		to.Must(t, api.Request{Path: m.collection("configmaps") + "?resourceVersion=0", User: m.gone})
	}
	require.NoError(t, core.ServiceAccounts(m.there).Delete(ctx, "reader", metav1.DeleteOptions{}))

	for _, plural := range []string{"configmaps", "pods"} {
		compare.SettleNewest(t, m.collection(plural))
	}
	m.granted(map[string]int{"viewer": 200, "bob": 200, "local": 200, "owner": 200, m.users[16]: 200, "nobody": 403})
	m.await(api.Request{Path: m.collection("configmaps") + "/apple", User: "system:node:east"}, 200)
	m.await(api.Request{Path: m.collection("configmaps") + "/pear", User: "system:node:west"}, 200)
	return m
}

const leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"

func (m *accessMatrix) collection(plural string) string {
	return "/api/v1/namespaces/" + m.here + "/" + plural
}

// run creates a pod that a node runs, and that mounts a config map and a secret.
func (m *accessMatrix) run(name, node, mounts string) {
	m.t.Helper()
	p := objects.Pod(name, node)
	p.Spec.Volumes = []corev1.Volume{
		{Name: "c", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: mounts}}}},
		{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: mounts}}},
	}
	p.Spec.ServiceAccountName = "idle"
	require.Value(api.Clientset(m.t, testbed.Upstream).CoreV1().Pods(m.here).Create(context.Background(), p, metav1.CreateOptions{}))(m.t)
}

// reads returns the reads of every user.
func (m *accessMatrix) reads() []api.Request {
	const rv0 = "resourceVersion=0"
	var all []api.Request
	get := func(paths ...string) {
		for _, path := range paths {
			all = append(all, api.Request{Path: path})
		}
	}
	watch := func(collection string, options ...string) {
		get(collection + "?watch=1&timeoutSeconds=1&" + strings.Join(options, "&"))
	}
	nodes := "/api/v1/nodes"
	// The slow requests come first.
	for _, plural := range []string{"configmaps", "pods"} {
		watch(m.collection(plural), rv0)
		watch(m.collection(plural), api.StateFirst, "fieldSelector=metadata.name%3Dapple")
		watch("/api/v1/namespaces/"+m.there+"/"+plural, rv0)
		watch("/api/v1/"+plural, rv0, "labelSelector=app%3Dapple")
	}
	watch(m.collection("secrets"), rv0, "fieldSelector=metadata.name%3Dapple")
	watch("/api/v1/pods", rv0, "fieldSelector=spec.nodeName%3Deast")
	watch("/api/v1/pods", "fieldSelector=spec.nodeName%3Dwest")
	watch(nodes, rv0, "fieldSelector=metadata.name%3Deast")
	watch(m.widget.Path(m.here, ""), rv0)

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
		m.widget.Path(m.here, "apple")+"?"+rv0, m.widget.Path(m.here, "")+"?"+rv0, m.widget.Path(m.there, ""), m.widget.Path("", "")+"?"+rv0,
		m.widget.Path(m.here, "")+"?fieldSelector=metadata.name%3Dapple",
		"/apis/rbac.authorization.k8s.io/v1/namespaces/"+m.here+"/roles?"+rv0,
		"/api/v1/nothings", "/api", "/apis/"+m.widget.Group+"/v1", "/version", "/openapi/v3", "/healthz")
	for _, accept := range []string{api.ProtobufType, api.TableJSON, api.MetadataListJSON} {
		all = append(all, api.Request{Path: m.collection("configmaps") + "?" + rv0, Accept: accept},
			api.Request{Path: "/api/v1/namespaces/" + m.there + "/pods", Accept: accept})
	}
	return all
}

func (m *accessMatrix) combinations(users []string) []api.Request {
	var all []api.Request
	for _, r := range m.reads() {
		for _, user := range users {
			r.User = user
			all = append(all, r)
		}
	}
	return all
}

func without(requests []api.Request, unwanted func(api.Request) bool) []api.Request {
	return slices.DeleteFunc(slices.Clone(requests), unwanted)
}

// bothVerdicts checks that the comparison saw grants and refusals, and both from memory as
// well.
func (m *accessMatrix) bothVerdicts(found *compare.Findings) {
	m.t.Helper()
	for status, fewest := range map[int]int{200: 100, 403: 100, 401: 10, 404: 5} {
		if found.Statuses[status] < fewest {
			m.t.Errorf("only %d answers with %d", found.Statuses[status], status)
		}
	}
	if memory := found.Sources["snapshot"] + found.Sources["linearizable"] + found.Sources["window"]; !testbed.Direct && memory < 100 {
		m.t.Errorf("only %d grants from memory", memory)
	}
	if found.Sources["access"] < 100 && !testbed.Direct {
		m.t.Errorf("only %d refusals by the proxy", found.Sources["access"])
	}
}

// leaksAreSeen compares with a proxy that asks upstream as the administrator. Every single
// answer that it has no right to give has to be found.
func (m *accessMatrix) leaksAreSeen(requests []api.Request) {
	m.t.Helper()
	leaky := faulty.Start(m.t, testbed.Upstream, faulty.Fault{Name: "asks as the administrator", Header: func(h http.Header) { h.Set("Authorization", "Bearer "+testbed.Shared.AdminToken) }})
	var mutex sync.Mutex
	refused, missed := 0, []api.Request{}
	// One in three is enough: each is compared in the same way.
	var some []api.Request
	for i, r := range without(requests, api.Request.IsWatch) {
		if i%3 == 0 {
			some = append(some, r)
		}
	}
	parallel.ForEach(16, some, func(_ int, r api.Request) {
		v := compare.Sides{Right: testbed.Upstream, Asked: leaky}.Compare(r)
		mutex.Lock()
		defer mutex.Unlock()
		if v.Want.Status != 401 && v.Want.Status != 403 {
			return
		}
		refused++
		if v.Difference == "" {
			missed = append(missed, r)
		}
	})
	if refused < 100 || len(missed) > 0 {
		m.t.Errorf("of %d leaks, %d were not found: %v", refused, len(missed), missed)
	}
	m.t.Logf("%d planted leaks found", refused)
}

// await waits until upstream itself knows of a change.
func (m *accessMatrix) await(r api.Request, status int) {
	m.t.Helper()
	poll.Until(m.t, fmt.Sprintf("upstream answers %v with %d", r, status), func() error {
		if a := testbed.Upstream.Send(m.t, r); a.Status != status {
			return fmt.Errorf("%d %s", a.Status, a.Body)
		}
		return nil
	})
}

// granted waits for upstream's verdicts on lists of the config maps.
func (m *accessMatrix) granted(statuses map[string]int) {
	m.t.Helper()
	for user, status := range statuses {
		m.await(api.Request{Path: m.collection("configmaps"), User: user}, status)
	}
}

// change grants and revokes rights in every way there is.
func (m *accessMatrix) change() {
	m.t.Helper()
	r := m.rights
	r.Role(m.here, "nobody", rights.May("", []string{"configmaps"}, rights.ReadVerbs))
	r.Bind(m.here, "nobody", rights.User("nobody"))
	r.Role("", "readers", rights.May("", []string{"pods"}, rights.ReadVerbs))
	r.Bind("", "readers", rights.Group("readers"))
	r.Role(m.here, "dangling", rights.May("", []string{"configmaps", "pods"}, rights.ReadVerbs))
	r.Role(m.here, "local", rights.May("", []string{"pods"}, rights.ReadVerbs))
	r.Role(m.here, "named", rights.May("", []string{"configmaps", "secrets"}, rights.ReadVerbs, "pear"))
	r.Unbind("", "viewer")
	r.Unbind(m.here, "builders")
	// The rights of nodes: east no longer runs the pod that mounts apple, west does.
	m.stop("apple")
	m.run("plum", "west", "apple")

	m.granted(map[string]int{"nobody": 200, "dangling": 200, "local": 403, "viewer": 403, "bob": 403, m.gone: 401})
	m.await(api.Request{Path: "/api/v1/pods", User: "auditor"}, 200)
	m.await(api.Request{Path: m.collection("secrets") + "/pear", User: "named"}, 200)
	m.await(api.Request{Path: m.collection("secrets") + "/apple", User: "system:node:west"}, 200)
	m.await(api.Request{Path: m.collection("secrets") + "/apple", User: "system:node:east"}, 403)
}

func (m *accessMatrix) changeBack() {
	m.t.Helper()
	r := m.rights
	r.Unbind(m.here, "nobody")
	r.Unbind("", "readers")
	r.DropRole(m.here, "dangling")
	r.Role(m.here, "local", rights.May("", []string{"configmaps"}, rights.ReadVerbs), rights.May("", []string{"pods"}, []string{"get"}))
	r.Role(m.here, "named", rights.May("", []string{"configmaps", "secrets"}, rights.ReadVerbs, "apple"))
	r.Bind("", "viewer", rights.User("viewer"))
	r.BindTo(m.here, "builders", "ClusterRole", rights.Group("builders"))
	m.stop("plum")
	m.run("apple", "east", "apple")

	m.granted(map[string]int{"nobody": 403, "dangling": 403, "local": 200, "viewer": 200, "bob": 200, m.gone: 401})
	m.await(api.Request{Path: "/api/v1/pods", User: "auditor"}, 403)
	m.await(api.Request{Path: m.collection("secrets") + "/pear", User: "named"}, 403)
	m.await(api.Request{Path: m.collection("secrets") + "/apple", User: "system:node:west"}, 403)
	m.await(api.Request{Path: m.collection("secrets") + "/apple", User: "system:node:east"}, 200)
}

// stop deletes a pod without a grace period.
func (m *accessMatrix) stop(name string) {
	m.t.Helper()
	testbed.Upstream.Must(m.t, api.Request{Method: "DELETE", Path: m.collection("pods") + "/" + name})
}

// agree waits until each answer of the proxy equals upstream's, because verdicts may be
// remembered for a while.
func (m *accessMatrix) agree(when string, requests []api.Request) {
	m.t.Helper()
	since := time.Now()
	late, rounds := 0, 0
	left := requests
	poll.Until(m.t, when+", the answers are upstream's", func() error {
		var mutex sync.Mutex
		var differ []api.Request
		var first error
		parallel.ForEach(48, left, func(_ int, r api.Request) {
			v := compare.Sides{Right: testbed.Upstream, Asked: testbed.Proxied}.Compare(r)
			if v.Difference == "" {
				return
			}
			mutex.Lock()
			defer mutex.Unlock()
			differ = append(differ, r)
			first = fmt.Errorf("%v, answered from %q\n%s", r, v.Got.Header.Get("X-Watershed-Source"), v.Difference)
		})
		if rounds++; rounds == 1 {
			late = len(differ)
		}
		left = differ
		return first
	})
	m.t.Logf("%s: %d answers, %d of which were late; all were upstream's after %v", when, len(requests), late, time.Since(since).Round(100*time.Millisecond))
}
