package clusters

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/parallel"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// shardRange returns one term of a shard selector. start and end are the first digit of 16, or
// of 17 in the case of 2^64.
func shardRange(field, start, end string) string {
	digits := func(first string) string { return "0x" + first + strings.Repeat("0", 15) }
	return fmt.Sprintf("shardRange(object.metadata.%s, '%s', '%s')", field, digits(start), digits(end))
}

// shardSelectors are selectors that divide objects, and others that upstream refuses or reads in
// its own way. Those that are false here are forwarded where upstream supports the parameter.
func shardSelectors() map[string]bool {
	low, high := shardRange("uid", "0", "8"), shardRange("uid", "8", "10")
	quarters := shardRange("uid", "0", "4") + " || " + shardRange("uid", "c", "10")
	return map[string]bool{
		low: true, high: true, quarters: true, shardRange("uid", "0", "10"): true,
		shardRange("namespace", "0", "8"): true, shardRange("namespace", "8", "10"): true,
		" " + strings.ReplaceAll(quarters, " ", "") + "\t": true, strings.ReplaceAll(low, "'", `"`): true, "": true,
		"(" + low + ")": false, "object.metadata." + low: false, high + " && " + low: false, low + " || " + shardRange("namespace", "8", "10"): false,
		shardRange("name", "0", "8"): false, shardRange("uid", "8", "0"): false, "shardRange(object.metadata.uid, '0x0', '0x8')": false, " ": false,
		low + " // a half": false, "x": false,
	}
}

// TestShardsLikeUpstream reads shards of types, with the gate on and off. Each answer is
// upstream's own. Where the gate is on, both halves together are the whole.
func TestShardsLikeUpstream(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy of its own")
	}
	t.Parallel()
	for _, gate := range []string{"true", "false"} {
		t.Run(gate, func(t *testing.T) {
			t.Parallel()
			c := require.Value(testbed.StartWithProxy("--apiserver-arg=--feature-gates=ShardedListAndWatch=" + gate))(t)
			t.Cleanup(c.Stop)
			shardsLikeUpstream(t, compare.Sides{Right: c.Upstream(), Asked: c.Proxied()}, gate == "true")
		})
	}
}

func shardsLikeUpstream(t *testing.T, sides compare.Sides, isOn bool) {
	collections, since := furnishShards(t, sides)
	if n := len(require.Value(sides.Right.Must(t, sharded(collections[0], shardRange("uid", "0", "8"))).Items())(t)); isOn != (n < 8) {
		t.Fatalf("upstream lists %d of 8 objects", n)
	}
	var requests, own []api.Request
	for selector, isPlain := range shardSelectors() {
		if !isOn && !isPlain && len(selector) > 1 {
			continue // Two of the others are enough where upstream reads none.
		}
		for _, collection := range collections {
			for _, r := range shardReads(collection, since) {
				r.Path += "&shardSelector=" + url.QueryEscape(selector)
				if isPlain || !isOn {
					requests = append(requests, r)
				} else {
					own = append(own, r)
				}
			}
		}
	}
	found := compareSides(t, sides, requests)
	if found.Sources["snapshot"] == 0 || found.Sources["window"] == 0 || found.Sources["linearizable"] == 0 {
		t.Errorf("few answers come from memory: %v", found.Sources)
	}
	if n := found.Sources["forward; reason=sharding"] + found.Sources["forward; reason=selector"]; n > 0 {
		t.Errorf("%d requests for shards were forwarded", n)
	}
	compareSides(t, sides, own)
	if isOn {
		halvesAreTheWhole(t, sides.Asked, collections)
	}
}

// furnishShards makes objects of built-in and custom types in two namespaces, changes and deletes
// some, and returns their collections and a version before the changes.
func furnishShards(t *testing.T, sides compare.Sides) (collections []string, since string) {
	t.Helper()
	up := sides.Right
	post := func(path, body string) api.Answer {
		return up.Must(t, api.Request{Method: "POST", Path: path, Body: body})
	}
	w := objects.NewWidget(t)
	post(objects.CRDPath, w.Definition(false))
	w.AwaitServed(t, up)
	for _, ns := range []string{"east", "west"} {
		post("/api/v1/namespaces", fmt.Sprintf(`{"metadata":{"name":"%s"}}`, ns))
		for i := range 4 {
			post("/api/v1/namespaces/"+ns+"/secrets", fmt.Sprintf(`{"metadata":{"name":"s-%d","labels":{"odd":"%d"}}}`, i, i%2))
			post(w.Path(ns, ""), w.Object(fmt.Sprintf("w-%d", i), i))
		}
	}
	collections = []string{"/api/v1/secrets", w.Path("", ""), w.Path("east", "")}
	for _, collection := range collections {
		compare.AwaitHeld(t, sides.Asked, collection)
	}
	poll.Until(t, "the proxy knows whether upstream reads shards", func() error {
		a := sides.Asked.Must(t, sharded(collections[0], shardRange("uid", "0", "8")))
		if !compare.FromMemory(a) {
			return errors.New(a.Header.Get("X-Watershed-Source"))
		}
		return nil
	})
	list, _, _ := api.ParseList(api.JSONType, up.Must(t, api.Request{Path: collections[0]}).Body)
	for _, ns := range []string{"east", "west"} {
		for i, path := range []string{"/api/v1/namespaces/" + ns + "/secrets/s-%d", w.Path(ns, "w-%d")} {
			for n := range 3 {
				body := fmt.Sprintf(`{"metadata":{"labels":{"odd":"%d","i":"%d"}}}`, n, i)
				up.Must(t, api.Request{Method: "PATCH", Path: fmt.Sprintf(path, n), ContentType: api.MergePatch, Body: body})
			}
			up.Must(t, api.Request{Method: "DELETE", Path: fmt.Sprintf(path, 3)})
			up.Must(t, api.Request{Method: "POST", Path: path[:strings.LastIndex(path, "/")], Body: again(i, w)})
		}
	}
	return collections, list.ResourceVersion
}

// again returns an object that takes the place of a deleted one.
func again(kind int, w objects.Widget) string {
	if kind == 0 {
		return `{"metadata":{"name":"s-3"}}`
	}
	return w.Object("w-3", 9)
}

// shardReads returns lists, pages and watches of a collection, to which a selector is added.
func shardReads(collection, since string) (requests []api.Request) {
	add := func(query string, accepts ...string) {
		for _, accept := range accepts {
			requests = append(requests, api.Request{Path: collection + "?" + query, Accept: accept})
		}
	}
	protobuf := api.ProtobufType + "," + api.JSONType
	add("watch=1&timeoutSeconds=1&resourceVersion="+since, api.JSONType, protobuf, api.MetadataProtobuf)
	add("watch=1&timeoutSeconds=1&"+api.StateFirst, api.JSONType, protobuf, api.MetadataJSON)
	add("watch=1&timeoutSeconds=1&labelSelector=odd%3D1&resourceVersion="+since, api.JSONType)
	add("resourceVersion=0", api.JSONType, protobuf, api.MetadataListJSON, api.MetadataListProtobuf, api.TableJSON)
	add("resourceVersion="+since, api.JSONType)
	add("limit=1", api.JSONType, protobuf, api.MetadataListJSON)
	add("limit=2&resourceVersionMatch=Exact&resourceVersion="+since, api.JSONType)
	add("", api.JSONType, "application/json;drop=metadata.managedFields")
	add("resourceVersion=0&labelSelector=odd%3D1", api.JSONType, protobuf)
	add("resourceVersion=0&fieldSelector=metadata.name%3Ds-1", api.JSONType, protobuf)
	return requests
}

func sharded(collection, selector string) api.Request {
	return api.Request{Path: collection + "?shardSelector=" + url.QueryEscape(selector)}
}

func compareSides(t *testing.T, sides compare.Sides, requests []api.Request) *compare.Findings {
	t.Helper()
	found := &compare.Findings{T: t}
	parallel.ForEach(48, requests, func(_ int, r api.Request) { found.Add(r, sides.CompareAtLeisure(r)) })
	found.Report()
	return found
}

// halvesAreTheWhole lists both halves page by page. Each object is in one of them.
func halvesAreTheWhole(t *testing.T, by api.Target, collections []string) {
	t.Helper()
	for _, collection := range collections {
		for _, field := range []string{"uid", "namespace"} {
			seen := map[string]int{}
			for _, half := range []string{shardRange(field, "0", "8"), shardRange(field, "8", "10")} {
				for next := ""; ; {
					r := sharded(collection, half)
					r.Path += "&limit=2&continue=" + url.QueryEscape(next)
					a := by.Must(t, r)
					for key := range require.Value(a.Items())(t) {
						seen[key]++
					}
					list, _, _ := api.ParseList(api.JSONType, a.Body)
					if next = list.Continue; next == "" {
						break
					}
				}
			}
			whole := require.Value(by.Must(t, api.Request{Path: collection}).Items())(t)
			for key := range whole {
				if seen[key] != 1 {
					t.Errorf("%s is %d times in the halves by %s", key, seen[key], field)
				}
			}
			if len(seen) != len(whole) {
				t.Errorf("the halves by %s have %d objects, the whole %d", field, len(seen), len(whole))
			}
		}
	}
}
