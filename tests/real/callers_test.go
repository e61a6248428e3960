package real

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// letRead lets somebody read the config maps of a namespace.
func letRead(t *testing.T, ns string, subject rbacv1.Subject) {
	t.Helper()
	ctx, rbac := context.Background(), kubeClient(t, upstream).RbacV1()
	must(rbac.Roles(ns).Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "watch"}},
	}}, metav1.CreateOptions{}))(t)
	must(rbac.RoleBindings(ns).Create(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects: []rbacv1.Subject{subject},
	}, metav1.CreateOptions{}))(t)
}

// answered asks until the answer has this status: rights take a moment to arrive.
func answered(t *testing.T, to target, status int, r request) answer {
	t.Helper()
	var a answer
	eventually(t, fmt.Sprintf("%v is answered with %d", r, status), func() error {
		if a = to.send(t, r); a.status != status {
			return fmt.Errorf("%d %s", a.status, a.body)
		}
		return nil
	})
	return a
}

// TestAudiences: a token counts for answers from memory if it is for one of
// the audiences that were said to be the proxy's, or for upstream's own.
func TestAudiences(t *testing.T) {
	if direct {
		t.Skip("needs a proxy of its own")
	}
	ns := namespace(t)
	furnish(t, ns)
	ctx, core := context.Background(), kubeClient(t, upstream).CoreV1()
	must(core.ServiceAccounts(ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "builder"}}, metav1.CreateOptions{}))(t)
	letRead(t, ns, rbacv1.Subject{Kind: "ServiceAccount", Namespace: ns, Name: "builder"})
	token := func(audiences ...string) map[string]string {
		t.Helper()
		made := must(core.ServiceAccounts(ns).CreateToken(ctx, "builder", &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{Audiences: audiences}}, metav1.CreateOptions{}))(t)
		return map[string]string{"Authorization": "Bearer " + made.Status.Token}
	}
	const own, others = "https://watershed.test", "https://others.test"
	path := "/api/v1/namespaces/" + ns + "/configmaps?resourceVersion=0"
	choosy := runProxy(t, shared.ProxyKubeconfig, "--api-audiences="+own)
	both := runProxy(t, shared.ProxyKubeconfig, "--api-audiences="+own+",https://kubernetes.default.svc")
	plain := runProxy(t, shared.ProxyKubeconfig)
	for _, c := range []struct {
		name      string
		audiences []string
		status    map[*ownProxy]int
	}{
		{"the proxy", []string{own}, map[*ownProxy]int{choosy: 200, both: 200, plain: 401}},
		{"upstream", nil, map[*ownProxy]int{choosy: 401, both: 200, plain: 200}},
		{"others", []string{others}, map[*ownProxy]int{choosy: 401, both: 401, plain: 401}},
		{"both", []string{own, others}, map[*ownProxy]int{choosy: 200, both: 200, plain: 401}},
	} {
		header := token(c.audiences...)
		for proxy, status := range c.status {
			a := answered(t, proxy.target, status, request{path: path, user: "-", header: header})
			if source := a.header.Get("X-Watershed-Source"); status == 200 && source != "snapshot" {
				t.Errorf("a token for %s is answered by %s", c.name, source)
			}
		}
	}
}

// TestAnonymous: who shows no credentials is answered from memory where the
// operator wants that, as upstream would.
func TestAnonymous(t *testing.T) {
	if direct {
		t.Skip("needs a proxy of its own")
	}
	ns, closed := namespace(t), namespace(t)
	furnish(t, ns)
	letRead(t, ns, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:unauthenticated"})
	open := runProxy(t, shared.ProxyKubeconfig, "--anonymous-auth")
	for path, status := range map[string]int{
		"/api/v1/namespaces/" + ns + "/configmaps?resourceVersion=0":           200,
		"/api/v1/namespaces/" + ns + "/configmaps/apple?resourceVersion=0":     200,
		"/api/v1/namespaces/" + closed + "/configmaps?resourceVersion=0":       403,
		"/api/v1/namespaces/" + ns + "/pods?watch=1&resourceVersion=0":         403,
		"/api/v1/namespaces/" + closed + "/configmaps/apple?resourceVersion=0": 403,
	} {
		r := request{path: path, user: "-"}
		wanted, got := answered(t, upstream, status, r), answered(t, open.target, status, r)
		if status == 403 && got.body != wanted.body {
			t.Errorf("%s\n  ours: %s\ntheirs: %s", path, got.body, wanted.body)
		}
		if source := got.header.Get("X-Watershed-Source"); strings.HasPrefix(source, "forward") {
			t.Errorf("%s is answered by %s", path, source)
		}
		if source := answered(t, proxied, status, r).header.Get("X-Watershed-Source"); !strings.HasPrefix(source, "forward") {
			t.Errorf("without the flag, %s is answered by %s", path, source)
		}
	}
	// A token that is not good does not make anybody anonymous, nor does the wish to be another.
	path := "/api/v1/namespaces/" + ns + "/configmaps?resourceVersion=0"
	answered(t, open.target, 401, request{path: path, user: "?"})
	r := request{path: path, user: "-", header: map[string]string{"Impersonate-User": "admin"}}
	if got, wanted := open.send(t, r), upstream.send(t, r); got.status != wanted.status || got.body != wanted.body {
		t.Errorf("anonymous as admin: %d %s, and upstream %d %s", got.status, got.body, wanted.status, wanted.body)
	}
}

// TestSingleIdentity: whoever reaches the proxy is the proxy, whatever they show.
func TestSingleIdentity(t *testing.T) {
	if direct {
		t.Skip("needs a proxy of its own")
	}
	ns := namespace(t)
	furnish(t, ns)
	proxy := runProxy(t, shared.ProxyKubeconfig, "--single-identity")
	here := "/api/v1/namespaces/" + ns
	for _, user := range []string{"", "-", "?", "alice"} {
		me := proxy.send(t, request{method: "POST", path: selfReview, body: whoAmI.body, user: user})
		if !strings.Contains(who(me.body), `"username":"watershed"`) {
			t.Errorf("%q is %d %s", user, me.status, me.body)
		}
		a := proxy.send(t, request{path: here + "/configmaps?resourceVersion=0", user: user})
		if source := a.header.Get("X-Watershed-Source"); a.status != 200 || source != "snapshot" {
			t.Errorf("%q reads %d by %s: %s", user, a.status, source, a.body)
		}
		// What the proxy may not, nobody may.
		a = proxy.send(t, request{method: "DELETE", path: here + "/configmaps/apple", user: user})
		if a.status != 403 || !strings.Contains(a.body, `User \"watershed\" cannot delete`) {
			t.Errorf("%q deletes: %d %s", user, a.status, a.body)
		}
		// Nor may it act as somebody.
		a = proxy.send(t, request{path: here + "/configmaps?resourceVersion=0", user: user, header: map[string]string{"Impersonate-User": "admin"}})
		if a.status != 403 || !strings.Contains(a.body, `User \"watershed\" cannot impersonate`) {
			t.Errorf("%q as admin: %d %s", user, a.status, a.body)
		}
	}
	command := exec.Command(must(watershed())(t), "serve", "--kubeconfig", shared.ProxyKubeconfig, "--single-identity",
		"--listen", "0.0.0.0:0", "--cert-dir", t.TempDir())
	said, err := command.CombinedOutput()
	if err == nil || !strings.Contains(string(said), "--single-identity") {
		t.Errorf("it serves everybody: %v %s", err, said)
	}
}

// TestTokensLookedAtHere: a service account's token is reviewed once, and from
// then on looked at here, until what it is bound to is gone.
func TestTokensLookedAtHere(t *testing.T) {
	if direct {
		t.Skip("needs a proxy of its own")
	}
	ns := namespace(t)
	furnish(t, ns)
	ctx, core := context.Background(), kubeClient(t, upstream).CoreV1()
	must(core.ServiceAccounts(ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "builder"}}, metav1.CreateOptions{}))(t)
	letRead(t, ns, rbacv1.Subject{Kind: "ServiceAccount", Namespace: ns, Name: "builder"})
	rbac := kubeClient(t, upstream).RbacV1()
	binding := must(rbac.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: ns},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:service-account-issuer-discovery"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "watershed"}},
	}, metav1.CreateOptions{}))(t)
	t.Cleanup(func() { rbac.ClusterRoleBindings().Delete(ctx, binding.Name, metav1.DeleteOptions{}) })
	made := must(core.ServiceAccounts(ns).CreateToken(ctx, "builder", &authv1.TokenRequest{}, metav1.CreateOptions{}))(t)
	r := request{path: "/api/v1/namespaces/" + ns + "/configmaps?resourceVersion=0", user: "-", header: map[string]string{"Authorization": "Bearer " + made.Status.Token}}

	// Every request looks anew.
	const ttl = "--authentication-token-webhook-cache-ttl=0s"
	reviews := func(p *ownProxy) int {
		counts := map[string]int{}
		p.addUp(t, "watershed_access_reviews_total", "kind", counts)
		return counts["tokenreview"]
	}
	asked := map[string]int{}
	for name, flags := range map[string][]string{"here": {ttl, "--validate-service-account-tokens-locally"}, "upstream": {ttl}} {
		proxy := runProxy(t, shared.ProxyKubeconfig, flags...)
		answered(t, proxy.target, 200, r)
		// Until the service accounts are cached.
		eventually(t, "the account is cached", func() error {
			before := reviews(proxy)
			answered(t, proxy.target, 200, r)
			if name == "here" && reviews(proxy) > before {
				return fmt.Errorf("reviewed again")
			}
			return nil
		})
		before := reviews(proxy)
		for range 20 {
			answered(t, proxy.target, 200, r)
		}
		asked[name] = reviews(proxy) - before
		if name == "here" {
			defer func() {
				check(t, core.ServiceAccounts(ns).Delete(ctx, "builder", metav1.DeleteOptions{}))
				answered(t, upstream, 401, r)
				answered(t, proxy.target, 401, r)
			}()
		}
	}
	if asked["here"] != 0 || asked["upstream"] < 20 {
		t.Errorf("reviews of 20 requests: %v", asked)
	}
}
