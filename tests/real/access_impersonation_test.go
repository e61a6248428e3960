package real

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/faulty"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/parallel"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/rights"
	"watershed.test/real/internal/testbed"
)

// TestImpersonatedCallersGetUpstreamsAnswers impersonates users, groups, uids and extras, with
// and without the right to. In reads, writes and self reviews, the proxy answers or refuses as
// upstream does.
func TestImpersonatedCallersGetUpstreamsAnswers(t *testing.T) {
	ns := objects.Namespace(t)
	objects.Furnish(t, ns)
	ctx := context.Background()
	core := api.Clientset(t, testbed.Upstream).CoreV1()
	for _, name := range []string{"robot", "other"} {
		require.Value(core.ServiceAccounts(ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))(t)
	}
	r := rights.New(t, ns)
	all := []string{"*"}
	r.Role(ns, "local", rights.May("", []string{"configmaps"}, all))
	r.Bind(ns, "local", rights.User("local"), rights.Group("masons"), rights.Account(ns, "robot"))

	// The verb and the resources of the right to impersonate.
	as := []string{"impersonate"}
	r.Role("", "acting", rights.May("", []string{"users", "groups", "serviceaccounts"}, as),
		rights.May("authentication.k8s.io", []string{"userextras/scopes", "userextras/example.test/colour", "uids"}, as))
	r.Bind("", "acting", rights.User("acting"))
	r.Role("", "named", rights.May("", []string{"users"}, as, "local"), rights.May("", []string{"groups"}, as, "masons"))
	r.Bind("", "named", rights.User("named"))
	r.Role(ns, "owner", rights.May("", []string{"serviceaccounts"}, as, "robot"))
	r.Bind(ns, "owner", rights.User("owner"))
	r.Role("", "viewer", rights.May("", []string{"users"}, as), rights.May("authentication.k8s.io", []string{"uids"}, as, "1"),
		rights.May("authentication.k8s.io", []string{"userextras/scopes"}, as, "read"), rights.May("", []string{"configmaps"}, rights.ReadVerbs))
	r.Bind("", "viewer", rights.User("viewer"))

	robot := "system:serviceaccount:" + ns + ":robot"
	identities := []http.Header{
		{"Impersonate-User": {"local"}},
		{"Impersonate-User": {"nobody"}},
		{"Impersonate-User": {"admin"}},
		{"Impersonate-User": {"nobody"}, "Impersonate-Group": {"masons"}},
		{"Impersonate-User": {"local"}, "Impersonate-Group": {"strangers", "masons"}},
		{"Impersonate-User": {"nobody"}, "Impersonate-Group": {"system:masters"}},
		{"Impersonate-Group": {"masons"}},
		{"Impersonate-User": {"local"}, "Impersonate-Uid": {"1"}},
		{"Impersonate-User": {"local"}, "Impersonate-Uid": {"2"}},
		{"Impersonate-Uid": {"1"}},
		{"Impersonate-User": {"local"}, "Impersonate-Extra-Scopes": {"read"}},
		{"Impersonate-User": {"local"}, "Impersonate-Extra-Scopes": {"read", "write"}},
		{"Impersonate-User": {"local"}, "Impersonate-Extra-Example.test%2fcolour": {"green"}},
		{"Impersonate-Extra-Scopes": {"read"}},
		{"Impersonate-User": {robot}},
		{"Impersonate-User": {"system:serviceaccount:" + ns + ":other"}},
		{"Impersonate-User": {robot}, "Impersonate-Group": {"system:serviceaccounts"}},
		{"Impersonate-User": {"system:node:east"}, "Impersonate-Group": {"system:nodes"}},
		{"Impersonate-User": {"system:anonymous"}},
		{"Impersonate-User": {""}},
		{"Impersonate-User": {"local", "admin"}},
		{"Impersonate-Nothing": {"local"}},
		{"Impersonate-User": {"local"}, "Accept": {api.ProtobufType}},
	}
	here := "/api/v1/namespaces/" + ns + "/configmaps"
	const review = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
	reads := []api.Request{
		{Path: here + "?watch=1&timeoutSeconds=1&resourceVersion=0"},
		{Path: here + "?resourceVersion=0"},
		{Path: here},
		{Path: here + "/apple?resourceVersion=0"},
		{Path: here + "/apple"},
		{Path: "/api/v1/configmaps?resourceVersion=0&labelSelector=app%3Dapple"},
		{Path: "/api/v1/namespaces/" + ns + "/pods?resourceVersion=0"},
		{Path: "/api"},
	}
	writes := []api.Request{
		{Method: "POST", Path: review, Body: `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`},
		{Method: "POST", Path: here + "?dryRun=All", Body: api.JSON(objects.WithKind(objects.ConfigMap("new")))},
		{Method: "PATCH", Path: here + "/pear", ContentType: api.MergePatch, Body: `{"data":{"colour":"green"}}`},
		{Method: "DELETE", Path: here + "/quince?dryRun=All"},
	}
	users := []string{"", "acting", "named", "owner", "viewer", "local", "nobody", "-", "?"}

	for _, right := range []api.Request{
		{Path: here, User: "acting", Header: map[string]string{"Impersonate-User": "local"}},
		{Path: here, User: "named", Header: map[string]string{"Impersonate-User": "local"}},
		{Path: here, User: "owner", Header: map[string]string{"Impersonate-User": robot}},
		{Path: here, User: "viewer", Header: map[string]string{"Impersonate-User": "local"}},
		{Path: here, User: "viewer"}, {Path: here, User: "local"},
	} {
		for _, to := range testbed.Targets() {
			poll.Until(t, fmt.Sprintf("the right arrives %s: %v", to.Name, right), func() error {
				if a := to.Send(t, right); a.Status != 200 {
					return fmt.Errorf("%d %s", a.Status, a.Body)
				}
				return nil
			})
		}
	}

	var asked, told []api.Request
	for _, identity := range identities {
		for _, r := range reads {
			for _, r.User = range users {
				r.Repeated = identity
				asked = append(asked, r)
			}
		}
		for _, r := range writes {
			for _, r.User = range users {
				r.Repeated = identity
				told = append(told, r)
			}
		}
	}
	asked = append(asked, asThemselves(reads, users)...)
	found := compare.CompareAll(t, asked)
	var mutex sync.Mutex
	statuses := map[int]int{}
	parallel.ForEach(16, told, func(_ int, r api.Request) {
		want, got := testbed.Upstream.Send(t, r), testbed.Proxied.Send(t, r)
		mutex.Lock()
		defer mutex.Unlock()
		statuses[want.Status]++
		// A write's answer says when it was done, and protobuf says so in a form of its own.
		w, g := want.Comparable(nil), got.Comparable(nil)
		if r.Repeated.Get("Accept") != "" {
			w, g = fmt.Sprint(want.Status, want.Header["Content-Type"]), fmt.Sprint(got.Status, got.Header["Content-Type"])
		}
		if w != g {
			t.Errorf("%v\n%s", r, compare.Diff(w, g))
		}
	})
	t.Logf("%d reads and %d writes by %d users as %d others; statuses %v and %v", len(asked), len(told), len(users), len(identities), found.Statuses, statuses)
	for _, count := range []map[int]int{found.Statuses, statuses} {
		if count[200]+count[201] < 50 || count[403] < 50 || count[400] < 10 || count[401] < 10 {
			t.Errorf("too few answers of a kind: %v", count)
		}
	}

	// A proxy that answers for the caller instead would be found.
	plain := faulty.Start(t, testbed.Upstream, faulty.Fault{Name: "forgets whom one asks as", Header: func(h http.Header) {
		for name := range h {
			if strings.HasPrefix(name, "Impersonate-") {
				h.Del(name)
			}
		}
	}})
	for _, r := range []api.Request{
		{Path: here, User: "viewer", Repeated: http.Header{"Impersonate-User": {"nobody"}}},
		{Path: here + "?resourceVersion=0", User: "local", Repeated: http.Header{"Impersonate-User": {"admin"}}},
		{Path: here + "/apple", User: "acting", Repeated: http.Header{"Impersonate-User": {"local"}}},
		{Path: here + "/apple", User: "local", Repeated: http.Header{"Impersonate-Group": {"masons"}}},
	} {
		if v := (compare.Sides{Right: testbed.Upstream, Asked: plain}).Compare(r); v.Difference == "" {
			t.Errorf("%v: the comparison does not find that impersonation was dropped", r)
		}
	}
}

// asThemselves returns the same reads without impersonation: an answer for one must not serve
// the other.
func asThemselves(reads []api.Request, users []string) (all []api.Request) {
	for _, user := range users {
		for _, r := range reads {
			r.User = user
			all = append(all, r)
		}
	}
	return all
}
