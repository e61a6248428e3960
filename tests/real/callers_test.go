package real

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/child"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// letRead grants a subject to read the config maps of a namespace.
func letRead(t *testing.T, ns string, subject rbacv1.Subject) {
	t.Helper()
	ctx, rbac := context.Background(), api.Clientset(t, testbed.Upstream).RbacV1()
	require.Value(rbac.Roles(ns).Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "watch"}},
	}}, metav1.CreateOptions{}))(t)
	require.Value(rbac.RoleBindings(ns).Create(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects: []rbacv1.Subject{subject},
	}, metav1.CreateOptions{}))(t)
}

// letReadIssuer lets the proxy read what upstream publishes about the issuer of its tokens.
func letReadIssuer(t *testing.T, ns string) {
	t.Helper()
	ctx := context.Background()
	rbac := api.Clientset(t, testbed.Upstream).RbacV1()
	binding := require.Value(rbac.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: ns},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:service-account-issuer-discovery"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "watershed"}},
	}, metav1.CreateOptions{}))(t)
	t.Cleanup(func() { rbac.ClusterRoleBindings().Delete(ctx, binding.Name, metav1.DeleteOptions{}) })
}

// answered repeats a request until its answer has a status. Rights take a moment to arrive.
func answered(t *testing.T, to api.Target, status int, r api.Request) api.Answer {
	t.Helper()
	var a api.Answer
	poll.Until(t, fmt.Sprintf("%v is answered with %d", r, status), func() error {
		if a = to.Send(t, r); a.Status != status {
			return fmt.Errorf("%d %s", a.Status, a.Body)
		}
		return nil
	})
	return a
}

// TestTokensCountForTheirAudiencesOnly answers from memory for tokens whose audience is the
// proxy's, or upstream's own without a setting. Other tokens are refused.
func TestTokensCountForTheirAudiencesOnly(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy of its own")
	}
	ns := objects.Namespace(t)
	objects.Furnish(t, ns)
	ctx, core := context.Background(), api.Clientset(t, testbed.Upstream).CoreV1()
	require.Value(core.ServiceAccounts(ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "builder"}}, metav1.CreateOptions{}))(t)
	letRead(t, ns, rbacv1.Subject{Kind: "ServiceAccount", Namespace: ns, Name: "builder"})
	token := func(audiences ...string) map[string]string {
		t.Helper()
		made := require.Value(core.ServiceAccounts(ns).CreateToken(ctx, "builder", &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{Audiences: audiences}}, metav1.CreateOptions{}))(t)
		return map[string]string{"Authorization": "Bearer " + made.Status.Token}
	}
	const own, others = "https://watershed.test", "https://others.test"
	path := "/api/v1/namespaces/" + ns + "/configmaps?resourceVersion=0"
	choosy := testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig, "--api-audiences="+own)
	both := testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig, "--api-audiences="+own+",https://kubernetes.default.svc")
	plain := testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig)
	for _, c := range []struct {
		name      string
		audiences []string
		status    map[*testbed.Proxy]int
	}{
		{"the proxy", []string{own}, map[*testbed.Proxy]int{choosy: 200, both: 200, plain: 401}},
		{"upstream", nil, map[*testbed.Proxy]int{choosy: 401, both: 200, plain: 200}},
		{"others", []string{others}, map[*testbed.Proxy]int{choosy: 401, both: 401, plain: 401}},
		{"both", []string{own, others}, map[*testbed.Proxy]int{choosy: 200, both: 200, plain: 401}},
	} {
		header := token(c.audiences...)
		for proxy, status := range c.status {
			a := answered(t, proxy.Target, status, api.Request{Path: path, User: "-", Header: header})
			if source := a.Header.Get("X-Watershed-Source"); status == 200 && source != "snapshot" {
				t.Errorf("a token for %s is answered by %s", c.name, source)
			}
		}
	}
}

// TestAnonymousCallersAreServedIfAllowed answers callers without credentials from memory if the
// operator allows it, as upstream would.
func TestAnonymousCallersAreServedIfAllowed(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy of its own")
	}
	ns, closed := objects.Namespace(t), objects.Namespace(t)
	objects.Furnish(t, ns)
	letRead(t, ns, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:unauthenticated"})
	open := testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig, "--anonymous-auth")
	for path, status := range map[string]int{
		"/api/v1/namespaces/" + ns + "/configmaps?resourceVersion=0":           200,
		"/api/v1/namespaces/" + ns + "/configmaps/apple?resourceVersion=0":     200,
		"/api/v1/namespaces/" + closed + "/configmaps?resourceVersion=0":       403,
		"/api/v1/namespaces/" + ns + "/pods?watch=1&resourceVersion=0":         403,
		"/api/v1/namespaces/" + closed + "/configmaps/apple?resourceVersion=0": 403,
	} {
		r := api.Request{Path: path, User: "-"}
		wanted, got := answered(t, testbed.Upstream, status, r), answered(t, open.Target, status, r)
		if status == 403 && got.Body != wanted.Body {
			t.Errorf("%s\n  ours: %s\ntheirs: %s", path, got.Body, wanted.Body)
		}
		if source := got.Header.Get("X-Watershed-Source"); strings.HasPrefix(source, "forward") {
			t.Errorf("%s is answered by %s", path, source)
		}
		if source := answered(t, testbed.Proxied, status, r).Header.Get("X-Watershed-Source"); !strings.HasPrefix(source, "forward") {
			t.Errorf("without the flag, %s is answered by %s", path, source)
		}
	}
	// Neither an invalid token nor impersonation makes a caller anonymous.
	path := "/api/v1/namespaces/" + ns + "/configmaps?resourceVersion=0"
	answered(t, open.Target, 401, api.Request{Path: path, User: "?"})
	r := api.Request{Path: path, User: "-", Header: map[string]string{"Impersonate-User": "admin"}}
	if got, wanted := open.Send(t, r), testbed.Upstream.Send(t, r); got.Status != wanted.Status || got.Body != wanted.Body {
		t.Errorf("anonymous as admin: %d %s, and upstream %d %s", got.Status, got.Body, wanted.Status, wanted.Body)
	}
}

// TestSingleIdentityMakesEveryCallerTheProxy serves every caller as the proxy itself, whatever
// credentials it sends.
func TestSingleIdentityMakesEveryCallerTheProxy(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy of its own")
	}
	ns := objects.Namespace(t)
	objects.Furnish(t, ns)
	proxy := testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig, "--single-identity")
	here := "/api/v1/namespaces/" + ns
	for _, user := range []string{"", "-", "?", "alice"} {
		review := api.SelfReview
		review.User = user
		me := proxy.Send(t, review)
		if !strings.Contains(api.ReviewedUser(me.Body), `"username":"watershed"`) {
			t.Errorf("%q is %d %s", user, me.Status, me.Body)
		}
		a := proxy.Send(t, api.Request{Path: here + "/configmaps?resourceVersion=0", User: user})
		if source := a.Header.Get("X-Watershed-Source"); a.Status != 200 || source != "snapshot" {
			t.Errorf("%q reads %d by %s: %s", user, a.Status, source, a.Body)
		}
		// What the proxy may not do, nobody may.
		a = proxy.Send(t, api.Request{Method: "DELETE", Path: here + "/configmaps/apple", User: user})
		if a.Status != 403 || !strings.Contains(a.Body, `User \"watershed\" cannot delete`) {
			t.Errorf("%q deletes: %d %s", user, a.Status, a.Body)
		}
		// The proxy may not impersonate either.
		a = proxy.Send(t, api.Request{Path: here + "/configmaps?resourceVersion=0", User: user, Header: map[string]string{"Impersonate-User": "admin"}})
		if a.Status != 403 || !strings.Contains(a.Body, `User \"watershed\" cannot impersonate`) {
			t.Errorf("%q as admin: %d %s", user, a.Status, a.Body)
		}
	}
	// A proxy that does start would go on for ever.
	ctx, cancel := context.WithTimeout(t.Context(), poll.Patience)
	defer cancel()
	said, err := child.CombinedOutput(exec.CommandContext(ctx, require.Value(testbed.ProxyProgram())(t), "serve",
		"--kubeconfig", testbed.Shared.ProxyKubeconfig, "--single-identity", "--listen", "0.0.0.0:0", "--cert-dir", t.TempDir()))
	if err == nil || ctx.Err() != nil || !strings.Contains(string(said), "--single-identity") {
		t.Errorf("it serves a public address: %v %s", err, said)
	}
}

// startBuilder furnishes a namespace and makes a service account there, "builder", that may read its
// config maps. The proxy may read the issuer's documents. It returns the namespace and a token.
func startBuilder(t *testing.T) (ns, token string) {
	t.Helper()
	ns = objects.Namespace(t)
	objects.Furnish(t, ns)
	ctx, accounts := context.Background(), api.Clientset(t, testbed.Upstream).CoreV1().ServiceAccounts(ns)
	require.Value(accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "builder"}}, metav1.CreateOptions{}))(t)
	letRead(t, ns, rbacv1.Subject{Kind: "ServiceAccount", Namespace: ns, Name: "builder"})
	letReadIssuer(t, ns)
	made := require.Value(accounts.CreateToken(ctx, "builder", &authv1.TokenRequest{}, metav1.CreateOptions{}))(t)
	return ns, made.Status.Token
}

// TestTokensOfAnAccountAreReviewedAtOnce has many replicas of a program open watches, each with a
// token and a selector of its own. Upstream is asked about a few of them, and all end with the grant.
func TestTokensOfAnAccountAreReviewedAtOnce(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy of its own")
	}
	t.Parallel()
	const replicas = 20
	p := testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig)
	ns, token := startBuilder(t)
	ctx, accounts := t.Context(), api.Clientset(t, testbed.Upstream).CoreV1().ServiceAccounts(ns)
	request := func(token, query string) api.Request {
		path := "/api/v1/namespaces/" + ns + "/configmaps?resourceVersion=0" + query
		return api.Request{Path: path, User: "-", Header: map[string]string{"Authorization": "Bearer " + token}}
	}
	answered(t, p.Target, 200, request(token, ""))
	open := func() (watches []*api.Stream, asked int) {
		reviews := func() int {
			return p.ByLabel(t, "watershed_access_reviews_total", "kind")["subjectaccessreview"]
		}
		before := reviews()
		for i := range replicas {
			made := require.Value(accounts.CreateToken(ctx, "builder", &authv1.TokenRequest{}, metav1.CreateOptions{}))(t)
			watches = append(watches, p.Watch(t, request(made.Status.Token, fmt.Sprintf("&watch=1&labelSelector=replica%%3D%d", i))))
		}
		return watches, reviews() - before
	}
	var watches []*api.Stream
	// Other tests change RBAC meanwhile, which has some reviewed again.
	poll.Until(t, "few of the replicas are reviewed", func() error {
		more, asked := open()
		watches = append(watches, more...)
		if asked > replicas/2 {
			return fmt.Errorf("%d reviews for %d replicas", asked, replicas)
		}
		return nil
	})
	bindings := api.Clientset(t, testbed.Upstream).RbacV1().RoleBindings(ns)
	require.NoError(t, bindings.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	for _, w := range watches {
		if rest, err := w.Rest(t); err != nil || len(rest) > 0 {
			t.Errorf("a replica's watch ends with %v after %v", err, rest)
		}
	}
}

// TestServiceAccountTokensAreValidatedLocally shows that a service account's token is reviewed
// once. The proxy then validates it itself until the account is gone.
func TestServiceAccountTokensAreValidatedLocally(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy of its own")
	}
	t.Parallel()
	ns, token := startBuilder(t)
	r := api.Request{Path: "/api/v1/namespaces/" + ns + "/configmaps?resourceVersion=0", User: "-", Header: map[string]string{"Authorization": "Bearer " + token}}

	// Without a cache, every request needs a validation.
	const ttl = "--authentication-token-webhook-cache-ttl=0s"
	reviews := func(p *testbed.Proxy) int {
		return p.ByLabel(t, "watershed_access_reviews_total", "kind")["tokenreview"]
	}
	asked := map[string]int{}
	for name, flags := range map[string][]string{"here": {ttl, "--validate-service-account-tokens-locally"}, "upstream": {ttl}} {
		proxy := testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig, flags...)
		answered(t, proxy.Target, 200, r)
		// The service accounts are cached from here on.
		poll.Until(t, "the account is cached", func() error {
			before := reviews(proxy)
			answered(t, proxy.Target, 200, r)
			if name == "here" && reviews(proxy) > before {
				return fmt.Errorf("reviewed again")
			}
			return nil
		})
		before := reviews(proxy)
		for range 20 {
			answered(t, proxy.Target, 200, r)
		}
		asked[name] = reviews(proxy) - before
		if name == "here" {
			defer func() {
				require.NoError(t, api.Clientset(t, testbed.Upstream).CoreV1().ServiceAccounts(ns).Delete(context.Background(), "builder", metav1.DeleteOptions{}))
				answered(t, testbed.Upstream, 401, r)
				answered(t, proxy.Target, 401, r)
			}()
		}
	}
	if asked["here"] != 0 || asked["upstream"] < 20 {
		t.Errorf("reviews of 20 requests: %v", asked)
	}
}

// signedToken returns a token like another, with other claims, signed by the key of the shared
// cluster. Its header is changed after that, where a key's name is given.
func signedToken(t *testing.T, like string, claims map[string]any, key string) string {
	t.Helper()
	pemBytes := require.Value(os.ReadFile(filepath.Join(filepath.Dir(testbed.Shared.ProxyKubeconfig), "sa.key")))(t)
	block, _ := pem.Decode(pemBytes)
	private := require.Value(x509.ParsePKCS1PrivateKey(block.Bytes))(t)
	part := func(text string, changes map[string]any) string {
		values := map[string]any{}
		require.NoError(t, json.Unmarshal(require.Value(base64.RawURLEncoding.DecodeString(text))(t), &values))
		maps.Copy(values, changes)
		return base64.RawURLEncoding.EncodeToString([]byte(api.JSON(values)))
	}
	parts := strings.Split(like, ".")
	header := map[string]any{}
	if key != "" {
		header["kid"] = key
	}
	signed := part(parts[0], header) + "." + part(parts[1], claims)
	digest := sha256.Sum256([]byte(signed))
	signature := require.Value(rsa.SignPKCS1v15(rand.Reader, private, crypto.SHA256, digest[:]))(t)
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// TestInvalidServiceAccountTokensAreRefusedAsUpstreamDoes sends properly signed tokens that have
// expired, or that name another key, to both sides. The proxy refuses those that upstream refuses,
// and asks it about none of them.
func TestInvalidServiceAccountTokensAreRefusedAsUpstreamDoes(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy of its own")
	}
	t.Parallel()
	ns, token := startBuilder(t)
	with := func(token string) api.Request {
		return api.Request{Path: "/api/v1/namespaces/" + ns + "/configmaps?resourceVersion=0", User: "-", Header: map[string]string{"Authorization": "Bearer " + token}}
	}
	proxy := testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig, "--refuse-invalid-service-account-tokens")
	answered(t, proxy.Target, 200, with(token))
	// Reads of the issuer's documents are allowed a moment later.
	refused := func() map[string]int {
		return proxy.ByLabel(t, "watershed_tokens_refused_on_inspection_total", "reason")
	}
	expired := func(ago time.Duration) string {
		at := time.Now().Add(-ago).Unix()
		return signedToken(t, token, map[string]any{"iat": at - 3600, "nbf": at - 3600, "exp": at, "jti": fmt.Sprint(time.Now().UnixNano())}, "")
	}
	poll.Until(t, "an expired token is refused without a review", func() error {
		answered(t, proxy.Target, 401, with(expired(5*time.Minute)))
		if refused()["expired"] == 0 {
			return fmt.Errorf("it was reviewed")
		}
		return nil
	})
	before := refused()
	for name, c := range map[string]struct {
		token  string
		status int
		reason string
	}{
		"valid":                    {signedToken(t, token, nil, ""), 200, ""},
		"within upstream's leeway": {expired(20 * time.Second), 200, ""},
		"expired":                  {expired(5 * time.Minute), 401, "expired"},
		"of an unknown key":        {signedToken(t, token, nil, "another"), 401, "unknown-key"},
		"of another issuer":        {signedToken(t, token, map[string]any{"iss": "https://other.test", "exp": 1}, "another"), 401, ""},
		"with a bad signature":     {token + "AAAA", 401, ""},
	} {
		want, got := testbed.Upstream.Send(t, with(c.token)), proxy.Send(t, with(c.token))
		if want.Status != c.status || got.Status != c.status || got.Status == 401 && got.Body != want.Body {
			t.Errorf("a token %s: upstream says %d %s, the proxy %d %s", name, want.Status, want.Body, got.Status, got.Body)
		}
		after := refused()
		if c.reason != "" {
			before[c.reason]++
		}
		if !maps.Equal(before, after) {
			t.Errorf("a token %s: %v were refused without a review, not %v", name, after, before)
		}
	}
}
