package real

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// tokenTests asks a proxy about tokens of an account, as another proxy does.
type tokenTests struct {
	proxy *testbed.Proxy
	ns    string
}

// forProxies is what a proxy accepts that asks another one.
const forProxies = "application/vnd.watershed.verdict+json;layout=1, application/json"

// review asks for the user of a token.
func (tests tokenTests) review(t *testing.T, to api.Target, token, accept string) authv1.TokenReviewStatus {
	t.Helper()
	review := authv1.TokenReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview"},
		Spec:     authv1.TokenReviewSpec{Token: token},
	}
	// Without the status of what has none yet.
	body := strings.Replace(api.JSON(review), `,"status":{"user":{}}`, "", 1)
	r := api.Request{Method: "POST", Path: "/apis/authentication.k8s.io/v1/tokenreviews", Body: body, Accept: accept, User: "watershed"}
	a := to.Send(t, r)
	if a.Status == 406 {
		// Only upstream can tell.
		r.Accept = "application/json"
		a = to.Send(t, r)
	}
	if a.Status != 201 && a.Status != 200 {
		t.Fatalf("%d to a review: %s", a.Status, a.Body)
	}
	var answer authv1.TokenReview
	require.NoError(t, json.Unmarshal([]byte(a.Body), &answer))
	return answer.Status
}

// reviews returns how many tokens the proxy has had reviewed.
func (tests tokenTests) reviews(t *testing.T) int {
	t.Helper()
	return tests.proxy.ByLabel(t, "watershed_access_reviews_total", "kind")["tokenreview"]
}

// token returns a new one of the account for these audiences, bound to an object.
func (tests tokenTests) token(t *testing.T, bound *authv1.BoundObjectReference, audiences ...string) string {
	t.Helper()
	accounts := api.Clientset(t, testbed.Upstream).CoreV1().ServiceAccounts(tests.ns)
	wanted := &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{BoundObjectRef: bound, Audiences: audiences}}
	return require.Value(accounts.CreateToken(t.Context(), "builder", wanted, metav1.CreateOptions{}))(t).Status.Token
}

// pod creates a pod of the account, and returns what binds a token to it.
func (tests tokenTests) pod(t *testing.T, name, node string) *authv1.BoundObjectReference {
	t.Helper()
	pod := objects.Pod(name, node)
	pod.Spec.ServiceAccountName = "builder"
	made := require.Value(api.Clientset(t, testbed.Upstream).CoreV1().Pods(tests.ns).Create(t.Context(), pod, metav1.CreateOptions{}))(t)
	return &authv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: name, UID: made.UID}
}

// node creates a node, and returns what binds a token to it.
func (tests tokenTests) node(t *testing.T, name string) *authv1.BoundObjectReference {
	t.Helper()
	nodes := api.Clientset(t, testbed.Upstream).CoreV1().Nodes()
	made := require.Value(nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))(t)
	t.Cleanup(func() { nodes.Delete(context.Background(), name, metav1.DeleteOptions{}) })
	return &authv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: made.UID}
}

// TestOneReviewTellsTheUsersOfAnAccountsTokens asks a proxy about many tokens of an account. Its answers are
// upstream's, and it asks upstream once for each kind of them.
func TestOneReviewTellsTheUsersOfAnAccountsTokens(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy of its own")
	}
	t.Parallel()
	ns, token := startBuilder(t)
	proxy := testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig, "--validate-service-account-tokens-locally")
	tests := tokenTests{proxy: proxy, ns: ns}
	node := ns + "-node"
	onNode := tests.node(t, node)
	for _, path := range []string{"/api/v1/pods", "/api/v1/nodes"} {
		answered(t, proxy.Target, 200, api.Request{Path: path + "?resourceVersion=0"})
	}
	poll.Until(t, "the account is cached", func() error {
		before := tests.reviews(t)
		tests.review(t, proxy.Target, token, forProxies)
		if reviews := tests.reviews(t) - before; reviews > 0 {
			return fmt.Errorf("%d reviews", reviews)
		}
		return nil
	})

	kinds := map[string]func(i int) string{
		"of the account":    func(int) string { return tests.token(t, nil) },
		"of pods":           func(i int) string { return tests.token(t, tests.pod(t, fmt.Sprint("pod-", i), "")) },
		"of pods on a node": func(i int) string { return tests.token(t, tests.pod(t, fmt.Sprint("placed-", i), node)) },
		"of a node":         func(int) string { return tests.token(t, onNode) },
	}
	for kind, next := range kinds {
		// The first is reviewed, and its objects arrive.
		var reviewed []int
		for i := range 5 {
			token := next(i)
			tests.accepted(t, token)
			tests.matches(t, kind, token)
			before := tests.reviews(t)
			tests.matches(t, kind, token)
			reviewed = append(reviewed, tests.reviews(t)-before)
		}
		if last := reviewed[len(reviewed)-1]; last != 0 {
			t.Errorf("tokens %s were reviewed: %v", kind, reviewed)
		}
	}
	t.Run("gone", tests.gone)
	t.Run("odd", tests.odd)
}

// TestNodesValidateTheTokensOfTheirPods asks a node's proxy about the tokens of pods. It holds those of its
// own node alone.
func TestNodesValidateTheTokensOfTheirPods(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy of its own")
	}
	t.Parallel()
	ns, _ := startBuilder(t)
	here, elsewhere := ns+"-here", ns+"-elsewhere"
	proxy := testbed.RunProxy(t, testbed.Shared.ProxyKubeconfig, "--validate-service-account-tokens-locally", "--node-name", here)
	tests := tokenTests{proxy: proxy, ns: ns}
	held := api.Request{Path: "/api/v1/pods?resourceVersion=0&fieldSelector=spec.nodeName%3D" + here}
	for _, node := range []string{here, elsewhere} {
		tests.node(t, node)
		var reviewed []int
		for i := range 3 {
			name := fmt.Sprint(node, "-", i)
			token := tests.token(t, tests.pod(t, name, node))
			tests.accepted(t, token)
			if node == here {
				poll.Until(t, "the proxy holds the pod", func() error {
					if !strings.Contains(answered(t, proxy.Target, 200, held).Body, name) {
						return poll.ErrNotYet
					}
					return nil
				})
			}
			before := tests.reviews(t)
			tests.matches(t, "of a pod of "+node, token)
			reviewed = append(reviewed, tests.reviews(t)-before)
		}
		// One review tells the users of all tokens whose pods are known.
		last := reviewed[len(reviewed)-1]
		if isReviewed := last > 0; isReviewed != (node == elsewhere) {
			t.Errorf("tokens of pods of %s were reviewed: %v", node, reviewed)
		}
	}
}

// accepted waits until upstream knows a token.
func (tests tokenTests) accepted(t *testing.T, token string) {
	t.Helper()
	poll.Until(t, "upstream knows the token", func() error {
		if !tests.review(t, testbed.Upstream, token, "application/json").Authenticated {
			return fmt.Errorf("it is refused")
		}
		return nil
	})
}

// matches compares the user of a token with upstream's word.
func (tests tokenTests) matches(t *testing.T, what, token string) {
	t.Helper()
	want := tests.review(t, testbed.Upstream, token, "application/json")
	got := tests.review(t, tests.proxy.Target, token, forProxies)
	if got.Authenticated != want.Authenticated || api.JSON(got.User) != api.JSON(want.User) {
		t.Errorf("a token %s: %s, and upstream says %s", what, api.JSON(got), api.JSON(want))
	}
}

// gone deletes the pod that a token is bound to: it ends, as at upstream.
func (tests tokenTests) gone(t *testing.T) {
	token := tests.token(t, tests.pod(t, "short-lived", ""))
	tests.matches(t, "of a pod", token)
	pods, now := api.Clientset(t, testbed.Upstream).CoreV1().Pods(tests.ns), int64(0)
	require.NoError(t, pods.Delete(t.Context(), "short-lived", metav1.DeleteOptions{GracePeriodSeconds: &now}))
	for name, to := range map[string]api.Target{"upstream": testbed.Upstream, "the proxy": tests.proxy.Target} {
		poll.Until(t, name+" refuses the token of a pod that is gone", func() error {
			if tests.review(t, to, token, forProxies).Authenticated {
				return fmt.Errorf("it is accepted")
			}
			return nil
		})
	}
}

// odd asks about tokens that upstream refuses or that no other token says anything about.
func (tests tokenTests) odd(t *testing.T) {
	valid := tests.token(t, nil)
	parts := strings.Split(valid, ".")
	for what, token := range map[string]string{
		"for another audience":               tests.token(t, nil, "https://vault.test"),
		"of a pod that is not there":         signedToken(t, valid, binding(t, valid, "pod", "none"), ""),
		"of another account":                 signedToken(t, valid, map[string]any{"sub": "system:serviceaccount:kube-system:default"}, ""),
		"of an unknown kind of object":       signedToken(t, valid, binding(t, valid, "moon", "none"), ""),
		"that has ended":                     signedToken(t, valid, map[string]any{"exp": 1}, ""),
		"that is not valid yet":              signedToken(t, valid, map[string]any{"nbf": 1 << 40}, ""),
		"of another issuer":                  signedToken(t, valid, map[string]any{"iss": "https://other.test"}, ""),
		"with another token's claims":        parts[0] + "." + strings.Split(tests.token(t, nil), ".")[1] + "." + parts[2],
		"without a signature":                parts[0] + "." + parts[1] + ".",
		"with a key that nobody has":         signedToken(t, valid, nil, "nobody"),
		"for several audiences":              tests.token(t, nil, "https://vault.test", "https://kubernetes.default.svc"),
		"without a name":                     signedToken(t, valid, map[string]any{"jti": ""}, ""),
		"of an earlier account of that name": signedToken(t, valid, binding(t, valid, "serviceaccount", "builder"), ""),
	} {
		for range 2 {
			tests.matches(t, what, token)
		}
	}
}

// binding returns what binds a token, with one more object.
func binding(t *testing.T, token, kind, name string) map[string]any {
	t.Helper()
	payload := require.Value(base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1]))(t)
	var claims map[string]any
	require.NoError(t, json.Unmarshal(payload, &claims))
	bound := claims["kubernetes.io"].(map[string]any)
	bound[kind] = map[string]any{"name": name, "uid": "none"}
	return map[string]any{"kubernetes.io": bound}
}
