package real

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	clientfeatures "k8s.io/client-go/features"
	clientfeaturestesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
)

const (
	jsonType     = "application/json"
	protobufType = "application/vnd.kubernetes.protobuf"
)

// watchLists runs a test with client-go opening informers in its modern way, by
// one watch that begins with the state, and in the classic way, by list and
// watch. The switch is global: such tests do not run in parallel with others.
func watchLists(t *testing.T, run func(t *testing.T)) {
	for _, on := range []bool{true, false} {
		t.Run(fmt.Sprintf("WatchList=%v", on), func(t *testing.T) {
			clientfeaturestesting.SetFeatureDuringTest(t, clientfeatures.WatchListClient, on)
			run(t)
		})
	}
}

// watched is a type that an informer is opened on.
type watched struct {
	resource   schema.GroupVersionResource
	namespaced bool
}

var (
	configMaps   = watched{corev1.SchemeGroupVersion.WithResource("configmaps"), true}
	pods         = watched{corev1.SchemeGroupVersion.WithResource("pods"), true}
	deployments  = watched{schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, true}
	clusterRoles = watched{rbacv1.SchemeGroupVersion.WithResource("clusterroles"), false}
)

func widgets(w widget) watched {
	return watched{schema.GroupVersionResource{Group: w.group, Version: "v1", Resource: w.plural}, true}
}

// state maps namespace/name to an object in a form that can be compared.
type state map[string]string

// note adds an object, if it is one of this test's: others come and go.
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
	// Typed objects out of a list carry no kind, those out of a watch may.
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

// lister reads the state straight from upstream, with the same kind of client.
type lister func(ctx context.Context, of watched) ([]any, error)

// follow checks that a store becomes equal to what upstream lists.
func follow(t *testing.T, step string, of watched, store cache.Store, list lister, mark string, least int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s: the informer on %s shows what upstream lists", step, of.resource.Resource), func() error {
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

// life is one test's objects of several types, changed step by step.
type life struct {
	ns   string
	mark string
	// writes counts: they go through upstream and the proxy in turn.
	writes int
	dyn    map[string]dynamic.Interface
}

func newLife(t *testing.T) *life {
	ns := namespace(t)
	l := &life{ns: ns, mark: ns, dyn: map[string]dynamic.Interface{}}
	for _, to := range targets() {
		l.dyn[to.name] = must(dynamic.NewForConfig(to.config()))(t)
	}
	return l
}

// on is the client for the next write.
func (l *life) on(w watched) dynamic.ResourceInterface {
	l.writes++
	client := l.dyn[targets()[l.writes%2].name].Resource(w.resource)
	if w.namespaced {
		return client.Namespace(l.ns)
	}
	return client
}

// name keeps cluster-scoped objects of different tests apart.
func (l *life) name(s string) string { return l.ns + "-" + s }

func (l *life) object(w watched, name string) *unstructured.Unstructured {
	var typed any
	switch w {
	case configMaps:
		typed = withKind(configMap(l.name(name), "n", "1"))
	case pods:
		p := pod(l.name(name), "")
		p.APIVersion, p.Kind = "v1", "Pod"
		typed = p
	case deployments:
		d := deployment(l.name(name), 1)
		d.APIVersion, d.Kind = "apps/v1", "Deployment"
		typed = d
	case clusterRoles:
		typed = &rbacv1.ClusterRole{TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole"}, ObjectMeta: metav1.ObjectMeta{Name: l.name(name)}}
	default:
		typed = json.RawMessage(widget{group: w.resource.Group, plural: w.resource.Resource}.object(l.name(name), 1))
	}
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(asJSON(typed)), &u.Object); err != nil {
		panic(err)
	}
	return u
}

func (l *life) create(t *testing.T, w watched, names ...string) {
	t.Helper()
	for _, name := range names {
		must(l.on(w).Create(context.Background(), l.object(w, name), metav1.CreateOptions{}))(t)
		if !w.namespaced {
			t.Cleanup(func() { l.on(w).Delete(context.Background(), l.name(name), metav1.DeleteOptions{}) })
		}
	}
}

// change labels, relabels and deletes, so that selectors come and go.
func (l *life) change(t *testing.T, w watched) {
	t.Helper()
	ctx := context.Background()
	for _, round := range []string{"1", "2"} {
		patch := fmt.Sprintf(`{"metadata":{"labels":{"round":"%s"}}}`, round)
		for _, name := range []string{"a", "b"} {
			must(l.on(w).Patch(ctx, l.name(name), types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(t)
		}
	}
	check(t, l.on(w).Delete(ctx, l.name("b"), metav1.DeleteOptions{}))
	l.create(t, w, "d")
	// An object that dies and comes back is another one, by its uid.
	check(t, l.on(w).Delete(ctx, l.name("c"), metav1.DeleteOptions{}))
	l.create(t, w, "c")
}

// opened is an informer under test.
type opened struct {
	of       watched
	informer cache.SharedIndexInformer
}

// observe takes informers through the life of objects: they start with some
// there, and have to end up with what upstream has.
func observe(t *testing.T, l *life, types []watched, list lister, open func(of watched) cache.SharedIndexInformer) {
	t.Helper()
	stop := make(chan struct{})
	var all []opened
	defer func() { close(stop) }()
	for _, w := range types {
		l.create(t, w, "a", "b", "c")
		informer := open(w)
		go informer.Run(stop)
		all = append(all, opened{w, informer})
	}
	for _, o := range all {
		eventually(t, "the first list of "+o.of.resource.Resource, func() error {
			if !o.informer.HasSynced() {
				return errNotYet
			}
			return nil
		})
		follow(t, "at first", o.of, o.informer.GetStore(), list, l.mark, 3)
	}
	for _, o := range all {
		l.change(t, o.of)
	}
	for _, o := range all {
		follow(t, "after changes", o.of, o.informer.GetStore(), list, l.mark, 3)
	}
}

func TestTypedInformers(t *testing.T) {
	watchLists(t, func(t *testing.T) {
		for _, contentType := range []string{jsonType, protobufType} {
			t.Run(contentType, func(t *testing.T) {
				l := newLife(t)
				configure := func(to target) *kubernetes.Clientset {
					config := to.config()
					config.ContentType, config.AcceptContentTypes = contentType, contentType
					return must(kubernetes.NewForConfig(config))(t)
				}
				direct := configure(upstream)
				list := func(ctx context.Context, of watched) ([]any, error) {
					switch of {
					case configMaps:
						return items(direct.CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{}))
					case pods:
						return items(direct.CoreV1().Pods("").List(ctx, metav1.ListOptions{}))
					case deployments:
						return items(direct.AppsV1().Deployments("").List(ctx, metav1.ListOptions{}))
					case clusterRoles:
						return items(direct.RbacV1().ClusterRoles().List(ctx, metav1.ListOptions{}))
					}
					return nil, fmt.Errorf("no list of %v", of.resource)
				}
				factory := informers.NewSharedInformerFactory(configure(proxied), 0)
				observe(t, l, []watched{configMaps, pods, deployments, clusterRoles}, list, func(of watched) cache.SharedIndexInformer {
					return must(factory.ForResource(of.resource))(t).Informer()
				})
			})
		}
	})
}

// TestScopedInformers has informers on part of a type: one namespace, a label,
// a field.
func TestScopedInformers(t *testing.T) {
	watchLists(t, func(t *testing.T) {
		client := kubeClient(t, proxied)
		direct := kubeClient(t, upstream)
		for _, form := range []metav1.ListOptions{
			{},
			{LabelSelector: "round=1"},
			{LabelSelector: "round notin (2)"},
			{FieldSelector: "metadata.name=NAME"},
			{FieldSelector: "metadata.name!=NAME", LabelSelector: "round"},
		} {
			t.Run(form.LabelSelector+" "+form.FieldSelector, func(t *testing.T) {
				l := newLife(t)
				options := form
				options.FieldSelector = strings.ReplaceAll(form.FieldSelector, "NAME", l.name("b"))
				list := func(ctx context.Context, of watched) ([]any, error) {
					return items(direct.CoreV1().ConfigMaps(l.ns).List(ctx, options))
				}
				factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(l.ns),
					informers.WithTweakListOptions(func(o *metav1.ListOptions) {
						o.LabelSelector, o.FieldSelector = options.LabelSelector, options.FieldSelector
					}))
				informer := factory.Core().V1().ConfigMaps().Informer()
				stop := make(chan struct{})
				defer close(stop)
				go informer.Run(stop)
				eventually(t, "the first list", func() error {
					if !informer.HasSynced() {
						return errNotYet
					}
					return nil
				})
				l.create(t, configMaps, "a", "b", "c")
				follow(t, "created", configMaps, informer.GetStore(), list, l.mark, 0)
				l.change(t, configMaps)
				follow(t, "changed", configMaps, informer.GetStore(), list, l.mark, 0)
			})
		}
	})
}

func TestDynamicInformers(t *testing.T) {
	w := newWidget(t)
	w.define(t, upstream)
	watchLists(t, func(t *testing.T) {
		l := newLife(t)
		list := func(ctx context.Context, of watched) ([]any, error) {
			return items(l.dyn[upstream.name].Resource(of.resource).List(ctx, metav1.ListOptions{}))
		}
		factory := dynamicinformer.NewDynamicSharedInformerFactory(l.dyn[proxied.name], 0)
		observe(t, l, []watched{configMaps, deployments, clusterRoles, widgets(w)}, list, func(of watched) cache.SharedIndexInformer {
			return factory.ForResource(of.resource).Informer()
		})
	})
}

func TestMetadataInformers(t *testing.T) {
	w := newWidget(t)
	w.define(t, upstream)
	watchLists(t, func(t *testing.T) {
		for _, contentType := range []string{jsonType, protobufType} {
			t.Run(contentType, func(t *testing.T) {
				l := newLife(t)
				configure := func(to target) metadata.Interface {
					config := to.config()
					if contentType == jsonType {
						config.Wrap(func(next http.RoundTripper) http.RoundTripper { return acceptJSON{next} })
					}
					return must(metadata.NewForConfig(config))(t)
				}
				direct := configure(upstream)
				list := func(ctx context.Context, of watched) ([]any, error) {
					return items(direct.Resource(of.resource).List(ctx, metav1.ListOptions{}))
				}
				factory := metadatainformer.NewSharedInformerFactory(configure(proxied), 0)
				observe(t, l, []watched{configMaps, deployments, clusterRoles, widgets(w)}, list, func(of watched) cache.SharedIndexInformer {
					return factory.ForResource(of.resource).Informer()
				})
			})
		}
	})
}

// acceptJSON leaves only the JSON forms in the Accept header: the metadata
// client always prefers protobuf, whatever its configuration says.
type acceptJSON struct{ http.RoundTripper }

func (a acceptJSON) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	forms := slices.DeleteFunc(strings.Split(r.Header.Get("Accept"), ","), func(form string) bool { return !strings.HasPrefix(form, jsonType) })
	r.Header.Set("Accept", strings.Join(forms, ","))
	return a.RoundTripper.RoundTrip(r)
}

// items is the objects of a list.
func items[L runtime.Object](list L, err error) ([]any, error) {
	if err != nil {
		return nil, err
	}
	var objects []any
	err = meta.EachListItem(list, func(o runtime.Object) error {
		objects = append(objects, o)
		return nil
	})
	return objects, err
}
