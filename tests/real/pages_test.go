package real

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestPages walks lists at a version in the past page by page: each answer is
// upstream's to the byte, tokens included, and comes from memory.
func TestPages(t *testing.T) {
	ns, other := namespace(t), namespace(t)
	w := newWidget(t)
	w.define(t, upstream)
	w.awaitServed(t, proxied)
	ctx := context.Background()
	cms := func(ns string) interface {
		Delete(context.Context, string, metav1.DeleteOptions) error
	} {
		return kubeClient(t, upstream).CoreV1().ConfigMaps(ns)
	}
	for i := range 7 {
		for _, in := range []string{ns, other} {
			name := fmt.Sprintf("one-%d", i)
			cm := configMap(name)
			cm.Labels["odd"] = fmt.Sprint(i % 2)
			must(kubeClient(t, upstream).CoreV1().ConfigMaps(in).Create(ctx, cm, metav1.CreateOptions{}))(t)
			upstream.ok(t, request{method: "POST", path: w.path(in, ""), body: w.object(name, i)})
		}
	}
	for _, path := range []string{"/api/v1/configmaps", w.path("", "")} {
		proxied.ok(t, request{path: path + "?resourceVersion=0"})
	}
	const protobuf = "application/vnd.kubernetes.protobuf"
	proxied.ok(t, request{path: "/api/v1/configmaps?resourceVersion=0", accept: protobuf})
	var list struct{ Metadata metav1.ListMeta }
	check(t, json.Unmarshal([]byte(upstream.ok(t, request{path: w.path("", "") + "?limit=1"}).body), &list))
	version := list.Metadata.ResourceVersion
	// The list is in the past from here on.
	for i := range 100 {
		for _, in := range []string{ns, other} {
			must(kubeClient(t, upstream).CoreV1().ConfigMaps(in).Create(ctx, configMap(fmt.Sprintf("later-%d", i)), metav1.CreateOptions{}))(t)
		}
	}
	for i := range 3 {
		check(t, cms(ns).Delete(ctx, fmt.Sprintf("one-%d", 2*i), metav1.DeleteOptions{}))
		upstream.ok(t, request{method: "DELETE", path: w.path(ns, fmt.Sprintf("one-%d", i))})
		upstream.ok(t, request{method: "PATCH", path: w.path(other, fmt.Sprintf("one-%d", i)), contentType: mergePatch, body: `{"spec":{"colour":"late"}}`})
	}

	equal := func(r request) (token string) {
		t.Helper()
		want, got := upstream.ok(t, r), proxied.ok(t, r)
		if !equalLists(want.body, got.body) {
			t.Fatalf("%v\nupstream: %s\nproxied:  %s", r, want.body, got.body)
		}
		if source := got.header.Get("X-Watershed-Source"); !direct && source != "snapshot" {
			t.Errorf("%v is answered from %q", r, source)
		}
		var list struct{ Metadata metav1.ListMeta }
		if r.accept == "" {
			check(t, json.Unmarshal([]byte(want.body), &list))
		}
		return list.Metadata.Continue
	}
	pages := 0
	for _, path := range []string{
		"/api/v1/configmaps", "/api/v1/namespaces/" + ns + "/configmaps", "/api/v1/namespaces/" + other + "/configmaps",
		w.path("", ""), w.path(ns, ""), w.path(other, ""),
	} {
		equal(request{path: path + "?resourceVersionMatch=Exact&resourceVersion=" + version})
		for _, selector := range []string{"", "&labelSelector=odd%3D1", "&labelSelector=odd", "&labelSelector=nothing", "&fieldSelector=metadata.name!%3Done-3"} {
			for _, limit := range []string{"1", "3", "7", "8", "1000"} {
				query := fmt.Sprintf("?limit=%s%s&resourceVersion=%s", limit, selector, version)
				token := equal(request{path: path + query})
				if again := equal(request{path: path + query + "&resourceVersionMatch=Exact"}); again != token {
					t.Errorf("%s: token %s, and exact %s", query, token, again)
				}
				for token != "" {
					pages++
					if pages%5 == 0 {
						// Releases differ in whether version 0 lifts the limit.
						same(t, request{path: path + "?resourceVersion=0&limit=2&continue=" + url.QueryEscape(token) + selector})
					}
					token = equal(request{path: path + fmt.Sprintf("?limit=%s%s&continue=%s", limit, selector, url.QueryEscape(token))})
				}
			}
		}
	}
	t.Logf("%d pages", pages)
	equal(request{path: "/api/v1/configmaps?limit=3&resourceVersion=" + version, accept: protobuf})

	// What upstream refuses it refuses itself, and what is not in memory it answers.
	token := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	for _, query := range []string{
		"?resourceVersionMatch=Exact&resourceVersion=1",
		"?resourceVersionMatch=Exact&resourceVersion=0",
		"?resourceVersionMatch=Exact",
		"?continue=x",
		"?continue=" + token(`{"v":"meta.k8s.io/v1","rv":1,"start":"/a\u0000"}`),
		"?continue=" + token(`{"v":"meta.k8s.io/v1","rv":0,"start":"/a\u0000"}`),
		"?continue=" + token(`{"v":"v2","rv":5,"start":"/a\u0000"}`),
		"?continue=" + token(`{"v":"meta.k8s.io/v1","rv":5,"start":"../a\u0000"}`),
		"?resourceVersion=" + version + "&continue=" + token(`{"v":"meta.k8s.io/v1","rv":`+version+`,"start":"/a\u0000"}`),
		"?limit=-1&resourceVersion=" + version,
		"?limit=2&fieldSelector=metadata.name%3Done-1&resourceVersion=" + version,
		"?limit=2&fieldSelector=metadata.namespace%3D" + ns + "&resourceVersion=" + version,
	} {
		if a := same(t, request{path: "/api/v1/configmaps" + query}); strings.Contains(a.body, "one-0") && a.status != 200 {
			t.Errorf("%s: %s", query, a.body)
		}
	}
	// The version upstream has reached is in its words.
	tooLarge := request{path: "/api/v1/configmaps?resourceVersionMatch=Exact&resourceVersion=" + version + "0000"}
	moving := regexp.MustCompile(`current: \d+`)
	want, got := upstream.send(t, tooLarge), proxied.send(t, tooLarge)
	if want.status < 500 || want.status != got.status || moving.ReplaceAllString(want.body, "") != moving.ReplaceAllString(got.body, "") {
		t.Errorf("%v\nupstream: %d %s\nproxied:  %d %s", tooLarge, want.status, want.body, got.status, got.body)
	}
	// Tokens that begin where nothing is, or in another list.
	for _, after := range []string{"zzz", "a", ns + "/one-3", "one-3"} {
		for _, start := range []string{after, "/" + after} {
			text := must(json.Marshal(map[string]any{"v": "meta.k8s.io/v1", "rv": json.Number(version), "start": start + "\x00"}))(t)
			for _, path := range []string{"/api/v1/configmaps", "/api/v1/namespaces/" + ns + "/configmaps"} {
				equal(request{path: path + "?limit=2&continue=" + token(string(text))})
			}
		}
	}
}

var tokens = regexp.MustCompile(`eyJ2Ij[A-Za-z0-9_-]+`)

// equalLists compares two answers to the byte. Older releases take pages from
// etcd and leave a slash out of their tokens, which all releases read either way.
func equalLists(want, got string) bool {
	if want == got || upstream.writesSlash() {
		return want == got
	}
	read := func(list string) string {
		return tokens.ReplaceAllStringFunc(list, func(token string) string {
			text, err := base64.RawURLEncoding.DecodeString(token)
			if err != nil {
				return token
			}
			return strings.Replace(string(text), `"start":"/`, `"start":"`, 1)
		})
	}
	// In protobuf the lengths before the token differ, too.
	return read(want) == read(got) || !strings.HasPrefix(want, "{") && tokens.MatchString(want)
}
