package clusters

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/certificates"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/parallel"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
	"watershed.test/real/internal/usage"
)

// kubeletSizes are the sizes of a crowd of kubelets.
type kubeletSizes struct {
	// kubelets have a pod each, which names as many secrets, each a watch. Each secret is named on
	// 50 nodes, or on all.
	kubelets, secrets int
	// watchSeconds is the shortest time for which a watch is open; the longest is twice that.
	watchSeconds int
	// seconds is the time for which reviews are counted, and perMinute the number of pods that are
	// replaced meanwhile.
	seconds, perMinute int
}

// kubeletCrowd is a proxy's kubelets, which watch the secrets of their pods by name.
type kubeletCrowd struct {
	kubeletSizes
	namespace string
	core      kubernetes.Interface
	proxy     *testbed.Proxy
	signer    *certificates.Signer
	// open is the number of watches that have begun and not ended, and begun that of all so far.
	open, begun atomic.Int64
	// failed holds the first failures.
	failed chan error
}

// TestKubeletsCostFewReviews counts the reviews that kubelets' watches of single secrets cost, while
// they are opened again and again and some pods are replaced.
//
// By default it is small. `make simulate-kubelets` gives the figures in docs/benchmarks.md.
func TestKubeletsCostFewReviews(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy")
	}
	t.Parallel()
	signer := certificates.NewSigner(t, t.TempDir(), "clients")
	cluster := require.Value(testbed.Start("--apiserver-arg=--client-ca-file=" + signer.File))(t)
	t.Cleanup(cluster.Stop)
	grantAll(t, cluster.Upstream(), map[string][]rbacv1.PolicyRule{"watershed": impersonating()})
	c := &kubeletCrowd{kubeletSizes: kubeletSizes{
		kubelets: fromEnvironment(t, "KUBELETS", 6), secrets: fromEnvironment(t, "KUBELET_SECRETS", 4),
		watchSeconds: fromEnvironment(t, "KUBELET_WATCH_SECONDS", 2),
		seconds:      fromEnvironment(t, "KUBELET_SECONDS", 8), perMinute: fromEnvironment(t, "KUBELET_CHANGES", 30),
	}, namespace: "default", core: api.Clientset(t, cluster.Upstream()), signer: signer, failed: make(chan error, 10)}
	t.Logf("%+v", c.kubeletSizes)
	c.createPods(t)
	c.proxy = testbed.RunProxy(t, cluster.ProxyKubeconfig, "--config", testbed.CacheEverything,
		"--node-grants", "follow-pods", "--client-ca-file", signer.File)
	c.proxy.AwaitFollowedPods(t)

	report := func(phase string, since time.Time, before usage.Asked) int {
		took, asked := time.Since(since), usage.CountAsked(t, cluster.Upstream()).Minus(before)
		t.Logf("%s: %.0f s, %d watches begun so far, %d open; %d reviews, %.2f a second; CPU of the API server %.1f s, of the proxy %.1f s; %d MiB",
			phase, took.Seconds(), c.begun.Load(), c.open.Load(), asked.Reviews, float64(asked.Reviews)/took.Seconds(),
			usage.ProcessorTime(t, cluster.Pids["apiserver-0"]).Seconds(), usage.ProcessorTime(t, c.proxy.PID).Seconds(), usage.ResidentBytes(t, c.proxy.PID)>>20)
		return asked.Reviews
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	t.Cleanup(stop)
	begin, before := time.Now(), usage.CountAsked(t, cluster.Upstream())
	c.openAll(t, ctx, &running)
	report("opened", begin, before)

	begin, before = time.Now(), usage.CountAsked(t, cluster.Upstream())
	begun := c.begun.Load()
	c.replacePods(t)
	reviews, again := report("counted", begin, before), int(c.begun.Load()-begun)
	select {
	case err := <-c.failed:
		t.Errorf("a watch failed: %v", err)
	default:
	}
	if least := c.kubelets * c.secrets / 2; again < least {
		t.Errorf("%d watches were opened again, not even %d", again, least)
	}
	// Reviewed by the clock, each of these watches would cost one.
	if reviews > again/4 {
		t.Errorf("%d reviews of %d watches that were opened again", reviews, again)
	}
}

func (c *kubeletCrowd) allSecrets() int { return max(c.secrets, c.kubelets*c.secrets/50) }

// named returns the secrets that a kubelet's pod names.
func (c *kubeletCrowd) named(kubelet int) (names []string) {
	for i := range c.secrets {
		names = append(names, fmt.Sprint("secret-", (kubelet*c.secrets+i)%c.allSecrets()))
	}
	return names
}

// pod returns a pod of a kubelet's node.
func (c *kubeletCrowd) pod(kubelet, generation int) *corev1.Pod {
	pod := objects.Pod(fmt.Sprintf("pod-%d-%d", kubelet, generation), nodeName(kubelet))
	for _, name := range c.named(kubelet) {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	return pod
}

// createPods creates the secrets, and a pod for each kubelet.
func (c *kubeletCrowd) createPods(t *testing.T) {
	t.Helper()
	core := c.core.CoreV1()
	parallel.ForEach(8, make([]struct{}, c.allSecrets()), func(i int, _ struct{}) {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("secret-", i)}, StringData: map[string]string{"k": "v"}}
		if _, err := core.Secrets(c.namespace).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
			t.Error(err)
		}
	})
	parallel.ForEach(8, make([]struct{}, c.kubelets), func(i int, _ struct{}) {
		if _, err := core.Pods(c.namespace).Create(t.Context(), c.pod(i, 0), metav1.CreateOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// openAll has all kubelets open their watches, a few at a time. They stay open until the context ends.
func (c *kubeletCrowd) openAll(t *testing.T, ctx context.Context, running *sync.WaitGroup) {
	t.Helper()
	clients := make([]*http.Client, c.kubelets)
	for i := range clients {
		clients[i] = c.client(t, i)
	}
	parallel.ForEach(16, clients, func(i int, client *http.Client) {
		var first sync.WaitGroup
		for _, name := range c.named(i) {
			first.Add(1)
			running.Go(func() { c.watch(ctx, client, name, sync.OnceFunc(first.Done)) })
		}
		first.Wait()
	})
}

// client returns a client with one connection and a kubelet's certificate.
func (c *kubeletCrowd) client(t *testing.T, kubelet int) *http.Client {
	certificate := c.signer.Person(t, certificates.Template("system:node:"+nodeName(kubelet), "system:nodes"))
	return certificates.Client(c.proxy.Target, certificate)
}

// shownVersion matches the version of a list, an event or a bookmark.
var shownVersion = regexp.MustCompile(`"resourceVersion":"(\d+)"`)

// watch lists a secret by its name and watches it, again and again, until the context ends.
func (c *kubeletCrowd) watch(ctx context.Context, client *http.Client, name string, opened func()) {
	defer opened()
	path := c.proxy.URL + "/api/v1/namespaces/" + c.namespace + "/secrets?fieldSelector=metadata.name%3D" + name
	version := ""
	for ctx.Err() == nil {
		query := "&resourceVersion=0"
		if version != "" {
			timeout := c.watchSeconds + rand.IntN(c.watchSeconds)
			query = fmt.Sprintf("&watch=1&allowWatchBookmarks=1&timeoutSeconds=%d&resourceVersion=%s", timeout, version)
		}
		err := c.read(ctx, client, path+query, version != "", &version, opened)
		if err != nil && ctx.Err() == nil {
			select {
			case c.failed <- fmt.Errorf("%s: %w", name, err):
			default:
			}
			return
		}
	}
}

// read reads an answer to its end, and notes the last version in it.
func (c *kubeletCrowd) read(ctx context.Context, client *http.Client, url string, isWatch bool, version *string, opened func()) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if isWatch {
		c.begun.Add(1)
		c.open.Add(1)
		defer c.open.Add(-1)
		opened()
	}
	lines := bufio.NewReaderSize(response.Body, 1024)
	for {
		line, err := lines.ReadString('\n')
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", response.Status, line)
		}
		if found := shownVersion.FindStringSubmatch(line); found != nil {
			*version = found[1]
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// replacePods replaces pods one after the other, for the configured time. A new pod names the
// secrets of the old one, which leaves then.
func (c *kubeletCrowd) replacePods(t *testing.T) {
	t.Helper()
	pods := c.core.CoreV1().Pods(c.namespace)
	end := time.After(time.Duration(c.seconds) * time.Second)
	tick := time.NewTicker(time.Minute / time.Duration(c.perMinute))
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-end:
			return
		case <-tick.C:
			kubelet, generation := n%c.kubelets, n/c.kubelets
			require.Value(pods.Create(t.Context(), c.pod(kubelet, generation+1), metav1.CreateOptions{}))(t)
			require.NoError(t, pods.Delete(t.Context(), c.pod(kubelet, generation).Name, metav1.DeleteOptions{}))
		}
	}
}
