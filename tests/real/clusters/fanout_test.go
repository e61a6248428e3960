package clusters

import (
	"context"
	"fmt"
	"net"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientfeatures "k8s.io/client-go/features"
	clientfeaturestesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
	"watershed.test/real/internal/usage"
)

// TestManyInformersCostUpstreamOneWatch shows the project's main purpose. It has a cluster of
// its own, so that nobody else moves the counters.
func TestManyInformersCostUpstreamOneWatch(t *testing.T) {
	clientfeaturestesting.SetFeatureDuringTest(t, clientfeatures.WatchListClient, false)
	c := require.Value(testbed.StartWithProxy())(t)
	t.Cleanup(c.Stop)
	const ns = "default"
	ctx := context.Background()
	client := api.Clientset(t, c.Upstream())
	for i := range 5 {
		require.Value(client.CoreV1().Pods(ns).Create(ctx, objects.Pod(fmt.Sprintf("pod-%d", i), ""), metav1.CreateOptions{}))(t)
	}
	before := usage.Measure(t, c, "pods")

	stop := make(chan struct{})
	defer close(stop)
	var all []cache.SharedIndexInformer
	open := func(n int) {
		t.Helper()
		var config = c.Proxied().Config()
		for i := range n {
			// Ten informers share a connection. Without a dialer of its own, client-go would
			// share one between all of them.
			if i%10 == 0 {
				config = c.Proxied().Config()
				config.Dial = (&net.Dialer{Timeout: poll.Patience}).DialContext
				config.ContentType = api.ProtobufType
			}
			informer := informers.NewSharedInformerFactory(require.Value(kubernetes.NewForConfig(config))(t), 0).Core().V1().Pods().Informer()
			go informer.Run(stop)
			all = append(all, informer)
		}
		poll.Until(t, fmt.Sprintf("%d informers are in sync", len(all)), func() error {
			if slices.ContainsFunc(all, func(i cache.SharedIndexInformer) bool { return !i.HasSynced() }) {
				return poll.ErrNotYet
			}
			return nil
		})
	}
	// told waits until all informers know a new pod. By then all of them watch.
	told := func(name string) {
		t.Helper()
		require.Value(client.CoreV1().Pods(ns).Create(ctx, objects.Pod(name, ""), metav1.CreateOptions{}))(t)
		poll.Until(t, "all informers know "+name, func() error {
			for i, informer := range all {
				if _, known, _ := informer.GetStore().GetByKey(ns + "/" + name); !known {
					return fmt.Errorf("informer %d does not", i)
				}
			}
			return nil
		})
	}

	open(10)
	told("ten")
	ten := usage.Measure(t, c, "pods")
	open(190)
	told("two-hundred")
	twoHundred := usage.Measure(t, c, "pods")

	if testbed.Direct {
		t.Logf("10 informers: %+v, 200: %+v", ten.Minus(before), twoHundred.Minus(before))
		t.Skip("without a proxy there is nothing to count")
	}
	// The proxy may begin with a list, or with a watch that begins with the state. It may not
	// list again.
	if got := ten.Minus(before); got.Watching != 1 || got.Watched != 0 || got.Lists > 1 {
		t.Errorf("10 informers cost upstream %+v", got)
	}
	if got := twoHundred.Minus(ten); got != (usage.Requests{}) {
		t.Errorf("190 informers more cost upstream %+v", got)
	}
}

// TestClientsOfEveryEncodingCostUpstreamOneWatch reads 20 built-in types in JSON, in protobuf, and
// their metadata in both. It has a cluster of its own, so that nobody else moves the counters.
func TestClientsOfEveryEncodingCostUpstreamOneWatch(t *testing.T) {
	c := require.Value(testbed.StartWithProxy())(t)
	t.Cleanup(c.Stop)
	if testbed.Direct {
		t.Skip("without a proxy there is nothing to count")
	}
	const ns = "default"
	for i := range 30 {
		c.Upstream().Must(t, api.Request{Method: "POST", Path: "/api/v1/namespaces/" + ns + "/pods", Body: api.JSON(objects.Pod(fmt.Sprintf("pod-%d", i), ""))})
	}
	roots := map[string][]string{
		"/api/v1": {"configmaps", "endpoints", "limitranges", "nodes", "persistentvolumeclaims",
			"persistentvolumes", "pods", "podtemplates", "resourcequotas", "services"},
		"/apis/apps/v1":                {"controllerrevisions", "replicasets", "statefulsets"},
		"/apis/batch/v1":               {"cronjobs", "jobs"},
		"/apis/coordination.k8s.io/v1": {"leases"},
		"/apis/discovery.k8s.io/v1":    {"endpointslices"},
		"/apis/networking.k8s.io/v1":   {"ingresses", "networkpolicies"},
		"/apis/policy/v1":              {"poddisruptionbudgets"},
	}
	types := 0
	for root, names := range roots {
		for _, name := range names {
			types++
			before := usage.Measure(t, c, name)
			for _, accept := range []string{"", api.ProtobufType, api.MetadataListJSON, api.MetadataListProtobuf} {
				r := api.Request{Path: root + "/" + name + "?resourceVersion=0", Accept: accept}
				poll.Until(t, r.String()+" is answered from memory", func() error {
					if source := c.Proxied().Must(t, r).Header.Get("X-Watershed-Source"); source != "snapshot" {
						return fmt.Errorf("it is answered from %q", source)
					}
					return nil
				})
			}
			// Two small lists, of one object and of some: how upstream prints the type. A watch of
			// an object that does not exist shows upstream's bookmarks in JSON.
			poll.Until(t, name+" has one watch", func() error {
				got := usage.Measure(t, c, name).Minus(before)
				if got.Watching != 1 || got.Lists > 2 || got.Watched > 1 {
					return fmt.Errorf("four encodings of %s cost upstream %+v", name, got)
				}
				return nil
			})
		}
	}
	size := func(accept string) int {
		return len(c.Proxied().Must(t, api.Request{Path: "/api/v1/pods?resourceVersion=0", Accept: accept}).Body)
	}
	t.Logf("30 pods: %d bytes in JSON, %d in protobuf", size(""), size(api.ProtobufType))
	if types != 20 {
		t.Errorf("%d types", types)
	}
}
