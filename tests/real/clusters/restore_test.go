package clusters

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/parallel"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

const (
	consistentConfigMaps = "/api/v1/namespaces/default/configmaps"
	cachedConfigMaps     = consistentConfigMaps + "?resourceVersion=0"
)

// TestRestoredEtcdIsFollowed restarts etcd from an older copy of its data, and the API server
// with it. Whatever the proxy shows afterwards is what the API server shows itself: nothing of
// the lost history, and everything that was written after the restore. The proxy goes on
// running.
func TestRestoredEtcdIsFollowed(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy, whose memory it checks")
	}
	t.Parallel()
	r := newRestoration(t)
	r.backUp(t)
	r.losePart(t)
	t.Run("with the API server", func(t *testing.T) { r.withAPIServer(t) })
	// The proxy follows the new history as it did the old one.
	r.losePart(t)
	t.Run("without the API server", func(t *testing.T) { r.withoutAPIServer(t) })
}

// restoration is a cluster whose etcd is restored, with a proxy and its clients.
type restoration struct {
	cluster  *testbed.Cluster
	proxy    *testbed.Proxy
	direct   kubernetes.Interface
	informer cache.SharedIndexInformer
	round    int
}

func newRestoration(t *testing.T) *restoration {
	c := require.Value(testbed.Start())(t)
	t.Cleanup(c.Stop)
	r := &restoration{cluster: c, proxy: testbed.StartProxy(t, c.ProxyKubeconfig), direct: api.Clientset(t, c.Upstream())}
	factory := informers.NewSharedInformerFactory(api.Clientset(t, r.proxy.Target), 0)
	r.informer = factory.Core().V1().ConfigMaps().Informer()
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	go r.informer.Run(stop)
	r.create(t, "kept", 20)
	return r
}

// backUp copies etcd's data. etcd is stopped meanwhile, so that the copy is whole.
func (r *restoration) backUp(t *testing.T) {
	t.Helper()
	for _, command := range []string{"stop-etcd", "save-etcd", "start-etcd"} {
		require.NoError(t, r.cluster.Command(command))
	}
	poll.Until(t, "the API server writes again", func() error {
		_, err := r.direct.CoreV1().ConfigMaps("default").Create(context.Background(), objects.ConfigMap("after-backup"), metav1.CreateOptions{})
		return err
	})
}

// losePart writes what a restore will undo, and waits until the proxy and its clients know it.
func (r *restoration) losePart(t *testing.T) {
	t.Helper()
	r.round++
	ctx, rbac := context.Background(), r.direct.RbacV1()
	name := fmt.Sprint("reader-", r.round)
	require.Value(rbac.Roles("default").Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list", "watch"}},
	}}, metav1.CreateOptions{}))(t)
	require.Value(rbac.RoleBindings("default").Create(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "alice"}},
	}, metav1.CreateOptions{}))(t)
	lost := fmt.Sprint("lost-", r.round)
	r.create(t, lost, 200)
	poll.Until(t, "alice may read, and the proxy remembers it", func() error {
		if a := r.proxy.Send(t, api.Request{Path: cachedConfigMaps, User: "alice"}); a.Status != 200 {
			return fmt.Errorf("%d %s", a.Status, a.Body)
		}
		return nil
	})
	last := fmt.Sprint("default/", lost, "-199")
	poll.Until(t, "the informer knows what will be lost", func() error {
		if _, known, _ := r.informer.GetStore().GetByKey(last); !known {
			return fmt.Errorf("%s is missing", last)
		}
		return nil
	})
	r.followsUpstream(t)
}

func (r *restoration) create(t *testing.T, name string, count int) {
	t.Helper()
	parallel.ForEach(4, make([]string, count), func(i int, _ string) {
		body := fmt.Sprintf(`{"metadata":{"name":"%s-%d"}}`, name, i)
		r.cluster.Upstream().Must(t, api.Request{Method: "POST", Path: consistentConfigMaps, Body: body})
	})
}

// restore puts the backup in the place of etcd's data. etcd is stopped before and started after.
func (r *restoration) restore(t *testing.T) {
	t.Helper()
	for _, command := range []string{"stop-etcd", "restore-etcd", "start-etcd"} {
		require.NoError(t, r.cluster.Command(command))
	}
}

func (r *restoration) withAPIServer(t *testing.T) {
	from := consistentConfigMaps + "?watch=1&resourceVersion="
	watch := r.proxy.Watch(t, api.Request{Path: from + r.version(t, r.proxy)})
	// Nobody reads through this one.
	quiet := testbed.StartProxy(t, r.cluster.ProxyKubeconfig)
	silent := quiet.Watch(t, api.Request{Path: from + r.version(t, quiet)})
	require.NoError(t, r.cluster.Command("kill 0"))
	r.restore(t)
	require.NoError(t, r.cluster.Command("start 0"))
	began := time.Now()
	r.create(t, "new", 3)

	// Consistent reads are right from the first one on.
	for range 20 {
		r.sameObjects(t, consistentConfigMaps)
	}
	// The first one told the proxy, so nothing is remembered of the lost grants.
	if a := r.proxy.Send(t, api.Request{Path: cachedConfigMaps, User: "alice"}); a.Status != 403 {
		t.Errorf("alice gets %d by a grant that was lost", a.Status)
	}
	if e := watch.Next(t); e.Type != "ERROR" || e.Object.Code != 410 {
		t.Errorf("a watch of the lost history shows %v", e)
	}
	r.followsUpstream(t)
	t.Logf("reads from memory are right again %v after the API server is back", time.Since(began).Round(time.Millisecond))
	if e := silent.Next(t); e.Type != "ERROR" || e.Object.Code != 410 {
		t.Errorf("a watch of the lost history shows %v", e)
	}
	t.Logf("a proxy that nobody reads from notices within %v", time.Since(began).Round(time.Millisecond))
	r.informerConverges(t)
	if r.proxy.Sum(t, "watershed_upstream_rollbacks_total", "") == 0 {
		t.Error("no rollback was counted")
	}
}

// withoutAPIServer restores etcd beneath a running API server, which keeps the lost objects in
// its own cache. What it shows then is its own affair, and the proxy shows the same. All is well
// once the API server restarts.
func (r *restoration) withoutAPIServer(t *testing.T) {
	r.restore(t)
	poll.Until(t, "the API server reads etcd again", func() error {
		a, err := r.cluster.Upstream().Try(api.Request{Path: consistentConfigMaps})
		if err == nil && a.Status != 200 {
			err = fmt.Errorf("%d %s", a.Status, a.Body)
		}
		return err
	})
	items := require.Value(r.cluster.Upstream().Must(t, api.Request{Path: consistentConfigMaps}).Items())(t)
	lost := 0
	for name := range items {
		if strings.Contains(name, "lost-") {
			lost++
		}
	}
	t.Logf("a consistent list of the API server itself still has %d of 200 lost objects", lost)
	for range 20 {
		r.sameObjects(t, consistentConfigMaps)
	}
	require.NoError(t, r.cluster.Command("kill 0"))
	require.NoError(t, r.cluster.Command("start 0"))
	for range 20 {
		r.sameObjects(t, consistentConfigMaps)
	}
	r.followsUpstream(t)
	r.informerConverges(t)
}

// version returns the version of a proxy's memory.
func (r *restoration) version(t *testing.T, of *testbed.Proxy) string {
	t.Helper()
	a := of.Must(t, api.Request{Path: cachedConfigMaps})
	list, _, _ := api.ParseList(api.JSONType, a.Body)
	return list.ResourceVersion
}

// sameObjects compares a list through the proxy with the API server's own.
func (r *restoration) sameObjects(t *testing.T, path string) {
	t.Helper()
	ours := require.Value(r.proxy.Must(t, api.Request{Path: path}).Items())(t)
	theirs := require.Value(r.cluster.Upstream().Must(t, api.Request{Path: path}).Items())(t)
	if !maps.Equal(ours, theirs) {
		t.Fatalf("the proxy shows %d objects, the API server %d:\n%v", len(ours), len(theirs), difference(ours, theirs))
	}
}

// followsUpstream waits until the proxy's memory has upstream's objects.
func (r *restoration) followsUpstream(t *testing.T) {
	t.Helper()
	poll.Until(t, "memory has upstream's objects", func() error {
		a, err := r.proxy.Try(api.Request{Path: cachedConfigMaps})
		if err != nil {
			return err
		}
		ours, err := a.Items()
		if err != nil {
			return err
		}
		theirs := require.Value(r.cluster.Upstream().Must(t, api.Request{Path: consistentConfigMaps}).Items())(t)
		if source := a.Header.Get("X-Watershed-Source"); source != "snapshot" || !maps.Equal(ours, theirs) {
			return fmt.Errorf("from %s: %v", source, difference(ours, theirs))
		}
		return nil
	})
}

// informerConverges waits until an informer that ran all the time has upstream's objects.
func (r *restoration) informerConverges(t *testing.T) {
	t.Helper()
	poll.Until(t, "the informer has upstream's objects", func() error {
		ours := map[string]uint64{}
		for _, object := range r.informer.GetStore().List() {
			about := require.Value(meta.Accessor(object))(t)
			if about.GetNamespace() == "default" {
				ours["default/"+about.GetName()] = api.ParseVersion(about.GetResourceVersion())
			}
		}
		theirs := require.Value(r.cluster.Upstream().Must(t, api.Request{Path: consistentConfigMaps}).Items())(t)
		if !maps.Equal(ours, theirs) {
			return fmt.Errorf("%v", difference(ours, theirs))
		}
		return nil
	})
}

// difference returns some of the names that only one has, or that have two versions.
func difference(ours, theirs map[string]uint64) []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(ours)) {
		if version, known := theirs[name]; !known || version != ours[name] {
			all = append(all, fmt.Sprint("proxy ", name, " at ", ours[name]))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(theirs)) {
		if version, known := ours[name]; !known || version != theirs[name] {
			all = append(all, fmt.Sprint("upstream ", name, " at ", theirs[name]))
		}
	}
	return all[:min(len(all), 10)]
}
