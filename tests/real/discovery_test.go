package real

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/kubectl"
	"watershed.test/real/internal/metrics"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// aggregatedDiscovery is what client-go accepts of /api and /apis.
const aggregatedDiscovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"

// crop is a custom type. Several share a group, so that documents of a group change, too.
type crop struct {
	group, plural, kind string
}

func newCrop(t *testing.T, number int) crop {
	return crop{
		group:  fmt.Sprintf("g%d.%s.example.test", number/5, testbed.Slug(t)),
		plural: fmt.Sprintf("crops%02d", number),
		kind:   fmt.Sprintf("Crop%02d", number),
	}
}

func (c crop) name() string { return c.plural + "." + c.group }

func (c crop) definition() string {
	return fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%s"},
		"spec":{"group":"%s","scope":"Namespaced","names":{"plural":"%s","singular":"%s","kind":"%s","listKind":"%sList"},
		"versions":[{"name":"v1","served":true,"storage":true,
			"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`,
		c.name(), c.group, c.plural, strings.ToLower(c.kind), c.kind, c.kind)
}

func (c crop) object(name string) string {
	return fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"%s","metadata":{"name":"%s"}}`, c.group, c.kind, name)
}

// document is a discovery document, and mark the text in it that shows a type of a group.
type document struct{ path, accept string }

type mark struct {
	document
	group, text string
}

func (d document) request() api.Request { return api.Request{Path: d.path, Accept: d.accept} }

// marks returns where a type is shown.
func (c crop) marks() []mark {
	plural, group := `"`+c.plural+`"`, `"`+c.group+`"`
	return []mark{
		{document{"/apis", aggregatedDiscovery}, c.group, plural},
		{document{"/apis", "application/json"}, c.group, group},
		{document{"/apis/" + c.group, "application/json"}, c.group, group},
		{document{"/apis/" + c.group + "/v1", "application/json"}, c.group, plural},
		{document{"/openapi/v3", "application/json"}, c.group, c.group + "/v1"},
	}
}

func (m mark) isIn(a api.Answer) bool { return a.Status == 200 && strings.Contains(a.Body, m.text) }

// sightings holds which types documents have shown. A later answer may not be behind them.
type sightings struct {
	mutex  sync.Mutex
	marks  map[document][]mark
	shown  map[mark]bool
	behind map[string][]lack
	asked  map[string]int
}

// lack is a document that was behind.
type lack struct {
	mark   mark
	answer string
}

func (l lack) String() string {
	return fmt.Sprintf("%s %s, %s, lacks %s", l.mark.path, l.mark.accept, l.answer, l.mark.text)
}

func watchFor(crops []crop) *sightings {
	s := &sightings{marks: map[document][]mark{}, shown: map[mark]bool{}, behind: map[string][]lack{}, asked: map[string]int{}}
	for _, c := range crops {
		for _, m := range c.marks() {
			if !slices.Contains(s.marks[m.document], m) {
				s.marks[m.document] = append(s.marks[m.document], m)
			}
		}
	}
	return s
}

// of returns the types that a document has shown so far.
func (s *sightings) of(d document) []mark {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return slices.DeleteFunc(slices.Clone(s.marks[d]), func(m mark) bool { return !s.shown[m] })
}

// read reads a document, and compares it with what was shown before the request.
func (s *sightings) read(from api.Target, d document) error {
	before := s.of(d)
	answer, err := from.Try(d.request())
	if err != nil {
		return err
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.asked[from.Name]++
	for _, m := range s.marks[d] {
		if m.isIn(answer) {
			s.shown[m] = true
		} else if slices.Contains(before, m) {
			source := answer.Header.Get("X-Watershed-Source")
			l := lack{m, fmt.Sprintf("answered with %d from %q", answer.Status, source)}
			s.behind[from.Name] = append(s.behind[from.Name], l)
		}
	}
	return nil
}

// pollAll polls all documents until the returned function is called. That reports which of them
// were behind what was shown before, but for those that are excused.
func (s *sightings) pollAll(t *testing.T, targets ...api.Target) (finish func(isExcused func(lack) bool)) {
	ctx, stop := context.WithCancel(context.Background())
	var polling sync.WaitGroup
	for _, from := range targets {
		polling.Go(func() {
			if err := s.poll(ctx, from); err != nil {
				t.Error(err)
			}
		})
	}
	end := sync.OnceFunc(func() {
		stop()
		polling.Wait()
	})
	t.Cleanup(end)
	return func(isExcused func(lack) bool) {
		end()
		t.Logf("documents read: %v; behind: %v", s.asked, s.behind)
		for name, behind := range s.behind {
			for _, l := range slices.DeleteFunc(behind, isExcused) {
				t.Errorf("%s: a document was behind: %v", name, l)
			}
		}
	}
}

// poll reads all documents, again and again.
func (s *sightings) poll(ctx context.Context, from api.Target) error {
	for {
		for d := range s.marks {
			if ctx.Err() != nil {
				return nil
			}
			if err := s.read(from, d); err != nil {
				return err
			}
		}
	}
}

// TestDiscoveryIsNeverBehindWhatWasShown makes custom types one after the other while clients
// poll all documents, directly and through the proxy. Once a document has shown a type to one of
// them, it shows it to everybody who asks afterwards. REST mappers that live through all of it
// map each type as soon as upstream shows it.
func TestDiscoveryIsNeverBehindWhatWasShown(t *testing.T) {
	var crops []crop
	for number := range 25 {
		crops = append(crops, newCrop(t, number))
	}
	seen := watchFor(crops)
	finish := seen.pollAll(t, testbed.Proxied, testbed.Proxied, testbed.Proxied, testbed.Upstream)
	mappers := restMappers(t, testbed.Proxied.Config())
	for number, c := range crops {
		via := testbed.Targets()[number%2]
		via.Must(t, api.Request{Method: "POST", Path: objects.CRDPath, Body: c.definition()})
		t.Cleanup(func() { testbed.Upstream.Try(api.Request{Method: "DELETE", Path: objects.CRDPath + "/" + c.name()}) })
		awaitShown(t, c)
		for _, m := range c.marks() {
			if a := testbed.Proxied.Send(t, m.request()); !m.isIn(a) {
				t.Errorf("%s %s, answered with %d from %q, lacks %s", m.path, m.accept, a.Status, a.Header.Get("X-Watershed-Source"), m.text)
			}
		}
		for name, mapper := range mappers {
			// client-go's asks again only when it is told to.
			if resettable, ok := mapper.(meta.ResettableRESTMapper); ok {
				resettable.Reset()
			}
			if _, err := mapper.RESTMapping(schema.GroupKind{Group: c.group, Kind: c.kind}, "v1"); err != nil {
				t.Errorf("%s does not know %s: %v", name, c.name(), err)
			}
		}
	}
	finish(func(lack) bool { return false })
}

// unanswered returns how many requests of a proxy got no answer from upstream, although it waited.
func unanswered(t *testing.T, p *testbed.Proxy) (requests float64) {
	for sample := range metrics.Samples(require.Value(p.Metrics())(t)) {
		if sample.Name == "watershed_upstream_requests_unanswered_total" && sample.Label("reason") != "abandoned" {
			requests += sample.Value
		}
	}
	return requests
}

// withdrawals records the groups that upstream withdraws, until the returned function is called.
//
// Each of several API servers registers the groups of the definitions it knows, and removes what
// another one registered for a definition that it does not know yet.
// Source: kube-aggregator/pkg/controllers/autoregister/autoregister_controller.go (checkAPIService).
func withdrawals(t *testing.T, c *testbed.Cluster) func() []string {
	const path = "/apis/apiregistration.k8s.io/v1/apiservices"
	registrations := c.Upstream().Watch(t, api.Request{Path: path + "?watch=true"})
	return func() (groups []string) {
		last := newCrop(t, 99)
		c.Upstream().Must(t, api.Request{Method: "POST", Path: objects.CRDPath, Body: last.definition()})
		for {
			e := poll.Receive(t, "an event of the API services", registrations.Events)
			group := strings.TrimPrefix(e.Object.Metadata.Name, "v1.")
			if group == last.group {
				return groups
			}
			if e.Type == "DELETED" {
				groups = append(groups, group)
			}
		}
	}
}

// TestDiscoveryOfSeveralServersDoesNotGoBack makes types while clients poll all documents through
// a proxy in front of two API servers, one of which is always a moment ahead of the other.
func TestDiscoveryOfSeveralServersDoesNotGoBack(t *testing.T) {
	if testbed.Direct {
		t.Skip("clients of several servers see them change at different moments")
	}
	t.Parallel()
	c := require.Value(testbed.Start("--apiservers", "2"))(t)
	t.Cleanup(c.Stop)
	p := testbed.StartProxy(t, c.ProxyKubeconfig, c.Servers...)
	var crops []crop
	for number := range 20 {
		crops = append(crops, newCrop(t, number))
	}
	seen, withdrawn := watchFor(crops), withdrawals(t, c)
	before := unanswered(t, p)
	finish := seen.pollAll(t, p.Target, p.Target, p.Target)
	for number, made := range crops {
		server := c.Upstream()
		server.URL = c.Servers[number%2]
		server.Must(t, api.Request{Method: "POST", Path: objects.CRDPath, Body: made.definition()})
	}
	for _, made := range crops {
		for _, m := range made.marks() {
			poll.Until(t, "the proxy shows "+made.name()+" in "+m.path, func() error {
				if a := p.Send(t, m.request()); !m.isIn(a) {
					return fmt.Errorf("%d", a.Status)
				}
				return nil
			})
		}
	}
	groups := withdrawn()
	t.Logf("groups withdrawn: %v; requests without an answer: %v", groups, unanswered(t, p)-before)
	finish(func(l lack) bool {
		// A request without an answer may have been sent again, to the server that is behind.
		return slices.Contains(groups, l.mark.group) || unanswered(t, p) > before
	})
}

// awaitShown waits until upstream shows a type in all documents.
func awaitShown(t *testing.T, c crop) {
	t.Helper()
	for _, m := range c.marks() {
		poll.Until(t, fmt.Sprintf("upstream shows %s in %s", c.name(), m.path), func() error {
			if a := testbed.Upstream.Send(t, m.request()); !m.isIn(a) {
				return fmt.Errorf("%d", a.Status)
			}
			return nil
		})
	}
}

// restMappers returns the mappers of client-go and controller-runtime, both with a memory of
// their own.
func restMappers(t *testing.T, config *rest.Config) map[string]meta.RESTMapper {
	t.Helper()
	cached := memory.NewMemCacheClient(require.Value(discovery.NewDiscoveryClientForConfig(config))(t))
	client := require.Value(rest.HTTPClientFor(config))(t)
	return map[string]meta.RESTMapper{
		"client-go's mapper":          restmapper.NewDeferredDiscoveryRESTMapper(cached),
		"controller-runtime's mapper": require.Value(apiutil.NewDynamicRESTMapper(config, client))(t),
	}
}

// TestKubectlAppliesADefinitionAndThenItsObject applies the two one after the other, as scripts
// and charts do, just after kubectl has read discovery.
func TestKubectlAppliesADefinitionAndThenItsObject(t *testing.T) {
	ns := objects.Namespace(t)
	for number := range 6 {
		c := newCrop(t, number)
		t.Cleanup(func() { testbed.Upstream.Try(api.Request{Method: "DELETE", Path: objects.CRDPath + "/" + c.name()}) })
		for _, step := range []kubectl.Command{
			kubectl.Args("api-resources --cached=false"),
			kubectl.Apply("apply", c.definition()),
			kubectl.Args("wait --for=condition=Established --timeout=60s crd/" + c.name()),
		} {
			if r := kubectl.Run(t, testbed.Proxied, step); r.Code != 0 {
				t.Fatalf("%v: %s", step, r.Stderr)
			}
		}
		// Upstream's own discovery may be a moment behind its condition.
		awaitShown(t, c)
		apply := kubectl.Apply("apply --namespace "+ns, c.object("first"))
		if r := kubectl.Run(t, testbed.Proxied, apply); r.Code != 0 {
			t.Errorf("the object after its definition: %s", r.Stderr)
		}
	}
}
