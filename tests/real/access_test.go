package real

import (
	"context"
	"fmt"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// TestRefusalsUseUpstreamsWords compares refusals of reads and writes, whether or not the
// answer is in memory.
func TestRefusalsUseUpstreamsWords(t *testing.T) {
	ns := objects.Namespace(t)
	objects.Furnish(t, ns)
	// From here on the proxy has this in memory and must not give it away.
	testbed.Proxied.Must(t, api.Request{Path: "/api/v1/configmaps?resourceVersion=0"})
	testbed.Proxied.Must(t, api.Request{Path: "/api/v1/namespaces/" + ns + "/pods?resourceVersion=0"})

	here := "/api/v1/namespaces/" + ns
	for _, user := range []string{"-", "?", "alice", "bob"} {
		for _, r := range []api.Request{
			{Path: here + "/configmaps"},
			{Path: here + "/configmaps?resourceVersion=0"},
			{Path: here + "/configmaps?limit=1"},
			{Path: here + "/configmaps?watch=1"},
			{Path: here + "/configmaps?watch=1&resourceVersion=0"},
			{Path: here + "/configmaps?watch=1&resourceVersion=0&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"},
			{Path: here + "/configmaps?resourceVersion=abc"},
			{Path: here + "/configmaps?fieldSelector=metadata.name%3Dapple&resourceVersion=0"},
			{Path: here + "/configmaps?labelSelector=app%3Dapple&resourceVersion=0"},
			{Path: here + "/configmaps/apple"},
			{Path: here + "/configmaps/apple?resourceVersion=0"},
			{Path: here + "/configmaps/nobody?resourceVersion=0"},
			{Path: here + "/pods?resourceVersion=0", Accept: "application/json;as=Table;g=meta.k8s.io;v=v1"},
			{Path: here + "/pods?resourceVersion=0", Accept: "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"},
			{Path: here + "/pods/apple/log"},
			{Path: "/api/v1/configmaps?resourceVersion=0"},
			{Path: "/api/v1/watch/configmaps"},
			{Path: "/api/v1/nodes"},
			{Path: "/api/v1/nothings"},
			{Path: "/apis/no.example.test/v1/things"},
			{Path: "/api/v1/namespaces/" + ns},
			{Path: "/apis/apps/v1/deployments?resourceVersion=0"},
			{Method: "POST", Path: here + "/configmaps", Body: api.JSON(objects.WithKind(objects.ConfigMap("new")))},
			{Method: "PUT", Path: here + "/configmaps/apple", Body: api.JSON(objects.WithKind(objects.ConfigMap("apple")))},
			{Method: "PATCH", Path: here + "/configmaps/apple", ContentType: api.MergePatch, Body: `{}`},
			{Method: "DELETE", Path: here + "/configmaps/apple"},
			{Method: "DELETE", Path: here + "/configmaps"},
			{Method: "POST", Path: here + "/pods/apple/exec?command=true"},
			{Method: "HEAD", Path: here + "/configmaps"},
			{Path: "/version"},
			{Path: "/healthz"},
			{Path: "/metrics"},
			{Path: "/apis"},
			{Path: "/api/v1"},
			{Path: "/openapi/v2", Accept: "application/json"},
			{Path: "/logs"},
			{Path: here + "/configmaps?resourceVersion=0", Header: map[string]string{"Impersonate-User": "admin"}},
			{Path: here + "/configmaps?resourceVersion=0", Header: map[string]string{"Impersonate-User": "admin", "Impersonate-Group": "system:masters"}},
		} {
			r.User = user
			a := compare.Same(t, r)
			if strings.Contains(a.Body, "green") {
				t.Errorf("upstream shows the data to %q: %v", user, r)
			}
		}
	}
}

// TestPartialRightsLimitWhatIsServed reads as users with partial rights. They get what they may
// read and nothing else.
func TestPartialRightsLimitWhatIsServed(t *testing.T) {
	ns := objects.Namespace(t)
	other := objects.Namespace(t)
	objects.Furnish(t, ns)
	objects.Furnish(t, other)
	ctx := context.Background()
	rbac := api.Clientset(t, testbed.Upstream).RbacV1()
	require.Value(rbac.Roles(ns).Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, ResourceNames: []string{"apple"}, Verbs: []string{"get", "list", "watch"}},
	}}, metav1.CreateOptions{}))(t)
	binding := require.Value(rbac.RoleBindings(ns).Create(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "builders"}},
	}, metav1.CreateOptions{}))(t)

	here := "/api/v1/namespaces/" + ns
	// Rights take a moment to arrive, and an old refusal may be remembered for a short time.
	for _, to := range testbed.Targets() {
		poll.Until(t, "the rights arrive "+to.Name, func() error {
			for _, path := range []string{here + "/configmaps", here + "/pods?fieldSelector=metadata.name%3Dapple"} {
				if a := to.Send(t, api.Request{Path: path, User: "bob"}); a.Status != 200 {
					return fmt.Errorf("%d %s", a.Status, a.Body)
				}
			}
			return nil
		})
	}
	ask := func() {
		t.Helper()
		for _, r := range []api.Request{
			{Path: here + "/configmaps"},
			{Path: here + "/configmaps?resourceVersion=0"},
			{Path: here + "/configmaps?resourceVersion=0&labelSelector=app%3Dpear"},
			{Path: here + "/configmaps/apple?resourceVersion=0"},
			{Path: here + "/configmaps/nobody?resourceVersion=0"},
			{Path: "/api/v1/configmaps?resourceVersion=0"},
			{Path: "/api/v1/configmaps?resourceVersion=0&fieldSelector=metadata.namespace%3D" + ns},
			{Path: "/api/v1/namespaces/" + other + "/configmaps?resourceVersion=0"},
			{Path: here + "/secrets?resourceVersion=0"},
			{Path: here + "/pods?resourceVersion=0"},
			{Path: here + "/pods/apple?resourceVersion=0"},
			{Path: here + "/pods/pear?resourceVersion=0"},
			{Path: here + "/pods?resourceVersion=0&fieldSelector=metadata.name%3Dapple"},
			{Path: here + "/pods?resourceVersion=0&fieldSelector=metadata.name%3Dpear"},
			{Path: here + "/pods?resourceVersion=0&fieldSelector=metadata.name%3Dapple,spec.nodeName%3D"},
			{Path: here + "/pods?watch=1&resourceVersion=0&fieldSelector=metadata.name%3Dpear"},
			{Method: "DELETE", Path: here + "/configmaps/apple"},
			{Method: "PATCH", Path: here + "/configmaps/apple", ContentType: api.MergePatch, Body: `{}`},
		} {
			r.User = "bob"
			compare.Same(t, r)
			r.User, r.Header = "", map[string]string{"Impersonate-User": "somebody", "Impersonate-Group": "builders"}
			compare.Same(t, r)
		}
	}
	ask()

	watch := testbed.Proxied.Watch(t, api.Request{Path: here + "/configmaps?watch=1&resourceVersion=0", User: "bob"})
	for range 3 {
		watch.Next(t)
	}
	require.Value(api.Clientset(t, testbed.Upstream).CoreV1().ConfigMaps(ns).Create(ctx, objects.ConfigMap("new"), metav1.CreateOptions{}))(t)
	if e := watch.Next(t); e.String() != "ADDED new" {
		t.Errorf("bob's watch yields %s", e.Raw)
	}

	require.NoError(t, rbac.RoleBindings(ns).Delete(ctx, binding.Name, metav1.DeleteOptions{}))
	for _, to := range testbed.Targets() {
		poll.Until(t, "the rights go "+to.Name, func() error {
			if a := to.Send(t, api.Request{Path: here + "/configmaps?resourceVersion=0", User: "bob"}); a.Status != 403 {
				return fmt.Errorf("%d %s", a.Status, a.Body)
			}
			return nil
		})
	}
}
