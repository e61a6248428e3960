package clusters

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/certificates"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// auditedCluster is a cluster whose API server and proxy log the same, and know users by
// certificate and by token.
type auditedCluster struct {
	*testbed.Cluster
	wantedLog, gotLog string
	signer            *certificates.Signer
}

func startAudited(t *testing.T, args ...string) auditedCluster {
	t.Helper()
	dir := t.TempDir()
	policy := filepath.Join(dir, "policy.yaml")
	rules := "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n"
	require.NoError(t, os.WriteFile(policy, []byte(rules), 0o600))
	c := auditedCluster{wantedLog: filepath.Join(dir, "upstream.log"), gotLog: filepath.Join(dir, "proxy.log"), signer: certificates.NewSigner(t, dir, "clients")}
	for side, log := range map[string]string{"--apiserver-arg": c.wantedLog, "--proxy-arg": c.gotLog} {
		for _, flag := range []string{"--audit-policy-file=" + policy, "--audit-log-path=" + log, "--client-ca-file=" + c.signer.File} {
			args = append(args, side, flag)
		}
	}
	c.Cluster = require.Value(testbed.StartWithProxy(args...))(t)
	t.Cleanup(c.Stop)
	return c
}

// impersonating returns rules that allow to act as users, groups, and with attributes.
func impersonating() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"users", "groups", "serviceaccounts"}, Verbs: []string{"impersonate"}},
		{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"*"}, Verbs: []string{"impersonate"}},
	}
}

// TestAuditLikeUpstream compares the events of callers who act as other users: allowed and
// denied, by certificate and by token, from memory and forwarded.
func TestAuditLikeUpstream(t *testing.T) {
	if testbed.Direct {
		t.Skip("there is only one audit log")
	}
	t.Parallel()
	c := startAudited(t)
	up, px := c.Upstream(), c.Proxied()
	acting := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"users", "groups"}, ResourceNames: []string{"jane", "builders"}, Verbs: []string{"impersonate"}},
		{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"userextras/scopes", "uids"}, Verbs: []string{"impersonate"}},
		{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"users"}, ResourceNames: []string{"kate"}, Verbs: []string{"impersonate:user-info"}},
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"impersonate-on:user-info:list"}},
	}
	reading := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "watch", "create"}}}
	grantAll(t, up, map[string][]rbacv1.PolicyRule{"watershed": impersonating(), "deputy": acting, "bob": acting, "jane": reading, "kate": reading})

	deputy := c.signer.Person(t, certificates.Template("deputy", "deputies"))
	const here = "/api/v1/namespaces/default/configmaps"
	as := func(path string, identity http.Header) api.Request {
		return api.Request{Path: path, Repeated: identity}
	}
	jane := http.Header{"Impersonate-User": {"jane"}}
	more := http.Header{"Impersonate-User": {"jane"}, "Impersonate-Group": {"builders"}, "Impersonate-Uid": {"7"}, "Impersonate-Extra-Scopes": {"x", "y"}}
	root := http.Header{"Impersonate-User": {"root"}}
	kate := http.Header{"Impersonate-User": {"kate"}}
	memory := []api.Request{
		as(here+"?resourceVersion=0", jane),
		as(here+"?resourceVersion=0", more),
		as(here+"/nobody?resourceVersion=0", jane),
		as(here+"?resourceVersion=0&watch=1&timeoutSeconds=1", jane),
		as("/api/v1/pods?resourceVersion=0", jane),
		as(here+"?resourceVersion=0", kate),
		as(here+"/nobody?resourceVersion=0", kate),
		as(here+"?resourceVersion=0", root),
		as("/api/v1/pods?resourceVersion=0&watch=1&timeoutSeconds=1", root),
		as(here+"?resourceVersion=0", nil),
	}
	forwarded := []api.Request{
		as("/healthz", jane),
		as("/version", jane),
		as("/api/v1/namespaces/default/pods/none/log", jane),
		{Method: "POST", Path: here + "?dryRun=All", Body: api.JSON(objects.WithKind(objects.ConfigMap("new"))), Repeated: jane},
	}

	byCertificate := func(to api.Target, certificate *tls.Certificate) func(api.Request) api.Request {
		client := certificates.Client(to, certificate)
		return func(r api.Request) api.Request {
			r.User, r.Via = "-", client
			return r
		}
	}
	direct, through := byCertificate(up, deputy), byCertificate(px, deputy)
	for i, r := range memory {
		var ids [2]string
		ids[0] = c.answered(t, fmt.Sprint("certificate-upstream-", i), up, direct(r), false)
		ids[1] = c.answered(t, fmt.Sprint("certificate-proxied-", i), px, through(r), true)
		c.sameEvents(t, r, ids, c.gotLog, func(event string) string { return event })
	}
	for i, r := range forwarded {
		var ids [2]string
		ids[0] = c.answered(t, fmt.Sprint("forward-upstream-", i), up, direct(r), false)
		ids[1] = c.answered(t, fmt.Sprint("forward-proxied-", i), px, through(r), false)
		// The answer's body and the verdict are not known to the proxy.
		c.sameEvents(t, r, ids, c.gotLog, usersOf)
	}
	// Most clients send no id. Both logs then have the one that the client is told.
	id := px.Must(t, through(forwarded[0])).Header.Get("Audit-Id")
	for _, log := range []string{c.gotLog, c.wantedLog} {
		poll.Until(t, "an event of "+id+" in "+log, func() error {
			events, err := auditEvents(log, id)
			if err == nil && len(events) == 0 {
				err = poll.ErrNotYet
			}
			return err
		})
	}
	// With a token, upstream itself judges who may act as whom, and logs it.
	for i, r := range slices.Concat(memory, forwarded) {
		r.User = "bob"
		var ids [2]string
		ids[0] = c.answered(t, fmt.Sprint("token-upstream-", i), up, r, false)
		ids[1] = c.answered(t, fmt.Sprint("token-proxied-", i), px, r, false)
		log := c.wantedLog
		if r.Repeated == nil {
			// Answered from memory.
			log = c.gotLog
		}
		// Several bindings allow some of these, and upstream names any of them.
		c.sameEvents(t, r, ids, log, func(event string) string { return grantReason.ReplaceAllString(event, "") })
		if log == c.wantedLog {
			if here := require.Value(auditEvents(c.gotLog, ids[1]))(t); len(here) > 0 {
				t.Errorf("%v is in both logs:\n%s", r, here)
			}
		}
	}
}

// answered sends a request until it is answered as wanted, and returns the audit id of that
// answer.
func (c auditedCluster) answered(t *testing.T, name string, to api.Target, r api.Request, fromMemory bool) string {
	t.Helper()
	var id string
	attempt := 0
	poll.Until(t, fmt.Sprintf("an answer of %s: %v", to.Name, r), func() error {
		attempt++
		id = fmt.Sprintf("%s-%d", name, attempt)
		r.Header = map[string]string{"Audit-Id": id}
		a, err := to.Try(r)
		if err != nil {
			return err
		}
		if a.Status >= 500 {
			return fmt.Errorf("%d %s", a.Status, a.Body)
		}
		if source := a.Header.Get("X-Watershed-Source"); fromMemory && strings.HasPrefix(source, "forward") {
			return errors.New(source)
		}
		return nil
	})
	return id
}

// sameEvents waits until a log has the events that upstream writes of the same request.
func (c auditedCluster) sameEvents(t *testing.T, r api.Request, ids [2]string, log string, shown func(string) string) {
	t.Helper()
	poll.Until(t, fmt.Sprintf("the same events: %v", r), func() error {
		wanted, err := auditEvents(c.wantedLog, ids[0])
		if err != nil {
			return err
		}
		got, err := auditEvents(log, ids[1])
		if err != nil {
			return err
		}
		if len(wanted) == 0 {
			return poll.ErrNotYet
		}
		for _, events := range [][]string{wanted, got} {
			for i := range events {
				events[i] = shown(events[i])
			}
		}
		return auditDifference(wanted, got)
	})
}

var grantReason = regexp.MustCompile(`"authorization\.k8s\.io/reason":"(?:[^"\\]|\\.)*"`)

// usersOf returns who did what, and the code of the answer.
func usersOf(event string) string {
	var e struct {
		Stage, Verb, RequestURI string
		User, ImpersonatedUser  json.RawMessage
		ResponseStatus          struct{ Code int }
	}
	if err := json.Unmarshal([]byte(event), &e); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s %s %s %s %s %d\n", e.Stage, e.Verb, e.RequestURI, e.User, e.ImpersonatedUser, e.ResponseStatus.Code)
}
