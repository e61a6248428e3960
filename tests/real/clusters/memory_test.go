package clusters

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/cgroup"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

const (
	jsonType     = "application/json"
	protobufType = "application/vnd.kubernetes.protobuf"

	// memoryLimit is less than half of what the objects take in both encodings.
	memoryLimit = 192 << 20
	// groupLimit is that of the control group: the proxy takes 80 % of it for its own limit.
	groupLimit       = memoryLimit / 4 * 5
	memoryNamespaces = 10
	memoryObjects    = 60
	memoryObjectSize = 100 << 10
)

// memoryRun is a proxy with more data behind it than fits into its memory, and its clients.
type memoryRun struct {
	t                 *testing.T
	proxied, upstream api.Target
	ctx               context.Context
	// types holds the paths of all types that can be listed.
	types []string
	// clients end when it is over; followers when ctx does, so that they can get all events.
	clients, followers sync.WaitGroup
	over               atomic.Bool

	mutex sync.Mutex
	// written holds the versions of writes after the start, by type.
	written map[string][]string
	sources map[string]int
	// abused counts what hostile clients did, by its name.
	abused map[string]int

	verified, refused, events atomic.Int64
}

// TestMemoryStaysBelowItsLimit gives clients of two types, in both encodings, twice the data that
// fits into the proxy's memory, while the objects change. Every list is compared with the API
// server's own at the same version, every watch has to get each change once, and hostile clients
// do what costs most.
//
// The proxy runs in a control group of its own, whose limit is the only one that it is given, as in
// a container. The kernel must not kill it, and its resident memory stays below its own limit. Where
// no such group can be created, only the latter is checked.
//
// It is run by `make memory` only. MEMORY_FLAGS are further flags of the proxy: with the budget off
// (--memory-limit=0) the test has to fail.
func TestMemoryStaysBelowItsLimit(t *testing.T) {
	if os.Getenv("MEMORY_SECONDS") == "" || testbed.Direct {
		t.Skip("make memory runs it")
	}
	seconds := fromEnvironment(t, "MEMORY_SECONDS", 600)
	c := require.Value(testbed.Start())(t)
	t.Cleanup(c.Stop)
	proxy := startLimited(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	run := &memoryRun{
		t: t, proxied: proxy.Target, upstream: c.Upstream(), ctx: ctx,
		written: map[string][]string{}, sources: map[string]int{}, abused: map[string]int{},
	}
	run.types = typePaths(t, run.upstream)
	start := run.fill()

	var followed []*followedType
	for _, resource := range []string{"configmaps", "secrets"} {
		for _, encoding := range []string{jsonType, protobufType} {
			f := &followedType{resource: resource, seen: map[string]bool{}}
			followed = append(followed, f)
			run.clients.Go(func() { run.verify(resource, encoding) })
			run.followers.Go(func() { run.follow(f, encoding, start[resource]) })
		}
	}
	run.clients.Go(run.churn)
	for _, a := range memoryAbuses {
		run.clients.Go(func() { run.abuse(a.name, a.do) })
	}
	ends := time.Now().Add(time.Duration(seconds) * time.Second)
	for time.Now().Before(ends) && !t.Failed() {
		time.Sleep(time.Second)
	}
	run.over.Store(true)
	run.clients.Wait()
	if !t.Failed() {
		poll.Until(t, "every watch has got every change", func() error { return run.missing(followed) })
	}
	cancel()
	run.followers.Wait()
	if t.Failed() {
		return
	}
	run.report(seconds, proxy)
}

// startLimited starts the proxy in a control group, if there can be one.
func startLimited(t *testing.T, c *testbed.Cluster) *testbed.Proxy {
	t.Helper()
	flags := append([]string{"--config", testbed.CacheEverything}, strings.Fields(os.Getenv("MEMORY_FLAGS"))...)
	group, err := cgroup.New("watershed-memory", groupLimit)
	if errors.Is(err, cgroup.ErrUnavailable) {
		t.Log(err)
		flags = append(flags, "--memory-limit", fmt.Sprint(memoryLimit))
		return testbed.RunProxy(t, c.Kubeconfig, flags...)
	}
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := group.Remove(); err != nil {
			t.Error(err)
		}
	})
	proxy := testbed.RunProxyAs(t, group.Command, c.Kubeconfig, flags...)
	// The kernel's count is read at the end however the test ends.
	t.Cleanup(func() {
		kills, err := group.Kills()
		if err != nil || kills > 0 {
			t.Errorf("the kernel killed %d processes for want of memory (%v)\n%s", kills, err, proxy.LogTail())
		}
		peak, err := group.Peak()
		t.Logf("control group: peak %d MiB of %d, with sockets and files (%v)", peak>>20, groupLimit>>20, err)
	})
	return proxy
}

// typePaths returns the paths of all types that can be listed.
func typePaths(t *testing.T, at api.Target) []string {
	t.Helper()
	var paths []string
	for _, list := range require.Value(api.Clientset(t, at).Discovery().ServerPreferredResources())(t) {
		base := "/apis/" + list.GroupVersion
		if list.GroupVersion == "v1" {
			base = "/api/v1"
		}
		for _, r := range list.APIResources {
			if slices.Contains(r.Verbs, "list") {
				paths = append(paths, base+"/"+r.Name)
			}
		}
	}
	return paths
}

// missing returns an error while a watch has not got a change.
func (r *memoryRun) missing(followed []*followedType) error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for _, f := range followed {
		for _, version := range r.written[f.resource] {
			if !f.seen[version] {
				return fmt.Errorf("%s: %s is missing", f.resource, version)
			}
		}
	}
	return nil
}

// report logs what happened, and fails the test if memory was not kept below the limit or the
// clients did not what they are for.
func (r *memoryRun) report(seconds int, proxy *testbed.Proxy) {
	t := r.t
	peak := peakMemory(t, proxy.PID)
	t.Logf("%d s: peak %d MiB of %d; %d lists verified, %d events, %d refused; sources %v; abuses %v",
		seconds, peak>>20, memoryLimit>>20, r.verified.Load(), r.events.Load(), r.refused.Load(), r.sources, r.abused)
	for line := range strings.Lines(require.Value(proxy.Metrics())(t)) {
		if strings.HasPrefix(line, "watershed_memory_released_bytes_total") {
			t.Log(strings.TrimSpace(line))
		}
	}
	if peak >= memoryLimit {
		t.Errorf("the proxy used %d bytes\n%s", peak, proxy.LogTail())
	}
	if r.sources["snapshot"] == 0 || r.sources["forward; reason=budget"] == 0 {
		t.Errorf("everything or nothing was held: %v", r.sources)
	}
	for _, a := range memoryAbuses {
		if r.abused[a.name] == 0 {
			t.Errorf("%s: never done", a.name)
		}
	}
}

func peakMemory(t *testing.T, pid int) int {
	t.Helper()
	status := string(require.Value(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(t))
	_, rest, _ := strings.Cut(status, "VmHWM:")
	var kilobytes int
	require.Value(fmt.Sscan(rest, &kilobytes))(t)
	return kilobytes << 10
}

func memoryNamespace(i int) string { return fmt.Sprint("memory-", i) }

func memoryContent(chance *rand.Rand) string {
	words := make([]byte, 256)
	for i := range words {
		words[i] = byte('a' + chance.UintN(26))
	}
	return strings.Repeat(string(words), memoryObjectSize/len(words))
}

// fill creates the objects, and returns the versions of the types.
func (r *memoryRun) fill() map[string]string {
	direct := api.Clientset(r.t, r.upstream).CoreV1()
	var made sync.WaitGroup
	for i := range memoryNamespaces {
		ns := memoryNamespace(i)
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}
		require.Value(direct.Namespaces().Create(r.ctx, namespace, metav1.CreateOptions{}))(r.t)
		made.Go(func() {
			chance := rand.New(rand.NewPCG(7, uint64(i)))
			for n := range memoryObjects {
				meta := metav1.ObjectMeta{Name: fmt.Sprintf("o-%03d", n)}
				content := memoryContent(chance)
				_, err := direct.ConfigMaps(ns).Create(r.ctx, &corev1.ConfigMap{ObjectMeta: meta,
					Data: map[string]string{"content": content}}, metav1.CreateOptions{})
				if err == nil {
					_, err = direct.Secrets(ns).Create(r.ctx, &corev1.Secret{ObjectMeta: meta,
						StringData: map[string]string{"content": content}}, metav1.CreateOptions{})
				}
				if err != nil {
					r.t.Error(err)
					return
				}
			}
		})
	}
	made.Wait()
	versions := map[string]string{}
	for _, resource := range []string{"configmaps", "secrets"} {
		a := r.upstream.Must(r.t, api.Request{Path: "/api/v1/" + resource + "?limit=1"})
		versions[resource] = api.VersionOf(r.t, a.Body)
	}
	return versions
}

// churn changes objects until it is over.
func (r *memoryRun) churn() {
	direct := api.Clientset(r.t, r.upstream).CoreV1()
	chance := rand.New(rand.NewPCG(8, 0))
	for !r.over.Load() {
		ns, name := memoryNamespace(chance.IntN(memoryNamespaces)), fmt.Sprintf("o-%03d", chance.IntN(memoryObjects))
		meta, content := metav1.ObjectMeta{Name: name}, memoryContent(chance)
		var version, resource string
		var err error
		if chance.IntN(2) == 0 {
			var cm *corev1.ConfigMap
			resource = "configmaps"
			cm, err = direct.ConfigMaps(ns).Update(r.ctx, &corev1.ConfigMap{ObjectMeta: meta,
				Data: map[string]string{"content": content}}, metav1.UpdateOptions{})
			version = cm.GetResourceVersion()
		} else {
			var secret *corev1.Secret
			resource = "secrets"
			secret, err = direct.Secrets(ns).Update(r.ctx, &corev1.Secret{ObjectMeta: meta,
				StringData: map[string]string{"content": content}}, metav1.UpdateOptions{})
			version = secret.GetResourceVersion()
		}
		if err != nil {
			r.t.Error(err)
			return
		}
		r.mutex.Lock()
		r.written[resource] = append(r.written[resource], version)
		r.mutex.Unlock()
		time.Sleep(100 * time.Millisecond)
	}
}

// verify reads a type again and again. Each answer has to be the API server's own at the same
// version.
func (r *memoryRun) verify(resource, encoding string) {
	chance := rand.New(rand.NewPCG(9, uint64(len(resource)+len(encoding))))
	for !r.over.Load() {
		path := fmt.Sprintf("/api/v1/namespaces/%s/%s", memoryNamespace(chance.IntN(memoryNamespaces)), resource)
		compressed := []string{"identity", "gzip"}[chance.IntN(2)]
		got, err := r.proxied.Try(api.Request{Path: path + "?resourceVersion=0", Accept: encoding,
			Header: map[string]string{"Accept-Encoding": compressed}})
		if err != nil {
			r.t.Error(err)
			return
		}
		source := got.Header.Get("X-Watershed-Source")
		r.mutex.Lock()
		r.sources[source]++
		r.mutex.Unlock()
		if got.Status == http.StatusTooManyRequests {
			if got.Header.Get("Retry-After") == "" {
				r.t.Errorf("%s: 429 without Retry-After", path)
			}
			r.refused.Add(1)
			time.Sleep(time.Second)
			continue
		}
		body, err := got.Plain()
		list, _, ok := api.ParseList(got.Header.Get("Content-Type"), body)
		if err != nil || got.Status != http.StatusOK || !ok {
			r.t.Errorf("%s from %s: %d, %v", path, source, got.Status, err)
			return
		}
		exact := path + "?resourceVersionMatch=Exact&resourceVersion=" + list.ResourceVersion
		want, err := r.upstream.Try(api.Request{Path: exact, Accept: encoding,
			Header: map[string]string{"Accept-Encoding": "identity"}})
		if err != nil || want.Status != http.StatusOK {
			r.t.Errorf("%s at upstream: %d, %v", exact, want.Status, err)
			return
		}
		if want.Body != body {
			r.t.Errorf("%s from %s at %s differs", path, source, list.ResourceVersion)
			return
		}
		r.verified.Add(1)
		time.Sleep(100 * time.Millisecond)
	}
}

// followedType is a type as one client watches it.
type followedType struct {
	resource string
	// seen holds the versions of events; the run's mutex guards it.
	seen map[string]bool
}

// follow watches a type from a version on, and goes on where a watch ended. Each change comes once.
func (r *memoryRun) follow(f *followedType, encoding, version string) {
	config := r.proxied.Config()
	config.ContentType = encoding
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		r.t.Error(err)
		return
	}
	for r.ctx.Err() == nil {
		options := metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true}
		var events watch.Interface
		if f.resource == "configmaps" {
			events, err = client.CoreV1().ConfigMaps("").Watch(r.ctx, options)
		} else {
			events, err = client.CoreV1().Secrets("").Watch(r.ctx, options)
		}
		if err != nil {
			if r.ctx.Err() == nil {
				r.t.Errorf("watch of %s from %s: %v", f.resource, version, err)
			}
			return
		}
		for event := range events.ResultChan() {
			if event.Type == watch.Error && r.ctx.Err() != nil {
				return
			}
			if event.Type == watch.Error {
				r.t.Errorf("watch of %s after %s: %v", f.resource, version, event.Object)
				return
			}
			version = event.Object.(metav1.Object).GetResourceVersion()
			if event.Type == watch.Bookmark {
				continue
			}
			r.events.Add(1)
			r.mutex.Lock()
			if f.seen[version] {
				r.t.Errorf("%s: %s came twice", f.resource, version)
			}
			f.seen[version] = true
			r.mutex.Unlock()
		}
	}
}
