package clusters

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"watershed.test/real/internal/child"
	"watershed.test/real/internal/fleet"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// endToEndProgram has Kubernetes' own end-to-end tests.
var endToEndProgram = filepath.Join(testbed.Programs, "e2e.test")

// endToEndTests are those that say something about the API, in groups that run side by side.
var endToEndTests = map[string]string{
	"machinery":   `sig-api-machinery\] (Servers|Watchers|CustomResource|OpenAPI|AggregatedDiscovery|Discovery|ServerSideApply|FieldValidation|client-go|Server request|server version)`,
	"controllers": `sig-auth|sig-api-machinery\] (Garbage|ResourceQuota|Namespaces|OrderedNamespace|ValidatingAdmissionPolicy|MutatingAdmissionPolicy|API priority|Generated|health|StorageVersionMigration)`,
	"types": `sig-instrumentation\] Events|API operations|ControllerRevision|Lease lease|PodTemplates|ConfigMap should (run through|fail)|Secrets should (patch|fail)|` +
		`Services should (complete|delete a collection|find a service)|EndpointSlice should (create and delete|support creating)|EndpointSliceMirroring|LimitRange|PriorityClass endpoints`,
	"kubectl": `api-versions|create quota|information for cronjob|kubectl diff|Kubectl validation|kubectl apply|kuberc|kubectl wait|server-side dry-run|cluster-info should`,
}

// endToEndSkipped are tests that need what this cluster has not, with or without a proxy.
var endToEndSkipped = strings.Join([]string{
	// Containers that really run, with their files, and what answers in them.
	`mount`, `InClusterConfig`, `NodeAuthenticator`, `IssuerDiscovery`, `set ownership`, `opting out`, `[Ww]ebhook`, `Aggregator`, `Aggregated APIServer`,
	`CustomResourceFieldSelectors`, `Projected PodCertificate`, `ClusterTrustBundle`, `multiple subsets`, `pod failure`, `by-node`, `cluster-info dump`,
	// An authorizer for nodes, the API server's own endpoints, a signer of certificates.
	`NodeAuthorizer`, `should have Endpoints`, `client with a CSR`,
	// Feature gates that are off, disturbances, and what Kubernetes itself calls flaky.
	`Alpha`, `OffByDefault`, `Disruptive`, `Flaky`, `StorageVersion resources`, `drowned out`, `etcd failure`,
}, "|")

// TestKubernetesEndToEnd runs Kubernetes' own end-to-end tests of the API, with them, the controller
// manager, the scheduler and simulated kubelets behind one proxy. API servers compact etcd here, as
// they do everywhere else: a test waits for it.
//
// `make test-e2e` builds what it needs. It takes a quarter of an hour.
func TestKubernetesEndToEnd(t *testing.T) {
	if _, err := os.Stat(endToEndProgram); err != nil || os.Getenv("E2E") == "" || !fleet.HasControlPlane() {
		t.Skip("needs Kubernetes' own tests: make test-e2e")
	}
	c := require.Value(testbed.Start("--apiserver-arg=--etcd-compaction-interval=5m0s"))(t)
	t.Cleanup(c.Stop)
	to := c.Upstream()
	if !testbed.Direct {
		p := testbed.StartProxyWithConfig(t, "", c.ProxyKubeconfig)
		p.Kubeconfig = fleet.WriteKubeconfig(t, p.Target)
		to = p.Target
		t.Cleanup(func() {
			all := countAnswers(t, p)
			t.Logf("answers: %s", answersText(all))
			reads, kept := shareOf(all, "get", "list", "watch")
			t.Logf("%d of %d reads from memory (%.1f %%)", kept, reads, percent(kept, reads))
		})
	}
	fleet.StartControlPlane(t, c, to.Kubeconfig)
	for _, node := range []string{"node-0", "node-1"} {
		fleet.StartNode(t, t.Context(), to.Config(), node)
	}
	t.Run("groups", func(t *testing.T) {
		for name, focus := range endToEndTests {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				endToEnd(t, to.Kubeconfig, focus)
			})
		}
	})
}

// endToEnd runs Kubernetes' tests whose names match, and reports those that failed.
func endToEnd(t *testing.T, kubeconfig, focus string) {
	command := exec.Command(endToEndProgram,
		"-test.timeout=60m", "-provider=skeleton", "-kubeconfig="+kubeconfig, "-kubectl-path="+filepath.Join(testbed.Programs, "kubectl"),
		"-minStartupPods=0", "-disable-log-dump", "-ginkgo.no-color", "-ginkgo.focus="+focus, "-ginkgo.skip="+endToEndSkipped)
	// They leave folders where they make them.
	command.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
	var output strings.Builder
	command.Stdout, command.Stderr = &output, &output
	require.NoError(t, child.Start(command))
	t.Cleanup(func() { command.Process.Kill() })
	err := command.Wait()
	text := output.String()
	for _, line := range summaryLine.FindAllString(text, -1) {
		t.Log(strings.TrimSpace(line))
	}
	if err == nil {
		return
	}
	for _, failure := range failureText.FindAllString(text, -1) {
		t.Log(failure)
	}
	t.Errorf("%v, after:\n%s", err, text[max(0, len(text)-4096):])
}

var (
	// summaryLine matches what Ginkgo prints at the end.
	summaryLine = regexp.MustCompile(`(?m)^(Ran |ok|FAIL!|SUCCESS!|\s+\[FAIL\]).*$`)
	// failureText matches what it prints of a test that failed.
	failureText = regexp.MustCompile(`(?ms)^\S \[FAILED\].*?^-{30}`)
)
