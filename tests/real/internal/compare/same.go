package compare

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// Same sends a read to both sides and compares the answers. It compares again if upstream's changes
// meanwhile, as discovery does a moment after a type is deleted, or if the answer may be a moment
// old.
func Same(t *testing.T, r api.Request) api.Answer {
	t.Helper()
	for attempt := 0; ; attempt++ {
		want, got := testbed.Upstream.Send(t, r), testbed.Proxied.Send(t, r)
		w, g := want.Comparable(nil), got.Comparable(nil)
		if w == g {
			t.Logf("%v: %d", r, want.Status)
			return want
		}
		changes := testbed.Upstream.Send(t, r).Comparable(nil) != w
		if attempt == 5 || !changes && !mayBePast(r, want, got) {
			t.Errorf("%v\nupstream: %s\nproxied:  %s", r, w, g)
			return want
		}
		time.Sleep(200 * time.Millisecond)
	}
}

var continueField = regexp.MustCompile(`"continue": ?"[^"]+"`)

// BlankTokens replaces continue tokens. They contain a version, and upstream itself uses two
// spellings of them.
func BlankTokens(text string) string {
	return continueField.ReplaceAllString(text, `"continue":"TOKEN"`)
}

// EqualLists reports whether two bodies are equal. Older releases read pages from etcd and omit
// a slash in their tokens, which all releases read either way.
func EqualLists(t *testing.T, want, got string) bool {
	t.Helper()
	return want == got || !require.Value(testbed.Upstream.WritesSlash())(t) && equalBesidesSlash(want, got)
}

// equalBesidesSlash reports whether two lists differ at most in the slash of their tokens. In protobuf
// the lengths before the token differ as well.
func equalBesidesSlash(want, got string) bool {
	kind := api.JSONType
	if strings.HasPrefix(want, "k8s\x00") {
		kind = api.ProtobufType
	}
	wanted, restWanted, ok := api.ParseList(kind, want)
	found, rest, alsoOK := api.ParseList(kind, got)
	if !ok || !alsoOK || rest != restWanted || found.ResourceVersion != wanted.ResourceVersion {
		return false
	}
	token, err := api.ParseContinueToken(found.Continue)
	rightToken, rightErr := api.ParseContinueToken(wanted.Continue)
	return err == nil && rightErr == nil && token.Spelled(false) == rightToken.Spelled(false)
}
