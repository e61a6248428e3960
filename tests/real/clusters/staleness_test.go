package clusters

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// TestStaleTypesAreNotServed kills the only API server for longer than a short --max-staleness.
// Answers from memory tell their age, then reads get 503, watches end without an error, and
// readiness fails. All of that ends by itself when the API server is back.
func TestStaleTypesAreNotServed(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy")
	}
	t.Parallel()
	c := require.Value(testbed.Start())(t)
	t.Cleanup(c.Stop)
	proxy := testbed.RunProxy(t, c.ProxyKubeconfig, "--max-staleness", "3s")
	// This one answers for as long as it takes to ask it.
	patient := testbed.RunProxy(t, c.ProxyKubeconfig, "--max-staleness", "10m")
	path := "/api/v1/namespaces"
	list := api.Request{Path: path + "?resourceVersion=0"}
	// What was granted at the very start is asked again two seconds later, which would fail.
	for _, p := range []*testbed.Proxy{proxy, patient} {
		p.Must(t, list)
	}
	time.Sleep(3 * time.Second)
	patient.Must(t, list)
	first := proxy.Must(t, list)
	if age := first.Header.Get("X-Watershed-Age"); age != "" {
		t.Errorf("it is followed and has the age %q", age)
	}
	var rest []byte
	var failure error
	ended := make(chan struct{})
	resp := require.Value(proxy.Open(context.Background(), api.Request{Path: path + "?watch=1&resourceVersion=" + api.VersionOf(t, first.Body)}))(t)
	go func() {
		defer close(ended)
		defer resp.Body.Close()
		rest, failure = io.ReadAll(resp.Body)
	}()

	require.NoError(t, c.Command("kill 0"))
	poll.Until(t, "an answer from memory tells its age", func() error {
		answer := patient.Send(t, list)
		source, age := answer.Header.Get("X-Watershed-Source"), answer.Header.Get("X-Watershed-Age")
		if source != "snapshot" || age == "" {
			return fmt.Errorf("%d from %s, age %q", answer.Status, source, age)
		}
		return nil
	})
	poll.Until(t, "the type is too old, and reads get 503", func() error {
		answer := proxy.Send(t, list)
		source := answer.Header.Get("X-Watershed-Source")
		seconds := proxy.Sum(t, "watershed_scope_staleness_seconds", "namespaces")
		if seconds < 3 || answer.Status != http.StatusServiceUnavailable {
			return fmt.Errorf("%d from %s, %d s old", answer.Status, source, seconds)
		}
		return nil
	})
	poll.Receive(t, "the end of the watch", ended)
	if failure != nil || strings.Contains(string(rest), "ERROR") {
		t.Errorf("the watch ended with %q, %v", rest, failure)
	}
	ready := func() string {
		resp := require.Value(http.Get(proxy.Admin + "/readyz?verbose"))(t)
		defer resp.Body.Close()
		return fmt.Sprint(resp.StatusCode, " ", string(require.Value(io.ReadAll(resp.Body))(t)))
	}
	poll.Until(t, "readiness fails", func() error {
		if report := ready(); !strings.HasPrefix(report, "503 ") || !strings.Contains(report, "[-]max-staleness failed") {
			return fmt.Errorf("%s", report)
		}
		return nil
	})

	require.NoError(t, c.Command("start 0"))
	made := c.Upstream().Must(t, api.Request{Method: "POST", Path: path, Body: `{"metadata":{"name":"after"}}`})
	poll.Until(t, "all is as before", func() error {
		answer := proxy.Send(t, list)
		source, age := answer.Header.Get("X-Watershed-Source"), answer.Header.Get("X-Watershed-Age")
		if source != "snapshot" || age != "" || !strings.Contains(answer.Body, `"name":"after"`) {
			return fmt.Errorf("%d from %s, age %q", answer.Status, source, age)
		}
		if report := ready(); !strings.HasPrefix(report, "200 ") {
			return fmt.Errorf("%s", report)
		}
		return nil
	})
	watch := proxy.Send(t, api.Request{Path: path + "?watch=1&timeoutSeconds=1&resourceVersion=0"})
	if source := watch.Header.Get("X-Watershed-Source"); source != "snapshot" || !strings.Contains(watch.Body, api.VersionOf(t, made.Body)) {
		t.Errorf("a new watch comes from %s: %s", source, watch.Body)
	}
}
