// Package informertest compares what client-go's informers hold with what upstream lists.
package informertest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	clientfeatures "k8s.io/client-go/features"
	clientfeaturestesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/tools/cache"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// WatchLists runs a test twice: client-go opens informers with one watch that begins with the
// state, and with list and watch. The switch is global, so such tests do not run in parallel
// with others.
func WatchLists(t *testing.T, run func(t *testing.T)) {
	for _, on := range []bool{true, false} {
		t.Run(fmt.Sprintf("WatchList=%v", on), func(t *testing.T) {
			clientfeaturestesting.SetFeatureDuringTest(t, clientfeatures.WatchListClient, on)
			run(t)
		})
	}
}

// Type is a type to open informers on.
type Type struct {
	Resource   schema.GroupVersionResource
	namespaced bool
}

// The built-in types with informers.
var (
	ConfigMaps   = Type{corev1.SchemeGroupVersion.WithResource("configmaps"), true}
	Pods         = Type{corev1.SchemeGroupVersion.WithResource("pods"), true}
	Deployments  = Type{schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, true}
	ClusterRoles = Type{rbacv1.SchemeGroupVersion.WithResource("clusterroles"), false}
)

// Widgets returns the type of a widget.
func Widgets(w objects.Widget) Type {
	return Type{schema.GroupVersionResource{Group: w.Group, Version: "v1", Resource: w.Plural}, true}
}

// state maps namespace/name to an object in a comparable form.
type state map[string]string

// note adds an object if it belongs to this test.
func (s state) note(object any, mark string) error {
	access, err := meta.Accessor(object)
	if err != nil {
		return err
	}
	if !strings.Contains(access.GetNamespace()+"/"+access.GetName(), mark) {
		return nil
	}
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	// Typed objects of a list carry no kind; those of a watch may.
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		return err
	}
	delete(fields, "kind")
	delete(fields, "apiVersion")
	text, err = json.Marshal(fields)
	s[access.GetNamespace()+"/"+access.GetName()] = string(text)
	return err
}

// Lister lists the objects at upstream with the same kind of client.
type Lister func(ctx context.Context, of Type) ([]any, error)

// Follow waits until a store equals upstream's list, which has at least so many objects.
func Follow(t *testing.T, step string, of Type, store cache.Store, list Lister, mark string, least int) {
	t.Helper()
	poll.Until(t, fmt.Sprintf("%s: the informer on %s shows what upstream lists", step, of.Resource.Resource), func() error {
		want, got := state{}, state{}
		listed, err := list(context.Background(), of)
		if err != nil {
			return err
		}
		for _, o := range listed {
			if err := want.note(o, mark); err != nil {
				return err
			}
		}
		for _, o := range store.List() {
			if err := got.note(o, mark); err != nil {
				return err
			}
		}
		if len(want) < least {
			return fmt.Errorf("upstream has only %d objects", len(want))
		}
		if !maps.Equal(want, got) {
			return fmt.Errorf("\nupstream: %v\ninformer: %v", want, got)
		}
		return nil
	})
}

// Objects are one test's objects of several types, which change step by step.
type Objects struct {
	Namespace string
	Mark      string
	// writes counts the writes, which go through upstream and the proxy in turn.
	writes int
	Dyn    map[string]dynamic.Interface
}

// NewObjects returns objects in a namespace of their own; none exist yet.
func NewObjects(t *testing.T) *Objects {
	ns := objects.Namespace(t)
	l := &Objects{Namespace: ns, Mark: ns, Dyn: map[string]dynamic.Interface{}}
	for _, to := range testbed.Targets() {
		l.Dyn[to.Name] = require.Value(dynamic.NewForConfig(to.Config()))(t)
	}
	return l
}

// on returns the client for the next write.
func (l *Objects) on(w Type) dynamic.ResourceInterface {
	l.writes++
	client := l.Dyn[testbed.Targets()[l.writes%2].Name].Resource(w.Resource)
	if w.namespaced {
		return client.Namespace(l.Namespace)
	}
	return client
}

// Name returns a name that no other test's cluster-scoped objects have.
func (l *Objects) Name(s string) string { return l.Namespace + "-" + s }

func (l *Objects) object(w Type, name string) *unstructured.Unstructured {
	var typed any
	switch w {
	case ConfigMaps:
		typed = objects.WithKind(objects.ConfigMap(l.Name(name), "n", "1"))
	case Pods:
		p := objects.Pod(l.Name(name), "")
		p.APIVersion, p.Kind = "v1", "Pod"
		typed = p
	case Deployments:
		d := objects.Deployment(l.Name(name), 1)
		d.APIVersion, d.Kind = "apps/v1", "Deployment"
		typed = d
	case ClusterRoles:
		typed = &rbacv1.ClusterRole{TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole"}, ObjectMeta: metav1.ObjectMeta{Name: l.Name(name)}}
	default:
		typed = json.RawMessage(objects.Widget{Group: w.Resource.Group, Plural: w.Resource.Resource}.Object(l.Name(name), 1))
	}
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(api.JSON(typed)), &u.Object); err != nil {
		panic(err)
	}
	return u
}

// Create creates objects of a type.
func (l *Objects) Create(t *testing.T, w Type, names ...string) {
	t.Helper()
	for _, name := range names {
		require.Value(l.on(w).Create(context.Background(), l.object(w, name), metav1.CreateOptions{}))(t)
		if !w.namespaced {
			t.Cleanup(func() { l.on(w).Delete(context.Background(), l.Name(name), metav1.DeleteOptions{}) })
		}
	}
}

// Label labels two of the objects, so that selectors gain and lose them.
func (l *Objects) Label(t *testing.T, w Type, round string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"labels":{"round":"%s"}}}`, round)
	for _, name := range []string{"a", "b"} {
		require.Value(l.on(w).Patch(context.Background(), l.Name(name), types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(t)
	}
}

// Change labels, relabels and deletes objects.
func (l *Objects) Change(t *testing.T, w Type) {
	t.Helper()
	ctx := context.Background()
	l.Label(t, w, "1")
	l.Label(t, w, "2")
	require.NoError(t, l.on(w).Delete(ctx, l.Name("b"), metav1.DeleteOptions{}))
	l.Create(t, w, "d")
	// A recreated object has another uid and is another object.
	require.NoError(t, l.on(w).Delete(ctx, l.Name("c"), metav1.DeleteOptions{}))
	l.Create(t, w, "c")
}

// openedInformer is an informer under test.
type openedInformer struct {
	of       Type
	informer cache.SharedIndexInformer
}

// Observe starts informers while objects exist, changes the objects, and compares with
// upstream.
func Observe(t *testing.T, l *Objects, types []Type, list Lister, open func(of Type) cache.SharedIndexInformer) {
	t.Helper()
	stop := make(chan struct{})
	var all []openedInformer
	defer func() { close(stop) }()
	for _, w := range types {
		l.Create(t, w, "a", "b", "c")
		informer := open(w)
		go informer.Run(stop)
		all = append(all, openedInformer{w, informer})
	}
	for _, o := range all {
		poll.Until(t, "the first list of "+o.of.Resource.Resource, func() error {
			if !o.informer.HasSynced() {
				return poll.ErrNotYet
			}
			return nil
		})
		Follow(t, "at first", o.of, o.informer.GetStore(), list, l.Mark, 3)
	}
	for _, o := range all {
		l.Change(t, o.of)
	}
	for _, o := range all {
		Follow(t, "after changes", o.of, o.informer.GetStore(), list, l.Mark, 3)
	}
}
