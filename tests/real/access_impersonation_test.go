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
)

// TestImpersonation: who asks as somebody else gets what upstream would give them,
// or its refusal, for each part of the other's identity and each right to take it
// on, in reads that could come from memory, in writes, and in what upstream itself
// says the identity is.
func TestImpersonation(t *testing.T) {
	ns := namespace(t)
	furnish(t, ns)
	ctx := context.Background()
	core := kubeClient(t, upstream).CoreV1()
	for _, name := range []string{"robot", "other"} {
		must(core.ServiceAccounts(ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))(t)
	}
	r := newRights(t, ns)
	all := []string{"*"}
	r.role(ns, "local", may("", []string{"configmaps"}, all))
	r.bind(ns, "local", user("local"), group("masons"), account(ns, "robot"))

	// The verb and the resources of the right to be another.
	as := []string{"impersonate"}
	r.role("", "acting", may("", []string{"users", "groups", "serviceaccounts"}, as),
		may("authentication.k8s.io", []string{"userextras/scopes", "userextras/example.test/colour", "uids"}, as))
	r.bind("", "acting", user("acting"))
	r.role("", "named", may("", []string{"users"}, as, "local"), may("", []string{"groups"}, as, "masons"))
	r.bind("", "named", user("named"))
	r.role(ns, "owner", may("", []string{"serviceaccounts"}, as, "robot"))
	r.bind(ns, "owner", user("owner"))
	r.role("", "viewer", may("", []string{"users"}, as), may("authentication.k8s.io", []string{"uids"}, as, "1"),
		may("authentication.k8s.io", []string{"userextras/scopes"}, as, "read"), may("", []string{"configmaps"}, readVerbs))
	r.bind("", "viewer", user("viewer"))

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
		{"Impersonate-User": {"local"}, "Accept": {protobufType}},
	}
	here := "/api/v1/namespaces/" + ns + "/configmaps"
	const review = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
	reads := []request{
		{path: here + "?watch=1&timeoutSeconds=1&resourceVersion=0"},
		{path: here + "?resourceVersion=0"},
		{path: here},
		{path: here + "/apple?resourceVersion=0"},
		{path: here + "/apple"},
		{path: "/api/v1/configmaps?resourceVersion=0&labelSelector=app%3Dapple"},
		{path: "/api/v1/namespaces/" + ns + "/pods?resourceVersion=0"},
		{path: "/api"},
	}
	writes := []request{
		{method: "POST", path: review, body: `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`},
		{method: "POST", path: here + "?dryRun=All", body: asJSON(withKind(configMap("new")))},
		{method: "PATCH", path: here + "/pear", contentType: mergePatch, body: `{"data":{"colour":"green"}}`},
		{method: "DELETE", path: here + "/quince?dryRun=All"},
	}
	users := []string{"", "acting", "named", "owner", "viewer", "local", "nobody", "-", "?"}

	for _, right := range []request{
		{path: here, user: "acting", header: map[string]string{"Impersonate-User": "local"}},
		{path: here, user: "named", header: map[string]string{"Impersonate-User": "local"}},
		{path: here, user: "owner", header: map[string]string{"Impersonate-User": robot}},
		{path: here, user: "viewer", header: map[string]string{"Impersonate-User": "local"}},
		{path: here, user: "viewer"}, {path: here, user: "local"},
	} {
		for _, to := range targets() {
			eventually(t, fmt.Sprintf("the right arrives %s: %v", to.name, right), func() error {
				if a := to.send(t, right); a.status != 200 {
					return fmt.Errorf("%d %s", a.status, a.body)
				}
				return nil
			})
		}
	}

	var asked, told []request
	for _, identity := range identities {
		for _, r := range reads {
			for _, r.user = range users {
				r.repeated = identity
				asked = append(asked, r)
			}
		}
		for _, r := range writes {
			for _, r.user = range users {
				r.repeated = identity
				told = append(told, r)
			}
		}
	}
	asked = append(asked, asThemselves(reads, users)...)
	found := sameFindings(t, asked)
	var mutex sync.Mutex
	statuses := map[int]int{}
	workers(16, told, func(_ int, r request) {
		want, got := upstream.send(t, r), proxied.send(t, r)
		mutex.Lock()
		defer mutex.Unlock()
		statuses[want.status]++
		// A write tells when it was done, and protobuf says so in its own way.
		w, g := want.comparable(nil), got.comparable(nil)
		if r.repeated.Get("Accept") != "" {
			w, g = fmt.Sprint(want.status, want.header["Content-Type"]), fmt.Sprint(got.status, got.header["Content-Type"])
		}
		if w != g {
			t.Errorf("%v\n%s", r, apart(w, g))
		}
	})
	t.Logf("%d reads and %d writes by %d users as %d others; statuses %v and %v", len(asked), len(told), len(users), len(identities), found.statuses, statuses)
	for _, count := range []map[int]int{found.statuses, statuses} {
		if count[200]+count[201] < 50 || count[403] < 50 || count[400] < 10 || count[401] < 10 {
			t.Errorf("too few answers of a kind: %v", count)
		}
	}

	// An answer to oneself would be found.
	plain := startFaulty(t, upstream, fault{name: "forgets whom one asks as", header: func(h http.Header) {
		for name := range h {
			if strings.HasPrefix(name, "Impersonate-") {
				h.Del(name)
			}
		}
	}})
	for _, r := range []request{
		{path: here, user: "viewer", repeated: http.Header{"Impersonate-User": {"nobody"}}},
		{path: here + "?resourceVersion=0", user: "local", repeated: http.Header{"Impersonate-User": {"admin"}}},
		{path: here + "/apple", user: "acting", repeated: http.Header{"Impersonate-User": {"local"}}},
		{path: here + "/apple", user: "local", repeated: http.Header{"Impersonate-Group": {"masons"}}},
	} {
		if v := (sides{upstream, plain}).compare(r); v.difference == "" {
			t.Errorf("%v: nobody notices that impersonation was dropped", r)
		}
	}
}

// asThemselves is the same asked as oneself: what is known of the one must not
// answer for the other.
func asThemselves(reads []request, users []string) (all []request) {
	for _, user := range users {
		for _, r := range reads {
			r.user = user
			all = append(all, r)
		}
	}
	return all
}
