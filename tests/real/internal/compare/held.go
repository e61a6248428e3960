package compare

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/testbed"
)

// AwaitHeld waits until a collection is answered from memory, in all encodings.
func AwaitHeld(t *testing.T, by api.Target, collection string) {
	t.Helper()
	awaitSnapshot(t, by, collection+"?resourceVersion=0")
}

// AwaitStreamed waits until watches of a collection that begin with its state, and mark the end of
// that, come from memory, in all encodings. The proxy asks upstream for the mark if the collection
// was listed without one, as on a busy machine.
func AwaitStreamed(t *testing.T, by api.Target, collection string) {
	t.Helper()
	awaitSnapshot(t, by, collection+"?watch=1&"+api.StateFirst)
}

func awaitSnapshot(t *testing.T, by api.Target, path string) {
	t.Helper()
	for _, accept := range []string{api.JSONType, api.ProtobufType + "," + api.JSONType} {
		poll.Until(t, path+" is answered from memory as "+accept, func() error {
			ctx, cancel := context.WithTimeout(t.Context(), poll.Patience)
			defer cancel()
			resp, err := by.Open(ctx, api.Request{Path: path, Accept: accept})
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if resp.StatusCode == http.StatusUnprocessableEntity {
				return nil // This release does not stream.
			}
			if source := resp.Header.Get("X-Watershed-Source"); source != "snapshot" && !testbed.Direct {
				return fmt.Errorf("answered from %q", source)
			}
			return nil
		})
	}
}
