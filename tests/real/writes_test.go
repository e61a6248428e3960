package real

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	mergePatch     = "application/merge-patch+json"
	jsonPatch      = "application/json-patch+json"
	strategicPatch = "application/strategic-merge-patch+json"
	applyPatch     = "application/apply-patch+yaml"
)

// TestWrites sends the same requests both ways, each way to a namespace of its
// own, and compares answer by answer and in the end what is there.
func TestWrites(t *testing.T) {
	const (
		cms  = "/api/v1/namespaces/NS/configmaps"
		apps = "/apis/apps/v1/namespaces/NS/deployments"
	)
	cm := func(name, data string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%s"},"data":%s}`, name, data)
	}
	press := deployment("press", 1)
	press.APIVersion, press.Kind = "apps/v1", "Deployment"
	shell := pod("shell", "")
	steps := []request{
		{method: "POST", path: cms, body: cm("apple", `{"n":"1"}`)},
		{method: "POST", path: cms, body: cm("apple", `{"n":"1"}`)},
		{method: "POST", path: cms, body: cm("UPPER", `{}`)},
		{method: "POST", path: cms, body: `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"x"}}`},
		{method: "POST", path: cms, body: `{"broken`},
		{method: "POST", path: cms, body: "apple", contentType: "text/plain"},
		{method: "POST", path: cms + "?dryRun=All", body: cm("pear", `{}`)},
		{method: "GET", path: cms + "/pear"},
		{method: "POST", path: cms + "?dryRun=Some", body: cm("pear", `{}`)},

		// Update: right, in conflict, absent, under another name.
		{method: "PUT", path: cms + "/apple", body: cm("apple", `{"n":"2"}`)},
		{method: "PUT", path: cms + "/apple", body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"apple","resourceVersion":"1"}}`},
		{method: "PUT", path: cms + "/pear", body: cm("pear", `{}`)},
		{method: "PUT", path: cms + "/apple", body: cm("pear", `{}`)},

		// The four kinds of patch, and mistakes in each.
		{method: "PATCH", path: cms + "/apple", contentType: mergePatch, body: `{"data":{"m":"1","n":null}}`},
		{method: "PATCH", path: cms + "/apple", contentType: jsonPatch, body: `[{"op":"replace","path":"/data/m","value":"2"}]`},
		{method: "PATCH", path: cms + "/apple", contentType: jsonPatch, body: `[{"op":"test","path":"/data/m","value":"3"}]`},
		{method: "PATCH", path: cms + "/apple", contentType: jsonPatch, body: `{"data":{}}`},
		{method: "PATCH", path: cms + "/apple", contentType: "application/json", body: `{}`},
		{method: "PATCH", path: cms + "/nobody", contentType: mergePatch, body: `{}`},
		{method: "POST", path: apps, body: asJSON(press)},
		{method: "PATCH", path: apps + "/press", contentType: strategicPatch, body: `{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"example.test/main:2"}]}}}}`},
		{method: "PATCH", path: apps + "/press", contentType: strategicPatch, body: `{"spec":{"template":{"spec":{"containers":[{"image":"nameless"}]}}}}`},
		{method: "PATCH", path: apps + "/press/status", contentType: mergePatch, body: `{"status":{"replicas":1}}`},
		{method: "PATCH", path: apps + "/press/scale", contentType: mergePatch, body: `{"spec":{"replicas":4}}`},
		{method: "GET", path: apps + "/press/scale"},
		{method: "PATCH", path: cms + "/plum?fieldManager=one", contentType: applyPatch, body: cm("plum", `{"n":"1"}`)},
		{method: "PATCH", path: cms + "/plum?fieldManager=two", contentType: applyPatch, body: cm("plum", `{"n":"2"}`)},
		{method: "PATCH", path: cms + "/plum?fieldManager=two&force=true", contentType: applyPatch, body: cm("plum", `{"n":"2"}`)},
		{method: "PATCH", path: cms + "/plum", contentType: applyPatch, body: cm("plum", `{}`)},

		// What the server says of fields that it does not know or knows twice.
		{method: "POST", path: apps + "?fieldValidation=Warn", body: strings.Replace(asJSON(renamed(press.DeepCopy(), "warned")), `"spec":{`, `"colour":"red","spec":{`, 1)},
		{method: "POST", path: apps + "?fieldValidation=Strict", body: strings.Replace(asJSON(renamed(press.DeepCopy(), "strict")), `"spec":{`, `"colour":"red","spec":{`, 1)},
		{method: "POST", path: apps + "?fieldValidation=Ignore", body: strings.Replace(asJSON(renamed(press.DeepCopy(), "ignored")), `"spec":{`, `"colour":"red","spec":{`, 1)},
		{method: "POST", path: cms + "?fieldValidation=Warn", body: cm("twice", `{"n":"1","n":"2"}`)},
		{method: "POST", path: cms + "?fieldValidation=Strict", body: cm("thrice", `{"n":"1","n":"2"}`)},
		{method: "POST", path: cms + "?fieldValidation=Loud", body: cm("loud", `{}`)},
		{method: "POST", path: "/api/v1/namespaces/NS/endpoints", body: `{"apiVersion":"v1","kind":"Endpoints","metadata":{"name":"old"}}`},

		// Subresources that are written to.
		{method: "POST", path: "/api/v1/namespaces/NS/pods", body: asJSON(shell)},
		{method: "POST", path: "/api/v1/namespaces/NS/pods/shell/binding", body: `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"shell"},"target":{"kind":"Node","name":"nowhere"}}`},
		{method: "POST", path: "/api/v1/namespaces/NS/pods/shell/binding", body: `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"shell"},"target":{"kind":"Node","name":"elsewhere"}}`},
		{method: "POST", path: "/api/v1/namespaces/NS/pods/shell/eviction", body: `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"shell"}}`},
		{method: "POST", path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body: `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}`},
		{method: "POST", path: "/apis/authentication.k8s.io/v1/selfsubjectreviews", body: `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`, user: "bob"},

		// Deletion.
		{method: "DELETE", path: cms + "/nobody"},
		{method: "DELETE", path: cms + "/plum", body: `{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"resourceVersion":"1"}}`},
		{method: "DELETE", path: cms + "/plum?dryRun=All"},
		{method: "DELETE", path: cms + "/plum"},
		{method: "DELETE", path: cms + "?labelSelector=none%3Dthere"},
		{method: "DELETE", path: apps + "?fieldSelector=metadata.name%3Dignored"},
		{method: "DELETE", path: apps + "/press?propagationPolicy=Foreground"},
		{method: "GET", path: apps},
		{method: "DELETE", path: cms},
		{method: "GET", path: cms},
		{method: "POST", path: cms, body: cm("huge", `{"n":"`+strings.Repeat("x", 4<<20)+`"}`)},
	}
	namespaces := map[string]string{}
	for _, to := range targets() {
		namespaces[to.name] = namespace(t)
	}
	for i, step := range steps {
		var texts []string
		for _, to := range targets() {
			r := step
			r.path = strings.ReplaceAll(step.path, "NS", namespaces[to.name])
			texts = append(texts, to.send(t, r).comparable(map[string]string{namespaces[to.name]: "NS"}))
		}
		if texts[0] != texts[1] {
			t.Errorf("step %d, %v\nupstream: %s\nproxied:  %s", i, step, texts[0], texts[1])
		}
		t.Logf("step %d, %v: %.3s", i, step, texts[0])
	}
}

func renamed[O interface{ SetName(string) }](o O, name string) O {
	o.SetName(name)
	return o
}

// TestProtobufWrites writes and reads in protobuf, as controllers do.
func TestProtobufWrites(t *testing.T) {
	ns := namespace(t)
	ctx := context.Background()
	config := proxied.config()
	config.ContentType, config.AcceptContentTypes = protobufType, protobufType
	api := must(kubernetes.NewForConfig(config))(t).CoreV1().ConfigMaps(ns)
	plain := kubeClient(t, upstream).CoreV1().ConfigMaps(ns)

	made := must(api.Create(ctx, configMap("apple", "n", "1"), metav1.CreateOptions{}))(t)
	made.Data["n"] = "2"
	made.BinaryData = map[string][]byte{"b": bulk(100 << 10)}
	changed := must(api.Update(ctx, made, metav1.UpdateOptions{}))(t)
	want := must(plain.Get(ctx, "apple", metav1.GetOptions{}))(t)
	if asJSON(want) != asJSON(changed) || !maps.Equal(want.Data, map[string]string{"n": "2"}) {
		t.Errorf("upstream has %s, the answer was %s", asJSON(want), asJSON(changed))
	}
	read := must(api.Get(ctx, "apple", metav1.GetOptions{}))(t)
	if asJSON(want) != asJSON(read) {
		t.Errorf("upstream has %s, the proxy reads %s", asJSON(want), asJSON(read))
	}
}

// TestOwnWritesAreRead never waits: a read without a version has to show every
// write that was answered before, whichever way it went.
func TestOwnWritesAreRead(t *testing.T) {
	ns := namespace(t)
	path := "/api/v1/namespaces/" + ns + "/configmaps"
	for n := range 40 {
		name := fmt.Sprintf("cm-%d", n)
		targets()[n%2].ok(t, request{method: "POST", path: path, body: asJSON(withKind(configMap(name)))})
		for _, query := range []string{"", "?limit=1000", "?fieldSelector=metadata.name%3D" + name} {
			if a := proxied.ok(t, request{path: path + query}); !strings.Contains(a.body, `"name":"`+name+`"`) {
				t.Fatalf("%s was created, and a list %q after that does not have it: %s", name, query, a.body)
			}
		}
		if n%4 == 3 {
			targets()[n/4%2].ok(t, request{method: "DELETE", path: path + "/" + name})
			if a := proxied.ok(t, request{path: path}); strings.Contains(a.body, `"name":"`+name+`"`) {
				t.Fatalf("%s was deleted, and a list after that has it", name)
			}
		}
	}
}

// TestDeletionsOfOneVersion: when a lease expires, etcd deletes all of its
// objects in one revision. Each deletion is an event of its own, all with one
// version.
func TestDeletionsOfOneVersion(t *testing.T) {
	ns := namespace(t)
	proxied.ok(t, request{path: "/api/v1/configmaps?resourceVersion=0"})
	const count = 5
	var deletions []clientv3.Op
	for i := range count {
		name := fmt.Sprintf("one-of-%d", i)
		must(kubeClient(t, upstream).CoreV1().ConfigMaps(ns).Create(context.Background(), configMap(name), metav1.CreateOptions{}))(t)
		deletions = append(deletions, clientv3.OpDelete("/registry/configmaps/"+ns+"/"+name))
	}
	var watches []*stream
	for _, to := range targets() {
		watch := to.watch(t, request{path: "/api/v1/namespaces/" + ns + "/configmaps?watch=1&resourceVersion=0"})
		for range count {
			watch.next(t)
		}
		watches = append(watches, watch)
	}
	client := must(clientv3.New(clientv3.Config{Endpoints: []string{shared.Etcd}}))(t)
	defer client.Close()
	must(client.Txn(context.Background()).Then(deletions...).Commit())(t)
	marker := must(kubeClient(t, upstream).CoreV1().ConfigMaps(ns).Create(context.Background(), configMap("marker"), metav1.CreateOptions{}))(t)
	for i, to := range targets() {
		for range count {
			if e := watches[i].next(t); e.Type != "DELETED" {
				t.Errorf("%s: not a deletion: %s", to.name, e.raw)
			}
		}
		if e := watches[i].next(t); e.String() != "ADDED marker" {
			t.Errorf("%s: not the marker: %s", to.name, e.raw)
		}
		a := to.ok(t, request{path: "/api/v1/namespaces/" + ns + "/configmaps?resourceVersionMatch=NotOlderThan&resourceVersion=" + marker.ResourceVersion})
		if strings.Contains(a.body, "one-of-") {
			t.Errorf("%s: a deleted object is still there: %s", to.name, a.body)
		}
	}
}
