// Prints what upstream's own encoders make of a few objects: lists, watch streams, gets and bookmarks.
//
// The files beside this directory are its output. To print them anew (any module that requires k8s.io/api,
// k8s.io/apimachinery and k8s.io/client-go in the release to print with will do):
//
//	go mod init generate && go mod tidy && go run . ..
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	certv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/framer"
	"k8s.io/client-go/kubernetes/scheme"
)

var js = json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{StreamingCollectionsEncoding: true})
var people = json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{Pretty: true})
var pb = protobuf.NewSerializerWithOptions(scheme.Scheme, scheme.Scheme, protobuf.SerializerOptions{StreamingCollectionsEncoding: true})
var pbraw = protobuf.NewRawSerializer(scheme.Scheme, scheme.Scheme)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func write(name string, data []byte) {
	p := filepath.Join(os.Args[1], name)
	must(os.MkdirAll(filepath.Dir(p), 0o755))
	must(os.WriteFile(p, data, 0o644))
}

func enc(e runtime.Encoder, o runtime.Object) []byte {
	var b bytes.Buffer
	must(e.Encode(o, &b))
	return b.Bytes()
}

func event(t string, o runtime.Object, proto bool) []byte {
	var w bytes.Buffer
	if proto {
		ev := &metav1.WatchEvent{Type: t, Object: runtime.RawExtension{Raw: enc(pb, o)}}
		f := framer.NewLengthDelimitedFrameWriter(&w)
		_, err := f.Write(enc(pbraw, ev))
		must(err)
		return w.Bytes()
	}
	ev := &metav1.WatchEvent{Type: t, Object: runtime.RawExtension{Raw: bytes.TrimSuffix(enc(js, o), []byte("\n"))}}
	return enc(js, ev)
}

func typed(name string, gvk schema.GroupVersionKind, list runtime.Object, empty runtime.Object, objs ...runtime.Object) {
	lk := gvk
	lk.Kind += "List"
	if gvk.Kind == "PartialObjectMetadata" {
		lk.Kind = "PartialObjectMetadataList"
	}
	list.GetObjectKind().SetGroupVersionKind(lk)
	write(name+"/list.json", enc(js, list))
	write(name+"/list.pb", enc(pb, list))
	var sj, sp []byte
	kinds := []string{"ADDED", "MODIFIED", "DELETED"}
	for i, o := range objs {
		o.GetObjectKind().SetGroupVersionKind(gvk)
		sj = append(sj, event(kinds[i%3], o, false)...)
		sp = append(sp, event(kinds[i%3], o, true)...)
	}
	// bookmarks: plain, marked
	empty.GetObjectKind().SetGroupVersionKind(gvk)
	m := empty.(metav1.Object)
	m.SetResourceVersion("225")
	sj = append(sj, event("BOOKMARK", empty, false)...)
	sp = append(sp, event("BOOKMARK", empty, true)...)
	m.SetResourceVersion("1225")
	m.SetAnnotations(map[string]string{"k8s.io/initial-events-end": "true"})
	sj = append(sj, event("BOOKMARK", empty, false)...)
	sp = append(sp, event("BOOKMARK", empty, true)...)
	st := &metav1.Status{Status: "Failure", Message: "too old resource version: 5 (287)", Reason: "Expired", Code: 410}
	st.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Status"})
	sj = append(sj, event("ERROR", st, false)...)
	sp = append(sp, event("ERROR", st, true)...)
	write(name+"/watch.json", sj)
	write(name+"/watch.pb", sp)
	if len(objs) > 0 {
		write(name+"/get.json", enc(js, objs[0]))
		write(name+"/get.pb", enc(pb, objs[0]))
	}
}

func meta(ns, name, rv string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: ns, Name: name, ResourceVersion: rv, UID: "0c9b1f1e-0000-4000-8000-000000000000", Generation: 3,
		CreationTimestamp: metav1.NewTime(time.Unix(1700000000, 0).UTC()),
		Labels:            map[string]string{"app": "web", "tier": "<front>&", "a/empty": ""}, Annotations: map[string]string{"note": "\u2028 \"quoted\" \\ \n"},
		Finalizers: []string{"x.io/f"}}
}

// Entries of managed fields, as kube-apiserver keeps them.
func managedFields() []metav1.ManagedFieldsEntry {
	at := metav1.NewTime(time.Unix(1700000000, 0).UTC())
	fields := func(text string) *metav1.FieldsV1 { return &metav1.FieldsV1{Raw: []byte(text)} }
	return []metav1.ManagedFieldsEntry{
		{Manager: "apply", Operation: "Apply", APIVersion: "v1", Time: &at, FieldsType: "FieldsV1", FieldsV1: fields(`{"f:metadata":{"f:labels":{"f:app":{}}}}`)},
		{Manager: "kubelet", Operation: "Update", APIVersion: "v1", Time: &at, FieldsType: "FieldsV1", FieldsV1: fields(`{"f:status":{"f:phase":{},"k:{\"type\":\"\u003cReady\u003e\"}":{".":{}}}}`), Subresource: "status"},
	}
}

// Prints the same objects with managed fields and without: of a struct with a body, of one that is nothing but metadata,
// and of a custom resource. The last object of each never had any.
func managed() {
	with := func(o metav1.ObjectMeta) metav1.ObjectMeta {
		o.ManagedFields = managedFields()
		return o
	}
	without := func(o metav1.ObjectMeta) metav1.ObjectMeta { return o }
	n := int64(7)
	listed := metav1.ListMeta{ResourceVersion: "500", Continue: "abc", RemainingItemCount: &n}
	for folder, of := range map[string]func(metav1.ObjectMeta) metav1.ObjectMeta{"managed": with, "unmanaged": without} {
		pods := []corev1.Pod{{ObjectMeta: of(meta("shop", "web-0", "7"))}, {ObjectMeta: of(metav1.ObjectMeta{Name: "bare", Namespace: "shop", ResourceVersion: "8"})}, {ObjectMeta: meta("shop", "never", "9")}}
		pods[0].Spec.Containers = []corev1.Container{{Name: "managedFields", Args: []string{`"managedFields":[]`}}}
		typed(folder+"/pods", corev1.SchemeGroupVersion.WithKind("Pod"), &corev1.PodList{ListMeta: listed, Items: pods}, &corev1.Pod{}, pods[0].DeepCopy(), pods[1].DeepCopy(), pods[2].DeepCopy())

		kind := schema.GroupVersionKind{Group: "meta.k8s.io", Version: "v1", Kind: "PartialObjectMetadata"}
		partial := []metav1.PartialObjectMetadata{{ObjectMeta: of(meta("shop", "p", "7"))}, {ObjectMeta: meta("shop", "never", "9")}}
		for i := range partial {
			partial[i].SetGroupVersionKind(kind)
		}
		typed(folder+"/partial", kind, &metav1.PartialObjectMetadataList{ListMeta: listed, Items: partial}, &metav1.PartialObjectMetadata{}, partial[0].DeepCopy(), partial[1].DeepCopy())

		var stream []byte
		list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "ex.io/v1", "kind": "FooList", "metadata": map[string]any{"continue": "abc", "remainingItemCount": n, "resourceVersion": "500"}}}
		for i, meta := range []metav1.ObjectMeta{of(meta("shop", "f", "7")), of(metav1.ObjectMeta{Name: "bare", Namespace: "shop", ResourceVersion: "8"}), meta("shop", "never", "9")} {
			foo := unstructured.Unstructured{Object: map[string]any{"apiVersion": "ex.io/v1", "kind": "Foo", "spec": map[string]any{"managedFields": []any{"kept"}}}}
			object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&metav1.PartialObjectMetadata{ObjectMeta: meta})
			must(err)
			foo.Object["metadata"] = object["metadata"]
			list.Items = append(list.Items, foo)
			stream = append(stream, event([]string{"ADDED", "MODIFIED", "DELETED"}[i], &foo, false)...)
		}
		write(folder+"/foos/list.json", enc(js, list))
		write(folder+"/foos/watch.json", stream)
	}
}

func main() {
	managed()
	n := int64(7)
	node := "node-1"
	pod := func(i int) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: meta("shop", fmt.Sprintf("web-%d", i), fmt.Sprint(100+i))}
		p.Spec = corev1.PodSpec{NodeName: "node-1", RestartPolicy: "Always", SchedulerName: "default-scheduler", ServiceAccountName: "sa", HostNetwork: i == 0,
			Containers: []corev1.Container{{Name: "c", Image: "nginx"}}}
		p.Status = corev1.PodStatus{Phase: "Running", NominatedNodeName: "node-2", PodIP: "10.0.0.1"}
		if i == 0 {
			p.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}
		} else {
			p.Status.PodIP = ""
		}
		return p
	}
	l := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "500", Continue: "eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ", RemainingItemCount: &n}, Items: []corev1.Pod{*pod(0), *pod(1)}}
	first := pod(0)
	typed("pods", corev1.SchemeGroupVersion.WithKind("Pod"), l, &corev1.Pod{}, first, pod(1))
	write("pods/list.indented.json", enc(people, l))
	write("pods/get.indented.json", enc(people, first))

	typed("configmaps", corev1.SchemeGroupVersion.WithKind("ConfigMap"), &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: "500"}, Items: []corev1.ConfigMap{}}, &corev1.ConfigMap{},
		&corev1.ConfigMap{ObjectMeta: meta("shop", "cm", "9"), Data: map[string]string{"k": "v"}})

	d := &appsv1.Deployment{ObjectMeta: meta("shop", "d", "77")}
	typed("deployments", appsv1.SchemeGroupVersion.WithKind("Deployment"), &appsv1.DeploymentList{ListMeta: metav1.ListMeta{ResourceVersion: "500"}, Items: []appsv1.Deployment{*d}}, &appsv1.Deployment{}, d)

	no := &corev1.Node{ObjectMeta: meta("", "node-1", "88"), Spec: corev1.NodeSpec{Unschedulable: true}}
	typed("nodes", corev1.SchemeGroupVersion.WithKind("Node"), &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "500"}, Items: []corev1.Node{*no}}, &corev1.Node{}, no)

	ns := &corev1.Namespace{ObjectMeta: meta("", "shop", "88"), Status: corev1.NamespaceStatus{Phase: "Active"}}
	typed("namespaces", corev1.SchemeGroupVersion.WithKind("Namespace"), &corev1.NamespaceList{ListMeta: metav1.ListMeta{ResourceVersion: "500"}, Items: []corev1.Namespace{*ns}}, &corev1.Namespace{}, ns)

	se := &corev1.Secret{ObjectMeta: meta("shop", "s", "88"), Type: "Opaque", Data: map[string][]byte{"k": {0, 1, 0xff}}}
	typed("secrets", corev1.SchemeGroupVersion.WithKind("Secret"), &corev1.SecretList{ListMeta: metav1.ListMeta{ResourceVersion: "500"}, Items: []corev1.Secret{*se}}, &corev1.Secret{}, se)

	sv := &corev1.Service{ObjectMeta: meta("shop", "s", "88"), Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.9", Type: "ClusterIP"}}
	typed("services", corev1.SchemeGroupVersion.WithKind("Service"), &corev1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: "500"}, Items: []corev1.Service{*sv}}, &corev1.Service{}, sv)

	rc := &corev1.ReplicationController{ObjectMeta: meta("shop", "rc", "88"), Status: corev1.ReplicationControllerStatus{Replicas: 4}}
	typed("replicationcontrollers", corev1.SchemeGroupVersion.WithKind("ReplicationController"), &corev1.ReplicationControllerList{ListMeta: metav1.ListMeta{ResourceVersion: "500"}, Items: []corev1.ReplicationController{*rc}}, &corev1.ReplicationController{}, rc)

	ref := corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "web-0", UID: "u-1", APIVersion: "v1", ResourceVersion: "5", FieldPath: "spec.containers{c}"}
	ev := &corev1.Event{ObjectMeta: meta("shop", "e", "88"), InvolvedObject: ref, Reason: "Started", Source: corev1.EventSource{Component: "kubelet"}, Type: "Normal", ReportingController: "rep"}
	ev2 := &corev1.Event{ObjectMeta: meta("shop", "e2", "89"), InvolvedObject: ref, Reason: "Started", Type: "Normal", ReportingController: "rep"}
	typed("events", corev1.SchemeGroupVersion.WithKind("Event"), &corev1.EventList{ListMeta: metav1.ListMeta{ResourceVersion: "500"}, Items: []corev1.Event{*ev, *ev2}}, &corev1.Event{}, ev, ev2)

	ee := &eventsv1.Event{ObjectMeta: meta("shop", "e", "88"), Regarding: ref, Reason: "Started", Type: "Normal", ReportingController: "rep"}
	typed("events.events.k8s.io", eventsv1.SchemeGroupVersion.WithKind("Event"), &eventsv1.EventList{ListMeta: metav1.ListMeta{ResourceVersion: "500"}, Items: []eventsv1.Event{*ee}}, &eventsv1.Event{}, ee)

	jb := &batchv1.Job{ObjectMeta: meta("shop", "j", "88"), Status: batchv1.JobStatus{Succeeded: 2}}
	typed("jobs", batchv1.SchemeGroupVersion.WithKind("Job"), &batchv1.JobList{ListMeta: metav1.ListMeta{ResourceVersion: "500"}, Items: []batchv1.Job{*jb}}, &batchv1.Job{}, jb)

	cs := &certv1.CertificateSigningRequest{ObjectMeta: meta("", "csr", "88"), Spec: certv1.CertificateSigningRequestSpec{SignerName: "x.io/signer"}}
	typed("certificatesigningrequests", certv1.SchemeGroupVersion.WithKind("CertificateSigningRequest"), &certv1.CertificateSigningRequestList{ListMeta: metav1.ListMeta{ResourceVersion: "500"}, Items: []certv1.CertificateSigningRequest{*cs}}, &certv1.CertificateSigningRequest{}, cs)
	ct := &certv1.ClusterTrustBundle{ObjectMeta: meta("", "ctb", "88"), Spec: certv1.ClusterTrustBundleSpec{SignerName: "x.io/signer"}}
	typed("clustertrustbundles", certv1.SchemeGroupVersion.WithKind("ClusterTrustBundle"), &certv1.ClusterTrustBundleList{ListMeta: metav1.ListMeta{ResourceVersion: "500"}, Items: []certv1.ClusterTrustBundle{*ct}}, &certv1.ClusterTrustBundle{}, ct)
	pc := &certv1.PodCertificateRequest{ObjectMeta: meta("shop", "pcr", "88"), Spec: certv1.PodCertificateRequestSpec{SignerName: "x.io/signer", PodName: "web-0", NodeName: "node-1"}}
	typed("podcertificaterequests", certv1.SchemeGroupVersion.WithKind("PodCertificateRequest"), &certv1.PodCertificateRequestList{ListMeta: metav1.ListMeta{ResourceVersion: "500"}, Items: []certv1.PodCertificateRequest{*pc}}, &certv1.PodCertificateRequest{}, pc)

	rs := &resourcev1.ResourceSlice{ObjectMeta: meta("", "rs", "88"), Spec: resourcev1.ResourceSliceSpec{Driver: "gpu.x.io", NodeName: &node, Pool: resourcev1.ResourcePool{Name: "pool-1"}}}
	typed("resourceslices", resourcev1.SchemeGroupVersion.WithKind("ResourceSlice"), &resourcev1.ResourceSliceList{ListMeta: metav1.ListMeta{ResourceVersion: "500"}, Items: []resourcev1.ResourceSlice{*rs}}, &resourcev1.ResourceSlice{}, rs)

	pm := &metav1.PartialObjectMetadata{ObjectMeta: meta("shop", "p", "88")}
	pmk := metav1.SchemeGroupVersion
	pmk.Group = "meta.k8s.io"
	pm.SetGroupVersionKind(pmk.WithKind("PartialObjectMetadata"))
	pml := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: "500"}, Items: []metav1.PartialObjectMetadata{*pm}}
	typed("partial", pmk.WithKind("PartialObjectMetadata"), pml, &metav1.PartialObjectMetadata{}, pm)
	write("partial/list.indented.json", enc(people, pml))
	e := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: "500"}}
	e.SetGroupVersionKind(pmk.WithKind("PartialObjectMetadataList"))
	write("partial/empty.json", enc(js, e))
	write("partial/empty.pb", enc(pb, e))
	write("partial/empty.indented.json", enc(people, e))

	// custom resources
	cr := func(i int) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "ex.io/v1", "kind": "Foo", "color": "x",
			"metadata": map[string]any{"name": fmt.Sprintf("foo-%d", i), "namespace": "shop", "resourceVersion": fmt.Sprint(300 + i), "labels": map[string]any{"b": "<1>", "a": "2"}},
			"spec":     map[string]any{"color": "red & blue", "size": int64(-5), "on": true, "none": nil, "nested": map[string]any{"deep": "x\u2029"}}}}
	}
	ul := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "ex.io/v1", "kind": "FooList", "metadata": map[string]any{"continue": "", "resourceVersion": "400"}}}
	ul.Items = []unstructured.Unstructured{*cr(0), *cr(1)}
	write("foos/list.json", enc(js, ul))
	write("foos/list.indented.json", enc(people, ul))
	ul.Object["metadata"] = map[string]any{"continue": "abc", "remainingItemCount": int64(3), "resourceVersion": "400"}
	write("foos/paged.json", enc(js, ul))
	ul.Items = nil
	ul.Object["metadata"] = map[string]any{"continue": "", "resourceVersion": "400"}
	write("foos/empty.json", enc(js, ul))
	write("foos/empty.indented.json", enc(people, ul))
	var sj []byte
	sj = append(sj, event("ADDED", cr(0), false)...)
	sj = append(sj, event("MODIFIED", cr(1), false)...)
	bm := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "ex.io/v1", "kind": "Foo"}}
	bm.SetResourceVersion("225")
	sj = append(sj, event("BOOKMARK", bm, false)...)
	bm.SetResourceVersion("1225")
	bm.SetAnnotations(map[string]string{"k8s.io/initial-events-end": "true"})
	sj = append(sj, event("BOOKMARK", bm, false)...)
	st := &metav1.Status{Status: "Failure", Message: "too old resource version: 5 (287)", Reason: "Expired", Code: 410}
	st.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Status"})
	sj = append(sj, event("ERROR", st, false)...)
	write("foos/watch.json", sj)
	write("foos/get.json", enc(js, cr(0)))

	odd := cr(0)
	odd.Object["spec"] = map[string]any{
		"": "", "empty": map[string]any{}, "none": []any{}, "nothing": nil, "within": []any{[]any{}, map[string]any{}, []any{[]any{nil, true}}},
		"numbers": []any{int64(9007199254740993), int64(-9223372036854775808), 1.5, 1e21, 1e-9, -0.0, 100000000.0},
		"texts":   []any{"<a> & b", "\u2028\u2029", "\"{[,:]}\"", "\\", "\\\"", "\x00\x1f\x7f", "\b\f\n\r\t", "äö\U0001f30a", "\xff broken", "  spaces  "},
		"{}":      map[string]any{"a\"b": map[string]any{"[": "]"}},
	}
	write("indented/odd.json", enc(js, odd))
	write("indented/odd.indented.json", enc(people, odd))
}
