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

// clients holds one client for each address and CA. A proxy may get the port of one that has
// ended.
var clients sync.Map

// Target is one way to reach the API: directly or through a proxy.
type Target struct {
	Name       string
	URL        string
	CA         string
	Kubeconfig string
	// Tokens holds the tokens of the cluster's users.
	Tokens *Tokens
}

// client returns the shared HTTP client for this target.
func (t Target) client() *http.Client {
	key := [2]string{t.URL, t.CA}
	if c, ok := clients.Load(key); ok {
		return c.(*http.Client)
	}
	c, _ := clients.LoadOrStore(key, &http.Client{
		Transport: &http.Transport{TLSClientConfig: t.TLS(), ForceAttemptHTTP2: true},
		// A redirect is an answer to compare, not to follow.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	})
	return c.(*http.Client)
}

// TLS returns a configuration that trusts the target's CA.
func (t Target) TLS() *tls.Config {
	pem, err := os.ReadFile(t.CA)
	if err != nil {
		panic(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	return &tls.Config{RootCAs: roots}
}

// Tokens are the bearer tokens of a cluster's users.
type Tokens struct {
	mutex  sync.RWMutex
	byUser map[string]string
}

// NewTokens returns a set of tokens by user name.
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

// Config returns a new client configuration for the cluster's administrator.
func (t Target) Config() *rest.Config {
	return &rest.Config{
		Host:            t.URL,
		BearerToken:     t.Tokens.Of(""),
		TLSClientConfig: rest.TLSClientConfig{CAFile: t.CA},
		// The tests send bursts, which client-go's rate limit would only slow down.
		QPS: -1,
	}
}

// Clientset returns a client-go client of the administrator.
func Clientset(t *testing.T, to Target) kubernetes.Interface {
	t.Helper()
	return require.Value(kubernetes.NewForConfig(to.Config()))(t)
}
