package clusters

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// auditPolicy has rules of most kinds. Both sides have to log the same requests in the same
// stages.
const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [Panic]
rules:
- level: None
  users: [bob]
  resources:
  - resources: [secrets]
- level: Metadata
  userGroups: [builders]
  verbs: [get]
  omitStages: [RequestReceived]
- level: None
  resources:
  - group: apps
    resources: ["daemonsets*", "daemonsets/*"]
  - resources: [configmaps]
    resourceNames: [pear]
- level: None
  nonResourceURLs: ["/apis*"]
- level: Metadata
  namespaces: [""]
  omitStages: [ResponseComplete]
- level: Metadata
`

// ofOneEvent matches what differs between events: times, and the durations of the parts of a
// slow request.
var ofOneEvent = []*regexp.Regexp{
	regexp.MustCompile(`"(?:requestReceivedTimestamp|stageTimestamp)":"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z)"`),
	regexp.MustCompile(`"apiserver\.latency\.k8s\.io/[^"]*":"([^"]*)",?`),
}

// auditEvents returns the events of a request as they are written, without what differs anyway.
func auditEvents(log, id string) ([]string, error) {
	text, err := os.ReadFile(log)
	if err != nil {
		return nil, err
	}
	var found []string
	for line := range strings.Lines(string(text)) {
		if !strings.HasSuffix(line, "\n") {
			// The last line is still being written.
			break
		}
		var event struct{ AuditID string }
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			return nil, fmt.Errorf("%s: %w in %q", log, err, line)
		}
		if event.AuditID != id {
			continue
		}
		line = strings.Replace(line, fmt.Sprintf(`"auditID":%q`, id), `"auditID":"…"`, 1)
		line = ofOneEvent[0].ReplaceAllString(line, `"time":"…"`)
		found = append(found, ofOneEvent[1].ReplaceAllString(line, ""))
	}
	return found, nil
}

// auditDifference compares events byte by byte.
func auditDifference(wanted, got []string) error {
	if len(wanted) != len(got) {
		return fmt.Errorf("upstream logs %d events:\n%s\nthe proxy %d:\n%s", len(wanted), strings.Join(wanted, ""), len(got), strings.Join(got, ""))
	}
	for i := range wanted {
		if wanted[i] != got[i] {
			return fmt.Errorf("upstream logs\n%sthe proxy\n%s", wanted[i], got[i])
		}
	}
	return nil
}

// TestAuditLogMatchesUpstream sends the same reads to an API server and to the proxy. Both log
// with the same policy, and their lines are compared.
func TestAuditLogMatchesUpstream(t *testing.T) {
	if testbed.Direct {
		t.Skip("there is only one audit log")
	}
	t.Parallel()
	dir := t.TempDir()
	policy, wantedLog, gotLog := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "upstream.log"), filepath.Join(dir, "proxy.log")
	require.NoError(t, os.WriteFile(policy, []byte(auditPolicy), 0o600))
	c := require.Value(testbed.StartWithProxy(
		"--apiserver-arg", "--audit-policy-file="+policy, "--apiserver-arg", "--audit-log-path="+wantedLog,
		"--proxy-arg", "--audit-policy-file="+policy, "--proxy-arg", "--audit-log-path="+gotLog,
	))(t)
	defer c.Stop()
	up, px := c.Upstream(), c.Proxied()

	ctx := context.Background()
	const ns = "audited"
	require.Value(api.Clientset(t, up).CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}))(t)
	for _, name := range []string{"apple", "pear"} {
		up.Must(t, api.Request{Method: "POST", Path: "/api/v1/namespaces/" + ns + "/configmaps", Body: api.JSON(objects.WithKind(objects.ConfigMap(name)))})
	}
	rbac := api.Clientset(t, up).RbacV1()
	require.Value(rbac.ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "audited"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps", "namespaces"}, Verbs: []string{"get", "list", "watch"}},
	}}, metav1.CreateOptions{}))(t)
	require.Value(rbac.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "audited"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "audited"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "bob"}},
	}, metav1.CreateOptions{}))(t)
	for _, to := range []api.Target{up, px} {
		poll.Until(t, "bob may read", func() error {
			for _, path := range []string{"/api/v1/configmaps", "/api/v1/namespaces/" + ns} {
				if a := to.Send(t, api.Request{Path: path + "?resourceVersion=0", User: "bob"}); a.Status != 200 {
					return fmt.Errorf("%d %s", a.Status, a.Body)
				}
			}
			return nil
		})
	}

	here := "/api/v1/namespaces/" + ns
	named := map[string]string{"User-Agent": `agent/1.0 (<&> "quoted" ` + "é\u2028\xff) " + strings.Repeat("x", 2000)}
	far := map[string]string{"X-Forwarded-For": "1.2.3.4, ::ffff:5.6.7.8, junk, 2001:DB8::1, 01.02.03.04", "X-Real-Ip": "9.9.9.9"}
	const protobuf = "application/vnd.kubernetes.protobuf"
	requests := []api.Request{
		{Path: here + "/configmaps?resourceVersion=0"},
		{Path: here + "/configmaps?resourceVersion=0&labelSelector=a%3Db&x=%3C'&limit=5", Header: named},
		{Path: here + "/configmaps?resourceVersion=0&fieldSelector=metadata.name%3Dapple", Header: far},
		{Path: here + "/configmaps?resourceVersion=0&fieldSelector=metadata.name%3Dpear"},
		{Path: here + "/configmaps/apple?resourceVersion=0", Accept: protobuf},
		{Path: here + "/configmaps/pear?resourceVersion=0"},
		{Path: here + "/configmaps/nobody?resourceVersion=0"},
		{Path: here + "/configmaps/nobody?resourceVersion=0", Accept: protobuf},
		{Path: here + "/configmaps/apple?resourceVersion=0", Accept: "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"},
		{Path: "/api/v1/configmaps?resourceVersion=0"},
		{Path: here + "/configmaps"},
		{Path: "/api/v1/namespaces?resourceVersion=0"},
		{Path: here + "?resourceVersion=0"},
		{Path: here + "/endpoints?resourceVersion=0"},
		{Path: here + "/endpoints/nobody?resourceVersion=0"},
		{Path: "/apis/apps/v1/deployments?resourceVersion=0"},
		{Path: "/apis/apps/v1/daemonsets?resourceVersion=0"},
		{Path: "/apis/rbac.authorization.k8s.io/v1/clusterroles/audited?resourceVersion=0"},
		{Path: "/version"},
		{Path: "/api/v1?timeout=32s"},
		{Path: "/apis/apps/v1"},
		{Path: here + "/configmaps?resourceVersion=0&watch=1&timeoutSeconds=1"},
		{Path: here + "/configmaps?resourceVersion=0&watch=1&timeoutSeconds=1&allowWatchBookmarks=true", Accept: protobuf},
		{Path: here + "/endpoints?resourceVersion=0&watch=1&timeoutSeconds=1"},
		{Path: "/api/v1/namespaces?resourceVersion=0&watch=1&timeoutSeconds=1"},
		{Path: here + "/secrets?resourceVersion=0&watch=1&timeoutSeconds=1"},
	}
	// Some requests are repeated by users who may see a part, or nothing.
	for _, user := range []string{"alice", "bob", "?"} {
		for _, path := range []string{
			here + "/configmaps?resourceVersion=0", here + "/configmaps/apple?resourceVersion=0", here + "/configmaps/nobody?resourceVersion=0",
			here + "/configmaps?resourceVersion=0&watch=1&timeoutSeconds=1", here + "/secrets?resourceVersion=0", here + "?resourceVersion=0",
			"/apis/apps/v1/deployments?resourceVersion=0", "/apis/apps/v1/namespaces/" + ns + "/deployments/x?resourceVersion=0", "/api/v1", "/apis",
		} {
			if user != "?" || strings.Contains(path, "resourceVersion") {
				requests = append(requests, api.Request{Path: path, User: user})
			}
		}
	}

	logged, differ := 0, []string(nil)
	// pairs holds the Audit-Ids of each request at both sides.
	var pairs [][2]string
	// compareEvents returns upstream's events of a pair, and how the proxy's differ.
	compareEvents := func(ids [2]string) (wanted []string, err error) {
		if wanted, err = auditEvents(wantedLog, ids[0]); err != nil {
			return nil, err
		}
		got, err := auditEvents(gotLog, ids[1])
		if err != nil {
			return nil, err
		}
		return wanted, auditDifference(wanted, got)
	}
	for i, r := range requests {
		headers := map[string]string{}
		maps.Copy(headers, r.Header)
		r.Header = headers
		var ids [2]string
		for j, to := range []api.Target{up, px} {
			attempt := 0
			poll.Until(t, "an answer from memory: "+r.Path+" "+r.User, func() error {
				// A forwarded request leaves another event.
				attempt++
				ids[j] = fmt.Sprintf("%s-%d-%d", to.Name, i, attempt)
				headers["Audit-Id"] = ids[j]
				a, err := to.Try(r)
				if err != nil {
					return err
				}
				if a.Header.Get("Audit-Id") != ids[j] {
					return fmt.Errorf("the client was told %q", a.Header.Get("Audit-Id"))
				}
				if source := a.Header.Get("X-Watershed-Source"); strings.HasPrefix(source, "forward") {
					return fmt.Errorf("%s", source)
				}
				return nil
			})
		}
		var wanted []string
		poll.Until(t, "the same events: "+r.Path+" "+r.User, func() error {
			var err error
			wanted, err = compareEvents(ids)
			return err
		})
		pairs = append(pairs, ids)
		logged += len(wanted)
		differ = append(differ, wanted...)
	}
	t.Logf("%d events of %d requests are equal", logged, len(requests))
	if logged < len(requests) {
		t.Errorf("only %d events were compared", logged)
	}

	// These clients go away.
	path := here + "/configmaps?resourceVersion=0&watch=1"
	var ids [2]string
	for j, to := range []api.Target{up, px} {
		ids[j] = "gone-" + to.Name
		cut, cancel := context.WithCancel(ctx)
		resp, err := to.Open(cut, api.Request{Path: path, Header: map[string]string{"Audit-Id": ids[j]}})
		if err == nil {
			_, err = io.ReadFull(resp.Body, make([]byte, 10))
			resp.Body.Close()
		}
		cancel()
		require.NoError(t, err)
	}
	poll.Until(t, "the same events of a client that goes away", func() error {
		wanted, err := compareEvents(ids)
		if err == nil && len(wanted) != 3 {
			err = poll.ErrNotYet
		}
		return err
	})
	pairs = append(pairs, ids)

	// Events of requests that upstream does not log would come later than the first look at them. What
	// is logged before this request's events is in both files now.
	var last [2]string
	for j, to := range []api.Target{up, px} {
		last[j] = "last-" + to.Name
		to.Must(t, api.Request{Path: here + "/configmaps?resourceVersion=0", Header: map[string]string{"Audit-Id": last[j]}})
	}
	poll.Until(t, "the events of the last request", func() error {
		wanted, err := compareEvents(last)
		if err == nil && len(wanted) == 0 {
			err = poll.ErrNotYet
		}
		return err
	})
	for _, ids := range pairs {
		if _, err := compareEvents(ids); err != nil {
			t.Errorf("after the last request, the events of %v: %v", ids, err)
		}
	}

	// This checks the comparison: it has to find a difference in every place of every event.
	for _, line := range differ {
		for _, planted := range []string{
			strings.Replace(line, `"level":"Metadata"`, `"level":"Request"`, 1),
			strings.Replace(line, `"sourceIPs":["`, `"sourceIPs":["1.1.1.1","`, 1),
			strings.Replace(line, `"userAgent":"`, `"userAgent":"x`, 1),
			strings.Replace(line, `\u0026`, `&`, 1) + " ",
			strings.Replace(line, `"stage":"Re`, `"stage":"re`, 1),
			strings.TrimSuffix(line, "}\n") + `,"x":1}` + "\n",
		} {
			if auditDifference([]string{line}, []string{planted}) == nil {
				t.Fatalf("the comparison finds no difference between\n%sand\n%s", line, planted)
			}
		}
	}
	if auditDifference(differ, differ[1:]) == nil {
		t.Error("a lost event is not found")
	}
}
