package clusters

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/conformance"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
	"watershed.test/real/internal/workload"
)

// The servers of a cluster with two releases.
const (
	olderServer = iota
	newerServer
)

// olderRelease makes the first API server of a cluster one of an older release. REAL_OLD_BIN names
// the directory of its programs (see build-release.sh). Otherwise the present release emulates the
// older one: it prints some unchanged objects as that did, compresses no watches, and tells so in
// /version. Streaming is switched off on it, as in releases before 1.34.
func olderRelease(t *testing.T) []string {
	t.Helper()
	args := []string{
		"--server-arg", fmt.Sprint(olderServer, "=--feature-gates=WatchList=false"),
		// From 1.37 on, this version has a warning.
		"--apiserver-arg", "--runtime-config=certificates.k8s.io/v1beta1=true",
	}
	if old := os.Getenv("REAL_OLD_BIN"); old != "" {
		return append(args, "--server-bin", fmt.Sprint(olderServer, "=", require.Value(filepath.Abs(old))(t)))
	}
	return append(args, "--server-arg", fmt.Sprint(olderServer, "=--emulated-version=1.36"))
}

// rollout is a cluster with two releases on one etcd, and a proxy in front of both.
type rollout struct {
	*testing.T
	cluster *testbed.Cluster
	proxy   *testbed.Proxy
	ns      string
}

// server returns an API server.
func (r *rollout) server(n int) api.Target {
	return api.Target{Name: fmt.Sprint("server ", n), URL: r.cluster.Servers[n], CA: r.cluster.CA, Tokens: r.cluster.Users}
}

// path returns a collection of the test's namespace.
func (r *rollout) path(collection string) string {
	group, plural, _ := strings.Cut(collection, " ")
	return fmt.Sprintf("/%s/namespaces/%s/%s", group, r.ns, plural)
}

// ticking are the types that change between two steps. Their objects named tick do.
var ticking = []string{"api/v1 configmaps", "apis/apps/v1 statefulsets"}

// furnish creates objects that the two releases print differently, and others.
func (r *rollout) furnish() {
	// Defaults are stored with what is written.
	to := r.server(olderServer)
	r.ns = testbed.Slug(r.T)
	create := func(path, body string) { to.Must(r.T, api.Request{Method: "POST", Path: path, Body: body}) }
	create("/api/v1/namespaces", fmt.Sprintf(`{"metadata":{"name":"%s"}}`, r.ns))
	for _, name := range []string{"web", "tick"} {
		create(r.path("api/v1 configmaps"), fmt.Sprintf(`{"metadata":{"name":"%s"}}`, name))
		// From 1.37 on, rollingUpdate.maxUnavailable has a default.
		create(r.path("apis/apps/v1 statefulsets"), fmt.Sprintf(`{"metadata":{"name":"%s"},"spec":{"serviceName":"s","selector":{"matchLabels":{"a":"b"}},
			"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`, name))
	}
	create(r.path("api/v1 pods"), api.JSON(objects.Pod("web", "node-0")))
	// From 1.37 on, preventPodSchedulingIfMissing has a default.
	create("/apis/storage.k8s.io/v1/csidrivers", `{"metadata":{"name":"disks.example.test"}}`)
}

// requests are answered as the followed server answers them.
func (r *rollout) requests() (all []api.Request) {
	for _, path := range []string{
		r.path("api/v1 configmaps"), r.path("apis/apps/v1 statefulsets"), r.path("api/v1 pods"), r.path("api/v1 endpoints"),
		"/apis/storage.k8s.io/v1/csidrivers", "/apis/certificates.k8s.io/v1beta1/certificatesigningrequests", "/apis/certificates.k8s.io/v1beta1/clustertrustbundles",
	} {
		for _, accept := range []string{api.JSONType, api.ProtobufType, api.MetadataListJSON} {
			all = append(all, api.Request{Path: path + "?resourceVersion=0", Accept: accept})
		}
	}
	for _, path := range []string{r.path("apis/apps/v1 statefulsets") + "/web", r.path("api/v1 pods") + "/web"} {
		all = append(all, api.Request{Path: path + "?resourceVersion=0"})
	}
	for _, collection := range ticking {
		streamed := r.path(collection) + "?watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=2"
		all = append(all, api.Request{Path: streamed}, api.Request{Path: streamed, Accept: api.ProtobufType})
		all = append(all, api.Request{Path: r.path(collection) + "?watch=1&resourceVersion=0&allowWatchBookmarks=true&timeoutSeconds=2",
			Header: map[string]string{"Accept-Encoding": "gzip"}})
	}
	return all
}

// tick changes an object of each ticking type at a server, and waits until memory shows it in
// every representation. A server that has just started knows no earlier history.
func (r *rollout) tick(at int, step string) {
	body := fmt.Sprintf(`{"metadata":{"annotations":{"step":"%s"}}}`, step)
	for _, collection := range ticking {
		r.server(at).Must(r.T, api.Request{Method: "PATCH", Path: r.path(collection) + "/tick", ContentType: api.MergePatch, Body: body})
		for _, accept := range []string{api.JSONType, api.ProtobufType} {
			poll.Until(r.T, "memory shows "+step, func() error {
				got, err := r.proxy.Try(api.Request{Path: r.path(collection) + "?resourceVersion=0", Accept: accept})
				if err == nil && !(strings.Contains(got.Body, step) && compare.FromMemory(got)) {
					err = poll.ErrNotYet
				}
				return err
			})
		}
	}
}

// agrees waits until the proxy answers all requests as a server does, and from memory, except
// where the server does not stream.
func (r *rollout) agrees(with int) {
	r.Helper()
	sides := compare.Sides{Right: r.server(with), Asked: r.proxy.Target}
	for _, request := range r.requests() {
		poll.Until(r.T, fmt.Sprint(request, " as at server ", with), func() error {
			v := sides.CompareAtLeisure(request)
			if v.Difference != "" {
				return fmt.Errorf("%s", v.Difference)
			}
			if v.Got.Status == http.StatusOK && !compare.FromMemory(v.Got) {
				return fmt.Errorf("it comes from %s", v.Got.Header.Get("X-Watershed-Source"))
			}
			return nil
		})
	}
}

// gitVersion returns the release of a server.
func (r *rollout) gitVersion(n int) string {
	return r.server(n).Must(r.T, api.Request{Path: "/version"}).Body
}

// beginRollout starts a cluster with two releases, a proxy in front of it, and stops the newer
// server.
func beginRollout(t *testing.T) *rollout {
	t.Helper()
	c := require.Value(testbed.Start(append(olderRelease(t), "--apiservers", "2")...))(t)
	t.Cleanup(c.Stop)
	r := &rollout{T: t, cluster: c}
	if older, newer := r.gitVersion(olderServer), r.gitVersion(newerServer); older == newer {
		t.Fatalf("both are %s", newer)
	}
	r.furnish()
	r.proxy = testbed.StartProxy(t, c.ProxyKubeconfig, c.Servers[olderServer], c.Servers[newerServer])
	require.NoError(t, c.Command(fmt.Sprint("kill ", newerServer)))
	r.agrees(olderServer)
	return r
}

// TestAnswersFollowTheReleaseOfTheServer runs two releases on one etcd and kills their servers in
// turn: upgrades and downgrades. Unchanged objects, warnings, streaming and compression are those
// of the server that is left. Watches on objects that look the same go on.
func TestAnswersFollowTheReleaseOfTheServer(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy: without one, there is nothing to learn")
	}
	t.Parallel()
	r := beginRollout(t)
	c := r.cluster
	sets := r.server(olderServer).Must(t, api.Request{Path: r.path("apis/apps/v1 statefulsets")}).Body
	version := func() string {
		list := r.proxy.Must(t, api.Request{Path: r.path("api/v1 configmaps") + "?resourceVersion=0"})
		meta, _, _ := api.ParseList(api.JSONType, list.Body)
		return meta.ResourceVersion
	}
	lasting := r.proxy.Watch(t, api.Request{Path: r.path("api/v1 configmaps") + "?watch=1&resourceVersion=" + version()})

	began := time.Now()
	switches := []int{newerServer, olderServer, newerServer}
	if os.Getenv("REAL_OLD_BIN") != "" {
		switches = append(switches, olderServer, newerServer, olderServer, newerServer)
	}
	for step, n := range switches {
		other := newerServer - n
		require.NoError(t, c.Command(fmt.Sprint("start ", n)))
		// The server takes up a type when it is first asked for it.
		for _, collection := range ticking {
			r.server(n).Must(t, api.Request{Path: r.path(collection)})
		}
		r.tick(n, fmt.Sprint("step-", step))
		lists := r.lists()
		concerned := r.proxy.Watch(t, api.Request{Path: r.path("apis/apps/v1 statefulsets") + "?watch=1&timeoutSeconds=600"})
		for range 2 {
			concerned.Next(t)
		}
		require.NoError(t, c.Command(fmt.Sprint("kill ", other)))
		switched := time.Now()
		r.agrees(n)
		t.Logf("server %d is followed, all answers agree after %v", n, time.Since(switched).Round(10*time.Millisecond))
		if now := r.server(n).Must(t, api.Request{Path: r.path("apis/apps/v1 statefulsets")}).Body; step == 0 && strings.Count(now, "maxUnavailable") == strings.Count(sets, "maxUnavailable") {
			t.Errorf("the releases print all objects alike, so this shows nothing")
		}
		if e := concerned.Next(t); e.Type != "ERROR" || e.Object.Code != http.StatusGone {
			t.Errorf("a client that has objects which look otherwise now was told %s", e.Raw)
		}
		if after := r.lists(); !maps.Equal(lists, after) {
			t.Errorf("upstream was listed again: %v, and before %v", after, lists)
		}
		if e := lasting.Next(t); e.String() != "MODIFIED tick" {
			t.Fatalf("the watch of objects that look the same shows %s", e.Raw)
		}
	}
	changes := map[string]int{}
	r.proxy.AddByLabel(t, "watershed_scope_release_changes_total", "result", changes)
	t.Logf("%d switches in %v: %v", len(switches), time.Since(began).Round(time.Second), changes)
	if changes["reprinted"] < len(switches) || changes["same"] == 0 || changes["relisted"] > 0 {
		t.Errorf("the scopes learned %v", changes)
	}
}

// lists returns how often the proxy listed the ticking types.
func (r *rollout) lists() map[string]int {
	all := map[string]int{}
	for _, collection := range ticking {
		_, plural, _ := strings.Cut(collection, " ")
		all[plural] = r.proxy.Sum(r.T, "watershed_upstream_lists_total", plural)
	}
	return all
}

// matrixParts is the number of parts of the conformance matrix with a switch of releases between
// them.
const matrixParts = 6

// TestAnswersConformDuringAnUpgrade repeats the comparison of generated requests, and of every cell
// of the conformance matrix, while the servers of two releases are killed in turn. Upstream is the
// server that is left. It takes minutes, so it runs on demand.
func TestAnswersConformDuringAnUpgrade(t *testing.T) {
	if os.Getenv("REAL_OLD_BIN") == "" || testbed.Direct {
		t.Skip("REAL_OLD_BIN is not set")
	}
	r := beginRollout(t)
	conformance.Replace(t)
	testbed.Shared, testbed.Upstream, testbed.Proxied = r.cluster, r.server(olderServer), r.proxy.Target
	following, switches := olderServer, 0
	follow := func(renew func()) {
		next := newerServer - following
		// Otherwise the server that starts reads history that the proxy never had.
		require.NoError(t, r.cluster.Command("compact"))
		require.NoError(t, r.cluster.Command(fmt.Sprint("start ", next)))
		renew()
		require.NoError(t, r.cluster.Command(fmt.Sprint("kill ", following)))
		following = next
		switches++
		testbed.Upstream = r.server(following)
		r.agrees(following)
		renew()
	}
	conformance.GeneratedBetween(t, follow)
	// Objects of a part are younger than the server's start, and so known to its cache.
	conformance.MatrixBetween(t, matrixParts, func() { follow(func() {}) })
	changes := map[string]int{}
	r.proxy.AddByLabel(t, "watershed_scope_release_changes_total", "result", changes)
	t.Logf("%d switches; release changes of scopes: %v", switches, changes)
	if changes["reprinted"] < switches {
		t.Errorf("the scopes learned %v", changes)
	}
}

// TestWatchesLoseNothingDuringAnUpgrade repeats the comparison of a hundred watches while the
// servers of two releases are killed in turn. It takes minutes, so it runs on demand.
func TestWatchesLoseNothingDuringAnUpgrade(t *testing.T) {
	if os.Getenv("REAL_OLD_BIN") == "" || testbed.Direct {
		t.Skip("REAL_OLD_BIN is not set")
	}
	rounds := fromEnvironment(t, "REAL_ROUNDS", 6)
	if rounds < 1 {
		t.Fatalf("REAL_ROUNDS is %d", rounds)
	}
	c := require.Value(testbed.Start(append(olderRelease(t), "--apiservers", "3")...))(t)
	t.Cleanup(c.Stop)
	s := &workload.Stage{Cluster: c, Widget: objects.NewWidget(t), Stable: api.Target{Name: "keeper", URL: c.Servers[workload.StableServer], CA: c.CA, Tokens: c.Users}}
	s.Stable.Must(t, api.Request{Method: "POST", Path: objects.CRDPath, Body: s.Widget.Definition(false)})
	for i := range c.Servers {
		s.AwaitCustomType(t, i)
	}
	proxy := testbed.StartProxy(t, c.ProxyKubeconfig, c.Servers[olderServer], c.Servers[newerServer])
	p := s.Begin(t, proxy.Target, proxy)
	w := p.Write(60)
	p.OpenWatches()
	lists := workload.ProxyLists(t, proxy)
	for range rounds {
		for _, server := range []int{olderServer, newerServer} {
			require.NoError(t, c.Command(fmt.Sprint("kill ", server)))
			time.Sleep(time.Second)
			require.NoError(t, c.Command(fmt.Sprint("start ", server)))
			s.AwaitCustomType(t, server)
			p.WaitUntilSeen(require.Value(s.Stable.Revision())(t))
		}
	}
	p.Finish(w)
	changes := map[string]int{}
	proxy.AddByLabel(t, "watershed_scope_release_changes_total", "result", changes)
	t.Logf("%d switches; release changes of scopes: %v", 2*rounds, changes)
	if after := workload.ProxyLists(t, proxy); !maps.Equal(lists, after) {
		t.Errorf("upstream was listed again: %v, and before %v", after, lists)
	}
	for _, w := range p.Watchers {
		if all, _ := w.Expired(); all > 0 {
			t.Errorf("%v got a 410 %d times", w, all)
		}
	}
}
