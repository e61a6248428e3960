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
)

// dial opens a WebSocket as a browser would.
func (t target) dial(path string, header http.Header, protocols ...string) (*websocket.Conn, *http.Response, error) {
	dialer := websocket.Dialer{TLSClientConfig: t.tls(), HandshakeTimeout: patience, Subprotocols: protocols}
	conn, resp, err := dialer.Dial("wss"+strings.TrimPrefix(t.url, "https")+path, header)
	if conn != nil {
		conn.SetReadDeadline(time.Now().Add(patience))
	}
	return conn, resp, err
}

func browser() http.Header {
	return http.Header{"Origin": {"https://example.test"}, "Authorization": {"Bearer " + shared.AdminToken}}
}

func TestWebSocketWatch(t *testing.T) {
	ctx := context.Background()
	for _, form := range []struct {
		name  string
		frame int
		open  func(to target, path string) (*websocket.Conn, *http.Response, error)
	}{
		{"JSON", websocket.TextMessage, func(to target, path string) (*websocket.Conn, *http.Response, error) {
			return to.dial(path, browser())
		}},
		{"protobuf", websocket.BinaryMessage, func(to target, path string) (*websocket.Conn, *http.Response, error) {
			header := browser()
			header.Set("Accept", protobufType+";stream=watch")
			return to.dial(path, header)
		}},
		{"token as subprotocol", websocket.TextMessage, func(to target, path string) (*websocket.Conn, *http.Response, error) {
			token := "base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte(shared.AdminToken))
			return to.dial(path, http.Header{"Origin": {"https://example.test"}}, token, "base64.binary.k8s.io")
		}},
	} {
		t.Run(form.name, func(t *testing.T) {
			t.Parallel()
			ns := namespace(t)
			api := kubeClient(t, upstream).CoreV1().ConfigMaps(ns)
			apple := must(api.Create(ctx, configMap("apple", "n", "0"), metav1.CreateOptions{}))(t)
			path := fmt.Sprintf("/api/v1/namespaces/%s/configmaps?watch=1&timeoutSeconds=4&resourceVersion=%s", ns, apple.ResourceVersion)
			conns := map[string]*websocket.Conn{}
			// All of it happens while the watches are open, or they are opened again.
			eventually(t, "the watches are open for long enough", func() error {
				began := time.Now()
				var opened []string
				for _, to := range targets() {
					conn, resp, err := form.open(to, path)
					if err != nil {
						t.Fatalf("%s: %v, %v", to.name, err, resp)
					}
					t.Cleanup(func() { conn.Close() })
					conns[to.name] = conn
					opened = append(opened, fmt.Sprint(resp.StatusCode, " ", conn.Subprotocol()))
				}
				if opened[0] != opened[1] {
					t.Errorf("opened %q upstream and %q through the proxy", opened[0], opened[1])
				}
				for n := range 3 {
					must(api.Patch(ctx, "apple", types.MergePatchType, fmt.Appendf(nil, `{"data":{"n":"%s-%d"}}`, slug(t), n), metav1.PatchOptions{}))(t)
				}
				if took := time.Since(began); took > 2*time.Second {
					return fmt.Errorf("it took %v", took)
				}
				return nil
			})
			// Until upstream ends the watch.
			var all [2][]string
			for i, to := range targets() {
				for {
					kind, data, err := conns[to.name].ReadMessage()
					var closed *websocket.CloseError
					if errors.As(err, &closed) {
						all[i] = append(all[i], fmt.Sprint("closed with ", closed.Code))
						break
					}
					if err != nil {
						t.Fatalf("%s: %v", to.name, err)
					}
					if kind != form.frame {
						t.Errorf("%s: a frame of kind %d", to.name, kind)
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

func TestWebSocketRefusals(t *testing.T) {
	const path = "/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1"
	anonymous, unknown, unprivileged := browser(), browser(), browser()
	anonymous.Del("Authorization")
	unknown.Set("Authorization", "Bearer nobody-has-this-token")
	unprivileged.Set("Authorization", "Bearer "+shared.Tokens["alice"])
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
			for _, to := range targets() {
				conn, resp, err := to.dial(form.path, form.header, form.protocols...)
				if err == nil {
					conn.Close()
					t.Fatalf("%s: it was opened", to.name)
				}
				if !errors.Is(err, websocket.ErrBadHandshake) {
					t.Fatalf("%s: %v", to.name, err)
				}
				// The library keeps the first kilobyte of the body.
				body := make([]byte, 1024)
				n, _ := resp.Body.Read(body)
				texts = append(texts, answer{resp.StatusCode, resp.Header, string(body[:n])}.comparable(nil))
			}
			if texts[0] != texts[1] {
				t.Errorf("upstream: %s\nproxied:  %s", texts[0], texts[1])
			}
		})
	}
}
