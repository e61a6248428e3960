package informertest

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"
)

// Beginnings counts the requests of an informer that begin anew, and those that continue from a
// version.
type Beginnings struct {
	Next  http.RoundTripper
	mutex sync.Mutex
	count Count
}

// Count is what has been counted so far.
type Count struct {
	// Began lists the requests that begin anew, and All describes all requests.
	Began, All []string
	// WentOn is the number of requests that continue from a version.
	WentOn int
	// Sources counts the answers by their source.
	Sources map[string]int
}

// RoundTrip sends a request and counts it.
func (b *Beginnings) RoundTrip(r *http.Request) (*http.Response, error) {
	query := r.URL.Query()
	version := query.Get("resourceVersion")
	goesOn := query.Get("watch") != "" && query.Get("sendInitialEvents") == "" && version != "" && version != "0"
	asked := time.Now()
	response, err := b.Next.RoundTrip(r)
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if goesOn {
		b.count.WentOn++
	} else {
		b.count.Began = append(b.count.Began, r.URL.RequestURI())
	}
	source := fmt.Sprint(err)
	if err == nil {
		if b.count.Sources == nil {
			b.count.Sources = map[string]int{}
		}
		source = response.Header.Get("X-Watershed-Source")
		b.count.Sources[source]++
	}
	b.count.All = append(b.count.All, fmt.Sprintf("%v %s: %s", asked.Format("05.000"), query.Get("resourceVersion"), source))
	return response, err
}

// Count returns a copy, which later requests do not change.
func (b *Beginnings) Count() Count {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return Count{slices.Clone(b.count.Began), slices.Clone(b.count.All), b.count.WentOn, maps.Clone(b.count.Sources)}
}

// Tale records what an informer told of each object: its versions in order, and its deletion.
type Tale struct {
	Mutex sync.Mutex
	By    map[string][]string
	// Lost lists changes that the informer found by comparing instead of by an event.
	Lost []string
}

// Note records an object's version, or what happened to it.
func (s *Tale) Note(object any, what string) {
	s.Mutex.Lock()
	defer s.Mutex.Unlock()
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		s.Lost = append(s.Lost, unknown.Key)
		return
	}
	access, err := meta.Accessor(object)
	if err != nil {
		s.Lost = append(s.Lost, err.Error())
		return
	}
	if what == "" {
		what = access.GetResourceVersion()
	}
	s.By[access.GetName()] = append(s.By[access.GetName()], what)
}

// Deleted stands for the deletion of an object.
const Deleted = "deleted"
