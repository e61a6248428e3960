// Package proxylog reads watershed's log.
package proxylog

import (
	"bytes"
	"encoding/json"
)

// Addresses returns the addresses that watershed logged in JSON, or "" where it has not logged
// one yet.
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
