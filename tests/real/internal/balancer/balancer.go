// Package balancer stands in for a Service in front of several proxies.
package balancer

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// Balancer passes each new connection to the next of its servers, as a Service does. A server
// that is taken out keeps its connections and gets no new ones.
type Balancer struct {
	listener net.Listener
	Mutex    sync.Mutex
	servers  []string
	next     int
	Passed   map[string]int
	open     map[net.Conn]struct{}
}

// Start starts a balancer without servers.
func Start(t *testing.T) *Balancer {
	t.Helper()
	b := &Balancer{listener: require.Value(net.Listen("tcp", "127.0.0.1:0"))(t), Passed: map[string]int{}, open: map[net.Conn]struct{}{}}
	go func() {
		for {
			client, err := b.listener.Accept()
			if err != nil {
				return
			}
			go b.pass(client)
		}
	}()
	t.Cleanup(func() {
		b.listener.Close()
		b.Mutex.Lock()
		defer b.Mutex.Unlock()
		for c := range b.open {
			c.Close()
		}
	})
	return b
}

// URL returns the address for clients.
func (b *Balancer) URL() string { return "https://" + b.listener.Addr().String() }

// Set replaces the servers.
func (b *Balancer) Set(servers ...*testbed.Proxy) {
	b.Mutex.Lock()
	defer b.Mutex.Unlock()
	b.servers = nil
	for _, server := range servers {
		b.servers = append(b.servers, strings.TrimPrefix(server.URL, "https://"))
	}
}

func (b *Balancer) pass(client net.Conn) {
	b.Mutex.Lock()
	to := b.servers[b.next%len(b.servers)]
	b.next++
	b.Passed[to]++
	b.Mutex.Unlock()
	server, err := net.Dial("tcp", to)
	if err != nil {
		client.(*net.TCPConn).SetLinger(0)
		client.Close()
		return
	}
	b.Mutex.Lock()
	b.open[client], b.open[server] = struct{}{}, struct{}{}
	b.Mutex.Unlock()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		both.Go(func() {
			io.Copy(way[0], way[1])
			way[0].(*net.TCPConn).CloseWrite()
		})
	}
	both.Wait()
	client.Close()
	server.Close()
	b.Mutex.Lock()
	delete(b.open, client)
	delete(b.open, server)
	b.Mutex.Unlock()
}
