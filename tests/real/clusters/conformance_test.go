package clusters

import (
	"os"
	"testing"

	"watershed.test/real/internal/conformance"
	"watershed.test/real/internal/testbed"
)

// TestAnswersConformToUpstream sends the same requests to the API server and through watershed.
// Status, headers and body have to be the same. README.md lists the exceptions.
func TestAnswersConformToUpstream(t *testing.T) {
	conformance.StartCluster(t, testbed.CacheEverything)
	t.Run("matrix", conformance.Matrix)
	t.Run("generated", conformance.Generated)
	t.Run("watches", conformance.Watches)
	t.Run("faults", conformance.PlantedFaults)
	t.Run("history", conformance.EventsHistory)
}

// TestAnswersFromSelectorScopesConformToUpstream does the same with a proxy that opens selector
// scopes on demand and closes them soon after.
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
	proxy.AddByLabel(t, "watershed_requests_total", "source", sources)
	t.Logf("scopes stopped: %v; answered from %v", stopped, sources)
	if stopped["closed"] < 20 || sources["snapshot"] == 0 || sources["window"] == 0 {
		t.Errorf("scopes did not come and go: %v, %v", stopped, sources)
	}
}
