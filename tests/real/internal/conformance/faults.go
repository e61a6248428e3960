package conformance

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/faulty"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/parallel"
	"watershed.test/real/internal/random"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// PlantedFaults compares upstream with proxies that have one fault each. The comparison has to
// find every fault, and nothing where there is none.
func PlantedFaults(t *testing.T) {
	t.Run("answers", faultsInAnswers)
	t.Run("watches", faultsInWatches)
}

func faultsInAnswers(t *testing.T) {
	terrains := furnishMatrix(t)
	var probes []api.Request
	for _, m := range matrices {
		for _, c := range m.cells() {
			values := m.values(c)
			if v := values["resourceVersion"]; refused(values) || m.name == "Watch" || v == "future" || v == "ancient" ||
				values["type"] != "configmaps" || slices.Contains([]string{"0", "-1", "huge", "3"}, values["limit"]) {
				continue
			}
			probes = append(probes, m.ask(terrains["configmaps"], values))
		}
	}
	probes = append(probes, api.Request{Path: terrains["configmaps"].collection + "?labelSelector=odd%3D1"},
		api.Request{Path: terrains["configmaps"].collection + "?resourceVersion=0", Header: map[string]string{"User-Agent": "curl/8.9.1"}})
	faults := append(faulty.InAnswers(), faulty.Fault{Name: "none", Twice: true})
	places := make([]api.Target, len(faults))
	for i, f := range faults {
		places[i] = faulty.Start(t, testbed.Upstream, f)
	}
	seen := make([][]string, len(faults))
	for round := range 2 {
		if round == 1 {
			// One object changes between two looks at the same request.
			testbed.Upstream.Must(t, api.Request{Method: "DELETE", Path: terrains["configmaps"].collection + "/e"})
		}
		parallel.ForEach(4, places, func(i int, place api.Target) {
			if round == 0 && !faults[i].Twice {
				return
			}
			for _, r := range probes {
				if v := (compare.Sides{Right: testbed.Upstream, Asked: place}).Compare(r); v.Difference != "" {
					seen[i] = append(seen[i], fmt.Sprintf("%v\n%s", r, v.Difference))
				}
			}
		})
	}
	faulty.Report(t, faults, seen)
	t.Logf("%d faults, %d requests for each", len(faults)-1, len(probes))
}

// faultsInWatches repeats with more time where little is written in a second: a fault needs an
// event of its kind.
func faultsInWatches(t *testing.T) {
	const longest = 40
	for seconds, enough := 5, false; !enough; seconds *= 2 {
		t.Run(fmt.Sprint(seconds, " seconds"), func(t *testing.T) { enough = faultsInWatchesFor(t, seconds, seconds >= longest) })
		enough = enough || seconds >= longest
	}
}

// faultsInWatchesFor reports whether enough was written to decide.
func faultsInWatchesFor(t *testing.T, seconds int, last bool) bool {
	chance := random.Stream(random.Seed(t), 3)
	suffix := fmt.Sprint("-f", seconds)
	s := newWatchRun(t, chance, suffix)
	var requests []api.Request
	for _, l := range []watchQuery{
		{"configmaps", "", "", "", "", api.ResumeWithBookmarks},
		{"configmaps", "", "tier=gold", "", "", api.ResumeWithBookmarks},
		{"configmaps", "", "tier!=lead", "", "", api.StateFirst},
	} {
		requests = append(requests, s.request(l, seconds, suffix))
	}
	faults := append(faulty.InWatches(), faulty.Fault{Name: "none"})
	places := []api.Target{testbed.Upstream}
	for _, f := range faults {
		places = append(places, faulty.Start(t, testbed.Upstream, f))
	}
	// The first states need a moment to be complete.
	for i := range 6 {
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: "/api/v1/namespaces/watched" + suffix + "/configmaps", Body: api.JSON(objects.ConfigMap(fmt.Sprint("early-", i)))})
	}
	time.Sleep(200 * time.Millisecond)
	all := s.run(chance, places, requests, seconds)
	count := map[string]int{}
	for _, e := range require.Value(all[0][0].Frames())(t) {
		count[e.Event]++
	}
	if !last && (count["MODIFIED"] < 20 || count["DELETED"] < 10) {
		t.Logf("too few writes: %v", count)
		return false
	}
	for j, r := range requests {
		// The last proxy is the one without a fault.
		if !last && compare.IsLate(r, all[0][j], all[len(faults)][j]) {
			t.Logf("%v: its time was over before everything arrived", r)
			return false
		}
	}
	seen := make([][]string, len(faults))
	for i := range faults {
		for j, r := range requests {
			if difference := (compare.Sides{Right: testbed.Upstream, Asked: places[i+1]}).Differ(r, all[0][j], all[i+1][j]); difference != "" {
				seen[i] = append(seen[i], fmt.Sprintf("%v\n%s", r, difference))
			}
		}
	}
	faulty.Report(t, faults, seen)
	return true
}
