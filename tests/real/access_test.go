package real

import (
	"context"
	"fmt"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestRefusals: who may not, hears so in upstream's words, whatever is asked
// and whether or not the answer is in memory.
func TestRefusals(t *testing.T) {
	ns := namespace(t)
	furnish(t, ns)
	// The proxy has this in memory by now, and must not let it out.
	proxied.ok(t, request{path: "/api/v1/configmaps?resourceVersion=0"})
	proxied.ok(t, request{path: "/api/v1/namespaces/" + ns + "/pods?resourceVersion=0"})

	here := "/api/v1/namespaces/" + ns
	for _, user := range []string{"-", "?", "alice", "bob"} {
		for _, r := range []request{
			{path: here + "/configmaps"},
			{path: here + "/configmaps?resourceVersion=0"},
			{path: here + "/configmaps?limit=1"},
			{path: here + "/configmaps?watch=1"},
			{path: here + "/configmaps?watch=1&resourceVersion=0"},
			{path: here + "/configmaps?watch=1&resourceVersion=0&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"},
			{path: here + "/configmaps?resourceVersion=abc"},
			{path: here + "/configmaps?fieldSelector=metadata.name%3Dapple&resourceVersion=0"},
			{path: here + "/configmaps?labelSelector=app%3Dapple&resourceVersion=0"},
			{path: here + "/configmaps/apple"},
			{path: here + "/configmaps/apple?resourceVersion=0"},
			{path: here + "/configmaps/nobody?resourceVersion=0"},
			{path: here + "/pods?resourceVersion=0", accept: "application/json;as=Table;g=meta.k8s.io;v=v1"},
			{path: here + "/pods?resourceVersion=0", accept: "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"},
			{path: here + "/pods/apple/log"},
			{path: "/api/v1/configmaps?resourceVersion=0"},
			{path: "/api/v1/watch/configmaps"},
			{path: "/api/v1/nodes"},
			{path: "/api/v1/nothings"},
			{path: "/apis/no.example.test/v1/things"},
			{path: "/api/v1/namespaces/" + ns},
			{path: "/apis/apps/v1/deployments?resourceVersion=0"},
			{method: "POST", path: here + "/configmaps", body: asJSON(withKind(configMap("new")))},
			{method: "PUT", path: here + "/configmaps/apple", body: asJSON(withKind(configMap("apple")))},
			{method: "PATCH", path: here + "/configmaps/apple", contentType: mergePatch, body: `{}`},
			{method: "DELETE", path: here + "/configmaps/apple"},
			{method: "DELETE", path: here + "/configmaps"},
			{method: "POST", path: here + "/pods/apple/exec?command=true"},
			{method: "HEAD", path: here + "/configmaps"},
			{path: "/version"},
			{path: "/healthz"},
			{path: "/metrics"},
			{path: "/apis"},
			{path: "/api/v1"},
			{path: "/openapi/v2", accept: "application/json"},
			{path: "/logs"},
			{path: here + "/configmaps?resourceVersion=0", header: map[string]string{"Impersonate-User": "admin"}},
			{path: here + "/configmaps?resourceVersion=0", header: map[string]string{"Impersonate-User": "admin", "Impersonate-Group": "system:masters"}},
		} {
			r.user = user
			a := same(t, r)
			if strings.Contains(a.body, "green") {
				t.Errorf("upstream lets %q see the data: %v", user, r)
			}
		}
	}
}

// TestPartialRights: what a user may see is served, and nothing beside it.
func TestPartialRights(t *testing.T) {
	ns := namespace(t)
	other := namespace(t)
	furnish(t, ns)
	furnish(t, other)
	ctx := context.Background()
	rbac := kubeClient(t, upstream).RbacV1()
	must(rbac.Roles(ns).Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, ResourceNames: []string{"apple"}, Verbs: []string{"get", "list", "watch"}},
	}}, metav1.CreateOptions{}))(t)
	binding := must(rbac.RoleBindings(ns).Create(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "builders"}},
	}, metav1.CreateOptions{}))(t)

	here := "/api/v1/namespaces/" + ns
	// Rights take a moment to arrive, and an old refusal may be remembered for
	// a short time.
	for _, to := range targets() {
		eventually(t, "the rights arrive "+to.name, func() error {
			for _, path := range []string{here + "/configmaps", here + "/pods?fieldSelector=metadata.name%3Dapple"} {
				if a := to.send(t, request{path: path, user: "bob"}); a.status != 200 {
					return fmt.Errorf("%d %s", a.status, a.body)
				}
			}
			return nil
		})
	}
	ask := func() {
		t.Helper()
		for _, r := range []request{
			{path: here + "/configmaps"},
			{path: here + "/configmaps?resourceVersion=0"},
			{path: here + "/configmaps?resourceVersion=0&labelSelector=app%3Dpear"},
			{path: here + "/configmaps/apple?resourceVersion=0"},
			{path: here + "/configmaps/nobody?resourceVersion=0"},
			{path: "/api/v1/configmaps?resourceVersion=0"},
			{path: "/api/v1/configmaps?resourceVersion=0&fieldSelector=metadata.namespace%3D" + ns},
			{path: "/api/v1/namespaces/" + other + "/configmaps?resourceVersion=0"},
			{path: here + "/secrets?resourceVersion=0"},
			{path: here + "/pods?resourceVersion=0"},
			{path: here + "/pods/apple?resourceVersion=0"},
			{path: here + "/pods/pear?resourceVersion=0"},
			{path: here + "/pods?resourceVersion=0&fieldSelector=metadata.name%3Dapple"},
			{path: here + "/pods?resourceVersion=0&fieldSelector=metadata.name%3Dpear"},
			{path: here + "/pods?resourceVersion=0&fieldSelector=metadata.name%3Dapple,spec.nodeName%3D"},
			{path: here + "/pods?watch=1&resourceVersion=0&fieldSelector=metadata.name%3Dpear"},
			{method: "DELETE", path: here + "/configmaps/apple"},
			{method: "PATCH", path: here + "/configmaps/apple", contentType: mergePatch, body: `{}`},
		} {
			r.user = "bob"
			same(t, r)
			r.user, r.header = "", map[string]string{"Impersonate-User": "somebody", "Impersonate-Group": "builders"}
			same(t, r)
		}
	}
	ask()

	watch := proxied.watch(t, request{path: here + "/configmaps?watch=1&resourceVersion=0", user: "bob"})
	for range 3 {
		watch.next(t)
	}
	must(kubeClient(t, upstream).CoreV1().ConfigMaps(ns).Create(ctx, configMap("new"), metav1.CreateOptions{}))(t)
	if e := watch.next(t); e.String() != "ADDED new" {
		t.Errorf("bob's watch yields %s", e.raw)
	}

	check(t, rbac.RoleBindings(ns).Delete(ctx, binding.Name, metav1.DeleteOptions{}))
	for _, to := range targets() {
		eventually(t, "the rights go "+to.name, func() error {
			if a := to.send(t, request{path: here + "/configmaps?resourceVersion=0", user: "bob"}); a.status != 403 {
				return fmt.Errorf("%d %s", a.status, a.body)
			}
			return nil
		})
	}
}
