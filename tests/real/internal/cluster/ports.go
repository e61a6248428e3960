package cluster

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// The kernel takes the ports of outgoing connections from 32768 upwards. A
// server's port is chosen below, else a connection of somebody else could sit
// on it by the time the server is started, or started again.
const (
	lowestPort  = 12000
	highestPort = 32000
)

// attempts bounds the retries when another program takes a port between the
// moment it was found free and the moment the child binds it.
const attempts = 5

func freePort() (int, error) {
	for range 1000 {
		port := lowestPort + rand.IntN(highestPort-lowestPort)
		l, err := net.Listen("tcp", address(port))
		if err == nil {
			l.Close()
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free port between %d and %d", lowestPort, highestPort)
}

func address(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
