// Package kubelet stands in for the kubelet of a node: exec, port-forward and logs.
package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// Kubelet stands in for the kubelet of one node. The wire protocols are Kubernetes' own; only
// the programs in its containers are made up.
type Kubelet struct {
	node string

	mutex sync.Mutex
	logs  map[string]*LogFeed
}

// LogFeed is the log of a pod that somebody follows.
type LogFeed struct {
	Lines chan string
	// Left is closed when the follower has left.
	Left chan struct{}
}

// New registers a node whose kubelet is this test.
func New(t *testing.T) *Kubelet {
	t.Helper()
	k := &Kubelet{node: "node-" + testbed.Slug(t), logs: map[string]*LogFeed{}}
	mux := http.NewServeMux()
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", k.serveExec)
	mux.HandleFunc("/portForward/{namespace}/{pod}", k.servePortForward)
	mux.HandleFunc("/containerLogs/{namespace}/{pod}/{container}", k.serveLogs)
	server := httptest.NewTLSServer(mux)
	t.Cleanup(func() {
		// Close would wait for a stream that a failed test left open.
		server.CloseClientConnections()
		server.Close()
	})

	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	number, _ := strconv.Atoi(port)
	nodes := api.Clientset(t, testbed.Upstream).CoreV1().Nodes()
	require.Value(nodes.Create(context.Background(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: k.node},
		Status: corev1.NodeStatus{
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(number)}},
		},
	}, metav1.CreateOptions{}))(t)
	t.Cleanup(func() { nodes.Delete(context.Background(), k.node, metav1.DeleteOptions{}) })
	return k
}

// Run creates a pod that runs on the node.
func (k *Kubelet) Run(t *testing.T, ns, name string) {
	t.Helper()
	ctx := context.Background()
	api := api.Clientset(t, testbed.Upstream).CoreV1().Pods(ns)
	p := require.Value(api.Create(ctx, objects.Pod(name, k.node), metav1.CreateOptions{}))(t)
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "127.0.0.1",
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "main", Ready: true,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}}}}
	require.Value(api.UpdateStatus(ctx, p, metav1.UpdateOptions{}))(t)
}

func (k *Kubelet) serveExec(w http.ResponseWriter, r *http.Request) {
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	remotecommand.ServeExec(w, r, container{}, r.PathValue("pod"), "", r.PathValue("container"), r.URL.Query()["command"],
		options, poll.Patience, poll.Patience, remotecommand.SupportedStreamingProtocols)
}

func (k *Kubelet) servePortForward(w http.ResponseWriter, r *http.Request) {
	options, err := portforward.NewV4Options(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	portforward.ServePortForward(w, r, container{}, r.PathValue("pod"), "", options, poll.Patience, poll.Patience, portforward.SupportedProtocols)
}

// container is the content of every pod.
type container struct{}

// ExecInContainer knows three commands.
func (container) ExecInContainer(_ context.Context, _, _, _ string, command []string, in io.Reader, out, errors io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	switch command[0] {
	case "cat":
		_, err := io.Copy(out, in)
		return err
	case "speak":
		fmt.Fprintln(out, strings.Join(command[1:], " "))
		fmt.Fprintln(errors, "and this is an error")
		return nil
	case "exit":
		code, _ := strconv.Atoi(command[1])
		return utilexec.CodeExitError{Err: fmt.Errorf("exit %d", code), Code: code}
	}
	return fmt.Errorf("no such command: %v", command)
}

// PortForward serves one port, which sends back what it receives.
func (container) PortForward(_ context.Context, _ string, _ string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	if port != EchoPort {
		return errors.New("nobody listens there")
	}
	_, err := io.Copy(stream, stream)
	return err
}

// EchoPort is the port of every pod that sends back what it receives.
const EchoPort = 7000

// Feed returns the log that followers of a pod read.
func (k *Kubelet) Feed(pod string) *LogFeed {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if k.logs[pod] == nil {
		k.logs[pod] = &LogFeed{Lines: make(chan string), Left: make(chan struct{})}
	}
	return k.logs[pod]
}

func (k *Kubelet) serveLogs(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	fmt.Fprintf(w, "%s begins, tail %s\n", r.PathValue("pod"), r.URL.Query().Get("tailLines"))
	w.(http.Flusher).Flush()
	if r.URL.Query().Get("follow") != "true" {
		return
	}
	feed := k.Feed(r.PathValue("pod"))
	defer close(feed.Left)
	for {
		select {
		case line, open := <-feed.Lines:
			if !open {
				return
			}
			fmt.Fprintln(w, line)
			w.(http.Flusher).Flush()
		case <-r.Context().Done():
			return
		}
	}
}
