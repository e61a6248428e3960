package cluster

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Command carries out one line of stdin.
func (c *Cluster) Command(line string) error {
	words := strings.Fields(line)
	if len(words) == 0 {
		return errors.New("empty command")
	}
	server := func() (*apiserver, error) {
		if len(words) != 2 {
			return nil, fmt.Errorf("%s needs the number of an API server", words[0])
		}
		n, err := strconv.Atoi(words[1])
		if err != nil || n < 0 || n >= len(c.apiservers) {
			return nil, fmt.Errorf("no API server %q, there are 0 to %d", words[1], len(c.apiservers)-1)
		}
		return c.apiservers[n], nil
	}
	switch words[0] {
	case "kill", "term", "start":
		s, err := server()
		if err != nil {
			return err
		}
		switch words[0] {
		case "kill":
			return s.process.end(syscall.SIGKILL)
		case "term":
			return s.process.end(syscall.SIGTERM)
		}
		if err := s.launch(c); err != nil {
			return err
		}
		return s.ready(c)
	case "compact":
		return c.compact()
	case "stop-etcd":
		// A polite stop takes seven seconds, because etcd waits for the API servers' streams. A
		// killed etcd keeps its data too: only the machine must not stop without fsync.
		return c.etcd.end(syscall.SIGKILL)
	case "start-etcd":
		return c.startEtcd()
	case "save-etcd":
		return c.copyEtcd("etcd", savedEtcd)
	case "restore-etcd":
		return c.copyEtcd(savedEtcd, "etcd")
	}
	return fmt.Errorf("unknown command %q", words[0])
}

// savedEtcd is the folder of the saved copy of etcd's data.
const savedEtcd = "etcd-saved"

// copyEtcd replaces one folder of etcd's data by a copy of another. etcd must not run: it would
// write to the data while they are copied.
func (c *Cluster) copyEtcd(from, to string) error {
	if c.etcd.running() {
		return errors.New("etcd is running")
	}
	if err := os.RemoveAll(c.path(to)); err != nil {
		return err
	}
	return os.CopyFS(c.path(to), os.DirFS(c.path(from)))
}
