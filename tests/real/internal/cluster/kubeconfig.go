package cluster

import (
	"encoding/json"
	"os"
)

// kubeconfig holds the few parts of the format that are needed. It is written as JSON, which
// every YAML reader accepts.
type kubeconfig struct {
	server string
	ca     string
	// One of both is set: a token, or a certificate and its key.
	token, cert, key string
}

func (k kubeconfig) write(path string) error {
	user := map[string]string{"token": k.token}
	if k.cert != "" {
		user = map[string]string{"client-certificate": k.cert, "client-key": k.key}
	}
	type named map[string]any
	text, err := json.MarshalIndent(map[string]any{
		"apiVersion":      "v1",
		"kind":            "Config",
		"current-context": "test",
		"clusters":        []named{{"name": "test", "cluster": map[string]string{"server": k.server, "certificate-authority": k.ca}}},
		"users":           []named{{"name": "test", "user": user}},
		"contexts":        []named{{"name": "test", "context": map[string]string{"cluster": "test", "user": "test"}}},
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o600)
}
