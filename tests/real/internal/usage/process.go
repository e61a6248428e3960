package usage

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"watershed.test/real/internal/require"
)

// ticksPerSecond is the unit of CPU times in /proc, which Linux fixes for all user programs.
const ticksPerSecond = 100

// ProcessorTime returns the time that a process has had a processor so far.
func ProcessorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text := string(require.Value(os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)))(t))
	// The name of the program ends with the last parenthesis, and may have spaces.
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	user := require.Value(strconv.Atoi(fields[11]))(t)
	system := require.Value(strconv.Atoi(fields[12]))(t)
	return time.Duration(user+system) * time.Second / ticksPerSecond
}
