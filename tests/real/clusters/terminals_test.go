package clusters

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/fleet"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/parallel"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
	"watershed.test/real/internal/usage"
)

// terminals is the number of people who look at the same table.
const terminals = 50

// terminalRun is what the refreshes of all terminals cost upstream.
type terminalRun struct {
	pages, lists, bytes int
	processor, lasted   time.Duration
}

func (r terminalRun) String() string {
	return fmt.Sprintf("%d pages: upstream answered %d lists of pods with %d bytes, and took %v of processor time in %v", r.pages, r.lists, r.bytes, r.processor, r.lasted)
}

// TestTerminalsCostUpstreamLittle has fifty terminals refresh `kubectl get pods`, directly and
// through the proxy, and counts upstream's lists of pods and their bytes by its own metrics. The
// reads are consistent: kubectl sends no version.
//
// It needs a machine that keeps up with the terminals, or proofs come late and reads are
// forwarded. So `make simulate-terminals` runs it, and `make test` does not.
func TestTerminalsCostUpstreamLittle(t *testing.T) {
	if testbed.Direct || os.Getenv("TERMINAL_PODS") == "" {
		t.Skip("needs a proxy and a machine of its own: make simulate-terminals")
	}
	pods, refreshes := fromEnvironment(t, "TERMINAL_PODS", 520), fromEnvironment(t, "TERMINAL_REFRESHES", 2)
	pause := time.Duration(fromEnvironment(t, "TERMINAL_PAUSE_MS", 500)) * time.Millisecond
	c := require.Value(testbed.Start())(t)
	t.Cleanup(c.Stop)
	p := testbed.StartProxy(t, c.ProxyKubeconfig)
	at := c.Upstream()
	const path = "/api/v1/namespaces/default/pods"
	parallel.ForEach(8, make([]int, pods), func(i, _ int) {
		pod := objects.Pod(fmt.Sprintf("pod-%05d", i), fmt.Sprint("node-", i%50))
		at.Must(t, api.Request{Method: "POST", Path: path, Body: api.JSON(pod)})
	})
	// Upstream's own cache and the proxy's are filled, and the proxy has learned the columns.
	poll.Until(t, "tables come from memory", func() error {
		answer := p.Must(t, api.Request{Path: path + "?limit=500", Accept: fleet.AcceptOfKubectl})
		if source := answer.Header.Get("X-Watershed-Source"); source != "linearizable" {
			return fmt.Errorf("the source is %q", source)
		}
		return nil
	})
	for _, written := range []struct{ what, path string }{
		{"pods are written", path + "/pod-00000"},
		{"others are written", "/api/v1/namespaces/default"},
	} {
		t.Run(written.what, func(t *testing.T) {
			stop := writeSteadily(t, at, written.path)
			defer stop()
			nobody := measureUpstream(t, c, func(*terminalRun) { time.Sleep(time.Duration(refreshes) * pause) })
			direct := runTerminals(t, c, at, path, pods, refreshes, pause, nil)
			var proxied terminalRun
			var tally *fleet.Tally
			// Proofs come late on a machine that stalls, and their reads are forwarded.
			for range 4 {
				tally = fleet.NewTally()
				proxied = runTerminals(t, c, p.Target, path, pods, refreshes, pause, tally)
				if forwarded(tally)*10 <= proxied.pages {
					break
				}
				t.Logf("%d of %d pages were forwarded", forwarded(tally), proxied.pages)
			}
			t.Logf("%d terminals, %d refreshes of %d pods each:\nnobody: %v\ndirectly: %v\nthrough the proxy: %v\n%s",
				terminals, refreshes, pods, nobody, direct, proxied, fleet.Rows(tally.Reads()))
			if proxied.bytes*5 > direct.bytes {
				t.Errorf("upstream sent %d bytes, and %d without the proxy", proxied.bytes, direct.bytes)
			}
			if count := forwarded(tally); count*10 > proxied.pages {
				t.Errorf("%d of %d pages were forwarded", count, proxied.pages)
			}
		})
	}
}

// forwarded returns the number of answers that came from upstream.
func forwarded(tally *fleet.Tally) (forwarded int) {
	for read, count := range tally.Reads() {
		if read.Forwarded() {
			forwarded += count
		}
	}
	return forwarded
}

// writeSteadily patches an object ten times a second. The returned function ends that.
func writeSteadily(t *testing.T, at api.Target, path string) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	writer.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ctx.Err() == nil; n++ {
			at.Try(api.Request{Method: "PATCH", Path: path, ContentType: api.MergePatch, Body: fmt.Sprintf(`{"metadata":{"annotations":{"n":"%d"}}}`, n)})
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	})
	return func() {
		cancel()
		writer.Wait()
	}
}

// runTerminals has all terminals refresh, one shortly after the other, and measures upstream.
func runTerminals(t *testing.T, c *testbed.Cluster, to api.Target, path string, rows, refreshes int, pause time.Duration, tally *fleet.Tally) terminalRun {
	t.Helper()
	return measureUpstream(t, c, func(run *terminalRun) {
		var all sync.WaitGroup
		var mutex sync.Mutex
		for i := range terminals {
			all.Go(func() {
				terminal := fleet.NewTerminal(to, path, tally)
				defer terminal.Close()
				time.Sleep(pause * time.Duration(i) / terminals)
				shown, pages, err := terminal.Run(t.Context(), refreshes, pause)
				mutex.Lock()
				defer mutex.Unlock()
				run.pages += pages
				if err != nil || shown != rows {
					t.Errorf("%s: %d of %d rows: %v", to.Name, shown, rows, err)
				}
			})
		}
		all.Wait()
	})
}

// measureUpstream measures what upstream does meanwhile.
func measureUpstream(t *testing.T, c *testbed.Cluster, meanwhile func(run *terminalRun)) (run terminalRun) {
	t.Helper()
	pid, began := c.Pids["apiserver-0"], time.Now()
	before, processor := usage.CountLists(t, c.Upstream(), "pods"), usage.ProcessorTime(t, pid)
	meanwhile(&run)
	run.lasted = time.Since(began).Round(time.Millisecond)
	run.processor = usage.ProcessorTime(t, pid) - processor
	lists := usage.CountLists(t, c.Upstream(), "pods")
	run.lists, run.bytes = lists.Requests-before.Requests, lists.Bytes-before.Bytes
	return run
}
