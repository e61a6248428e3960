package real

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// namespace makes a namespace for this test only. It stays: without a
// controller manager nothing would finish its deletion, and it goes with the
// cluster.
func namespace(t *testing.T) string {
	t.Helper()
	made := must(kubeClient(t, upstream).CoreV1().Namespaces().Create(context.Background(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: slug(t) + "-"}}, metav1.CreateOptions{}))(t)
	return made.Name
}

func kubeClient(t *testing.T, to target) kubernetes.Interface {
	t.Helper()
	return must(kubernetes.NewForConfig(to.config()))(t)
}

func configMap(name string, data ...string) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}, Data: map[string]string{}}
	for i := 0; i+1 < len(data); i += 2 {
		cm.Data[data[i]] = data[i+1]
	}
	return cm
}

func pod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: new(int64),
			Containers: []corev1.Container{{Name: "main", Image: "example.test/main:1"}}},
	}
}

// asJSON is an object as a request body.
func asJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// widget is a custom resource type of one test's own.
type widget struct {
	group, plural string
}

func newWidget(t *testing.T) widget {
	return widget{group: slug(t) + ".example.test", plural: "widgets"}
}

func (w widget) name() string { return w.plural + "." + w.group }

func (w widget) path(ns, name string) string {
	path := "/apis/" + w.group + "/v1"
	if ns != "" {
		path += "/namespaces/" + ns
	}
	path += "/" + w.plural
	if name != "" {
		path += "/" + name
	}
	return path
}

func (w widget) object(name string, size int) string {
	return fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Widget","metadata":{"name":"%s"},"spec":{"size":%d}}`, w.group, name, size)
}

// definition is the CRD; with colour, its second edition.
func (w widget) definition(colour bool) string {
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
		w.name(), w.group, w.plural, column, spec)
}

const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// define creates the type through one way and waits until upstream serves it.
func (w widget) define(t *testing.T, via target) {
	t.Helper()
	via.ok(t, request{method: "POST", path: definitions, body: w.definition(false)})
	t.Cleanup(func() { upstream.try(request{method: "DELETE", path: definitions + "/" + w.name()}) })
	w.awaitServed(t, upstream)
}

// awaitServed waits until a list of the type is answered. Establishing a type
// takes upstream a moment, and its cache another.
func (w widget) awaitServed(t *testing.T, by target) {
	t.Helper()
	eventually(t, "a list of "+w.name()+" "+by.name, func() error {
		a, err := by.try(request{path: w.path("", "")})
		if err == nil && a.status != 200 {
			err = fmt.Errorf("%d %s", a.status, a.body)
		}
		return err
	})
}

// grant lets a user read a resource, in one namespace or in all.
func grant(t *testing.T, ns, user, group, resource string) {
	t.Helper()
	grantVerbs(t, ns, user, group, resource, "get", "list", "watch")
}

func grantVerbs(t *testing.T, ns, user, group, resource string, verbs ...string) {
	t.Helper()
	ctx := context.Background()
	rbac := kubeClient(t, upstream).RbacV1()
	meta := metav1.ObjectMeta{Name: slug(t) + "-" + resource}
	rules := []rbacv1.PolicyRule{{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}}
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}}
	if ns == "" {
		must(rbac.ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}))(t)
		must(rbac.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name}}, metav1.CreateOptions{}))(t)
		return
	}
	must(rbac.Roles(ns).Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}))(t)
	must(rbac.RoleBindings(ns).Create(ctx, &rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name}}, metav1.CreateOptions{}))(t)
}
