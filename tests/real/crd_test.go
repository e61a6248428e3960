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
)

func TestCustomResourceLife(t *testing.T) {
	w := newWidget(t)
	ns := namespace(t)

	// Before: nobody knows it. The proxy must not remember that for long.
	same(t, request{path: w.path("", "")})
	same(t, request{path: w.path(ns, "a")})
	same(t, request{path: w.path("", "") + "?watch=1"})

	w.define(t, proxied)
	w.awaitServed(t, proxied)
	for i, name := range []string{"a", "b", "c"} {
		targets()[i%2].ok(t, request{method: "POST", path: w.path(ns, ""), body: w.object(name, i)})
	}

	list := request{path: w.path(ns, "")}
	for _, query := range []string{"", "?resourceVersion=0", "?limit=2", "?labelSelector=x", "?fieldSelector=spec.size%3D1", "?fieldSelector=spec.colour%3Dred", "?fieldSelector=metadata.name%3Da"} {
		r := list
		r.path += query
		// Version 0 may be a moment old, on either side.
		eventually(t, "the same answer to "+query, func() error {
			want, got := upstream.send(t, r), proxied.send(t, r)
			w, g := blankTokens(want.comparable(nil)), blankTokens(got.comparable(nil))
			if w != g {
				return fmt.Errorf("\nupstream: %s\nproxied:  %s", w, g)
			}
			return nil
		})
	}

	store := informerOn(t, w)
	awaitStore := func(step string, want ...string) {
		t.Helper()
		eventually(t, step, func() error {
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

	// A second edition of the type: what is new in it is served, and informers
	// go on.
	proxied.ok(t, request{method: "PATCH", path: definitions + "/" + w.name(), contentType: "application/merge-patch+json", body: w.definition(true)})
	eventually(t, "the new field is kept", func() error {
		a := proxied.ok(t, request{method: "PATCH", path: w.path(ns, "a"), contentType: "application/merge-patch+json", body: `{"spec":{"colour":"red"}}`})
		if !strings.Contains(a.body, "red") {
			return errNotYet
		}
		return nil
	})
	const table = "application/json;as=Table;g=meta.k8s.io;v=v1"
	eventually(t, "the new column is shown", func() error {
		want := upstream.send(t, request{path: w.path(ns, ""), accept: table})
		got := proxied.send(t, request{path: w.path(ns, ""), accept: table})
		if !strings.Contains(want.body, "Colour") || want.comparable(nil) != got.comparable(nil) {
			return fmt.Errorf("\nupstream: %s\nproxied: %s", want.comparable(nil), got.comparable(nil))
		}
		return nil
	})
	upstream.ok(t, request{method: "POST", path: w.path(ns, ""), body: w.object("d", 4)})
	awaitStore("the informer goes on after the change of the type", "a", "b", "c", "d")

	// Once the type is served anew, watches last: it may be listed again a moment
	// after the change, which ends those that are open.
	eventually(t, "watches last", func() error {
		events, err := proxied.watch(t, request{path: w.path(ns, "") + "?watch=1&resourceVersion=0&timeoutSeconds=4"}).rest(t)
		if err != nil || len(events) != 4 {
			return fmt.Errorf("%v, %v", events, err)
		}
		return nil
	})

	// The end of the type: open watches see the objects go, and end.
	watches := map[string]*stream{}
	for _, to := range targets() {
		watches[to.name] = to.watch(t, request{path: w.path(ns, "") + "?watch=1&allowWatchBookmarks=true&resourceVersion=0"})
		for range 4 {
			watches[to.name].next(t)
		}
	}
	proxied.ok(t, request{method: "DELETE", path: definitions + "/" + w.name()})
	var ends []string
	for _, to := range targets() {
		events, err := watches[to.name].rest(t)
		ends = append(ends, fmt.Sprintf("%v, %v", events, err))
	}
	if ends[0] != ends[1] {
		t.Errorf("upstream's watch: %s\nproxied watch:    %s", ends[0], ends[1])
	}
	if !strings.HasSuffix(ends[0], "<nil>") || strings.Count(ends[0], "DELETED") != 4 {
		t.Errorf("upstream's watch: %s", ends[0])
	}

	// After: as if it had never been.
	for _, path := range []string{w.path("", ""), w.path(ns, ""), w.path(ns, "a"), w.path(ns, "") + "?watch=1", w.path(ns, "") + "?resourceVersion=0"} {
		r := request{path: path}
		eventually(t, "the type is gone", func() error {
			want, got := upstream.send(t, r), proxied.send(t, r)
			if want.status != 404 || want.comparable(nil) != got.comparable(nil) {
				return fmt.Errorf("%v\nupstream: %s\nproxied:  %s", r, want.comparable(nil), got.comparable(nil))
			}
			return nil
		})
	}
}

// informerOn runs an informer through the proxy for as long as the test, and
// returns a look at its keys.
func informerOn(t *testing.T, w widget) func() []string {
	t.Helper()
	client := must(dynamic.NewForConfig(proxied.config()))(t)
	informer := dynamicinformer.NewFilteredDynamicInformer(client, widgets(w).resource, metav1.NamespaceAll, 0, nil, nil).Informer()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	go informer.Run(ctx.Done())
	return informer.GetStore().ListKeys
}

// TestCustomResourceComesBack has a type that goes and returns with the same
// name: what was known of the first must not answer for the second.
func TestCustomResourceComesBack(t *testing.T) {
	w := newWidget(t)
	ns := namespace(t)
	for round := range 2 {
		w.define(t, proxied)
		w.awaitServed(t, proxied)
		name := fmt.Sprintf("round-%d", round)
		proxied.ok(t, request{method: "POST", path: w.path(ns, ""), body: w.object(name, round)})
		eventually(t, "a list through the proxy", func() error {
			a := proxied.send(t, request{path: w.path(ns, "") + "?resourceVersion=0"})
			if a.status != 200 || !strings.Contains(a.body, name) || strings.Contains(a.body, fmt.Sprintf("round-%d", 1-round)) {
				return fmt.Errorf("%d %s", a.status, a.body)
			}
			return nil
		})
		proxied.ok(t, request{method: "DELETE", path: definitions + "/" + w.name()})
		for _, to := range targets() {
			eventually(t, "the type is gone "+to.name, func() error {
				if a := to.send(t, request{path: w.path(ns, "")}); a.status != 404 {
					return fmt.Errorf("%d %s", a.status, a.body)
				}
				if a := to.send(t, request{path: definitions + "/" + w.name()}); a.status != 404 {
					return fmt.Errorf("%d %s", a.status, a.body)
				}
				return nil
			})
		}
	}
}

// TestWatchFromFirstList begins with what nobody has asked the proxy for before.
// A client lists, others write, and then the client watches from the version of
// its list. The proxy may have opened its own watch only in between, at a later
// version: that is no reason to call the client's version too old.
func TestWatchFromFirstList(t *testing.T) {
	w := newWidget(t)
	for round, between := range []string{"none", "?resourceVersion=0", ""} {
		w := widget{group: fmt.Sprintf("round-%d.%s", round, w.group), plural: w.plural}
		t.Run(fmt.Sprint("round ", round), func(t *testing.T) {
			ns := namespace(t)
			w.define(t, upstream)
			w.awaitServed(t, proxied)
			for _, to := range targets() {
				var list struct {
					Metadata struct{ ResourceVersion string }
				}
				check(t, json.Unmarshal([]byte(to.ok(t, request{path: w.path(ns, "")}).body), &list))
				first, second := "first-"+to.name, "second-"+to.name
				upstream.ok(t, request{method: "POST", path: w.path(ns, ""), body: w.object(first, 1)})
				if between != "none" {
					to.ok(t, request{path: w.path("", "") + between})
				}
				watch := to.watch(t, request{path: w.path(ns, "") + "?watch=1&resourceVersion=" + list.Metadata.ResourceVersion})
				upstream.ok(t, request{method: "POST", path: w.path(ns, ""), body: w.object(second, 2)})
				for _, name := range []string{first, second} {
					if e := watch.next(t); e.String() != "ADDED "+name {
						t.Fatalf("%s: not %s but %s", to.name, name, e.raw)
					}
				}
			}
		})
	}
}

// TestDefinitionsSeenLater: a proxy that may not see the definitions at first
// passes custom types' requests on, and answers them itself once it may.
func TestDefinitionsSeenLater(t *testing.T) {
	if direct {
		t.Skip("there is no proxy whose rights matter")
	}
	t.Parallel()
	w := newWidget(t)
	w.define(t, upstream)
	w.awaitServed(t, upstream)
	grantVerbs(t, "", "bob", "authentication.k8s.io", "tokenreviews", "create")
	grantVerbs(t, "", "bob", "authorization.k8s.io", "subjectaccessreviews", "create")
	grant(t, "", "bob", w.group, w.plural)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	check(t, os.WriteFile(kubeconfig, fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": %q, "certificate-authority": %q}}],
		"users": [{"name": "u", "user": {"token": %q}}],
		"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}`, upstream.url, upstream.ca, shared.Tokens["bob"]), 0o600))
	proxy := startProxy(t, kubeconfig)
	list := request{path: w.path("", "") + "?resourceVersion=0"}
	if source := proxy.ok(t, list).header.Get("X-Watershed-Source"); source != "forward; reason=unknown-type" {
		t.Errorf("answered from %q", source)
	}
	grant(t, "", "bob", "apiextensions.k8s.io", "customresourcedefinitions")
	// It tries again every half minute.
	deadline := time.Now().Add(30*time.Second + patience)
	for source := ""; source != "snapshot"; time.Sleep(200 * time.Millisecond) {
		if source = proxy.ok(t, list).header.Get("X-Watershed-Source"); time.Now().After(deadline) {
			t.Fatalf("still answered from %q\n%s", source, proxy.tail())
		}
	}
}
