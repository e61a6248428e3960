package real

import (
	"bytes"
	"context"
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

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/kubectl"
	"watershed.test/real/internal/kubelet"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/random"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// protocols are the two ways to stream. kubectl silently falls back from one to the other.
// client-go does not, so the tests use both.
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

func podURL(t *testing.T, ns, name, subresource string, options *corev1.PodExecOptions) *url.URL {
	r := api.Clientset(t, testbed.Proxied).CoreV1().RESTClient().Post().Resource("pods").Namespace(ns).Name(name).SubResource(subresource)
	if options != nil {
		r = r.VersionedParams(options, scheme.ParameterCodec)
	}
	return r.URL()
}

func TestExecStreamsBothWays(t *testing.T) {
	ns := objects.Namespace(t)
	kubelet.New(t).Run(t, ns, "shell")
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			t.Run("kubectl", func(t *testing.T) {
				for _, c := range []kubectl.Command{
					{Args: []string{"exec", "-i", "shell", "--", "cat"}, Stdin: "this comes back\n"},
					{Args: []string{"exec", "shell", "--", "speak", "to", "me"}},
					{Args: []string{"exec", "shell", "--", "exit", "7"}},
					{Args: []string{"exec", "shell", "--", "unheard-of"}},
					{Args: []string{"exec", "shell", "-c", "other", "--", "cat"}},
				} {
					c.Args = append([]string{"--namespace", ns}, c.Args...)
					c.Env = p.env
					kubectl.Same(t, c)
				}
				c := kubectl.Command{Args: []string{"--namespace", ns, "exec", "shell", "--", "exit", "7"}, Env: p.env}
				if r := kubectl.Run(t, testbed.Proxied, c); r.Code != 7 {
					t.Errorf("the exit code is lost: %+v", r)
				}
			})
			t.Run("client-go", func(t *testing.T) {
				run := func(stdin io.Reader, command ...string) (stdout, stderr []byte, err error) {
					ctx, cancel := context.WithTimeout(context.Background(), poll.Patience)
					defer cancel()
					options := &corev1.PodExecOptions{Command: command, Stdin: stdin != nil, Stdout: true, Stderr: true}
					executor := require.Value(p.exec(testbed.Proxied.Config(), podURL(t, ns, "shell", "exec", options)))(t)
					var out, errout bytes.Buffer
					err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: &out, Stderr: &errout})
					return out.Bytes(), errout.Bytes(), err
				}
				sent := random.Bytes(2 << 20)
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

// echo sends data to a local port and expects the same back, both at once.
func echo(t *testing.T, address string) {
	t.Helper()
	conn := require.Value(net.DialTimeout("tcp", address, poll.Patience))(t)
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(poll.Patience))
	sent := random.Bytes(4 << 20)
	wrote := make(chan error, 1)
	go func() {
		_, err := conn.Write(sent)
		wrote <- err
	}()
	got := make([]byte, len(sent))
	n, err := io.ReadFull(conn, got)
	if err := errors.Join(err, poll.Receive(t, "the data is sent", wrote)); err != nil || !bytes.Equal(sent, got) {
		t.Errorf("%d bytes sent, %d back, %v", len(sent), n, err)
	}
}

func TestPortForwardStreamsBothWays(t *testing.T) {
	ns := objects.Namespace(t)
	kubelet.New(t).Run(t, ns, "server")
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			t.Run("kubectl", func(t *testing.T) {
				c := kubectl.Command{Args: []string{"--namespace", ns, "port-forward", "server", fmt.Sprintf(":%d", kubelet.EchoPort)}, Env: p.env}
				b := kubectl.Start(t, testbed.Proxied, c, nil)
				address := regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+)`)
				b.WaitFor(t, "it forwards", address.MatchString)
				// Two connections follow one another over the same stream.
				for range 2 {
					echo(t, address.FindStringSubmatch(b.Stdout.String())[1])
				}
			})
			t.Run("client-go", func(t *testing.T) {
				dialer := require.Value(p.dial(testbed.Proxied.Config(), podURL(t, ns, "server", "portforward", nil)))(t)
				stop, ready := make(chan struct{}), make(chan struct{})
				var errout kubectl.Output
				forwarder := require.Value(portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{fmt.Sprintf("0:%d", kubelet.EchoPort)}, stop, ready, io.Discard, &errout))(t)
				ended := make(chan error, 1)
				go func() { ended <- forwarder.ForwardPorts() }()
				select {
				case <-ready:
				case err := <-ended:
					t.Fatal(err)
				case <-time.After(poll.Patience):
					t.Fatal("port-forward does not start")
				}
				ports := require.Value(forwarder.GetPorts())(t)
				echo(t, fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
				close(stop)
				if err := poll.Receive(t, "the end", ended); err != nil || errout.String() != "" {
					t.Errorf("%v, %q", err, errout.String())
				}
			})
		})
	}
}

func TestLogsAreFollowedLineByLine(t *testing.T) {
	ns := objects.Namespace(t)
	k := kubelet.New(t)
	for _, to := range testbed.Targets() {
		k.Run(t, ns, to.Name)
	}
	kubectl.Same(t, kubectl.Args("--namespace "+ns+" logs upstream"))
	kubectl.Same(t, kubectl.Args("--namespace "+ns+" logs upstream --tail=3"))
	kubectl.Same(t, kubectl.Args("--namespace "+ns+" logs upstream -c nothing"))

	for _, to := range testbed.Targets() {
		t.Run("followers read each line from "+to.Name, func(t *testing.T) {
			b := kubectl.Start(t, to, kubectl.Args("--namespace "+ns+" logs -f "+to.Name), nil)
			b.WaitFor(t, "the begin", func(text string) bool { return strings.Contains(text, "begins") })
			feed := k.Feed(to.Name)
			// The next line is written when the last one has arrived. A proxy that holds lines
			// back never reaches the end.
			for n := range 5 {
				line := fmt.Sprintf("line %d", n)
				select {
				case feed.Lines <- line:
				case <-time.After(poll.Patience):
					t.Fatal("nobody reads the log")
				}
				b.WaitFor(t, line, func(text string) bool { return strings.HasSuffix(text, line+"\n") })
			}
			close(feed.Lines)
			if r := b.Wait(t); r.Code != 0 {
				t.Errorf("%+v", r)
			}
		})
	}

	t.Run("the kubelet hears that a follower leaves", func(t *testing.T) {
		k.Run(t, ns, "left-alone")
		b := kubectl.Start(t, testbed.Proxied, kubectl.Args("--namespace "+ns+" logs -f left-alone"), nil)
		b.WaitFor(t, "the begin", func(text string) bool { return strings.Contains(text, "begins") })
		b.Cmd.Process.Kill()
		poll.Receive(t, "the kubelet hears that the follower has gone", k.Feed("left-alone").Left)
	})
}
