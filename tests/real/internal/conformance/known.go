package conformance

import (
	"strings"
	"testing"

	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/testbed"
)

// KnownDifferences checks that every difference on the list still exists.
func KnownDifferences(t *testing.T) {
	if testbed.Direct {
		t.Skip("upstream does not differ from itself")
	}
	for _, k := range compare.KnownDifferences {
		t.Run(strings.ReplaceAll(k.Name, " ", "-"), func(t *testing.T) {
			for _, r := range k.Shown(t) {
				v := compare.Sides{Right: testbed.Upstream, Asked: testbed.Proxied}.Compare(r)
				if v.Difference == "" || !k.Is(r, v.Want, v.Got) {
					t.Errorf("%v, answered from %q: this no longer differs (%s); remove it from the list", r, v.Got.Header.Get("X-Watershed-Source"), k.Reason)
				}
			}
		})
	}
}
