package fleet

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/require"
)

// heartbeat is the interval of a kubelet's lease and status.
const heartbeat = 10 * time.Second

// Node does with the API what a kubelet does, without containers. It follows its node, its pods,
// services, CSI drivers, runtime classes and the config map that every pod mounts. It renews its
// lease, reports its status, and runs the pods that are bound to it.
type Node struct {
	name   string
	client kubernetes.Interface
	mutex  sync.Mutex
	// running has the names of the pods that are reported as running.
	running map[string]bool
	pods    cache.SharedIndexInformer
}

// StartNode registers a node, and follows what its kubelet would until the context ends.
func StartNode(t *testing.T, ctx context.Context, config *rest.Config, name string) *Node {
	t.Helper()
	config = rest.CopyConfig(config)
	config.ContentType, config.AcceptContentTypes = api.ProtobufType, api.ProtobufType
	config.UserAgent = "kubelet/simulated"
	n := &Node{name: name, client: require.Value(kubernetes.NewForConfig(config))(t), running: map[string]bool{}}
	room := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi")}
	require.Value(n.client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name}},
		Status:     corev1.NodeStatus{Capacity: room, Allocatable: room, Conditions: ready()},
	}, metav1.CreateOptions{}))(t)
	n.follow(ctx)
	go n.beat(ctx)
	return n
}

func ready() []corev1.NodeCondition {
	return []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: metav1.Now()}}
}

// follow opens the kubelet's watches.
func (n *Node) follow(ctx context.Context) {
	selected := func(selector fields.Selector, namespace string) informers.SharedInformerFactory {
		return informers.NewSharedInformerFactoryWithOptions(n.client, 0, informers.WithNamespace(namespace),
			informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = selector.String() }))
	}
	all := selected(fields.Everything(), "")
	n.pods = selected(fields.OneTermEqualSelector("spec.nodeName", n.name), "").Core().V1().Pods().Informer()
	run := func(object any) {
		if pod, ok := object.(*corev1.Pod); ok {
			go n.run(ctx, pod)
		}
	}
	n.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: run, UpdateFunc: func(_, object any) { run(object) }})
	mounted := fields.OneTermEqualSelector("metadata.name", "kube-root-ca.crt")
	for _, informer := range []cache.SharedIndexInformer{
		n.pods,
		selected(fields.OneTermEqualSelector("metadata.name", n.name), "").Core().V1().Nodes().Informer(),
		all.Core().V1().Services().Informer(),
		all.Storage().V1().CSIDrivers().Informer(),
		all.Node().V1().RuntimeClasses().Informer(),
		selected(mounted, "default").Core().V1().ConfigMaps().Informer(),
	} {
		go informer.Run(ctx.Done())
	}
}

// Synced reports whether the node has its pods.
func (n *Node) Synced() bool { return n.pods.HasSynced() }

// run reports a pod as running, or deletes one that terminates, as the kubelet's status manager
// does: with a get, then a write.
func (n *Node) run(ctx context.Context, pod *corev1.Pod) {
	n.mutex.Lock()
	key := fmt.Sprint(pod.UID, pod.DeletionTimestamp != nil)
	known := n.running[key]
	n.running[key] = true
	n.mutex.Unlock()
	if known {
		return
	}
	pods := n.client.CoreV1().Pods(pod.Namespace)
	if pod.DeletionTimestamp != nil {
		zero := int64(0)
		pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &zero})
		return
	}
	now, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return
	}
	now.Status.Phase = corev1.PodRunning
	now.Status.Conditions = append(now.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
	now.Status.PodIP, now.Status.PodIPs = "10.9.9.9", []corev1.PodIP{{IP: "10.9.9.9"}}
	started := metav1.Now()
	now.Status.StartTime = &started
	for _, c := range now.Spec.Containers {
		now.Status.ContainerStatuses = append(now.Status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image, Ready: true,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}}})
	}
	pods.UpdateStatus(ctx, now, metav1.UpdateOptions{})
	n.client.CoreV1().Events(pod.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: pod.Name + "."},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Reason:         "Started", Message: "Started container", Type: corev1.EventTypeNormal, FirstTimestamp: started, LastTimestamp: started, Count: 1,
		Source: corev1.EventSource{Component: "kubelet", Host: n.name},
	}, metav1.CreateOptions{})
}

// beat renews the lease and reports the status. The kubelet takes both from its own memory.
func (n *Node) beat(ctx context.Context) {
	leases := n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	seconds := int32(40)
	var lease *coordinationv1.Lease
	for ctx.Err() == nil {
		now := metav1.NowMicro()
		if lease == nil {
			var err error
			if lease, err = leases.Get(ctx, n.name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
				lease, _ = leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: n.name},
					Spec: coordinationv1.LeaseSpec{HolderIdentity: &n.name, LeaseDurationSeconds: &seconds, RenewTime: &now}}, metav1.CreateOptions{})
			}
		} else {
			lease.Spec.RenewTime = &now
			var err error
			if lease, err = leases.Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
				lease = nil
			}
		}
		patch := api.JSON(map[string]any{"status": map[string]any{"conditions": ready()}})
		n.client.CoreV1().Nodes().Patch(ctx, n.name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		select {
		case <-ctx.Done():
		case <-time.After(heartbeat):
		}
	}
}
