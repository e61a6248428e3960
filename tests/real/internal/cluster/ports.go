package cluster

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// The kernel uses ports from 32768 upwards for outgoing connections. Servers get ports below:
// otherwise a foreign connection could occupy the port when the server starts again.
const (
	lowestPort  = 12000
	highestPort = 32000
)

// attempts bounds the retries when another program takes a free port before the child binds it.
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
