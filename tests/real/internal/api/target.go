// Package api sends requests to the Kubernetes API and takes the answers apart: lists, watch
// frames, continue tokens.
package api

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"maps"
	"net/http"
	"os"
	"sync"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"watershed.test/real/internal/require"
)

// clients are kept by address and CA: a proxy may get the port of one that has ended.
var clients sync.Map

// client is the plain HTTP client for this way to the API.
func (t Target) client() *http.Client {
	key := [2]string{t.URL, t.CA}
	if c, ok := clients.Load(key); ok {
		return c.(*http.Client)
	}
	c, _ := clients.LoadOrStore(key, &http.Client{
		Transport: &http.Transport{TLSClientConfig: t.Tls(), ForceAttemptHTTP2: true},
		// A redirect is an answer like any other.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	})
	return c.(*http.Client)
}

func (t Target) Tls() *tls.Config {
	pem, err := os.ReadFile(t.CA)
	if err != nil {
		panic(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	return &tls.Config{RootCAs: roots}
}

// Target is one way to reach the API.
type Target struct {
	Name       string
	URL        string
	CA         string
	Kubeconfig string
	// Tokens are those of the users of the cluster behind it.
	Tokens *Tokens
}

// Tokens are the bearer tokens of a cluster's users.
type Tokens struct {
	mutex  sync.RWMutex
	byUser map[string]string
}

// NewTokens returns tokens by the name of their user.
func NewTokens(byUser map[string]string) *Tokens {
	return &Tokens{byUser: maps.Clone(byUser)}
}

// Of returns the token of a user; "" stands for the administrator.
func (u *Tokens) Of(user string) string {
	u.mutex.RLock()
	defer u.mutex.RUnlock()
	return u.byUser[cmp.Or(user, "admin")]
}

// Add adds a user.
func (u *Tokens) Add(user, token string) {
	u.mutex.Lock()
	defer u.mutex.Unlock()
	u.byUser[user] = token
}

// Config is a new client configuration of the cluster's administrator.
func (t Target) Config() *rest.Config {
	return &rest.Config{
		Host:            t.URL,
		BearerToken:     t.Tokens.Of(""),
		TLSClientConfig: rest.TLSClientConfig{CAFile: t.CA},
		// The tests are bursts; they must not wait for client-go's brakes.
		QPS: -1,
	}
}

func Clientset(t *testing.T, to Target) kubernetes.Interface {
	t.Helper()
	return require.Value(kubernetes.NewForConfig(to.Config()))(t)
}
