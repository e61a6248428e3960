package real

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/random"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// TestWritesAreAnsweredLikeUpstream sends the same writes both ways, each way to a namespace of
// its own. It compares each answer and the final objects.
func TestWritesAreAnsweredLikeUpstream(t *testing.T) {
	const (
		cms  = "/api/v1/namespaces/NS/configmaps"
		apps = "/apis/apps/v1/namespaces/NS/deployments"
	)
	cm := func(name, data string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%s"},"data":%s}`, name, data)
	}
	press := objects.Deployment("press", 1)
	press.APIVersion, press.Kind = "apps/v1", "Deployment"
	shell := objects.Pod("shell", "")
	steps := []api.Request{
		{Method: "POST", Path: cms, Body: cm("apple", `{"n":"1"}`)},
		{Method: "POST", Path: cms, Body: cm("apple", `{"n":"1"}`)},
		{Method: "POST", Path: cms, Body: cm("UPPER", `{}`)},
		{Method: "POST", Path: cms, Body: `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"x"}}`},
		{Method: "POST", Path: cms, Body: `{"broken`},
		{Method: "POST", Path: cms, Body: "apple", ContentType: "text/plain"},
		{Method: "POST", Path: cms + "?dryRun=All", Body: cm("pear", `{}`)},
		{Method: "GET", Path: cms + "/pear"},
		{Method: "POST", Path: cms + "?dryRun=Some", Body: cm("pear", `{}`)},

		// Updates: valid, conflicting, of a missing object, under another name.
		{Method: "PUT", Path: cms + "/apple", Body: cm("apple", `{"n":"2"}`)},
		{Method: "PUT", Path: cms + "/apple", Body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"apple","resourceVersion":"1"}}`},
		{Method: "PUT", Path: cms + "/pear", Body: cm("pear", `{}`)},
		{Method: "PUT", Path: cms + "/apple", Body: cm("pear", `{}`)},

		// The four kinds of patch, and mistakes in each.
		{Method: "PATCH", Path: cms + "/apple", ContentType: api.MergePatch, Body: `{"data":{"m":"1","n":null}}`},
		{Method: "PATCH", Path: cms + "/apple", ContentType: api.JSONPatch, Body: `[{"op":"replace","path":"/data/m","value":"2"}]`},
		{Method: "PATCH", Path: cms + "/apple", ContentType: api.JSONPatch, Body: `[{"op":"test","path":"/data/m","value":"3"}]`},
		{Method: "PATCH", Path: cms + "/apple", ContentType: api.JSONPatch, Body: `{"data":{}}`},
		{Method: "PATCH", Path: cms + "/apple", ContentType: "application/json", Body: `{}`},
		{Method: "PATCH", Path: cms + "/nobody", ContentType: api.MergePatch, Body: `{}`},
		{Method: "POST", Path: apps, Body: api.JSON(press)},
		{Method: "PATCH", Path: apps + "/press", ContentType: api.StrategicPatch, Body: `{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"example.test/main:2"}]}}}}`},
		{Method: "PATCH", Path: apps + "/press", ContentType: api.StrategicPatch, Body: `{"spec":{"template":{"spec":{"containers":[{"image":"nameless"}]}}}}`},
		{Method: "PATCH", Path: apps + "/press/status", ContentType: api.MergePatch, Body: `{"status":{"replicas":1}}`},
		{Method: "PATCH", Path: apps + "/press/scale", ContentType: api.MergePatch, Body: `{"spec":{"replicas":4}}`},
		{Method: "GET", Path: apps + "/press/scale"},
		{Method: "PATCH", Path: cms + "/plum?fieldManager=one", ContentType: api.ApplyPatch, Body: cm("plum", `{"n":"1"}`)},
		{Method: "PATCH", Path: cms + "/plum?fieldManager=two", ContentType: api.ApplyPatch, Body: cm("plum", `{"n":"2"}`)},
		{Method: "PATCH", Path: cms + "/plum?fieldManager=two&force=true", ContentType: api.ApplyPatch, Body: cm("plum", `{"n":"2"}`)},
		{Method: "PATCH", Path: cms + "/plum", ContentType: api.ApplyPatch, Body: cm("plum", `{}`)},

		// The server's verdict on unknown and repeated fields.
		{Method: "POST", Path: apps + "?fieldValidation=Warn", Body: strings.Replace(api.JSON(renamed(press.DeepCopy(), "warned")), `"spec":{`, `"colour":"red","spec":{`, 1)},
		{Method: "POST", Path: apps + "?fieldValidation=Strict", Body: strings.Replace(api.JSON(renamed(press.DeepCopy(), "strict")), `"spec":{`, `"colour":"red","spec":{`, 1)},
		{Method: "POST", Path: apps + "?fieldValidation=Ignore", Body: strings.Replace(api.JSON(renamed(press.DeepCopy(), "ignored")), `"spec":{`, `"colour":"red","spec":{`, 1)},
		{Method: "POST", Path: cms + "?fieldValidation=Warn", Body: cm("twice", `{"n":"1","n":"2"}`)},
		{Method: "POST", Path: cms + "?fieldValidation=Strict", Body: cm("thrice", `{"n":"1","n":"2"}`)},
		{Method: "POST", Path: cms + "?fieldValidation=Loud", Body: cm("loud", `{}`)},
		{Method: "POST", Path: "/api/v1/namespaces/NS/endpoints", Body: `{"apiVersion":"v1","kind":"Endpoints","metadata":{"name":"old"}}`},

		// Subresources that accept writes.
		{Method: "POST", Path: "/api/v1/namespaces/NS/pods", Body: api.JSON(shell)},
		{Method: "POST", Path: "/api/v1/namespaces/NS/pods/shell/binding", Body: `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"shell"},"target":{"kind":"Node","name":"nowhere"}}`},
		{Method: "POST", Path: "/api/v1/namespaces/NS/pods/shell/binding", Body: `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"shell"},"target":{"kind":"Node","name":"elsewhere"}}`},
		{Method: "POST", Path: "/api/v1/namespaces/NS/pods/shell/eviction", Body: `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"shell"}}`},
		{Method: "POST", Path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", Body: `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}`},
		{Method: "POST", Path: "/apis/authentication.k8s.io/v1/selfsubjectreviews", Body: `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`, User: "bob"},

		// Deletions.
		{Method: "DELETE", Path: cms + "/nobody"},
		{Method: "DELETE", Path: cms + "/plum", Body: `{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"resourceVersion":"1"}}`},
		{Method: "DELETE", Path: cms + "/plum?dryRun=All"},
		{Method: "DELETE", Path: cms + "/plum"},
		{Method: "DELETE", Path: cms + "?labelSelector=none%3Dthere"},
		{Method: "DELETE", Path: apps + "?fieldSelector=metadata.name%3Dignored"},
		{Method: "DELETE", Path: apps + "/press?propagationPolicy=Foreground"},
		{Method: "GET", Path: apps},
		{Method: "DELETE", Path: cms},
		{Method: "GET", Path: cms},
		{Method: "POST", Path: cms, Body: cm("huge", `{"n":"`+strings.Repeat("x", 4<<20)+`"}`)},
	}
	namespaces := map[string]string{}
	for _, to := range testbed.Targets() {
		namespaces[to.Name] = objects.Namespace(t)
	}
	for i, step := range steps {
		var texts []string
		for _, to := range testbed.Targets() {
			r := step
			r.Path = strings.ReplaceAll(step.Path, "NS", namespaces[to.Name])
			texts = append(texts, to.Send(t, r).Comparable(map[string]string{namespaces[to.Name]: "NS"}))
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

// TestProtobufWritesReachUpstream writes and reads in protobuf, as controllers do.
func TestProtobufWritesReachUpstream(t *testing.T) {
	ns := objects.Namespace(t)
	ctx := context.Background()
	config := testbed.Proxied.Config()
	config.ContentType, config.AcceptContentTypes = api.ProtobufType, api.ProtobufType
	client := require.Value(kubernetes.NewForConfig(config))(t).CoreV1().ConfigMaps(ns)
	plain := api.Clientset(t, testbed.Upstream).CoreV1().ConfigMaps(ns)

	made := require.Value(client.Create(ctx, objects.ConfigMap("apple", "n", "1"), metav1.CreateOptions{}))(t)
	made.Data["n"] = "2"
	made.BinaryData = map[string][]byte{"b": random.Bytes(100 << 10)}
	changed := require.Value(client.Update(ctx, made, metav1.UpdateOptions{}))(t)
	want := require.Value(plain.Get(ctx, "apple", metav1.GetOptions{}))(t)
	if api.JSON(want) != api.JSON(changed) || !maps.Equal(want.Data, map[string]string{"n": "2"}) {
		t.Errorf("upstream has %s, the answer was %s", api.JSON(want), api.JSON(changed))
	}
	read := require.Value(client.Get(ctx, "apple", metav1.GetOptions{}))(t)
	if api.JSON(want) != api.JSON(read) {
		t.Errorf("upstream has %s, the proxy reads %s", api.JSON(want), api.JSON(read))
	}
}

// TestReadsShowEveryAcknowledgedWrite never waits. A read without a version has to show every
// acknowledged write, whichever way the write went.
func TestReadsShowEveryAcknowledgedWrite(t *testing.T) {
	ns := objects.Namespace(t)
	path := "/api/v1/namespaces/" + ns + "/configmaps"
	compare.AwaitHeld(t, testbed.Proxied, "/api/v1/configmaps")
	sources := map[string]int{}
	for n := range 40 {
		name := fmt.Sprintf("cm-%d", n)
		testbed.Targets()[n%2].Must(t, api.Request{Method: "POST", Path: path, Body: api.JSON(objects.WithKind(objects.ConfigMap(name)))})
		for _, query := range []string{"", "?limit=1000", "?fieldSelector=metadata.name%3D" + name} {
			a := testbed.Proxied.Must(t, api.Request{Path: path + query})
			sources[a.Header.Get("X-Watershed-Source")]++
			if !strings.Contains(a.Body, `"name":"`+name+`"`) {
				t.Fatalf("%s was created, and a list %q after that does not have it: %s", name, query, a.Body)
			}
		}
		if n%4 == 3 {
			testbed.Targets()[n/4%2].Must(t, api.Request{Method: "DELETE", Path: path + "/" + name})
			if a := testbed.Proxied.Must(t, api.Request{Path: path}); strings.Contains(a.Body, `"name":"`+name+`"`) {
				t.Fatalf("%s was deleted, and a list after that has it", name)
			}
		}
	}
	t.Logf("answered from %v", sources)
	if sources["linearizable"] == 0 && !testbed.Direct {
		t.Errorf("no list comes from memory: %v", sources)
	}
}

// TestDeletionsOfOneVersionAreAllDelivered deletes objects in one transaction of etcd. Each deletion
// is an event of its own, all with one version, as those of objects whose lease expires.
func TestDeletionsOfOneVersionAreAllDelivered(t *testing.T) {
	ns := objects.Namespace(t)
	compare.AwaitHeld(t, testbed.Proxied, "/api/v1/configmaps")
	const count = 5
	var deletions []clientv3.Op
	for i := range count {
		name := fmt.Sprintf("one-of-%d", i)
		require.Value(api.Clientset(t, testbed.Upstream).CoreV1().ConfigMaps(ns).Create(context.Background(), objects.ConfigMap(name), metav1.CreateOptions{}))(t)
		deletions = append(deletions, clientv3.OpDelete("/registry/configmaps/"+ns+"/"+name))
	}
	var watches []*api.Stream
	for _, to := range testbed.Targets() {
		watch := to.Watch(t, api.Request{Path: "/api/v1/namespaces/" + ns + "/configmaps?watch=1&resourceVersion=0"})
		for range count {
			watch.Next(t)
		}
		watches = append(watches, watch)
	}
	client := require.Value(clientv3.New(clientv3.Config{Endpoints: []string{testbed.Shared.Etcd}}))(t)
	defer client.Close()
	require.Value(client.Txn(context.Background()).Then(deletions...).Commit())(t)
	marker := require.Value(api.Clientset(t, testbed.Upstream).CoreV1().ConfigMaps(ns).Create(context.Background(), objects.ConfigMap("marker"), metav1.CreateOptions{}))(t)
	if source := watches[1].Header.Get("X-Watershed-Source"); source != "snapshot" && !testbed.Direct {
		t.Errorf("the proxy's watch is from %q", source)
	}
	var told [2][]string
	for i, to := range testbed.Targets() {
		names, versions := map[string]bool{}, map[string]bool{}
		for range count {
			e := watches[i].Next(t)
			if e.Type != "DELETED" {
				t.Errorf("%s: not a deletion: %s", to.Name, e.Raw)
			}
			names[e.Object.Metadata.Name], versions[e.Object.Metadata.ResourceVersion] = true, true
			told[i] = append(told[i], e.Raw)
		}
		if len(names) != count || len(versions) != 1 {
			t.Errorf("%s: deletions of %v at the versions %v", to.Name, names, versions)
		}
		if e := watches[i].Next(t); e.String() != "ADDED marker" {
			t.Errorf("%s: not the marker: %s", to.Name, e.Raw)
		}
		a := to.Must(t, api.Request{Path: "/api/v1/namespaces/" + ns + "/configmaps?resourceVersionMatch=NotOlderThan&resourceVersion=" + marker.ResourceVersion})
		if strings.Contains(a.Body, "one-of-") {
			t.Errorf("%s: a deleted object is still there: %s", to.Name, a.Body)
		}
	}
	if !slices.Equal(told[0], told[1]) {
		t.Errorf("upstream: %s\nproxied:  %s", told[0], told[1])
	}
}
