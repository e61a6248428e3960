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

// Furnish creates a few objects in a namespace.
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

// Deployment returns a deployment with an image that does not exist.
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

// WithKind sets apiVersion and kind, which manifests need.
func WithKind(cm *corev1.ConfigMap) *corev1.ConfigMap {
	cm.APIVersion, cm.Kind = "v1", "ConfigMap"
	return cm
}

// Namespace creates a namespace for this test. It is not deleted: without a controller manager
// nothing would finish that, and it ends with the cluster.
func Namespace(t *testing.T) string {
	t.Helper()
	made := require.Value(api.Clientset(t, testbed.Upstream).CoreV1().Namespaces().Create(context.Background(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: testbed.Slug(t) + "-"}}, metav1.CreateOptions{}))(t)
	return made.Name
}

// ConfigMap returns a config map with data of alternating keys and values.
func ConfigMap(name string, data ...string) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}, Data: map[string]string{}}
	for i := 0; i+1 < len(data); i += 2 {
		cm.Data[data[i]] = data[i+1]
	}
	return cm
}

// Pod returns a pod for a node, or for none.
func Pod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: new(int64),
			Containers: []corev1.Container{{Name: "main", Image: "example.test/main:1"}}},
	}
}

// Widget is a custom type that belongs to one test.
type Widget struct {
	Group, Plural string
}

// NewWidget returns a type with a group of its own. It is not defined yet.
func NewWidget(t *testing.T) Widget {
	return Widget{Group: testbed.Slug(t) + ".example.test", Plural: "widgets"}
}

// Name returns the name of the CRD.
func (w Widget) Name() string { return w.Plural + "." + w.Group }

// Path returns the path of a collection or of an object.
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

// Object returns an object of the type.
func (w Widget) Object(name string, size int) string {
	return fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Widget","metadata":{"name":"%s"},"spec":{"size":%d}}`, w.Group, name, size)
}

// Definition returns the CRD. With colour it is the second edition, which has one more field.
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

// CRDPath is the collection of CustomResourceDefinitions.
const CRDPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// Define creates the type through one target and waits until upstream serves it.
func (w Widget) Define(t *testing.T, via api.Target) {
	t.Helper()
	via.Must(t, api.Request{Method: "POST", Path: CRDPath, Body: w.Definition(false)})
	t.Cleanup(func() { testbed.Upstream.Try(api.Request{Method: "DELETE", Path: CRDPath + "/" + w.Name()}) })
	w.AwaitServed(t, testbed.Upstream)
}

// AwaitServed waits until a list of the type is answered. Upstream takes a moment to establish
// a type, and its cache takes another.
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

// Grant lets a user read a resource in a namespace, or everywhere if ns is empty.
func Grant(t *testing.T, ns, user, group, resource string) {
	t.Helper()
	GrantVerbs(t, ns, user, group, resource, "get", "list", "watch")
}

// GrantVerbs does the same for given verbs.
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
