package real

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// through makes the test's proxied requests go through a watershed of its own, with a
// configuration or with none.
func through(t *testing.T, config string) *testbed.Proxy {
	t.Helper()
	if testbed.Direct {
		t.Skip("needs a proxy, whose memory it searches")
	}
	file := ""
	if config != "" {
		file = filepath.Join(t.TempDir(), "config.yaml")
		require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	}
	p := testbed.StartProxyWithConfig(t, file, testbed.Shared.ProxyKubeconfig)
	other := testbed.Proxied
	t.Cleanup(func() { testbed.Proxied = other })
	testbed.Proxied = p.Target
	return p
}

// TestSecretsAreKeptInMemoryOnlyIfConfigured searches the memory of the process for the data of
// secrets. It is there only if the configuration allows it; by default it is not.
func TestSecretsAreKeptInMemoryOnlyIfConfigured(t *testing.T) {
	for _, c := range []struct {
		name, config    string
		whole, metadata string
		remembered      bool
	}{
		{"by default", "", "forward; reason=policy", "forward; reason=policy", false},
		{"false", "resources: [{resource: secrets, cache: false}]", "forward; reason=policy", "forward; reason=policy", false},
		{"metadata", "resources: [{resource: secrets, cache: metadata}]", "forward; reason=policy", "snapshot", false},
		{"true", "resources: [{resource: secrets, cache: true}]", "snapshot", "snapshot", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := through(t, c.config)
			ns := objects.Namespace(t)
			path := "/api/v1/namespaces/" + ns + "/secrets"
			// Neither this process nor the proxy's client ever sends the value through the
			// proxy.
			value := rand.Text()
			encoded := base64.StdEncoding.EncodeToString([]byte(value))
			body := fmt.Sprintf(`{"metadata":{"name":"one","labels":{"of":"%s"}},"data":{"key":"%s"}}`, ns, encoded)
			testbed.Upstream.Must(t, api.Request{Method: "POST", Path: path, Body: body})

			// Reads in all representations open whatever scopes the configuration allows.
			sources := func(accepts []string, path, want string) {
				t.Helper()
				for _, accept := range accepts {
					r := api.Request{Path: path, Accept: accept}
					if strings.HasPrefix(want, "forward") {
						// The answer contains only other objects, because a forwarded answer
						// passes through the process.
						r.Path += "&labelSelector=of%3Dnobody"
					}
					if got := testbed.Proxied.Must(t, r).Header.Get("X-Watershed-Source"); got != want {
						t.Errorf("%v as %q is answered from %q, not %q", r, accept, got, want)
					}
				}
			}
			sources([]string{"", api.ProtobufType}, path+"?resourceVersion=0", c.whole)
			sources([]string{api.MetadataListJSON, api.MetadataListProtobuf}, path+"?resourceVersion=0", c.metadata)
			// A second write arrives by the watches, if there are any.
			patched := testbed.Upstream.Must(t, api.Request{Method: "PATCH", Path: path + "/one", ContentType: api.MergePatch, Body: `{"metadata":{"annotations":{"a":"b"}}}`})
			version := versionOf(t, patched.Body)
			if c.metadata == "snapshot" {
				for _, accept := range []string{api.MetadataJSON, api.MetadataProtobuf} {
					r := api.Request{Path: path + "/one?resourceVersion=" + version, Accept: accept}
					want, got := testbed.Upstream.Must(t, r), testbed.Proxied.Must(t, r)
					if want.Body != got.Body || got.Header.Get("X-Watershed-Source") != "snapshot" {
						t.Errorf("upstream: %q\nproxied:  %q", want.Body, got.Body)
					}
					if strings.Contains(got.Body, value) || strings.Contains(got.Body, encoded) {
						t.Errorf("metadata with data: %q", got.Body)
					}
				}
			}
			metrics := require.Value(p.Metrics())(t)
			for _, content := range []string{"objects", "metadata"} {
				scope := fmt.Sprintf(`resource="secrets",encoding="json",content="%s"`, content)
				want := content == "objects" && c.whole == "snapshot" || content == "metadata" && c.name == "metadata"
				if strings.Contains(metrics, scope) != want {
					t.Errorf("the published text contains %s: %v", scope, !want)
				}
			}
			if at := require.Value(search(p.PID, value, encoded))(t); (at != "") != c.remembered {
				t.Errorf("the data is in the process's memory: %q", at)
			}
			// The search finds what is there.
			if at := require.Value(search(p.PID, ns))(t); c.metadata == "snapshot" && at == "" {
				t.Error("not even the namespace is in the process's memory")
			}
			log := string(require.Value(os.ReadFile(p.Log))(t))
			told := regexp.MustCompile(`"level":"(INFO|WARN)".*"resource":"secrets","cache":"(demand|never|metadata)"`).FindStringSubmatch(log)
			wanted := map[string]string{"by default": "INFO never", "false": "INFO never", "metadata": "WARN metadata", "true": "WARN demand"}[c.name]
			if told == nil || told[1]+" "+told[2] != wanted {
				t.Errorf("the log says %q, not %q", told, wanted)
			}

			// All answers equal upstream's, whoever gives them.
			compare.SameAnswers(t, compare.Reads(t, path, "one", "labelSelector=of", "fieldSelector=type%3DOpaque"))
		})
	}
}

// TestReadsMatchUpstreamWithOnlyMetadataCached caches nothing but metadata. Reads of metadata
// equal upstream's byte for byte, and so do all others.
func TestReadsMatchUpstreamWithOnlyMetadataCached(t *testing.T) {
	through(t, "cache: metadata\nresources: [{resource: secrets, cache: metadata}]\n")
	t.Run("metadata comes from memory", metadataIsUpstreams)
	t.Run("metadata of converted types comes from memory and the rest is forwarded", func(t *testing.T) {
		requests := convertedReads(t)
		compare.SameAnswers(t, requests)
		for _, r := range requests {
			want := "snapshot"
			if r.Accept == "" {
				want = "forward; reason=policy"
			}
			if source := testbed.Proxied.Must(t, r).Header.Get("X-Watershed-Source"); source != want {
				t.Errorf("%v as %q is answered from %q", r, r.Accept, source)
			}
		}
	})
	t.Run("consistent reads come from memory", func(t *testing.T) {
		path := "/api/v1/namespaces/" + objects.Namespace(t) + "/secrets"
		for i := range 20 {
			name := fmt.Sprintf("s-%d", i)
			made := testbed.Upstream.Must(t, api.Request{Method: "POST", Path: path, Body: `{"metadata":{"name":"` + name + `"}}`})
			r := api.Request{Path: path, Accept: []string{api.MetadataListJSON, api.MetadataListProtobuf}[i%2]}
			got := proven(t, testbed.Proxied, r)
			if !strings.Contains(got.Body, versionOf(t, made.Body)) {
				t.Fatalf("%s is missing in a later list: %q", name, got.Body)
			}
			if want := testbed.Upstream.Must(t, r); len(want.Body) != len(got.Body) {
				t.Errorf("upstream: %q\nproxied:  %q", want.Body, got.Body)
			}
		}
	})
	t.Run("all other reads match upstream", func(t *testing.T) {
		ns := objects.Namespace(t)
		w := objects.NewWidget(t)
		w.Define(t, testbed.Upstream)
		w.AwaitServed(t, testbed.Proxied)
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: w.Path(ns, ""), Body: w.Object("one", 1)})
		compare.SameAnswers(t, compare.Reads(t, w.Path(ns, ""), "one", "labelSelector=a", "fieldSelector=spec.size%3D1"))
		nodes := api.Request{Path: "/api/v1/nodes?resourceVersion=0&fieldSelector=metadata.namespace%3Dx", Accept: api.MetadataListJSON}
		if a := compare.Same(t, nodes); a.Status != 400 {
			t.Errorf("%v: %d", nodes, a.Status)
		}
	})
}

// proven returns an answer from memory with the proof that it is new enough. The proof may take
// three seconds. If the machine stalls for longer, upstream answers, and the request is
// repeated.
func proven(t *testing.T, to api.Target, r api.Request) api.Answer {
	t.Helper()
	for range 10 {
		asked := time.Now()
		a := to.Must(t, r)
		source := a.Header.Get("X-Watershed-Source")
		if source == "fence" {
			return a
		}
		if time.Since(asked) < 3*time.Second {
			t.Fatalf("%v is answered from %q", r, source)
		}
	}
	t.Fatal("this machine is too slow for the proof")
	panic("unreachable")
}

func versionOf(t *testing.T, object string) string {
	t.Helper()
	var made metav1.PartialObjectMetadata
	require.NoError(t, json.Unmarshal([]byte(object), &made))
	return made.ResourceVersion
}

// search looks for texts in the memory of a child process, and returns the part of it that has
// one.
func search(pid int, texts ...string) (string, error) {
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return "", err
	}
	defer maps.Close()
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return "", err
	}
	defer memory.Close()
	const overlap = 4096
	buffer := make([]byte, 4<<20)
	read := 0
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		var from, to uint64
		var rights string
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s", &from, &to, &rights); err != nil {
			return "", fmt.Errorf("%q: %w", lines.Text(), err)
		}
		if rights[0] != 'r' || to > math.MaxInt64 {
			continue
		}
		for at := from; at < to; {
			n, err := memory.ReadAt(buffer[:min(uint64(len(buffer)), to-at)], int64(at))
			read += n
			for _, text := range texts {
				if bytes.Contains(buffer[:n], []byte(text)) {
					return lines.Text(), nil
				}
			}
			// The kernel's own pages cannot be read.
			if err != nil && !errors.Is(err, io.EOF) || n == 0 {
				break
			}
			if at += uint64(n); at < to {
				at -= uint64(min(overlap, n-1))
			}
		}
	}
	if read < 1<<20 {
		return "", fmt.Errorf("only %d bytes could be read", read)
	}
	return "", lines.Err()
}
