package real

import (
	"os"
	"strconv"
	"testing"
	"time"

	"watershed.test/real/internal/require"
	"watershed.test/real/internal/robustness"
	"watershed.test/real/internal/testbed"
)

// TestConsistentReadsAreLinearizable has many clients write, directly and through two replicas,
// while others read the latest state through both. Every answer has to be the state at its
// version. It may not be older than anything written or read before its request, nor newer than
// what came later. See package history for the rules.
func TestConsistentReadsAreLinearizable(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs proxies, whose reads it checks")
	}
	t.Parallel()
	s := robustness.New(t)
	lasting := 5 * time.Second
	end := time.Now()
	if text := os.Getenv("ROBUSTNESS_SECONDS"); text != "" {
		lasting = 15 * time.Second
		end = end.Add(time.Duration(require.Value(strconv.Atoi(text))(t)) * time.Second)
	}
	for round := 0; round == 0 || time.Now().Before(end) && !t.Failed(); round++ {
		t.Run("no faults", func(t *testing.T) { s.WithoutFaults(t, lasting) })
		t.Run("connections are cut", func(t *testing.T) { s.WithConnectionsCut(t, lasting) })
		t.Run("a server is killed", func(t *testing.T) { s.WithServerKilled(t, lasting) })
		t.Run("watches are behind", func(t *testing.T) { s.WithWatchesBehind(t, lasting+2*time.Second) })
	}
}

// TestConsistentReadsFromSelectorScopesAreLinearizable does the same with replicas whose
// selector scopes come and go.
func TestConsistentReadsFromSelectorScopesAreLinearizable(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs proxies, whose reads it checks")
	}
	t.Parallel()
	s := robustness.New(t)
	s.Config = "testdata/parts.yaml"
	t.Run("no faults", func(t *testing.T) { s.WithoutFaults(t, 5*time.Second) })
	t.Run("connections are cut", func(t *testing.T) { s.WithConnectionsCut(t, 5*time.Second) })
}
