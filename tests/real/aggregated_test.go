package real

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// TestAggregatedAnswersReachOnlyTheirCaller reads from an aggregated server, which answers each
// caller differently. No caller gets another's answer from memory.
func TestAggregatedAnswersReachOnlyTheirCaller(t *testing.T) {
	const group, version = "agg.example.test", "v1"
	reply := func(w http.ResponseWriter, body any) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(body)
	}
	backend := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user := r.Header.Get("X-Remote-User")
		switch r.URL.Path {
		case "/apis/" + group + "/" + version:
			reply(w, metav1.APIResourceList{
				TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
				GroupVersion: group + "/" + version,
				APIResources: []metav1.APIResource{{Name: "things", Kind: "Thing", Verbs: metav1.Verbs{"get", "list", "watch"}}},
			})
		case "/apis/" + group + "/" + version + "/things":
			reply(w, map[string]any{
				"kind": "ThingList", "apiVersion": group + "/" + version,
				"metadata": map[string]any{"resourceVersion": "7"},
				"items":    []any{map[string]any{"metadata": map[string]any{"name": "of-" + strings.ReplaceAll(user, ":", "-"), "resourceVersion": "7"}}},
			})
		default:
			http.NotFound(w, r)
		}
	}))
	defer backend.Close()
	ns := objects.Namespace(t)
	port := reachBackend(t, ns, backend)
	const services = "/apis/apiregistration.k8s.io/v1/apiservices"
	testbed.Upstream.Must(t, api.Request{Method: "POST", Path: services, Body: fmt.Sprintf(`{"kind": "APIService", "apiVersion": "apiregistration.k8s.io/v1",
		"metadata": {"name": "%[2]s.%[1]s"},
		"spec": {"group": %[1]q, "version": %[2]q, "groupPriorityMinimum": 10, "versionPriority": 10, "insecureSkipTLSVerify": true,
		"service": {"namespace": %[3]q, "name": "backend", "port": %[4]s}}}`, group, version, ns, port)})
	defer testbed.Upstream.Send(t, api.Request{Method: "DELETE", Path: services + "/" + version + "." + group})

	list := api.Request{Path: "/apis/" + group + "/" + version + "/things?resourceVersion=0"}
	poll.Until(t, "the other server answers", func() error {
		if a := testbed.Upstream.Send(t, list); a.Status != 200 {
			return fmt.Errorf("%d %s", a.Status, a.Body)
		}
		return nil
	})
	objects.Grant(t, "", "alice", group, "things")
	// A new proxy finds the type in discovery.
	late := testbed.Proxied
	if !testbed.Direct {
		late = testbed.StartProxy(t, testbed.Shared.ProxyKubeconfig).Target
	}
	for _, user := range []string{"", "alice", ""} {
		r, name, others := list, "of-admin", "of-alice"
		if r.User = user; user == "alice" {
			name, others = others, name
		}
		poll.Until(t, "the right arrives", func() error {
			a := late.Send(t, r)
			if strings.Contains(a.Body, others) {
				t.Fatalf("%q gets the answer to another caller: %s", user, a.Body)
			}
			if !strings.Contains(a.Body, name) {
				return fmt.Errorf("%q gets %s", user, a.Body)
			}
			return nil
		})
	}
	a := late.Must(t, list)
	if source := a.Header.Get("X-Watershed-Source"); !testbed.Direct && source != "forward; reason=unknown-type" {
		t.Errorf("answered from %q", source)
	}
}

// reachBackend makes a service "backend" that leads to a server on this machine. Returns its port.
func reachBackend(t *testing.T, ns string, backend *httptest.Server) string {
	t.Helper()
	require.Value(api.Clientset(t, testbed.Upstream).CoreV1().Services(ns).Create(context.Background(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "backend"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}, metav1.CreateOptions{}))(t)
	address := backend.Listener.Addr().String()
	return address[strings.LastIndexByte(address, ':')+1:]
}

// TestServersThatTakeOverACustomTypeEndNoOtherWatches leads the URLs of a custom type to a server
// that counts its own versions. They go back, and that is no restore of etcd.
func TestServersThatTakeOverACustomTypeEndNoOtherWatches(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy of its own")
	}
	ns := objects.Namespace(t)
	w := objects.NewWidget(t)
	w.Define(t, testbed.Upstream)
	testbed.Upstream.Must(t, api.Request{Method: "POST", Path: w.Path(ns, ""), Body: w.Object("a", 1)})
	proxy := testbed.StartProxy(t, testbed.Shared.ProxyKubeconfig)
	read := api.Request{Path: w.Path("", "") + "?resourceVersion=0"}
	poll.Until(t, "the type is answered from memory", func() error {
		if a := proxy.Send(t, read); a.Status != 200 || a.Header.Get("X-Watershed-Source") != "snapshot" {
			return fmt.Errorf("%d from %q", a.Status, a.Header.Get("X-Watershed-Source"))
		}
		return nil
	})
	watch := proxy.Watch(t, api.Request{Path: "/api/v1/namespaces/" + ns + "/configmaps?watch=1&resourceVersion=0"})
	backend := httptest.NewTLSServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		out.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case w.Path("", ""):
			fmt.Fprintf(out, `{"apiVersion":"%s/v1","items":[],"kind":"WidgetList","metadata":{"continue":"","resourceVersion":"7"}}`+"\n", w.Group)
		case "/apis/" + w.Group + "/v1":
			fmt.Fprintf(out, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"%s/v1","resources":[{"name":"widgets","singularName":"widget",`+
				`"namespaced":true,"kind":"Widget","verbs":["get","list","watch"]}]}`, w.Group)
		default:
			http.NotFound(out, r)
		}
	}))
	defer backend.Close()
	service := "/apis/apiregistration.k8s.io/v1/apiservices/v1." + w.Group
	testbed.Upstream.Must(t, api.Request{Method: "PATCH", Path: service, ContentType: api.MergePatch, Body: fmt.Sprintf(
		`{"metadata":{"labels":{"kube-aggregator.kubernetes.io/automanaged":null}},"spec":{"insecureSkipTLSVerify":true,`+
			`"service":{"namespace":%q,"name":"backend","port":%s}}}`, ns, reachBackend(t, ns, backend))})
	defer testbed.Upstream.Try(api.Request{Method: "DELETE", Path: service})
	poll.Until(t, "the other server answers", func() error {
		if a := proxy.Send(t, api.Request{Path: w.Path("", "")}); !strings.Contains(a.Body, `"resourceVersion":"7"`) {
			return fmt.Errorf("%d %s", a.Status, a.Body)
		}
		return nil
	})
	poll.Until(t, "the proxy keeps the type no more", func() error {
		a := proxy.Send(t, read)
		if source := a.Header.Get("X-Watershed-Source"); source != "forward; reason=unknown-type" {
			return fmt.Errorf("%d from %q", a.Status, source)
		}
		return nil
	})
	if n := proxy.Sum(t, "watershed_upstream_rollbacks_total", ""); n != 0 {
		t.Errorf("it counts as %d restores of etcd: %s", n, proxy.LogTail())
	}
	testbed.Upstream.Must(t, api.Request{Method: "POST", Path: "/api/v1/namespaces/" + ns + "/configmaps", Body: `{"metadata":{"name":"later"}}`})
	for {
		e := watch.Next(t)
		if e.Type != "ADDED" {
			t.Fatalf("not an object: %s", e.Raw)
		}
		if strings.Contains(string(e.Raw), `"name":"later"`) {
			return
		}
	}
}

// TestNamespacePathsInNamespacesAreNotServed asks for paths that upstream does not have. Rights
// in one namespace must not become rights to the list of all.
func TestNamespacePathsInNamespacesAreNotServed(t *testing.T) {
	ns := objects.Namespace(t)
	other := objects.Namespace(t)
	objects.Grant(t, ns, "bob", "", "namespaces")
	for _, to := range testbed.Targets() {
		poll.Until(t, "the right arrives "+to.Name, func() error {
			if a := to.Send(t, api.Request{Path: "/api/v1/namespaces/" + ns + "?resourceVersion=0", User: "bob"}); a.Status != 200 {
				return fmt.Errorf("%d %s", a.Status, a.Body)
			}
			return nil
		})
	}
	for _, path := range []string{
		"/api/v1/namespaces/" + ns + "/namespaces?resourceVersion=0",
		"/api/v1/namespaces/" + ns + "/namespaces?watch=1&resourceVersion=0",
		"/api/v1/namespaces/" + ns + "/namespaces/" + ns + "?resourceVersion=0",
		"/api/v1/namespaces/" + ns + "/namespaces/" + other + "?resourceVersion=0",
		"/api/v1/namespaces/" + other + "?resourceVersion=0",
		"/api/v1/namespaces?resourceVersion=0",
		"/api/v1/namespaces/" + ns + "?resourceVersion=0",
		"/api/v1/namespaces/" + ns + "/nodes?resourceVersion=0",
		"/api/v1/pods/nobody?resourceVersion=0",
	} {
		for _, user := range []string{"", "bob"} {
			if a := compare.Same(t, api.Request{Path: path, User: user}); user == "bob" && strings.Contains(a.Body, other) && a.Status == 200 {
				t.Errorf("bob sees %s", a.Body)
			}
		}
	}
}
