package real

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/crowd"
	"watershed.test/real/internal/objects"
	"watershed.test/real/internal/parallel"
	"watershed.test/real/internal/random"
	"watershed.test/real/internal/testbed"
)

// TestUsersNeverSeeObjectsTheyMayNotRead sends ten thousand reads of the same objects. Users
// with different rights send them at the same time, over shared and separate connections, while
// one user's rights come and go. No answer shows anything that upstream would not show, and
// every permitted answer is complete.
func TestUsersNeverSeeObjectsTheyMayNotRead(t *testing.T) {
	c := crowd.New(t)
	c.Learn()

	// This checks the checker: it has to find both users whose tokens are swapped.
	swapped := map[string]string{"local": "auditor", "auditor": "local"}
	found := c.Read(600, random.Stream(random.Seed(t), 1).IntN, func(user string) string {
		if other := swapped[user]; other != "" {
			return other
		}
		return user
	})
	for user := range swapped {
		if found.Leaks[user] == 0 {
			t.Errorf("the check does not find that %s, with a swapped token, sees foreign objects", user)
		}
		delete(found.Leaks, user)
	}
	if len(found.Leaks) > 0 {
		t.Errorf("leaks to others than those swapped: %v\n%s", found.Leaks, strings.Join(found.First, "\n"))
	}
	t.Logf("planted: %d of %d reads were found to be leaks", found.Total, found.Reads)

	ctx, stop := context.WithCancel(t.Context())
	var meanwhile sync.WaitGroup
	flips, writes := 0, 0
	meanwhile.Go(func() { flips = c.Flip(ctx) })
	meanwhile.Go(func() { writes = c.Write(ctx) })
	var watched atomic.Int64
	c.Watch(ctx, &meanwhile, &watched)
	found = c.Read(crowd.FewestReads+500, random.Stream(random.Seed(t), 2).IntN, func(user string) string { return user })
	stop()
	meanwhile.Wait()

	found.Report(t)
	t.Logf("%d reads by %d users, answered from %v; %d events of watches, %d flips, %d writes",
		found.Reads, len(c.Steady)+1, found.Sources, watched.Load(), flips, writes)
	if found.Reads < crowd.FewestReads || watched.Load() < 100 || flips < 2 {
		t.Error("there are too few answers to judge by")
	}
	// What upstream answers shows nobody too much. About a fifth comes from memory, and half is refused here.
	if granted := found.FromMemory(); !testbed.Direct && (granted < crowd.FewestReads/10 || found.Sources["access"] < crowd.FewestReads/10) {
		t.Errorf("only %d grants from memory, and %d refusals by the proxy", granted, found.Sources["access"])
	}
	c.Taken()
}

// TestUnknownCallersDisturbNobody sends requests of unknown callers: upstream closes a
// connection after each refusal. Others on the same connection must not notice. Their reads
// succeed, and each of their writes is carried out once.
func TestUnknownCallersDisturbNobody(t *testing.T) {
	ns := objects.Namespace(t)
	here := "/api/v1/namespaces/" + ns + "/configmaps"
	ctx, stop := context.WithCancel(t.Context())
	var strangers sync.WaitGroup
	var answered atomic.Int64
	for i := range 6 {
		strangers.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				r := api.Request{Path: "/healthz", User: "?"}
				if n%2 == 0 {
					r = api.Request{Method: "POST", Path: here, Body: api.JSON(objects.WithKind(objects.ConfigMap("strange"))), User: []string{"-", "?"}[n/2%2]}
				}
				a, err := testbed.Proxied.Try(r)
				if err != nil || a.Status != 401 && a.Status != 403 {
					t.Errorf("%v: %d %s (%v)", r, a.Status, a.Body, err)
					return
				}
				answered.Add(1)
			}
		})
	}
	names := make([]string, 150)
	parallel.ForEach(8, names, func(i int, _ string) {
		name := fmt.Sprint("n", i)
		for _, step := range []struct {
			api.Request
			status int
		}{
			{api.Request{Method: "POST", Path: here, Body: api.JSON(objects.WithKind(objects.ConfigMap(name)))}, 201},
			{api.Request{Method: "PATCH", Path: here + "/" + name, ContentType: "application/json-patch+json", Body: `[{"op":"add","path":"/data","value":{"a":"b"}}]`}, 200},
			{api.Request{Path: here + "/" + name}, 200},
			{api.Request{Method: "DELETE", Path: here + "/" + name}, 200},
		} {
			// A write that arrived twice would conflict with itself.
			if a := testbed.Proxied.Send(t, step.Request); a.Status != step.status {
				t.Errorf("%v: %d %s", step.Request, a.Status, a.Body)
			}
		}
	})
	stop()
	strangers.Wait()
	t.Logf("%d requests among %d of unknown callers", 4*len(names), answered.Load())
	if answered.Load() < 100 {
		t.Error("there were too few unknown callers")
	}
}
