package real

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	utilexec "k8s.io/client-go/util/exec"
)

// protocols are the two ways to stream. kubectl falls back from one to the
// other in silence, so client-go, which does not, is asked as well.
var protocols = []struct {
	name string
	env  []string
	exec func(config *rest.Config, url *url.URL) (remotecommand.Executor, error)
	dial func(config *rest.Config, url *url.URL) (httpstream.Dialer, error)
}{
	{
		name: "WebSocket",
		env:  []string{"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=true", "KUBECTL_PORT_FORWARD_WEBSOCKETS=true"},
		exec: func(config *rest.Config, url *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewWebSocketExecutor(config, http.MethodGet, url.String())
		},
		dial: func(config *rest.Config, url *url.URL) (httpstream.Dialer, error) {
			return portforward.NewSPDYOverWebsocketDialer(url, config)
		},
	},
	{
		name: "SPDY",
		env:  []string{"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false", "KUBECTL_PORT_FORWARD_WEBSOCKETS=false"},
		exec: func(config *rest.Config, url *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewSPDYExecutor(config, http.MethodPost, url)
		},
		dial: func(config *rest.Config, url *url.URL) (httpstream.Dialer, error) {
			transport, upgrader, err := spdy.RoundTripperFor(config)
			return spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url), err
		},
	},
}

// bulk is enough to pass several flow control windows.
func bulk(size int) []byte {
	data := make([]byte, size)
	rand.Read(data)
	return data
}

func podURL(t *testing.T, ns, name, subresource string, options *corev1.PodExecOptions) *url.URL {
	r := kubeClient(t, proxied).CoreV1().RESTClient().Post().Resource("pods").Namespace(ns).Name(name).SubResource(subresource)
	if options != nil {
		r = r.VersionedParams(options, scheme.ParameterCodec)
	}
	return r.URL()
}

func TestExec(t *testing.T) {
	ns := namespace(t)
	newKubelet(t).run(t, ns, "shell")
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			t.Run("kubectl", func(t *testing.T) {
				for _, c := range []command{
					{args: []string{"exec", "-i", "shell", "--", "cat"}, stdin: "this comes back\n"},
					{args: []string{"exec", "shell", "--", "speak", "to", "me"}},
					{args: []string{"exec", "shell", "--", "exit", "7"}},
					{args: []string{"exec", "shell", "--", "unheard-of"}},
					{args: []string{"exec", "shell", "-c", "other", "--", "cat"}},
				} {
					c.args = append([]string{"--namespace", ns}, c.args...)
					c.env = p.env
					sameKubectl(t, c)
				}
				c := command{args: []string{"--namespace", ns, "exec", "shell", "--", "exit", "7"}, env: p.env}
				if r := proxied.kubectl(t, c); r.code != 7 {
					t.Errorf("the exit code is lost: %+v", r)
				}
			})
			t.Run("client-go", func(t *testing.T) {
				run := func(stdin io.Reader, command ...string) (stdout, stderr []byte, err error) {
					ctx, cancel := context.WithTimeout(context.Background(), patience)
					defer cancel()
					options := &corev1.PodExecOptions{Command: command, Stdin: stdin != nil, Stdout: true, Stderr: true}
					executor := must(p.exec(proxied.config(), podURL(t, ns, "shell", "exec", options)))(t)
					var out, errout bytes.Buffer
					err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: &out, Stderr: &errout})
					return out.Bytes(), errout.Bytes(), err
				}
				sent := bulk(2 << 20)
				got, _, err := run(bytes.NewReader(sent), "cat")
				if err != nil || !bytes.Equal(sent, got) {
					t.Errorf("%d bytes sent, %d back, %v", len(sent), len(got), err)
				}
				stdout, stderr, err := run(nil, "speak", "up")
				if err != nil || string(stdout) != "up\n" || !strings.Contains(string(stderr), "an error") {
					t.Errorf("%q, %q, %v", stdout, stderr, err)
				}
				_, _, err = run(nil, "exit", "7")
				var exit utilexec.CodeExitError
				if !errors.As(err, &exit) || exit.Code != 7 {
					t.Errorf("not exit code 7 but %v", err)
				}
			})
		})
	}
}

// echo sends a lot to a local port and wants the same back, both at once.
func echo(t *testing.T, address string) {
	t.Helper()
	conn := must(net.DialTimeout("tcp", address, patience))(t)
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	sent := bulk(4 << 20)
	wrote := make(chan error, 1)
	go func() {
		_, err := conn.Write(sent)
		wrote <- err
	}()
	got := make([]byte, len(sent))
	n, err := io.ReadFull(conn, got)
	if err := errors.Join(err, within(t, "all sent", wrote)); err != nil || !bytes.Equal(sent, got) {
		t.Errorf("%d bytes sent, %d back, %v", len(sent), n, err)
	}
}

func TestPortForward(t *testing.T) {
	ns := namespace(t)
	newKubelet(t).run(t, ns, "server")
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			t.Run("kubectl", func(t *testing.T) {
				c := command{args: []string{"--namespace", ns, "port-forward", "server", fmt.Sprintf(":%d", echoPort)}, env: p.env}
				b := proxied.begin(t, c, nil)
				address := regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+)`)
				b.prints(t, "it forwards", address.MatchString)
				// One connection after the other, over the same stream.
				for range 2 {
					echo(t, address.FindStringSubmatch(b.stdout.String())[1])
				}
			})
			t.Run("client-go", func(t *testing.T) {
				dialer := must(p.dial(proxied.config(), podURL(t, ns, "server", "portforward", nil)))(t)
				stop, ready := make(chan struct{}), make(chan struct{})
				var errout output
				forwarder := must(portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{fmt.Sprintf("0:%d", echoPort)}, stop, ready, io.Discard, &errout))(t)
				ended := make(chan error, 1)
				go func() { ended <- forwarder.ForwardPorts() }()
				select {
				case <-ready:
				case err := <-ended:
					t.Fatal(err)
				case <-time.After(patience):
					t.Fatal("it never forwards")
				}
				ports := must(forwarder.GetPorts())(t)
				echo(t, fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
				close(stop)
				if err := within(t, "the end", ended); err != nil || errout.String() != "" {
					t.Errorf("%v, %q", err, errout.String())
				}
			})
		})
	}
}

func TestLogs(t *testing.T) {
	ns := namespace(t)
	k := newKubelet(t)
	for _, to := range targets() {
		k.run(t, ns, to.name)
	}
	sameKubectl(t, args("--namespace "+ns+" logs upstream"))
	sameKubectl(t, args("--namespace "+ns+" logs upstream --tail=3"))
	sameKubectl(t, args("--namespace "+ns+" logs upstream -c nothing"))

	for _, to := range targets() {
		t.Run("follow "+to.name, func(t *testing.T) {
			b := to.begin(t, args("--namespace "+ns+" logs -f "+to.name), nil)
			b.prints(t, "the begin", func(text string) bool { return strings.Contains(text, "begins") })
			feed := k.feed(to.name)
			// The next line is written when the last one has arrived: whoever
			// saves lines up for later never gets to the end.
			for n := range 5 {
				line := fmt.Sprintf("line %d", n)
				select {
				case feed.lines <- line:
				case <-time.After(patience):
					t.Fatal("nobody reads the log")
				}
				b.prints(t, line, func(text string) bool { return strings.HasSuffix(text, line+"\n") })
			}
			close(feed.lines)
			if r := b.result(t); r.code != 0 {
				t.Errorf("%+v", r)
			}
		})
	}

	t.Run("leaving", func(t *testing.T) {
		k.run(t, ns, "left-alone")
		b := proxied.begin(t, args("--namespace "+ns+" logs -f left-alone"), nil)
		b.prints(t, "the begin", func(text string) bool { return strings.Contains(text, "begins") })
		b.cmd.Process.Kill()
		within(t, "the kubelet hears that the follower has gone", k.feed("left-alone").left)
	})
}
