package manifests

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"watershed.test/real/internal/kubectl"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// ChartDir is the Helm chart.
const ChartDir = "../../helm/watershed"

// Image are the flags that name the image, without which the chart renders nothing.
var Image = []string{"--set", "image.repository=registry.example.com/watershed"}

// Chart returns the chart with values and flags applied.
func Chart(t *testing.T, namespace string, flags ...string) string {
	t.Helper()
	args := slices.Concat([]string{"template", "w", ChartDir, "--namespace", namespace}, Image, flags)
	return kubectl.Helm(t, testbed.Upstream, args...).MustSucceed(t, strings.Join(args, " "))
}

// KnownFlags returns the flags of watershed serve.
func KnownFlags(t *testing.T) map[string]bool {
	t.Helper()
	help := require.Value(exec.Command(require.Value(testbed.ProxyProgram())(t), "serve", "--help").Output())(t)
	known := map[string]bool{}
	for _, flag := range regexp.MustCompile(`(?m)^ +(?:-\w, )?(--[a-z0-9-]+)`).FindAllStringSubmatch(string(help), -1) {
		known[flag[1]] = true
	}
	if len(known) < 40 {
		t.Fatalf("watershed serve has %d flags", len(known))
	}
	return known
}
