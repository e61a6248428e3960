package transcode

import (
	"os"
	"testing"

	"watershed.test/real/internal/require"
)

const tableFile = "../../../../crates/transcode/src/types.table"

// TestTableIsWhatTheGeneratorWrites compares the committed table with the Go types, or writes it
// with WATERSHED_WRITE_DOCUMENTS=1.
func TestTableIsWhatTheGeneratorWrites(t *testing.T) {
	scheme, err := Scheme()
	require.NoError(t, err)
	table, err := Table(Roots(scheme))
	require.NoError(t, err)
	if os.Getenv("WATERSHED_WRITE_DOCUMENTS") != "" {
		require.NoError(t, os.WriteFile(tableFile, []byte(table), 0o644))
		return
	}
	if string(require.Value(os.ReadFile(tableFile))(t)) != table {
		t.Errorf("%s is not what the generator writes: make documents", tableFile)
	}
}
