package real

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/balancer"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/rights"
	"watershed.test/real/internal/testbed"
)

// tree is a proxy whose upstream is a tier of proxies behind a balancer.
type tree struct {
	leaf  *testbed.Proxy
	zone  *testbed.Proxy
	front *balancer.Balancer
	// pair is the directory of the certificate.
	pair string
	// ns and path are of the config maps that are read.
	ns, path string
	// names numbers the config maps.
	names int
}

// startTree starts two tiers. The upper one has one replica.
func startTree(t *testing.T) *tree {
	t.Helper()
	ns := objects.Namespace(t)
	tree := &tree{ns: ns, path: "/api/v1/namespaces/" + ns + "/configmaps", front: balancer.Start(t)}
	tree.zone = testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig)
	tree.pair = filepath.Dir(tree.zone.CA)
	tree.front.Set(tree.zone)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, testbed.WriteKubeconfig(kubeconfig, tree.front.URL(), tree.zone.CA, testbed.Shared.Tokens["watershed"]))
	tree.leaf = testbed.RunProxy(t, kubeconfig, tree.certificate()...)
	tree.leaf.CA = tree.zone.CA
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the leaf: %s\nthe zone: %s", tree.leaf.State("configmaps"), tree.zone.State("configmaps"))
		}
	})
	for range 3 {
		tree.write(t)
	}
	return tree
}

// replica starts another replica of the upper tier.
func (tree *tree) replica(t *testing.T) *testbed.Proxy {
	t.Helper()
	return testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig, tree.certificate()...)
}

// certificate returns the flags of the certificate that all proxies of the tree show. So the lower
// one can also be its own upstream.
func (tree *tree) certificate() []string {
	return []string{"--tls-cert", filepath.Join(tree.pair, "tls.crt"), "--tls-key", filepath.Join(tree.pair, "tls.key")}
}

// write creates the next config map at upstream, and returns its name and version.
func (tree *tree) write(t *testing.T) (name, version string) {
	t.Helper()
	name = fmt.Sprintf("c%03d", tree.names)
	tree.names++
	client := api.Clientset(t, testbed.Upstream).CoreV1().ConfigMaps(tree.ns)
	made := require.Value(client.Create(t.Context(), objects.ConfigMap(name, "key", "value"), metav1.CreateOptions{}))(t)
	return name, made.ResourceVersion
}

// fromMemory waits until the leaf answers from memory, no older than a version.
func (tree *tree) fromMemory(t *testing.T, version string) {
	t.Helper()
	poll.Until(t, "the leaf answers from memory", func() error {
		a := tree.leaf.Send(t, api.Request{Path: tree.path + "?resourceVersion=" + version})
		if source := a.Header.Get("X-Watershed-Source"); a.Status != http.StatusOK || !strings.HasPrefix(source, "snapshot") {
			return fmt.Errorf("%d from %s", a.Status, source)
		}
		return nil
	})
}

// TestTreesAnswerAsUpstream reads through two tiers of proxies: the same answers as upstream's,
// no consistent read older than a write, and no right that was taken away.
func TestTreesAnswerAsUpstream(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs proxies")
	}
	t.Parallel()
	tree := startTree(t)
	tree.fromMemory(t, "0")
	t.Run("answers", tree.answers)
	t.Run("consistent reads", tree.consistentReads)
	t.Run("revocation", tree.revocation)
}

// answers compares with upstream what does not depend on the moment.
func (tree *tree) answers(t *testing.T) {
	// Events bring this version. That of a list may be another test's write of another type.
	_, version := tree.write(t)
	tree.fromMemory(t, version)
	exact := tree.path + "?resourceVersionMatch=Exact&resourceVersion=" + version
	const metadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	fromMemory := 0
	for _, r := range []api.Request{
		{Path: exact},
		{Path: exact, Accept: api.ProtobufType},
		{Path: exact, Accept: metadata},
		{Path: exact, Header: map[string]string{"Accept-Encoding": "gzip"}},
		{Path: exact + "&limit=2"},
		{Path: exact + "&fieldSelector=metadata.name%3Dc001"},
		{Path: exact + "&labelSelector=nothing"},
		{Path: exact + "&watch=1"},
		{Path: tree.path + "/c001?resourceVersion=0"},
		{Path: tree.path + "/absent"},
		{Path: exact, User: "alice"},
		{Path: exact, User: "?"},
		{Path: "/apis", Accept: "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"},
		{Path: "/version"},
	} {
		equal := func() error {
			want, got := testbed.Upstream.Send(t, r), tree.leaf.Send(t, r)
			wantBody, gotBody := require.Value(want.Plain())(t), require.Value(got.Plain())(t)
			kind := "Content-Type"
			if got.Status != want.Status || gotBody != wantBody || got.Header.Get(kind) != want.Header.Get(kind) {
				return fmt.Errorf("%d %s %s\nupstream:\n%d %s %s", got.Status, got.Header.Get(kind), gotBody, want.Status, want.Header.Get(kind), wantBody)
			}
			if compare.FromMemory(got) {
				fromMemory++
			}
			return nil
		}
		if r.Path == "/apis" {
			// Other tests define types meanwhile.
			poll.Until(t, "discovery is that of upstream", equal)
		} else if err := equal(); err != nil {
			t.Errorf("%v: %v", r, err)
		}
	}
	if fromMemory < 6 {
		t.Errorf("only %d answers are from memory", fromMemory)
	}
}

// consistentReads lists right after each write: the namespace, and all namespaces. In a large
// cluster the first costs upstream less than a proof.
func (tree *tree) consistentReads(t *testing.T) {
	sources := map[string]int{}
	// A proof may be late on a busy machine. Then the read is forwarded.
	poll.Until(t, "consistent reads are answered from memory", func() error {
		for i := range 10 {
			path := tree.path
			if i%2 == 1 {
				path = "/api/v1/configmaps"
			}
			name, _ := tree.write(t)
			a := tree.leaf.Must(t, api.Request{Path: path})
			sources[a.Header.Get("X-Watershed-Source")]++
			if items := require.Value(a.Items())(t); items[tree.ns+"/"+name] == 0 {
				t.Fatalf("a list from %s lacks %s, which was written before: %v", a.Header.Get("X-Watershed-Source"), name, items)
			}
		}
		if sources["linearizable"] == 0 {
			return fmt.Errorf("answered from %v", sources)
		}
		return nil
	})
}

// revocation takes a right away.
func (tree *tree) revocation(t *testing.T) {
	roles := rights.New(t, "tree")
	roles.Role(tree.ns, "reader", rights.May("", []string{"configmaps"}, []string{"list", "watch"}))
	roles.Bind(tree.ns, "reader", rights.User("alice"))
	read := api.Request{Path: tree.path + "?resourceVersion=0", User: "alice"}
	answers := func(status int) func() error {
		return func() error {
			if a := tree.leaf.Send(t, read); a.Status != status {
				return fmt.Errorf("%d: %s", a.Status, a.Body)
			}
			return nil
		}
	}
	poll.Until(t, "alice's right counts", answers(http.StatusOK))
	watch := read
	watch.Path += "&watch=1"
	stream := tree.leaf.Watch(t, watch)
	stream.Next(t)
	roles.Unbind(tree.ns, "reader")
	poll.Until(t, "alice's right is gone", answers(http.StatusForbidden))
	if _, err := stream.Rest(t); err != nil {
		t.Errorf("alice's watch ended with %v", err)
	}
}

// TestTreesSurviveTheirTiers replaces the upper tier of two while a client watches at the lower
// one: in order, and by a kill. The client sees each event once, and its watch goes on. Then the lower
// one becomes its own upstream for a while, and refuses requests.
func TestTreesSurviveTheirTiers(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs proxies")
	}
	t.Parallel()
	tree := startTree(t)
	tree.fromMemory(t, "0")
	stream := tree.leaf.Watch(t, api.Request{Path: tree.path + "?watch=1&resourceVersion=0"})
	var seen []string
	follow := func(t *testing.T) {
		t.Helper()
		tree.write(t)
		for len(seen) < tree.names {
			e := stream.Next(t)
			if e.Type != "ADDED" {
				t.Fatalf("the watch yields %s", e.Raw)
			}
			seen = append(seen, e.Object.Metadata.Name)
		}
		if !slices.IsSorted(seen) || len(slices.Compact(slices.Clone(seen))) != len(seen) {
			t.Fatalf("events are not those of the writes: %v", seen)
		}
	}
	follow(t)
	// A replica outlives the step that starts it.
	replica := func() *testbed.Proxy { return tree.replica(t) }
	t.Run("drain", func(t *testing.T) {
		old := tree.zone
		tree.zone = replica()
		tree.front.Set(tree.zone)
		require.NoError(t, syscall.Kill(old.PID, syscall.SIGTERM))
		follow(t)
		old.End(t)
		follow(t)
	})
	t.Run("kill", func(t *testing.T) {
		old := tree.zone
		tree.zone = replica()
		tree.front.Set(tree.zone)
		require.NoError(t, syscall.Kill(old.PID, syscall.SIGKILL))
		follow(t)
	})
	t.Run("loop", func(t *testing.T) {
		old := tree.zone
		tree.front.Set(tree.leaf)
		require.NoError(t, syscall.Kill(old.PID, syscall.SIGKILL))
		poll.Until(t, "requests are refused", func() error {
			// Other requests are answered from memory meanwhile.
			a := tree.leaf.Send(t, api.Request{Path: "/api/v1/namespaces/" + tree.ns + "/podtemplates/none"})
			if a.Status != http.StatusLoopDetected {
				return fmt.Errorf("%d: %s", a.Status, a.Body)
			}
			return nil
		})
		// Connections that lead back are not used any more, although they are open.
		tree.zone = replica()
		tree.front.Set(tree.zone)
		follow(t)
	})
	if n := tree.leaf.Sum(t, "watershed_upstream_lists_total", "configmaps"); n > 2 {
		t.Errorf("the leaf listed %d times", n)
	}
}
