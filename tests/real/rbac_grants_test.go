package real

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/rights"
	"watershed.test/real/internal/testbed"
)

// TestFollowedRolesExplainGrants has kube-apiserver grant reads by bindings and roles of all forms. The proxy finds
// what the reason names among the objects that it follows, and reads the rules as kube-apiserver does.
func TestFollowedRolesExplainGrants(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy of its own")
	}
	t.Parallel()
	// A grant that is not explained is reviewed again after a second.
	p := testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig, "--authorization-webhook-cache-authorized-ttl=1s")
	ns, ctx := objects.Namespace(t), context.Background()
	core := api.Clientset(t, testbed.Upstream).CoreV1()
	require.Value(core.ConfigMaps(ns).Create(ctx, objects.ConfigMap("one"), metav1.CreateOptions{}))(t)
	maps := "/api/v1/namespaces/" + ns + "/configmaps"
	read := rights.May("", []string{"configmaps"}, rights.ReadVerbs)
	for account, grant := range map[string]struct {
		path string
		// in is the namespace of the binding, and of a role that is none of the cluster.
		in, role string
		subject  rbacv1.Subject
		rules    []rbacv1.PolicyRule
	}{
		"by-role": {
			maps, ns, "Role", rights.Account(ns, "by-role"),
			[]rbacv1.PolicyRule{rights.May("", []string{"pods"}, rights.ReadVerbs), read},
		},
		"as-user": {
			maps, ns, "Role", rights.User("system:serviceaccount:" + ns + ":as-user"), []rbacv1.PolicyRule{read},
		},
		"as-group": {
			maps, ns, "ClusterRole", rights.Group("system:serviceaccounts:" + ns),
			[]rbacv1.PolicyRule{rights.May("*", []string{"*"}, []string{"*"})},
		},
		"without-namespace": {
			maps, ns, "Role", rights.Account("", "without-namespace"), []rbacv1.PolicyRule{read},
		},
		"in-cluster": {
			"/api/v1/configmaps", "", "ClusterRole", rights.Account(ns, "in-cluster"), []rbacv1.PolicyRule{read},
		},
		"one-name": {
			maps + "/one", ns, "Role", rights.Account(ns, "one-name"),
			[]rbacv1.PolicyRule{rights.May("", []string{"configmaps"}, []string{"get"}, "other", "one")},
		},
	} {
		t.Run(account, func(t *testing.T) {
			created := corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}
			require.Value(core.ServiceAccounts(ns).Create(ctx, &created, metav1.CreateOptions{}))(t)
			r, of := rights.New(t, ns), grant.in
			if grant.role == "ClusterRole" {
				of = ""
			}
			list := api.Request{Path: grant.path + "?resourceVersion=0", User: rights.AccountToken(t, ns, account)}
			explained := func() map[string]int { return p.ByLabel(t, "watershed_rbac_grants_total", "explained") }
			var took time.Duration
			// By itself the grant would be renewed for 24 seconds. On a busy machine its end may be late, too.
			for range 3 {
				r.Role(of, account, grant.rules...)
				r.BindTo(grant.in, account, grant.role, rights.User("nobody"), grant.subject)
				before := explained()["yes"]
				answered(t, p.Target, 200, list)
				// kube-apiserver may use the binding before the proxy learns of it.
				poll.Until(t, "the grant is explained", func() error {
					counts := explained()
					if counts["yes"] > before {
						return nil
					}
					time.Sleep(1100 * time.Millisecond)
					answered(t, p.Target, 200, list)
					return fmt.Errorf("%v", counts)
				})
				began := time.Now()
				if grant.role == "Role" {
					r.DropRole(ns, account)
				} else {
					r.Unbind(grant.in, account)
				}
				answered(t, p.Target, 403, list)
				if took = time.Since(began); took <= 15*time.Second {
					return
				}
				t.Logf("the grant ends after %v", took)
				if grant.role == "Role" {
					r.Unbind(grant.in, account)
				}
			}
			t.Errorf("the grant ends after %v", took)
		})
	}
}
