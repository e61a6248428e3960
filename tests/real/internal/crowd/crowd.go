// Package crowd has users with different rights read the same objects at the same time, and
// finds who saw too much.
package crowd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/parallel"
	"watershed.test/real/internal/poll"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/rights"
	"watershed.test/real/internal/testbed"
)

// FewestReads is the least number of answers that are checked, besides those of watches.
const FewestReads = 10_000

// Crowd is a set of users with different rights who read the same at the same time. Each object
// contains a random mark, which shows who saw it.
type Crowd struct {
	t         *testing.T
	red, blue string
	rights    rights.Rights
	// marks says what each mark stands for: an object, or a type that only documents show.
	marks     map[string]string
	questions []api.Request
	// Steady are the users whose rights stay; flipping is the one whose rights change.
	Steady   []string
	flipping string
	// expected holds upstream's answers to each user before the load. Those of the flipping
	// user are with rights.
	expected map[string][]seenMarks
}

// seenMarks holds what an answer reveals.
type seenMarks struct {
	status int
	marks  map[string]bool
}

// New creates the objects and the users' rights.
func New(t *testing.T) *Crowd {
	t.Helper()
	c := &Crowd{t: t, red: objects.Namespace(t), blue: objects.Namespace(t), marks: map[string]string{}, expected: map[string][]seenMarks{}, flipping: "acting",
		Steady: []string{"local", "auditor", "viewer", "named", "nobody", "-", "?", "system:node:east"}}
	c.rights = rights.New(t, c.red)
	mark := func(of string) string {
		// Group names are in lower case.
		m := strings.ToLower(rand.Text())
		c.marks[m] = of
		return m
	}
	ctx := context.Background()
	core := api.Clientset(t, testbed.Upstream).CoreV1()
	for _, ns := range []string{c.red, c.blue} {
		for _, name := range []string{"apple", "pear"} {
			cm := objects.ConfigMap(name, "mark", mark(ns+"/configmaps/"+name))
			cm.Annotations = map[string]string{"mark": cm.Data["mark"]}
			require.Value(core.ConfigMaps(ns).Create(ctx, cm, metav1.CreateOptions{}))(t)
			secret := &corev1.Secret{ObjectMeta: objects.ConfigMap(name).ObjectMeta}
			secret.Annotations = map[string]string{"mark": mark(ns + "/secrets/" + name)}
			require.Value(core.Secrets(ns).Create(ctx, secret, metav1.CreateOptions{}))(t)
			node := map[string]string{"apple": "east", "pear": "west"}[name]
			p := objects.Pod(name, node)
			p.Annotations = map[string]string{"mark": mark(ns + "/pods/" + name)}
			if ns == c.red {
				p.Spec.Volumes = []corev1.Volume{{Name: "c", VolumeSource: corev1.VolumeSource{
					ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}}}
			}
			require.Value(core.Pods(ns).Create(ctx, p, metav1.CreateOptions{}))(t)
		}
		require.Value(core.ConfigMaps(ns).Create(ctx, objects.ConfigMap("tick"), metav1.CreateOptions{}))(t)
	}
	w := objects.Widget{Group: mark("type") + ".example.test", Plural: "widgets"}
	w.Define(t, testbed.Upstream)
	w.AwaitServed(t, testbed.Proxied)

	r := c.rights
	all := rights.May("", []string{"configmaps", "pods", "secrets"}, rights.ReadVerbs)
	r.Role(c.red, "local", all)
	r.Bind(c.red, "local", rights.User("local"))
	r.Role(c.blue, "auditor", all)
	r.Bind(c.blue, "auditor", rights.Group("auditors"))
	r.Role("", "viewer", all)
	r.Bind("", "viewer", rights.User("viewer"))
	r.Role(c.red, "named", rights.May("", []string{"configmaps", "pods"}, rights.ReadVerbs, "apple"))
	r.Bind(c.red, "named", rights.User("named"))
	r.BindTo(c.red, "acting", "Role", rights.User("acting"))
	r.Role(c.red, "acting", all)

	for _, plural := range []string{"configmaps", "pods", "secrets"} {
		here := "/api/v1/namespaces/" + c.red + "/" + plural
		there := "/api/v1/namespaces/" + c.blue + "/" + plural
		version := compare.SettleNewest(t, here)
		page, _, _ := api.ParseList("application/json", testbed.Upstream.Must(t, api.Request{Path: fmt.Sprintf("%s?limit=1&resourceVersion=%d", here, version)}).Body)
		for _, path := range []string{
			here + "/apple", here + "/apple?resourceVersion=0", here + "/pear", here + "/pear?resourceVersion=0", there + "/apple", there + "/pear?resourceVersion=0",
			here, here + "?resourceVersion=0", there, there + "?resourceVersion=0",
			here + "?limit=1", fmt.Sprintf("%s?limit=1&resourceVersion=%d", here, version),
			here + "?limit=1&continue=" + url.QueryEscape(page.Continue),
			fmt.Sprintf("%s?resourceVersion=%d&resourceVersionMatch=Exact", here, version),
			here + "?resourceVersion=0&fieldSelector=metadata.name%3Dapple", there + "?fieldSelector=metadata.name%3Dapple",
			"/api/v1/" + plural + "?resourceVersion=0&labelSelector=app%3Dapple", "/api/v1/" + plural + "?labelSelector=app%3Dpear",
		} {
			c.questions = append(c.questions, api.Request{Path: path})
		}
		for _, accept := range []string{api.ProtobufType, api.TableJSON, api.MetadataListJSON} {
			c.questions = append(c.questions, api.Request{Path: here + "?resourceVersion=0", Accept: accept}, api.Request{Path: there, Accept: accept})
		}
	}
	for _, path := range []string{"/apis", "/openapi/v3", "/openapi/v3/apis/" + w.Group + "/v1", "/apis/" + w.Group + "/v1", "/api/v1", "/version",
		"/api/v1/pods?resourceVersion=0&fieldSelector=spec.nodeName%3Deast", "/api/v1/namespaces/" + c.red + "/pods?fieldSelector=spec.nodeName%3Deast"} {
		c.questions = append(c.questions, api.Request{Path: path})
	}
	return c
}

// seen returns the marks in an answer.
func (c *Crowd) seen(a api.Answer) seenMarks {
	s := seenMarks{status: a.Status, marks: map[string]bool{}}
	for mark := range c.marks {
		if strings.Contains(a.Body, mark) {
			s.marks[mark] = true
		}
	}
	return s
}

// Learn asks upstream what each user may see, once it knows all their rights. It checks that
// the users differ.
func (c *Crowd) Learn() {
	t := c.t
	t.Helper()
	red, blue := "/api/v1/namespaces/"+c.red+"/configmaps", "/api/v1/namespaces/"+c.blue+"/configmaps"
	for _, to := range testbed.Targets() {
		poll.Until(t, "the rights arrive "+to.Name, func() error {
			for user, path := range map[string]string{"local": red, "auditor": blue, "viewer": "/api/v1/configmaps", "named": red + "/apple", "acting": red, "system:node:east": red + "/apple"} {
				for _, query := range []string{"", "?resourceVersion=0"} {
					if a := to.Send(t, api.Request{Path: path + query, User: user}); a.Status != 200 {
						return fmt.Errorf("%s, %s: %d %s", user, path, a.Status, a.Body)
					}
				}
			}
			return nil
		})
	}
	// OpenAPI shows a type some time after it is served.
	for _, r := range c.questions {
		if strings.HasPrefix(r.Path, "/openapi/") || strings.HasPrefix(r.Path, "/apis") {
			for _, to := range testbed.Targets() {
				poll.Until(t, r.Path+" tells of the type "+to.Name, func() error {
					if a := to.Send(t, r); len(c.seen(a).marks) == 0 {
						return fmt.Errorf("%d", a.Status)
					}
					return nil
				})
			}
		}
	}
	visible := map[string]map[string]bool{}
	for _, user := range append(slices.Clone(c.Steady), c.flipping) {
		visible[user] = map[string]bool{}
		for _, r := range c.questions {
			r.User = user
			s := c.seen(testbed.Upstream.Send(t, r))
			c.expected[user] = append(c.expected[user], s)
			for mark := range s.marks {
				visible[user][c.marks[mark]] = true
			}
		}
	}
	for _, user := range []string{"nobody", "-", "?"} {
		for what := range visible[user] {
			if what != "type" {
				t.Fatalf("upstream shows %s to %q", what, user)
			}
		}
	}
	for user, ns := range map[string]string{"local": c.blue, "auditor": c.red, "named": c.blue, c.flipping: c.blue} {
		for what := range visible[user] {
			if strings.HasPrefix(what, ns+"/") {
				t.Fatalf("upstream shows %s to %q", what, user)
			}
		}
	}
	if n := len(visible["viewer"]); n != len(c.marks) {
		t.Fatalf("the viewer sees only %d of %d", n, len(c.marks))
	}
}

// Findings counts the results of many reads.
type Findings struct {
	mutex        sync.Mutex
	Reads, Total int
	// Leaks are counted by user, under the checker's name for them.
	Leaks map[string]int
	// wrong counts answers that are wrong without revealing anything.
	wrong   int
	busy    int
	First   []string
	Sources map[string]int
}

func (f *Findings) tell(format string, args ...any) {
	if len(f.First) < compare.ShownDifferences {
		f.First = append(f.First, fmt.Sprintf(format, args...))
	}
}

// FromMemory returns the number of answers with objects or events that the proxy holds.
func (f *Findings) FromMemory() (n int) {
	for source, count := range f.Sources {
		if api.FromMemory(source) {
			n += count
		}
	}
	return n
}

// Report fails the test for every leak and every wrong answer.
func (f *Findings) Report(t *testing.T) {
	t.Helper()
	if f.Total > 0 || f.wrong > 0 {
		t.Errorf("of %d reads, %d were leaks (%v) and %d wrong:\n%s", f.Reads, f.Total, f.Leaks, f.wrong, strings.Join(f.First, "\n"))
	}
	if f.busy > f.Reads/50 {
		t.Errorf("%d of %d reads were refused for the moment", f.busy, f.Reads)
	}
}

// judge checks a user's answer to one of the questions.
func (c *Crowd) judge(f *Findings, user string, question int, a api.Answer) {
	s, expected := c.seen(a), c.expected[user][question]
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.Reads++
	source := a.Header.Get("X-Watershed-Source")
	if strings.HasPrefix(source, "forward") {
		source = "forward"
	}
	f.Sources[source]++
	for mark := range s.marks {
		if !expected.marks[mark] {
			f.Leaks[user]++
			f.Total++
			f.tell("LEAK: %q sees %s in %s, answered from %q", user, c.marks[mark], c.questions[question].Path, source)
			return
		}
	}
	switch {
	case s.status == http.StatusTooManyRequests, s.status == http.StatusServiceUnavailable && source == "access":
		f.busy++
	case user == c.flipping && s.status == http.StatusForbidden:
	case s.status != expected.status, len(s.marks) != len(expected.marks):
		f.wrong++
		f.tell("%q asks %s and gets %d with %d marks, upstream %d with %d; answered from %q: %s",
			user, c.questions[question].Path, s.status, len(s.marks), expected.status, len(expected.marks), source, api.Excerpt(a.Body, 0))
	}
}

// connections returns clients over HTTP/2 and HTTP/1.1, shared by all users and for each user
// alone.
func (c *Crowd) connections() (of func(user string, kind int) *http.Client, kinds int) {
	client := func(second bool) *http.Client {
		transport := &http.Transport{TLSClientConfig: testbed.Proxied.TLS(), ForceAttemptHTTP2: second, MaxIdleConnsPerHost: 4}
		c.t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport, Timeout: poll.Patience}
	}
	together := []*http.Client{client(true), client(false)}
	alone := map[string][]*http.Client{}
	for _, user := range append(slices.Clone(c.Steady), c.flipping) {
		alone[user] = []*http.Client{client(true), client(false)}
	}
	return func(user string, kind int) *http.Client {
		if kind < 2 {
			return together[kind]
		}
		return alone[user][kind-2]
	}, 4
}

// Read sends all users' questions at the same time, one question after another, until there are
// enough reads. as maps each user to the credentials to send.
func (c *Crowd) Read(atLeast int, chance func(int) int, as func(user string) string) *Findings {
	found := &Findings{Leaks: map[string]int{}, Sources: map[string]int{}}
	type job struct {
		user     string
		question int
		kind     int
	}
	of, kinds := c.connections()
	everybody := append(slices.Clone(c.Steady), c.flipping)
	var jobs []job
	for len(jobs) < atLeast {
		question := chance(len(c.questions))
		for i := range 2 * len(everybody) {
			jobs = append(jobs, job{everybody[i%len(everybody)], question, chance(kinds)})
		}
	}
	parallel.ForEach(36, jobs, func(_ int, j job) {
		r := c.questions[j.question]
		r.User, r.Via = as(j.user), of(j.user, j.kind)
		a, err := testbed.Proxied.Try(r)
		if err != nil {
			found.mutex.Lock()
			defer found.mutex.Unlock()
			found.wrong++
			found.tell("%q, %s: %v", j.user, r.Path, err)
			return
		}
		c.judge(found, j.user, j.question, a)
	})
	return found
}

// Flip grants and revokes the rights of one user until the context ends.
func (c *Crowd) Flip(ctx context.Context) (flips int) {
	flip := func(there bool) error {
		if there {
			return c.rights.TryUnbind(c.red, "acting")
		}
		return c.rights.TryBindTo(c.red, "acting", "Role", rights.User("acting"))
	}
	there := true
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(700 * time.Millisecond):
			if err := flip(there); err != nil {
				c.t.Error(err)
				return flips
			}
			flips, there = flips+1, !there
		}
	}
	if !there {
		if err := flip(there); err != nil {
			c.t.Error(err)
		}
	}
	return flips
}

// Write changes objects until the context ends. Their marks stay.
func (c *Crowd) Write(ctx context.Context) (writes int) {
	for {
		select {
		case <-ctx.Done():
			return writes
		case <-time.After(30 * time.Millisecond):
		}
		writes++
		ns := []string{c.red, c.blue}[writes%2]
		for _, path := range []string{"/configmaps/tick", "/configmaps/apple", "/pods/pear"} {
			if _, err := testbed.Upstream.Try(api.Request{Method: "PATCH", Path: "/api/v1/namespaces/" + ns + path, ContentType: api.MergePatch,
				Body: fmt.Sprintf(`{"metadata":{"annotations":{"n":"%d"}}}`, writes)}); err != nil {
				c.t.Error(err)
				return writes
			}
		}
	}
}

// Watch opens watches of one second for all users, permitted or not, until the context ends. It
// counts what they show.
func (c *Crowd) Watch(ctx context.Context, running *sync.WaitGroup, events *atomic.Int64) {
	of, kinds := c.connections()
	for i, who := range append(slices.Clone(c.Steady), c.flipping) {
		// What a user may list in a namespace, the user may watch.
		allowed := map[string]bool{}
		for _, s := range c.expected[who] {
			maps.Copy(allowed, s.marks)
		}
		running.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				path := []string{"/api/v1/namespaces/" + c.red + "/configmaps", "/api/v1/namespaces/" + c.blue + "/configmaps",
					"/api/v1/namespaces/" + c.red + "/pods", "/api/v1/configmaps", "/api/v1/pods"}[n%5]
				query := []string{"resourceVersion=0", api.StateFirst, "resourceVersion=0&labelSelector=app%3Dapple", "fieldSelector=metadata.name%3Dapple"}[n/5%4]
				r := api.Request{Path: path + "?watch=1&timeoutSeconds=1&" + query, User: who, Via: of(who, n%kinds)}
				a, err := testbed.Proxied.Try(r)
				if err != nil {
					c.t.Errorf("%v: %v", r, err)
					return
				}
				for mark := range c.seen(a).marks {
					if !allowed[mark] {
						c.t.Errorf("LEAK: %q sees %s in %s", who, c.marks[mark], r.Path)
					}
				}
				if a.Status == http.StatusOK {
					events.Add(int64(strings.Count(a.Body, "\n")))
				} else {
					// Refusals come at once, so the loop waits before it asks again.
					time.Sleep(100 * time.Millisecond)
				}
			}
		})
	}
}

// Taken checks that the flipping user sees nothing once the rights are gone for good.
func (c *Crowd) Taken() {
	t := c.t
	t.Helper()
	c.rights.Unbind(c.red, "acting")
	open := map[int]bool{}
	for i, expected := range c.expected[c.flipping] {
		open[i] = expected.status == http.StatusOK && strings.HasPrefix(c.questions[i].Path, "/api/v1/")
	}
	poll.Until(t, "the rights are gone", func() error {
		for i, still := range open {
			if !still {
				continue
			}
			r := c.questions[i]
			r.User = c.flipping
			if a := testbed.Proxied.Send(t, r); a.Status != http.StatusForbidden || len(c.seen(a).marks) > 0 {
				return errors.Join(poll.ErrNotYet, fmt.Errorf("%v: %d", r, a.Status))
			}
		}
		return nil
	})
}
