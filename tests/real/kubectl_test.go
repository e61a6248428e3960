package real

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/kubectl"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

func TestKubectlReadsPrintTheSame(t *testing.T) {
	ns := objects.Namespace(t)
	objects.Furnish(t, ns)
	for _, line := range []string{
		"get pods", "get pods -o wide", "get pods -o json", "get pods -o yaml", "get pods -o name",
		"get pods apple -o yaml", "get pod apple pear", "get pods --show-labels", "get pods -l app=pear", "get pods -l app!=pear",
		"get pods --field-selector metadata.name=quince", "get pods --field-selector spec.nodeName=nowhere", "get pods --field-selector spec.colour=red",
		"get pods --chunk-size=1", "get pods --sort-by=.metadata.name", "get pods -o custom-columns=N:.metadata.name",
		"get pods -o jsonpath={.items[*].metadata.name}", "get pods,configmaps,deployments,services", "get all",
		"get pods nobody", "get nothings", "get pods --ignore-not-found nobody",
		"get configmaps -o wide", "get configmaps -o yaml", "get deployments -o wide", "get services -o wide", "get endpoints",
		"describe pod apple", "describe configmap pear", "describe deployment press", "describe service orchard", "describe pod nobody",
		"logs apple", "logs nobody", "exec apple -- true", "exec nobody -- true", "attach apple", "port-forward apple 0:80",
		"rollout history deployment press", "top pods", "events", "auth can-i create pods", "auth can-i --list",
	} {
		kubectl.Same(t, kubectl.Args("--namespace "+ns+" "+line))
	}
}

func TestKubectlClusterReadsPrintTheSame(t *testing.T) {
	for _, line := range []string{
		"api-resources", "api-versions", "version", "cluster-info", "auth whoami",
		"explain pods.spec.containers", "explain deployments --recursive", "explain pods.nothing",
		"get clusterroles", "get clusterrole view -o yaml", "describe clusterrole view", "get namespaces default kube-system",
		"get --raw /version", "get --raw /api", "get --raw /apis", "get --raw /api/v1", "get --raw /apis/apps/v1",
		"get --raw /openapi/v3", "get --raw /healthz", "get --raw /api/v1/namespaces/default", "get --raw /no/such/thing",
		"get --raw /api/v1/namespaces/default/pods?limit=abc", "get --raw /api/v1/pods?resourceVersion=abc",
	} {
		kubectl.Same(t, kubectl.Args(line))
	}
}

func TestKubectlWritesPrintTheSame(t *testing.T) {
	cm := func(colour string) string {
		return api.JSON(objects.WithKind(objects.ConfigMap("apple", "colour", colour)))
	}
	namespaces := kubectl.Script(t,
		kubectl.Apply("apply", cm("green")),
		kubectl.Apply("apply", cm("green")),
		kubectl.Apply("apply", cm("red")),
		kubectl.Args("get configmap apple -o yaml"),
		kubectl.Apply("apply --server-side --field-manager=other", cm("yellow")),
		kubectl.Apply("apply --server-side --force-conflicts --field-manager=other", cm("yellow")),
		kubectl.Args("get configmap apple -o yaml --show-managed-fields"),
		kubectl.Apply("create", cm("blue")),
		kubectl.Apply("replace", cm("blue")),
		kubectl.Apply("apply --dry-run=server -o yaml", cm("black")),
		kubectl.Args(`patch configmap apple -p {"data":{"size":"big"}}`),
		kubectl.Args(`patch configmap apple --type=merge -p {"data":{"size":null}}`),
		kubectl.Args(`patch configmap apple --type=json -p [{"op":"add","path":"/data/taste","value":"sour"}]`),
		kubectl.Args(`patch configmap apple --type=json -p [{"op":"remove","path":"/data/none"}]`),
		kubectl.Args("label configmap apple kind=fruit"),
		kubectl.Args("annotate configmap apple note=ripe"),
		kubectl.Args("get configmap apple -o yaml"),
		kubectl.Args("create deployment press --image=example.test/press:1 --replicas=2"),
		kubectl.Args("scale deployment press --replicas=3"),
		kubectl.Args("set image deployment press press=example.test/press:2"),
		kubectl.Args("rollout restart deployment press"),
		kubectl.Args("create configmap pear --from-literal=colour=green"),
		kubectl.Apply("apply", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"bad"},"data":{"n":1}}`),
		kubectl.Apply("apply", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"bad"},"dta":{}}`),
		kubectl.Apply("apply", `{"apiVersion":"v1","kind":"Nothing","metadata":{"name":"bad"}}`),
		kubectl.Args("delete configmap apple --now"),
		kubectl.Args("delete configmap apple"),
		kubectl.Args("delete configmaps --all"),
		kubectl.Args("get configmaps"),
	)
	for _, to := range testbed.Targets() {
		// What was written through either way can be read through the other.
		for _, from := range testbed.Targets() {
			r := kubectl.Run(t, from, kubectl.Args("--namespace "+namespaces[to.Name]+" get deployment press -o jsonpath={.spec.replicas}"))
			if r.Stdout != "3" {
				t.Errorf("written through %s, read through %s: %+v", to.Name, from.Name, r)
			}
		}
	}
}

func TestKubectlWatchPrintsEveryEvent(t *testing.T) {
	t.Parallel()
	for _, form := range []struct {
		line string
		// mark appears count times in the output, once for each event.
		mark  string
		count int
	}{
		{"get configmaps -w", "\n", 7},
		{"get configmaps -w --output-watch-events", "\n", 7},
		{"get configmaps -w --output-watch-events -o json", `"type":`, 6},
		{"get configmaps -w -o jsonpath={.metadata.name}:{.data.n};", ";", 6},
		{"get configmaps -w -l app=apple -o name", "\n", 3},
	} {
		t.Run(form.line, func(t *testing.T) {
			t.Parallel()
			ns := objects.Namespace(t)
			ctx := context.Background()
			api := api.Clientset(t, testbed.Upstream).CoreV1().ConfigMaps(ns)
			modify := func(name, patch string) {
				require.Value(api.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(t)
			}
			require.Value(api.Create(ctx, objects.ConfigMap("apple", "n", "0"), metav1.CreateOptions{}))(t)
			var running []*kubectl.Background
			for _, to := range testbed.Targets() {
				b := kubectl.Start(t, to, kubectl.Args("--namespace "+ns+" "+form.line), nil)
				// The watch continues from the version of this first list.
				b.WaitFor(t, "the first list", func(text string) bool { return strings.Contains(text, "apple") })
				running = append(running, b)
			}
			modify("apple", `{"data":{"n":"1"}}`)
			require.Value(api.Create(ctx, objects.ConfigMap("pear", "n", "1"), metav1.CreateOptions{}))(t)
			modify("pear", `{"data":{"n":"2"}}`)
			require.NoError(t, api.Delete(ctx, "pear", metav1.DeleteOptions{}))
			modify("apple", `{"data":{"n":"3","m":"3"}}`)

			var texts []string
			for i, to := range testbed.Targets() {
				running[i].WaitFor(t, "all events through "+to.Name, func(text string) bool { return strings.Count(text, form.mark) == form.count })
				texts = append(texts, kubectl.Result{Stdout: running[i].Stdout.String(), Stderr: running[i].Stderr.String()}.Comparable(to, nil))
			}
			if texts[0] != texts[1] {
				t.Errorf("upstream: %s\nproxied:  %s", texts[0], texts[1])
			}
		})
	}
}

// TestKubectlWatchOfOneObjectMissesNothing watches a single object. kubectl prints the object,
// opens a watch on the present state, and skips the first event. It has no version to continue
// from, so it may miss changes in between even without a proxy. After the first printed event
// it may not miss any.
func TestKubectlWatchOfOneObjectMissesNothing(t *testing.T) {
	ns := objects.Namespace(t)
	ctx := context.Background()
	api := api.Clientset(t, testbed.Upstream).CoreV1().ConfigMaps(ns)
	require.Value(api.Create(ctx, objects.ConfigMap("apple", "n", "start"), metav1.CreateOptions{}))(t)
	b := kubectl.Start(t, testbed.Proxied, kubectl.Args("--namespace "+ns+" get configmap apple -w -o jsonpath={.data.n};"), nil)
	b.WaitFor(t, "the object", func(text string) bool { return text == "start;" })

	var written []string
	write := func() {
		n := fmt.Sprint(len(written))
		require.Value(api.Patch(ctx, "apple", types.MergePatchType, []byte(`{"data":{"n":"`+n+`"}}`), metav1.PatchOptions{}))(t)
		written = append(written, n)
	}
	poll.Until(t, "the watch is open", func() error {
		write()
		if b.Stdout.String() == "start;" {
			return poll.ErrNotYet
		}
		return nil
	})
	for range 20 {
		write()
	}
	last := written[len(written)-1] + ";"
	b.WaitFor(t, "the last change", func(text string) bool { return strings.HasSuffix(text, ";"+last) })
	shown := strings.TrimPrefix(b.Stdout.String(), "start;")
	if all := strings.Join(written, ";") + ";"; !strings.HasSuffix(all, shown) {
		t.Errorf("%s was written, %s is shown", all, shown)
	}
}

func TestKubectlWaitsEndTheSame(t *testing.T) {
	ns := objects.Namespace(t)
	objects.Furnish(t, ns)
	ctx := context.Background()
	client := api.Clientset(t, testbed.Upstream)

	// The hopeless wait times out. By then the others, which started earlier, are waiting.
	const hopeless = "wait pod quince --for=condition=Ready --timeout=4s"
	waiting := map[string][]*kubectl.Background{}
	for _, line := range []string{
		"rollout status deployment press --timeout=90s",
		"wait deployment press --for=condition=Available --timeout=90s",
		"wait pod apple --for=delete --timeout=90s",
		"wait pod pear --for=jsonpath={.status.phase}=Running --timeout=90s",
		hopeless,
	} {
		for _, to := range testbed.Targets() {
			waiting[line] = append(waiting[line], kubectl.Start(t, to, kubectl.Args("--namespace "+ns+" "+line), nil))
		}
	}
	for _, b := range waiting[hopeless] {
		b.Wait(t)
	}

	d := require.Value(client.AppsV1().Deployments(ns).Get(ctx, "press", metav1.GetOptions{}))(t)
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1,
		Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue}}}
	require.Value(client.AppsV1().Deployments(ns).UpdateStatus(ctx, d, metav1.UpdateOptions{}))(t)
	require.NoError(t, client.CoreV1().Pods(ns).Delete(ctx, "apple", metav1.DeleteOptions{}))
	require.Value(client.CoreV1().Pods(ns).Patch(ctx, "pear", types.MergePatchType, []byte(`{"status":{"phase":"Running"}}`), metav1.PatchOptions{}, "status"))(t)

	for line, both := range waiting {
		var texts []string
		for i, to := range testbed.Targets() {
			text := both[i].Wait(t).Comparable(to, nil)
			// kubectl prints that it waits only if it began before the change.
			texts = append(texts, regexp.MustCompile(`(?m)^Waiting for .*\n`).ReplaceAllString(text, ""))
		}
		if texts[0] != texts[1] {
			t.Errorf("kubectl %s\nupstream: %s\nproxied:  %s", line, texts[0], texts[1])
		}
		if want := "exit 0"; line != hopeless && !strings.HasPrefix(texts[0], want) {
			t.Errorf("kubectl %s\nupstream: %s", line, texts[0])
		}
	}
}
