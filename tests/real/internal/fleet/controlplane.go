package fleet

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/child"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// WriteKubeconfig writes a file for programs that are to reach the API there, and returns its path.
func WriteKubeconfig(t *testing.T, to api.Target) string {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["fleet"] = &clientcmdapi.Cluster{Server: to.URL, CertificateAuthority: to.CA}
	config.AuthInfos["fleet"] = &clientcmdapi.AuthInfo{Token: to.Tokens.Of("")}
	config.Contexts["fleet"] = &clientcmdapi.Context{Cluster: "fleet", AuthInfo: "fleet"}
	config.CurrentContext = "fleet"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*config, path))
	return path
}

// HasControlPlane reports whether the controller manager and the scheduler were built.
func HasControlPlane() bool {
	for _, program := range []string{"kube-controller-manager", "kube-scheduler"} {
		if _, err := os.Stat(filepath.Join(testbed.Programs, program)); err != nil {
			return false
		}
	}
	return true
}

// StartControlPlane runs Kubernetes' own controller manager and scheduler. Each controller has a
// service account, as kubeadm sets it up.
func StartControlPlane(t *testing.T, c *testbed.Cluster, kubeconfig string) {
	t.Helper()
	run := func(program string, args ...string) {
		log := require.Value(os.Create(filepath.Join(t.TempDir(), program+".log")))(t)
		command := exec.Command(filepath.Join(testbed.Programs, program), append(args, "--kubeconfig="+kubeconfig, "--leader-elect=true")...)
		command.Stdout, command.Stderr = log, log
		require.NoError(t, child.Start(command))
		t.Cleanup(func() {
			command.Process.Kill()
			command.Wait()
			log.Close()
			if t.Failed() {
				text, _ := os.ReadFile(log.Name())
				t.Logf("the end of the log of %s:\n%s", program, text[max(0, len(text)-4096):])
			}
		})
	}
	run("kube-controller-manager", "--secure-port=0", "--use-service-account-credentials=true",
		"--service-account-private-key-file="+filepath.Join(c.Dir, "sa.key"), "--root-ca-file="+c.CA)
	run("kube-scheduler", "--secure-port=0")
}

// StartOperators runs controllers that follow what most do, with client-go's default informers.
// Half of them take JSON.
func StartOperators(t *testing.T, ctx context.Context, config *rest.Config, count int) (synced func() bool) {
	t.Helper()
	var all []cache.SharedIndexInformer
	for i := range count {
		config := rest.CopyConfig(config)
		config.UserAgent = fmt.Sprint("operator-", i)
		if i%2 == 0 {
			config.ContentType, config.AcceptContentTypes = api.ProtobufType, api.ProtobufType
		}
		factory := informers.NewSharedInformerFactory(require.Value(kubernetes.NewForConfig(config))(t), 0)
		all = append(all,
			factory.Core().V1().Pods().Informer(), factory.Core().V1().Nodes().Informer(), factory.Core().V1().Namespaces().Informer(),
			factory.Core().V1().Services().Informer(), factory.Core().V1().ConfigMaps().Informer(),
			factory.Apps().V1().Deployments().Informer(), factory.Discovery().V1().EndpointSlices().Informer())
		factory.Start(ctx.Done())
	}
	return func() bool {
		for _, informer := range all {
			if !informer.HasSynced() {
				return false
			}
		}
		return true
	}
}
