// Package usage counts what upstream and the proxy did, by their own metrics.
package usage

import (
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"watershed.test/real/internal/api"
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
var refused = regexp.MustCompile(`code="(401|403|429|5\d\d)"`)

// Minus returns the difference of two measurements.
func (l Requests) Minus(o Requests) Requests {
	return Requests{l.Watching - o.Watching, l.Lists - o.Lists, l.Watched - o.Watched}
}

// Measure reads the API server's own metrics.
func Measure(t *testing.T, c *testbed.Cluster, resource string) Requests {
	t.Helper()
	var l Requests
	text := c.Upstream().Must(t, api.Request{Path: "/metrics"}).Body
	for line := range strings.Lines(text) {
		if !strings.Contains(line, fmt.Sprintf(`resource="%s"`, resource)) || !strings.Contains(line, `subresource=""`) {
			continue
		}
		var n float64
		name, _, _ := strings.Cut(line, "{")
		fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &n)
		// Refused requests cost nothing. A server that has just started refuses them, because
		// it does not know any rights yet, or has not filled its cache of the type.
		if refused.MatchString(line) {
			continue
		}
		list, watch := strings.Contains(line, `verb="LIST"`), strings.Contains(line, `verb="WATCH"`)
		switch {
		case name == "apiserver_longrunning_requests" && watch:
			l.Watching += int(n)
		case name == "apiserver_request_total" && watch:
			l.Watched += int(n)
		case name == "apiserver_request_total" && list:
			l.Lists += int(n)
		}
	}
	return l
}

// ListCodes returns the number of lists that the API server answered, by code.
func ListCodes(t *testing.T, c *testbed.Cluster, resource string) map[string]int {
	t.Helper()
	codes := map[string]int{}
	for line := range strings.Lines(c.Upstream().Must(t, api.Request{Path: "/metrics"}).Body) {
		name, labels, _ := strings.Cut(line, "{")
		if name != "apiserver_request_total" || !strings.Contains(labels, fmt.Sprintf(`resource="%s"`, resource)) || !strings.Contains(labels, `verb="LIST"`) {
			continue
		}
		_, code, _ := strings.Cut(labels, `code="`)
		code, _, _ = strings.Cut(code, `"`)
		codes[code] += MetricValue(line)
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
	text := c.Upstream().Must(t, api.Request{Path: "/metrics"}).Body
	for _, name := range types {
		l := Measure(t, c, name)
		all.Watching[name], all.Watched[name], all.Lists[name] = l.Watching, l.Watched, l.Lists
		for line := range strings.Lines(text) {
			metric, labels, _ := strings.Cut(line, "{")
			if metric == "apiserver_response_sizes_sum" && strings.Contains(labels, fmt.Sprintf(`resource="%s"`, name)) && strings.Contains(labels, `verb="LIST"`) {
				all.Bytes[name] += MetricValue(line)
			}
		}
	}
	for line := range strings.Lines(require.Value(p.Metrics())(t)) {
		metric, labels, _ := strings.Cut(line, "{")
		i := slices.IndexFunc(types, func(name string) bool { return strings.Contains(labels, fmt.Sprintf(`resource="%s"`, name)) })
		if i < 0 {
			continue
		}
		switch {
		case metric == "watershed_freshness_checks_total" && strings.Contains(labels, `request="watch"`):
			all.AskedWatches[types[i]] += MetricValue(line)
		case metric == "watershed_freshness_checks_total":
			all.AskedLists[types[i]] += MetricValue(line)
		case metric == "watershed_requests_total" && strings.Contains(labels, `source="forward"`) && !strings.Contains(labels, `reason="not-a-read"`):
			all.Forwarded[labels] += MetricValue(line)
		case metric == "watershed_requests_total" && strings.Contains(labels, `verb="list"`) && strings.Contains(labels, `source="snapshot"`):
			all.Exact += MetricValue(line)
		}
	}
	return all
}

// CountReads reads from upstream's metrics how many reads of a type it has answered, by verb.
func CountReads(t *testing.T, at api.Target, resource string) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for line := range strings.Lines(at.Must(t, api.Request{Path: "/metrics"}).Body) {
		name, labels, _ := strings.Cut(line, "{")
		if name != "apiserver_request_total" || !strings.Contains(labels, fmt.Sprintf(`resource="%s"`, resource)) {
			continue
		}
		for _, verb := range []string{"GET", "LIST", "WATCH"} {
			if strings.Contains(labels, fmt.Sprintf(`verb="%s"`, verb)) {
				counts[verb] += MetricValue(line)
			}
		}
	}
	return counts
}

// InitialEvents returns the number of objects of a group that an API server looked at for what
// watches begin with.
func InitialEvents(t *testing.T, at api.Target, group string) (n int) {
	t.Helper()
	for line := range strings.Lines(at.Must(t, api.Request{Path: "/metrics"}).Body) {
		if name, labels, _ := strings.Cut(line, "{"); name == "apiserver_init_events_total" && label(labels, "group") == group {
			n += MetricValue(line)
		}
	}
	return n
}

// MetricValue returns the value of a line of metrics.
func MetricValue(line string) int {
	var n float64
	fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &n)
	return int(n)
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
	for line := range strings.Lines(at.Must(t, api.Request{Path: "/metrics"}).Body) {
		name, labels, _ := strings.Cut(line, "{")
		open := name == "apiserver_longrunning_requests"
		if !open && name != "apiserver_request_total" {
			continue
		}
		verb, what := label(labels, "verb"), label(labels, "resource")
		if what == "" {
			what = label(labels, "subresource")
		}
		if open && verb != "WATCH" || verb != "WATCH" && what == "leases" || what == "/metrics" {
			continue
		}
		kinds[verb+" "+what] += MetricValue(line)
	}
	return kinds
}

// label returns the value of a label of a metric.
func label(labels, name string) string {
	_, rest, _ := strings.Cut(","+labels, ","+name+`="`)
	value, _, _ := strings.Cut(rest, `"`)
	return value
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

// ProcessorTime returns the time that a process has had a processor so far.
func ProcessorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text := string(require.Value(os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)))(t))
	// The second field is a name in parentheses, which may contain spaces.
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	const user, system, ticks = 11, 12, 100
	sum := require.Value(strconv.Atoi(fields[user]))(t) + require.Value(strconv.Atoi(fields[system]))(t)
	return time.Duration(sum) * time.Second / ticks
}

// Lists counts an API server's lists of a resource and the bytes of their answers.
type Lists struct{ Requests, Bytes int }

// CountLists reads upstream's metrics.
func CountLists(t *testing.T, at api.Target, resource string) (l Lists) {
	t.Helper()
	for line := range strings.Lines(at.Must(t, api.Request{Path: "/metrics"}).Body) {
		name, labels, _ := strings.Cut(line, "{")
		if !strings.Contains(labels, fmt.Sprintf(`resource="%s"`, resource)) || !strings.Contains(labels, `verb="LIST"`) {
			continue
		}
		switch name {
		case "apiserver_request_total":
			l.Requests += MetricValue(line)
		case "apiserver_response_sizes_sum":
			l.Bytes += MetricValue(line)
		}
	}
	return l
}
