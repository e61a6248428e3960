package real

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"watershed.test/real/internal/kubectl"
	"watershed.test/real/internal/manifests"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// place is a namespace in a cluster that knows the custom types. Its pods have to meet the
// standard "restricted"; kubectl reports those that do not.
type place struct {
	t         *testing.T
	namespace string
}

// TestChartAndManifestsInstallAsDocumented follows the documents of the chart and the
// manifests.
func TestChartAndManifestsInstallAsDocumented(t *testing.T) {
	var files []string
	for _, file := range require.Value(manifests.CustomTypeFiles())(t) {
		files = append(files, "-f", file)
	}
	p := place{t, testbed.Slug(t)}
	kubectl.Run(t, testbed.Upstream, kubectl.Command{Args: append([]string{"create"}, files...)}).MustSucceed(t, "definitions")
	t.Cleanup(func() {
		kubectl.Run(t, testbed.Upstream, kubectl.Command{Args: append([]string{"delete", "--wait=true"}, files...)}).MustSucceed(t, "definitions")
	})
	kubectl.Run(t, testbed.Upstream, kubectl.Command{Args: append([]string{"wait", "--for=condition=Established"}, files...)}).MustSucceed(t, "definitions")
	for _, namespace := range []string{p.namespace, "watershed-system"} {
		kubectl.Run(t, testbed.Upstream, kubectl.Command{Args: []string{"create", "namespace", namespace}}).MustSucceed(t, "namespace")
		t.Cleanup(func() {
			kubectl.Run(t, testbed.Upstream, kubectl.Command{Args: []string{"delete", "namespace", namespace, "--wait=false"}})
		})
		kubectl.Run(t, testbed.Upstream, kubectl.Command{Args: []string{"label", "namespace", namespace, "pod-security.kubernetes.io/warn=restricted"}}).MustSucceed(t, "label")
	}
	t.Run("the API server accepts the chart", p.chart)
	t.Run("the installed chart runs", p.installed)
	t.Run("the autoscaler's number of replicas stays", p.autoscaled)
	t.Run("the API server accepts the manifests", p.manifests)
	t.Run("the sidecar runs", p.sidecar)
	t.Run("the API server accepts the recipes", p.recipes)
}

// try lets the API server check objects without storing them.
func (p place) try(objects string, flags ...string) kubectl.Result {
	p.t.Helper()
	// The name of the whole test selects kubectl's home, so that discovery is read once.
	args := append([]string{"apply", "--dry-run=server", "--validate=strict", "-f", "-"}, flags...)
	return kubectl.Run(p.t, testbed.Upstream, kubectl.Command{Args: args, Stdin: objects})
}

// accepts checks several sets of objects. They are checked together, and one by one only after
// an error.
func (p place) accepts(t *testing.T, sets map[string]string, flags ...string) (warnings string) {
	t.Helper()
	all := p.try(strings.Join(slices.Collect(maps.Values(sets)), "\n---\n"), flags...)
	if all.Code == 0 {
		return all.Stderr
	}
	t.Errorf("refused: %s", all.Stderr)
	for name, set := range sets {
		if r := p.try(set, flags...); r.Code != 0 {
			t.Errorf("refused of %s: %s", name, r.Stderr)
		}
	}
	return all.Stderr
}

// chart renders the chart in each of its modes. The API server has to accept everything.
func (p place) chart(t *testing.T) {
	modes := map[string][]string{
		"default":     nil,
		"secret":      {"--set", "tls.existingSecret=mine"},
		"issuer":      {"--set", "tls.certManager.enabled=true,tls.certManager.issuerRef.name=mine,tls.certManager.issuerRef.kind=ClusterIssuer"},
		"pod-monitor": {"--set", "monitoring.podMonitor.enabled=true"},
		"per-node":    {"--set", "kind=DaemonSet"},
		"whole-types": {"--set", "kind=DaemonSet,daemonSet.nodePreset=false"},
		"named":       {"--set-json", `config={"selectorScopes":true,"scopes":[{"resource":"pods","namespaces":["a"],"labelSelector":"app=x"}],"resources":[{"resource":"nodes","cache":"always","selectorScopes":false,"windowMib":8},{"resource":"services","maxUpstreamWatches":4,"merge":false,"idleSeconds":60}]}`, "--set", "kind=DaemonSet,extraEnv[0].name=X,extraEnv[0].value=y"},
		"ipv6":        {"--set", "listenAddress=[::],replicas=1,podDisruptionBudget.enabled=false"},
		"outside":     {"--set", "service.type=LoadBalancer,service.nodePort=30443,service.loadBalancerClass=example.com/mine,service.ipFamilyPolicy=PreferDualStack"},
		"relabelled":  {"--set-json", `monitoring={"podMonitor":{"enabled":true,"relabelings":[{"targetLabel":"tier","replacement":"zone"}],"metricRelabelings":[{"action":"drop","sourceLabels":["__name__"],"regex":"go_.*"}]},"prometheusRule":{"enabled":true,"alertLabels":{"team":"api"}}}`},
		"utilization": {"--set", "autoscaling.enabled=true,autoscaling.targetCPUUtilizationPercentage=70"},
		"no-rights":   {"--set", "rbac.create=false,serviceAccount.create=false,serviceAccount.name=mine"},
	}
	for _, file := range require.Value(filepath.Glob(manifests.ChartDir + "/examples/*.yaml"))(t) {
		modes[strings.TrimSuffix(filepath.Base(file), ".yaml")] = []string{"-f", file}
	}
	// The recipe for checkpoints on a node.
	recipe := filepath.Join(t.TempDir(), "recipe.yaml")
	require.NoError(t, os.WriteFile(recipe, []byte(manifests.Blocks(t, "../../docs/operations.md")["DaemonSet"]), 0o600))
	modes["checkpoints"] = []string{"-f", recipe}
	flags := manifests.KnownFlags(t)
	onHost, others := map[string]string{}, map[string]string{}
	for _, mode := range slices.Sorted(maps.Keys(modes)) {
		t.Run(mode, func(t *testing.T) {
			kubectl.Helm(t, testbed.Upstream, append([]string{"lint", "--strict", manifests.ChartDir}, modes[mode]...)...).MustSucceed(t, "lint")
			text := manifests.Chart(t, p.namespace, modes[mode]...)
			all := manifests.Parse(t, text)
			if mode == "checkpoints" {
				for _, part := range []string{"--checkpoint-dir=/var/lib/watershed", "initContainers:\n", "- 65532:65532\n", "runAsUser: 65532\n"} {
					if !strings.Contains(text, part) {
						t.Errorf("it has no %q", part)
					}
				}
			}
			if mode == "checkpoints" || strings.Contains(text, "hostPort: ") || strings.Contains(text, "hostNetwork: true") {
				onHost[mode] = text
			} else {
				others[mode] = text
			}
			pods := append(manifests.OfKind(all, "Deployment"), manifests.OfKind(all, "DaemonSet")...)
			if len(pods) != 1 {
				t.Fatalf("%d deployments or daemon sets", len(pods))
			}
			for _, flag := range manifests.Flags(t, pods[0]) {
				if !flags[flag] {
					t.Errorf("%s is not a flag of watershed serve", flag)
				}
			}
			// The proxy caches by node if and only if it runs on a node.
			if onNode := manifests.KnowsItsNode(t, pods[0]); onNode != (pods[0].GetKind() == "DaemonSet" && mode != "whole-types") {
				t.Errorf("a %s's proxy is told its node: %v", pods[0].GetKind(), onNode)
			}
			policy, _, _ := unstructured.NestedString(manifests.OfKind(all, "Service")[0].Object, "spec", "internalTrafficPolicy")
			if local := pods[0].GetKind() == "DaemonSet"; (policy == "Local") != local {
				t.Errorf("a %s's Service has the policy %q", pods[0].GetKind(), policy)
			}
			for kind, wanted := range map[string]bool{
				"Certificate": mode == "issuer" || mode == "everything", "HorizontalPodAutoscaler": mode == "everything" || mode == "utilization",
				"NetworkPolicy": mode == "everything", "ServiceMonitor": mode == "everything", "PodMonitor": mode == "pod-monitor" || mode == "relabelled",
				"PrometheusRule": mode == "everything" || mode == "relabelled", "PodDisruptionBudget": pods[0].GetKind() == "Deployment" && mode != "ipv6",
				"ClusterRole": mode != "no-rights", "Secret": mode != "secret" && mode != "issuer" && mode != "everything",
			} {
				if got := len(manifests.OfKind(all, kind)) > 0; got != wanted {
					t.Errorf("has a %s: %v", kind, got)
				}
			}
		})
	}

	if warnings := p.accepts(t, others); strings.Contains(warnings, "PodSecurity") {
		t.Error(warnings)
	}
	if warnings := p.accepts(t, onHost); len(onHost) != 3 || !strings.Contains(warnings, "hostPort") || !strings.Contains(warnings, "hostNetwork") {
		t.Errorf("%d modes use the host: %s", len(onHost), warnings)
	}

	// This shows that objects are checked at all.
	for _, wrong := range [][2]string{{"replicas: 2", "replicas: two"}, {"maxSurge: 1", "maxSurges: 1"}, {"readOnlyRootFilesystem: true", "readOnlyRootFileSystem: true"}} {
		text := strings.Replace(manifests.Chart(t, p.namespace), wrong[0], wrong[1], 1)
		if p.try(text).Code == 0 {
			t.Errorf("%q is accepted", wrong[1])
		}
	}
}

// TestChartRefusesWrongValues sets values that the chart does not know. It has to refuse them.
func TestChartRefusesWrongValues(t *testing.T) {
	for value, says := range map[string]string{
		"replica=3":                         "replica",
		"kind=StatefulSet":                  "kind",
		"service.port=0":                    "port",
		"config.cahce=true":                 "cahce",
		"config.consistentReads=never":      "consistentReads",
		"config.scopes[0].resorce=pods":     "resorce",
		"tls.certManager.renewBefore=never": "renewBefore",
		"clientCA=file.crt":                 "clientCA",
		"servers={api.example.com}":         "servers",
		"image.digest=latest":               "digest",
		"serviceAccount.create=false":       "serviceAccount.name",
		"kind=DaemonSet,daemonSet.hostNetwork=true,monitoring.podMonitor.enabled=true": "admin.address",
		"monitoring.serviceMonitor.enabled=true,monitoring.podMonitor.enabled=true":    "either",
		// A word that is not a level would silence all logs.
		"log.level=warning":        "/log/level",
		`log.level=info\,warning`:  "/log/level",
		"log.level=":               "/log/level",
		"config.memoryLimit=much":  "/config/memoryLimit",
		"config.clients[0].name=x": "name",
		// The kubelet's probes go to the pod's address.
		"admin.address=127.0.0.1":                                     "admin.address",
		"admin.address=127.0.0.2,kind=DaemonSet":                      "admin.address",
		"admin.address=[::1]":                                         "admin.address",
		"listenAddress=127.0.0.1":                                     "admin.address",
		"ports.https=6480":                                            "cannot both have port 6480",
		"ports.admin=6443":                                            "cannot both have port 6443",
		"ports.https=7000,ports.admin=7000":                           "cannot both have port 7000",
		"ports.https=16480,kind=DaemonSet,daemonSet.hostNetwork=true": "cannot both have port 16480",
		"autoscaling.targetCPU=70%":                                   "targetCPU",
		"autoscaling.targetCPU=":                                      "targetCPU",
		"autoscaling.targetCPU=0":                                     "targetCPU",
		"autoscaling.enabled=true,autoscaling.minReplicas=7":          "minReplicas (7) is more than maxReplicas (6)",
		"admin.tls=true,caBundle.publish=false,tls.existingSecret=mine,monitoring.podMonitor.enabled=true": "caBundle.publish",
		"networkPolicy.enabled=true,monitoring.podMonitor.enabled=true":                                    "networkPolicy.metrics",
		"networkPolicy.enabled=true,monitoring.serviceMonitor.enabled=true":                                "networkPolicy.metrics",
		// What one of two values would silently take from the other.
		"tls.existingSecret=mine,tls.certManager.enabled=true":                               "either in existingSecret or from certManager",
		"kind=DaemonSet,daemonSet.hostPort=1,daemonSet.hostNetwork=true":                     "either hostPort or hostNetwork",
		"servers={https://a.example.com},upstream.host=w.zone.svc,upstream.caConfigMap=w-ca": "either servers or upstream.host",
		"kind=DaemonSet,stateFromReplicas=true":                                              "stateFromReplicas",
		"kind=DaemonSet,autoscaling.enabled=true":                                            "autoscaling",
		"service.loadBalancerSourceRanges={10.0.0.0/8}":                                      "loadBalancerSourceRanges",
		"service.type=LoadBalancer,service.loadBalancerSourceRanges={10.0.0.1}":              "loadBalancerSourceRanges",
		"upstream.caConfigMap=w-ca":                                                          "upstream.caConfigMap",
		"service.nodePort=30443":                                                             "service.nodePort",
		"service.type=NodePort,service.loadBalancerClass=a":                                  "service.loadBalancerClass",
		"service.externalTrafficPolicy=Local":                                                "service.externalTrafficPolicy",
		"caBundle.publish=false,caBundle.namespaces={a}":                                     "caBundle.namespaces",
		// What the proxy, Kubernetes or cert-manager would refuse.
		"extraArgs={--log-level=debug}":                                     "Use the value log.level",
		"extraArgs={--max-connections=9,--listen,[::]:1}":                   "Use the value listenAddress and ports.https",
		"extraArgs={--config=mine.yaml},config.cache=true":                  "Use the value config",
		"listenAddress=localhost":                                           "/listenAddress",
		"listenAddress=::":                                                  "/listenAddress",
		"kind=DaemonSet,daemonSet.hostNetwork=true,admin.address=::1":       "/admin/address",
		"kind=DaemonSet,daemonSet.hostNetwork=true,admin.address=localhost": "/admin/address",
		"flowControl.matchingPrecedence=10000":                              "matchingPrecedence",
		"upstream.host=https://w.zone.svc,upstream.caConfigMap=w-ca":        "/upstream/host",
		"upstream.host=w.zone.svc:443,upstream.caConfigMap=w-ca":            "/upstream/host",
		"fullnameOverride=a.b":                                              "/fullnameOverride",
		"fullnameOverride=1a":                                               "/fullnameOverride",
		"nameOverride=Zone_1":                                               "objects cannot be named after Zone_1",
		"nameOverride=Zone_,fullnameOverride=a":                             "/nameOverride",
		// A rollout has 600 seconds (progressDeadlineSeconds).
		"minReadySeconds=600":                                        "/minReadySeconds",
		`podLabels.app\.kubernetes\.io/name=a`:                       "invalid propertyName",
		`commonLabels.helm\.sh/chart=a`:                              "invalid propertyName",
		"revisionHistoryLimit=-1":                                    "/revisionHistoryLimit",
		"tls.certManager.enabled=true,tls.certManager.duration=240h": "renewBefore (720h) must be less than duration (240h)",
		"autoscaling.enabled=true,autoscaling.targetCPUUtilizationPercentage=70,resources.requests.cpu=null": "resources.requests.cpu",
		// No registry has a default image.
		"image.repository=": "image.repository",
		// Two pods cannot have one port of a node.
		"kind=DaemonSet,daemonSet.hostPort=1,daemonSet.updateStrategy.rollingUpdate.maxSurge=5%": "maxSurge must be 0",
		// The API server refuses what adds up to both or none, with its defaults for a missing key.
		"kind=DaemonSet,daemonSet.updateStrategy.rollingUpdate.maxSurge=5%":                                                        "they are 5% and 1",
		"kind=DaemonSet,daemonSet.updateStrategy.rollingUpdate.maxUnavailable=0%":                                                  "they are 0 and 0%",
		"kind=DaemonSet,daemonSet.updateStrategy.rollingUpdate.maxSurge=1,daemonSet.updateStrategy.rollingUpdate.maxUnavailable=2": "they are 1 and 2",
		"daemonSet.updateStrategy.rollingUpdate.maxUnavailable=many":                                                               "maxUnavailable",
	} {
		if r := kubectl.Helm(t, testbed.Upstream, append([]string{"template", "w", manifests.ChartDir}, append(manifests.Image, "--set", value)...)...); r.Code == 0 || !strings.Contains(r.Stderr, says) {
			t.Errorf("%s: exit code %d, %s", value, r.Code, r.Stderr)
		}
	}
}

// TestChartAcceptsRightValues sets values that are near those that TestChartRefusesWrongValues sets.
func TestChartAcceptsRightValues(t *testing.T) {
	for _, value := range []string{
		"log.level=warn", "log.level=off", `log.level=info\,watershed::upstream=debug`, "log.level=watershed=trace",
		"ports.https=16480", "ports.https=6480,ports.admin=6481", "autoscaling.minReplicas=7",
		"autoscaling.targetCPU=1500m", "autoscaling.targetCPU=2", "autoscaling.targetCPU=1.5", "autoscaling.targetCPUUtilizationPercentage=70",
		"autoscaling.enabled=true,autoscaling.minReplicas=6", "kind=DaemonSet,autoscaling.minReplicas=7",
		"kind=DaemonSet,daemonSet.hostNetwork=true,admin.address=127.0.0.1", "kind=DaemonSet,daemonSet.hostNetwork=true,admin.address=[::1]",
		"admin.address=[::]", "config.memoryLimit=0", "config.memoryLimit=1.5Gi", "config.memoryLimit=2e9",
		"admin.tls=true,caBundle.publish=false,tls.existingSecret=mine",
		"networkPolicy.enabled=true", "networkPolicy.enabled=true,networkPolicy.metrics[0].podSelector.matchLabels.a=b,monitoring.podMonitor.enabled=true",
		"kind=DaemonSet,daemonSet.hostPort=1,daemonSet.updateStrategy.rollingUpdate.maxSurge=0,daemonSet.updateStrategy.rollingUpdate.maxUnavailable=2%",
		"kind=DaemonSet,daemonSet.updateStrategy.rollingUpdate.maxSurge=50,daemonSet.updateStrategy.rollingUpdate.maxUnavailable=0",
		"kind=DaemonSet,daemonSet.updateStrategy.type=OnDelete", "kind=DaemonSet,daemonSet.updateStrategy.type=RollingUpdate",
		"kind=DaemonSet,daemonSet.updateStrategy.rollingUpdate.maxUnavailable=3", "kind=DaemonSet,daemonSet.updateStrategy.rollingUpdate.maxSurge=0",
		"kind=DaemonSet,daemonSet.updateStrategy.type=OnDelete,daemonSet.updateStrategy.rollingUpdate.maxSurge=1",
		// Flags that the chart does not set, or not with these values, or that may be given several times.
		"extraArgs={--config=mine.yaml,--max-connections=9,--log-level-of-others=x}", "kind=DaemonSet,extraArgs={--goaway-chance=0.01}",
		"servers={https://a.example.com},extraArgs={--server=https://b.example.com}",
		"listenAddress=10.0.0.1", "listenAddress=[fd00::1]", "flowControl.enabled=true,flowControl.matchingPrecedence=9999",
		"upstream.host=fd00::1,upstream.caConfigMap=w-ca", "upstream.host=10.0.0.1,upstream.caConfigMap=w-ca",
		"fullnameOverride=a-b", "nameOverride=1a", "nameOverride=null", "nameOverride=Zone_1,fullnameOverride=a", "podLabels.app=a",
		"minReadySeconds=599", "config=null", "kind=DaemonSet,config=null",
		"probes=null", "probes.startup=null,probes.liveness=null,probes.readiness=null",
		"tls.certManager.duration=240h", "tls.certManager.enabled=true,tls.certManager.duration=240h,tls.certManager.renewBefore=239h",
		"tls.certManager.enabled=true,tls.certManager.duration=240h,tls.certManager.renewBefore=240m",
		"autoscaling.enabled=true,autoscaling.targetCPUUtilizationPercentage=70,resources.requests.cpu=null,resources.limits.cpu=1",
	} {
		if r := kubectl.Helm(t, testbed.Upstream, append([]string{"template", "w", manifests.ChartDir}, append(manifests.Image, "--set", value)...)...); r.Code != 0 {
			t.Errorf("%s: %s", value, r.Stderr)
		}
	}
}

// TestChartKnowsTheConfigurationFile compares the chart's schema of config with the program's schema
// of the configuration file. The chart has to accept every key, with its type.
func TestChartKnowsTheConfigurationFile(t *testing.T) {
	whole := manifests.ReadSchema(t, "../../docs/config.schema.json")
	of := func() *manifests.Schema {
		return manifests.ReadSchema(t, manifests.ChartDir+"/values.schema.json").Properties["config"]
	}
	if wrong := manifests.Differences(whole, of()); len(wrong) > 0 {
		t.Fatal(strings.Join(wrong, "\n"))
	}
	// Planted faults are found.
	for name, plant := range map[string]func(*manifests.Schema){
		"a key is missing":                func(s *manifests.Schema) { delete(s.Properties, "memoryLimit") },
		"a key of a list is missing":      func(s *manifests.Schema) { delete(s.Properties["clients"].Items.Properties, "watchList") },
		"a key is in the chart only":      func(s *manifests.Schema) { s.Properties["resources"].Items.Properties["more"] = &manifests.Schema{} },
		"a key has another type":          func(s *manifests.Schema) { s.Properties["resources"].Items.Properties["deriveJson"].Type = "string" },
		"a value of a key is missing":     func(s *manifests.Schema) { s.Properties["managedFields"].Enum = []any{"keep"} },
		"a list is an object":             func(s *manifests.Schema) { s.Properties["scopes"].Type = "object" },
		"a key's items are not described": func(s *manifests.Schema) { s.Properties["scopes"].Items = nil },
	} {
		schema := of()
		plant(schema)
		if len(manifests.Differences(whole, schema)) != 1 {
			t.Errorf("%s, and the differences are %q", name, manifests.Differences(whole, schema))
		}
	}
	// The values reach the file.
	const config = `{"cache":"onDemand","maxStalenessSeconds":60,"deriveJson":false,"managedFields":"drop","memoryLimit":"512Mi",` +
		`"clients":[{"userAgent":"old/*","group":"apps","resource":"deployments","watchCompression":false,"watchList":false}],` +
		`"resources":[{"resource":"pods","maxStalenessSeconds":0,"deriveJson":true,"managedFields":"keep"}]}`
	all := manifests.Parse(t, manifests.Chart(t, "w", "--set-json", "config="+config))
	var want, got any
	require.NoError(t, yaml.Unmarshal([]byte(config), &want))
	for _, object := range manifests.OfKind(all, "ConfigMap") {
		if text, found, _ := unstructured.NestedString(object.Object, "data", "config.yaml"); found {
			require.NoError(t, yaml.Unmarshal([]byte(text), &got))
		}
	}
	if !reflect.DeepEqual(want, got) {
		t.Errorf("the file has %v, and the values %v", got, want)
	}
}

// TestMonitorsTrustTheServingCertificate checks where monitors find the CA of the admin listener.
// Without one Prometheus would trust the system's.
func TestMonitorsTrustTheServingCertificate(t *testing.T) {
	t.Parallel()
	const pem = "caBundle.pem=-----BEGIN CERTIFICATE-----"
	name := func(kind, name string) map[string]any {
		return map[string]any{kind: map[string]any{"name": name, "key": "ca.crt"}}
	}
	for values, want := range map[string]map[string]any{
		"tls.days=365":                                        name("secret", "w-watershed-tls"),
		"tls.certManager.enabled=true":                        name("secret", "w-watershed-tls"),
		"tls.existingSecret=mine":                             name("configMap", "w-watershed-ca"),
		"tls.certManager.enabled=true," + pem:                 name("configMap", "w-watershed-ca"),
		"caBundle.publish=false," + pem:                       name("secret", "w-watershed-tls"),
		"caBundle.publish=false":                              name("secret", "w-watershed-tls"),
		"caBundle.publish=false,tls.certManager.enabled=true": name("secret", "w-watershed-tls"),
	} {
		for kind, endpoints := range map[string]string{"PodMonitor": "podMetricsEndpoints", "ServiceMonitor": "endpoints"} {
			monitor := strings.ToLower(kind[:1]) + kind[1:]
			all := manifests.Parse(t, manifests.Chart(t, "w", "--set", values+",admin.tls=true,monitoring."+monitor+".enabled=true"))
			monitors := manifests.OfKind(all, kind)
			if len(monitors) != 1 {
				t.Fatalf("%s: %d %ss", values, len(monitors), kind)
			}
			list, _, _ := unstructured.NestedSlice(monitors[0].Object, "spec", endpoints)
			got, _, _ := unstructured.NestedMap(list[0].(map[string]any), "tlsConfig", "ca")
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: the %s trusts %v, not %v", values, kind, got, want)
			}
		}
	}
}

// TestCommonLabelsAreOnEverythingButSelectors checks that each object and pod has the labels, and no selector has them:
// selectors of a Deployment cannot change, and would keep an upgrade from being applied.
func TestCommonLabelsAreOnEverythingButSelectors(t *testing.T) {
	t.Parallel()
	const labels = "commonLabels.team=api,commonLabels.tier=a,podLabels.tier=b,monitoring.dashboard.labels.tier=c"
	for _, flags := range [][]string{
		{"-f", manifests.ChartDir + "/examples/everything.yaml"},
		{"--set", "kind=DaemonSet,monitoring.podMonitor.enabled=true"},
	} {
		kinds := map[string]bool{}
		for _, object := range manifests.Parse(t, manifests.Chart(t, "w", append(flags, "--set", labels)...)) {
			kinds[object.GetKind()] = true
			all := map[string]map[string]string{object.GetKind(): object.GetLabels()}
			if pod, found, _ := unstructured.NestedStringMap(object.Object, "spec", "template", "metadata", "labels"); found {
				all["pod"] = pod
			}
			for of, labels := range all {
				want := map[string]string{"pod": "b"}[of]
				if strings.HasSuffix(object.GetName(), "-dashboard") {
					want = "c"
				} else if want == "" {
					want = "a"
				}
				if labels["team"] != "api" || labels["tier"] != want {
					t.Errorf("the %s of %s %s has the labels %v", of, object.GetKind(), object.GetName(), labels)
				}
			}
			for path, selector := range selectors(object.Object) {
				if strings.Contains(fmt.Sprint(selector), "team") {
					t.Errorf("%s %s selects by %s %v", object.GetKind(), object.GetName(), path, selector)
				}
			}
		}
		if len(kinds) < 10 {
			t.Errorf("only %v", slices.Sorted(maps.Keys(kinds)))
		}
	}
}

// selectors returns everything below a key that has "selector" in its name.
func selectors(value any) map[string]any {
	found := map[string]any{}
	switch value := value.(type) {
	case map[string]any:
		for key, inner := range value {
			if strings.Contains(strings.ToLower(key), "selector") {
				found[key] = inner
			}
			for path, selector := range selectors(inner) {
				found[key+"."+path] = selector
			}
		}
	case []any:
		for i, inner := range value {
			for path, selector := range selectors(inner) {
				found[fmt.Sprint(i, ".", path)] = selector
			}
		}
	}
	return found
}

// TestWorkloadsFollowTheValues checks the annotations and the old revisions of Deployment and DaemonSet.
func TestWorkloadsFollowTheValues(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"Deployment", "DaemonSet"} {
		for values, want := range map[string]string{
			"replicas=2": "map[] 10",
			`workloadAnnotations.example\.com/restart=never,revisionHistoryLimit=0`: "map[example.com/restart:never] 0",
		} {
			all := manifests.Parse(t, manifests.Chart(t, "w", "--set", "kind="+kind+","+values))
			workload := manifests.OfKind(all, kind)[0]
			limit, _, _ := unstructured.NestedFieldNoCopy(workload.Object, "spec", "revisionHistoryLimit")
			if got := fmt.Sprint(workload.GetAnnotations(), " ", limit); got != want {
				t.Errorf("%s with %s: %s, not %s", kind, values, got, want)
			}
		}
	}
}

// TestNotesWarnOfLimitsFarAboveRequests checks that the notes of an installation warn where proxies may use up the
// memory of their nodes.
func TestNotesWarnOfLimitsFarAboveRequests(t *testing.T) {
	t.Parallel()
	const limit, request = "resources.limits.memory=", "resources.requests.memory="
	for values, want := range map[string]bool{
		"replicas=2":                                          false,
		limit + "4Gi," + request + "1Gi":                      false,
		limit + "4.5Gi," + request + "1Gi":                    true,
		limit + "4Gi," + request + "256Mi":                    true,
		limit + "4294967296," + request + "1G":                true,
		limit + "4000000000," + request + "1000000k":          false,
		limit + "4Gi,resources.requests=null":                 false,
		"resources=null":                                      false,
		request + "256Mi,resources.limits=null":               false,
		"kind=DaemonSet," + limit + "1Gi," + request + "64Mi": true,
	} {
		args := append([]string{"install", "w", manifests.ChartDir, "--dry-run=client"}, append(manifests.Image, "--set", values)...)
		notes := kubectl.Helm(t, testbed.Upstream, args...).MustSucceed(t, values)
		if got := strings.Contains(notes, "WARNING: resources.limits.memory ("); got != want {
			t.Errorf("%s: it warns: %v", values, got)
		}
	}
}

// TestServiceLeadsToTheProxy checks that there is a Service, and a test that uses it, unless the proxy
// listens on the node's loopback only.
func TestServiceLeadsToTheProxy(t *testing.T) {
	t.Parallel()
	const onHost = "kind=DaemonSet,daemonSet.hostNetwork=true"
	for values, want := range map[string]int{
		"kind=DaemonSet": 1, onHost: 1, onHost + ",listenAddress=[::]": 1,
		onHost + ",listenAddress=127.0.0.1": 0, onHost + ",listenAddress=[::1]": 0,
	} {
		all := manifests.Parse(t, manifests.Chart(t, "w", "--set", values))
		for _, kind := range []string{"Service", "Pod"} {
			if got := len(manifests.OfKind(all, kind)); got != want {
				t.Errorf("%s: %d of kind %s, not %d", values, got, kind, want)
			}
		}
	}
}

// TestServiceAdmitsClientsFromOutside checks that a Service for clients outside of the cluster takes them as the
// values say.
func TestServiceAdmitsClientsFromOutside(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]string{
		"service.port=443":      " []",
		"service.type=NodePort": " []",
		"service.type=NodePort,service.externalTrafficPolicy=Local":                        "Local []",
		"service.type=LoadBalancer,service.loadBalancerSourceRanges={10.0.0.0/8,fd00::/8}": " [10.0.0.0/8 fd00::/8]",
	} {
		service := manifests.OfKind(manifests.Parse(t, manifests.Chart(t, "w", "--set", values)), "Service")[0]
		policy, _, _ := unstructured.NestedString(service.Object, "spec", "externalTrafficPolicy")
		ranges, _, _ := unstructured.NestedStringSlice(service.Object, "spec", "loadBalancerSourceRanges")
		if got := fmt.Sprint(policy, " ", ranges); got != want {
			t.Errorf("%s: %q, not %q", values, got, want)
		}
	}
}

// TestZoneTierSuitsEveryRelease renders the zone tier for releases that know different names of the
// same preference.
func TestZoneTierSuitsEveryRelease(t *testing.T) {
	t.Parallel()
	for release, name := range map[string]string{"1.30.0": "PreferClose", "1.33.9-gke.1": "PreferClose", "1.34.0": "PreferSameZone", "1.37.1": "PreferSameZone"} {
		text := manifests.Chart(t, "w", "--kube-version", release, "-f", manifests.ChartDir+"/examples/zone-tier.yaml")
		if !strings.Contains(text, "trafficDistribution: "+name+"\n") {
			t.Errorf("the service for %s does not prefer %s", release, name)
		}
	}
	for release, accepted := range map[string]bool{"1.33.9": false, "1.34.0": true} {
		args := append([]string{"template", "w", manifests.ChartDir, "--kube-version", release, "--set", "service.trafficDistribution=PreferSameNode"}, manifests.Image...)
		if r := kubectl.Helm(t, testbed.Upstream, args...); (r.Code == 0) != accepted {
			t.Errorf("PreferSameNode with %s: exit code %d, %s", release, r.Code, r.Stderr)
		}
	}
}

// autoscaled checks the number of replicas that revisions with an autoscaler have.
func (p place) autoscaled(t *testing.T) {
	helm := func(command string, args ...string) {
		t.Helper()
		kubectl.Helm(t, testbed.Upstream, append([]string{command, "scaled", "--namespace", p.namespace}, args...)...).MustSucceed(t, command)
	}
	chart := []string{manifests.ChartDir, "--set", "image.repository=watershed,autoscaling.enabled=true,autoscaling.minReplicas=3"}
	has := func(want int32, when string) {
		t.Helper()
		client := require.Value(kubernetes.NewForConfig(testbed.Upstream.Config()))(t)
		deployment := require.Value(client.AppsV1().Deployments(p.namespace).Get(context.Background(), "scaled-watershed", metav1.GetOptions{}))(t)
		if *deployment.Spec.Replicas != want {
			t.Errorf("%d replicas after %s, not %d", *deployment.Spec.Replicas, when, want)
		}
	}
	scale := func(replicas string) {
		t.Helper()
		kubectl.Run(t, testbed.Upstream, kubectl.Command{Args: []string{"scale", "deployment", "scaled-watershed", "-n", p.namespace, "--replicas", replicas}}).MustSucceed(t, "scale")
	}
	helm("install", chart...)
	t.Cleanup(func() { helm("uninstall") })
	has(3, "the installation")
	scale("5")
	helm("upgrade", chart...)
	has(5, "an upgrade of five replicas")
	scale("1")
	helm("upgrade", chart...)
	has(3, "an upgrade of one replica")
	scale("6")
	helm("rollback", "1")
	has(3, "a rollback")
}

// installed installs the chart with a helm whose requests go through watershed. It runs a proxy
// with the Deployment's arguments, rights and certificate, upgrades the release, and uninstalls
// it.
func (p place) installed(t *testing.T) {
	namespace := p.namespace
	ctx := context.Background()
	client := require.Value(kubernetes.NewForConfig(testbed.Upstream.Config()))(t)
	kubectl.Helm(t, testbed.Proxied, "install", "w", manifests.ChartDir, "--namespace", namespace, "--set", "image.repository=watershed,caBundle.namespaces={"+namespace+"}").MustSucceed(t, "install")
	secret := require.Value(client.CoreV1().Secrets(namespace).Get(ctx, "w-watershed-tls", metav1.GetOptions{}))(t)
	bundle := require.Value(client.CoreV1().ConfigMaps(namespace).Get(ctx, "w-watershed-ca", metav1.GetOptions{}))(t)

	// The CA that clients get fits the proxy's certificate.
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(bundle.Data["ca.crt"])) {
		t.Fatalf("no CA: %q", bundle.Data["ca.crt"])
	}
	block, _ := pem.Decode(secret.Data["tls.crt"])
	serving := require.Value(x509.ParseCertificate(block.Bytes))(t)
	host := "w-watershed." + namespace + ".svc"
	for _, name := range []string{host, host + ".cluster.local", "127.0.0.1"} {
		if _, err := serving.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}

	// The chart also finds the CA of a foreign Secret.
	for _, by := range []string{"tls.existingSecret=w-watershed-tls", "tls.certManager.enabled=true"} {
		text := kubectl.Helm(t, testbed.Proxied, "template", "w", manifests.ChartDir, "--namespace", namespace, "--dry-run=server", "--set", "image.repository=watershed,"+by).MustSucceed(t, by)
		published := manifests.OfKind(manifests.Parse(t, text), "ConfigMap")
		if len(published) != 1 || !strings.Contains(fmt.Sprint(published[0].Object["data"]), strings.TrimSpace(bundle.Data["ca.crt"])) {
			t.Errorf("%s: the published CA is not the Secret's", by)
		}
	}

	// It knows that replicas would not start without a CA.
	kubectl.Run(t, testbed.Upstream, kubectl.Command{Args: []string{"create", "secret", "generic", "no-ca", "-n", namespace, "--from-literal=tls.crt=a"}}).MustSucceed(t, "secret")
	t.Cleanup(func() {
		kubectl.Run(t, testbed.Upstream, kubectl.Command{Args: []string{"delete", "secret", "no-ca", "-n", namespace}})
	})
	for values, want := range map[string]bool{
		"tls.existingSecret=no-ca": false, "tls.existingSecret=w-watershed-tls": true,
		"tls.existingSecret=no-ca,caBundle.pem=-----BEGIN CERTIFICATE-----": true,
	} {
		r := kubectl.Helm(t, testbed.Proxied, "template", "w", manifests.ChartDir, "--namespace", namespace, "--dry-run=server", "--set", "image.repository=watershed,stateFromReplicas=true,"+values)
		if (r.Code == 0) != want || !want && !strings.Contains(r.Stderr, "caBundle.pem") {
			t.Errorf("%s: exit code %d, %s", values, r.Code, r.Stderr)
		}
	}

	// The Deployment's arguments, adapted to this machine.
	dir := t.TempDir()
	for name, data := range secret.Data {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	deployment := kubectl.Run(t, testbed.Upstream, kubectl.Command{Args: []string{"get", "deployment", "w-watershed", "-n", namespace, "-o", "yaml"}}).MustSucceed(t, "get")
	var flags []string
	for _, arg := range manifests.Args(t, manifests.Parse(t, deployment)[0])[1:] {
		if !strings.HasPrefix(arg, "--listen=") && !strings.HasPrefix(arg, "--admin-listen=") && !strings.HasPrefix(arg, "--log-format=") {
			flags = append(flags, strings.ReplaceAll(arg, "/etc/watershed/tls/", dir+"/"))
		}
	}
	token := strings.TrimSpace(kubectl.Run(t, testbed.Upstream, kubectl.Command{Args: []string{"create", "token", "w-watershed", "-n", namespace}}).MustSucceed(t, "token"))
	kubeconfig := filepath.Join(dir, "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, fmt.Appendf(nil, "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: c\n  cluster: {server: %q, certificate-authority: %q}\nusers:\n- name: u\n  user: {token: %q}\ncontexts:\n- name: c\n  context: {cluster: c, user: u}\n", testbed.Upstream.URL, testbed.Upstream.CA, token), 0o600))
	own := testbed.RunProxy(t, kubeconfig, flags...)
	through := &rest.Config{Host: own.URL, BearerToken: testbed.Shared.AdminToken, TLSClientConfig: rest.TLSClientConfig{CAData: []byte(bundle.Data["ca.crt"]), ServerName: host}}
	sources := map[string]bool{}
	through.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(r)
			if err == nil {
				sources[response.Header.Get("X-Watershed-Source")] = true
			}
			return response, err
		})
	})
	list := require.Value(require.Value(kubernetes.NewForConfig(through))(t).AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"}))(t)
	if len(list.Items) != 1 || !sources["snapshot"] {
		t.Errorf("%d deployments from %v", len(list.Items), sources)
	}
	poll.Until(t, "the proxy follows RBAC", func() error {
		if own.Sum(t, "watershed_rbac_following", "") != 1 {
			return poll.ErrNotYet
		}
		return nil
	})
	// A client without its CA refuses its certificate.
	if _, err := tls.Dial("tcp", strings.TrimPrefix(own.URL, "https://"), &tls.Config{RootCAs: x509.NewCertPool(), ServerName: host}); err == nil {
		t.Error("a client without the CA trusts the certificate")
	}

	// An upgrade keeps the certificate, because clients trust its CA. So does one after which the
	// Secret belongs to somebody else, who begins with what is there.
	const taken = "tls.existingSecret=w-watershed-tls"
	for _, by := range []string{"replicas=3,config.cache=true", taken, taken, "replicas=3"} {
		kubectl.Helm(t, testbed.Proxied, "upgrade", "w", manifests.ChartDir, "--namespace", namespace, "--set", "image.repository=watershed,"+by).MustSucceed(t, "upgrade")
		after := require.Value(client.CoreV1().Secrets(namespace).Get(ctx, "w-watershed-tls", metav1.GetOptions{}))(t)
		if !bytes.Equal(after.Data["tls.crt"], secret.Data["tls.crt"]) || !bytes.Equal(after.Data["ca.crt"], secret.Data["ca.crt"]) {
			t.Errorf("an upgrade with %s made another certificate", by)
		}
	}
	if again := require.Value(client.CoreV1().ConfigMaps(namespace).Get(ctx, "w-watershed-ca", metav1.GetOptions{}))(t); again.Data["ca.crt"] != bundle.Data["ca.crt"] {
		t.Error("an upgrade published another CA")
	}

	// A rollback past a renewal brings the old certificate back, as helm/README.md warns.
	require.NoError(t, client.CoreV1().Secrets(namespace).Delete(ctx, "w-watershed-tls", metav1.DeleteOptions{}))
	certificate := func(command string, args ...string) []byte {
		t.Helper()
		kubectl.Helm(t, testbed.Proxied, append([]string{command, "w", "--namespace", namespace}, args...)...).MustSucceed(t, command)
		return require.Value(client.CoreV1().Secrets(namespace).Get(ctx, "w-watershed-tls", metav1.GetOptions{}))(t).Data["tls.crt"]
	}
	renewed := certificate("upgrade", manifests.ChartDir, "--set", "image.repository=watershed")
	if old := certificate("rollback", "1"); bytes.Equal(renewed, secret.Data["tls.crt"]) || !bytes.Equal(old, secret.Data["tls.crt"]) {
		t.Error("a rollback keeps the renewed certificate: helm/README.md says otherwise")
	}

	// Nothing of the release remains.
	everything := "deployments,daemonsets,services,secrets,configmaps,serviceaccounts,poddisruptionbudgets,clusterroles,clusterrolebindings,networkpolicies,horizontalpodautoscalers"
	labelled := func() string {
		return kubectl.Run(t, testbed.Upstream, kubectl.Command{Args: []string{"get", everything, "-A", "-l", "app.kubernetes.io/instance=w", "-o", "name"}}).MustSucceed(t, "get")
	}
	if n := len(strings.Fields(labelled())); n < 8 {
		t.Errorf("%d objects are labelled as the release's", n)
	}
	kubectl.Helm(t, testbed.Proxied, "uninstall", "w", "--namespace", namespace).MustSucceed(t, "uninstall")
	poll.Until(t, "nothing of the release remains", func() error {
		if left := labelled(); left != "" {
			return errors.New(left)
		}
		return nil
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
