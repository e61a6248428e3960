package real

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// podsThatName returns pods of a node, each of which names another secret in its own way.
func podsThatName(node string) map[string]*corev1.Pod {
	pods := map[string]*corev1.Pod{}
	pod := func(secret string) *corev1.Pod {
		pods[secret] = objects.Pod("names-"+secret, node)
		return pods[secret]
	}
	volume := func(secret string, source corev1.VolumeSource) {
		pod(secret).Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}}
	}
	ref := func(secret string) corev1.LocalObjectReference {
		return corev1.LocalObjectReference{Name: secret}
	}
	variable := func(secret string) []corev1.EnvVar {
		return []corev1.EnvVar{{Name: "V", ValueFrom: &corev1.EnvVarSource{
			SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: ref(secret), Key: "k"}}}}
	}
	pull, env, initial, from, csi := "pull", "env", "init", "from", "csi"
	pod(pull).Spec.ImagePullSecrets = []corev1.LocalObjectReference{ref(pull)}
	pod(env).Spec.Containers[0].Env = variable(env)
	pod(initial).Spec.InitContainers = []corev1.Container{{Name: "first", Image: "example.test/main:1", Env: variable(initial)}}
	pod(from).Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: ref(from)}}}
	volume("volume", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "volume"}})
	volume("projected", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{Secret: &corev1.SecretProjection{LocalObjectReference: ref("projected")}}}}})
	inline := ref(csi)
	volume(csi, corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "example.test", NodePublishSecretRef: &inline}})
	return pods
}

// TestGrantsOfNodesRestOnTheirPods has the node authorizer grant secrets that pods name in all
// ways. The proxy finds the pod for each, needs no further reviews, and ends a watch with the
// last pod that names its secret.
func TestGrantsOfNodesRestOnTheirPods(t *testing.T) {
	t.Parallel()
	p := testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig, "--config", testbed.CacheEverything, "--node-grants", "follow-pods")
	ns, node := objects.Namespace(t), "system:node:east"
	ctx := context.Background()
	core := api.Clientset(t, testbed.Upstream).CoreV1()
	p.AwaitFollowedPods(t)
	path := func(secret string) string {
		return "/api/v1/namespaces/" + ns + "/secrets?resourceVersion=0&fieldSelector=metadata.name%3D" + secret
	}
	read := func(secret string) int { return p.Send(t, api.Request{Path: path(secret), User: node}).Status }
	kept := func() int {
		return p.ByLabel(t, "watershed_node_grants_total", "basis")["pod"]
	}

	pods := podsThatName("east")
	for secret, pod := range pods {
		data := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: secret}, StringData: map[string]string{"k": "v"}}
		require.Value(core.Secrets(ns).Create(ctx, data, metav1.CreateOptions{}))(t)
		if status := read(secret); status != 403 {
			t.Errorf("%s is not named yet: %d", secret, status)
		}
		require.Value(core.Pods(ns).Create(ctx, pod, metav1.CreateOptions{}))(t)
	}
	// A grant is reviewed once more if the proxy saw its pod after the review.
	poll.Until(t, "all secrets are granted, and all grants are kept", func() error {
		for secret := range pods {
			if status := read(secret); status != 200 {
				return fmt.Errorf("%s: %d", secret, status)
			}
		}
		if n := kept(); n < len(pods) {
			return fmt.Errorf("%d of %d grants are kept", n, len(pods))
		}
		return nil
	})

	// A second pod names the same secret as the first.
	second := objects.Pod("second", "east")
	second.Spec.ImagePullSecrets = pods["pull"].Spec.ImagePullSecrets
	require.Value(core.Pods(ns).Create(ctx, second, metav1.CreateOptions{}))(t)
	watch := p.Watch(t, api.Request{Path: path("pull") + "&watch=1", User: node})
	watch.Next(t)
	require.NoError(t, core.Pods(ns).Delete(ctx, pods["pull"].Name, metav1.DeleteOptions{}))
	secret := require.Value(core.Secrets(ns).Get(ctx, "pull", metav1.GetOptions{}))(t)
	secret.StringData = map[string]string{"k": "w"}
	require.Value(core.Secrets(ns).Update(ctx, secret, metav1.UpdateOptions{}))(t)
	if e := watch.Next(t); e.String() != "MODIFIED pull" {
		t.Errorf("the watch yields %s", e.Raw)
	}
	require.NoError(t, core.Pods(ns).Delete(ctx, "second", metav1.DeleteOptions{}))
	deleted := time.Now()
	if rest, err := watch.Rest(t); err != nil || len(rest) > 0 {
		t.Errorf("the watch ends with %v after %v", err, rest)
	}
	t.Logf("the watch ends %v after the last pod", time.Since(deleted))
	poll.Until(t, "the secret is refused", func() error {
		if status := read("pull"); status != 403 {
			return fmt.Errorf("%d", status)
		}
		return nil
	})
	if status := read("env"); status != 200 {
		t.Errorf("another secret: %d", status)
	}
}
