// Package rights grants and revokes RBAC rights for one test.
package rights

import (
	"context"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	rbacclient "k8s.io/client-go/kubernetes/typed/rbac/v1"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// Rights grants RBAC rights for one test. Grants for the whole cluster are removed at the end,
// because other tests use the same users.
type Rights struct {
	t      *testing.T
	api    rbacclient.RbacV1Interface
	prefix string
}

// New returns Rights whose roles have names with a prefix.
func New(t *testing.T, prefix string) Rights {
	return At(t, api.Clientset(t, testbed.Upstream).RbacV1(), prefix)
}

// At returns such Rights at another API server.
func At(t *testing.T, api rbacclient.RbacV1Interface, prefix string) Rights {
	return Rights{t, api, prefix + "-"}
}

// User returns a subject for a user.
func User(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}
}

// Group returns a subject for a group.
func Group(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "Group", Name: name}
}

// Account returns a subject for a service account.
func Account(ns, name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: "ServiceAccount", Namespace: ns, Name: name}
}

// May returns a rule for resources of a group. names are its resourceNames.
func May(group string, resources, verbs []string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs, ResourceNames: names}
}

// ReadVerbs are the verbs of reads.
var ReadVerbs = []string{"get", "list", "watch"}

// Role sets the rules of a role, or of a cluster role if ns is empty.
func (r Rights) Role(ns, name string, rules ...rbacv1.PolicyRule) {
	r.t.Helper()
	ctx := context.Background()
	meta := metav1.ObjectMeta{Name: r.prefix + name}
	if ns == "" {
		role := &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}
		if _, err := r.api.ClusterRoles().Update(ctx, role, metav1.UpdateOptions{}); err != nil {
			require.Value(r.api.ClusterRoles().Create(ctx, role, metav1.CreateOptions{}))(r.t)
			r.t.Cleanup(func() { r.api.ClusterRoles().Delete(ctx, meta.Name, metav1.DeleteOptions{}) })
		}
		return
	}
	role := &rbacv1.Role{ObjectMeta: meta, Rules: rules}
	if _, err := r.api.Roles(ns).Update(ctx, role, metav1.UpdateOptions{}); err != nil {
		require.Value(r.api.Roles(ns).Create(ctx, role, metav1.CreateOptions{}))(r.t)
	}
}

// DropRole deletes a role.
func (r Rights) DropRole(ns, name string) {
	r.t.Helper()
	require.NoError(r.t, r.api.Roles(ns).Delete(context.Background(), r.prefix+name, metav1.DeleteOptions{}))
}

// Bind binds a role of the same kind and name.
func (r Rights) Bind(ns, name string, subjects ...rbacv1.Subject) {
	r.t.Helper()
	kind := "Role"
	if ns == "" {
		kind = "ClusterRole"
	}
	r.BindTo(ns, name, kind, subjects...)
}

// BindTo binds a role of another kind.
func (r Rights) BindTo(ns, name, kind string, subjects ...rbacv1.Subject) {
	r.t.Helper()
	ctx := context.Background()
	meta := metav1.ObjectMeta{Name: r.prefix + name}
	role := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: meta.Name}
	if ns != "" {
		require.NoError(r.t, r.TryBindTo(ns, name, kind, subjects...))
		return
	}
	require.Value(r.api.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: role, Subjects: subjects}, metav1.CreateOptions{}))(r.t)
	r.t.Cleanup(func() { r.api.ClusterRoleBindings().Delete(ctx, meta.Name, metav1.DeleteOptions{}) })
}

// TryBindTo binds a role of another kind in a namespace. It does not fail the test, which only the
// test's own goroutine may do.
func (r Rights) TryBindTo(ns, name, kind string, subjects ...rbacv1.Subject) error {
	meta := metav1.ObjectMeta{Name: r.prefix + name}
	role := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: meta.Name}
	_, err := r.api.RoleBindings(ns).Create(context.Background(), &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: role, Subjects: subjects}, metav1.CreateOptions{})
	return err
}

// Unbind deletes a binding.
func (r Rights) Unbind(ns, name string) {
	r.t.Helper()
	require.NoError(r.t, r.TryUnbind(ns, name))
}

// TryUnbind does the same, and does not fail the test.
func (r Rights) TryUnbind(ns, name string) error {
	ctx := context.Background()
	if ns == "" {
		return r.api.ClusterRoleBindings().Delete(ctx, r.prefix+name, metav1.DeleteOptions{})
	}
	return r.api.RoleBindings(ns).Delete(ctx, r.prefix+name, metav1.DeleteOptions{})
}

// AccountToken has upstream issue a token of a service account, for audiences or for upstream
// itself. Requests can then name the returned user.
func AccountToken(t *testing.T, ns, account string, audiences ...string) (user string) {
	t.Helper()
	made := require.Value(api.Clientset(t, testbed.Upstream).CoreV1().ServiceAccounts(ns).CreateToken(context.Background(), account,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}, metav1.CreateOptions{}))(t)
	user = "system:serviceaccount:" + ns + ":" + account
	if len(audiences) > 0 {
		user += " for others"
	}
	testbed.Shared.Users.Add(user, made.Status.Token)
	return user
}
