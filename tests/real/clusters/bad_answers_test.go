package clusters

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/relay"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// TestClientsReturnToMemoryAfterBadAnswers runs informers through watershed while a relay before
// the API server answers badly: 404, pages with status 200, garbage, silence. Some informers are
// open when that begins, and some start meanwhile. Afterwards all agree with upstream, and
// upstream has no watch but the proxy's own.
func TestClientsReturnToMemoryAfterBadAnswers(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy: without one, informers stay with upstream")
	}
	t.Parallel()
	c := require.Value(testbed.Start())(t)
	t.Cleanup(c.Stop)
	for name, faults := range map[string][]badAnswers{
		"one after the other": {{relay.NotFound, 3 * time.Second}, {relay.Page, 3 * time.Second}, {relay.Garbage, 3 * time.Second}},
		// Longer than the proxy waits for the headers of a watch.
		"silence": {{relay.Silence, 25 * time.Second}},
		// So long that the proxy gives the type up.
		"for long": {{relay.NotFound, 40 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			returnToMemory(t, c, faults)
		})
	}
}

// badAnswers are answers of one kind, and how long they are given.
type badAnswers struct {
	bad   relay.BadAnswer
	lasts time.Duration
}

// returnToMemory lets a proxy of its own, with informers, go through some faults.
func returnToMemory(t *testing.T, c *testbed.Cluster, faults []badAnswers) {
	answers := relay.StartAnswers(t, c.Upstream(), filepath.Join(c.Dir, "apiserver.crt"), filepath.Join(c.Dir, "apiserver.key"))
	proxy := testbed.StartProxy(t, c.ProxyKubeconfig, answers.URL())
	s := &templates{t: t, proxy: proxy, answers: answers, direct: api.Clientset(t, c.Upstream())}
	s.write()
	s.open()
	s.open()
	s.agree("before any bad answer")
	for _, fault := range faults {
		answers.Spoil(resource, fault.bad)
		s.open()
		s.write()
		time.Sleep(fault.lasts)
		s.write()
		answers.Heal()
		s.agree(fmt.Sprintf("after %v of %s", fault.lasts, fault.bad))
		s.write()
		s.agree("and from then on")
	}
	answers.Disturb(resource)
	s.write()
	s.agree("after garbage in open watches")
	t.Logf("%d informers", len(s.informers))
}

const resource = "podtemplates"

var contentTypes = []string{api.JSONType, api.ProtobufType}

// templates are the objects, and the informers on them.
type templates struct {
	t         *testing.T
	proxy     *testbed.Proxy
	answers   *relay.Answers
	direct    kubernetes.Interface
	informers []cache.SharedIndexInformer
	writes    int
}

// open starts an informer for each content type, on a connection of its own.
func (s *templates) open() {
	for _, contentType := range contentTypes {
		config := s.proxy.Config()
		config.ContentType, config.AcceptContentTypes = contentType, contentType
		// client-go shares the connections of equal configurations.
		config.UserAgent = fmt.Sprint("informer-", len(s.informers))
		factory := informers.NewSharedInformerFactory(require.Value(kubernetes.NewForConfig(config))(s.t), 0)
		informer := factory.Core().V1().PodTemplates().Informer()
		stop := make(chan struct{})
		s.t.Cleanup(func() { close(stop) })
		go informer.Run(stop)
		s.informers = append(s.informers, informer)
	}
}

// write creates an object, changes one and deletes one, past the proxy.
func (s *templates) write() {
	all := s.direct.CoreV1().PodTemplates(metav1.NamespaceDefault)
	ctx := context.Background()
	for range 3 {
		s.writes++
		name := func(n int) string { return fmt.Sprint(testbed.Slug(s.t), "-", n) }
		made := &corev1.PodTemplate{
			ObjectMeta: metav1.ObjectMeta{Name: name(s.writes)},
			Template:   corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.test/c:1"}}}},
		}
		made = require.Value(all.Create(ctx, made, metav1.CreateOptions{}))(s.t)
		made.Labels = map[string]string{"changed": "yes"}
		require.Value(all.Update(ctx, made, metav1.UpdateOptions{}))(s.t)
		if s.writes > 3 {
			require.NoError(s.t, all.Delete(ctx, name(s.writes-3), metav1.DeleteOptions{}))
		}
	}
}

// agree waits until all informers have what upstream has, and upstream has the proxy's watches
// alone.
func (s *templates) agree(when string) {
	s.t.Helper()
	poll.Until(s.t, when+", the informers agree with upstream", func() error {
		list, err := s.direct.CoreV1().PodTemplates("").List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		want := map[string]string{}
		for _, o := range list.Items {
			want[o.Name] = o.ResourceVersion
		}
		for i, informer := range s.informers {
			got := map[string]string{}
			for _, o := range informer.GetStore().List() {
				template := o.(*corev1.PodTemplate)
				got[template.Name] = template.ResourceVersion
			}
			if !informer.HasSynced() || !maps.Equal(got, want) {
				return fmt.Errorf("informer %d has %v, upstream %v", i, got, want)
			}
		}
		return nil
	})
	poll.Until(s.t, when+", only the proxy watches at upstream", func() error {
		// JSON is derived from protobuf, unless a bad answer kept the proxy from comparing it.
		if n := s.answers.Watching(resource); n < 1 || n > len(contentTypes) {
			return fmt.Errorf("%d watches are open\n%s", n, s.proxy.LogTail())
		}
		return nil
	})
}
