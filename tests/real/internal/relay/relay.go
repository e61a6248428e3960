// Package relay passes TCP connections on, and cuts or stalls them on command.
package relay

import (
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"watershed.test/real/internal/require"
)

// Relay passes TCP connections on to one address and disturbs them on command.
type Relay struct {
	listener net.Listener
	to       string

	mutex  sync.Mutex
	closed bool
	pairs  map[*connection]struct{}
}

// connection is one connection through a relay: to the client, and to the server.
type connection struct {
	client, server *net.TCPConn
	once           sync.Once
	over           chan struct{}
	// short is closed when half of the next bytes to the client are to be the last. stuck is
	// closed when no more bytes are to pass.
	short, stuck       chan struct{}
	shorten, getsStuck sync.Once
}

// Start relays to the server of a URL.
func Start(t *testing.T, server string) *Relay {
	t.Helper()
	r := &Relay{
		listener: require.Value(net.Listen("tcp", "127.0.0.1:0"))(t),
		to:       strings.TrimPrefix(server, "https://"),
		pairs:    map[*connection]struct{}{},
	}
	go r.accept()
	t.Cleanup(r.close)
	return r
}

// URL returns the address for clients.
func (r *Relay) URL() string { return "https://" + r.listener.Addr().String() }

func (r *Relay) accept() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		go func() {
			server, err := net.Dial("tcp", r.to)
			if err != nil {
				// The server itself would refuse like this.
				client.(*net.TCPConn).SetLinger(0)
				client.Close()
				return
			}
			p := &connection{client: client.(*net.TCPConn), server: server.(*net.TCPConn),
				over: make(chan struct{}), short: make(chan struct{}), stuck: make(chan struct{})}
			r.mutex.Lock()
			if r.closed {
				p.end(true)
			}
			r.pairs[p] = struct{}{}
			r.mutex.Unlock()
			go p.pass(p.server, p.client, false)
			p.pass(p.client, p.server, true)
			<-p.over
			r.mutex.Lock()
			delete(r.pairs, p)
			r.mutex.Unlock()
		}()
	}
}

func (r *Relay) close() {
	r.listener.Close()
	r.mutex.Lock()
	r.closed = true
	r.mutex.Unlock()
	for _, p := range r.current() {
		p.end(true)
	}
}

func (r *Relay) current() []*connection {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	all := make([]*connection, 0, len(r.pairs))
	for p := range r.pairs {
		all = append(all, p)
	}
	return all
}

// Cut ends every connection in a random way and returns their number.
func (r *Relay) Cut(chance *rand.Rand) int {
	all := r.current()
	for _, p := range all {
		switch chance.IntN(3) {
		case 0:
			p.end(true)
		case 1:
			p.end(false)
		case 2:
			p.shorten.Do(func() { close(p.short) })
			// A silent connection has nothing to cut in the middle.
			time.AfterFunc(200*time.Millisecond, func() { p.end(true) })
		}
	}
	return len(all)
}

// BlackHole stalls the present connections: they stay open, and nothing passes. New ones work.
// It returns the number of stalled ones.
func (r *Relay) BlackHole() int {
	all := r.current()
	for _, p := range all {
		p.getsStuck.Do(func() { close(p.stuck) })
	}
	return len(all)
}

// end closes both sides, with a reset or in order.
func (p *connection) end(reset bool) {
	p.once.Do(func() {
		if reset {
			p.client.SetLinger(0)
			p.server.SetLinger(0)
		}
		p.client.Close()
		p.server.Close()
		close(p.over)
	})
}

// pass copies from one side to the other until either ends.
func (p *connection) pass(to, from *net.TCPConn, toClient bool) {
	defer p.end(false)
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		select {
		case <-p.stuck:
			// What was read is lost with the rest. The connection stays open on purpose.
			<-p.over
			return
		default:
		}
		if toClient && n > 0 {
			select {
			case <-p.short:
				to.Write(buffer[:(n+1)/2])
				return
			default:
			}
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if err == io.EOF {
				to.CloseWrite()
			}
			return
		}
	}
}
