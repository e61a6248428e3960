package watches

import (
	"encoding/json"
	"hash/fnv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"watershed.test/real/internal/objects"
)

// Kind is a watched type.
type Kind struct {
	Name       string // the plural
	Collection string // its path without a namespace
	// typed and list make the values that protobuf is decoded into. They are nil for types
	// without protobuf.
	typed func() protobufObject
	list  func() protobufList
}

type protobufObject interface {
	runtime.Object
	metav1.Object
	Unmarshal([]byte) error
}

type protobufList interface {
	runtime.Object
	metav1.ListInterface
	Unmarshal([]byte) error
}

// The built-in types that scenarios watch.
var (
	ConfigMaps = Kind{"configmaps", "/api/v1/configmaps",
		func() protobufObject { return &corev1.ConfigMap{} }, func() protobufList { return &corev1.ConfigMapList{} }}
	Pods = Kind{"pods", "/api/v1/pods",
		func() protobufObject { return &corev1.Pod{} }, func() protobufList { return &corev1.PodList{} }}
)

// KindOf returns the kind of a widget.
func KindOf(w objects.Widget) Kind { return Kind{Name: w.Plural, Collection: w.Path("", "")} }

// Path returns the path of a collection.
func (k Kind) Path(ns string) string {
	if ns == "" {
		return k.Collection
	}
	i := strings.LastIndexByte(k.Collection, '/')
	return k.Collection[:i] + "/namespaces/" + ns + k.Collection[i:]
}

// sum returns a hash of an object. JSON is compared by its bytes. Protobuf is compared by
// meaning: it is decoded and written as JSON.
func (k Kind) sum(raw []byte, byMeaning bool) uint64 {
	if byMeaning {
		typed := k.typed()
		if err := json.Unmarshal(raw, typed); err != nil {
			panic(err)
		}
		return meaning(typed)
	}
	h := fnv.New64a()
	h.Write(raw)
	return h.Sum64()
}

func meaning(object protobufObject) uint64 {
	// Protobuf has the type beside the object and not in it.
	object.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(""))
	text, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	h := fnv.New64a()
	h.Write(text)
	return h.Sum64()
}
