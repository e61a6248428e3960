package transcode

import (
	"bytes"
	"cmp"
	"math/rand"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	apitesting "k8s.io/kubernetes/pkg/api/testing"

	"watershed.test/real/internal/random"
	"watershed.test/real/internal/require"
)

func TestJSONOfOddObjectsIsThatOfKubeAPIServer(t *testing.T) {
	servers := require.Value(Servers())(t)
	filler := Filler(int64(random.Seed(t)))
	compareAll(t, Roots(require.Value(Scheme())(t)), func(root Root) (Object, error) {
		object := reflect.New(root.Type).Interface().(runtime.Object)
		filler.Fill(object)
		return Served(servers, object, root.GroupVersionKind)
	})
}

// TestJSONOfPlausibleObjectsIsThatOfKubeAPIServer fills the internal types of kube-apiserver by its
// own functions, which keep to what the fields mean.
func TestJSONOfPlausibleObjectsIsThatOfKubeAPIServer(t *testing.T) {
	servers := require.Value(Servers())(t)
	source := rand.NewSource(int64(random.Seed(t)))
	filler := fuzzer.FuzzerFor(apitesting.FuzzerFuncs, source, legacyscheme.Codecs)
	compareAll(t, Roots(legacyscheme.Scheme), func(root Root) (Object, error) {
		object, err := legacyscheme.Scheme.New(root.GroupKind().WithVersion(runtime.APIVersionInternal))
		if err != nil {
			return Object{}, err
		}
		filler.Fill(object)
		return Served(servers, object, root.GroupVersionKind)
	})
}

func TestJSONOfBookmarksIsThatOfKubeAPIServer(t *testing.T) {
	servers := require.Value(Servers())(t)
	var bookmarks []Object
	for _, root := range Roots(require.Value(Scheme())(t)) {
		bookmarks = append(bookmarks, require.Value(Bookmark(servers, root.GroupVersionKind))(t))
	}
	compared := 0
	require.NoError(t, start(t).Answers(bookmarks, func(object Object, answer Answer) {
		if Excused(object, answer) {
			return
		}
		compared++
		if found := Difference(object, answer); found != "" {
			t.Error(found)
		}
	}))
	if compared < len(bookmarks)-2 {
		t.Errorf("%d of %d bookmarks compared", compared, len(bookmarks))
	}
}

func TestPlantedDifferencesAreFound(t *testing.T) {
	servers := require.Value(Servers())(t)
	var replicas int32
	controller := &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b", Annotations: map[string]string{"x": "<>"}},
		Spec:       corev1.ReplicationControllerSpec{Replicas: &replicas},
	}
	object := require.Value(Served(servers, controller, corev1.SchemeGroupVersion.WithKind("ReplicationController")))(t)
	planted := []Object{object}
	for _, change := range [][2]string{
		{`"name":"a","namespace":"b"`, `"namespace":"b","name":"a"`},
		{`"replicas":0`, ``},
		{`\u003c\u003e`, `<>`},
	} {
		text := strings.Replace(string(object.Expected), change[0], change[1], 1)
		if text == string(object.Expected) {
			t.Fatalf("no %s in %s", change[0], text)
		}
		planted = append(planted, Object{object.Kind, release, object.Message, []byte(text)})
	}
	// Field 2000 of the object: "x".
	unknown := append(bytes.Clone(object.Message), 0x82, 0x7d, 1, 'x')
	planted = append(planted, Object{object.Kind, release, unknown, object.Expected})
	i := 0
	require.NoError(t, start(t).Answers(planted, func(object Object, answer Answer) {
		// The first object is as it was.
		if found := Difference(object, answer); (found != "") != (i > 0) {
			t.Errorf("object %d of %d: %q", i, len(planted), found)
		}
		i++
	}))
	if i != len(planted) {
		t.Errorf("%d of %d objects are answered", i, len(planted))
	}
}

// start starts the transcoder under test, which is built with the proxy's tests.
func start(t *testing.T) *Transcoder {
	t.Helper()
	proxy := cmp.Or(os.Getenv("WATERSHED_BIN"), "../../../../target/debug/watershed")
	path := filepath.Join(filepath.Dir(proxy), "examples", "transcode")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: cargo test --workspace --no-run builds it", err)
	}
	return require.Value(Start(path))(t)
}

// objectsOfEachType returns how many objects of each type a test compares: all types together have
// TRANSCODE_OBJECTS.
func objectsOfEachType(t *testing.T, types int) int {
	if text := os.Getenv("TRANSCODE_OBJECTS"); text != "" {
		return 1 + require.Value(strconv.Atoi(text))(t)/types
	}
	return 10
}

// compareAll compares objects of each type with what the transcoder prints of them.
func compareAll(t *testing.T, roots []Root, object func(Root) (Object, error)) {
	t.Helper()
	const batch = 20
	compared, unexplained := map[schema.GroupVersionKind]int{}, 0
	for left := objectsOfEachType(t, len(roots)); left > 0 && !t.Failed(); left -= batch {
		objects := make([]Object, 0, batch*len(roots))
		for _, root := range roots {
			count := min(batch, left)
			if StoredAsJSON(root.GroupVersionKind) {
				// Most of them have a list that is empty.
				count *= 10
			}
			for range count {
				next, err := object(root)
				if err != nil {
					t.Fatalf("%s: %v", root.GroupVersionKind, err)
				}
				objects = append(objects, next)
			}
		}
		require.NoError(t, start(t).Answers(objects, func(object Object, answer Answer) {
			if Excused(object, answer) {
				unexplained++
				return
			}
			compared[object.Kind]++
			if found := Difference(object, answer); found != "" && !t.Failed() {
				t.Error(found)
			}
		}))
	}
	total := 0
	for _, root := range roots {
		if compared[root.GroupVersionKind] == 0 {
			t.Errorf("no %s was compared", root.GroupVersionKind)
		}
		total += compared[root.GroupVersionKind]
	}
	t.Logf("%d objects of %d types compared, %d not explained", total, len(roots), unexplained)
}
