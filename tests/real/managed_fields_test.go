package real

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// withoutManagedFields returns JSON without the managed fields of all objects in it, and how many
// of these had any.
func withoutManagedFields(t *testing.T, text string) (plain any, removed int) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(text), &plain))
	var remove func(any)
	remove = func(value any) {
		switch value := value.(type) {
		case []any:
			for _, element := range value {
				remove(element)
			}
		case map[string]any:
			if metadata, is := value["metadata"].(map[string]any); is && metadata["managedFields"] != nil {
				delete(metadata, "managedFields")
				removed++
			}
			for _, member := range value {
				remove(member)
			}
		}
	}
	remove(plain)
	return plain, removed
}

// dropping starts a proxy that holds config maps, pods and a custom type without managed fields, and
// compares everything with upstream.
func dropping(t *testing.T, w objects.Widget) *testbed.Proxy {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	config := fmt.Sprintf("resources: [{resource: configmaps, managedFields: drop}, {resource: pods, managedFields: drop}, {group: %s, resource: %s, managedFields: drop}]", w.Group, w.Plural)
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	return testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig, "--config", file, "--verify", "100%", "--self-check-interval", "200ms")
}

// TestTypesWithoutManagedFields reads types that the proxy holds without managed fields. Answers
// from memory lack these and nothing else, in all forms, and no comparison finds a difference. An
// object that was read without them and is written back keeps them.
func TestTypesWithoutManagedFields(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy")
	}
	t.Parallel()
	ns, w := objects.Namespace(t), objects.NewWidget(t)
	w.Define(t, testbed.Upstream)
	maps := "/api/v1/namespaces/" + ns + "/configmaps"
	const applied = "application/apply-patch+yaml"
	for _, name := range []string{"apple", "pear"} {
		body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%s","labels":{"of":"fruit"}},"data":{"managedFields":"<&>"}}`, name)
		testbed.Upstream.Must(t, api.Request{Method: "PATCH", Path: maps + "/" + name + "?fieldManager=orchard", ContentType: applied, Body: body})
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: w.Path(ns, ""), Body: w.Object(name, 1)})
	}
	proxy := dropping(t, w)
	for _, collection := range []string{maps, w.Path(ns, "")} {
		lackManagedFields(t, proxy, collection)
	}
	lackManagedFieldsInProtobuf(t, proxy, maps)
	survivesWriting(t, proxy, maps+"/apple")
	halvesPods(t, proxy, "/api/v1/namespaces/"+ns+"/pods")
	poll.Until(t, "upstream was compared with memory", func() error {
		// What comes too fast for a comparison is skipped.
		for _, accept := range []string{api.JSONType, api.ProtobufType, api.MetadataListJSON} {
			proxy.Send(t, api.Request{Path: maps + "?resourceVersion=0", Accept: accept})
		}
		for _, metric := range []string{"watershed_self_checks_total", "watershed_verified_answers_total"} {
			counts := proxy.ByLabel(t, metric, "result")
			if n := counts["different"] + counts["bytes"] + counts["objects"]; n > 0 {
				t.Fatalf("%s: %v\n%s", metric, counts, proxy.LogTail())
			}
			if counts["same"] < 5 {
				return fmt.Errorf("%s: %v", metric, counts)
			}
		}
		return nil
	})
	if n := proxy.Sum(t, "watershed_scope_quarantines_total", ""); n > 0 {
		t.Errorf("%d quarantines", n)
	}
}

// lackManagedFields compares reads of a collection in JSON with upstream's.
func lackManagedFields(t *testing.T, proxy *testbed.Proxy, collection string) {
	t.Helper()
	for _, r := range []api.Request{
		{Path: collection + "?resourceVersion=0"},
		{Path: collection + "?resourceVersion=0&labelSelector=of%3Dfruit"},
		{Path: collection + "?resourceVersion=0", Accept: api.MetadataListJSON},
		{Path: collection + "?resourceVersion=0&includeObject=Object", Accept: tableV1},
		{Path: collection + "?resourceVersion=0", Accept: tableV1},
		{Path: collection + "/apple?resourceVersion=0"},
		{Path: collection + "/apple?resourceVersion=0", Accept: api.MetadataJSON},
	} {
		poll.Until(t, fmt.Sprint(r, " is answered from memory"), func() error {
			want, got := testbed.Upstream.Must(t, r), proxy.Must(t, r)
			if !compare.FromMemory(got) {
				return fmt.Errorf("answered from %s", got.Header.Get("X-Watershed-Source"))
			}
			expected, removed := withoutManagedFields(t, want.Body)
			answered, left := withoutManagedFields(t, got.Body)
			isSelected := strings.Contains(r.Path, "labelSelector")
			if left > 0 {
				t.Fatalf("%v: the proxy has %d", r, left)
			}
			// Version 0 may be a moment old at upstream.
			if removed == 0 && !isSelected {
				return errors.New("upstream has none")
			}
			// A row's age, and the version of a list, may have changed in between.
			if r.Accept != tableV1 && !strings.Contains(r.Path, "/apple") {
				for _, list := range []any{expected, answered} {
					delete(list.(map[string]any)["metadata"].(map[string]any), "resourceVersion")
				}
			}
			if !reflect.DeepEqual(expected, answered) {
				return fmt.Errorf("upstream: %s\nproxy: %s", want.Body, got.Body)
			}
			if member := got.Header.Get("X-Watershed-Omitted"); member != "metadata.managedFields" {
				t.Errorf("%v: X-Watershed-Omitted: %q", r, member)
			}
			return nil
		})
	}
	watch := proxy.Watch(t, api.Request{Path: collection + "?watch=1&resourceVersion=0"})
	if event := watch.Next(t); strings.Contains(event.Raw, "managedFields\":[{") {
		t.Errorf("%s", event.Raw)
	}
}

// lackManagedFieldsInProtobuf does the same in protobuf.
func lackManagedFieldsInProtobuf(t *testing.T, proxy *testbed.Proxy, collection string) {
	t.Helper()
	r := api.Request{Path: collection + "?resourceVersion=0", Accept: api.ProtobufType}
	read := func(from api.Target) (list corev1.ConfigMapList) {
		_, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(from.Must(t, r).Body), nil, &list)
		require.NoError(t, err)
		return list
	}
	compare.AwaitHeld(t, proxy.Target, collection)
	want, got := read(testbed.Upstream), read(proxy.Target)
	for i := range want.Items {
		if len(want.Items[i].ManagedFields) == 0 {
			t.Fatalf("upstream has none: %v", want.Items[i])
		}
		want.Items[i].ManagedFields = nil
	}
	if !reflect.DeepEqual(want.Items, got.Items) {
		t.Errorf("upstream: %v\nproxy: %v", want.Items, got.Items)
	}
}

// survivesWriting reads an object from memory, without managed fields, and writes it back through
// the proxy. Upstream keeps the fields of the manager that made it.
func survivesWriting(t *testing.T, proxy *testbed.Proxy, path string) {
	t.Helper()
	answer := proxy.Must(t, api.Request{Path: path + "?resourceVersion=0"})
	var cm corev1.ConfigMap
	require.NoError(t, json.Unmarshal([]byte(answer.Body), &cm))
	if cm.ManagedFields != nil || !compare.FromMemory(answer) {
		t.Fatalf("%v %s", answer.Header, answer.Body)
	}
	cm.Data["more"] = "1"
	proxy.Must(t, api.Request{Method: "PUT", Path: path + "?fieldManager=editor", Body: api.JSON(&cm)})
	// A consistent get of one object is forwarded, and has them.
	var managers []string
	require.NoError(t, json.Unmarshal([]byte(proxy.Must(t, api.Request{Path: path}).Body), &cm))
	for _, entry := range cm.ManagedFields {
		managers = append(managers, fmt.Sprint(entry.Manager, " ", entry.Operation))
	}
	if got := strings.Join(managers, ", "); got != "orchard Apply, editor Update" {
		t.Errorf("the object is managed by %s", got)
	}
}

// halvesPods compares the size of a pod from memory with upstream's: a pod of a Deployment with the
// status of a kubelet.
func halvesPods(t *testing.T, proxy *testbed.Proxy, path string) {
	t.Helper()
	pod, status := require.Value(os.ReadFile("testdata/pod.json"))(t), require.Value(os.ReadFile("testdata/pod-status.json"))(t)
	testbed.Upstream.Must(t, api.Request{Method: "POST", Path: path + "?fieldManager=kube-controller-manager", Body: string(pod)})
	testbed.Upstream.Must(t, api.Request{Method: "PATCH", Path: path + "/web/status?fieldManager=kubelet", ContentType: api.StrategicPatch, Body: string(status)})
	compare.AwaitHeld(t, proxy.Target, path)
	for accept, limit := range map[string]float64{api.JSONType: 0.6, api.ProtobufType: 0.5} {
		r := api.Request{Path: path + "/web?resourceVersion=0", Accept: accept}
		poll.Until(t, "memory has the status", func() error {
			want, got := len(testbed.Upstream.Must(t, r).Body), len(proxy.Must(t, r).Body)
			ratio := float64(got) / float64(want)
			t.Logf("%s: %d of %d bytes, %.2f", accept, got, want, ratio)
			if ratio > limit || ratio < 0.3 {
				return fmt.Errorf("%d bytes, and upstream has %d", got, want)
			}
			return nil
		})
	}
}
