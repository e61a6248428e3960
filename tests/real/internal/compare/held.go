package compare

import (
	"fmt"
	"testing"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/poll"
)

// AwaitHeld waits until a collection is answered from memory, in all encodings.
func AwaitHeld(t *testing.T, by api.Target, collection string) {
	t.Helper()
	for _, accept := range []string{api.JSONType, api.ProtobufType + "," + api.JSONType} {
		poll.Until(t, collection+" is held", func() error {
			a, err := by.Try(api.Request{Path: collection + "?resourceVersion=0", Accept: accept})
			if source := a.Header.Get("X-Watershed-Source"); err == nil && source != "snapshot" {
				err = fmt.Errorf("answered from %q", source)
			}
			return err
		})
	}
}
