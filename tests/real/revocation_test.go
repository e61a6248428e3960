package real

import (
	"context"
	"fmt"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// TestRevokedRightsEndReadsAndWatches revokes grants, which the proxy remembers for minutes.
// The next reads are refused and open watches are cut. New grants count soon, too.
func TestRevokedRightsEndReadsAndWatches(t *testing.T) {
	p := testbed.StartProxy(t, testbed.Shared.ProxyKubeconfig)
	ns := objects.Namespace(t)
	ctx := context.Background()
	core, rbac := api.Clientset(t, testbed.Upstream).CoreV1(), api.Clientset(t, testbed.Upstream).RbacV1()
	require.Value(core.ConfigMaps(ns).Create(ctx, objects.ConfigMap("apple"), metav1.CreateOptions{}))(t)
	require.Value(rbac.Roles(ns).Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "watch"}},
	}}, metav1.CreateOptions{}))(t)
	bind := func(name, kind, subject string) {
		t.Helper()
		_, err := rbac.RoleBindings(ns).Create(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: kind, Name: subject}},
		}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	list := "/api/v1/namespaces/" + ns + "/configmaps?resourceVersion=0"
	read := func(user string) api.Answer { return p.Send(t, api.Request{Path: list, User: user}) }
	becomes := func(what, user string, status int) time.Duration {
		t.Helper()
		began := time.Now()
		poll.Until(t, what, func() error {
			if a := read(user); a.Status != status {
				return fmt.Errorf("%d %s", a.Status, a.Body)
			}
			return nil
		})
		return time.Since(began)
	}
	poll.Until(t, "RBAC is followed", func() error {
		if p.Sum(t, "watershed_rbac_following", "") != 1 {
			return fmt.Errorf("it is not")
		}
		return nil
	})

	// The first answer is a refusal, which is remembered for half a minute.
	becomes("nobody gave bob anything", "bob", 403)
	bind("bob", "Group", "builders")
	bind("alice", "User", "alice")
	t.Logf("a new binding counts after %v", becomes("bob's rights arrive", "bob", 200))
	becomes("alice's rights arrive", "alice", 200)
	// API servers need a moment after the changes.
	poll.Until(t, "grants are remembered", func() error {
		reviews := p.Sum(t, "watershed_access_reviews_total", "")
		time.Sleep(3 * time.Second)
		read("bob")
		// One review is of the token, which is reviewed more often.
		if more := p.Sum(t, "watershed_access_reviews_total", "") - reviews; more > 1 {
			return fmt.Errorf("%d reviews", more)
		}
		return nil
	})

	open := func(user string, n int) (watches []*api.Stream) {
		for range n {
			w := p.Watch(t, api.Request{Path: list + "&watch=1", User: user})
			w.Next(t)
			watches = append(watches, w)
		}
		return watches
	}
	bobs, alices := open("bob", 5), open("alice", 1)
	require.NoError(t, rbac.RoleBindings(ns).Delete(ctx, "bob", metav1.DeleteOptions{}))
	deleted := time.Now()
	becomes("bob's rights go", "bob", 403)
	refused := time.Since(deleted)
	for _, w := range bobs {
		if rest, err := w.Rest(t); err != nil || len(rest) > 0 {
			t.Errorf("bob's watch ends with %v after %v", err, rest)
		}
	}
	t.Logf("after a binding is deleted, reads are refused after %v, and 5 watches are cut after %v", refused, time.Since(deleted))

	require.Value(core.ConfigMaps(ns).Create(ctx, objects.ConfigMap("new"), metav1.CreateOptions{}))(t)
	if e := alices[0].Next(t); e.String() != "ADDED new" {
		t.Errorf("alice's watch yields %s", e.Raw)
	}
	if a := read("alice"); a.Status != 200 {
		t.Errorf("alice's list: %d %s", a.Status, a.Body)
	}

	// An empty role leaves its holders without rights.
	role := require.Value(rbac.Roles(ns).Get(ctx, "reader", metav1.GetOptions{}))(t)
	role.Rules = nil
	require.Value(rbac.Roles(ns).Update(ctx, role, metav1.UpdateOptions{}))(t)
	changed := time.Now()
	becomes("alice's rights go", "alice", 403)
	refused = time.Since(changed)
	if rest, err := alices[0].Rest(t); err != nil || len(rest) > 0 {
		t.Errorf("alice's watch ends with %v after %v", err, rest)
	}
	t.Logf("after a role is emptied, reads are refused after %v, and a watch is cut after %v", refused, time.Since(changed))
	poll.Until(t, "the watches that ended are counted", func() error {
		if ended := p.Sum(t, "watershed_watches_ended_total", "configmaps"); ended != 6 {
			return fmt.Errorf("%d watches of config maps ended", ended)
		}
		return nil
	})
}

// TestGrantsThatRunOutAreRenewedForAll has grants run out after a second. kube-apiserver says that all
// its authorizers list their rules, which stands for reviews of the grants, until a binding goes.
func TestGrantsThatRunOutAreRenewedForAll(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy of its own")
	}
	t.Parallel()
	p := testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig, "--authorization-webhook-cache-authorized-ttl=1s")
	ns := objects.Namespace(t)
	letRead(t, ns, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "User", Name: "alice"})
	list := api.Request{Path: "/api/v1/namespaces/" + ns + "/configmaps?resourceVersion=0", User: "alice"}
	answered(t, p.Target, 200, list)
	reviews := func() (rules, rights int) {
		counts := p.ByLabel(t, "watershed_access_reviews_total", "kind")
		return counts["selfsubjectrulesreview"], counts["subjectaccessreview"]
	}
	rbac := api.Clientset(t, testbed.Upstream).RbacV1()
	// A grant is renewed while all types of RBAC show newer versions. These change no rights.
	annotate := func(number int) {
		ctx, kind := t.Context(), types.MergePatchType
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"test":"%d"}}}`, number)
		none := metav1.PatchOptions{}
		_, err := rbac.Roles(ns).Patch(ctx, "reader", kind, patch, none)
		require.NoError(t, err)
		_, err = rbac.RoleBindings(ns).Patch(ctx, "reader", kind, patch, none)
		require.NoError(t, err)
		_, err = rbac.ClusterRoles().Patch(ctx, "system:discovery", kind, patch, none)
		require.NoError(t, err)
		_, err = rbac.ClusterRoleBindings().Patch(ctx, "system:discovery", kind, patch, none)
		require.NoError(t, err)
	}
	number := 0
	// Changes of RBAC by other tests can end the grant meanwhile.
	poll.Until(t, "the grant is renewed without a review", func() error {
		rules, rights := reviews()
		for range 2 {
			time.Sleep(1100 * time.Millisecond)
			number++
			annotate(number)
			time.Sleep(100 * time.Millisecond)
			answered(t, p.Target, 200, list)
		}
		nowRules, nowRights := reviews()
		if nowRules < rules+2 || nowRights > rights {
			return fmt.Errorf("%d questions for rules, %d for rights", nowRules-rules, nowRights-rights)
		}
		return nil
	})
	require.NoError(t, rbac.RoleBindings(ns).Delete(t.Context(), "reader", metav1.DeleteOptions{}))
	answered(t, p.Target, 403, list)
}
