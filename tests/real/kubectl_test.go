package real

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// command is one run of kubectl.
type command struct {
	args  []string
	stdin string
	env   []string
}

func (c command) String() string { return "kubectl " + strings.Join(c.args, " ") }

type result struct {
	stdout, stderr string
	code           int
}

// homes gives kubectl a home, where it caches discovery, per target and test.
var homes sync.Map

func (t target) prepare(tt *testing.T, ctx context.Context, c command) *exec.Cmd {
	home, ok := homes.Load(tt.Name() + t.name)
	if !ok {
		home, _ = homes.LoadOrStore(tt.Name()+t.name, tt.TempDir())
	}
	cmd := exec.CommandContext(ctx, filepath.Join(programs, "kubectl"), c.args...)
	cmd.Env = append([]string{"PATH=/usr/bin:/bin", "HOME=" + home.(string), "KUBECONFIG=" + t.kubeconfig}, c.env...)
	// Were this process killed, kubectl must not stay behind. Parent-death
	// signals belong to threads, and Go may retire one early; then kubectl dies
	// early and the test fails, which in practice it does not: threads are
	// retired only with a goroutine locked to them.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if c.stdin != "" {
		cmd.Stdin = strings.NewReader(c.stdin)
	}
	return cmd
}

func (t target) kubectl(tt *testing.T, c command) result {
	tt.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	cmd := t.prepare(tt, ctx, c)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		tt.Fatalf("%s, %v: %v, %v\n%s", t.name, c, err, ctx.Err(), stderr.String())
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

var (
	age    = regexp.MustCompile(`\b(\d+[dhms])+\b`)
	spaces = regexp.MustCompile(` {2,}`)
)

// comparable is a result without what differs from run to run: the address of
// the server, versions, times, and ages with the width of their column.
func (r result) comparable(of target, words map[string]string) string {
	words = with(words, of.url, "SERVER", strings.TrimPrefix(of.url, "https://"), "SERVER", of.ca, "CA")
	text := blank(fmt.Sprintf("exit %d\n--- stdout\n%s--- stderr\n%s", r.code, r.stdout, r.stderr), words)
	return spaces.ReplaceAllString(age.ReplaceAllString(text, "AGE"), " ")
}

func with(words map[string]string, more ...string) map[string]string {
	all := map[string]string{}
	for k, v := range words {
		all[k] = v
	}
	for i := 0; i+1 < len(more); i += 2 {
		all[more[i]] = more[i+1]
	}
	return all
}

// sameKubectl runs a command that changes nothing both ways.
func sameKubectl(t *testing.T, c command) {
	t.Helper()
	want := upstream.kubectl(t, c).comparable(upstream, nil)
	got := proxied.kubectl(t, c).comparable(proxied, nil)
	if want != got {
		t.Errorf("%v\nupstream: %s\nproxied:  %s", c, want, got)
	}
	t.Logf("%v: %.6s", c, want)
}

// script runs commands one after the other both ways, each way in a namespace
// of its own, and compares step by step.
func script(t *testing.T, commands ...command) (namespaces map[string]string) {
	t.Helper()
	namespaces = map[string]string{}
	for _, to := range targets() {
		namespaces[to.name] = namespace(t)
	}
	for _, c := range commands {
		var texts []string
		for _, to := range targets() {
			ns := namespaces[to.name]
			here := c
			here.args = append([]string{"--namespace", ns}, c.args...)
			texts = append(texts, to.kubectl(t, here).comparable(to, map[string]string{ns: "NAMESPACE"}))
		}
		if texts[0] != texts[1] {
			t.Errorf("%v\nupstream: %s\nproxied:  %s", c, texts[0], texts[1])
		}
		t.Logf("%v: %.6s", c, texts[0])
	}
	return namespaces
}

func args(line string) command { return command{args: strings.Fields(line)} }

func apply(line, manifest string) command {
	c := args(line + " -f -")
	c.stdin = manifest
	return c
}

// furnish fills a namespace with a few objects to look at.
func furnish(t *testing.T, ns string) {
	t.Helper()
	ctx := context.Background()
	client := kubeClient(t, upstream)
	for _, name := range []string{"apple", "pear", "quince"} {
		must(client.CoreV1().ConfigMaps(ns).Create(ctx, configMap(name, "colour", "green"), metav1.CreateOptions{}))(t)
		must(client.CoreV1().Pods(ns).Create(ctx, pod(name, ""), metav1.CreateOptions{}))(t)
	}
	must(client.CoreV1().Services(ns).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "orchard"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "apple"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{}))(t)
	must(client.AppsV1().Deployments(ns).Create(ctx, deployment("press", 1), metav1.CreateOptions{}))(t)
}

func deployment(name string, replicas int32) *appsv1.Deployment {
	p := pod(name, "")
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: p.Labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: p.Labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: p.Labels},
				Spec: corev1.PodSpec{Containers: p.Spec.Containers}},
		},
	}
}

func TestKubectlReads(t *testing.T) {
	ns := namespace(t)
	furnish(t, ns)
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
		sameKubectl(t, args("--namespace "+ns+" "+line))
	}
}

func TestKubectlClusterReads(t *testing.T) {
	for _, line := range []string{
		"api-resources", "api-versions", "version", "cluster-info", "auth whoami",
		"explain pods.spec.containers", "explain deployments --recursive", "explain pods.nothing",
		"get clusterroles", "get clusterrole view -o yaml", "describe clusterrole view", "get namespaces default kube-system",
		"get --raw /version", "get --raw /api", "get --raw /apis", "get --raw /api/v1", "get --raw /apis/apps/v1",
		"get --raw /openapi/v3", "get --raw /healthz", "get --raw /api/v1/namespaces/default", "get --raw /no/such/thing",
		"get --raw /api/v1/namespaces/default/pods?limit=abc", "get --raw /api/v1/pods?resourceVersion=abc",
	} {
		sameKubectl(t, args(line))
	}
}

func TestKubectlWrites(t *testing.T) {
	cm := func(colour string) string { return asJSON(withKind(configMap("apple", "colour", colour))) }
	namespaces := script(t,
		apply("apply", cm("green")),
		apply("apply", cm("green")),
		apply("apply", cm("red")),
		args("get configmap apple -o yaml"),
		apply("apply --server-side --field-manager=other", cm("yellow")),
		apply("apply --server-side --force-conflicts --field-manager=other", cm("yellow")),
		args("get configmap apple -o yaml --show-managed-fields"),
		apply("create", cm("blue")),
		apply("replace", cm("blue")),
		apply("apply --dry-run=server -o yaml", cm("black")),
		args(`patch configmap apple -p {"data":{"size":"big"}}`),
		args(`patch configmap apple --type=merge -p {"data":{"size":null}}`),
		args(`patch configmap apple --type=json -p [{"op":"add","path":"/data/taste","value":"sour"}]`),
		args(`patch configmap apple --type=json -p [{"op":"remove","path":"/data/none"}]`),
		args("label configmap apple kind=fruit"),
		args("annotate configmap apple note=ripe"),
		args("get configmap apple -o yaml"),
		args("create deployment press --image=example.test/press:1 --replicas=2"),
		args("scale deployment press --replicas=3"),
		args("set image deployment press press=example.test/press:2"),
		args("rollout restart deployment press"),
		args("create configmap pear --from-literal=colour=green"),
		apply("apply", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"bad"},"data":{"n":1}}`),
		apply("apply", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"bad"},"dta":{}}`),
		apply("apply", `{"apiVersion":"v1","kind":"Nothing","metadata":{"name":"bad"}}`),
		args("delete configmap apple --now"),
		args("delete configmap apple"),
		args("delete configmaps --all"),
		args("get configmaps"),
	)
	for _, to := range targets() {
		// What was written through either way is seen through the other.
		for _, from := range targets() {
			r := from.kubectl(t, args("--namespace "+namespaces[to.name]+" get deployment press -o jsonpath={.spec.replicas}"))
			if r.stdout != "3" {
				t.Errorf("written through %s, read through %s: %+v", to.name, from.name, r)
			}
		}
	}
}

func withKind(cm *corev1.ConfigMap) *corev1.ConfigMap {
	cm.APIVersion, cm.Kind = "v1", "ConfigMap"
	return cm
}

// background is a kubectl that goes on while the test does something.
type background struct {
	cmd            *exec.Cmd
	stdout, stderr output
	done           chan struct{}
}

// output is looked at while it grows.
type output struct {
	mutex sync.Mutex
	text  []byte
}

func (o *output) Write(p []byte) (int, error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	o.text = append(o.text, p...)
	return len(p), nil
}

func (o *output) String() string {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return string(o.text)
}

// begin starts a kubectl that ends with the test at the latest.
func (t target) begin(tt *testing.T, c command, stdin io.Reader) *background {
	tt.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	b := &background{cmd: t.prepare(tt, ctx, c), done: make(chan struct{})}
	b.cmd.Stdout, b.cmd.Stderr = &b.stdout, &b.stderr
	if stdin != nil {
		b.cmd.Stdin = stdin
	}
	check(tt, b.cmd.Start())
	go func() {
		b.cmd.Wait()
		close(b.done)
	}()
	tt.Cleanup(func() {
		cancel()
		<-b.done
	})
	return b
}

// prints waits until the output is what it should be.
func (b *background) prints(t *testing.T, what string, want func(stdout string) bool) {
	t.Helper()
	eventually(t, what, func() error {
		if !want(b.stdout.String()) {
			return fmt.Errorf("stdout %q, stderr %q", b.stdout.String(), b.stderr.String())
		}
		return nil
	})
}

func (b *background) result(t *testing.T) result {
	t.Helper()
	within(t, b.cmd.String(), b.done)
	return result{b.stdout.String(), b.stderr.String(), b.cmd.ProcessState.ExitCode()}
}

func TestKubectlWatch(t *testing.T) {
	for _, form := range []struct {
		line string
		// What appears in the output once per event, and how often it has to.
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
			ns := namespace(t)
			ctx := context.Background()
			api := kubeClient(t, upstream).CoreV1().ConfigMaps(ns)
			modify := func(name, patch string) {
				must(api.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(t)
			}
			must(api.Create(ctx, configMap("apple", "n", "0"), metav1.CreateOptions{}))(t)
			var running []*background
			for _, to := range targets() {
				b := to.begin(t, args("--namespace "+ns+" "+form.line), nil)
				// The watch goes on from the version of this first list.
				b.prints(t, "the first list", func(text string) bool { return strings.Contains(text, "apple") })
				running = append(running, b)
			}
			modify("apple", `{"data":{"n":"1"}}`)
			must(api.Create(ctx, configMap("pear", "n", "1"), metav1.CreateOptions{}))(t)
			modify("pear", `{"data":{"n":"2"}}`)
			check(t, api.Delete(ctx, "pear", metav1.DeleteOptions{}))
			modify("apple", `{"data":{"n":"3","m":"3"}}`)

			var texts []string
			for i, to := range targets() {
				running[i].prints(t, "all events through "+to.name, func(text string) bool { return strings.Count(text, form.mark) == form.count })
				texts = append(texts, result{stdout: running[i].stdout.String(), stderr: running[i].stderr.String()}.comparable(to, nil))
			}
			if texts[0] != texts[1] {
				t.Errorf("upstream: %s\nproxied:  %s", texts[0], texts[1])
			}
		})
	}
}

// TestKubectlWatchOne has kubectl watch a single object. Unlike a list it has no
// version to go on from: kubectl prints the object, opens a watch on the present
// state, and passes over the first event. What happens in between is not shown
// without a proxy either; but from the first event that is, none may be missing.
func TestKubectlWatchOne(t *testing.T) {
	ns := namespace(t)
	ctx := context.Background()
	api := kubeClient(t, upstream).CoreV1().ConfigMaps(ns)
	must(api.Create(ctx, configMap("apple", "n", "start"), metav1.CreateOptions{}))(t)
	b := proxied.begin(t, args("--namespace "+ns+" get configmap apple -w -o jsonpath={.data.n};"), nil)
	b.prints(t, "the object", func(text string) bool { return text == "start;" })

	var written []string
	write := func() {
		n := fmt.Sprint(len(written))
		must(api.Patch(ctx, "apple", types.MergePatchType, []byte(`{"data":{"n":"`+n+`"}}`), metav1.PatchOptions{}))(t)
		written = append(written, n)
	}
	eventually(t, "the watch is open", func() error {
		write()
		if b.stdout.String() == "start;" {
			return errNotYet
		}
		return nil
	})
	for range 20 {
		write()
	}
	last := written[len(written)-1] + ";"
	b.prints(t, "the last change", func(text string) bool { return strings.HasSuffix(text, ";"+last) })
	shown := strings.TrimPrefix(b.stdout.String(), "start;")
	if all := strings.Join(written, ";") + ";"; !strings.HasSuffix(all, shown) {
		t.Errorf("%s was written, %s is shown", all, shown)
	}
}

func TestKubectlWaits(t *testing.T) {
	ns := namespace(t)
	furnish(t, ns)
	ctx := context.Background()
	client := kubeClient(t, upstream)

	// The last one is there to run out of time: when it has, the others, which
	// started before it, are waiting.
	const hopeless = "wait pod quince --for=condition=Ready --timeout=4s"
	waiting := map[string][]*background{}
	for _, line := range []string{
		"rollout status deployment press --timeout=90s",
		"wait deployment press --for=condition=Available --timeout=90s",
		"wait pod apple --for=delete --timeout=90s",
		"wait pod pear --for=jsonpath={.status.phase}=Running --timeout=90s",
		hopeless,
	} {
		for _, to := range targets() {
			waiting[line] = append(waiting[line], to.begin(t, args("--namespace "+ns+" "+line), nil))
		}
	}
	for _, b := range waiting[hopeless] {
		b.result(t)
	}

	d := must(client.AppsV1().Deployments(ns).Get(ctx, "press", metav1.GetOptions{}))(t)
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1,
		Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue}}}
	must(client.AppsV1().Deployments(ns).UpdateStatus(ctx, d, metav1.UpdateOptions{}))(t)
	check(t, client.CoreV1().Pods(ns).Delete(ctx, "apple", metav1.DeleteOptions{}))
	must(client.CoreV1().Pods(ns).Patch(ctx, "pear", types.MergePatchType, []byte(`{"status":{"phase":"Running"}}`), metav1.PatchOptions{}, "status"))(t)

	for line, both := range waiting {
		var texts []string
		for i, to := range targets() {
			text := both[i].result(t).comparable(to, nil)
			// Whether it got to say that it waits depends on who was first.
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
