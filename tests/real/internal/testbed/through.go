package testbed

import (
	"os"
	"path/filepath"
	"testing"

	"watershed.test/real/internal/require"
)

// ProxyThrough makes the test's proxied requests go through a watershed of its own, with a
// configuration or with none.
func ProxyThrough(t *testing.T, config string) *Proxy {
	t.Helper()
	if Direct {
		t.Skip("needs a proxy of its own")
	}
	file := ""
	if config != "" {
		file = filepath.Join(t.TempDir(), "config.yaml")
		require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	}
	p := StartProxyWithConfig(t, file, Shared.ProxyKubeconfig)
	other := Proxied
	t.Cleanup(func() { Proxied = other })
	Proxied = p.Target
	return p
}
