package clusters

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"time"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/poll"
)

// memoryAbuses are what hostile clients do, again and again, while others have to be served.
var memoryAbuses = []struct {
	name string
	do   func(*memoryRun)
}{
	{"selectors of 9,000 values", (*memoryRun).manyValues},
	{"watches that keep such selectors", (*memoryRun).keptSelectors},
	{"pages of old versions", (*memoryRun).oldVersions},
	{"lists that nobody reads", (*memoryRun).unreadLists},
	{"watches that nobody reads", (*memoryRun).unreadWatches},
	{"lists that are left", (*memoryRun).leftLists},
	{"every type in every form", (*memoryRun).everyType},
	{"documents by query", (*memoryRun).documentsByQuery},
	{"random tokens", (*memoryRun).randomTokens},
}

// abuse does one of these until it is over.
func (r *memoryRun) abuse(name string, do func(*memoryRun)) {
	for !r.over.Load() {
		do(r)
		r.mutex.Lock()
		r.abused[name]++
		r.mutex.Unlock()
	}
}

// manyValues returns a selector of thousands of values.
func manyValues() string {
	values := make([]string, 9000)
	for i := range values {
		values[i] = fmt.Sprintf("v%04d", i)
	}
	return url.QueryEscape("app notin (" + strings.Join(values, ",") + ")")
}

// manyValues lists and watches with selectors of thousands of values.
func (r *memoryRun) manyValues() {
	selector := manyValues()
	for _, path := range []string{
		"/api/v1/configmaps?resourceVersion=0&limit=1&labelSelector=",
		"/api/v1/secrets?watch=1&resourceVersion=0&timeoutSeconds=1&labelSelector=",
	} {
		r.discard(api.Request{Path: path + selector}, -1)
	}
}

// keptSelectors opens watches with such selectors, and leaves them open for a while.
func (r *memoryRun) keptSelectors() {
	versions := r.writtenVersions()
	if len(versions) == 0 {
		time.Sleep(100 * time.Millisecond)
		return
	}
	now := versions[len(versions)-1]
	r.leaveLying("?watch=1&timeoutSeconds=60&resourceVersion="+now+"&labelSelector="+manyValues(), 40)
}

// oldVersions reads pages at versions that the history leads back to.
func (r *memoryRun) oldVersions() {
	versions := r.writtenVersions()
	if len(versions) == 0 {
		time.Sleep(100 * time.Millisecond)
		return
	}
	version := versions[max(len(versions)-20, 0)]
	path := "/api/v1/configmaps?limit=20&resourceVersionMatch=Exact&resourceVersion=" + version
	r.discard(api.Request{Path: path}, -1)
}

// writtenVersions returns the versions of writes of config maps.
func (r *memoryRun) writtenVersions() []string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return slices.Clone(r.written["configmaps"])
}

// unreadLists leaves answers of all objects lying for a while.
func (r *memoryRun) unreadLists() {
	r.leaveLying("?resourceVersion=0", 10)
}

// unreadWatches opens watches that nobody reads.
func (r *memoryRun) unreadWatches() {
	r.leaveLying("?watch=1&resourceVersion=0&timeoutSeconds=60", 20)
}

// leaveLying sends requests for a while, and leaves their answers unread for as long.
func (r *memoryRun) leaveLying(query string, count int) {
	ctx, cancel := context.WithTimeout(r.ctx, 10*time.Second)
	defer cancel()
	for i := range count {
		if r.over.Load() {
			return
		}
		resource := []string{"configmaps", "secrets"}[i%2]
		accept := []string{jsonType, protobufType}[i/2%2]
		resp, err := r.proxied.Open(ctx, api.Request{Path: "/api/v1/" + resource + query, Accept: accept})
		if err == nil {
			defer resp.Body.Close()
		}
	}
	for range 50 {
		if r.over.Load() {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// leftLists reads some of the list of all objects, compressed, and leaves.
func (r *memoryRun) leftLists() {
	request := api.Request{Path: "/api/v1/configmaps", Header: map[string]string{"Accept-Encoding": "gzip"}}
	r.discard(request, 1<<20)
}

// everyType lists each type that there is, in both encodings, whole and as metadata.
func (r *memoryRun) everyType() {
	const metadata = ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	for _, path := range r.types {
		for _, accept := range []string{jsonType, protobufType, jsonType + metadata, protobufType + metadata} {
			if r.over.Load() {
				return
			}
			r.discard(api.Request{Path: path + "?resourceVersion=0", Accept: accept}, -1)
		}
	}
}

// documentsByQuery reads a large document under names that nobody else uses.
func (r *memoryRun) documentsByQuery() {
	for range 3 {
		r.discard(api.Request{Path: fmt.Sprint("/openapi/v2?x=", rand.Uint64())}, -1)
	}
	time.Sleep(time.Second)
}

// randomTokens sends requests with tokens that nobody has.
func (r *memoryRun) randomTokens() {
	for range 100 {
		if r.over.Load() {
			return
		}
		token := map[string]string{"Authorization": fmt.Sprint("Bearer ", rand.Uint64())}
		r.discard(api.Request{Path: "/api/v1/secrets?resourceVersion=0", User: "-", Header: token}, -1)
	}
	time.Sleep(time.Second)
}

// discard sends a request, and reads so many bytes of the answer. Whatever happens to hostile
// requests is right.
func (r *memoryRun) discard(request api.Request, bytes int64) {
	ctx, cancel := context.WithTimeout(r.ctx, poll.Patience)
	defer cancel()
	request.Header = maps.Clone(request.Header)
	resp, err := r.proxied.Open(ctx, request)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	if bytes < 0 {
		io.Copy(io.Discard, resp.Body)
	} else {
		io.CopyN(io.Discard, resp.Body, bytes)
	}
}
