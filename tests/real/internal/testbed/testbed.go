// Package testbed starts clusters and proxies for tests, and holds the cluster that the tests of
// a package share.
package testbed

import (
	"fmt"
	"hash/fnv"
	"os"
	"strings"
	"testing"

	"watershed.test/real/internal/api"
)

// Upstream is the API server itself.
var Upstream api.Target

// Proxied is the same API through watershed. With REAL_DIRECT it is upstream once more, which
// checks the tests themselves.
var Proxied api.Target

// Shared is the cluster behind both.
var Shared *Cluster

// Direct reports that REAL_DIRECT is set: clients go straight to the API server.
var Direct = os.Getenv("REAL_DIRECT") != ""

// Share starts the cluster that the tests of a package share.
func Share() (err error) {
	if Shared, err = StartWithProxy(); err != nil {
		return err
	}
	Upstream = Shared.Upstream()
	Proxied = Shared.Proxied()
	return nil
}

// Targets returns both ways, for steps that are done through each and then compared.
func Targets() []api.Target { return []api.Target{Upstream, Proxied} }

// slugLength bounds a slug, so that names built on it stay valid.
const slugLength = 40

// Slug returns a name for objects, made of the test's name. A long name is shortened and gets a
// hash that keeps tests apart.
func Slug(t *testing.T) string {
	var b strings.Builder
	for _, r := range strings.ToLower(strings.TrimPrefix(t.Name(), "Test")) {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			b.WriteRune(r)
		} else {
			b.WriteByte('-')
		}
	}
	s := strings.Trim(b.String(), "-")
	if len(s) > slugLength {
		h := fnv.New32a()
		h.Write([]byte(s))
		suffix := fmt.Sprintf("-%08x", h.Sum32())
		s = strings.TrimRight(s[:slugLength-len(suffix)], "-") + suffix
	}
	return s
}
