package real

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type finding struct{ Level, Subject, Message string }

// checked is what `watershed check` finds, and whether it is content.
func checked(t *testing.T, kubeconfig string, flags ...string) (ok bool, found []finding) {
	t.Helper()
	args := append([]string{"check", "-o", "json", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
		"--cert-dir", t.TempDir(), "--kubeconfig", kubeconfig}, flags...)
	command := exec.Command(must(watershed())(t), args...)
	out, err := command.Output()
	if failed := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &failed) || failed.ExitCode() != 1) {
		t.Fatalf("%v: %s", err, out)
	}
	var report struct {
		OK       bool
		Findings []finding
	}
	check(t, json.Unmarshal(out, &report))
	if report.OK != (err == nil) {
		t.Errorf("it says %v and ends with %v", report.OK, err)
	}
	return report.OK, report.Findings
}

// says is the first finding of a level that has all these words.
func says(found []finding, level string, words ...string) error {
next:
	for _, f := range found {
		if f.Level != level {
			continue
		}
		for _, word := range words {
			if !strings.Contains(f.Message, word) {
				continue next
			}
		}
		return nil
	}
	return fmt.Errorf("no %s says %q: %+v", level, words, found)
}

// TestCheck: `watershed check` finds nothing wrong with the identity that the
// proxy needs, and names what a ServiceAccount lacks, until it has it.
func TestCheck(t *testing.T) {
	for _, kubeconfig := range []string{shared.ProxyKubeconfig, shared.CertKubeconfig} {
		ok, found := checked(t, kubeconfig)
		if !ok {
			t.Errorf("%s: %+v", kubeconfig, found)
		}
		check(t, says(found, "ok", shared.Servers[0], "answers: v1."))
		check(t, says(found, "ok", "may ask who callers are"))
	}
	_, found := checked(t, shared.CertKubeconfig)
	check(t, says(found, "ok", "the client certificate of", "valid until"))
	check(t, says(found, "ok", "may list and watch everything"))

	ns := namespace(t)
	ctx := context.Background()
	must(kubeClient(t, upstream).CoreV1().ServiceAccounts(ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "poor"}}, metav1.CreateOptions{}))(t)
	name := accountToken(t, ns, "poor")
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	write := func(token string) {
		text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"a","contexts":[{"name":"a","context":{"cluster":"a","user":"a"}}],
"clusters":[{"name":"a","cluster":{"server":%q,"certificate-authority":%q}}],"users":[{"name":"a","user":{"token":%q}}]}`, shared.Servers[0], shared.CA, token)
		check(t, os.WriteFile(kubeconfig, []byte(text), 0o600))
	}

	write("nobody's")
	ok, found := checked(t, kubeconfig)
	if err := says(found, "error", "401", "--kubeconfig"); ok || err != nil {
		t.Error("a token that is none:", err)
	}

	write(shared.Tokens[name])
	ok, found = checked(t, kubeconfig)
	if ok {
		t.Error("it may nothing, and that is well")
	}
	check(t, says(found, "ok", "knows the proxy as "+name))
	for _, words := range [][]string{{"tokenreviews", "system:auth-delegator"}, {"subjectaccessreviews", "system:auth-delegator"}} {
		check(t, says(found, "error", words...))
	}
	// Upstream lets every ServiceAccount read some types.
	check(t, says(found, "warning", "reads are forwarded", "configmaps"))

	rights := newRights(t, ns)
	rights.role("", "reads", may("", []string{"pods", "services"}, []string{"list", "watch"}), may("", []string{"nodes"}, []string{"list"}),
		may("authentication.k8s.io", []string{"tokenreviews"}, []string{"create"}), may("authorization.k8s.io", []string{"subjectaccessreviews"}, []string{"create"}))
	rights.bind("", "reads", account(ns, "poor"))
	eventually(t, "the grant is known", func() error {
		ok, found = checked(t, kubeconfig)
		if !ok {
			return fmt.Errorf("%+v", found)
		}
		return nil
	})
	check(t, says(found, "warning", "clusterroles.rbac.authorization.k8s.io", "seconds only"))
	check(t, says(found, "warning", "customresourcedefinitions"))
	check(t, says(found, "warning", "reads are forwarded", "configmaps"))
	for _, f := range found {
		if strings.Contains(f.Message, "reads are forwarded") && (strings.Contains(f.Message, "pods,") || strings.Contains(f.Message, "services")) {
			t.Error("what it may read is told to be missing:", f.Message)
		}
	}

	// What is not to be held needs no right.
	config := filepath.Join(t.TempDir(), "config.yaml")
	check(t, os.WriteFile(config, []byte("cache: false\nresources: [{resource: pods, cache: true}]\n"), 0o600))
	_, found = checked(t, kubeconfig, "--config", config)
	check(t, says(found, "ok", "may list and watch what may be held (1 types"))

	// Callers with certificates are impersonated.
	_, found = checked(t, kubeconfig, "--client-ca-file", shared.CA)
	check(t, says(found, "warning", "may not impersonate", "--client-ca-file"))
	rights.role("", "acts", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"users", "groups"}, Verbs: []string{"impersonate"}},
		rbacv1.PolicyRule{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"*"}, Verbs: []string{"impersonate"}})
	rights.bind("", "acts", account(ns, "poor"))
	eventually(t, "the right to impersonate is known", func() error {
		_, found = checked(t, kubeconfig, "--client-ca-file", shared.CA)
		return says(found, "ok", "may act as callers with certificates")
	})
}
