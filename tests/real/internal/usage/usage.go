// Package usage counts what upstream and the proxy did, by their own metrics.
package usage

import (
	"cmp"
	"fmt"
	"io"
	"iter"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/metrics"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// Total returns the sum of all counts.
func Total(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// Requests holds the API server's counts of the requests for one resource.
type Requests struct {
	// Watching is the number of open watches. Lists and Watched are the numbers of lists and
	// watches that have ended.
	Watching, Lists, Watched int
}

// refused matches the codes of requests that an API server does not carry out.
var refused = regexp.MustCompile(`^(401|403|429|5\d\d)$`)

// Minus returns the difference of two measurements.
func (l Requests) Minus(o Requests) Requests {
	return Requests{l.Watching - o.Watching, l.Lists - o.Lists, l.Watched - o.Watched}
}

// Measure reads the API server's own metrics.
func Measure(t *testing.T, c *testbed.Cluster, resource string) Requests {
	t.Helper()
	var l Requests
	for sample := range samples(t, c.Upstream()) {
		// Refused requests cost nothing. A server that has just started refuses them, because
		// it does not know any rights yet, or has not filled its cache of the type.
		if sample.Label("resource") != resource || sample.Label("subresource") != "" || refused.MatchString(sample.Label("code")) {
			continue
		}
		list, watch := sample.Label("verb") == "LIST", sample.Label("verb") == "WATCH"
		switch {
		case sample.Name == "apiserver_longrunning_requests" && watch:
			l.Watching += int(sample.Value)
		case sample.Name == "apiserver_request_total" && watch:
			l.Watched += int(sample.Value)
		case sample.Name == "apiserver_request_total" && list:
			l.Lists += int(sample.Value)
		}
	}
	return l
}

// ListCodes returns the number of lists that the API server answered, by code.
func ListCodes(t *testing.T, c *testbed.Cluster, resource string) map[string]int {
	t.Helper()
	codes := map[string]int{}
	for sample := range samples(t, c.Upstream()) {
		if sample.Name == "apiserver_request_total" && sample.Label("resource") == resource && sample.Label("verb") == "LIST" {
			codes[sample.Label("code")] += int(sample.Value)
		}
	}
	return codes
}

// Costs holds upstream's counts for the watched types, and the proxy's counts for the same.
type Costs struct {
	// Watching is the number of open watches, and Watched that of ended ones. Lists is the
	// number of lists, and Bytes their total size.
	Watching, Watched, Lists, Bytes map[string]int
	// These count the requests of the fence: lists of metadata, and watches.
	AskedLists, AskedWatches map[string]int
	// Forwarded counts the forwarded requests by reason.
	Forwarded map[string]int
	Exact     int
}

// CountCosts reads the metrics of both for some types.
func CountCosts(t *testing.T, c *testbed.Cluster, p *testbed.Proxy, types []string) Costs {
	t.Helper()
	of := func() map[string]int { return map[string]int{} }
	all := Costs{of(), of(), of(), of(), of(), of(), of(), 0}
	for _, name := range types {
		l := Measure(t, c, name)
		all.Watching[name], all.Watched[name], all.Lists[name] = l.Watching, l.Watched, l.Lists
		all.Bytes[name] = CountLists(t, c.Upstream(), name).Bytes
	}
	for sample := range metrics.Samples(require.Value(p.Metrics())(t)) {
		name, n := sample.Label("resource"), int(sample.Value)
		if !slices.Contains(types, name) {
			continue
		}
		switch source := sample.Label("source"); {
		case sample.Name == "watershed_freshness_checks_total" && sample.Label("request") == "watch":
			all.AskedWatches[name] += n
		case sample.Name == "watershed_freshness_checks_total":
			all.AskedLists[name] += n
		case sample.Name == "watershed_requests_total" && source == "forward" && sample.Label("reason") != "not-a-read":
			all.Forwarded[sample.Labels] += n
		case sample.Name == "watershed_requests_total" && source == "snapshot" && sample.Label("verb") == "list":
			all.Exact += n
		}
	}
	return all
}

// CountReads reads from upstream's metrics how many reads of a type it has answered, by verb.
func CountReads(t *testing.T, at api.Target, resource string) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for sample := range samples(t, at) {
		verb := sample.Label("verb")
		if sample.Name == "apiserver_request_total" && sample.Label("resource") == resource && slices.Contains([]string{"GET", "LIST", "WATCH"}, verb) {
			counts[verb] += int(sample.Value)
		}
	}
	return counts
}

// InitialEvents returns the number of objects of a group that an API server looked at for what
// watches begin with.
func InitialEvents(t *testing.T, at api.Target, group string) (n int) {
	t.Helper()
	for sample := range samples(t, at) {
		if sample.Name == "apiserver_init_events_total" && sample.Label("group") == group {
			n += int(sample.Value)
		}
	}
	return n
}

// Growth returns the counts that grew, and by how much.
func Growth(from, to map[string]int) map[string]int {
	by := map[string]int{}
	for name, n := range to {
		if n != from[name] {
			by[name] = n - from[name]
		}
	}
	return by
}

// ByteCounter passes connections to a server and counts the bytes that the server sends.
type ByteCounter struct {
	listener net.Listener
	Sent     atomic.Int64
}

// StartByteCounter starts a counter in front of the server of a URL.
func StartByteCounter(t *testing.T, server string) *ByteCounter {
	t.Helper()
	c := &ByteCounter{listener: require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)}
	to := strings.TrimPrefix(server, "https://")
	go func() {
		for {
			client, err := c.listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer client.Close()
				server, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer server.Close()
				go func() {
					io.Copy(server, client)
					server.Close()
				}()
				io.Copy(client, io.TeeReader(server, c))
			}()
		}
	}()
	t.Cleanup(func() { c.listener.Close() })
	return c
}

// Write counts bytes from the server.
func (c *ByteCounter) Write(p []byte) (int, error) {
	c.Sent.Add(int64(len(p)))
	return len(p), nil
}

// URL returns the address for clients.
func (c *ByteCounter) URL() string { return "https://" + c.listener.Addr().String() }

// Asked holds upstream's counts of requests that others than this test send.
type Asked struct{ Lists, Watches, Reviews, Others int }

// Minus returns the difference of two counts.
func (a Asked) Minus(b Asked) Asked {
	return Asked{a.Lists - b.Lists, a.Watches - b.Watches, a.Reviews - b.Reviews, a.Others - b.Others}
}

// CountAsked reads upstream's metrics.
func CountAsked(t *testing.T, at api.Target) (a Asked) {
	t.Helper()
	for kind, n := range CountKinds(t, at) {
		switch verb, what, _ := strings.Cut(kind, " "); {
		case verb == "WATCH":
			a.Watches += n
		case verb == "LIST":
			a.Lists += n
		case strings.HasSuffix(what, "accessreviews") || strings.HasSuffix(what, "tokenreviews"):
			a.Reviews += n
		case verb == "GET":
			a.Others += n
		}
	}
	return a
}

// CountKinds reads from upstream's metrics how many requests of each kind came from others than this
// test and the control plane. A kind is a verb, a space, and a resource or a path. Open watches count.
func CountKinds(t *testing.T, at api.Target) map[string]int {
	t.Helper()
	kinds := map[string]int{}
	for sample := range samples(t, at) {
		open := sample.Name == "apiserver_longrunning_requests"
		if !open && sample.Name != "apiserver_request_total" {
			continue
		}
		verb, what := sample.Label("verb"), cmp.Or(sample.Label("resource"), sample.Label("subresource"))
		if open && verb != "WATCH" || verb != "WATCH" && what == "leases" || what == "/metrics" {
			continue
		}
		kinds[verb+" "+what] += int(sample.Value)
	}
	return kinds
}

// samples returns the metrics of an API server.
func samples(t *testing.T, at api.Target) iter.Seq[metrics.Sample] {
	t.Helper()
	return metrics.Samples(at.Must(t, api.Request{Path: "/metrics"}).Body)
}

// ResidentBytes returns the memory of a process in bytes.
func ResidentBytes(t *testing.T, pid int) int64 {
	t.Helper()
	for line := range strings.Lines(string(require.Value(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(t))) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			return int64(require.Value(strconv.Atoi(strings.Fields(rest)[0]))(t)) << 10
		}
	}
	t.Fatalf("no VmRSS of process %d", pid)
	return 0
}

// Lists counts an API server's lists of a resource and the bytes of their answers.
type Lists struct{ Requests, Bytes int }

// CountLists reads upstream's metrics.
func CountLists(t *testing.T, at api.Target, resource string) (l Lists) {
	t.Helper()
	for sample := range samples(t, at) {
		if sample.Label("resource") != resource || sample.Label("verb") != "LIST" {
			continue
		}
		switch sample.Name {
		case "apiserver_request_total":
			l.Requests += int(sample.Value)
		case "apiserver_response_sizes_sum":
			l.Bytes += int(sample.Value)
		}
	}
	return l
}
