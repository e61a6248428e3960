package real

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/kubectl"
	"watershed.test/real/internal/manifests"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/rights"
	"watershed.test/real/internal/testbed"
)

// ownTypes are the types that the proxy reads for itself in every mode.
var ownTypes = []string{
	"rbac.authorization.k8s.io/clusterrolebindings", "rbac.authorization.k8s.io/clusterroles",
	"rbac.authorization.k8s.io/rolebindings", "rbac.authorization.k8s.io/roles",
}

// definitions are those that it reads where other types than Kubernetes' own may be cached.
var definitions = []string{"apiextensions.k8s.io/customresourcedefinitions", "apiregistration.k8s.io/apiservices"}

// validated lets the proxy validate tokens.
const validated = "validateServiceAccountTokensLocally=true"

// nodeLeases is the Role of a proxy on a node.
var nodeLeases = map[string][]string{"kube-node-lease": {"coordination.k8s.io/leases"}}

// grantedRights are the rules of the proxy's ClusterRole and of its Roles by namespace, and the configuration beside
// them.
type grantedRights struct {
	rules  []rbacv1.PolicyRule
	roles  map[string][]rbacv1.PolicyRule
	config string
	onNode bool
}

func rightsOf(t *testing.T, text string) (r grantedRights) {
	t.Helper()
	all := manifests.Parse(t, text)
	for _, object := range manifests.OfKind(all, "ClusterRole") {
		if strings.HasSuffix(object.GetName(), "watershed") {
			var role rbacv1.ClusterRole
			require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &role))
			r.rules = role.Rules
		}
	}
	r.roles = map[string][]rbacv1.PolicyRule{}
	for _, object := range manifests.OfKind(all, "Role") {
		var role rbacv1.Role
		require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &role))
		r.roles[role.Namespace] = role.Rules
	}
	for _, object := range manifests.OfKind(all, "RoleBinding") {
		var binding rbacv1.RoleBinding
		require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &binding))
		if r.roles[binding.Namespace] == nil || binding.RoleRef.Kind != "Role" || len(binding.Subjects) != 1 || binding.Subjects[0].Namespace == binding.Namespace {
			t.Errorf("%s binds %v to %v", binding.Namespace, binding.RoleRef, binding.Subjects)
		}
	}
	if bound := len(manifests.OfKind(all, "RoleBinding")); bound != len(r.roles) {
		t.Errorf("%d bindings of %d roles", bound, len(r.roles))
	}
	for _, object := range manifests.OfKind(all, "ConfigMap") {
		if config, found, _ := unstructured.NestedString(object.Object, "data", "config.yaml"); found {
			r.config = config
		}
	}
	makers := append(manifests.OfKind(all, "Deployment"), manifests.OfKind(all, "DaemonSet")...)
	r.onNode = manifests.KnowsItsNode(t, makers[0])
	return r
}

// TestRightsFitEachMode expands the rights of each mode to types. They are those that the proxy
// caches or follows in that mode, and no others. A proxy that has them lacks none.
func TestRightsFitEachMode(t *testing.T) {
	if testbed.Direct {
		t.Skip("no proxy runs")
	}
	c := require.Value(testbed.Start())(t)
	t.Cleanup(c.Stop)
	up := c.Upstream()
	known := listedTypes(t, up)
	var builtIn []string
	for name := range known {
		if name != "/secrets" {
			builtIn = append(builtIn, name)
		}
	}
	node := append([]string{"/nodes", "/pods"}, ownTypes...)
	secret := `config={"resources":[{"resource":"secrets","cache":"metadata"}]}`
	named := `config={"resources":[{"resource":"secrets","cache":"onDemand"},{"resource":"configmaps","cache":"never"},{"group":"apps","resource":"deployments","cache":"onDemand"},{"resource":"services","cache":"onDemand"}],"scopes":[{"resource":"services","namespaces":["a"]}]}`
	parts := `config={"resources":[{"resource":"secrets","cache":"onDemand"}],"scopes":[{"resource":"secrets","namespaces":["a","b"]},{"resource":"configmaps","namespaces":["a"]}]}`
	for _, namespace := range []string{"a", "b"} {
		kubectl.Run(t, up, kubectl.Command{Args: []string{"create", "namespace", namespace}}).MustSucceed(t, "namespace")
	}
	inA := map[string][]string{"kube-node-lease": nodeLeases["kube-node-lease"], "a": {"/services"}}
	for name, mode := range map[string]struct {
		text   string
		wanted []string
		roles  map[string][]string
	}{
		"default":          {manifests.Chart(t, "w"), builtIn, nil},
		"whole types":      {manifests.Chart(t, "w", "--set", "kind=DaemonSet,daemonSet.nodePreset=false"), builtIn, nil},
		"everything":       {manifests.Chart(t, "w", "-f", manifests.ChartDir+"/examples/everything.yaml"), append([]string{"/secrets"}, builtIn...), nil},
		"secrets":          {manifests.Chart(t, "w", "--set-json", secret), append([]string{"/secrets"}, builtIn...), nil},
		"some secrets":     {manifests.Chart(t, "w", "--set-json", parts), builtIn, map[string][]string{"a": {"/secrets"}, "b": {"/secrets"}}},
		"nothing":          {manifests.Chart(t, "w", "--set", "config.cache=never"), ownTypes, nil},
		"node":             {manifests.Chart(t, "w", "--set", "kind=DaemonSet"), node, nodeLeases},
		"node and tokens":  {manifests.Chart(t, "w", "--set", "kind=DaemonSet,"+validated), append([]string{"/serviceaccounts"}, node...), nodeLeases},
		"node and types":   {manifests.Chart(t, "w", "--set", "kind=DaemonSet", "--set-json", named), append([]string{"/secrets", "apps/deployments"}, node...), inA},
		"node, everything": {manifests.Chart(t, "w", "--set", "kind=DaemonSet,config.cache=onDemand"), builtIn, nil},
		"base":             {manifests.Kustomize(t, "resources: [deploy/base]"), builtIn, nil},
		"daemonset":        {manifests.Kustomize(t, "resources: [deploy/daemonset]"), node, nodeLeases},
	} {
		t.Run(name, func(t *testing.T) {
			r := rightsOf(t, mode.text)
			got := expanded(t, r.rules, known)
			if wanted := slices.Sorted(slices.Values(mode.wanted)); !slices.Equal(got, wanted) {
				t.Errorf("granted and not needed: %v\nneeded and not granted: %v", minus(got, wanted), minus(wanted, got))
			}
			if len(r.roles) != len(mode.roles) {
				t.Errorf("roles in %v", slices.Collect(maps.Keys(r.roles)))
			}
			for namespace, wanted := range mode.roles {
				if got := expanded(t, r.roles[namespace], known); !slices.Equal(got, wanted) {
					t.Errorf("%s: the rights are %v, not %v", namespace, got, wanted)
				}
			}
			checkRights(t, up, r)
		})
	}
}

// TestRightsFollowTheValues checks that values add the rights that they need.
func TestRightsFollowTheValues(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]struct {
		values, wanted []string
		roles          map[string][]string
	}{
		"events": {
			[]string{`config={"cache":"never","resources":[{"resource":"events","cache":"onDemand"}]}`},
			append([]string{"/events", "events.k8s.io/events"}, ownTypes...), nil,
		},
		"parts of events": {
			[]string{`config={"cache":"never","scopes":[{"group":"events.k8s.io","resource":"events","namespaces":["a"]}]}`},
			ownTypes, map[string][]string{"a": {"/events", "events.k8s.io/events"}},
		},
		"parts in some namespaces, and in all": {
			[]string{`config={"cache":"never","scopes":[{"resource":"pods","namespaces":["a"]},{"resource":"pods","labelSelector":"a=b"},` +
				`{"resource":"secrets","namespaces":["a"],"labelSelector":"a=b"},{"resource":"secrets","namespaces":["b"]}]}`},
			append([]string{"/pods"}, ownTypes...), map[string][]string{"a": {"/secrets"}, "b": {"/secrets"}},
		},
		"clients open scopes of all types": {
			[]string{"kind=\"DaemonSet\"", `config={"selectorScopes":true,"resources":[{"resource":"secrets","cache":"onDemand","selectorScopes":false}],` +
				`"scopes":[{"resource":"pods","namespaces":["a"]},{"resource":"secrets","namespaces":["a"]}]}`},
			append([]string{"/nodes", "/pods", "coordination.k8s.io/leases"}, ownTypes...), map[string][]string{"a": {"/secrets"}},
		},
		"clients open scopes of one type": {
			[]string{`config={"cache":"never","resources":[{"resource":"secrets","cache":"onDemand","selectorScopes":true}],"scopes":[{"resource":"secrets","namespaces":["a"]}]}`},
			append([]string{"/secrets"}, ownTypes...), nil,
		},
		"other parts on a node": {
			[]string{"kind=\"DaemonSet\"", `config={"scopes":[{"resource":"pods","namespaces":["a"]},{"group":"coordination.k8s.io","resource":"leases","namespaces":["a"]}]}`},
			append([]string{"/nodes"}, ownTypes...), map[string][]string{"a": {"/pods", "coordination.k8s.io/leases"}},
		},
		"custom types in a namespace": {
			[]string{`config={"cache":"never","resources":[{"group":"example.com","resource":"things","cache":true}],"scopes":[{"group":"example.com","resource":"things","namespaces":["a"]}]}`},
			slices.Concat(definitions, ownTypes), map[string][]string{"a": {"example.com/things"}},
		},
		"tokens are validated, and some accounts cached": {
			[]string{validated, `config={"cache":"never","scopes":[{"resource":"serviceaccounts","namespaces":["a"]}]}`},
			append([]string{"/serviceaccounts"}, ownTypes...), nil,
		},
		"listed types": {
			[]string{
				`rbac={"cached":[{"apiGroups":["","apps"],"resources":["pods"]},{"apiGroups":["*"],"resources":["leases"]}],` +
					`"customGroups":["example.com"]}`,
				`config={"resources":[{"resource":"pods","cache":"always"},{"resource":"secrets","cache":"metadata"}],` +
					`"scopes":[{"group":"coordination.k8s.io","resource":"leases","namespaces":["a"]},` +
					`{"group":"example.com","resource":"things","namespaces":["a"]}]}`,
			},
			[]string{"*/leases", "/pods", "/secrets", "apps/pods", "example.com/*"}, nil,
		},
		"tokens are validated where nothing is cached": {
			[]string{validated, `config={"cache":"never"}`}, append([]string{"/serviceaccounts"}, ownTypes...), nil,
		},
		"tokens are validated with listed types": {
			[]string{validated, `rbac.cached=[{"apiGroups":[""],"resources":["pods"]}]`}, []string{"/pods", "/serviceaccounts"}, nil,
		},
		"tokens are validated with what is granted": {
			[]string{validated, `rbac.cached=[{"apiGroups":[""],"resources":["*"]}]`}, []string{"/*"}, nil,
		},
	} {
		var flags []string
		for _, value := range mode.values {
			flags = append(flags, "--set-json", value)
		}
		r := rightsOf(t, manifests.Chart(t, "w", flags...))
		if got, wanted := typesIn(r.rules), slices.Sorted(slices.Values(mode.wanted)); !slices.Equal(got, wanted) {
			t.Errorf("%s: the rights are %v, not %v", name, got, wanted)
		}
		roles := map[string][]string{}
		for namespace, rules := range r.roles {
			roles[namespace] = typesIn(rules)
		}
		if !maps.EqualFunc(roles, mode.roles, slices.Equal) {
			t.Errorf("%s: the rights in namespaces are %v, not %v", name, roles, mode.roles)
		}
	}
}

// typesIn returns the types in rules as they are written there.
func typesIn(rules []rbacv1.PolicyRule) (all []string) {
	for _, rule := range rules {
		if len(rule.NonResourceURLs) > 0 || reflect.DeepEqual(rule, clusterRule) {
			continue
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				all = append(all, group+"/"+resource)
			}
		}
	}
	slices.Sort(all)
	return all
}

// listedTypes returns the types that upstream lets clients list and watch, as GROUP/RESOURCE.
func listedTypes(t *testing.T, to api.Target) map[string]bool {
	t.Helper()
	lists := require.Value(api.Clientset(t, to).Discovery().ServerPreferredResources())(t)
	known := map[string]bool{}
	for _, list := range lists {
		group, _, found := strings.Cut(list.GroupVersion, "/")
		if !found {
			group = ""
		}
		for _, resource := range list.APIResources {
			if slices.Contains(resource.Verbs, "list") && slices.Contains(resource.Verbs, "watch") {
				known[group+"/"+resource.Name] = true
			}
		}
	}
	return known
}

// clusterRule lets the proxy know the cluster. Modes without namespaces need it.
var clusterRule = rights.May("", []string{"namespaces"}, []string{"list"}, "kube-system")

// expanded returns the types that rules are about. Each group and type in them has to exist.
func expanded(t *testing.T, rules []rbacv1.PolicyRule, known map[string]bool) []string {
	t.Helper()
	granted := map[string]bool{}
	for _, rule := range rules {
		if len(rule.NonResourceURLs) > 0 || reflect.DeepEqual(rule, clusterRule) {
			continue
		}
		if !slices.Equal(rule.Verbs, []string{"list", "watch"}) {
			t.Errorf("the proxy lists and watches, and may %v", rule.Verbs)
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				before := len(granted)
				for name := range known {
					if name == group+"/"+resource || (resource == "*" && strings.HasPrefix(name, group+"/")) {
						granted[name] = true
					}
				}
				if len(granted) == before {
					t.Errorf("the rule for %s/%s grants nothing", group, resource)
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(granted))
}

func minus(all, others []string) (rest []string) {
	for _, one := range all {
		if !slices.Contains(others, one) {
			rest = append(rest, one)
		}
	}
	return rest
}

// checkRights lets watershed check what a service account with these rights lacks.
func checkRights(t *testing.T, up api.Target, r grantedRights) {
	t.Helper()
	ctx, client, name := context.Background(), api.Clientset(t, up), testbed.Slug(t)
	const namespace = "default"
	kubectl.Run(t, up, kubectl.Command{Args: []string{"create", "serviceaccount", name, "-n", namespace}}).MustSucceed(t, "account")
	require.Value(client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: r.rules}, metav1.CreateOptions{}))(t)
	for in, rules := range r.roles {
		meta := metav1.ObjectMeta{Name: name, Namespace: in}
		require.Value(client.RbacV1().Roles(in).Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}))(t)
		require.Value(client.RbacV1().RoleBindings(in).Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: name, Namespace: namespace}},
		}, metav1.CreateOptions{}))(t)
	}
	for binding, role := range map[string]string{name: name, name + "-auth-delegator": "system:auth-delegator"} {
		require.Value(client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: binding}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: name, Namespace: namespace}},
		}, metav1.CreateOptions{}))(t)
	}
	token := strings.TrimSpace(kubectl.Run(t, up, kubectl.Command{Args: []string{"create", "token", name, "-n", namespace}}).MustSucceed(t, "token"))
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, fmt.Appendf(nil, "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: c\n  cluster: {server: %q, certificate-authority: %q}\nusers:\n- name: u\n  user: {token: %q}\ncontexts:\n- name: c\n  context: {cluster: c, user: u}\n", up.URL, up.CA, token), 0o600))
	args := []string{"check", "-o", "json", "--kubeconfig", kubeconfig, "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--cert-dir", dir}
	if r.onNode {
		args = append(args, "--node-name=east")
	}
	if r.config != "" {
		config := filepath.Join(dir, "config.yaml")
		require.NoError(t, os.WriteFile(config, []byte(r.config), 0o600))
		args = append(args, "--config", config)
	}
	// Upstream's authorizer takes a moment to know the rights.
	poll.Until(t, "nothing is missing", func() error {
		out, _ := exec.Command(require.Value(testbed.ProxyProgram())(t), args...).Output()
		var report struct {
			Findings []struct{ Level, Subject, Message string }
		}
		if err := json.Unmarshal(out, &report); err != nil || len(report.Findings) < 4 {
			t.Fatalf("%v in %s", err, out)
		}
		var missing error
		for _, finding := range report.Findings {
			if finding.Level != "ok" && (finding.Subject == "rights" || finding.Subject == "types") {
				missing = errors.Join(missing, fmt.Errorf("%s: %s: %s", finding.Level, finding.Subject, finding.Message))
			}
		}
		return missing
	})
}
