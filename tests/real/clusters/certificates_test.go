package clusters

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/certificates"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

type shownAnswer struct {
	status int
	source string
	body   string
}

func ask(t *testing.T, client *http.Client, to api.Target, r api.Request) shownAnswer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), poll.Patience)
	defer cancel()
	var body io.Reader
	if r.Body != "" {
		body = strings.NewReader(r.Body)
	}
	req := require.Value(http.NewRequestWithContext(ctx, r.Verb(), to.URL+r.Path, body))(t)
	req.Header.Set("Content-Type", "application/json")
	for name, value := range r.Header {
		// Several values of one field become repeated fields.
		for _, one := range strings.Split(value, "|") {
			req.Header.Add(name, one)
		}
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatalf("%v %s: %v", r, to.Name, err)
	}
	defer resp.Body.Close()
	text := require.Value(io.ReadAll(resp.Body))(t)
	return shownAnswer{resp.StatusCode, resp.Header.Get("X-Watershed-Source"), string(text)}
}

// essenceOf removes what changes over time.
func essenceOf(r api.Request, body string) string {
	if r.Path == api.SelfReviewPath {
		return api.ReviewedUser(body)
	}
	if r.Method == "POST" && strings.Contains(body, `"creationTimestamp"`) {
		return "made"
	}
	var list struct {
		Kind     string
		Metadata map[string]any
		Items    []json.RawMessage
	}
	if json.Unmarshal([]byte(body), &list) == nil && strings.HasSuffix(list.Kind, "List") {
		return fmt.Sprintf("%s", list.Items)
	}
	return body
}

// webSocketToken returns a token as browsers present it.
func webSocketToken(token string) string {
	return "base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte(token))
}

// webSocket returns the headers with which a browser opens a WebSocket.
func webSocket(token string) map[string]string {
	return map[string]string{
		"Connection":             "Upgrade",
		"Upgrade":                "websocket",
		"Sec-WebSocket-Key":      "dGhlIHNhbXBsZSBub25jZQ==",
		"Sec-WebSocket-Version":  "13",
		"Sec-WebSocket-Protocol": "v4.channel.k8s.io, " + webSocketToken(token),
	}
}

// TestCertificateCallersKeepTheirIdentity compares callers with client certificates, and those
// for whom a front proxy speaks. Upstream sees the same identity with and without watershed: in
// cached reads, forwarded requests and upgrades.
func TestCertificateCallersKeepTheirIdentity(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy of its own")
	}
	dir := t.TempDir()
	clientCA, frontCA, strangers := certificates.NewSigner(t, dir, "clients"), certificates.NewSigner(t, dir, "front-proxies"), certificates.NewSigner(t, dir, "strangers")
	front := []string{
		"--requestheader-client-ca-file=" + frontCA.File,
		"--requestheader-allowed-names=front",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-uid-headers=X-Remote-Uid",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
	}
	args := []string{"--apiserver-arg=--client-ca-file=" + clientCA.File}
	for _, flag := range front {
		args = append(args, "--apiserver-arg="+flag)
	}
	c := require.Value(testbed.Start(args...))(t)
	t.Cleanup(c.Stop)
	up := c.Upstream()
	client := require.Value(kubernetes.NewForConfig(&rest.Config{Host: up.URL, BearerToken: c.AdminToken, TLSClientConfig: rest.TLSClientConfig{CAFile: up.CA}, QPS: -1}))(t)
	ctx := context.Background()
	grant := func(name string, rules []rbacv1.PolicyRule, subjects ...rbacv1.Subject) {
		t.Helper()
		require.Value(client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}, metav1.CreateOptions{}))(t)
		require.Value(client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}, Subjects: subjects}, metav1.CreateOptions{}))(t)
	}
	user := func(name string) rbacv1.Subject {
		return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}
	}
	group := func(name string) rbacv1.Subject {
		return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "Group", Name: name}
	}
	grant("impersonator", []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"users", "groups", "serviceaccounts"}, Verbs: []string{"impersonate"}},
		// Attributes are subresources of userextras, and RBAC has no wildcard for those alone.
		{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"*"}, Verbs: []string{"impersonate"}},
	}, user("watershed"))
	grant("reader", []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "watch"}}}, user("jane"), group("readers"))
	grant("writer", []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"create", "delete"}}}, user("jane"))
	grant("deputy", []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"users"}, ResourceNames: []string{"jane"}, Verbs: []string{"impersonate"}},
		{APIGroups: []string{""}, Resources: []string{"groups"}, ResourceNames: []string{"readers"}, Verbs: []string{"impersonate"}},
		{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"userextras/scopes"}, Verbs: []string{"impersonate"}},
		{APIGroups: []string{""}, Resources: []string{"serviceaccounts"}, Verbs: []string{"impersonate"}},
	}, user("deputy"))
	for _, name := range []string{"apple", "pear"} {
		require.Value(client.CoreV1().ConfigMaps("default").Create(ctx, objects.ConfigMap(name), metav1.CreateOptions{}))(t)
	}
	proxy := testbed.RunProxy(t, c.ProxyKubeconfig, append([]string{"--client-ca-file=" + clientCA.File}, front...)...)

	ended := certificates.Template("jane")
	ended.NotBefore, ended.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
	server := certificates.Template("jane")
	server.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	uid := certificates.Template("jane", "builders")
	uid.Subject.ExtraNames = []pkix.AttributeTypeAndValue{{Type: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2}, Value: "1234"}}
	anyPurpose, authority, policies := certificates.Template("jane"), certificates.Template("jane"), certificates.Template("jane")
	anyPurpose.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny}
	authority.IsCA, authority.BasicConstraintsValid = true, true
	unknown := certificates.Template("jane")
	policy := require.Value(asn1.Marshal([][]asn1.ObjectIdentifier{{{1, 2, 3, 4}}}))(t)
	policies.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 32}, Critical: true, Value: policy}}
	unknown.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3, 4}, Critical: true, Value: policy}}
	people := []struct {
		name        string
		certificate *tls.Certificate
		header      map[string]string
	}{
		{"of version 1", clientCA.FirstVersion(t, "jane"), nil},
		{"of version 1, of strangers", strangers.FirstVersion(t, "jane"), nil},
		{"of version 1, of strangers, with a token", strangers.FirstVersion(t, "jane"), map[string]string{"Authorization": "Bearer " + c.Tokens["alice"]}},
		{"for any purpose", clientCA.Person(t, anyPurpose), nil},
		{"an authority", clientCA.Person(t, authority), nil},
		{"with critical policies", clientCA.Person(t, policies), nil},
		{"with a critical extension that nobody knows", clientCA.Person(t, unknown), nil},
		{"with that, and a token", clientCA.Person(t, unknown), map[string]string{"Authorization": "Bearer " + c.Tokens["alice"]}},
		{"jane", clientCA.Person(t, certificates.Template("jane", "builders", "painters")), nil},
		{"jane with a unique id", clientCA.Person(t, uid), nil},
		{"a reader by group", clientCA.Person(t, certificates.Template("joe", "readers")), nil},
		{"nobody much", clientCA.Person(t, certificates.Template("nobody")), nil},
		{"a node", clientCA.Person(t, certificates.Template("system:node:n1", "system:nodes")), nil},
		{"a master", clientCA.Person(t, certificates.Template("root", "system:masters")), nil},
		{"a letter that is not ASCII", clientCA.Person(t, certificates.Template("jäne", "readers")), nil},
		{"no name", clientCA.Person(t, certificates.Template("")), nil},
		{"ended", clientCA.Person(t, ended), nil},
		{"for servers", clientCA.Person(t, server), nil},
		{"of strangers", strangers.Person(t, certificates.Template("jane")), nil},
		{"of strangers, with a token", strangers.Person(t, certificates.Template("jane")), map[string]string{"Authorization": "Bearer " + c.Tokens["alice"]}},
		{"of strangers, with a WebSocket's token", strangers.Person(t, certificates.Template("jane")), webSocket(c.Tokens["alice"])},
		{"of strangers, with a WebSocket's token alone", strangers.Person(t, certificates.Template("jane")), map[string]string{"Sec-WebSocket-Protocol": webSocketToken(c.Tokens["alice"])}},
		{"with another's token", clientCA.Person(t, certificates.Template("jane")), map[string]string{"Authorization": "Bearer " + c.Tokens["alice"]}},
		{"with a bad token", clientCA.Person(t, certificates.Template("jane")), map[string]string{"Authorization": "Bearer nobodys"}},
		{"claims to be a front proxy", clientCA.Person(t, certificates.Template("front")), map[string]string{"X-Remote-User": "root", "X-Remote-Group": "system:masters"}},
		{"a front proxy", frontCA.Person(t, certificates.Template("front")), map[string]string{"X-Remote-User": "jane", "X-Remote-Group": "a|readers", "X-Remote-Uid": "7", "X-Remote-Extra-Scopes.example.com%2Fview": "x|y"}},
		{"a front proxy for nobody", frontCA.Person(t, certificates.Template("front")), nil},
		{"a front proxy of another name", frontCA.Person(t, certificates.Template("back")), map[string]string{"X-Remote-User": "jane"}},
		{"a front proxy for anonymous", frontCA.Person(t, certificates.Template("front")), map[string]string{"X-Remote-User": "system:anonymous", "X-Remote-Group": "system:unauthenticated"}},
		{"no certificate, claims", nil, map[string]string{"X-Remote-User": "root", "X-Remote-Group": "system:masters"}},
		{"a deputy as jane", clientCA.Person(t, certificates.Template("deputy")), map[string]string{"Impersonate-User": "jane"}},
		{"a deputy as a reader", clientCA.Person(t, certificates.Template("deputy")), map[string]string{"Impersonate-User": "jane", "Impersonate-Group": "readers", "Impersonate-Extra-Scopes": "x|y"}},
		{"a deputy as a service account", clientCA.Person(t, certificates.Template("deputy")), map[string]string{"Impersonate-User": "system:serviceaccount:default:builder"}},
		{"a deputy as root", clientCA.Person(t, certificates.Template("deputy")), map[string]string{"Impersonate-User": "root"}},
		{"a deputy as a master", clientCA.Person(t, certificates.Template("deputy")), map[string]string{"Impersonate-User": "jane", "Impersonate-Group": "system:masters"}},
		{"a deputy with a unique id", clientCA.Person(t, certificates.Template("deputy")), map[string]string{"Impersonate-User": "jane", "Impersonate-Uid": "7"}},
		{"a deputy with more", clientCA.Person(t, certificates.Template("deputy")), map[string]string{"Impersonate-User": "jane", "Impersonate-Extra-Other": "x"}},
		{"a deputy as nobody", clientCA.Person(t, certificates.Template("deputy")), map[string]string{"Impersonate-Group": "readers"}},
	}
	requests := []api.Request{
		api.SelfReview,
		{Path: "/api/v1/namespaces/default/configmaps?resourceVersion=0"},
		{Path: "/api/v1/namespaces/default/configmaps"},
		{Path: "/api/v1/namespaces/default/configmaps/apple?resourceVersion=0"},
		{Path: "/api/v1/namespaces/default/configmaps/apple"},
		{Path: "/api/v1/pods?resourceVersion=0"},
		{Path: "/api/v1/nodes/n1?resourceVersion=0"},
		{Path: "/apis"},
		{Path: "/healthz"},
		{Method: "POST", Path: "/api/v1/namespaces/default/configmaps?dryRun=All", Body: api.JSON(objects.WithKind(objects.ConfigMap("new")))},
		{Method: "DELETE", Path: "/api/v1/namespaces/default/configmaps/pear?dryRun=All"},
		{Path: "/api/v1/namespaces/default/pods/none/log"},
		{Method: "POST", Path: "/api/v1/namespaces/default/pods/none/exec?command=true", Header: map[string]string{"Connection": "Upgrade", "Upgrade": "SPDY/3.1"}},
	}
	fromMemory := 0
	for _, person := range people {
		ours, theirs := certificates.Client(proxy.Target, person.certificate), certificates.Client(up, person.certificate)
		for _, r := range requests {
			client := []*http.Client{ours, theirs}
			if r.Header["Upgrade"] != "" {
				// Only HTTP/1.1 has upgrades.
				client = []*http.Client{certificates.OverHTTP1(proxy.Target, person.certificate), certificates.OverHTTP1(up, person.certificate)}
			}
			r.Header = merged(r.Header, person.header)
			got, wanted := ask(t, client[0], proxy.Target, r), ask(t, client[1], up, r)
			if got.status != wanted.status || essenceOf(r, got.body) != essenceOf(r, wanted.body) {
				t.Errorf("%s: %v\n  ours: %d %s\ntheirs: %d %s", person.name, r, got.status, got.body, wanted.status, wanted.body)
			}
			if got.source == "snapshot" {
				fromMemory++
			}
		}
	}
	// The proxy could act as this user in another group only, and says so.
	for _, r := range []api.Request{{Path: "/version"}, {Path: "/api/v1/namespaces/default/configmaps?resourceVersion=0"}} {
		for _, to := range []api.Target{proxy.Target, up} {
			client := certificates.Client(to, clientCA.Person(t, certificates.Template("system:anonymous")))
			if got := ask(t, client, to, r); got.status != 403 {
				t.Errorf("anonymous by a certificate: %v: %d %s", r, got.status, got.body)
			}
		}
	}
	if fromMemory < 15 {
		t.Errorf("only %d answers were from memory", fromMemory)
	}
}

// TestSystemMastersNeedTheFlag lets a front proxy, and a caller who impersonates, name the group
// that may do everything. Certificates that have it are accepted as they are.
func TestSystemMastersNeedTheFlag(t *testing.T) {
	if testbed.Direct {
		t.Skip("needs a proxy of its own")
	}
	t.Parallel()
	dir := t.TempDir()
	clients, fronts := certificates.NewSigner(t, dir, "clients"), certificates.NewSigner(t, dir, "front-proxies")
	c := require.Value(testbed.Start("--apiserver-arg=--client-ca-file=" + clients.File))(t)
	t.Cleanup(c.Stop)
	grantAll(t, c.Upstream(), map[string][]rbacv1.PolicyRule{"watershed": impersonating(), "deputy": impersonating()})
	flags := []string{"--client-ca-file=" + clients.File, "--requestheader-client-ca-file=" + fronts.File, "--requestheader-allowed-names=front"}
	for name, callers := range map[string]struct {
		certificate *tls.Certificate
		header      map[string]string
		refused     bool
	}{
		"a front proxy":                  {fronts.Person(t, certificates.Template("front")), map[string]string{"X-Remote-User": "root", "X-Remote-Group": "system:masters"}, true},
		"a front proxy for others":       {fronts.Person(t, certificates.Template("front")), map[string]string{"X-Remote-User": "deputy", "X-Remote-Group": "a"}, false},
		"a deputy as a master":           {clients.Person(t, certificates.Template("deputy")), map[string]string{"Impersonate-User": "root", "Impersonate-Group": "system:masters"}, true},
		"a certificate that has a group": {clients.Person(t, certificates.Template("root", "system:masters")), nil, false},
	} {
		for flag, refused := range map[string]bool{"": callers.refused, "--allow-system-masters": false} {
			all := flags
			if flag != "" {
				all = append(slices.Clone(flags), flag)
			}
			proxy := testbed.RunProxy(t, c.ProxyKubeconfig, all...)
			client := certificates.Client(proxy.Target, callers.certificate)
			r := api.Request{Path: "/version", Header: callers.header}
			got := ask(t, client, proxy.Target, r)
			if is := got.status == 403 && strings.Contains(got.body, "--allow-system-masters"); is != refused {
				t.Errorf("%s %s: %d %s", name, flag, got.status, got.body)
			}
		}
	}
}

func merged(all ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, one := range all {
		for name, value := range one {
			out[name] = value
		}
	}
	return out
}
