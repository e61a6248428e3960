package real

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// verified returns how many answers a proxy compared, by result.
func verified(t *testing.T, proxy *testbed.Proxy) map[string]int {
	t.Helper()
	counts := map[string]int{}
	proxy.AddByLabel(t, "watershed_verified_answers_total", "result", counts)
	return counts
}

// TestVerifiedAnswersAreUpstreams compares answers of all forms with upstream while other tests
// write. None differs. In shadow mode the same is compared, and upstream answers.
func TestVerifiedAnswersAreUpstreams(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy")
	}
	t.Parallel()
	ns := objects.Namespace(t)
	path := "/api/v1/namespaces/" + ns + "/configmaps"
	for _, name := range []string{"apple", "pear", "quince"} {
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: path, Body: api.JSON(objects.WithKind(objects.ConfigMap(name)))})
	}
	const protobuf = "application/vnd.kubernetes.protobuf"
	const metadata = ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	const unproven = "forward; reason=unproven"
	requests := []api.Request{
		{Path: "/api/v1/configmaps?resourceVersion=0"},
		{Path: "/api/v1/configmaps?resourceVersion=0", Accept: protobuf},
		{Path: path},
		{Path: path + "?limit=2", Accept: protobuf},
		{Path: path + "?resourceVersion=0", Accept: "application/json" + metadata},
		{Path: path + "?resourceVersion=0", Accept: protobuf + metadata},
		{Path: path + "?resourceVersion=0&labelSelector=app%3Dapple", Header: map[string]string{"Accept-Encoding": "gzip"}},
		{Path: path + "?resourceVersion=0&fieldSelector=metadata.name%21%3Dapple", Accept: protobuf},
		{Path: path + "/apple?resourceVersion=0"},
		{Path: path + "/apple?resourceVersion=0", Accept: protobuf},
	}
	for _, flags := range [][]string{{"--verify", "100%"}, {"--shadow"}} {
		proxy := testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig, append(flags, "--self-check-interval", "0s", "--log-level", "info,watershed::serve::verify=debug")...)
		compare := func(r api.Request) (answer api.Answer) {
			before := verified(t, proxy)["same"]
			poll.Until(t, fmt.Sprint(flags, r, " is compared"), func() error {
				answer = proxy.Send(t, r)
				// Upstream answers what costs it less than a proof that memory is current.
				if answer.Header.Get("X-Watershed-Source") == unproven {
					return nil
				}
				if counts := verified(t, proxy); counts["same"] == before {
					return fmt.Errorf("%d %v %v\n%s", answer.Status, answer.Header, counts, proxy.LogTail())
				}
				return nil
			})
			return answer
		}
		for _, r := range requests {
			source := compare(r).Header.Get("X-Watershed-Source")
			if isForwarded := strings.HasPrefix(source, "forward"); source != unproven && isForwarded != (flags[0] == "--shadow") {
				t.Errorf("%v %v: %s", flags, r, source)
			}
		}
		var first struct{ Metadata struct{ Continue string } }
		require.NoError(t, json.Unmarshal([]byte(proxy.Must(t, api.Request{Path: path + "?limit=2"}).Body), &first))
		compare(api.Request{Path: path + "?limit=2&continue=" + first.Metadata.Continue})
		if n := verified(t, proxy)["different"]; n != 0 {
			t.Errorf("%v: %d answers differ:\n%s", flags, n, proxy.LogTail())
		}
	}
}
