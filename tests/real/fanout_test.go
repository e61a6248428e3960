package real

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientfeatures "k8s.io/client-go/features"
	clientfeaturestesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// load is what the API server counts of the requests for one resource.
type load struct {
	// watching is how many watches are open, lists and watched how many
	// lists and watches have ended.
	watching, lists, watched int
}

func (l load) minus(o load) load {
	return load{l.watching - o.watching, l.lists - o.lists, l.watched - o.watched}
}

// measure reads the API server's own metrics.
func measure(t *testing.T, c *cluster, resource string) load {
	t.Helper()
	var l load
	text := c.upstream().ok(t, request{path: "/metrics"}).body
	for line := range strings.Lines(text) {
		if !strings.Contains(line, fmt.Sprintf(`resource="%s"`, resource)) || !strings.Contains(line, `subresource=""`) {
			continue
		}
		var n float64
		name, _, _ := strings.Cut(line, "{")
		fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &n)
		// To be refused costs nothing, as by a server that has just been started and
		// does not know any rights yet.
		if strings.Contains(line, `code="401"`) || strings.Contains(line, `code="403"`) {
			continue
		}
		list, watch := strings.Contains(line, `verb="LIST"`), strings.Contains(line, `verb="WATCH"`)
		switch {
		case name == "apiserver_longrunning_requests" && watch:
			l.watching += int(n)
		case name == "apiserver_request_total" && watch:
			l.watched += int(n)
		case name == "apiserver_request_total" && list:
			l.lists += int(n)
		}
	}
	return l
}

// TestManyInformersOneWatch is what the project is for. It has a cluster of its
// own, whose counters nobody else moves.
func TestManyInformersOneWatch(t *testing.T) {
	clientfeaturestesting.SetFeatureDuringTest(t, clientfeatures.WatchListClient, false)
	c := must(startCluster())(t)
	t.Cleanup(c.stop)
	const ns = "default"
	ctx := context.Background()
	client := kubeClient(t, c.upstream())
	for i := range 5 {
		must(client.CoreV1().Pods(ns).Create(ctx, pod(fmt.Sprintf("pod-%d", i), ""), metav1.CreateOptions{}))(t)
	}
	before := measure(t, c, "pods")

	stop := make(chan struct{})
	defer close(stop)
	var all []cache.SharedIndexInformer
	open := func(n int) {
		t.Helper()
		var config = c.proxied().config()
		for i := range n {
			// Ten informers share a connection. A dialer of one's own is what
			// keeps client-go from sharing one between all of them.
			if i%10 == 0 {
				config = c.proxied().config()
				config.Dial = (&net.Dialer{Timeout: patience}).DialContext
				config.ContentType = protobufType
			}
			informer := informers.NewSharedInformerFactory(must(kubernetes.NewForConfig(config))(t), 0).Core().V1().Pods().Informer()
			go informer.Run(stop)
			all = append(all, informer)
		}
		eventually(t, fmt.Sprintf("%d informers are in sync", len(all)), func() error {
			if slices.ContainsFunc(all, func(i cache.SharedIndexInformer) bool { return !i.HasSynced() }) {
				return errNotYet
			}
			return nil
		})
	}
	// told waits until all informers know a new pod: by then all of them watch.
	told := func(name string) {
		t.Helper()
		must(client.CoreV1().Pods(ns).Create(ctx, pod(name, ""), metav1.CreateOptions{}))(t)
		eventually(t, "all informers know "+name, func() error {
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
	ten := measure(t, c, "pods")
	open(190)
	told("two-hundred")
	twoHundred := measure(t, c, "pods")

	if direct {
		t.Logf("10 informers: %+v, 200: %+v", ten.minus(before), twoHundred.minus(before))
		t.Skip("without a proxy there is nothing to count")
	}
	// The proxy may start with a list or with a watch that begins with the
	// state; other lists there must not be.
	if got := ten.minus(before); got.watching != 1 || got.watched != 0 || got.lists > 1 {
		t.Errorf("10 informers cost upstream %+v", got)
	}
	if got := twoHundred.minus(ten); got != (load{}) {
		t.Errorf("190 informers more cost upstream %+v", got)
	}
}
