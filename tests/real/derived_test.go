package real

import (
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
	"watershed.test/real/internal/transcode"
)

// TestDerivedJSONIsWhatUpstreamPrints gets objects of every type in both encodings, and compares
// upstream's JSON with what the transcoder makes of upstream's protobuf.
func TestDerivedJSONIsWhatUpstreamPrints(t *testing.T) {
	t.Parallel()
	ns := objects.Namespace(t)
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "derived"}},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyAlways,
			Containers:    []corev1.Container{{Name: "c", Image: "i", Args: []string{"<&>\u2028\""}}},
		},
	}
	meta := metav1.ObjectMeta{Name: "derived"}
	selector := &metav1.LabelSelector{MatchLabels: template.Labels}
	job := template
	job.Spec.RestartPolicy = corev1.RestartPolicyNever
	for path, object := range map[string]any{
		"/apis/apps/v1/namespaces/" + ns + "/deployments": appsv1.Deployment{ObjectMeta: meta,
			Spec: appsv1.DeploymentSpec{Selector: selector, Template: template}},
		"/apis/apps/v1/namespaces/" + ns + "/statefulsets": appsv1.StatefulSet{ObjectMeta: meta,
			Spec: appsv1.StatefulSetSpec{Selector: selector, Template: template, VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{
				ObjectMeta: metav1.ObjectMeta{Name: "data"},
				Spec: corev1.PersistentVolumeClaimSpec{
					AccessModes: []corev1.PersistentVolumeAccessMode{"ReadWriteOnce"},
					Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": quantity.MustParse("1.5Gi")}},
				},
			}}}},
		"/apis/batch/v1/namespaces/" + ns + "/jobs": batchv1.Job{ObjectMeta: meta, Spec: batchv1.JobSpec{Template: job}},
		"/api/v1/namespaces/" + ns + "/pods":        objects.Pod("derived", ""),
	} {
		testbed.Upstream.Must(t, api.Request{Method: "POST", Path: path, Body: api.JSON(object)})
	}
	served := servedObjects(t, ns)
	proxy := require.Value(testbed.ProxyProgram())(t)
	transcoder := require.Value(transcode.Start(filepath.Join(filepath.Dir(proxy), "examples", "transcode")))(t)
	compared := map[schema.GroupVersionKind]int{}
	require.NoError(t, transcoder.Answers(served, func(object transcode.Object, answer transcode.Answer) {
		if transcode.Excused(object, answer) {
			t.Logf("%s is not explained: %s", object.Kind, answer.Text)
			return
		}
		compared[object.Kind]++
		if found := transcode.Difference(object, answer); found != "" {
			t.Error(found)
		}
	}))
	t.Logf("%d objects of %d types compared", len(served), len(compared))
	if len(compared) < 15 {
		t.Errorf("only %d types have objects", len(compared))
	}
}

// servedObjects returns some objects of each type that upstream serves, in both encodings.
func servedObjects(t *testing.T, ns string) []transcode.Object {
	t.Helper()
	var info version.Info
	require.NoError(t, json.Unmarshal([]byte(testbed.Upstream.Must(t, api.Request{Path: "/version"}).Body), &info))
	var release int
	require.Value(fmt.Sscan(info.Minor, &release))(t)
	var served []transcode.Object
	for _, root := range servedVersions(t) {
		var types metav1.APIResourceList
		require.NoError(t, json.Unmarshal([]byte(testbed.Upstream.Must(t, api.Request{Path: root}).Body), &types))
		for _, r := range types.APIResources {
			if !slices.Contains(r.Verbs, "watch") || strings.Contains(r.Name, "/") {
				continue
			}
			for _, path := range objectPaths(t, root, r, ns) {
				if object, found := inBothEncodings(t, path); found {
					object.Release = release
					served = append(served, object)
				}
			}
		}
	}
	return served
}

// objectPaths returns the paths of some objects of a type, and of all those in a namespace.
func objectPaths(t *testing.T, root string, r metav1.APIResource, ns string) []string {
	t.Helper()
	lists := []string{root + "/" + r.Name + "?limit=5"}
	if r.Namespaced {
		lists = append(lists, root+"/namespaces/"+ns+"/"+r.Name)
	}
	var paths []string
	for _, path := range lists {
		var list metav1.PartialObjectMetadataList
		request := api.Request{Path: path, Accept: api.MetadataListJSON}
		require.NoError(t, json.Unmarshal([]byte(testbed.Upstream.Must(t, request).Body), &list))
		for _, item := range list.Items {
			path := root
			if item.Namespace != "" {
				path += "/namespaces/" + item.Namespace
			}
			paths = append(paths, path+"/"+r.Name+"/"+item.Name)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// inBothEncodings returns an object, unless it is gone, changes all the time, or has no protobuf.
func inBothEncodings(t *testing.T, path string) (transcode.Object, bool) {
	t.Helper()
	for range 5 {
		message := testbed.Upstream.Send(t, api.Request{Path: path, Accept: api.ProtobufType})
		text := testbed.Upstream.Send(t, api.Request{Path: path})
		after := testbed.Upstream.Send(t, api.Request{Path: path, Accept: api.ProtobufType})
		if message.Status != 200 || text.Status != 200 {
			return transcode.Object{}, false
		}
		if message.Body != after.Body {
			continue
		}
		var envelope runtime.Unknown
		require.NoError(t, envelope.Unmarshal([]byte(message.Body)[len("k8s\x00"):]))
		kind := schema.FromAPIVersionAndKind(envelope.APIVersion, envelope.Kind)
		return transcode.Object{Kind: kind, Message: envelope.Raw, Expected: []byte(strings.TrimSuffix(text.Body, "\n"))}, true
	}
	return transcode.Object{}, false
}

// TestHistoryOfDerivedJSONBeginsWithItsFirstState reads a type in JSON for the first time, after
// clients of protobuf have used it. Versions from before are upstream's to answer in JSON; later
// ones come from memory.
func TestHistoryOfDerivedJSONBeginsWithItsFirstState(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy")
	}
	t.Parallel()
	path := "/api/v1/namespaces/" + objects.Namespace(t) + "/configmaps"
	proxy := testbed.StartProxy(t, testbed.Shared.ProxyKubeconfig)
	sides := compare.Sides{Right: testbed.Upstream, Asked: proxy.Target}
	create := func(name string) string {
		created := testbed.Upstream.Must(t, api.Request{Method: "POST", Path: path, Body: fmt.Sprintf(`{"metadata":{"name":"%s"}}`, name)})
		var object metav1.PartialObjectMetadata
		require.NoError(t, json.Unmarshal([]byte(created.Body), &object))
		return object.ResourceVersion
	}
	comesFrom := func(r api.Request, source string) {
		t.Helper()
		poll.Until(t, fmt.Sprint(r, " from ", source), func() error {
			v := sides.CompareAtLeisure(r)
			if v.Difference != "" {
				t.Fatal(v.Difference)
			}
			if got := v.Got.Header.Get("X-Watershed-Source"); got != source {
				return fmt.Errorf("it comes from %s", got)
			}
			return nil
		})
	}
	comesFrom(api.Request{Path: path + "?resourceVersion=0", Accept: api.ProtobufType}, "snapshot")
	create("one")
	before := create("two")
	first := create("three")
	for _, accept := range []string{api.ProtobufType, api.JSONType} {
		comesFrom(api.Request{Path: path + "?resourceVersion=" + first, Accept: accept}, "snapshot")
	}
	after := create("four")
	create("five")
	page := testbed.Upstream.Must(t, api.Request{Path: path + "?limit=1&resourceVersionMatch=Exact&resourceVersion=" + before})
	meta, _, _ := api.ParseList(api.JSONType, page.Body)
	if meta.Continue == "" {
		t.Fatalf("no further page: %s", page.Body)
	}
	for _, query := range []struct{ text, json, protobuf string }{
		{"?resourceVersionMatch=Exact&resourceVersion=" + before, "forward; reason=exact-version", "snapshot"},
		{"?limit=1&continue=" + url.QueryEscape(meta.Continue), "forward; reason=exact-version", "snapshot"},
		{"?watch=1&timeoutSeconds=2&resourceVersion=" + before, "forward; reason=before-first-list", "window"},
		{"?resourceVersionMatch=Exact&resourceVersion=" + after, "snapshot", "snapshot"},
		{"?watch=1&timeoutSeconds=2&resourceVersion=" + after, "window", "window"},
	} {
		comesFrom(api.Request{Path: path + query.text}, query.json)
		comesFrom(api.Request{Path: path + query.text, Accept: api.ProtobufType}, query.protobuf)
	}
}
