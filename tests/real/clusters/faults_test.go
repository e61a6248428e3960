package clusters

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/relay"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
	"watershed.test/real/internal/usage"
	"watershed.test/real/internal/watches"
	"watershed.test/real/internal/workload"
)

// TestWatchesLoseNothingWhenUpstreamFails opens a hundred watches through watershed and writes
// at random. Meanwhile API servers and connections fail. Each watch has to show exactly what
// happened, event by event. A watch at an undisturbed API server tells what happened.
func TestWatchesLoseNothingWhenUpstreamFails(t *testing.T) {
	t.Parallel()
	if testbed.Direct {
		t.Skip("needs a proxy: watches at the API server itself end")
	}
	c := require.Value(testbed.Start("--apiservers", "3"))(t)
	t.Cleanup(c.Stop)
	s := &workload.Stage{Cluster: c, Widget: objects.NewWidget(t), Stable: api.Target{Name: "keeper", URL: c.Servers[workload.StableServer], CA: c.CA, Tokens: c.Users}}
	s.Stable.Must(t, api.Request{Method: "POST", Path: objects.CRDPath, Body: s.Widget.Definition(false)})
	for i := range c.Servers {
		s.AwaitCustomType(t, i)
	}

	// The first part checks the test itself, at the API server.
	t.Run("no faults", func(t *testing.T) { withoutFaults(t, s) })
	t.Run("connections are cut", func(t *testing.T) { connectionsCut(t, s) })
	t.Run("servers restart in turn", func(t *testing.T) { serversInTurn(t, s) })
	t.Run("connections become black holes", func(t *testing.T) { blackHole(t, s) })
	t.Run("the only server restarts", func(t *testing.T) { onlyServer(t, s) })
}

// withoutFaults has neither a proxy nor a fault. Watches at the API server show what follows
// from the reference.
func withoutFaults(t *testing.T, s *workload.Stage) {
	p := s.Begin(t, api.Target{Name: "upstream", URL: s.Cluster.Servers[workload.FirstServer], CA: s.Cluster.CA, Tokens: s.Cluster.Users}, nil)
	w := p.Write(80)
	p.OpenWatches()
	time.Sleep(3 * time.Second)
	p.Finish(w)
}

// connectionsCut cuts connections all the time. The API servers have all the history, so no
// client notices.
func connectionsCut(t *testing.T, s *workload.Stage) {
	relays := []*relay.Relay{relay.Start(t, s.Cluster.Servers[workload.FirstServer]), relay.Start(t, s.Cluster.Servers[workload.SecondServer])}
	s.AwaitCustomType(t, workload.FirstServer)
	s.AwaitCustomType(t, workload.SecondServer)
	proxy := testbed.StartProxy(t, s.Cluster.ProxyKubeconfig, relays[0].URL(), relays[1].URL())
	p := s.Begin(t, proxy.Target, proxy)
	w := p.Write(140)
	p.OpenWatches()
	lists, resumes := workload.ProxyLists(t, proxy), proxy.Sum(t, "watershed_upstream_resumes_total", "")
	cuts, resumed := 0, 0
	began := time.Now()
	poll.Until(t, "enough connections are cut", func() error {
		time.Sleep(300*time.Millisecond + time.Duration(p.Chance.IntN(700))*time.Millisecond)
		for _, r := range relays {
			cuts += r.Cut(p.Chance)
		}
		resumed = proxy.Sum(t, "watershed_upstream_resumes_total", "") - resumes
		if cuts < 10 || resumed < 10 || time.Since(began) < 6*time.Second {
			return fmt.Errorf("%d connections were cut, upstream watches resumed %d times", cuts, resumed)
		}
		return nil
	})
	p.Finish(w)
	t.Logf("%d connections were cut, upstream watches resumed %d times", cuts, resumed)
	if after := workload.ProxyLists(t, proxy); !maps.Equal(lists, after) {
		t.Errorf("upstream was listed again: %v, and before %v", after, lists)
	}
}

// serversInTurn kills and restarts one of two API servers, then the other. The one that stays
// has the history, so no client notices.
func serversInTurn(t *testing.T, s *workload.Stage) {
	proxy := testbed.StartProxy(t, s.Cluster.ProxyKubeconfig, s.Cluster.Servers[workload.FirstServer], s.Cluster.Servers[workload.SecondServer])
	p := s.Begin(t, proxy.Target, proxy)
	s.AwaitCustomType(t, workload.FirstServer)
	s.AwaitCustomType(t, workload.SecondServer)
	w := p.Write(60)
	p.OpenWatches()
	lists := workload.ProxyLists(t, proxy)
	for _, server := range []int{workload.FirstServer, workload.SecondServer, workload.FirstServer, workload.SecondServer} {
		require.NoError(t, s.Cluster.Command(fmt.Sprint("kill ", server)))
		time.Sleep(time.Second)
		require.NoError(t, s.Cluster.Command(fmt.Sprint("start ", server)))
		s.AwaitCustomType(t, server)
		// The new server knows the history from its start on. Every type has to change before
		// the other server may go.
		p.WaitUntilSeen(require.Value(s.Stable.Revision())(t))
	}
	p.Finish(w)
	if after := workload.ProxyLists(t, proxy); !maps.Equal(lists, after) {
		t.Errorf("upstream was listed again: %v, and before %v", after, lists)
	}
}

// blackHole keeps connections to upstream open, but lets nothing through. TCP alone would
// notice after a quarter of an hour.
func blackHole(t *testing.T, s *workload.Stage) {
	r := relay.Start(t, s.Cluster.Servers[workload.FirstServer])
	proxy := testbed.StartProxy(t, s.Cluster.ProxyKubeconfig, r.URL())
	p := s.Begin(t, proxy.Target, proxy)
	w := p.Write(60)
	p.OpenWatches()
	lists := workload.ProxyLists(t, proxy)
	time.Sleep(time.Second)
	stuck, at := r.BlackHole(), time.Now()
	time.Sleep(2 * time.Second)
	p.Finish(w)
	t.Logf("%d connections were black holes; watches had caught up %v later", stuck, time.Since(at).Round(time.Second))
	if stuck == 0 {
		t.Error("there was no connection")
	}
	if after := workload.ProxyLists(t, proxy); !maps.Equal(lists, after) {
		t.Errorf("upstream was listed again: %v, and before %v", after, lists)
	}
}

// onlyServer kills and restarts the only API server while things change. The proxy has lost
// what happened and says so. Clients get a 410 and list again from the proxy, which itself
// lists once.
func onlyServer(t *testing.T, s *workload.Stage) {
	proxy := testbed.StartProxy(t, s.Cluster.ProxyKubeconfig, s.Cluster.Servers[workload.FirstServer])
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the proxy: %s", proxy.State("widgets"))
		}
	})
	p := s.Begin(t, proxy.Target, proxy)
	w := p.Write(80)
	p.Relists = true
	p.OpenWatches()
	lists := workload.ProxyLists(t, proxy)
	time.Sleep(2 * time.Second)
	require.NoError(t, s.Cluster.Command(fmt.Sprint("kill ", workload.FirstServer)))
	for _, w := range p.Watchers {
		w.Mutex.Lock()
		w.Forwarded, w.ForwardedLists = 0, 0
		w.Mutex.Unlock()
	}
	time.Sleep(1500 * time.Millisecond)
	require.NoError(t, s.Cluster.Command(fmt.Sprint("start ", workload.FirstServer)))
	time.Sleep(3 * time.Second)
	p.Finish(w)

	// Some requests are forwarded: while the API server is away for longer than the proxy
	// remembers tokens, and while the new server does not know the proxy's rights yet. Upstream
	// itself then sends the 410, even if memory has lost nothing. The proxy's 410 may follow
	// upstream's list.
	expired := 0
	passedOn := map[string]usage.Requests{}
	for _, w := range p.Watchers {
		all, own := w.Expired()
		expired += all
		if own > 1 {
			t.Errorf("%v got a 410 %d times, %d of them from the proxy", w, all, own)
		}
		listsPassedOn, watchesPassedOn := w.PassedOn()
		l := passedOn[w.View.Kind.Name]
		passedOn[w.View.Kind.Name] = usage.Requests{Lists: l.Lists + listsPassedOn, Watched: l.Watched + watchesPassedOn}
		there := &watches.Watcher{View: w.View, At: s.At(s.Stable)}
		_, state, err := there.ReadList(require.Value(there.Get(t.Context(), ""))(t))
		require.NoError(t, err)
		want := map[string]uint64{}
		for _, o := range state {
			want[o.Key] = o.Version
		}
		if got := w.Final(); !maps.Equal(got, want) {
			t.Errorf("%v came to %v, upstream to %v", w, got, want)
		}
	}
	t.Logf("%d of %d watches got a 410; forwarded: %+v", expired, len(p.Watchers), passedOn)

	// There is one list for each type and representation, however many clients there are.
	cost := map[string]int{}
	for name, n := range workload.ProxyLists(t, proxy) {
		cost[name] = n - lists[name]
	}
	t.Logf("the proxy listed again: %v", cost)
	// Otherwise it was not shown that a lost history is told.
	if expired == 0 || usage.Total(cost) == 0 {
		t.Errorf("%d watches got a 410, and the proxy listed again %v: no history was lost", expired, cost)
	}
	for name := range cost {
		t.Logf("lists of %s at the new server, by code: %v", name, usage.ListCodes(t, s.Cluster, name))
	}
	for name, n := range map[string]int{"configmaps": 2, "pods": 2, "widgets": 1} {
		if cost[name] > n {
			t.Errorf("the proxy listed %s %d times", name, cost[name])
		}
		// The new server counts from zero. It watches some types itself and answers forwarded
		// requests; such a watch may still be open.
		poll.Until(t, "what "+name+" cost the new server", func() error {
			more := passedOn[name]
			if l := usage.Measure(t, s.Cluster, name); l.Watching > n+2 || l.Lists > n+2+more.Lists {
				return fmt.Errorf("it is %+v, %+v of it forwarded; lists by code: %v", l, more, usage.ListCodes(t, s.Cluster, name))
			}
			return nil
		})
	}
}
