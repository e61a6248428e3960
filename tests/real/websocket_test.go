package real

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// dialWebSocket opens a WebSocket as a browser would.
func dialWebSocket(t api.Target, path string, header http.Header, protocols ...string) (*websocket.Conn, *http.Response, error) {
	dialer := websocket.Dialer{TLSClientConfig: t.TLS(), HandshakeTimeout: poll.Patience, Subprotocols: protocols}
	conn, resp, err := dialer.Dial("wss"+strings.TrimPrefix(t.URL, "https")+path, header)
	if conn != nil {
		conn.SetReadDeadline(time.Now().Add(poll.Patience))
	}
	return conn, resp, err
}

func browser() http.Header {
	return http.Header{"Origin": {"https://example.test"}, "Authorization": {"Bearer " + testbed.Shared.AdminToken}}
}

func TestWebSocketWatchesShowEveryEvent(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, form := range []struct {
		name  string
		frame int
		open  func(to api.Target, path string) (*websocket.Conn, *http.Response, error)
	}{
		{"JSON", websocket.TextMessage, func(to api.Target, path string) (*websocket.Conn, *http.Response, error) {
			return dialWebSocket(to, path, browser())
		}},
		{"protobuf", websocket.BinaryMessage, func(to api.Target, path string) (*websocket.Conn, *http.Response, error) {
			header := browser()
			header.Set("Accept", api.ProtobufType+";stream=watch")
			return dialWebSocket(to, path, header)
		}},
		{"token as subprotocol", websocket.TextMessage, func(to api.Target, path string) (*websocket.Conn, *http.Response, error) {
			token := "base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte(testbed.Shared.AdminToken))
			return dialWebSocket(to, path, http.Header{"Origin": {"https://example.test"}}, token, "base64.binary.k8s.io")
		}},
	} {
		t.Run(form.name, func(t *testing.T) {
			t.Parallel()
			ns := objects.Namespace(t)
			api := api.Clientset(t, testbed.Upstream).CoreV1().ConfigMaps(ns)
			apple := require.Value(api.Create(ctx, objects.ConfigMap("apple", "n", "0"), metav1.CreateOptions{}))(t)
			path := fmt.Sprintf("/api/v1/namespaces/%s/configmaps?watch=1&timeoutSeconds=4&resourceVersion=%s", ns, apple.ResourceVersion)
			conns := map[string]*websocket.Conn{}
			// All of it happens while the watches are open; otherwise they are opened again.
			poll.Until(t, "the watches are open for long enough", func() error {
				began := time.Now()
				var opened []string
				for _, to := range testbed.Targets() {
					conn, resp, err := form.open(to, path)
					if err != nil {
						t.Fatalf("%s: %v, %v", to.Name, err, resp)
					}
					t.Cleanup(func() { conn.Close() })
					conns[to.Name] = conn
					opened = append(opened, fmt.Sprint(resp.StatusCode, " ", conn.Subprotocol()))
				}
				if opened[0] != opened[1] {
					t.Errorf("opened %q upstream and %q through the proxy", opened[0], opened[1])
				}
				for n := range 3 {
					require.Value(api.Patch(ctx, "apple", types.MergePatchType, fmt.Appendf(nil, `{"data":{"n":"%s-%d"}}`, testbed.Slug(t), n), metav1.PatchOptions{}))(t)
				}
				if took := time.Since(began); took > 2*time.Second {
					return fmt.Errorf("it took %v", took)
				}
				return nil
			})
			// Upstream ends the watch.
			var all [2][]string
			for i, to := range testbed.Targets() {
				for {
					kind, data, err := conns[to.Name].ReadMessage()
					var closed *websocket.CloseError
					if errors.As(err, &closed) {
						all[i] = append(all[i], fmt.Sprint("closed with ", closed.Code))
						break
					}
					if err != nil {
						t.Fatalf("%s: %v", to.Name, err)
					}
					if kind != form.frame {
						t.Errorf("%s: a frame of kind %d", to.Name, kind)
					}
					all[i] = append(all[i], string(data))
				}
			}
			if want, got := strings.Join(all[0], "\n"), strings.Join(all[1], "\n"); want != got {
				t.Errorf("upstream: %q\nproxied:  %q", want, got)
			}
			if len(all[0]) < 4 {
				t.Errorf("upstream sent only %q", all[0])
			}
		})
	}
}

func TestWebSocketRefusalsMatchUpstream(t *testing.T) {
	const path = "/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1"
	anonymous, unknown, unprivileged := browser(), browser(), browser()
	anonymous.Del("Authorization")
	unknown.Set("Authorization", "Bearer nobody-has-this-token")
	unprivileged.Set("Authorization", "Bearer "+testbed.Shared.Users.Of("alice"))
	foreign := browser()
	foreign.Del("Origin")
	for name, form := range map[string]struct {
		path      string
		header    http.Header
		protocols []string
	}{
		"no origin":        {path, foreign, nil},
		"no token":         {path, anonymous, nil},
		"unknown token":    {path, unknown, nil},
		"unprivileged":     {path, unprivileged, nil},
		"two subprotocols": {path, browser(), []string{"a", "b"}},
		"bad options":      {path + "&resourceVersionMatch=Exact", browser(), nil},
		"no such type":     {"/api/v1/nothings?watch=1", browser(), nil},
	} {
		t.Run(name, func(t *testing.T) {
			var texts []string
			for _, to := range testbed.Targets() {
				conn, resp, err := dialWebSocket(to, form.path, form.header, form.protocols...)
				if err == nil {
					conn.Close()
					t.Fatalf("%s: it was opened", to.Name)
				}
				if !errors.Is(err, websocket.ErrBadHandshake) {
					t.Fatalf("%s: %v", to.Name, err)
				}
				// The library keeps the first kilobyte of the body.
				body := make([]byte, 1024)
				n, _ := resp.Body.Read(body)
				texts = append(texts, api.Answer{Status: resp.StatusCode, Header: resp.Header, Body: string(body[:n])}.Comparable(nil))
			}
			if texts[0] != texts[1] {
				t.Errorf("upstream: %s\nproxied:  %s", texts[0], texts[1])
			}
		})
	}
}
