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

// grantedRights are the rules of the proxy's ClusterRole, and the configuration beside them.
type grantedRights struct {
	rules  []rbacv1.PolicyRule
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
	node := append([]string{"/nodes", "/pods", "coordination.k8s.io/leases"}, ownTypes...)
	secret := `config={"resources":[{"resource":"secrets","cache":"metadata"}]}`
	named := `config={"resources":[{"resource":"secrets","cache":"onDemand"},{"resource":"configmaps","cache":"never"},{"group":"apps","resource":"deployments","cache":"onDemand"},{"resource":"services","cache":"onDemand"}],"scopes":[{"resource":"services","namespaces":["a"]}]}`
	for name, mode := range map[string]struct {
		text   string
		wanted []string
	}{
		"default":          {manifests.Chart(t, "w"), builtIn},
		"whole types":      {manifests.Chart(t, "w", "--set", "kind=DaemonSet,daemonSet.nodePreset=false"), builtIn},
		"everything":       {manifests.Chart(t, "w", "-f", manifests.ChartDir+"/examples/everything.yaml"), append([]string{"/secrets"}, builtIn...)},
		"secrets":          {manifests.Chart(t, "w", "--set-json", secret), append([]string{"/secrets"}, builtIn...)},
		"nothing":          {manifests.Chart(t, "w", "--set", "config.cache=never"), ownTypes},
		"node":             {manifests.Chart(t, "w", "--set", "kind=DaemonSet"), node},
		"node and tokens":  {manifests.Chart(t, "w", "--set", "kind=DaemonSet,"+validated), append([]string{"/serviceaccounts"}, node...)},
		"node and types":   {manifests.Chart(t, "w", "--set", "kind=DaemonSet", "--set-json", named), append([]string{"/secrets", "/services", "apps/deployments"}, node...)},
		"node, everything": {manifests.Chart(t, "w", "--set", "kind=DaemonSet,config.cache=onDemand"), builtIn},
		"base":             {manifests.Kustomize(t, "resources: [deploy/base]"), builtIn},
		"daemonset":        {manifests.Kustomize(t, "resources: [deploy/daemonset]"), node},
	} {
		t.Run(name, func(t *testing.T) {
			r := rightsOf(t, mode.text)
			got := expanded(t, r.rules, known)
			if wanted := slices.Sorted(slices.Values(mode.wanted)); !slices.Equal(got, wanted) {
				t.Errorf("granted and not needed: %v\nneeded and not granted: %v", minus(got, wanted), minus(wanted, got))
			}
			checkRights(t, up, r)
		})
	}
}

// TestRightsFollowTheValues checks that values add the rights that they need.
func TestRightsFollowTheValues(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]struct{ values, wanted []string }{
		"events": {
			[]string{`config={"cache":"never","resources":[{"resource":"events","cache":"onDemand"}]}`},
			append([]string{"/events", "events.k8s.io/events"}, ownTypes...),
		},
		"parts of events": {
			[]string{`config={"cache":"never","scopes":[{"group":"events.k8s.io","resource":"events","namespaces":["a"]}]}`},
			append([]string{"/events", "events.k8s.io/events"}, ownTypes...),
		},
		"listed types": {
			[]string{
				`rbac={"cached":[{"apiGroups":["","apps"],"resources":["pods"]},{"apiGroups":["*"],"resources":["leases"]}],` +
					`"customGroups":["example.com"]}`,
				`config={"resources":[{"resource":"pods","cache":"always"},{"resource":"secrets","cache":"metadata"}],` +
					`"scopes":[{"group":"coordination.k8s.io","resource":"leases","namespaces":["a"]},` +
					`{"group":"example.com","resource":"things","namespaces":["a"]}]}`,
			},
			[]string{"*/leases", "/pods", "/secrets", "apps/pods", "example.com/*"},
		},
		"tokens are validated where nothing is cached": {
			[]string{validated, `config={"cache":"never"}`}, append([]string{"/serviceaccounts"}, ownTypes...),
		},
		"tokens are validated with listed types": {
			[]string{validated, `rbac.cached=[{"apiGroups":[""],"resources":["pods"]}]`}, []string{"/pods", "/serviceaccounts"},
		},
		"tokens are validated with what is granted": {
			[]string{validated, `rbac.cached=[{"apiGroups":[""],"resources":["*"]}]`}, []string{"/*"},
		},
	} {
		var flags, got []string
		for _, value := range mode.values {
			flags = append(flags, "--set-json", value)
		}
		for _, rule := range rightsOf(t, manifests.Chart(t, "w", flags...)).rules {
			if len(rule.NonResourceURLs) > 0 || reflect.DeepEqual(rule, clusterRule) {
				continue
			}
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					got = append(got, group+"/"+resource)
				}
			}
		}
		slices.Sort(got)
		if wanted := slices.Sorted(slices.Values(mode.wanted)); !slices.Equal(got, wanted) {
			t.Errorf("%s: the rights are %v, not %v", name, got, wanted)
		}
	}
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
