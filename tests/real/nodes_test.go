package real

import (
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// counter passes connections on to a server and counts the bytes that the
// server sends.
type counter struct {
	listener net.Listener
	sent     atomic.Int64
}

func startCounter(t *testing.T, server string) *counter {
	t.Helper()
	c := &counter{listener: must(net.Listen("tcp", "127.0.0.1:0"))(t)}
	to := strings.TrimPrefix(server, "https://")
	go func() {
		for {
			client, err := c.listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer client.Close()
				server, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer server.Close()
				go func() {
					io.Copy(server, client)
					server.Close()
				}()
				io.Copy(client, io.TeeReader(server, c))
			}()
		}
	}()
	t.Cleanup(func() { c.listener.Close() })
	return c
}

func (c *counter) Write(p []byte) (int, error) {
	c.sent.Add(int64(len(p)))
	return len(p), nil
}

func (c *counter) url() string { return "https://" + c.listener.Addr().String() }

// asked is what upstream counts of requests that somebody else than this test
// makes.
type asked struct{ lists, watches, reviews, others int }

func (a asked) minus(b asked) asked {
	return asked{a.lists - b.lists, a.watches - b.watches, a.reviews - b.reviews, a.others - b.others}
}

func countAsked(t *testing.T, at target) (a asked) {
	t.Helper()
	for line := range strings.Lines(at.ok(t, request{path: "/metrics"}).body) {
		name, labels, _ := strings.Cut(line, "{")
		has := func(text string) bool { return strings.Contains(labels, text) }
		open := name == "apiserver_longrunning_requests"
		if !open && name != "apiserver_request_total" {
			continue
		}
		switch {
		case has(`verb="WATCH"`):
			a.watches += value(line)
		case open || has(`resource="leases"`) || has("/metrics"):
		case has(`verb="LIST"`):
			a.lists += value(line)
		case has("accessreviews") || has("tokenreviews"):
			a.reviews += value(line)
		case has(`verb="GET"`):
			a.others += value(line)
		}
	}
	return a
}

// resident is a process's memory in bytes.
func resident(t *testing.T, pid int) int64 {
	t.Helper()
	for line := range strings.Lines(string(must(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(t))) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			return int64(must(strconv.Atoi(strings.Fields(rest)[0]))(t)) << 10
		}
	}
	t.Fatalf("process %d has no memory", pid)
	return 0
}

func fromEnvironment(t *testing.T, name string, otherwise int) int {
	t.Helper()
	if text := os.Getenv(name); text != "" {
		return must(strconv.Atoi(text))(t)
	}
	return otherwise
}

// TestNodeCaches: on each node some agents with client-go's default informers on
// the node's pods and the node itself; without proxies, with a proxy on each node
// that holds what runs there, and with one that holds whole types. Upstream's
// bytes and requests are counted, and the proxies' memory.
//
// It is small. `make simulate-nodes` is what docs/benchmarks.md shows.
func TestNodeCaches(t *testing.T) {
	if direct {
		t.Skip("it is about proxies")
	}
	nodes, pods := fromEnvironment(t, "NODES", 4), fromEnvironment(t, "NODE_PODS", 240)
	agents, seconds := fromEnvironment(t, "NODE_AGENTS", 3), fromEnvironment(t, "NODE_SECONDS", 3)
	perSecond := fromEnvironment(t, "NODE_CHANGES", 20)
	c := must(startBareCluster())(t)
	t.Cleanup(c.stop)
	at, ctx := c.upstream(), t.Context()
	direct := &rest.Config{Host: at.url, BearerToken: c.AdminToken, TLSClientConfig: rest.TLSClientConfig{CAFile: at.ca}, QPS: -1}
	writer := must(kubernetes.NewForConfig(direct))(t)
	node := func(i int) string { return fmt.Sprint("node-", i%nodes) }
	for i := range nodes {
		must(writer.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node(i)}}, metav1.CreateOptions{}))(t)
	}
	var made sync.WaitGroup
	for worker := range 8 {
		chance := rand.New(rand.NewPCG(9, uint64(worker)))
		made.Go(func() {
			for i := worker; i < pods; i += 8 {
				p := pod(fmt.Sprint("pod-", i), node(i))
				// Half of it is there for compression to find.
				filler := make([]byte, 700)
				for i := range filler {
					filler[i] = byte(chance.UintN(256))
				}
				p.Annotations = map[string]string{"filler": hex.EncodeToString(filler)}
				if _, err := writer.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	made.Wait()
	changes := 0
	change := func() {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"n":"%d"}}}`, changes)
		must(writer.CoreV1().Pods("default").Patch(ctx, fmt.Sprint("pod-", changes%pods), types.MergePatchType, patch, metav1.PatchOptions{}))(t)
		changes++
	}

	t.Logf("%d nodes with %d agents each, %d pods, %d changes a second", nodes, agents, pods, perSecond)
	for _, way := range []struct {
		name  string
		proxy bool
		flags func(i int) []string
	}{
		{"without proxies", false, nil},
		{"a proxy for what runs on the node", true, func(i int) []string { return []string{"--node-name", node(i)} }},
		{"a proxy for whole types", true, func(int) []string { return nil }},
	} {
		t.Run(way.name, func(t *testing.T) {
			counted := startCounter(t, at.url)
			before := countAsked(t, at)
			var proxies []*ownProxy
			config := func(i int) *rest.Config {
				config := *direct
				config.Host = counted.url()
				config.ContentType, config.AcceptContentTypes = protobufType, protobufType
				if way.proxy {
					config.Host, config.TLSClientConfig.CAFile = proxies[i].url, proxies[i].ca
				}
				// What keeps client-go from sharing connections between agents.
				config.Dial = (&net.Dialer{Timeout: patience}).DialContext
				return &config
			}
			if way.proxy {
				for i := range nodes {
					proxies = append(proxies, runProxy(t, c.ProxyKubeconfig, append(way.flags(i), "--server", counted.url())...))
				}
			}
			stop := make(chan struct{})
			defer close(stop)
			var all []cache.SharedIndexInformer
			for i := range nodes {
				for range agents {
					client := must(kubernetes.NewForConfig(config(i)))(t)
					for selector, open := range map[string]func(informers.SharedInformerFactory) cache.SharedIndexInformer{
						fields.OneTermEqualSelector("spec.nodeName", node(i)).String(): func(f informers.SharedInformerFactory) cache.SharedIndexInformer {
							return f.Core().V1().Pods().Informer()
						},
						fields.OneTermEqualSelector("metadata.name", node(i)).String(): func(f informers.SharedInformerFactory) cache.SharedIndexInformer {
							return f.Core().V1().Nodes().Informer()
						},
					} {
						factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = selector }))
						informer := open(factory)
						all = append(all, informer)
						go informer.Run(stop)
					}
				}
				// A few nodes at a time, as a rollout goes.
				if i%5 == 4 {
					eventually(t, "the agents of a few nodes are in sync", func() error {
						if slices.ContainsFunc(all, func(i cache.SharedIndexInformer) bool { return !i.HasSynced() }) {
							return errNotYet
						}
						return nil
					})
				}
			}
			eventually(t, "all agents are in sync", func() error {
				have := 0
				for _, informer := range all {
					if !informer.HasSynced() {
						return errNotYet
					}
					have += len(informer.GetStore().ListKeys())
				}
				// Its pods and the node, for each of the agents.
				if want := agents * (pods + nodes); have != want {
					return fmt.Errorf("they have %d objects, not %d", have, want)
				}
				return nil
			})
			started, startBytes := countAsked(t, at).minus(before), counted.sent.Load()
			received := func() (n int) {
				for _, p := range proxies {
					n += p.sum(t, "watershed_upstream_events_total", "pods")
				}
				return n
			}
			events, base := received(), countAsked(t, at)
			tick := time.NewTicker(time.Second / time.Duration(perSecond))
			defer tick.Stop()
			begin := changes
			for range seconds * perSecond {
				<-tick.C
				change()
			}
			// Each is told the last change of its node.
			eventually(t, "all agents were told", func() error {
				told := map[string]bool{}
				for _, informer := range all {
					for _, object := range informer.GetStore().List() {
						if pod, ok := object.(*corev1.Pod); ok && pod.Annotations["n"] == fmt.Sprint(changes-1) {
							told[pod.Name] = true
						}
					}
				}
				if len(told) != 1 {
					return errNotYet
				}
				return nil
			})
			steady, steadyBytes := countAsked(t, at).minus(base), counted.sent.Load()-startBytes
			var memory []int64
			for _, p := range proxies {
				memory = append(memory, resident(t, p.pid))
			}
			slices.Sort(memory)
			t.Logf("start: %d KiB from upstream, %+v", startBytes>>10, started)
			t.Logf("%d changes: %d KiB from upstream, %+v", changes-begin, steadyBytes>>10, steady)
			if !way.proxy {
				return
			}
			t.Logf("memory of a proxy: %d MiB (median), %d to %d", memory[len(memory)/2]>>20, memory[0]>>20, memory[len(memory)-1]>>20)
			held := 0
			for _, p := range proxies {
				held += p.sum(t, "watershed_scope_objects", "pods")
			}
			// Each change goes to the proxy of its node, or to all of them.
			wantHeld, wantEvents := pods, changes-begin
			if strings.Contains(way.name, "whole types") {
				wantHeld, wantEvents = nodes*pods, nodes*(changes-begin)
			}
			if held != wantHeld {
				t.Errorf("%d pods are held by all proxies, not %d", held, wantHeld)
			}
			eventually(t, "the proxies were told", func() error {
				if n := received() - events; n != wantEvents {
					return fmt.Errorf("upstream sent %d events of pods, not %d", n, wantEvents)
				}
				return nil
			})
		})
	}
}
