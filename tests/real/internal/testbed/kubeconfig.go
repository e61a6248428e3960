package testbed

import (
	"encoding/json"
	"os"
)

// WriteKubeconfig writes a kubeconfig for a server, with a token. It is written as JSON, which every
// YAML reader accepts.
func WriteKubeconfig(path, server, ca, token string) error {
	type named map[string]any
	text, err := json.Marshal(map[string]any{
		"apiVersion":      "v1",
		"kind":            "Config",
		"current-context": "test",
		"clusters":        []named{{"name": "test", "cluster": map[string]string{"server": server, "certificate-authority": ca}}},
		"users":           []named{{"name": "test", "user": map[string]string{"token": token}}},
		"contexts":        []named{{"name": "test", "context": map[string]string{"cluster": "test", "user": "test"}}},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}
