package real

import (
	"os"
	"testing"

	"watershed.test/real/internal/conformance"
	"watershed.test/real/internal/testbed"
)

// TestAnswersConformToUpstream sends the same requests to the API server and through
// watershed, and asks that status, headers and body are the same. README.md says
// what it lets off.
func TestAnswersConformToUpstream(t *testing.T) {
	conformance.StartCluster(t, testbed.CacheEverything)
	t.Run("matrix", conformance.Matrix)
	t.Run("generated", conformance.Generated)
	t.Run("watches", conformance.Watches)
	t.Run("faults", conformance.PlantedFaults)
	t.Run("known", conformance.KnownDifferences)
}

// TestAnswersFromSelectorScopesConformToUpstream does so with a proxy that holds parts of types, opened by
// what is asked for and closed as soon as it is not.
func TestAnswersFromSelectorScopesConformToUpstream(t *testing.T) {
	proxy := conformance.StartCluster(t, "testdata/parts.yaml")
	if os.Getenv("CONFORMANCE_PAIRS") == "" {
		t.Setenv("CONFORMANCE_PAIRS", "600")
	}
	t.Run("generated", conformance.Generated)
	t.Run("watches", conformance.Watches)
	if proxy == nil {
		return
	}
	stopped := map[string]int{}
	proxy.AddByLabel(t, "watershed_scopes_stopped_total", "reason", stopped)
	sources := map[string]int{}
	proxy.AddByLabel(t, "watershed_requests_total", ",source", sources)
	t.Logf("scopes stopped: %v; answered from %v", stopped, sources)
	if stopped["closed"] < 20 || sources["snapshot"] == 0 || sources["window"] == 0 {
		t.Errorf("scopes did not come and go: %v, %v", stopped, sources)
	}
}
