package real

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// selecting returns the query of a read with selectors.
func selecting(labels, fields string) string {
	query := url.Values{}
	for name, value := range map[string]string{"labelSelector": labels, "fieldSelector": fields} {
		if value != "" {
			query.Set(name, value)
		}
	}
	return query.Encode()
}

// TestSelectorScopesAnswerOnlyWhatTheyHold runs a proxy with selector scopes. It answers only
// what the scopes certainly contain. Objects that enter and leave a scope look to its watchers
// as they do at upstream, whether they watch all of the scope or less.
func TestSelectorScopesAnswerOnlyWhatTheyHold(t *testing.T) {
	p := testbed.ProxyThrough(t, `
scopes:
- resource: configmaps
  labelSelector: tier in (gold,silver)
- resource: pods
  fieldSelector: spec.nodeName=node-a
- resource: services
  namespaces: [default]
`)
	ns := objects.Namespace(t)
	ctx := context.Background()
	client := api.Clientset(t, testbed.Upstream)
	configMaps := client.CoreV1().ConfigMaps(ns)
	tiers := []string{"gold", "silver", "bronze", ""}
	put := func(name, tier, data string) {
		t.Helper()
		cm := objects.ConfigMap(name, "data", data)
		cm.Labels = map[string]string{"of": ns, "tier": tier}
		if tier == "" {
			delete(cm.Labels, "tier")
		}
		require.Value(configMaps.Create(ctx, cm, metav1.CreateOptions{}))(t)
	}
	for i, tier := range tiers {
		put(fmt.Sprintf("first-%d", i), tier, "x")
	}
	for name, node := range map[string]string{"on-node-a": "node-a", "on-node-b": "node-b", "pending": ""} {
		require.Value(client.CoreV1().Pods(ns).Create(ctx, objects.Pod(name, node), metav1.CreateOptions{}))(t)
	}

	const notCovered = "forward; reason=not-covered"
	all, mine := "/api/v1/configmaps?", "/api/v1/namespaces/"+ns+"/configmaps?"
	pods := "/api/v1/namespaces/" + ns + "/pods"
	for _, c := range []struct{ path, want string }{
		{all + selecting("tier in (gold,silver)", ""), "snapshot"},
		{all + selecting("of="+ns+",tier=gold", ""), "snapshot"},
		{mine + selecting("tier=silver", ""), "snapshot"},
		{mine + selecting("tier in (silver,bronze)", ""), notCovered},
		{mine + selecting("tier", ""), notCovered},
		{mine, notCovered},
		{mine + selecting("", "metadata.name=first-0"), notCovered},
		{pods + "?" + selecting("", "spec.nodeName=node-a"), "snapshot"},
		{pods + "?" + selecting("app", "spec.nodeName=node-a,status.phase!=Failed"), "snapshot"},
		{pods + "?" + selecting("", "spec.nodeName=node-b"), notCovered},
		{pods + "?", notCovered},
		{pods + "/on-node-a?", "snapshot"},
		{pods + "/on-node-b?", notCovered},
		{pods + "/absent?", notCovered},
		{"/api/v1/namespaces/default/services?", "snapshot"},
		{"/api/v1/namespaces/default/services/absent?", "snapshot"},
		{"/api/v1/services?", notCovered},
		{"/api/v1/services?" + selecting("", "metadata.namespace=default"), "snapshot"},
		{"/api/v1/namespaces/" + ns + "/services?", notCovered},
	} {
		for _, version := range []string{"&resourceVersion=0", ""} {
			r := api.Request{Path: c.path + version}
			want := c.want
			get := strings.Contains(c.path, "/absent?") || strings.Contains(c.path, "/on-node-")
			if version == "" && get {
				want = "" // A get of the latest state is upstream's.
			} else if version == "" && want == "snapshot" {
				want = "linearizable"
			}
			compare.Same(t, r)
			source := testbed.Proxied.Send(t, r).Header.Get("X-Watershed-Source")
			// Upstream may answer a small consistent read sooner.
			if want == "linearizable" && strings.HasPrefix(source, "forward; reason=unproven") || want == "" {
				continue
			}
			if source != want {
				t.Errorf("%v is answered from %q, not %q", r, source, want)
			}
		}
	}

	// Watches of the whole scope, and of less, begin with the state or after it.
	type pair struct {
		of            string
		direct, proxy *api.Stream
	}
	var pairs []pair
	version := api.VersionOf(t, testbed.Upstream.Must(t, api.Request{Path: mine + "limit=1"}).Body)
	for _, of := range []string{
		all + selecting("of="+ns+",tier in (gold,silver)", ""),
		mine + selecting("tier in (gold,silver)", ""),
		mine + selecting("tier=gold", ""),
		mine + selecting("tier=silver,!odd", ""),
	} {
		for _, begin := range []string{"&resourceVersion=0", "&resourceVersion=" + version,
			"&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"} {
			r := api.Request{Path: of + "&watch=1" + begin}
			pairs = append(pairs, pair{r.Path, testbed.Upstream.Watch(t, r), watchFromMemory(t, r)})
		}
	}

	// Objects come, go and change sides.
	chance := rand.New(rand.NewPCG(1, 2))
	there := map[string]bool{}
	for i := range 200 {
		name := fmt.Sprintf("churn-%d", chance.IntN(8))
		tier := tiers[chance.IntN(len(tiers))]
		switch {
		case !there[name]:
			put(name, tier, fmt.Sprint(i))
			there[name] = true
		case chance.IntN(5) == 0:
			require.NoError(t, configMaps.Delete(ctx, name, metav1.DeleteOptions{}))
			there[name] = false
		default:
			label := fmt.Sprintf("%q", tier)
			if tier == "" {
				label = "null"
			}
			patch := fmt.Sprintf(`{"metadata":{"labels":{"tier":%s,"odd":%s}},"data":{"data":"%d"}}`,
				label, []string{"null", `"yes"`}[chance.IntN(2)], i)
			require.Value(configMaps.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(t)
		}
	}
	for _, tier := range []string{"gold", "silver"} {
		put("last-"+tier, tier, "x")
	}
	count := 0
	for _, pair := range pairs {
		last := "last-silver"
		if strings.Contains(pair.of, "tier%3Dgold") {
			last = "last-gold"
		}
		for {
			want, got := pair.direct.Next(t), pair.proxy.Next(t)
			count++
			if want.Raw != got.Raw {
				t.Fatalf("%s\nupstream: %s\nproxied:  %s", pair.of, want.Raw, got.Raw)
			}
			if want.Object.Metadata.Name == last {
				break
			}
		}
	}
	t.Logf("%d events are equal", count)
	ready, derived := p.Sum(t, "watershed_scope_ready", "configmaps"), p.Sum(t, "watershed_scopes_derived", "configmaps")
	if ready-derived != 1 {
		t.Errorf("%d scopes of configmaps are ready, %d of them derived: not one at upstream", ready, derived)
	}
}

// watchFromMemory opens a watch through the proxy until it comes from memory. On a busy machine, the
// proof that memory is new enough may be late.
func watchFromMemory(t *testing.T, r api.Request) (watch *api.Stream) {
	t.Helper()
	poll.Until(t, fmt.Sprint(r, " comes from memory"), func() error {
		watch = testbed.Proxied.Watch(t, r)
		switch source := watch.Header.Get("X-Watershed-Source"); {
		case source == "forward; reason=unproven":
			return errors.New(source)
		case strings.HasPrefix(source, "forward"):
			t.Fatalf("%v is answered from %q", r, source)
		}
		return nil
	})
	return watch
}

// TestNodePresetCachesOnlyItsNode starts a proxy with the name of a node. It caches what runs
// there, the node and its lease, and asks upstream for no more of these types.
func TestNodePresetCachesOnlyItsNode(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy, whose memory it searches")
	}
	client := api.Clientset(t, testbed.Upstream)
	ns, ctx := objects.Namespace(t), context.Background()
	node := testbed.Slug(t) + "-node"
	for _, name := range []string{node, "other-" + node} {
		made := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		require.Value(client.CoreV1().Nodes().Create(ctx, made, metav1.CreateOptions{}))(t)
		t.Cleanup(func() { require.NoError(t, client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})) })
		require.Value(client.CoreV1().Pods(ns).Create(ctx, objects.Pod("on-"+name, name), metav1.CreateOptions{}))(t)
	}
	p := testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig, "--node-name", node)
	other := testbed.Proxied
	t.Cleanup(func() { testbed.Proxied = other })
	testbed.Proxied = p.Target
	for path, want := range map[string]string{
		"/api/v1/pods?fieldSelector=spec.nodeName%3D" + node + "&resourceVersion=0":                     "snapshot",
		"/api/v1/namespaces/" + ns + "/pods/on-" + node + "?resourceVersion=0":                          "snapshot",
		"/api/v1/namespaces/" + ns + "/pods/on-other-" + node + "?resourceVersion=0":                    "forward; reason=not-covered",
		"/api/v1/pods?resourceVersion=0":                                                                "forward; reason=not-covered",
		"/api/v1/nodes/" + node + "?resourceVersion=0":                                                  "snapshot",
		"/api/v1/nodes?fieldSelector=metadata.name%3D" + node + "&resourceVersion=0":                    "snapshot",
		"/api/v1/nodes?resourceVersion=0":                                                               "forward; reason=not-covered",
		"/api/v1/configmaps?resourceVersion=0":                                                          "forward; reason=policy",
		"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/" + node + "?resourceVersion=0": "snapshot",
	} {
		r := api.Request{Path: path}
		compare.Same(t, r)
		if source := testbed.Proxied.Send(t, r).Header.Get("X-Watershed-Source"); source != want {
			t.Errorf("%v is answered from %q, not %q", r, source, want)
		}
	}
	// JSON is derived from a scope in protobuf, which has the same object.
	for _, resource := range []string{"pods", "nodes"} {
		if objects, scopes := p.Sum(t, "watershed_scope_objects", resource), p.Sum(t, "watershed_scopes", resource); objects != scopes {
			t.Errorf("%d %s are cached in %d scopes, not the node's one in each", objects, resource, scopes)
		}
	}

	// A DaemonSet tells its pods the node in this way.
	t.Setenv("NODE_NAME", node)
	told := testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig)
	for of, want := range map[string]string{node: "snapshot", "other-" + node: "forward; reason=not-covered"} {
		r := api.Request{Path: "/api/v1/nodes?fieldSelector=metadata.name%3D" + of + "&resourceVersion=0"}
		if source := told.Send(t, r).Header.Get("X-Watershed-Source"); source != want {
			t.Errorf("of %s, by the environment: %q, not %q", of, source, want)
		}
	}
}
