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
)

// TestAggregated: another server behind the API server may answer each caller
// differently. What one of them sees must not reach another from memory.
func TestAggregated(t *testing.T) {
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
	port := backend.Listener.Addr().(interface{ String() string }).String()
	port = port[strings.LastIndexByte(port, ':')+1:]

	ns := namespace(t)
	must(kubeClient(t, upstream).CoreV1().Services(ns).Create(context.Background(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "backend"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}, metav1.CreateOptions{}))(t)
	const services = "/apis/apiregistration.k8s.io/v1/apiservices"
	upstream.ok(t, request{method: "POST", path: services, body: fmt.Sprintf(`{"kind": "APIService", "apiVersion": "apiregistration.k8s.io/v1",
		"metadata": {"name": "%[2]s.%[1]s"},
		"spec": {"group": %[1]q, "version": %[2]q, "groupPriorityMinimum": 10, "versionPriority": 10, "insecureSkipTLSVerify": true,
		"service": {"namespace": %[3]q, "name": "backend", "port": %[4]s}}}`, group, version, ns, port)})
	defer upstream.send(t, request{method: "DELETE", path: services + "/" + version + "." + group})

	list := request{path: "/apis/" + group + "/" + version + "/things?resourceVersion=0"}
	eventually(t, "the other server answers", func() error {
		if a := upstream.send(t, list); a.status != 200 {
			return fmt.Errorf("%d %s", a.status, a.body)
		}
		return nil
	})
	grant(t, "", "alice", group, "things")
	// A proxy that starts now finds the type in discovery; the others do within a minute.
	late := proxied
	if !direct {
		late = startProxy(t, shared.ProxyKubeconfig).target
	}
	for _, user := range []string{"", "alice", ""} {
		r, name := list, "of-admin"
		if r.user = user; user != "" {
			name = "of-" + user
		}
		eventually(t, "the right arrives", func() error {
			if a := late.send(t, r); !strings.Contains(a.body, name) {
				return fmt.Errorf("%q gets %s", user, a.body)
			}
			return nil
		})
	}
	a := late.ok(t, list)
	if source := a.header.Get("X-Watershed-Source"); !direct && source != "forward; reason=unknown-type" {
		t.Errorf("answered from %q", source)
	}
}

// TestNamespaceInNamespace: upstream has no such paths, and rights in one
// namespace are no rights to the list of all.
func TestNamespaceInNamespace(t *testing.T) {
	ns := namespace(t)
	other := namespace(t)
	grant(t, ns, "bob", "", "namespaces")
	for _, to := range targets() {
		eventually(t, "the right arrives "+to.name, func() error {
			if a := to.send(t, request{path: "/api/v1/namespaces/" + ns + "?resourceVersion=0", user: "bob"}); a.status != 200 {
				return fmt.Errorf("%d %s", a.status, a.body)
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
			if a := same(t, request{path: path, user: user}); user == "bob" && strings.Contains(a.body, other) && a.status == 200 {
				t.Errorf("bob sees %s", a.body)
			}
		}
	}
}
