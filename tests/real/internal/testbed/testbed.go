// Package testbed starts clusters and proxies for tests, and holds the cluster that all
// tests share.
package testbed

import (
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"strings"
	"testing"

	"watershed.test/real/internal/api"
)

// upstream is the API server itself.
var Upstream api.Target

// proxied is the same API through watershed, or upstream once more if
// REAL_DIRECT is set: this is how the tests themselves are checked.
var Proxied api.Target

// shared is the cluster behind both.
var Shared *Cluster

var Direct = os.Getenv("REAL_DIRECT") != ""

func Prepare() (err error) {
	build := exec.Command("./build.sh")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build.sh: %w", err)
	}
	if Shared, err = StartWithProxy(); err != nil {
		return err
	}
	Upstream = Shared.Upstream()
	Proxied = Shared.Proxied()
	return nil
}

// Targets is both ways, for what is done through each and then compared.
func Targets() []api.Target { return []api.Target{Upstream, Proxied} }

// slugLength bounds a slug, so that names built on it stay valid.
const slugLength = 40

// Slug returns a name for objects made of the test's name. Of a long name it
// keeps the beginning, and a hash that keeps tests apart.
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
