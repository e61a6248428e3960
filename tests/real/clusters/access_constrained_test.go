package clusters

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/certificates"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

const (
	authenticationGroup = "authentication.k8s.io"
	agent               = "system:serviceaccount:default:agent"
	nodeNameHeader      = "X-Remote-Extra-Authentication.kubernetes.io%2Fnode-Name"
)

// impersonationRoles are the rights of callers in the modes of constrained impersonation, and in
// the legacy mode.
func impersonationRoles() map[string][]rbacv1.PolicyRule {
	rule := func(group, resource string, verbs []string, names ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, ResourceNames: names, Verbs: verbs}
	}
	as := func(mode, resource string, names ...string) rbacv1.PolicyRule {
		return rule(authenticationGroup, resource, []string{"impersonate:" + mode}, names...)
	}
	on := func(mode, resource string, verbs ...string) rbacv1.PolicyRule {
		var constrained []string
		for _, verb := range verbs {
			constrained = append(constrained, "impersonate-on:"+mode+":"+verb)
		}
		return rule("", resource, constrained)
	}
	reading := []string{"get", "list", "watch", "create"}
	infos := func() []rbacv1.PolicyRule {
		return []rbacv1.PolicyRule{
			as("user-info", "users", "jane"), as("user-info", "groups", "builders", "painters", "masons"), as("user-info", "uids", "7"),
			as("user-info", "userextras/example.com/scopes", "read"),
		}
	}
	return map[string][]rbacv1.PolicyRule{
		"informed": append(infos(), on("user-info", "configmaps", reading...), rbacv1.PolicyRule{NonResourceURLs: []string{"/healthz"}, Verbs: []string{"impersonate-on:user-info:get"}}),
		"unasked":  infos(),
		"asked":    {on("user-info", "configmaps", reading...)},
		"crowds":   {on("user-info", "configmaps", reading...), as("user-info", "users"), as("user-info", "groups"), as("user-info", "userextras/*")},
		"nodes":    {on("arbitrary-node", "pods", reading...), on("arbitrary-node", "configmaps", "list"), as("arbitrary-node", "nodes", "east")},
		"accounts": {on("serviceaccount", "configmaps", reading...), as("serviceaccount", "serviceaccounts", "robot")},
		"legacy":   {rule("", "users", []string{"impersonate"}, "jane", "system:node:east"), rule("", "groups", []string{"impersonate"}, "builders", "system:masters"), rule(authenticationGroup, "userextras/scopes", []string{"impersonate"})},
		"both":     {on("user-info", "configmaps", "list"), as("user-info", "users", "jane"), rule("", "users", []string{"impersonate"}, "jane")},
		agent:      {on("associated-node", "pods", "list", "watch"), as("associated-node", "nodes")},
		"jane":     {rule("", "configmaps", []string{"get", "list", "watch", "create"})},
	}
}

func impersonatedIdentities() []http.Header {
	return []http.Header{
		{"Impersonate-User": {"jane"}},
		{"Impersonate-User": {"bob"}},
		{"Impersonate-User": {"jane"}, "Impersonate-Group": {"builders"}},
		{"Impersonate-User": {"jane"}, "Impersonate-Group": {"strangers"}},
		{"Impersonate-User": {"jane"}, "Impersonate-Group": {"builders", "painters", "masons", "builders"}},
		{"Impersonate-User": {"jane"}, "Impersonate-Group": {"a", "b", "c", "d"}},
		{"Impersonate-User": {"jane"}, "Impersonate-Group": {""}},
		{"Impersonate-User": {"jane"}, "Impersonate-Uid": {"7"}},
		{"Impersonate-User": {"jane"}, "Impersonate-Uid": {"8"}},
		{"Impersonate-User": {"jane"}, "Impersonate-Extra-Example.com%2fscopes": {"read"}},
		{"Impersonate-User": {"jane"}, "Impersonate-Extra-Example.com%2fscopes": {"read", "write"}},
		{"Impersonate-User": {"jane"}, "Impersonate-Extra-Scopes": {"read"}},
		{"Impersonate-User": {"jane"}, "Impersonate-Extra-A_b%2fc%20d": {"read"}},
		{"Impersonate-User": {"jane"}, "Impersonate-Extra-Example.com%2fscopes": {""}},
		{"Impersonate-User": {"system:node:east"}},
		{"Impersonate-User": {"system:node:west"}},
		{"Impersonate-User": {"system:node:east"}, "Impersonate-Group": {"system:nodes"}},
		{"Impersonate-User": {"system:serviceaccount:default:robot"}},
		{"Impersonate-User": {"system:serviceaccount:default:other"}},
		{"Impersonate-Group": {"builders"}},
		{"Impersonate-Uid": {"7"}, "Impersonate-Extra-Scopes": {"read"}},
	}
}

// TestConstrainedImpersonationLikeUpstream lets callers with certificates, and those of a front
// proxy, act as others. Each answer is upstream's own, with the feature and without it.
func TestConstrainedImpersonationLikeUpstream(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy of its own")
	}
	t.Parallel()
	for name, gate := range map[string]string{"constrained": "true", "legacy": "false"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			impersonationLikeUpstream(t, "--apiserver-arg=--feature-gates=ConstrainedImpersonation="+gate)
		})
	}
}

func impersonationLikeUpstream(t *testing.T, gate string) {
	dir := t.TempDir()
	clients, fronts := certificates.NewSigner(t, dir, "clients"), certificates.NewSigner(t, dir, "front-proxies")
	flags := []string{
		"--client-ca-file=" + clients.File, "--requestheader-client-ca-file=" + fronts.File, "--requestheader-allowed-names=front",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
	}
	args := []string{gate}
	for _, flag := range flags {
		args = append(args, "--apiserver-arg="+flag)
	}
	c := require.Value(testbed.Start(args...))(t)
	t.Cleanup(c.Stop)
	up := c.Upstream()
	grants := impersonationRoles()
	grants["watershed"] = impersonating()
	grantAll(t, up, grants)
	for _, name := range []string{"apple", "pear"} {
		require.Value(api.Clientset(t, up).CoreV1().ConfigMaps("default").Create(context.Background(), objects.ConfigMap(name), metav1.CreateOptions{}))(t)
	}
	proxy := testbed.RunProxy(t, c.ProxyKubeconfig, flags...)

	const here = "/api/v1/namespaces/default/configmaps"
	requests := []api.Request{
		{Path: here + "?resourceVersion=0"},
		{Path: here + "?resourceVersion=0&labelSelector=app%3Dapple"},
		{Path: here + "/apple?resourceVersion=0"},
		{Path: here + "?resourceVersion=0&watch=1&timeoutSeconds=1"},
		{Path: "/api/v1/pods?resourceVersion=0"},
		{Path: "/healthz"},
		{Path: "/version"},
		{Method: "POST", Path: here + "?dryRun=All", Body: api.JSON(objects.WithKind(objects.ConfigMap("new")))},
		{Method: "DELETE", Path: here + "/pear?dryRun=All"},
		{Path: "/api/v1/namespaces/default/pods/none/log"},
		api.SelfReview,
	}
	front := fronts.Person(t, certificates.Template("front"))
	statuses, constrained, unwritable := map[int]int{}, 0, 0
	for caller := range grants {
		certificate, header := clients.Person(t, certificates.Template(caller)), http.Header{}
		if caller == agent {
			certificate = front
			header = http.Header{"X-Remote-User": {agent}, "X-Remote-Group": {"system:serviceaccounts"}, nodeNameHeader: {"east"}}
		}
		sides := [2]*http.Client{certificates.Client(up, certificate), certificates.Client(proxy.Target, certificate)}
		// One after the other: an API server begins with the mode that it allowed last.
		for _, identity := range impersonatedIdentities() {
			for _, r := range requests {
				r.User, r.Repeated = "-", merge(identity, header)
				wanted, got := answerOf(t, up, sides[0], r), answerOf(t, proxy.Target, sides[1], r)
				statuses[wanted.Status]++
				if strings.Contains(wanted.Body, "impersonate-on:") {
					constrained++
				}
				if got.Status == 400 && strings.Contains(got.Body, "cannot be written in a header exactly") {
					// The limit: the proxy does not send empty groups and attributes on.
					unwritable++
					continue
				}
				if w, g := essential(r, wanted), essential(r, got); w != g {
					t.Errorf("%s: %v\n%s", caller, r, compare.Diff(w, g))
				}
			}
		}
	}
	t.Logf("statuses %v, %d refusals by constrained impersonation", statuses, constrained)
	if empty := 2 * 2 * len(requests); unwritable > empty {
		t.Errorf("%d requests were not sent on", unwritable)
	}
	if statuses[200] < 20 || statuses[403] < 500 || statuses[400] < 50 {
		t.Errorf("too few answers of a kind: %v", statuses)
	}
	if is := strings.HasSuffix(gate, "true"); is != (constrained > 100) {
		t.Errorf("%d refusals by constrained impersonation", constrained)
	}
}

func merge(all ...http.Header) http.Header {
	out := http.Header{}
	for _, one := range all {
		for name, values := range one {
			out[name] = values
		}
	}
	return out
}

func answerOf(t *testing.T, to api.Target, client *http.Client, r api.Request) api.Answer {
	t.Helper()
	r.Via = client
	return to.Send(t, r)
}

func essential(r api.Request, a api.Answer) string {
	return fmt.Sprintf("%d %s", a.Status, essenceOf(r, a.Body))
}

// grantAll gives users cluster-wide rights, and waits until upstream knows of them. It does not
// try them out, as an API server remembers how a user was allowed to impersonate.
func grantAll(t *testing.T, to api.Target, grants map[string][]rbacv1.PolicyRule) {
	t.Helper()
	ctx, client := context.Background(), api.Clientset(t, to)
	for user, rules := range grants {
		name := "granted-" + strings.ReplaceAll(user, ":", "-")
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
		require.Value(client.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}))(t)
		require.Value(client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
		}, metav1.CreateOptions{}))(t)
	}
	for user, rules := range grants {
		rule := rules[0]
		attributes := &authorizationv1.ResourceAttributes{Verb: rule.Verbs[0], Group: rule.APIGroups[0], Resource: rule.Resources[0]}
		if len(rule.ResourceNames) > 0 {
			attributes.Name = rule.ResourceNames[0]
		}
		poll.Until(t, user+" has its rights", func() error {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: attributes}}
			review, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			if err == nil && !review.Status.Allowed {
				err = poll.ErrNotYet
			}
			return err
		})
	}
}
