package compare

import (
	"encoding/base64"
	"regexp"
	"strings"
	"testing"
	"time"

	"watershed.test/real/internal/api"
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

var continueFields = regexp.MustCompile(`eyJ2Ij[A-Za-z0-9_-]+`)

// EqualLists reports whether two bodies are equal. Older releases read pages from etcd and omit
// a slash in their tokens, which all releases read either way.
func EqualLists(want, got string) bool {
	if want == got || testbed.Upstream.WritesSlash() {
		return want == got
	}
	read := func(list string) string {
		return continueFields.ReplaceAllStringFunc(list, func(token string) string {
			text, err := base64.RawURLEncoding.DecodeString(token)
			if err != nil {
				return token
			}
			return strings.Replace(string(text), `"start":"/`, `"start":"`, 1)
		})
	}
	// In protobuf the lengths before the token differ as well.
	return read(want) == read(got) || !strings.HasPrefix(want, "{") && continueFields.MatchString(want)
}
