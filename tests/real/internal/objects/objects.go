// Package objects makes the namespaces, objects, custom types and grants that tests read and
// write.
package objects

import (
	"context"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// Furnish fills a namespace with a few objects to look at.
func Furnish(t *testing.T, ns string) {
	t.Helper()
	ctx := context.Background()
	client := api.Clientset(t, testbed.Upstream)
	for _, name := range []string{"apple", "pear", "quince"} {
		require.Value(client.CoreV1().ConfigMaps(ns).Create(ctx, ConfigMap(name, "colour", "green"), metav1.CreateOptions{}))(t)
		require.Value(client.CoreV1().Pods(ns).Create(ctx, Pod(name, ""), metav1.CreateOptions{}))(t)
	}
	require.Value(client.CoreV1().Services(ns).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "orchard"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "apple"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{}))(t)
	require.Value(client.AppsV1().Deployments(ns).Create(ctx, Deployment("press", 1), metav1.CreateOptions{}))(t)
}

func Deployment(name string, replicas int32) *appsv1.Deployment {
	p := Pod(name, "")
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: p.Labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: p.Labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: p.Labels},
				Spec: corev1.PodSpec{Containers: p.Spec.Containers}},
		},
	}
}

func WithKind(cm *corev1.ConfigMap) *corev1.ConfigMap {
	cm.APIVersion, cm.Kind = "v1", "ConfigMap"
	return cm
}

// Namespace makes a namespace for this test only. It stays: without a
// controller manager nothing would finish its deletion, and it goes with the
// cluster.
func Namespace(t *testing.T) string {
	t.Helper()
	made := require.Value(api.Clientset(t, testbed.Upstream).CoreV1().Namespaces().Create(context.Background(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: testbed.Slug(t) + "-"}}, metav1.CreateOptions{}))(t)
	return made.Name
}

func ConfigMap(name string, data ...string) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}, Data: map[string]string{}}
	for i := 0; i+1 < len(data); i += 2 {
		cm.Data[data[i]] = data[i+1]
	}
	return cm
}

func Pod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: new(int64),
			Containers: []corev1.Container{{Name: "main", Image: "example.test/main:1"}}},
	}
}

// Widget is a custom resource type of one test's own.
type Widget struct {
	Group, Plural string
}

func NewWidget(t *testing.T) Widget {
	return Widget{Group: testbed.Slug(t) + ".example.test", Plural: "widgets"}
}

func (w Widget) Name() string { return w.Plural + "." + w.Group }

func (w Widget) Path(ns, name string) string {
	path := "/apis/" + w.Group + "/v1"
	if ns != "" {
		path += "/namespaces/" + ns
	}
	path += "/" + w.Plural
	if name != "" {
		path += "/" + name
	}
	return path
}

func (w Widget) Object(name string, size int) string {
	return fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Widget","metadata":{"name":"%s"},"spec":{"size":%d}}`, w.Group, name, size)
}

// Definition is the CRD; with colour, its second edition.
func (w Widget) Definition(colour bool) string {
	spec := `"size":{"type":"integer"}`
	column := ""
	if colour {
		spec += `,"colour":{"type":"string"}`
		column = `,{"name":"Colour","type":"string","jsonPath":".spec.colour"}`
	}
	return fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%s"},
		"spec":{"group":"%s","scope":"Namespaced","names":{"plural":"%s","singular":"widget","kind":"Widget","listKind":"WidgetList"},
		"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},
			"additionalPrinterColumns":[{"name":"Size","type":"integer","jsonPath":".spec.size"}%s],
			"selectableFields":[{"jsonPath":".spec.size"}],
			"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{%s}},"status":{"type":"object"}}}}}]}}`,
		w.Name(), w.Group, w.Plural, column, spec)
}

const CRDPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// Define creates the type through one way and waits until upstream serves it.
func (w Widget) Define(t *testing.T, via api.Target) {
	t.Helper()
	via.Must(t, api.Request{Method: "POST", Path: CRDPath, Body: w.Definition(false)})
	t.Cleanup(func() { testbed.Upstream.Try(api.Request{Method: "DELETE", Path: CRDPath + "/" + w.Name()}) })
	w.AwaitServed(t, testbed.Upstream)
}

// AwaitServed waits until a list of the type is answered. Establishing a type
// takes upstream a moment, and its cache another.
func (w Widget) AwaitServed(t *testing.T, by api.Target) {
	t.Helper()
	poll.Until(t, "a list of "+w.Name()+" "+by.Name, func() error {
		a, err := by.Try(api.Request{Path: w.Path("", "")})
		if err == nil && a.Status != 200 {
			err = fmt.Errorf("%d %s", a.Status, a.Body)
		}
		return err
	})
}

// Grant lets a user read a resource, in one namespace or in all.
func Grant(t *testing.T, ns, user, group, resource string) {
	t.Helper()
	GrantVerbs(t, ns, user, group, resource, "get", "list", "watch")
}

func GrantVerbs(t *testing.T, ns, user, group, resource string, verbs ...string) {
	t.Helper()
	ctx := context.Background()
	rbac := api.Clientset(t, testbed.Upstream).RbacV1()
	meta := metav1.ObjectMeta{Name: testbed.Slug(t) + "-" + resource}
	rules := []rbacv1.PolicyRule{{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}}
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}}
	if ns == "" {
		require.Value(rbac.ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}))(t)
		require.Value(rbac.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name}}, metav1.CreateOptions{}))(t)
		return
	}
	require.Value(rbac.Roles(ns).Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}))(t)
	require.Value(rbac.RoleBindings(ns).Create(ctx, &rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name}}, metav1.CreateOptions{}))(t)
}
