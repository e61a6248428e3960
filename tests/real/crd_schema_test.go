package real

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/testbed"
	"watershed.test/real/internal/usage"
)

// TestConsistentListsAfterASchemaChangeHaveWhatWasWritten adds fields to a type, one after the other,
// and writes each as soon as upstream keeps it. For about a second upstream goes on sending events
// without the field, to watches from before the change, and lists with it. Whoever writes back an
// object from a list must not lose the field.
func TestConsistentListsAfterASchemaChangeHaveWhatWasWritten(t *testing.T) {
	w, ns := objects.NewWidget(t), objects.Namespace(t)
	w.Define(t, testbed.Upstream)
	const known = `"size":{"type":"integer"}`
	fields := known
	// untold counts the rounds in which the proxy was not seen to know of the change.
	const rounds = 6
	untold, sources, refused := 0, map[string]int{}, map[int]int{}
	for round := range rounds {
		compare.AwaitHeld(t, testbed.Proxied, w.Path("", ""))
		name := fmt.Sprint("field", round)
		fields += fmt.Sprintf(`,"%s":{"type":"integer"}`, name)
		definition := strings.Replace(w.Definition(false), known, fields, 1)
		testbed.Upstream.Must(t, api.Request{Method: "PATCH", Path: objects.CRDPath + "/" + w.Name(), ContentType: api.MergePatch, Body: definition})
		object := strings.Replace(w.Object(name, 1), `"size":1`, fmt.Sprintf(`"%s":5`, name), 1)
		written := fmt.Sprintf(`"%s":5`, name)
		poll.Until(t, "upstream keeps the field", func() error {
			// For a moment upstream says that it is shutting down.
			if a := testbed.Upstream.Send(t, api.Request{Method: "POST", Path: w.Path(ns, "") + "?dryRun=All", Body: object}); !strings.Contains(a.Body, written) {
				return poll.ErrNotYet
			}
			return nil
		})
		changed := time.Now()
		poll.Until(t, "the proxy knows of the change", func() error {
			a := testbed.Proxied.Send(t, api.Request{Path: w.Path(ns, "") + "?resourceVersion=0"})
			if source := a.Header.Get("X-Watershed-Source"); source == "forward; reason=schema-changed" || testbed.Direct {
				return nil
			}
			// On a busy machine the type may be listed again before this is asked.
			if time.Since(changed) > 5*time.Second {
				untold++
				return nil
			}
			return poll.ErrNotYet
		})
		poll.Until(t, "the object is written", func() error {
			if a := testbed.Upstream.Send(t, api.Request{Method: "POST", Path: w.Path(ns, ""), Body: object}); a.Status != 201 {
				return fmt.Errorf("%d %s", a.Status, a.Body)
			}
			return nil
		})
		for read := range 100 {
			a := testbed.Proxied.Send(t, api.Request{Path: w.Path(ns, "")})
			if a.Status != 200 {
				refused[a.Status]++
			} else {
				sources[a.Header.Get("X-Watershed-Source")]++
			}
			if a.Status == 200 && !strings.Contains(a.Body, written) {
				t.Fatalf("round %d, read %d: the list from %s lacks the field: %s", round, read, a.Header.Get("X-Watershed-Source"), a.Body)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	t.Logf("lists from %v, refused with %v; in %d of %d rounds the proxy was not seen to know of the change", sources, refused, untold, rounds)
	if untold == rounds || usage.Total(sources) < 50*rounds || sources["linearizable"] == 0 && !testbed.Direct {
		t.Error("there are too few lists to judge by")
	}
	// Changes in a row are no failures after which the type is listed ever later.
	testbed.Upstream.Must(t, api.Request{Method: "PATCH", Path: w.Path(ns, "field0"), ContentType: api.MergePatch, Body: `{"metadata":{"labels":{"last":"yes"}}}`})
	poll.Until(t, "memory has what was written after the changes", func() error {
		a := testbed.Proxied.Must(t, api.Request{Path: w.Path(ns, "field0") + "?resourceVersion=0"})
		if source := a.Header.Get("X-Watershed-Source"); !strings.Contains(a.Body, `"last":"yes"`) || source != "snapshot" && !testbed.Direct {
			return fmt.Errorf("from %s: %s", source, a.Body)
		}
		return nil
	})
}

// TestWatchesEndWithoutAnErrorAtASchemaChange changes a type's schema under open watches. Upstream
// ends them, and whoever goes on from its last version is told there what is missing.
func TestWatchesEndWithoutAnErrorAtASchemaChange(t *testing.T) {
	w, ns := objects.NewWidget(t), objects.Namespace(t)
	w.Define(t, testbed.Upstream)
	testbed.Upstream.Must(t, api.Request{Method: "POST", Path: w.Path(ns, ""), Body: w.Object("a", 1)})
	compare.AwaitHeld(t, testbed.Proxied, w.Path("", ""))
	watched := api.Request{Path: w.Path(ns, "") + "?watch=1&resourceVersion=0"}
	watches := map[string]*api.Stream{"upstream": testbed.Upstream.Watch(t, watched), "the proxy": testbed.Proxied.Watch(t, watched)}
	for _, watch := range watches {
		watch.Next(t)
	}
	definition := strings.Replace(w.Definition(false), `"size":{"type":"integer"}`, `"size":{"type":"integer"},"other":{"type":"integer"}`, 1)
	testbed.Upstream.Must(t, api.Request{Method: "PATCH", Path: objects.CRDPath + "/" + w.Name(), ContentType: api.MergePatch, Body: definition})
	for by, watch := range watches {
		if events, err := watch.Rest(t); len(events) > 0 || err != nil {
			t.Errorf("the watch from %s: %v, after %v", by, err, events)
		}
	}
	compare.AwaitHeld(t, testbed.Proxied, w.Path("", ""))
}
