package real

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/testbed"
)

// askers are ways to ask for JSON that is indented, and some that only look like it.
var askers = []struct{ agent, query string }{
	{"curl/8.9.1", ""}, {"Wget/1.25.0", ""}, {"Mozilla/5.0 (X11; Linux x86_64)", ""}, {"kubectl/v1.37.1", "pretty=true"}, {"", "pretty=1"},
	{"curl/8.9.1", "pretty=false"}, {"curl/8.9.1", "pretty="}, {"curl/8.9.1", "pretty=yes"}, {"curl/8.9.1", "p%72etty=0"}, {"", "p%72etty=1"},
	{"", "x=pretty&pretty=T&pretty=0"}, {"Curl/8", ""}, {"my-curl/8", ""}, {"Mozilla/4.0", ""},
}

// askedBy returns a request as one of the askers sends it.
func askedBy(r api.Request, agent, query string) api.Request {
	r.Header = maps.Clone(r.Header)
	if r.Header == nil {
		r.Header = map[string]string{}
	}
	if agent != "" {
		r.Header["User-Agent"] = agent
	}
	if query != "" {
		separator := "?"
		if strings.Contains(r.Path, "?") {
			separator = "&"
		}
		r.Path += separator + query
	}
	return r
}

// furnishOdd makes objects whose JSON has whatever an indenter could get wrong. It returns
// collections and the name of an object in each.
func furnishOdd(t *testing.T) map[string]string {
	t.Helper()
	ns := objects.Namespace(t)
	make := func(path, body string) { testbed.Upstream.Must(t, api.Request{Method: "POST", Path: path, Body: body}) }
	in := func(plural string) string { return "/api/v1/namespaces/" + ns + "/" + plural }
	for i, text := range []string{`{[\"a\": 1,\n\t2]}`, `<&> \u2028 \u2029 \\\" \\`, `äöü 🌊 \u0001 \u007f`, `  `} {
		make(in("configmaps"), fmt.Sprintf(`{"metadata":{"name":"odd-%d","labels":{"odd":"%d"},"annotations":{"note":"%s"}},"data":{"k":"%s","none":""}}`, i, i%2, text, text))
	}
	make(in("pods"), `{"metadata":{"name":"odd"},"spec":{"containers":[{"name":"c","image":"i","args":["{","}",",","\""],"resources":{}}],"volumes":[{"name":"v","emptyDir":{}}]}}`)
	history := "/apis/apps/v1/namespaces/" + ns + "/controllerrevisions"
	make(history, `{"metadata":{"name":"odd"},"revision":9007199254740993,"data":{ "b": [ ], "a": { }, "n": null, "f": 1.50, "e": 1e3, "t": "<&>" }}`)

	w := objects.NewWidget(t)
	definition := strings.Replace(w.Definition(false), `"properties":{"size"`, `"x-kubernetes-preserve-unknown-fields":true,"properties":{"size"`, 1)
	make(objects.CRDPath, definition)
	t.Cleanup(func() { testbed.Upstream.Try(api.Request{Method: "DELETE", Path: objects.CRDPath + "/" + w.Name()}) })
	for _, to := range testbed.Targets() {
		w.AwaitServed(t, to)
	}
	empty := w.Path(objects.Namespace(t), "")
	odd := `"empty":{},"none":[],"nothing":null,"within":[[],{},[[null,true]]],"numbers":[9007199254740993,-9223372036854775808,1.5,1e21,1e-9,-0.0,100000000.0,0.1],` +
		`"texts":["{[,:]}","\\\"","<&>","\u2028"],"":"","{}":{"a\"b":{"[":"]"}},"deep":` + strings.Repeat("[", 200) + strings.Repeat("]", 200)
	make(w.Path(ns, ""), fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Widget","metadata":{"name":"odd"},"spec":{"size":1,%s}}`, w.Group, odd))
	make(w.Path(ns, ""), w.Object("plain", 2))
	return map[string]string{in("configmaps"): "odd-1", in("pods"): "odd", history: "odd", w.Path(ns, ""): "odd", empty: "nobody"}
}

// TestIndentedAnswersMatchUpstream reads as curl, wget, browsers and pretty=true do, for which
// upstream indents its JSON: gets, lists, pages, metadata, watches and refusals are upstream's,
// byte for byte, and come from memory.
func TestIndentedAnswersMatchUpstream(t *testing.T) {
	// plain are the requests for JSON, and others those for further representations.
	var plain, others []api.Request
	for collection, name := range furnishOdd(t) {
		for i, r := range compare.Reads(t, collection, name, "fieldSelector=metadata.name%3D"+name, "labelSelector=odd%3D1", "labelSelector=nothing") {
			requests := &others
			if r.Accept == "" {
				requests = &plain
			}
			// Every read as curl, and each asker in turn.
			*requests = append(*requests, askedBy(r, "curl/8.9.1", ""))
			for j, a := range askers {
				if (i+j)%5 == 0 {
					*requests = append(*requests, askedBy(r, a.agent, a.query))
				}
			}
		}
	}
	compare.CompareAll(t, others).RequireSources("snapshot", "linearizable")
	found := compare.CompareAll(t, plain)
	found.RequireSources("snapshot", "linearizable")
	for source, n := range found.Sources {
		if strings.HasPrefix(source, "forward") && !slices.Contains(forwardedAnyway, source) {
			t.Errorf("%d answers are from %q", n, source)
		}
	}
}

// forwardedAnyway are the sources of forwarded reads that have nothing to do with their form: gets,
// proofs that are late on a busy machine, and versions that are not in memory.
var forwardedAnyway = []string{"forward; reason=consistent-read", "forward; reason=unproven", "forward; reason=exact-version"}

// TestFirstTryWithCurlShowsASnapshot lists like a person who tries the proxy.
func TestFirstTryWithCurlShowsASnapshot(t *testing.T) {
	if testbed.Direct {
		t.Skip("upstream names no source")
	}
	objects.Namespace(t)
	r := askedBy(api.Request{Path: "/api/v1/namespaces?resourceVersion=0"}, "curl/8.9.1", "")
	poll.Until(t, "namespaces are held", func() error {
		a, err := testbed.Proxied.Try(r)
		if err == nil && a.Header.Get("X-Watershed-Source") != "snapshot" {
			err = fmt.Errorf("answered from %q", a.Header.Get("X-Watershed-Source"))
		}
		return err
	})
	if a := testbed.Proxied.Must(t, r); !strings.HasPrefix(a.Body, "{\n  \"kind\": \"NamespaceList\",\n") {
		t.Errorf("it is not indented: %s", api.Excerpt(a.Body, 0))
	}
}

// TestIndentedRefusalsMatchUpstream compares what is refused: by authentication, authorization
// and the handlers, in each encoding.
func TestIndentedRefusalsMatchUpstream(t *testing.T) {
	ns := objects.Namespace(t)
	here := "/api/v1/namespaces/" + ns + "/configmaps"
	testbed.Proxied.Must(t, api.Request{Path: here + "?resourceVersion=0"})
	var requests []api.Request
	for _, path := range []string{
		here + "/nobody?resourceVersion=0", here + "/nobody", here + "?resourceVersion=0", here + "?watch=1&resourceVersion=0&timeoutSeconds=1",
		here + "?resourceVersion=1&resourceVersionMatch=Exact", here + "?resourceVersion=x", here + "?labelSelector=%3D%3D", here + "?limit=1&continue=x",
		here + "?watch=1&resourceVersion=1&timeoutSeconds=1", here + "?watch=1&resourceVersion=x", here + "?watch=1&sendInitialEvents=true&timeoutSeconds=1",
		here + "?resourceVersion=100000000", here + "?watch=1&resourceVersion=100000000&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=1",
	} {
		for _, user := range []string{"", "alice", "-", "?"} {
			for _, accept := range []string{"", "*/*", "application/json", api.ProtobufType, api.ProtobufType + ",application/json", api.MetadataJSON, api.TableJSON, "application/json;pretty=1", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"} {
				requests = append(requests, askedBy(api.Request{Path: path, User: user, Accept: accept}, "curl/8.9.1", ""))
			}
		}
		for _, a := range askers {
			requests = append(requests, askedBy(api.Request{Path: path, User: "alice"}, a.agent, a.query))
		}
		impersonated := askedBy(api.Request{Path: path, User: "alice"}, "curl/8.9.1", "")
		impersonated.Header["Impersonate-User"] = "bob"
		requests = append(requests, impersonated)
	}
	found := compare.CompareAll(t, requests)
	if !testbed.Direct && found.Sources["access"] == 0 {
		t.Errorf("nothing is refused here: %v", found.Sources)
	}
}

// TestLargeIndentedAnswersAreCompressedLikeUpstream compares lists and objects around upstream's
// threshold of compression, which the indented bytes count for.
func TestLargeIndentedAnswersAreCompressedLikeUpstream(t *testing.T) {
	ns := objects.Namespace(t)
	here := "/api/v1/namespaces/" + ns + "/configmaps"
	put := func(name, data string) {
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: here, Body: fmt.Sprintf(`{"metadata":{"name":"%s","labels":{"app":"%s"}},"data":{%s}}`, name, name, data)})
	}
	put("huge", fmt.Sprintf(`"text":"%s"`, strings.Repeat("x", 200_000)))
	put("large", fmt.Sprintf(`"text":"%s"`, strings.Repeat("some text, ", 40_000)))
	// Indented, the object is above the threshold, and as it is held it is below.
	var members []string
	for i := range 8_000 {
		members = append(members, fmt.Sprintf(`"k%06d":""`, i))
	}
	put("around", strings.Join(members, ","))
	for i := range 100 {
		put(fmt.Sprintf("many-%d", i), fmt.Sprintf(`"text":"%s"`, strings.Repeat("word ", 2_000)))
	}
	newest := compare.SettleNewest(t, here)
	var requests []api.Request
	for _, path := range []string{
		"?resourceVersion=0", "", "?limit=20&resourceVersion=" + fmt.Sprint(newest), "?resourceVersion=0&labelSelector=app%21%3Dhuge", "?resourceVersion=0&labelSelector=app%3Daround",
		"?resourceVersion=0&fieldSelector=metadata.name%3Dlarge", "/huge?resourceVersion=0", "/large?resourceVersion=0", "/around?resourceVersion=0", "/many-0?resourceVersion=0",
	} {
		for _, encoding := range []string{"gzip", "identity", "deflate, gzip;q=1.0", "*"} {
			for _, accept := range []string{"", api.ProtobufType, api.MetadataListJSON} {
				for _, agent := range []string{"curl/8.9.1", "kubectl/v1.37.1"} {
					requests = append(requests, askedBy(api.Request{Path: here + path, Accept: accept, Header: map[string]string{"Accept-Encoding": encoding}}, agent, ""))
				}
			}
		}
	}
	found := compare.CompareAll(t, requests)
	if !testbed.Direct && found.Sources["snapshot"] == 0 {
		t.Errorf("no answer comes from memory: %v", found.Sources)
	}
}
