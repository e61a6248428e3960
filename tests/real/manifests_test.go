package real

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"watershed.test/real/internal/kubectl"
	"watershed.test/real/internal/manifests"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// manifests checks that the API server accepts each combination of the manifests.
func (p place) manifests(t *testing.T) {
	flags := manifests.KnownFlags(t)
	ways := map[string][]string{
		"base":      {"resources: [deploy/base]"},
		"daemonset": {"resources: [deploy/daemonset]"},
		"namespace": {"namespace: " + p.namespace, "resources: [deploy/base]", "components: [deploy/flow-control]"},
	}
	for _, component := range manifests.Components(t) {
		if component != "sidecar" {
			ways[component] = []string{"resources: [deploy/base]", "components: [deploy/" + component + "]"}
		}
	}
	if len(ways) < 7 {
		t.Errorf("only %v", slices.Collect(maps.Keys(ways)))
	}
	texts := map[string]string{}
	for _, way := range slices.Sorted(maps.Keys(ways)) {
		t.Run(way, func(t *testing.T) {
			text := manifests.Kustomize(t, ways[way]...)
			texts[way] = text
			all := manifests.Parse(t, text)
			makers := append(manifests.OfKind(all, "Deployment"), manifests.OfKind(all, "DaemonSet")...)
			if len(makers) != 1 {
				t.Fatalf("%d deployments or daemon sets", len(makers))
			}
			for _, flag := range manifests.Flags(t, makers[0]) {
				if !flags[flag] {
					t.Errorf("%s is not a flag of watershed serve", flag)
				}
			}
			if onNode := manifests.KnowsItsNode(t, makers[0]); onNode != (way == "daemonset") {
				t.Errorf("the proxy is told its node: %v", onNode)
			}
			// Everything that selects pods selects these.
			labels, _, _ := unstructured.NestedStringMap(makers[0].Object, "spec", "template", "metadata", "labels")
			for kind, path := range map[string][]string{
				"Service": {"spec", "selector"}, "PodDisruptionBudget": {"spec", "selector", "matchLabels"},
				"NetworkPolicy": {"spec", "podSelector", "matchLabels"}, "PodMonitor": {"spec", "selector", "matchLabels"},
			} {
				for _, object := range manifests.OfKind(all, kind) {
					selector, _, _ := unstructured.NestedStringMap(object.Object, path...)
					for key, value := range selector {
						if labels[key] != value {
							t.Errorf("the %s selects %s=%s, pods have %v", kind, key, value, labels)
						}
					}
					if len(selector) == 0 {
						t.Errorf("the %s selects everything", kind)
					}
				}
			}
		})
	}
	if warnings := p.accepts(t, texts); strings.Contains(warnings, "PodSecurity") {
		t.Error(warnings)
	}
}

// TestManifestsLeaveTheNamespace checks that no kustomization holds the namespace, because
// `kubectl delete -k` would delete everything in it. So the documents create it first.
func TestManifestsLeaveTheNamespace(t *testing.T) {
	t.Parallel()
	for _, folder := range []string{"base", "daemonset"} {
		objects := manifests.Parse(t, manifests.Kustomize(t, "resources: [deploy/"+folder+"]"))
		if len(objects) < 5 || len(manifests.OfKind(objects, "Namespace")) > 0 {
			t.Errorf("deploy/%s has %d objects, and a namespace: %v", folder, len(objects), len(manifests.OfKind(objects, "Namespace")) > 0)
		}
	}
	text := string(require.Value(os.ReadFile(filepath.Join(manifests.DeployDir, "README.md")))(t))
	created := strings.Index(text, "kubectl create namespace watershed-system\n")
	for _, command := range []string{"kubectl -n watershed-system create", "kubectl apply -k"} {
		if used := strings.Index(text, command); created < 0 || used < created {
			t.Errorf("deploy/README.md says %q before it creates the namespace", command)
		}
	}
}

// TestManifestsFollowTheNamespace checks that a kustomization can choose another namespace. Each subject has to be in
// it, because a binding of an account that does not exist grants nothing.
func TestManifestsFollowTheNamespace(t *testing.T) {
	t.Parallel()
	document := string(require.Value(os.ReadFile(filepath.Join(manifests.DeployDir, "README.md")))(t))
	_, recipe, found := strings.Cut(document, "\nnamespace: proxies\n")
	recipe, _, closed := strings.Cut(recipe, "\n```\n")
	if !found || !closed {
		t.Fatal("deploy/README.md shows no kustomization with another namespace")
	}
	var components []string
	for _, component := range manifests.Components(t) {
		if component != "sidecar" && component != "cert-manager" {
			components = append(components, "  - ../watershed/deploy/"+component+"\n")
		}
	}
	recipe = strings.Replace(recipe, "components:\n", "components:\n"+strings.Join(components, ""), 1)
	text := manifests.Kustomize(t, "namespace: proxies", strings.ReplaceAll(recipe, "../watershed/", ""))
	if strings.Contains(text, "watershed-system") {
		t.Errorf("the namespace is proxies, and there is watershed-system in\n%s", text)
	}
	kinds := map[string]int{}
	for _, object := range manifests.Parse(t, text) {
		kinds[object.GetKind()]++
	}
	for kind, want := range map[string]int{"ClusterRoleBinding": 3, "FlowSchema": 2, "Certificate": 2, "NetworkPolicy": 1, "PodMonitor": 1} {
		if kinds[kind] != want {
			t.Errorf("%d of kind %s, not %d", kinds[kind], kind, want)
		}
	}
	if got := strings.Count(text, "namespace: proxies\n"); got < 15 {
		t.Errorf("the namespace is named %d times", got)
	}
}

// TestManifestsAndChartAgree compares what the manifests and the chart have in common.
func TestManifestsAndChartAgree(t *testing.T) {
	plain := manifests.Parse(t, manifests.Kustomize(t, "resources: [deploy/base]", "components: [deploy/impersonate, deploy/monitoring, deploy/autoscaling]"))
	charted := manifests.Parse(t, manifests.Chart(t, "watershed-system", "--set", "fullnameOverride=watershed,rbac.impersonate=true,autoscaling.enabled=true,"+
		"monitoring.podMonitor.enabled=true,monitoring.prometheusRule.enabled=true,monitoring.dashboard.enabled=true"))
	one := func(all []*unstructured.Unstructured, kind, ending string) map[string]any {
		t.Helper()
		for _, object := range manifests.OfKind(all, kind) {
			if strings.HasSuffix(object.GetName(), ending) {
				return object.Object
			}
		}
		t.Fatalf("no %s %s", kind, ending)
		return nil
	}
	for _, part := range []struct {
		kind, ending string
		path         []string
	}{
		{"ClusterRole", "watershed", []string{"rules"}},
		{"ClusterRole", "-impersonate", []string{"rules"}},
		{"PrometheusRule", "watershed", []string{"spec"}},
		{"ConfigMap", "-dashboard", []string{"data"}},
		{"HorizontalPodAutoscaler", "watershed", []string{"spec"}},
		{"Deployment", "watershed", []string{"spec", "strategy"}},
		{"Deployment", "watershed", []string{"spec", "template", "spec", "securityContext"}},
		{"Deployment", "watershed", []string{"spec", "template", "spec", "volumes"}},
		{"Deployment", "watershed", []string{"spec", "template", "spec", "nodeSelector"}},
		{"Deployment", "watershed", []string{"spec", "minReadySeconds"}},
		{"PodDisruptionBudget", "watershed", []string{"spec", "unhealthyPodEvictionPolicy"}},
		{"Deployment", "watershed", []string{"spec", "template", "spec", "terminationGracePeriodSeconds"}},
	} {
		want, _, err := unstructured.NestedFieldNoCopy(one(charted, part.kind, part.ending), part.path...)
		require.NoError(t, err)
		got, _, err := unstructured.NestedFieldNoCopy(one(plain, part.kind, part.ending), part.path...)
		require.NoError(t, err)
		if part.kind == "PrometheusRule" {
			// The manifests' rules also suit a Prometheus that adds no namespace.
			text := strings.ReplaceAll(string(require.Value(json.Marshal(want))(t)), `, namespace=\"watershed-system\"`, "")
			require.NoError(t, json.Unmarshal([]byte(text), &want))
		}
		if want == nil || !reflect.DeepEqual(want, got) {
			t.Errorf("%s %v: the chart has\n%v\nthe manifests\n%v", part.kind, part.path, want, got)
		}
	}
	// A proxy on each node, with the resources that the chart's examples have for it.
	plainNode := manifests.Parse(t, manifests.Kustomize(t, "resources: [deploy/daemonset]"))
	for _, example := range []string{"daemonset", "host-network", "node-tier"} {
		node := manifests.Parse(t, manifests.Chart(t, "watershed-system", "-f", manifests.ChartDir+"/examples/"+example+".yaml", "--set", "fullnameOverride=watershed"))
		got, want := one(plainNode, "DaemonSet", "watershed"), one(node, "DaemonSet", "watershed")
		if a, b := manifests.ProxyContainer(t, &unstructured.Unstructured{Object: got})["resources"], manifests.ProxyContainer(t, &unstructured.Unstructured{Object: want})["resources"]; a == nil || !reflect.DeepEqual(a, b) {
			t.Errorf("%s: the chart has %v, the manifests %v", example, b, a)
		}
		for _, probe := range []string{"startupProbe", "livenessProbe", "readinessProbe"} {
			a := manifests.ProxyContainer(t, &unstructured.Unstructured{Object: got})[probe].(map[string]any)
			b := manifests.ProxyContainer(t, &unstructured.Unstructured{Object: want})[probe].(map[string]any)
			delete(a["httpGet"].(map[string]any), "host")
			delete(b["httpGet"].(map[string]any), "host")
			if !reflect.DeepEqual(a, b) {
				t.Errorf("%s: the chart has the %s %v, the manifests %v", example, probe, b, a)
			}
		}
		a, _, _ := unstructured.NestedMap(got, "spec", "updateStrategy")
		b, _, _ := unstructured.NestedMap(want, "spec", "updateStrategy")
		if onHost := example != "node-tier"; a == nil || reflect.DeepEqual(a, b) == onHost {
			t.Errorf("%s: the chart has the strategy %v, the manifests %v", example, b, a)
		}
	}
	want := manifests.ProxyContainer(t, &unstructured.Unstructured{Object: one(charted, "Deployment", "watershed")})
	got := manifests.ProxyContainer(t, &unstructured.Unstructured{Object: one(plain, "Deployment", "watershed")})
	for _, field := range []string{"securityContext", "startupProbe", "livenessProbe", "readinessProbe", "lifecycle", "resources", "ports", "volumeMounts"} {
		if want[field] == nil || !reflect.DeepEqual(want[field], got[field]) {
			t.Errorf("%s: the chart has %v, the manifests %v", field, want[field], got[field])
		}
	}
}

// TestRenewalsKeepTheKeyOfTheCA checks that cert-manager makes no new key for a CA that clients trust.
func TestRenewalsKeepTheKeyOfTheCA(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"the chart":     manifests.Chart(t, "w", "--set", "tls.certManager.enabled=true"),
		"the manifests": manifests.Kustomize(t, "resources: [deploy/base]", "components: [deploy/cert-manager]"),
	} {
		certificates := manifests.OfKind(manifests.Parse(t, text), "Certificate")
		for _, certificate := range certificates {
			isCA, _, _ := unstructured.NestedBool(certificate.Object, "spec", "isCA")
			policy, _, _ := unstructured.NestedString(certificate.Object, "spec", "privateKey", "rotationPolicy")
			if want := map[bool]string{true: "Never", false: "Always"}[isCA]; policy != want {
				t.Errorf("%s: %s has the policy %q, not %s", name, certificate.GetName(), policy, want)
			}
		}
		if len(certificates) != 2 {
			t.Errorf("%s: %d certificates", name, len(certificates))
		}
	}
}

// TestReplicasTrustTheirCertificate checks that the kubeconfig by which replicas reach each other names a
// CA that is there: that of caBundle.pem, and else the Secret's.
func TestReplicasTrustTheirCertificate(t *testing.T) {
	t.Parallel()
	const pem = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"
	digests := map[string]bool{}
	for values, want := range map[string]string{"": "/etc/watershed/tls/ca.crt", pem: "/etc/watershed/files/replicas-ca.crt"} {
		all := manifests.Parse(t, manifests.Chart(t, "w", "--set", "stateFromReplicas=true,tls.existingSecret=mine,caBundle.publish=false,caBundle.pem="+values))
		files, _, _ := unstructured.NestedStringMap(manifests.OfKind(all, "ConfigMap")[0].Object, "data")
		if !strings.Contains(files["replicas.yaml"], "certificate-authority: "+want+"\n") || strings.TrimSpace(files["replicas-ca.crt"]) != strings.TrimSpace(values) {
			t.Errorf("with caBundle.pem %q: %v", values, files)
		}
		digest, _, _ := unstructured.NestedString(manifests.OfKind(all, "Deployment")[0].Object, "spec", "template", "metadata", "annotations", "checksum/files")
		digests[digest] = true
	}
	if len(digests) != 2 {
		t.Error("another CA makes no new pods, and the file is read at the start only")
	}
}

// TestSecurityContextsFollowTheValues checks that the keys that OpenShift refuses can be taken out of all pods, and that
// the others stay.
func TestSecurityContextsFollowTheValues(t *testing.T) {
	t.Parallel()
	all := manifests.Parse(t, manifests.Chart(t, "w", "--set", "podSecurityContext.runAsUser=null,podSecurityContext.runAsGroup=null,podSecurityContext.fsGroup=null,securityContext.privileged=false"))
	for kind, path := range map[string][]string{"Deployment": {"spec", "template", "spec"}, "Pod": {"spec"}} {
		spec, _, _ := unstructured.NestedMap(manifests.OfKind(all, kind)[0].Object, path...)
		want := map[string]any{"runAsNonRoot": true, "seccompProfile": map[string]any{"type": "RuntimeDefault"}}
		if got := spec["securityContext"]; !reflect.DeepEqual(got, want) {
			t.Errorf("the %s has %v", kind, got)
		}
		want = map[string]any{"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "privileged": false, "capabilities": map[string]any{"drop": []any{"ALL"}}}
		if got := spec["containers"].([]any)[0].(map[string]any)["securityContext"]; !reflect.DeepEqual(got, want) {
			t.Errorf("the container of the %s has %v", kind, got)
		}
	}
}

// TestProxiesHaveTheirToken checks that a ServiceAccount that gives no pod its token gives it to the proxy.
func TestProxiesHaveTheirToken(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]bool{"replicas=1": true, "kind=DaemonSet": true, "upstream.host=w.zone.svc,upstream.caConfigMap=w-ca": false} {
		all := manifests.Parse(t, manifests.Chart(t, "w", "--set", values))
		proxies := append(manifests.OfKind(all, "Deployment"), manifests.OfKind(all, "DaemonSet")...)[0]
		if got, found, _ := unstructured.NestedBool(proxies.Object, "spec", "template", "spec", "automountServiceAccountToken"); !found || got != want {
			t.Errorf("%s: %v %v", values, found, got)
		}
	}
}

// TestPodsEndInTime checks that the kubelet does not kill a proxy before its time is over.
func TestPodsEndInTime(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]string{
		"replicas=1": "5 50", "preStopSeconds=30": "30 75", "preStopSeconds=0,drainSeconds=60": "<nil> 85", "kind=DaemonSet,preStopSeconds=10,drainSeconds=0": "10 35",
	} {
		all := manifests.Parse(t, manifests.Chart(t, "w", "--set", values))
		proxies := append(manifests.OfKind(all, "Deployment"), manifests.OfKind(all, "DaemonSet")...)[0]
		sleep, _, _ := unstructured.NestedFieldNoCopy(manifests.ProxyContainer(t, proxies), "lifecycle", "preStop", "sleep", "seconds")
		limit, _, _ := unstructured.NestedFieldNoCopy(proxies.Object, "spec", "template", "spec", "terminationGracePeriodSeconds")
		if got := fmt.Sprint(sleep, " ", limit); got != want {
			t.Errorf("%s: %s, not %s", values, got, want)
		}
	}
}

// TestBusyProxiesAreNotRestarted checks that the kubelet waits for an answer of a proxy that is short of CPU. A second
// is Kubernetes' default.
func TestBusyProxiesAreNotRestarted(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"the chart": manifests.Chart(t, "w"), "the manifests": manifests.Kustomize(t, "resources: [deploy/daemonset]"),
		"the sidecar": string(require.Value(os.ReadFile(filepath.Join(manifests.DeployDir, "sidecar/sidecar.yaml")))(t)),
	} {
		all := manifests.Parse(t, text)
		proxy := manifests.ProxyContainer(t, append(manifests.OfKind(all, "Deployment"), manifests.OfKind(all, "DaemonSet")...)[0])
		timeout, _, _ := unstructured.NestedFieldNoCopy(proxy, "livenessProbe", "timeoutSeconds")
		failures, _, _ := unstructured.NestedFieldNoCopy(proxy, "livenessProbe", "failureThreshold")
		if got := fmt.Sprint(timeout, " ", failures); got != "15 8" {
			t.Errorf("%s: %s", name, got)
		}
	}
	text := manifests.Chart(t, "w", "--set", "probes.liveness.timeoutSeconds=77,probes.readiness.periodSeconds=78,probes.startup.failureThreshold=79")
	for _, part := range []string{"timeoutSeconds: 77\n", "periodSeconds: 78\n", "failureThreshold: 79\n"} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q", part)
		}
	}
}

// TestPodsRunOnLinux checks that no pod waits on a node with Windows, where it cannot start. A DaemonSet that tolerates
// all taints would have one on each.
func TestPodsRunOnLinux(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"the chart":                  manifests.Chart(t, "w"),
		"the chart on each node":     manifests.Chart(t, "w", "--set", "kind=DaemonSet,nodeSelector.a=b"),
		"the manifests":              manifests.Kustomize(t, "resources: [deploy/base]"),
		"the manifests on each node": manifests.Kustomize(t, "resources: [deploy/daemonset]"),
	} {
		all := manifests.Parse(t, text)
		pods := 0
		for kind, path := range map[string][]string{
			"Deployment": {"spec", "template", "spec", "nodeSelector"}, "DaemonSet": {"spec", "template", "spec", "nodeSelector"}, "Pod": {"spec", "nodeSelector"},
		} {
			for _, object := range manifests.OfKind(all, kind) {
				pods++
				if selector, _, _ := unstructured.NestedStringMap(object.Object, path...); selector["kubernetes.io/os"] != "linux" {
					t.Errorf("%s: the %s selects nodes by %v", name, kind, selector)
				}
			}
		}
		if want := map[bool]int{true: 2, false: 1}[strings.HasPrefix(name, "the chart")]; pods != want {
			t.Errorf("%s: %d of %d", name, pods, want)
		}
	}
}

// TestReplicasOfOneRevisionAreSpread checks that a rollout cannot put all new replicas on one node,
// where the old ones are still on the others. Pods of a DaemonSet have no such label and no choice.
func TestReplicasOfOneRevisionAreSpread(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"the chart": manifests.Chart(t, "watershed-system"), "the manifests": manifests.Kustomize(t, "resources: [deploy/base]"),
	} {
		deployment := manifests.OfKind(manifests.Parse(t, text), "Deployment")[0]
		constraints, _, _ := unstructured.NestedSlice(deployment.Object, "spec", "template", "spec", "topologySpreadConstraints")
		for _, constraint := range constraints {
			keys, _, _ := unstructured.NestedStringSlice(constraint.(map[string]any), "matchLabelKeys")
			if !slices.Equal(keys, []string{"pod-template-hash"}) {
				t.Errorf("%s: %v counts pods of all revisions", name, constraint)
			}
		}
		if len(constraints) != 2 {
			t.Errorf("%s: %d constraints", name, len(constraints))
		}
	}
	for name, text := range map[string]string{
		"the chart": manifests.Chart(t, "watershed-system", "--set", "kind=DaemonSet"), "the manifests": manifests.Kustomize(t, "resources: [deploy/daemonset]"),
	} {
		if strings.Contains(text, "pod-template-hash") {
			t.Errorf("%s: pods of a DaemonSet are selected by a label that they do not have", name)
		}
	}
}

// sidecar puts the sidecar beside an application and runs it as the manifest says, with the
// rights that deploy/README.md gives.
func (p place) sidecar(t *testing.T) {
	namespace := p.namespace
	blocks := manifests.Blocks(t, filepath.Join(manifests.DeployDir, "README.md"))
	app := strings.ReplaceAll(blocks["Deployment"], "default", namespace)
	rights := strings.ReplaceAll(blocks["ClusterRole"], "namespace: default", "namespace: "+namespace)
	if app == "" || rights == "" {
		t.Fatal("deploy/README.md shows no application with a sidecar")
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "app.yaml"), []byte(app), 0o600))
	component := require.Value(filepath.Rel(require.Value(filepath.EvalSymlinks(dir))(t), require.Value(filepath.Abs(manifests.DeployDir+"/sidecar"))(t)))(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), fmt.Appendf(nil, "resources: [app.yaml]\nnamespace: %s\ncomponents: [%s]\n", namespace, component), 0o600))
	text := kubectl.Run(t, testbed.Upstream, kubectl.Command{Args: []string{"kustomize", dir}}).MustSucceed(t, "kustomize")
	if warnings := p.accepts(t, map[string]string{"sidecar": text}); strings.Contains(warnings, "PodSecurity") {
		t.Error(warnings)
	}
	all := manifests.Parse(t, text)
	known := manifests.KnownFlags(t)
	var flags []string
	for _, arg := range manifests.Args(t, manifests.OfKind(all, "Deployment")[0])[1:] {
		flag, _, _ := strings.Cut(arg, "=")
		if !known[flag] {
			t.Errorf("%s is not a flag of watershed serve", flag)
		}
		if flag == "--single-identity" || flag == "--drain-seconds" {
			flags = append(flags, arg)
		}
	}
	file := filepath.Join(dir, "config.yaml")
	configuration, _, _ := unstructured.NestedString(manifests.OfKind(all, "ConfigMap")[0].Object, "data", "config.yaml")
	require.NoError(t, os.WriteFile(file, []byte(configuration), 0o600))
	flags = append(flags, "--config", file)

	// The application's account has these rights alone.
	kubectl.Run(t, testbed.Upstream, kubectl.Command{Args: []string{"apply", "--validate=strict", "-n", namespace, "-f", "-"}, Stdin: rights}).MustSucceed(t, "rights")
	t.Cleanup(func() {
		kubectl.Run(t, testbed.Upstream, kubectl.Command{Args: []string{"delete", "-n", namespace, "-f", "-"}, Stdin: rights})
	})
	account := manifests.OfKind(manifests.Parse(t, rights), "ServiceAccount")[0].GetName()
	token := strings.TrimSpace(kubectl.Run(t, testbed.Upstream, kubectl.Command{Args: []string{"create", "token", account, "-n", namespace}}).MustSucceed(t, "token"))
	own := filepath.Join(dir, "own")
	require.NoError(t, os.WriteFile(own, fmt.Appendf(nil, "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: c\n  cluster: {server: %q, certificate-authority: %q}\nusers:\n- name: u\n  user: {token: %q}\ncontexts:\n- name: c\n  context: {cluster: c, user: u}\n", testbed.Upstream.URL, testbed.Upstream.CA, token), 0o600))
	proxy := testbed.RunProxy(t, own, flags...)

	// The application uses the ConfigMap's kubeconfig.
	config, _, _ := unstructured.NestedString(manifests.OfKind(all, "ConfigMap")[0].Object, "data", "kubeconfig")
	config = strings.ReplaceAll(config, "https://127.0.0.1:6443", proxy.URL)
	config = strings.ReplaceAll(config, "/var/run/watershed/certs/ca.crt", proxy.CA)
	proxy.Kubeconfig = filepath.Join(dir, "kubeconfig")
	require.NoError(t, os.WriteFile(proxy.Kubeconfig, []byte(config), 0o600))
	who := kubectl.Run(t, proxy.Target, kubectl.Command{Args: []string{"auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"}}).MustSucceed(t, "whoami")
	if who != "system:serviceaccount:"+namespace+":"+account {
		t.Errorf("the application is %s", who)
	}
	poll.Until(t, "its reads come from memory", func() error {
		r := kubectl.Run(t, proxy.Target, kubectl.Command{Args: []string{"get", "--raw", "/api/v1/pods?resourceVersion=0", "-v=8"}})
		r.MustSucceed(t, "get")
		if !strings.Contains(r.Stderr, "snapshot") {
			return poll.ErrNotYet
		}
		return nil
	})
}

// recipes checks that the API server accepts what helm/README.md shows for leading a pod to the
// proxy, and that the chart's own test does the same.
func (p place) recipes(t *testing.T) {
	text := manifests.Blocks(t, "../../helm/README.md")["Pod"]
	if text == "" {
		t.Fatal("helm/README.md shows no pod")
	}
	p.accepts(t, map[string]string{"recipe": text}, "--namespace", p.namespace)
	recipe := manifests.Parse(t, text)[0]
	hook := manifests.OfKind(manifests.Parse(t, manifests.Chart(t, "watershed-system", "--set", "fullnameOverride=watershed")), "Pod")[0]
	for _, object := range []*unstructured.Unstructured{recipe, hook} {
		containers, _, _ := unstructured.NestedSlice(object.Object, "spec", "containers")
		env := fmt.Sprint(containers[0].(map[string]any)["env"])
		if !strings.Contains(env, "watershed.watershed-system.svc") || !strings.Contains(env, "443") {
			t.Errorf("%s is sent to %s", object.GetName(), env)
		}
		if automount, set, _ := unstructured.NestedBool(object.Object, "spec", "automountServiceAccountToken"); automount || !set {
			t.Errorf("%s has the API server's CA", object.GetName())
		}
	}
	want, _, _ := unstructured.NestedSlice(hook.Object, "spec", "volumes")
	got, _, _ := unstructured.NestedSlice(recipe.Object, "spec", "volumes")
	if len(want) == 0 || !reflect.DeepEqual(want, got) {
		t.Errorf("the chart's test has %v, the recipe %v", want, got)
	}
}

// TestNetworkPolicyAdmitsTheChartsTest checks that the pod of helm test may use the proxy where clients
// are named.
func TestNetworkPolicyAdmitsTheChartsTest(t *testing.T) {
	t.Parallel()
	all := manifests.Parse(t, manifests.Chart(t, "watershed-system", "--set-json", `networkPolicy={"enabled":true,"clients":[{"namespaceSelector":{"matchLabels":{"a":"b"}}}]}`))
	labels := manifests.OfKind(all, "Pod")[0].GetLabels()
	rules, _, _ := unstructured.NestedSlice(manifests.OfKind(all, "NetworkPolicy")[0].Object, "spec", "ingress")
	peers, _, _ := unstructured.NestedSlice(rules[0].(map[string]any), "from")
	admits := slices.ContainsFunc(peers, func(peer any) bool {
		selected, _, _ := unstructured.NestedStringMap(peer.(map[string]any), "podSelector", "matchLabels")
		for key, value := range selected {
			if labels[key] != value {
				return false
			}
		}
		return len(selected) > 0
	})
	if !admits {
		t.Errorf("%v admit no pod with %v", peers, labels)
	}
}

// TestChartsTestRunsWhereTheProxyDoes checks that the pod of helm test gets its image, and runs on the
// nodes of the proxies, also where a DaemonSet's Service leads to no other node.
func TestChartsTestRunsWhereTheProxyDoes(t *testing.T) {
	t.Parallel()
	const affinity = `{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"a","operator":"Exists"}]}]}}}`
	for _, values := range []string{"kind=DaemonSet", "kind=Deployment,tolerations[0].operator=Exists"} {
		all := manifests.Parse(t, manifests.Chart(t, "watershed-system", "--set", values+",image.pullSecrets[0].name=mine,nodeSelector.a=b", "--set-json", "affinity="+affinity))
		proxies := append(manifests.OfKind(all, "DaemonSet"), manifests.OfKind(all, "Deployment")...)[0]
		pod := manifests.OfKind(all, "Pod")[0]
		for _, field := range []string{"imagePullSecrets", "nodeSelector", "tolerations", "affinity"} {
			want, _, _ := unstructured.NestedFieldNoCopy(proxies.Object, "spec", "template", "spec", field)
			got, _, _ := unstructured.NestedFieldNoCopy(pod.Object, "spec", field)
			if want == nil || !reflect.DeepEqual(want, got) {
				t.Errorf("%s: the proxies have the %s %v, the test %v", values, field, want, got)
			}
		}
		containers, _, _ := unstructured.NestedSlice(pod.Object, "spec", "containers")
		if _, found, _ := unstructured.NestedString(containers[0].(map[string]any), "resources", "limits", "memory"); !found {
			t.Errorf("%s: the test has no limits", values)
		}
	}
}

// TestReplicasReachEachOther checks that what leads clients to near replicas does not lead a replica
// to itself, and that a network policy lets replicas out and in.
func TestReplicasReachEachOther(t *testing.T) {
	t.Parallel()
	all := manifests.Parse(t, manifests.Chart(t, "watershed-system", "--values", manifests.ChartDir+"/examples/everything.yaml",
		"--set", "fullnameOverride=w,service.trafficDistribution=PreferSameZone,service.internalTrafficPolicy=Local"))
	var services []string
	for _, service := range manifests.OfKind(all, "Service") {
		distribution, _, _ := unstructured.NestedString(service.Object, "spec", "trafficDistribution")
		policy, _, _ := unstructured.NestedString(service.Object, "spec", "internalTrafficPolicy")
		if distribution == "" && policy == "" {
			services = append(services, service.GetName())
		}
	}
	if !slices.Contains(services, "w-replicas") {
		t.Errorf("only %v lead anywhere", services)
	}
	policies := manifests.OfKind(all, "NetworkPolicy")
	if len(policies) != 1 {
		t.Fatalf("%d network policies", len(policies))
	}
	pods, _, _ := unstructured.NestedMap(policies[0].Object, "spec", "podSelector")
	for _, way := range [][2]string{{"egress", "to"}, {"ingress", "from"}} {
		rules, _, _ := unstructured.NestedSlice(policies[0].Object, "spec", way[0])
		leads := slices.ContainsFunc(rules, func(rule any) bool {
			peers, _, _ := unstructured.NestedSlice(rule.(map[string]any), way[1])
			return slices.ContainsFunc(peers, func(peer any) bool {
				return reflect.DeepEqual(peer, map[string]any{"podSelector": pods})
			})
		})
		if !leads {
			t.Errorf("%s lets no replica reach another: %v", way[0], rules)
		}
	}
}
