package real

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
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
	poll.Until(t, "the proxy has all events", func() error {
		return expectEvents(path+"?resourceVersion=0", "snapshot", all)
	})

	done := make(chan struct{})
	var readers sync.WaitGroup
	// seen counts the lists from memory by their number of events.
	seen := map[int]*atomic.Int64{0: {}, all: {}}
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				list, err := countEvents(path + "?resourceVersion=0")
				if err != nil || seen[list.events] == nil {
					t.Errorf("%+v, and not %d events or none (%v)", list, all, err)
					return
				}
				if testbed.Direct || list.source == "snapshot" {
					seen[list.events].Add(1)
				}
			}
		})
	}
	stop := sync.OnceFunc(func() { close(done); readers.Wait() })
	defer stop()
	deleteTogether(t, "/registry/events/"+ns+"/")
	// Nothing else happens to events in this namespace, and upstream sends no bookmarks.
	poll.Until(t, "the events are gone", func() error {
		if with, without := seen[all].Load(), seen[0].Load(); with == 0 || without == 0 {
			return fmt.Errorf("%d lists from memory have all events, and %d none", with, without)
		}
		return expectEvents(path+"?resourceVersion=0", "snapshot", 0)
	})
	stop()
	if list, err := countEvents(path); err != nil || list.events != 0 {
		t.Errorf("a consistent list has %+v (%v)", list, err)
	}
	// On a busy machine the proof that memory is new enough may be late.
	poll.Until(t, "a consistent list comes from memory", func() error {
		return expectEvents(path, "linearizable", 0)
	})
}

// eventList describes a list of events.
type eventList struct {
	events          int
	version, source string
}

// countEvents lists events through the proxy.
func countEvents(path string) (list eventList, err error) {
	answer, err := testbed.Proxied.Try(api.Request{Path: path})
	if err != nil {
		return list, err
	}
	if answer.Status != http.StatusOK {
		return list, fmt.Errorf("%d %s", answer.Status, answer.Body)
	}
	var body struct {
		Metadata metav1.ListMeta
		Items    []json.RawMessage
	}
	err = json.Unmarshal([]byte(answer.Body), &body)
	return eventList{len(body.Items), body.Metadata.ResourceVersion, answer.Header.Get("X-Watershed-Source")}, err
}

// expectEvents returns an error unless a list has so many events and comes from this source.
func expectEvents(path, source string, events int) error {
	list, err := countEvents(path)
	if err == nil && (list.events != events || list.source != source && !testbed.Direct) {
		err = fmt.Errorf("%+v", list)
	}
	return err
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
