package real

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/informertest"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

func TestCustomTypesAreServedFromCreationToDeletion(t *testing.T) {
	w := objects.NewWidget(t)
	ns := objects.Namespace(t)

	// Before the type exists, nobody knows it. The proxy must not remember that for long.
	compare.Same(t, api.Request{Path: w.Path("", "")})
	compare.Same(t, api.Request{Path: w.Path(ns, "a")})
	compare.Same(t, api.Request{Path: w.Path("", "") + "?watch=1"})

	w.Define(t, testbed.Proxied)
	w.AwaitServed(t, testbed.Proxied)
	for i, name := range []string{"a", "b", "c"} {
		testbed.Targets()[i%2].Must(t, api.Request{Method: "POST", Path: w.Path(ns, ""), Body: w.Object(name, i)})
	}

	list := api.Request{Path: w.Path(ns, "")}
	for _, query := range []string{"", "?resourceVersion=0", "?limit=2", "?labelSelector=x", "?fieldSelector=spec.size%3D1", "?fieldSelector=spec.colour%3Dred", "?fieldSelector=metadata.name%3Da"} {
		r := list
		r.Path += query
		// On either side, version 0 may be a moment old.
		poll.Until(t, "the same answer to "+query, func() error {
			want, got := testbed.Upstream.Send(t, r), testbed.Proxied.Send(t, r)
			w, g := compare.BlankTokens(want.Comparable(nil)), compare.BlankTokens(got.Comparable(nil))
			if w != g {
				return fmt.Errorf("\nupstream: %s\nproxied:  %s", w, g)
			}
			return nil
		})
	}

	store := informerOn(t, w)
	awaitStore := func(step string, want ...string) {
		t.Helper()
		poll.Until(t, step, func() error {
			var got []string
			for _, key := range store() {
				if name, mine := strings.CutPrefix(key, ns+"/"); mine {
					got = append(got, name)
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				return fmt.Errorf("the informer has %v, not %v", got, want)
			}
			return nil
		})
	}
	awaitStore("the informer knows all widgets", "a", "b", "c")

	// The second edition of the type has a new field. The proxy serves it, and informers
	// continue.
	testbed.Proxied.Must(t, api.Request{Method: "PATCH", Path: objects.CRDPath + "/" + w.Name(), ContentType: "application/merge-patch+json", Body: w.Definition(true)})
	poll.Until(t, "the new field is kept", func() error {
		a := testbed.Proxied.Must(t, api.Request{Method: "PATCH", Path: w.Path(ns, "a"), ContentType: "application/merge-patch+json", Body: `{"spec":{"colour":"red"}}`})
		if !strings.Contains(a.Body, "red") {
			return poll.ErrNotYet
		}
		return nil
	})
	const table = "application/json;as=Table;g=meta.k8s.io;v=v1"
	poll.Until(t, "the new column is shown", func() error {
		want := testbed.Upstream.Send(t, api.Request{Path: w.Path(ns, ""), Accept: table})
		got := testbed.Proxied.Send(t, api.Request{Path: w.Path(ns, ""), Accept: table})
		if !strings.Contains(want.Body, "Colour") || want.Comparable(nil) != got.Comparable(nil) {
			return fmt.Errorf("\nupstream: %s\nproxied: %s", want.Comparable(nil), got.Comparable(nil))
		}
		return nil
	})
	testbed.Upstream.Must(t, api.Request{Method: "POST", Path: w.Path(ns, ""), Body: w.Object("d", 4)})
	awaitStore("the informer goes on after the change of the type", "a", "b", "c", "d")

	// Watches last once the type is served again. The proxy may list it again a moment after
	// the change, which ends open watches.
	poll.Until(t, "watches last", func() error {
		events, err := testbed.Proxied.Watch(t, api.Request{Path: w.Path(ns, "") + "?watch=1&resourceVersion=0&timeoutSeconds=4"}).Rest(t)
		if err != nil || len(events) != 4 {
			return fmt.Errorf("%v, %v", events, err)
		}
		return nil
	})

	// The type is deleted. Open watches see the objects go and end.
	watches := map[string]*api.Stream{}
	for _, to := range testbed.Targets() {
		watches[to.Name] = to.Watch(t, api.Request{Path: w.Path(ns, "") + "?watch=1&allowWatchBookmarks=true&resourceVersion=0"})
		for range 4 {
			watches[to.Name].Next(t)
		}
	}
	testbed.Proxied.Must(t, api.Request{Method: "DELETE", Path: objects.CRDPath + "/" + w.Name()})
	var ends []string
	for _, to := range testbed.Targets() {
		events, err := watches[to.Name].Rest(t)
		ends = append(ends, fmt.Sprintf("%v, %v", events, err))
	}
	if ends[0] != ends[1] {
		t.Errorf("upstream's watch: %s\nproxied watch:    %s", ends[0], ends[1])
	}
	if !strings.HasSuffix(ends[0], "<nil>") || strings.Count(ends[0], "DELETED") != 4 {
		t.Errorf("upstream's watch: %s", ends[0])
	}

	// Afterwards it is as if the type had never existed.
	for _, path := range []string{w.Path("", ""), w.Path(ns, ""), w.Path(ns, "a"), w.Path(ns, "") + "?watch=1", w.Path(ns, "") + "?resourceVersion=0"} {
		r := api.Request{Path: path}
		poll.Until(t, "the type is gone", func() error {
			want, got := testbed.Upstream.Send(t, r), testbed.Proxied.Send(t, r)
			if want.Status != 404 || want.Comparable(nil) != got.Comparable(nil) {
				return fmt.Errorf("%v\nupstream: %s\nproxied:  %s", r, want.Comparable(nil), got.Comparable(nil))
			}
			return nil
		})
	}
}

// informerOn runs an informer through the proxy until the test ends. It returns a function that
// lists the informer's keys.
func informerOn(t *testing.T, w objects.Widget) func() []string {
	t.Helper()
	client := require.Value(dynamic.NewForConfig(testbed.Proxied.Config()))(t)
	informer := dynamicinformer.NewFilteredDynamicInformer(client, informertest.Widgets(w).Resource, metav1.NamespaceAll, 0, nil, nil).Informer()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	go informer.Run(ctx.Done())
	return informer.GetStore().ListKeys
}

// TestRecreatedCustomTypeShowsNoOldObjects deletes a type and creates it again under the same
// name. Nothing known of the first may answer for the second.
func TestRecreatedCustomTypeShowsNoOldObjects(t *testing.T) {
	w := objects.NewWidget(t)
	ns := objects.Namespace(t)
	for round := range 2 {
		w.Define(t, testbed.Proxied)
		w.AwaitServed(t, testbed.Proxied)
		name := fmt.Sprintf("round-%d", round)
		testbed.Proxied.Must(t, api.Request{Method: "POST", Path: w.Path(ns, ""), Body: w.Object(name, round)})
		poll.Until(t, "a list through the proxy", func() error {
			a := testbed.Proxied.Send(t, api.Request{Path: w.Path(ns, "") + "?resourceVersion=0"})
			if a.Status == 200 && strings.Contains(a.Body, fmt.Sprintf("round-%d", 1-round)) {
				t.Fatalf("an object of the deleted type is in the list of the new one: %s", a.Body)
			}
			if a.Status != 200 || !strings.Contains(a.Body, name) {
				return fmt.Errorf("%d %s", a.Status, a.Body)
			}
			return nil
		})
		testbed.Proxied.Must(t, api.Request{Method: "DELETE", Path: objects.CRDPath + "/" + w.Name()})
		for _, to := range testbed.Targets() {
			poll.Until(t, "the type is gone "+to.Name, func() error {
				if a := to.Send(t, api.Request{Path: w.Path(ns, "")}); a.Status != 404 {
					return fmt.Errorf("%d %s", a.Status, a.Body)
				}
				if a := to.Send(t, api.Request{Path: objects.CRDPath + "/" + w.Name()}); a.Status != 404 {
					return fmt.Errorf("%d %s", a.Status, a.Body)
				}
				return nil
			})
		}
	}
}

// TestWatchContinuesFromTheFirstList begins with a type that the proxy has not been asked for.
// A client lists, others write, and the client watches from the version of its list. The
// proxy's own watch may have begun at a later version; the client's version is still not too
// old.
func TestWatchContinuesFromTheFirstList(t *testing.T) {
	w := objects.NewWidget(t)
	for round, between := range []string{"none", "?resourceVersion=0", ""} {
		w := objects.Widget{Group: fmt.Sprintf("round-%d.%s", round, w.Group), Plural: w.Plural}
		t.Run(fmt.Sprint("round ", round), func(t *testing.T) {
			ns := objects.Namespace(t)
			w.Define(t, testbed.Upstream)
			w.AwaitServed(t, testbed.Proxied)
			for _, to := range testbed.Targets() {
				var list struct {
					Metadata struct{ ResourceVersion string }
				}
				require.NoError(t, json.Unmarshal([]byte(to.Must(t, api.Request{Path: w.Path(ns, "")}).Body), &list))
				first, second := "first-"+to.Name, "second-"+to.Name
				testbed.Upstream.Must(t, api.Request{Method: "POST", Path: w.Path(ns, ""), Body: w.Object(first, 1)})
				if between != "none" {
					to.Must(t, api.Request{Path: w.Path("", "") + between})
				}
				watch := to.Watch(t, api.Request{Path: w.Path(ns, "") + "?watch=1&resourceVersion=" + list.Metadata.ResourceVersion})
				testbed.Upstream.Must(t, api.Request{Method: "POST", Path: w.Path(ns, ""), Body: w.Object(second, 2)})
				for _, name := range []string{first, second} {
					if e := watch.Next(t); e.String() != "ADDED "+name {
						t.Fatalf("%s: not %s but %s", to.Name, name, e.Raw)
					}
				}
			}
		})
	}
}

// TestCustomTypesAreCachedOnceDefinitionsAreReadable starts a proxy without the right to read
// definitions. It forwards requests for custom types until it gets the right, and then answers
// them itself.
func TestCustomTypesAreCachedOnceDefinitionsAreReadable(t *testing.T) {
	if testbed.Direct {
		t.Skip("there is no proxy whose rights matter")
	}
	t.Parallel()
	w := objects.NewWidget(t)
	w.Define(t, testbed.Upstream)
	w.AwaitServed(t, testbed.Upstream)
	objects.GrantVerbs(t, "", "bob", "authentication.k8s.io", "tokenreviews", "create")
	objects.GrantVerbs(t, "", "bob", "authorization.k8s.io", "subjectaccessreviews", "create")
	objects.Grant(t, "", "bob", w.Group, w.Plural)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": %q, "certificate-authority": %q}}],
		"users": [{"name": "u", "user": {"token": %q}}],
		"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}`, testbed.Upstream.URL, testbed.Upstream.CA, testbed.Shared.Users.Of("bob")), 0o600))
	proxy := testbed.StartProxy(t, kubeconfig)
	list := api.Request{Path: w.Path("", "") + "?resourceVersion=0"}
	if source := proxy.Must(t, list).Header.Get("X-Watershed-Source"); source != "forward; reason=unknown-type" {
		t.Errorf("answered from %q", source)
	}
	objects.Grant(t, "", "bob", "apiextensions.k8s.io", "customresourcedefinitions")
	// The proxy tries again every half minute.
	deadline := time.Now().Add(30*time.Second + poll.Patience)
	for source := ""; source != "snapshot"; time.Sleep(200 * time.Millisecond) {
		if source = proxy.Must(t, list).Header.Get("X-Watershed-Source"); time.Now().After(deadline) {
			t.Fatalf("still answered from %q\n%s", source, proxy.LogTail())
		}
	}
}
