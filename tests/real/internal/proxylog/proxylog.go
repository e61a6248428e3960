// Package proxylog reads watershed's log.
package proxylog

import (
	"bytes"
	"encoding/json"
)

// Addresses are where watershed says that it listens, empty where it has not said
// so yet. They are read from the log's lines in JSON.
func Addresses(log []byte) (proxy, admin string) {
	for line := range bytes.Lines(log) {
		var entry struct {
			Fields struct{ Message, Listener, Address string }
		}
		if json.Unmarshal(line, &entry) != nil || entry.Fields.Message != "listening" {
			continue
		}
		switch entry.Fields.Listener {
		case "proxy":
			proxy = entry.Fields.Address
		case "admin":
			admin = entry.Fields.Address
		}
	}
	return proxy, admin
}
