package usage

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"watershed.test/real/internal/require"
)

// ticksPerSecond is the unit of CPU times in /proc, which Linux fixes for all user programs.
const ticksPerSecond = 100

// ProcessSeconds returns the CPU time that a process has used, in seconds.
func ProcessSeconds(t *testing.T, pid int) float64 {
	t.Helper()
	text := string(require.Value(os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)))(t))
	// The name of the program ends with the last parenthesis, and may have spaces.
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	user := require.Value(strconv.Atoi(fields[11]))(t)
	system := require.Value(strconv.Atoi(fields[12]))(t)
	return float64(user+system) / ticksPerSecond
}
