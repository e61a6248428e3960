package clusters

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/balancer"
	"watershed.test/real/internal/cluster"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/rights"
	"watershed.test/real/internal/testbed"
	"watershed.test/real/internal/usage"
)

// nodeSizes are the sizes of a simulated cluster of nodes.
type nodeSizes struct {
	nodes, pods, agents, seconds, perSecond, zoneReplicas int
	// checkpoints gives each node's proxy a directory for its checkpoints.
	checkpoints bool
}

// nodeCluster is an API server with the pods of many nodes.
type nodeCluster struct {
	nodeSizes
	*testbed.Cluster
	writer  kubernetes.Interface
	changes int
	// tokens holds those of each agent, one for each node.
	tokens [][]string
	// proxyTokens holds those of the nodes' proxies, which have one account, as in a DaemonSet.
	proxyTokens []string
}

// allPods returns the number of pods, with those of the agents and the proxies.
func (s nodeSizes) allPods() int { return s.pods + s.nodes*(s.agents+1) }

func nodeName(i int) string { return fmt.Sprint("node-", i) }

// startNodeCluster starts a cluster and creates its nodes and pods.
func startNodeCluster(t *testing.T, sizes nodeSizes) *nodeCluster {
	t.Helper()
	// As kubeadm sets it. By etcd's default, watches of what does not change bring nothing for ten minutes.
	args := append(nodeAudit(t), "--etcd-arg", "--watch-progress-notify-interval=5s")
	c := &nodeCluster{nodeSizes: sizes, Cluster: require.Value(testbed.Start(args...))(t)}
	t.Cleanup(c.Stop)
	c.writer = api.Clientset(t, c.Upstream())
	for i := range c.nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}}
		require.Value(c.writer.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}))(t)
	}
	// A zone tier may validate tokens itself.
	keys := rights.At(t, c.writer.RbacV1(), "issuer")
	keys.Role("", "keys", rbacv1.PolicyRule{NonResourceURLs: []string{"/openid/*"}, Verbs: []string{"get"}})
	keys.Bind("", "keys", rights.User("watershed"))
	c.proxyTokens = c.addProxies(t)
	for i := range c.agents {
		c.tokens = append(c.tokens, c.addAgent(t, fmt.Sprint("agent-", i)))
	}
	var made sync.WaitGroup
	for worker := range 8 {
		chance := rand.New(rand.NewPCG(9, uint64(worker)))
		made.Go(func() {
			for i := worker; i < c.pods; i += 8 {
				p := objects.Pod(fmt.Sprint("pod-", i), nodeName(i%c.nodes))
				// Half of the text can be compressed.
				filler := make([]byte, 700)
				for i := range filler {
					filler[i] = byte(chance.UintN(256))
				}
				// In the spec, where a pod's bulk is: proofs by names and versions read metadata.
				text := corev1.EnvVar{Name: "FILLER", Value: hex.EncodeToString(filler)}
				p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, text)
				if _, err := c.writer.CoreV1().Pods("default").Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	made.Wait()
	return c
}

// nodeAudit returns the flags of an API server that logs its requests to NODE_AUDIT_LOG, and what reviews
// ask. It tells what the requests are that the figures count.
func nodeAudit(t *testing.T) []string {
	t.Helper()
	log := os.Getenv("NODE_AUDIT_LOG")
	if log == "" {
		return nil
	}
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	text := `{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [
		{"level": "Metadata", "resources": [{"group": "authentication.k8s.io"}]},
		{"level": "Request", "resources": [{"group": "authorization.k8s.io"}]},
		{"level": "Metadata", "verbs": ["get", "list", "watch", "create"]}]}`
	require.NoError(t, os.WriteFile(policy, []byte(text), 0o600))
	return []string{"--apiserver-arg", "--audit-policy-file=" + policy, "--apiserver-arg", "--audit-log-path=" + log}
}

// addProxies creates the service account of the nodes' proxies, with the rights of every proxy. It returns
// a token for each node.
func (c *nodeCluster) addProxies(t *testing.T) []string {
	t.Helper()
	const name = "node-proxy"
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: cluster.ProxyRole},
		Subjects:   []rbacv1.Subject{rights.Account("default", name)},
	}
	require.Value(c.writer.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}))(t)
	return c.addAccount(t, name)
}

// addAgent creates the service account of an agent that follows the pods of its node. It returns a
// token for each node.
func (c *nodeCluster) addAgent(t *testing.T, name string) []string {
	t.Helper()
	given := rights.At(t, c.writer.RbacV1(), "nodes")
	given.Role("", name, rights.May("", []string{"pods", "nodes"}, rights.ReadVerbs))
	given.Bind("", name, rights.Account("default", name))
	return c.addAccount(t, name)
}

// addAccount creates a service account, and a pod of it on each node. It returns the pods' tokens, which are
// bound to them, as those that kubelets mount.
func (c *nodeCluster) addAccount(t *testing.T, name string) (tokens []string) {
	t.Helper()
	ctx, account := t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	accounts := c.writer.CoreV1().ServiceAccounts("default")
	require.Value(accounts.Create(ctx, account, metav1.CreateOptions{}))(t)
	// For longer than a run lasts.
	seconds := int64((24 * time.Hour).Seconds())
	for i := range c.nodes {
		pod := objects.Pod(fmt.Sprint(name, "-", nodeName(i)), nodeName(i))
		pod.Spec.ServiceAccountName = name
		pod = require.Value(c.writer.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}))(t)
		bound := &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
		wanted := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds, BoundObjectRef: bound}}
		made := require.Value(accounts.CreateToken(ctx, name, wanted, metav1.CreateOptions{}))(t)
		tokens = append(tokens, made.Status.Token)
	}
	return tokens
}

// change changes the next pod.
func (c *nodeCluster) change(t *testing.T) {
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"n":"%d"}}}`, c.changes)
	name := fmt.Sprint("pod-", c.changes%c.pods)
	require.Value(c.writer.CoreV1().Pods("default").Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}))(t)
	c.changes++
}

// nodeFleet is one way to connect the agents of all nodes.
type nodeFleet struct {
	*nodeCluster
	// counted is what comes from the API server, and between what comes from the zone tier.
	counted, between *usage.ByteCounter
	// zone holds the replicas of the zone tier, and zoneFront their Service.
	zone      []*testbed.Proxy
	zoneFront *balancer.Balancer
	// proxies holds the proxy of each node, and fronts the address that its agents know.
	proxies []*testbed.Proxy
	fronts  []*balancer.Balancer
	flags   func(node int) []string
	// directories hold what a node's proxy finds again after a restart.
	directories []string
	informers   []cache.SharedIndexInformer
}

// startNodeFleet starts the proxies of all nodes.
func (c *nodeCluster) startNodeFleet(t *testing.T, way nodeSetup) *nodeFleet {
	t.Helper()
	f := &nodeFleet{nodeCluster: c, flags: way.flags, counted: usage.StartByteCounter(t, c.Upstream().URL)}
	if way.flags == nil {
		return f
	}
	if way.zone {
		f.zoneFront = balancer.Start(t)
		f.between = usage.StartByteCounter(t, f.zoneFront.URL())
		for range c.zoneReplicas {
			f.zone = append(f.zone, f.startZoneProxy(t))
		}
		f.zoneFront.Set(f.zone...)
	}
	for i := range c.nodes {
		f.directories = append(f.directories, t.TempDir())
		f.fronts = append(f.fronts, balancer.Start(t))
		f.proxies = append(f.proxies, f.startNodeProxy(t, i))
		f.fronts[i].Set(f.proxies[i])
	}
	return f
}

// startZoneProxy starts a replica of the zone tier. All show the first one's certificate.
func (f *nodeFleet) startZoneProxy(t *testing.T) *testbed.Proxy {
	t.Helper()
	flags := append([]string{"--server", f.counted.URL(), "--self-check-interval", "5m"}, zoneFlags()...)
	if len(f.zone) == 0 {
		return testbed.RunProxy(t, f.ProxyKubeconfig, flags...)
	}
	pair := filepath.Dir(f.zone[0].CA)
	p := testbed.RunProxy(t, f.ProxyKubeconfig, append(flags,
		"--tls-cert", filepath.Join(pair, "tls.crt"), "--tls-key", filepath.Join(pair, "tls.key"))...)
	p.CA = f.zone[0].CA
	return p
}

// startNodeProxy starts the proxy of a node, with the certificate of the one before.
func (f *nodeFleet) startNodeProxy(t *testing.T, i int) *testbed.Proxy {
	t.Helper()
	server, ca := f.counted.URL(), f.CA
	if f.zoneFront != nil {
		server, ca = f.between.URL(), f.zone[0].CA
	}
	kubeconfig := filepath.Join(f.directories[i], "kubeconfig")
	require.NoError(t, testbed.WriteKubeconfig(kubeconfig, server, ca, f.proxyTokens[i]))
	// With the comparisons that others have, which most tests do without.
	flags := append(f.flags(i), "--self-check-interval", "1h")
	if f.checkpoints {
		flags = append(flags, "--checkpoint-dir", filepath.Join(f.directories[i], "checkpoints"))
	}
	if i == len(f.proxies) {
		return testbed.RunProxy(t, kubeconfig, flags...)
	}
	pair := filepath.Dir(f.proxies[i].CA)
	p := testbed.RunProxy(t, kubeconfig, append(flags,
		"--tls-cert", filepath.Join(pair, "tls.crt"), "--tls-key", filepath.Join(pair, "tls.key"))...)
	p.CA = f.proxies[i].CA
	return p
}

// openAgents starts the agents of all nodes, a few nodes at a time as in a rollout.
func (f *nodeFleet) openAgents(t *testing.T, stop <-chan struct{}) {
	t.Helper()
	for i := range f.nodes {
		for agent := range f.agents {
			f.openAgent(t, agent, i, stop)
		}
		if i%5 == 4 {
			poll.Until(t, "the agents of a few nodes are in sync", f.synced)
		}
	}
	poll.Until(t, "all agents are in sync", f.synced)
	poll.Until(t, "all agents have their objects", func() error {
		have := 0
		for _, informer := range f.informers {
			have += len(informer.GetStore().ListKeys())
		}
		// Each agent has the node and its pods.
		if want := f.agents * (f.allPods() + f.nodes); have != want {
			return fmt.Errorf("they have %d objects, not %d", have, want)
		}
		return nil
	})
}

func (f *nodeFleet) openAgent(t *testing.T, agent, node int, stop <-chan struct{}) {
	t.Helper()
	config := f.Upstream().Config()
	config.BearerToken = f.tokens[agent][node]
	config.Host = f.counted.URL()
	if f.proxies != nil {
		config.Host, config.TLSClientConfig = f.fronts[node].URL(), rest.TLSClientConfig{CAFile: f.proxies[node].CA}
	}
	config.ContentType, config.AcceptContentTypes = api.ProtobufType, api.ProtobufType
	// This keeps client-go from sharing connections between agents.
	config.Dial = (&net.Dialer{Timeout: poll.Patience}).DialContext
	client := require.Value(kubernetes.NewForConfig(config))(t)
	informersOf := func(field string) informers.SharedInformerFactory {
		selector := fields.OneTermEqualSelector(field, nodeName(node)).String()
		return informers.NewSharedInformerFactoryWithOptions(client, 0,
			informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = selector }))
	}
	for _, informer := range []cache.SharedIndexInformer{
		informersOf("spec.nodeName").Core().V1().Pods().Informer(),
		informersOf("metadata.name").Core().V1().Nodes().Informer(),
	} {
		f.informers = append(f.informers, informer)
		go informer.Run(stop)
	}
}

func (f *nodeFleet) synced() error {
	if slices.ContainsFunc(f.informers, func(i cache.SharedIndexInformer) bool { return !i.HasSynced() }) {
		return poll.ErrNotYet
	}
	return nil
}

// churn changes pods for the configured time, and returns once the agents have seen the last change.
func (f *nodeFleet) churn(t *testing.T) {
	t.Helper()
	tick := time.NewTicker(time.Second / time.Duration(f.perSecond))
	defer tick.Stop()
	for range f.seconds * f.perSecond {
		<-tick.C
		f.change(t)
	}
	f.awaitChanges(t, 1)
}

// awaitChanges waits until all agents have seen the last changes of as many pods.
func (f *nodeFleet) awaitChanges(t *testing.T, pods int) {
	t.Helper()
	poll.Until(t, "all agents have seen the last changes", func() error {
		seen := 0
		for _, informer := range f.informers {
			for n := range pods {
				of := f.changes - 1 - n
				object, exists, err := informer.GetStore().GetByKey(fmt.Sprintf("default/pod-%d", of%f.pods))
				if pod, ok := object.(*corev1.Pod); err == nil && exists && ok && pod.Annotations["n"] == fmt.Sprint(of) {
					seen++
				}
			}
		}
		if want := pods * f.agents; seen != want {
			return fmt.Errorf("%d of %d", seen, want)
		}
		return nil
	})
}

// replaceProxies replaces all proxies as rollouts do: the zone's replicas one by one behind their
// Service, then those of five nodes at a time, of which the old ones end first.
func (f *nodeFleet) replaceProxies(t *testing.T) {
	t.Helper()
	for i, old := range f.zone {
		f.zone[i] = f.startZoneProxy(t)
		f.zoneFront.Set(f.zone...)
		old.End(t)
	}
	for first := 0; first < f.nodes; first += 5 {
		few := f.proxies[first:min(first+5, f.nodes)]
		for _, old := range few {
			require.NoError(t, syscall.Kill(old.PID, syscall.SIGTERM))
		}
		for i, old := range few {
			old.End(t)
			few[i] = f.startNodeProxy(t, first+i)
			f.fronts[first+i].Set(few[i])
		}
		f.changeOn(t, first, len(few))
	}
}

// changeOn changes a pod of each of some nodes, and waits until the nodes' agents have seen it.
func (f *nodeFleet) changeOn(t *testing.T, first, nodes int) {
	t.Helper()
	// The pods of successive numbers are on successive nodes.
	f.changes += (first - f.changes%f.nodes + f.nodes) % f.nodes
	for range nodes {
		f.change(t)
	}
	f.awaitChanges(t, nodes)
}

// NodeFigures are the costs of one phase.
type NodeFigures struct {
	Setup, Phase             string
	Nodes, Pods, Agents      int
	UpstreamBytes            int64
	Lists, Watches           int
	Reviews, Others          int
	UpstreamSeconds          float64
	TierBytes                int64
	TierRequests             int
	TierSeconds, NodeSeconds float64
}

// nodeMeter takes the costs of one phase after the other.
type nodeMeter struct {
	fleet *nodeFleet
	setup string
	asked usage.Asked
	kinds map[string]int
	last  NodeFigures
}

func (f *nodeFleet) meter(t *testing.T, setup string) *nodeMeter {
	m := &nodeMeter{fleet: f, setup: setup}
	m.begin(t)
	return m
}

// begin begins a phase.
func (m *nodeMeter) begin(t *testing.T) {
	t.Helper()
	m.asked, m.last = m.read(t)
	m.kinds = usage.CountKinds(t, m.fleet.Upstream())
}

// read returns the sums until now. Proxies that have ended are not among them.
func (m *nodeMeter) read(t *testing.T) (usage.Asked, NodeFigures) {
	t.Helper()
	f := m.fleet
	now := NodeFigures{UpstreamBytes: f.counted.Sent.Load()}
	now.UpstreamSeconds = usage.ProcessorTime(t, f.Pids["apiserver-0"]).Seconds()
	if f.between != nil {
		now.TierBytes = f.between.Sent.Load()
	}
	for _, p := range f.zone {
		now.TierRequests += p.Sum(t, "watershed_requests_total", "")
		now.TierSeconds += usage.ProcessorTime(t, p.PID).Seconds()
	}
	for _, p := range f.proxies {
		now.NodeSeconds += usage.ProcessorTime(t, p.PID).Seconds()
	}
	return usage.CountAsked(t, f.Upstream()), now
}

// phase returns the costs since the last phase, and logs them.
func (m *nodeMeter) phase(t *testing.T, name string) NodeFigures {
	t.Helper()
	asked, now := m.read(t)
	by, f := asked.Minus(m.asked), m.fleet
	figures := NodeFigures{
		Setup: m.setup, Phase: name, Nodes: f.nodes, Pods: f.pods, Agents: f.agents,
		UpstreamBytes: now.UpstreamBytes - m.last.UpstreamBytes,
		Lists:         by.Lists, Watches: by.Watches, Reviews: by.Reviews, Others: by.Others,
		UpstreamSeconds: now.UpstreamSeconds - m.last.UpstreamSeconds,
		TierBytes:       now.TierBytes - m.last.TierBytes,
		TierRequests:    now.TierRequests - m.last.TierRequests,
		TierSeconds:     now.TierSeconds - m.last.TierSeconds,
		NodeSeconds:     now.NodeSeconds - m.last.NodeSeconds,
	}
	kinds := usage.CountKinds(t, f.Upstream())
	t.Logf("%s, %s: %v", m.setup, name, usage.Growth(m.kinds, kinds))
	m.asked, m.kinds, m.last = asked, kinds, now
	line := string(require.Value(json.Marshal(figures))(t))
	t.Log(line)
	if file := os.Getenv("NODE_FIGURES"); file != "" {
		out := require.Value(os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644))(t)
		defer out.Close()
		require.Value(out.WriteString(strings.TrimSpace(line) + "\n"))(t)
	}
	return figures
}
