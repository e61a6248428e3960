// Package transcode writes the table from which crates/transcode prints JSON: the structure of every
// built-in type that kube-apiserver serves, read from the Go types by reflection.
package transcode

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// version is the first line of a table: the version of its format, and what it describes.
const version = "watershed-transcode 1 kubernetes v1.37.1"

// wellKnown are the types that print themselves. The crate knows each by its name here.
var wellKnown = map[reflect.Type]string{
	reflect.TypeFor[metav1.Time]():          "time",
	reflect.TypeFor[metav1.MicroTime]():     "microtime",
	reflect.TypeFor[metav1.Duration]():      "duration",
	reflect.TypeFor[metav1.FieldsV1]():      "fields",
	reflect.TypeFor[resource.Quantity]():    "quantity",
	reflect.TypeFor[intstr.IntOrString]():   "intorstring",
	reflect.TypeFor[runtime.RawExtension](): "raw",
	reflect.TypeFor[apiextensions.JSON]():   "json",
}

// either are messages of two members, one of which is printed in their place.
var either = []reflect.Type{
	reflect.TypeFor[apiextensions.JSONSchemaPropsOrArray](),
	reflect.TypeFor[apiextensions.JSONSchemaPropsOrBool](),
	reflect.TypeFor[apiextensions.JSONSchemaPropsOrStringArray](),
}

// objects are the members whose values are objects with a kind and an apiVersion, which
// kube-apiserver sets when it converts them: kubernetes/pkg/apis/apps/v1/conversion.go.
var objects = map[string]bool{
	"StatefulSetSpec.VolumeClaimTemplates": true,
}

// changed are the members whose empty value is omitted by the types here and printed by those of the
// minor releases before the given one, or the other way round: also because those do not have it.
// Found by comparing the tags of the types of 1.30 to 1.37.
var changed = map[string]int{
	"meta/v1.ObjectMeta creationTimestamp":                             34,
	"core/v1.HostAlias ip":                                             31,
	"core/v1.HostIP ip":                                                31,
	"core/v1.PodIP ip":                                                 31,
	"batch/v1.PodFailurePolicyRule onExitCodes":                        31,
	"batch/v1.PodFailurePolicyRule onPodConditions":                    31,
	"batch/v1.PodFailurePolicyOnExitCodesRequirement containerName":    31,
	"certificates/v1beta1.PodCertificateRequestSpec stubPKCS10Request": 36,
	"resource/v1.ResourceSliceSpec devices":                            35,
	"resource/v1beta1.ResourceSliceSpec devices":                       35,
	"resource/v1beta2.ResourceSliceSpec devices":                       35,
	"resource/v1beta1.DeviceRequestAllocationResult adminAccess":       34,
	"resource/v1beta2.DeviceRequestAllocationResult adminAccess":       34,
}

// protobufMessage is what a type has that is a message of its own.
type protobufMessage interface{ Unmarshal([]byte) error }

// Root is a type that can be listed and watched.
type Root struct {
	schema.GroupVersionKind
	Type reflect.Type
}

// Scheme returns the types that kube-apiserver serves.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	builder := runtime.NewSchemeBuilder(
		clientscheme.AddToScheme,
		apiextensions.AddToScheme,
		apiregistration.AddToScheme,
		metav1.AddMetaToScheme,
	)
	return scheme, builder.AddToScheme(scheme)
}

// Roots returns every type of a scheme that has a type of list, sorted.
func Roots(scheme *runtime.Scheme) []Root {
	var roots []Root
	for kind, known := range scheme.AllKnownTypes() {
		list, hasList := scheme.AllKnownTypes()[kind.GroupVersion().WithKind(kind.Kind+"List")]
		if !hasList || kind.Version == runtime.APIVersionInternal {
			continue
		}
		items, hasItems := list.FieldByName("Items")
		_, isMessage := reflect.New(known).Interface().(protobufMessage)
		if hasItems && items.Type == reflect.SliceOf(known) && isMessage {
			roots = append(roots, Root{kind, known})
		}
	}
	slices.SortFunc(roots, func(a, b Root) int {
		return strings.Compare(a.GroupVersionKind.String(), b.GroupVersionKind.String())
	})
	return roots
}

// Table returns the text of the table for these types. Its format is described in
// crates/transcode/src/table.rs.
func Table(roots []Root) (string, error) {
	w := writer{names: map[string]reflect.Type{}}
	w.line(version)
	for _, root := range roots {
		name, err := w.message(root.Type)
		if err != nil {
			return "", err
		}
		w.line(fmt.Sprintf("= %s %s %s", root.GroupVersion(), root.Kind, name))
	}
	for len(w.pending) > 0 {
		next := w.pending[0]
		w.pending = w.pending[1:]
		if err := w.members(next); err != nil {
			return "", fmt.Errorf("%s: %w", next, err)
		}
	}
	if w.changed != len(changed) {
		return "", fmt.Errorf("%d of %d changed members are there", w.changed, len(changed))
	}
	return w.text.String(), nil
}

// writer collects the messages that the lines so far refer to.
type writer struct {
	text    strings.Builder
	names   map[string]reflect.Type
	pending []reflect.Type
	changed int
}

func (w *writer) line(text string) {
	w.text.WriteString(text)
	w.text.WriteByte('\n')
}

// message returns the name of a message, which is described later.
func (w *writer) message(t reflect.Type) (string, error) {
	var name string
	if group, isAPI := strings.CutPrefix(t.PkgPath(), "k8s.io/api/"); isAPI {
		name = group + "." + t.Name()
	} else {
		parts := strings.Split(t.PkgPath(), "/")
		name = strings.Join(parts[max(0, len(parts)-2):], "/") + "." + t.Name()
	}
	switch known := w.names[name]; known {
	case t:
	case nil:
		w.names[name] = t
		w.pending = append(w.pending, t)
	default:
		return "", fmt.Errorf("%s and %s have one name", known.PkgPath(), t.PkgPath())
	}
	return name, nil
}

// members writes a message: its name, and a line for each member in the order in which encoding/json
// prints them.
func (w *writer) members(t reflect.Type) error {
	name, err := w.message(t)
	if err != nil {
		return err
	}
	w.line("@ " + name)
	isEither := slices.Contains(either, t)
	if err := distinct(t, map[string]bool{}); err != nil && !isEither {
		return err
	}
	for i := range t.NumField() {
		field := t.Field(i)
		if field.Type == reflect.TypeFor[metav1.TypeMeta]() {
			if i != 0 {
				return fmt.Errorf("TypeMeta is not the first field")
			}
			continue
		}
		text, err := w.member(t, field, isEither)
		if err != nil {
			return fmt.Errorf("%s: %w", field.Name, err)
		}
		w.line(text)
	}
	return nil
}

// distinct checks that no member hides another of the same name: encoding/json has rules for it.
func distinct(t reflect.Type, seen map[string]bool) error {
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Anonymous && name == "" {
			inlined := field.Type
			if inlined.Kind() == reflect.Pointer {
				inlined = inlined.Elem()
			}
			if err := distinct(inlined, seen); err != nil {
				return err
			}
			continue
		}
		if seen[name] {
			return fmt.Errorf("two members are named %s", name)
		}
		seen[name] = true
	}
	return nil
}

func (w *writer) member(t reflect.Type, field reflect.StructField, isOneOfEither bool) (string, error) {
	name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
	number, err := number(field)
	if err != nil {
		return "", err
	}
	if isOneOfEither {
		// Its name is in no JSON, only in errors.
		name = field.Name
	}
	shape, err := w.shape(field.Type)
	if err != nil {
		return "", err
	}
	if hasTypeMeta(field.Type) {
		if !objects[t.Name()+"."+field.Name] {
			return "", fmt.Errorf("the kind of its objects is not known")
		}
		shape = strings.Replace(shape, "core/", "object:core/", 1)
	}
	omit := ""
	if name == "" {
		if !field.Anonymous {
			return "", fmt.Errorf("no name in JSON")
		}
		name = "+"
	} else if name == "-" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789$-") != "" {
		return "", fmt.Errorf("the name %q needs thought", name)
	}
	for option := range strings.SplitSeq(options, ",") {
		switch option {
		case "omitempty":
			// encoding/json never takes a struct for empty.
			if field.Type.Kind() != reflect.Struct {
				omit = "?"
			}
		case "omitzero":
			if shape != "time" {
				return "", fmt.Errorf("omitzero is known of times only")
			}
			omit = "?"
		case "", "inline":
		default:
			return "", fmt.Errorf("option %s of its JSON is unknown", option)
		}
	}
	text := fmt.Sprintf("%s %d %s%s", name, number, omit, shape)
	message, err := w.message(t)
	if release, isChanged := changed[message+" "+name]; isChanged {
		w.changed++
		text += fmt.Sprintf(" <%d", release)
	}
	return text, err
}

func number(field reflect.StructField) (int, error) {
	parts := strings.Split(field.Tag.Get("protobuf"), ",")
	if len(parts) < 3 {
		return 0, fmt.Errorf("no field of protobuf")
	}
	if slices.Contains(parts, "packed") {
		return 0, fmt.Errorf("packed fields are not known")
	}
	return strconv.Atoi(parts[1])
}

// shape returns how a field's values are in protobuf and in JSON.
func (w *writer) shape(t reflect.Type) (string, error) {
	_, isMessage := reflect.New(t).Interface().(protobufMessage)
	var prefix string
	switch {
	case t.Kind() == reflect.Pointer:
		prefix = "*"
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		return w.value(t)
	case t.Kind() == reflect.Slice && isMessage:
		return w.value(t)
	case t.Kind() == reflect.Slice:
		prefix = "[]"
	case t.Kind() == reflect.Map && t.Key().Kind() == reflect.String:
		if printsItself(t.Key()) {
			return "", fmt.Errorf("%s prints itself", t.Key())
		}
		prefix = "{}"
	default:
		return w.value(t)
	}
	value, err := w.value(t.Elem())
	return prefix + value, err
}

func (w *writer) value(t reflect.Type) (string, error) {
	if name, known := wellKnown[t]; known {
		return name, nil
	}
	if slices.Contains(either, t) {
		name, err := w.message(t)
		return "either:" + name, err
	}
	if printsItself(t) {
		return "", fmt.Errorf("%s prints itself", t)
	}
	_, isMessage := reflect.New(t).Interface().(protobufMessage)
	switch {
	case t.Kind() == reflect.Struct && isMessage:
		return w.message(t)
	case t.Kind() == reflect.Slice && isMessage && t.Elem().Kind() == reflect.String:
		return "strings", nil
	case isMessage:
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		return "bytes", nil
	default:
		switch kind := t.Kind(); kind {
		case reflect.String, reflect.Bool, reflect.Int32, reflect.Int64, reflect.Float64:
			return kind.String(), nil
		}
	}
	return "", fmt.Errorf("values of %s are not known", t)
}

// hasTypeMeta tells if a field's values are whole objects.
func hasTypeMeta(t reflect.Type) bool {
	if t.Kind() == reflect.Slice || t.Kind() == reflect.Pointer || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return false
	}
	field, found := t.FieldByName("TypeMeta")
	return found && field.Type == reflect.TypeFor[metav1.TypeMeta]()
}

// printsItself tells if encoding/json does not look into a type.
func printsItself(t reflect.Type) bool {
	value := reflect.New(t).Interface()
	_, isMarshaler := value.(json.Marshaler)
	_, isText := value.(encoding.TextMarshaler)
	return isMarshaler || isText
}
