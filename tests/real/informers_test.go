package real

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/informertest"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

func TestTypedInformersMatchUpstream(t *testing.T) {
	informertest.WatchLists(t, func(t *testing.T) {
		for _, contentType := range []string{api.JSONType, api.ProtobufType} {
			t.Run(contentType, func(t *testing.T) {
				l := informertest.NewObjects(t)
				configure := func(to api.Target) *kubernetes.Clientset {
					config := to.Config()
					config.ContentType, config.AcceptContentTypes = contentType, contentType
					return require.Value(kubernetes.NewForConfig(config))(t)
				}
				direct := configure(testbed.Upstream)
				list := func(ctx context.Context, of informertest.Type) ([]any, error) {
					switch of {
					case informertest.ConfigMaps:
						return items(direct.CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{}))
					case informertest.Pods:
						return items(direct.CoreV1().Pods("").List(ctx, metav1.ListOptions{}))
					case informertest.Deployments:
						return items(direct.AppsV1().Deployments("").List(ctx, metav1.ListOptions{}))
					case informertest.ClusterRoles:
						return items(direct.RbacV1().ClusterRoles().List(ctx, metav1.ListOptions{}))
					}
					return nil, fmt.Errorf("no list of %v", of.Resource)
				}
				factory := informers.NewSharedInformerFactory(configure(testbed.Proxied), 0)
				informertest.Observe(t, l, []informertest.Type{informertest.ConfigMaps, informertest.Pods, informertest.Deployments, informertest.ClusterRoles}, list, func(of informertest.Type) cache.SharedIndexInformer {
					return require.Value(factory.ForResource(of.Resource))(t).Informer()
				})
			})
		}
	})
}

// TestInformersWithSelectorsMatchUpstream runs informers on a part of a type: one namespace, a
// label, a field.
func TestInformersWithSelectorsMatchUpstream(t *testing.T) {
	informertest.WatchLists(t, func(t *testing.T) {
		client := api.Clientset(t, testbed.Proxied)
		direct := api.Clientset(t, testbed.Upstream)
		for _, form := range []struct {
			metav1.ListOptions
			// The least numbers of selected objects after each step.
			created, labelled, changed int
		}{
			{metav1.ListOptions{}, 3, 3, 3},
			{metav1.ListOptions{LabelSelector: "round=1"}, 0, 2, 0},
			{metav1.ListOptions{LabelSelector: "round notin (2)"}, 3, 3, 2},
			{metav1.ListOptions{FieldSelector: "metadata.name=NAME"}, 1, 1, 0},
			{metav1.ListOptions{FieldSelector: "metadata.name!=NAME", LabelSelector: "round"}, 0, 1, 1},
		} {
			t.Run(form.LabelSelector+" "+form.FieldSelector, func(t *testing.T) {
				l := informertest.NewObjects(t)
				options := form.ListOptions
				options.FieldSelector = strings.ReplaceAll(form.FieldSelector, "NAME", l.Name("b"))
				list := func(ctx context.Context, of informertest.Type) ([]any, error) {
					return items(direct.CoreV1().ConfigMaps(l.Namespace).List(ctx, options))
				}
				factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(l.Namespace),
					informers.WithTweakListOptions(func(o *metav1.ListOptions) {
						o.LabelSelector, o.FieldSelector = options.LabelSelector, options.FieldSelector
					}))
				informer := factory.Core().V1().ConfigMaps().Informer()
				stop := make(chan struct{})
				defer close(stop)
				go informer.Run(stop)
				poll.Until(t, "the first list", func() error {
					if !informer.HasSynced() {
						return poll.ErrNotYet
					}
					return nil
				})
				l.Create(t, informertest.ConfigMaps, "a", "b", "c")
				informertest.Follow(t, "created", informertest.ConfigMaps, informer.GetStore(), list, l.Mark, form.created)
				l.Label(t, informertest.ConfigMaps, "1")
				informertest.Follow(t, "labelled", informertest.ConfigMaps, informer.GetStore(), list, l.Mark, form.labelled)
				l.Change(t, informertest.ConfigMaps)
				informertest.Follow(t, "changed", informertest.ConfigMaps, informer.GetStore(), list, l.Mark, form.changed)
			})
		}
	})
}

func TestDynamicInformersMatchUpstream(t *testing.T) {
	w := objects.NewWidget(t)
	w.Define(t, testbed.Upstream)
	informertest.WatchLists(t, func(t *testing.T) {
		l := informertest.NewObjects(t)
		list := func(ctx context.Context, of informertest.Type) ([]any, error) {
			return items(l.Dyn[testbed.Upstream.Name].Resource(of.Resource).List(ctx, metav1.ListOptions{}))
		}
		factory := dynamicinformer.NewDynamicSharedInformerFactory(l.Dyn[testbed.Proxied.Name], 0)
		informertest.Observe(t, l, []informertest.Type{informertest.ConfigMaps, informertest.Deployments, informertest.ClusterRoles, informertest.Widgets(w)}, list, func(of informertest.Type) cache.SharedIndexInformer {
			return factory.ForResource(of.Resource).Informer()
		})
	})
}

func TestMetadataInformersMatchUpstream(t *testing.T) {
	w := objects.NewWidget(t)
	w.Define(t, testbed.Upstream)
	informertest.WatchLists(t, func(t *testing.T) {
		for _, contentType := range []string{api.JSONType, api.ProtobufType} {
			t.Run(contentType, func(t *testing.T) {
				l := informertest.NewObjects(t)
				configure := func(to api.Target) metadata.Interface {
					config := to.Config()
					if contentType == api.JSONType {
						config.Wrap(func(next http.RoundTripper) http.RoundTripper { return acceptJSON{next} })
					}
					return require.Value(metadata.NewForConfig(config))(t)
				}
				direct := configure(testbed.Upstream)
				list := func(ctx context.Context, of informertest.Type) ([]any, error) {
					return items(direct.Resource(of.Resource).List(ctx, metav1.ListOptions{}))
				}
				factory := metadatainformer.NewSharedInformerFactory(configure(testbed.Proxied), 0)
				informertest.Observe(t, l, []informertest.Type{informertest.ConfigMaps, informertest.Deployments, informertest.ClusterRoles, informertest.Widgets(w)}, list, func(of informertest.Type) cache.SharedIndexInformer {
					return factory.ForResource(of.Resource).Informer()
				})
			})
		}
	})
}

// acceptJSON leaves only JSON in the Accept header. The metadata client always prefers
// protobuf, whatever its configuration says.
type acceptJSON struct{ http.RoundTripper }

func (a acceptJSON) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	forms := slices.DeleteFunc(strings.Split(r.Header.Get("Accept"), ","), func(form string) bool { return !strings.HasPrefix(form, api.JSONType) })
	r.Header.Set("Accept", strings.Join(forms, ","))
	return a.RoundTripper.RoundTrip(r)
}

// items returns the objects of a list.
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
