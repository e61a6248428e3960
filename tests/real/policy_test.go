package real

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
	"watershed.test/real/internal/usage"
)

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
			p := testbed.ProxyThrough(t, c.config)
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
			version := api.VersionOf(t, patched.Body)
			if c.metadata == "snapshot" {
				for _, accept := range []string{api.MetadataJSON, api.MetadataProtobuf} {
					r := api.Request{Path: path + "/one?resourceVersion=" + version, Accept: accept}
					want := testbed.Upstream.Must(t, r)
					poll.Until(t, fmt.Sprint(r, " is answered from memory"), func() error {
						got := testbed.Proxied.Must(t, r)
						if strings.Contains(got.Body, value) || strings.Contains(got.Body, encoded) {
							t.Fatalf("metadata with data: %q", got.Body)
						}
						if source := got.Header.Get("X-Watershed-Source"); source != "snapshot" {
							return errors.New(source)
						}
						if want.Body != got.Body {
							t.Fatalf("upstream: %q\nproxied:  %q", want.Body, got.Body)
						}
						return nil
					})
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
			if at := require.Value(usage.SearchMemory(p.PID, value, encoded))(t); (at != "") != c.remembered {
				t.Errorf("the data is in the process's memory: %q", at)
			}
			// The search finds what is there.
			if at := require.Value(usage.SearchMemory(p.PID, ns))(t); c.metadata == "snapshot" && at == "" {
				t.Error("not even the namespace is in the process's memory")
			}
			log := string(require.Value(os.ReadFile(p.Log))(t))
			told := regexp.MustCompile(`"level":"(INFO|WARN)".*"resource":"secrets","cache":"(onDemand|never|metadata)"`).FindStringSubmatch(log)
			wanted := map[string]string{"by default": "INFO never", "false": "INFO never", "metadata": "WARN metadata", "true": "WARN onDemand"}[c.name]
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
	testbed.ProxyThrough(t, "cache: metadata\nresources: [{resource: secrets, cache: metadata}]\n")
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
			if !strings.Contains(got.Body, api.VersionOf(t, made.Body)) {
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

// proven waits for an answer from memory with the proof that it is new enough, and returns it. If
// the machine stalls, the proof is late. Then upstream answers, for some seconds.
func proven(t *testing.T, to api.Target, r api.Request) api.Answer {
	t.Helper()
	var a api.Answer
	poll.Until(t, fmt.Sprint(r, " is answered with a proof"), func() error {
		a = to.Must(t, r)
		switch source := a.Header.Get("X-Watershed-Source"); source {
		case "linearizable":
			return nil
		case "forward; reason=unproven":
			return errors.New(source)
		default:
			t.Fatalf("%v is answered from %q", r, source)
			panic("unreachable")
		}
	})
	return a
}
