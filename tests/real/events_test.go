package real

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/parallel"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// TestEventsThatExpireTogetherVanishTogether deletes all events of a namespace at one version,
// as etcd does when a lease ends. Lists of that time hold all of them or none.
func TestEventsThatExpireTogetherVanishTogether(t *testing.T) {
	t.Parallel()
	const all = 600
	ns := objects.Namespace(t)
	create := api.Clientset(t, testbed.Upstream).CoreV1().Events(ns).Create
	parallel.ForEach(8, make([]int, all), func(i, _ int) {
		name := fmt.Sprintf("event-%d", i)
		_, err := create(context.Background(), &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: name},
			InvolvedObject: corev1.ObjectReference{Kind: "Namespace", Name: ns, Namespace: ns},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Error(err)
		}
	})
	path := "/api/v1/namespaces/" + ns + "/events"
	count := func(query string) (int, string) {
		answer := testbed.Proxied.Must(t, api.Request{Path: path + query})
		var list struct {
			Metadata metav1.ListMeta
			Items    []json.RawMessage
		}
		require.NoError(t, json.Unmarshal([]byte(answer.Body), &list))
		return len(list.Items), list.Metadata.ResourceVersion
	}
	poll.Until(t, "the proxy has all events", func() error {
		if n, _ := count("?resourceVersion=0"); n != all {
			return fmt.Errorf("%d events", n)
		}
		return nil
	})

	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if n, version := count("?resourceVersion=0"); n != 0 && n != all {
					t.Errorf("a list of version %s has %d of %d events", version, n, all)
				}
			}
		})
	}
	stop := sync.OnceFunc(func() { close(done); readers.Wait() })
	defer stop()
	deleteTogether(t, "/registry/events/"+ns+"/")
	// Nothing else happens to events in this namespace, and upstream sends no bookmarks.
	poll.Until(t, "the events are gone", func() error {
		if n, _ := count("?resourceVersion=0"); n != 0 {
			return fmt.Errorf("%d events", n)
		}
		return nil
	})
	stop()
	if n, _ := count(""); n != 0 {
		t.Errorf("a consistent list has %d events", n)
	}
}

// deleteTogether deletes all of etcd's keys with a prefix at one version.
func deleteTogether(t *testing.T, prefix string) {
	t.Helper()
	end := []byte(prefix)
	end[len(end)-1]++
	body := require.Value(json.Marshal(map[string]string{
		"key":       base64.StdEncoding.EncodeToString([]byte(prefix)),
		"range_end": base64.StdEncoding.EncodeToString(end),
	}))(t)
	answer := require.Value(http.Post(testbed.Shared.Etcd+"/v3/kv/deleterange", "application/json", bytes.NewReader(body)))(t)
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("etcd answered %s", answer.Status)
	}
}
