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

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/rights"
	"watershed.test/real/internal/testbed"
)

type finding struct{ Level, Subject, Message string }

// checked returns the findings of `watershed check`, and whether it succeeded.
func checked(t *testing.T, kubeconfig string, flags ...string) (ok bool, found []finding) {
	t.Helper()
	args := append([]string{"check", "-o", "json", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
		"--cert-dir", t.TempDir(), "--kubeconfig", kubeconfig}, flags...)
	command := exec.Command(require.Value(testbed.ProxyProgram())(t), args...)
	out, err := command.Output()
	if failed := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &failed) || failed.ExitCode() != 1) {
		t.Fatalf("%v: %s", err, out)
	}
	var report struct {
		OK       bool
		Findings []finding
	}
	require.NoError(t, json.Unmarshal(out, &report))
	if report.OK != (err == nil) {
		t.Errorf("it says %v and ends with %v", report.OK, err)
	}
	return report.OK, report.Findings
}

// says returns an error unless a finding of a level contains all words.
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

// TestCheckNamesMissingRights runs `watershed check`. It finds nothing wrong with the proxy's
// identity, and names what a ServiceAccount lacks until it has it.
func TestCheckNamesMissingRights(t *testing.T) {
	for _, kubeconfig := range []string{testbed.Shared.ProxyKubeconfig, testbed.Shared.CertKubeconfig} {
		ok, found := checked(t, kubeconfig)
		if !ok {
			t.Errorf("%s: %+v", kubeconfig, found)
		}
		require.NoError(t, says(found, "ok", testbed.Shared.Servers[0], "answers: v1."))
		require.NoError(t, says(found, "ok", "may ask who callers are"))
	}
	_, found := checked(t, testbed.Shared.CertKubeconfig)
	require.NoError(t, says(found, "ok", "the client certificate of", "valid until"))
	require.NoError(t, says(found, "ok", "may list and watch everything"))

	ns := objects.Namespace(t)
	ctx := context.Background()
	require.Value(api.Clientset(t, testbed.Upstream).CoreV1().ServiceAccounts(ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "poor"}}, metav1.CreateOptions{}))(t)
	name := rights.AccountToken(t, ns, "poor")
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	write := func(token string) {
		text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"a","contexts":[{"name":"a","context":{"cluster":"a","user":"a"}}],
"clusters":[{"name":"a","cluster":{"server":%q,"certificate-authority":%q}}],"users":[{"name":"a","user":{"token":%q}}]}`, testbed.Shared.Servers[0], testbed.Shared.CA, token)
		require.NoError(t, os.WriteFile(kubeconfig, []byte(text), 0o600))
	}

	write("nobody's")
	ok, found := checked(t, kubeconfig)
	if err := says(found, "error", "401", "--kubeconfig"); ok || err != nil {
		t.Error("an invalid token:", err)
	}

	write(testbed.Shared.Users.Of(name))
	ok, found = checked(t, kubeconfig)
	if ok {
		t.Error("an account without rights passes the check")
	}
	require.NoError(t, says(found, "ok", "knows the proxy as "+name))
	for _, words := range [][]string{{"tokenreviews", "system:auth-delegator"}, {"subjectaccessreviews", "system:auth-delegator"}} {
		require.NoError(t, says(found, "error", words...))
	}
	// Upstream lets every ServiceAccount read some types.
	require.NoError(t, says(found, "warning", "reads are forwarded", "configmaps"))

	granted := rights.New(t, ns)
	granted.Role("", "reads", rights.May("", []string{"pods", "services"}, []string{"list", "watch"}), rights.May("", []string{"nodes"}, []string{"list"}),
		rights.May("authentication.k8s.io", []string{"tokenreviews"}, []string{"create"}), rights.May("authorization.k8s.io", []string{"subjectaccessreviews"}, []string{"create"}))
	granted.Bind("", "reads", rights.Account(ns, "poor"))
	poll.Until(t, "the grant is known", func() error {
		ok, found = checked(t, kubeconfig)
		if !ok {
			return fmt.Errorf("%+v", found)
		}
		return nil
	})
	require.NoError(t, says(found, "warning", "clusterroles.rbac.authorization.k8s.io", "seconds only"))
	require.NoError(t, says(found, "warning", "customresourcedefinitions"))
	require.NoError(t, says(found, "warning", "reads are forwarded", "configmaps"))
	for _, f := range found {
		if strings.Contains(f.Message, "reads are forwarded") && (strings.Contains(f.Message, "pods,") || strings.Contains(f.Message, "services")) {
			t.Error("a right that it has is reported as missing:", f.Message)
		}
	}

	// A type that is not cached needs no right.
	config := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(config, []byte("cache: false\nresources: [{resource: pods, cache: true}]\n"), 0o600))
	_, found = checked(t, kubeconfig, "--config", config)
	require.NoError(t, says(found, "ok", "may list and watch what may be held (1 types"))

	// Tokens that are validated here are bound to accounts.
	_, found = checked(t, kubeconfig, "--validate-service-account-tokens-locally")
	for _, words := range []string{"may not list serviceaccounts", "may not watch serviceaccounts"} {
		require.NoError(t, says(found, "warning", words, "every token is reviewed"))
	}

	// Callers with certificates are impersonated.
	_, found = checked(t, kubeconfig, "--client-ca-file", testbed.Shared.CA)
	require.NoError(t, says(found, "warning", "may not impersonate", "--client-ca-file"))
	acts := func(extra string) {
		granted.Role("", "acts", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"users", "groups"}, Verbs: []string{"impersonate"}},
			rbacv1.PolicyRule{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"uids", extra}, Verbs: []string{"impersonate"}})
	}
	granted.Bind("", "acts", rights.Account(ns, "poor"))
	// No key of extra data is among these.
	acts("userextras")
	poll.Until(t, "the right is known, and what it lacks", func() error {
		_, found = checked(t, kubeconfig, "--client-ca-file", testbed.Shared.CA)
		return says(found, "warning", "may not impersonate all userextras/authentication.kubernetes.io/credential-id")
	})
	acts("userextras/authentication.kubernetes.io/credential-id")
	poll.Until(t, "the right to impersonate is known", func() error {
		_, found = checked(t, kubeconfig, "--client-ca-file", testbed.Shared.CA)
		return says(found, "ok", "may act as callers with certificates")
	})
}
