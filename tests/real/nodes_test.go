package real

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
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

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
	"watershed.test/real/internal/usage"
)

func fromEnvironment(t *testing.T, name string, otherwise int) int {
	t.Helper()
	if text := os.Getenv(name); text != "" {
		return require.Value(strconv.Atoi(text))(t)
	}
	return otherwise
}

// TestNodeProxiesSaveUpstreamTraffic runs agents on each node, with client-go's default
// informers on the node and its pods. It compares three set-ups: no proxy, a proxy on each node
// that caches what runs there, and one that caches whole types. It counts upstream's bytes and
// requests, and the proxies' memory.
//
// By default it is small. `make simulate-nodes` gives the figures in docs/benchmarks.md.
func TestNodeProxiesSaveUpstreamTraffic(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy")
	}
	nodes, pods := fromEnvironment(t, "NODES", 4), fromEnvironment(t, "NODE_PODS", 240)
	agents, seconds := fromEnvironment(t, "NODE_AGENTS", 3), fromEnvironment(t, "NODE_SECONDS", 3)
	perSecond := fromEnvironment(t, "NODE_CHANGES", 20)
	c := require.Value(testbed.Start())(t)
	t.Cleanup(c.Stop)
	at, ctx := c.Upstream(), t.Context()
	direct := &rest.Config{Host: at.URL, BearerToken: c.AdminToken, TLSClientConfig: rest.TLSClientConfig{CAFile: at.CA}, QPS: -1}
	writer := require.Value(kubernetes.NewForConfig(direct))(t)
	node := func(i int) string { return fmt.Sprint("node-", i%nodes) }
	for i := range nodes {
		require.Value(writer.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node(i)}}, metav1.CreateOptions{}))(t)
	}
	var made sync.WaitGroup
	for worker := range 8 {
		chance := rand.New(rand.NewPCG(9, uint64(worker)))
		made.Go(func() {
			for i := worker; i < pods; i += 8 {
				p := objects.Pod(fmt.Sprint("pod-", i), node(i))
				// Half of the text can be compressed.
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
		require.Value(writer.CoreV1().Pods("default").Patch(ctx, fmt.Sprint("pod-", changes%pods), types.MergePatchType, patch, metav1.PatchOptions{}))(t)
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
			counted := usage.StartByteCounter(t, at.URL)
			before := usage.CountAsked(t, at)
			var proxies []*testbed.Proxy
			config := func(i int) *rest.Config {
				config := *direct
				config.Host = counted.URL()
				config.ContentType, config.AcceptContentTypes = api.ProtobufType, api.ProtobufType
				if way.proxy {
					config.Host, config.TLSClientConfig.CAFile = proxies[i].URL, proxies[i].CA
				}
				// This keeps client-go from sharing connections between agents.
				config.Dial = (&net.Dialer{Timeout: poll.Patience}).DialContext
				return &config
			}
			if way.proxy {
				for i := range nodes {
					proxies = append(proxies, testbed.RunProxy(t, c.ProxyKubeconfig, append(way.flags(i), "--server", counted.URL())...))
				}
			}
			stop := make(chan struct{})
			defer close(stop)
			var all []cache.SharedIndexInformer
			for i := range nodes {
				for range agents {
					client := require.Value(kubernetes.NewForConfig(config(i)))(t)
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
				// A few nodes change at a time, as in a rollout.
				if i%5 == 4 {
					poll.Until(t, "the agents of a few nodes are in sync", func() error {
						if slices.ContainsFunc(all, func(i cache.SharedIndexInformer) bool { return !i.HasSynced() }) {
							return poll.ErrNotYet
						}
						return nil
					})
				}
			}
			poll.Until(t, "all agents are in sync", func() error {
				have := 0
				for _, informer := range all {
					if !informer.HasSynced() {
						return poll.ErrNotYet
					}
					have += len(informer.GetStore().ListKeys())
				}
				// Each agent has the node and its pods.
				if want := agents * (pods + nodes); have != want {
					return fmt.Errorf("they have %d objects, not %d", have, want)
				}
				return nil
			})
			started, startBytes := usage.CountAsked(t, at).Minus(before), counted.Sent.Load()
			received := func() (n int) {
				for _, p := range proxies {
					n += p.Sum(t, "watershed_upstream_events_total", "pods")
				}
				return n
			}
			events, base := received(), usage.CountAsked(t, at)
			tick := time.NewTicker(time.Second / time.Duration(perSecond))
			defer tick.Stop()
			begin := changes
			for range seconds * perSecond {
				<-tick.C
				change()
			}
			// Each agent sees the last change of its node.
			poll.Until(t, "all agents have seen the last change", func() error {
				told := map[string]bool{}
				for _, informer := range all {
					for _, object := range informer.GetStore().List() {
						if pod, ok := object.(*corev1.Pod); ok && pod.Annotations["n"] == fmt.Sprint(changes-1) {
							told[pod.Name] = true
						}
					}
				}
				if len(told) != 1 {
					return poll.ErrNotYet
				}
				return nil
			})
			steady, steadyBytes := usage.CountAsked(t, at).Minus(base), counted.Sent.Load()-startBytes
			var memory []int64
			for _, p := range proxies {
				memory = append(memory, usage.ResidentBytes(t, p.PID))
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
				held += p.Sum(t, "watershed_scope_objects", "pods")
			}
			// Each change reaches the proxy of its node, or all of them.
			wantHeld, wantEvents := pods, changes-begin
			if strings.Contains(way.name, "whole types") {
				wantHeld, wantEvents = nodes*pods, nodes*(changes-begin)
			}
			if held != wantHeld {
				t.Errorf("all proxies cache %d pods, not %d", held, wantHeld)
			}
			poll.Until(t, "the proxies have seen the last change", func() error {
				if n := received() - events; n != wantEvents {
					return fmt.Errorf("upstream sent %d events of pods, not %d", n, wantEvents)
				}
				return nil
			})
		})
	}
}
