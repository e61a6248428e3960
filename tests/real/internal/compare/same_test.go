package compare

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"watershed.test/real/internal/api"
)

// TestListsOfOlderReleasesAreComparedWhole compares pages that differ in the slash of their tokens,
// and pages that differ in more.
func TestListsOfOlderReleasesAreComparedWhole(t *testing.T) {
	list := func(start, version, item string) corev1.ConfigMapList {
		token := api.ContinueToken{V: "meta.k8s.io/v1", RV: 7, Start: start}
		return corev1.ConfigMapList{
			TypeMeta: metav1.TypeMeta{Kind: "ConfigMapList", APIVersion: "v1"},
			ListMeta: metav1.ListMeta{ResourceVersion: version, Continue: token.String()},
			Items:    []corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Name: item}}},
		}
	}
	protobuf := func(l corev1.ConfigMapList) string {
		raw, err := l.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		envelope := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "ConfigMapList"}, Raw: raw}
		text, err := envelope.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		return "k8s\x00" + string(text)
	}
	want := list("a/b\x00", "7", "one")
	for name, c := range map[string]struct {
		got   corev1.ConfigMapList
		equal bool
	}{
		"the slash":       {list("/a/b\x00", "7", "one"), true},
		"another item":    {list("/a/b\x00", "7", "two"), false},
		"another version": {list("/a/b\x00", "8", "one"), false},
		"another place":   {list("/a/c\x00", "7", "one"), false},
		"no token":        {corev1.ConfigMapList{TypeMeta: want.TypeMeta, ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: want.Items}, false},
	} {
		if equal := equalBesidesSlash(protobuf(want), protobuf(c.got)); equal != c.equal {
			t.Errorf("protobuf, %s: equal is %v", name, equal)
		}
		if equal := equalBesidesSlash(api.JSON(want), api.JSON(c.got)); equal != c.equal {
			t.Errorf("JSON, %s: equal is %v", name, equal)
		}
	}
}
