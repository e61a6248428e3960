package transcode

import (
	"bytes"
	"fmt"

	installextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	installregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/install"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	// Every group of kube-apiserver: the first has the others.
	_ "k8s.io/kubernetes/pkg/api/testing"
	_ "k8s.io/kubernetes/pkg/apis/apiserverinternal/install"
	_ "k8s.io/kubernetes/pkg/apis/lifecycle/install"
	_ "k8s.io/kubernetes/pkg/apis/storagemigration/install"
)

// Codecs encodes objects of one of the three servers in a kube-apiserver.
type Codecs struct {
	scheme   *runtime.Scheme
	factory  serializer.CodecFactory
	protobuf *protobuf.Serializer
	json     runtime.Serializer
}

// Servers returns the codecs of kube-apiserver, of which each type has the first that knows it.
func Servers() ([]*Codecs, error) {
	others := runtime.NewScheme()
	installextensions.Install(others)
	installregistration.Install(others)
	if err := metav1.AddMetaToScheme(others); err != nil {
		return nil, err
	}
	var servers []*Codecs
	for _, scheme := range []*runtime.Scheme{legacyscheme.Scheme, others} {
		factory := serializer.NewCodecFactory(scheme)
		info, found := runtime.SerializerInfoForMediaType(factory.SupportedMediaTypes(), runtime.ContentTypeJSON)
		if !found {
			return nil, fmt.Errorf("no serializer of JSON")
		}
		servers = append(servers, &Codecs{scheme, factory, protobuf.NewSerializer(scheme, scheme), info.Serializer})
	}
	return servers, nil
}

// Served returns an object as it is served: it is encoded for the store, decoded (to its internal
// type, with its defaults), and encoded in both encodings.
func Served(servers []*Codecs, object runtime.Object, kind schema.GroupVersionKind) (Object, error) {
	server, err := serverOf(servers, kind)
	if err != nil {
		return Object{}, err
	}
	return server.served(object, kind)
}

// Bookmark returns the object of a bookmark: one without content.
func Bookmark(servers []*Codecs, kind schema.GroupVersionKind) (Object, error) {
	server, err := serverOf(servers, kind)
	if err != nil {
		return Object{}, err
	}
	object, err := server.scheme.New(server.hub(kind).WithKind(kind.Kind))
	if err != nil {
		return Object{}, err
	}
	return server.encoded(object, kind)
}

func serverOf(servers []*Codecs, kind schema.GroupVersionKind) (*Codecs, error) {
	for _, server := range servers {
		if server.scheme.Recognizes(kind) {
			return server, nil
		}
	}
	return nil, fmt.Errorf("no server has %s", kind)
}

// hub returns the version in which kube-apiserver works on objects of a type.
func (c *Codecs) hub(kind schema.GroupVersionKind) schema.GroupVersion {
	internal := schema.GroupVersion{Group: kind.Group, Version: runtime.APIVersionInternal}
	if c.scheme.Recognizes(internal.WithKind(kind.Kind)) {
		return internal
	}
	return kind.GroupVersion()
}

func (c *Codecs) served(object runtime.Object, kind schema.GroupVersionKind) (Object, error) {
	store := runtime.Serializer(c.protobuf)
	if StoredAsJSON(kind) {
		store = c.json
	}
	stored, err := runtime.Encode(c.factory.EncoderForVersion(store, kind.GroupVersion()), object)
	if err != nil {
		return Object{}, err
	}
	read, err := runtime.Decode(c.factory.DecoderToVersion(store, c.hub(kind)), stored)
	if err != nil {
		return Object{}, err
	}
	return c.encoded(read, kind)
}

func (c *Codecs) encoded(object runtime.Object, kind schema.GroupVersionKind) (Object, error) {
	enveloped, err := runtime.Encode(c.factory.EncoderForVersion(c.protobuf, kind.GroupVersion()), object)
	if err != nil {
		return Object{}, err
	}
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(enveloped[len("k8s\x00"):]); err != nil {
		return Object{}, err
	}
	text, err := runtime.Encode(c.factory.EncoderForVersion(c.json, kind.GroupVersion()), object)
	return Object{kind, release, envelope.Raw, bytes.TrimSuffix(text, []byte("\n"))}, err
}
