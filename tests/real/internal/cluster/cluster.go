// Package cluster runs a throw-away Kubernetes control plane on loopback: etcd, kube-
// apiservers, and a watershed in front if asked.
package cluster

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// startPatience bounds the start of a server. Three seconds is usual; a machine that is busy
// with a build needs far more.
const startPatience = 4 * time.Minute

// identities are the users that the API servers know by token, and their groups. At first only
// admin has rights; grantProxy gives watershed its own.
var identities = []struct{ token, user, groups string }{
	{"admintoken", "admin", "system:masters"},
	{"watershedtoken", "watershed", ""},
	{"alicetoken", "alice", ""},
	{"bobtoken", "bob", "builders"},
	// These users belong to the tests of access. Their tokens are random in each run.
	{rand.Text(), "viewer", ""},
	{rand.Text(), "local", ""},
	{rand.Text(), "auditor", "auditors,readers"},
	{rand.Text(), "named", ""},
	{rand.Text(), "dangling", ""},
	{rand.Text(), "owner", ""},
	{rand.Text(), "parts", ""},
	{rand.Text(), "acting", ""},
	{rand.Text(), "nobody", ""},
	// The node authorizer recognizes nodes by name and group together.
	{rand.Text(), "system:node:east", "system:nodes"},
	{rand.Text(), "system:node:west", "system:nodes"},
	{rand.Text(), "system:node:alone", ""},
	{rand.Text(), "nameless", "system:nodes"},
}

// Options choose what a cluster consists of.
type Options struct {
	// APIServers is the number of kube-apiservers, which share one etcd.
	APIServers int
	// Dir holds data, certificates and logs.
	Dir string
	// Bin holds the programs etcd and kube-apiserver. If it holds kine, too, that is the storage.
	Bin string
	// Proxy is the watershed program to run in front, if any.
	Proxy string
	// ProxyArgs, APIServerArgs and EtcdArgs are further arguments of these programs.
	ProxyArgs, APIServerArgs, EtcdArgs []string
	// ServerBin and ServerArgs are the directory of the program and further arguments of single
	// kube-apiservers, by their number.
	ServerBin  map[int]string
	ServerArgs map[int][]string
}

// Cluster is an etcd with its API servers, and a proxy if one was asked for.
type Cluster struct {
	Options
	etcd       *process
	etcdPorts  [2]int
	apiservers []*apiserver
	proxy      *proxy
	client     *http.Client

	// mutex guards the fields below. Stop may be called during Start, and no child is started
	// after it.
	mutex    sync.Mutex
	stopped  bool
	children []*process
}

type apiserver struct {
	number  int
	name    string
	port    int
	process *process
}

// New returns a cluster that is not started yet.
func New(o Options) *Cluster {
	c := &Cluster{Options: o}
	for i := range o.APIServers {
		c.apiservers = append(c.apiservers, &apiserver{number: i, name: fmt.Sprintf("apiserver-%d", i)})
	}
	return c
}

func (c *Cluster) path(name string) string { return filepath.Join(c.Dir, name) }

func (s *apiserver) url() string { return "https://" + address(s.port) }

func (c *Cluster) etcdURL() string { return "http://" + address(c.etcdPorts[0]) }

// spawn starts a child unless the cluster is stopping.
func (c *Cluster) spawn(name, program string, args ...string) (*process, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.stopped {
		return nil, errors.New("stopping")
	}
	p, err := spawn(name, c.Dir, program, args...)
	if err == nil {
		c.children = append(c.children, p)
	}
	return p, err
}

// Start starts all parts in order.
func (c *Cluster) Start() error {
	steps := []func() error{c.writeSecrets, c.startEtcd, c.startAPIServers, c.writeKubeconfigs, c.grantProxy, c.awaitNamespaces, c.startProxy}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// Stop ends all children.
func (c *Cluster) Stop() {
	c.mutex.Lock()
	c.stopped = true
	c.mutex.Unlock()
	killAll(c.children...)
}

func (c *Cluster) writeSecrets() error {
	ca, err := newAuthority(c.Dir)
	if err != nil {
		return err
	}
	if err := ca.issueServer("apiserver"); err != nil {
		return err
	}
	if err := ca.issueClient("admin", "cert-admin", "system:masters"); err != nil {
		return err
	}
	if err := writeServiceAccountKeys(c.Dir); err != nil {
		return err
	}
	var tokens strings.Builder
	for _, id := range identities {
		fmt.Fprintf(&tokens, "%s,%s,%s-uid", id.token, id.user, id.user)
		if id.groups != "" {
			fmt.Fprintf(&tokens, ",%q", id.groups)
		}
		tokens.WriteByte('\n')
	}
	if err := os.WriteFile(c.path("tokens.csv"), []byte(tokens.String()), 0o600); err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	c.client = &http.Client{
		Timeout: 10 * time.Second,
		// Each request has its own connection: one kept to a server that is then killed would
		// only get in the way.
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true},
	}
	return nil
}

// startEtcd starts etcd, on its former ports if it ran before.
func (c *Cluster) startEtcd() (err error) {
	if c.etcd.running() {
		return errors.New("etcd is running")
	}
	fixed := c.etcdPorts[0] != 0
	for range attempts {
		if !fixed {
			for i := range c.etcdPorts {
				if c.etcdPorts[i], err = freePort(); err != nil {
					return err
				}
			}
		}
		if c.hasKine() {
			err = c.launchKine()
		} else {
			err = c.launchEtcd()
		}
		if err == nil || fixed || !c.etcd.bindFailed() {
			return err
		}
		// The data holds nothing but the wrong ports yet.
		os.RemoveAll(c.path("etcd"))
	}
	return err
}

func (c *Cluster) launchEtcd() (err error) {
	client, peer := c.etcdURL(), "http://"+address(c.etcdPorts[1])
	args := []string{
		"--data-dir=" + c.path("etcd"),
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=default=" + peer,
		// The data need not survive a power cut.
		"--unsafe-no-fsync",
	}
	c.etcd, err = c.spawn("etcd", filepath.Join(c.Bin, "etcd"), append(args, c.EtcdArgs...)...)
	if err != nil {
		return err
	}
	return c.etcd.await(startPatience, func() error {
		_, err := c.get(client+"/health", "")
		return err
	})
}

func (c *Cluster) hasKine() bool {
	_, err := os.Stat(filepath.Join(c.Bin, "kine"))
	return err == nil
}

// launchKine starts kine in etcd's place, with its data in SQLite.
func (c *Cluster) launchKine() (err error) {
	folder := c.path("etcd")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	c.etcd, err = c.spawn("etcd", filepath.Join(c.Bin, "kine"),
		"--listen-address="+c.etcdURL(),
		"--endpoint=sqlite://"+filepath.Join(folder, "kine.db")+"?_journal=WAL&_synchronous=OFF&_txlock=immediate",
		"--metrics-bind-address=0")
	if err != nil {
		return err
	}
	return c.etcd.await(startPatience, func() error {
		connection, err := net.Dial("tcp", address(c.etcdPorts[0]))
		if err == nil {
			err = connection.Close()
		}
		return err
	})
}

func (c *Cluster) startAPIServers() error {
	for _, s := range c.apiservers {
		if err := s.launch(c); err != nil {
			return err
		}
	}
	for _, s := range c.apiservers {
		err := s.ready(c)
		for range attempts {
			if err == nil || !s.process.bindFailed() {
				break
			}
			s.port = 0
			if err = s.launch(c); err == nil {
				err = s.ready(c)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// launch starts an API server, on its former port if it ran before.
func (s *apiserver) launch(c *Cluster) (err error) {
	if s.process.running() {
		return fmt.Errorf("%s is running", s.name)
	}
	if s.port == 0 {
		if s.port, err = freePort(); err != nil {
			return err
		}
	}
	args := []string{
		"--etcd-servers=" + c.etcdURL(),
		// etcd compacts only on command, so tests that need old versions keep them.
		"--etcd-compaction-interval=0",
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", s.port),
		// The endpoint reconciler refuses loopback addresses. Nobody connects to this one, so
		// an address reserved for documentation serves.
		"--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none",
		"--cert-dir=" + c.path(s.name),
		"--tls-cert-file=" + c.path("apiserver.crt"), "--tls-private-key-file=" + c.path("apiserver.key"),
		"--client-ca-file=" + c.path("ca.crt"),
		"--token-auth-file=" + c.path("tokens.csv"),
		"--service-account-key-file=" + c.path("sa.pub"), "--service-account-signing-key-file=" + c.path("sa.key"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--authorization-mode=RBAC,Node",
		// Without a controller manager there are no service accounts, and this plug-in would
		// refuse every pod.
		"--disable-admission-plugins=ServiceAccount",
		"--service-cluster-ip-range=10.0.0.0/16",
		// Stand-in kubelets are registered by address.
		"--kubelet-preferred-address-types=InternalIP",
	}
	args = append(append(args, c.APIServerArgs...), c.ServerArgs[s.number]...)
	bin := cmp.Or(c.ServerBin[s.number], c.Bin)
	s.process, err = c.spawn(s.name, filepath.Join(bin, "kube-apiserver"), args...)
	return err
}

func (s *apiserver) ready(c *Cluster) error {
	return s.process.await(startPatience, func() error {
		_, err := c.get(s.url()+"/readyz", identities[0].token)
		return err
	})
}

func (c *Cluster) writeKubeconfigs() error {
	base := kubeconfig{server: c.apiservers[0].url(), ca: c.path("ca.crt")}
	admin, cert, proxy := base, base, base
	admin.token = identities[0].token
	cert.cert, cert.key = c.path("admin.crt"), c.path("admin.key")
	proxy.token = identities[1].token
	return errors.Join(
		admin.write(c.path("kubeconfig")),
		cert.write(c.path("cert-kubeconfig")),
		proxy.write(c.path("proxy-kubeconfig")),
	)
}

// ProxyRole is the cluster role with what every proxy needs.
const ProxyRole = "test-proxy"

// grantProxy gives the proxy's user the least rights that it needs: reading what it caches,
// reviews of callers and their rights, and discovery. Role and binding have names of their own: deploy/base has others.
func (c *Cluster) grantProxy() error {
	type object map[string]any
	const group = "/apis/rbac.authorization.k8s.io/v1/"
	meta := object{"name": ProxyRole}
	role := object{"metadata": meta, "rules": []object{
		{"apiGroups": []string{"*"}, "resources": []string{"*"}, "verbs": []string{"get", "list", "watch"}},
		{"apiGroups": []string{"authentication.k8s.io"}, "resources": []string{"tokenreviews"}, "verbs": []string{"create"}},
		{"apiGroups": []string{"authorization.k8s.io"}, "resources": []string{"subjectaccessreviews"}, "verbs": []string{"create"}},
		{"nonResourceURLs": []string{"/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*", "/version", "/healthz", "/livez", "/readyz"}, "verbs": []string{"get"}},
	}}
	binding := object{"metadata": meta,
		"roleRef":  object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ProxyRole},
		"subjects": []object{{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "watershed"}}}
	// A second start in the same --dir finds these objects in place.
	exists := func(err error) error {
		if err != nil && strings.Contains(err.Error(), "409") {
			return nil
		}
		return err
	}
	server := c.apiservers[0].url()
	return errors.Join(
		exists(c.post(server+group+"clusterroles", identities[0].token, role, nil)),
		exists(c.post(server+group+"clusterrolebindings", identities[0].token, binding, nil)))
}

// awaitNamespaces waits until every server shows the namespaces that an API server creates
// shortly after it is ready.
func (c *Cluster) awaitNamespaces() error {
	for _, s := range c.apiservers {
		for _, name := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
			err := s.process.await(startPatience, func() error {
				_, err := c.get(s.url()+"/api/v1/namespaces/"+name, identities[0].token)
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// compact makes etcd forget all history up to now. API servers started later answer 410 for it,
// and so do watches from before.
func (c *Cluster) compact() error {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{c.etcdURL()}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	status, err := client.Status(ctx, c.etcdURL())
	if err != nil {
		return err
	}
	_, err = client.Compact(ctx, status.Header.Revision, clientv3.WithCompactPhysical())
	if errors.Is(err, rpctypes.ErrCompacted) {
		// Nothing was written since the last compaction.
		return nil
	}
	return err
}

func (c *Cluster) get(url, token string) ([]byte, error) {
	return c.do(http.MethodGet, url, token, nil)
}

func (c *Cluster) post(url, token string, body, into any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	answer, err := c.do(http.MethodPost, url, token, bytes.NewReader(text))
	if err != nil || into == nil {
		return err
	}
	return json.Unmarshal(answer, into)
}

func (c *Cluster) do(method, url, token string, body io.Reader) ([]byte, error) {
	req, err := http.NewRequest(method, url, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 {
		return nil, fmt.Errorf("%s %s: %s: %s", method, url, resp.Status, text)
	}
	return text, nil
}
