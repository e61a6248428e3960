package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"watershed.test/real/internal/proxylog"
)

// proxy is a watershed in front of the cluster.
type proxy struct {
	process *process
	// The addresses that it logged.
	address, admin string
}

func (p *proxy) url() string { return "https://" + p.address }

// startProxy starts the proxy if one was asked for.
func (c *Cluster) startProxy() error {
	if c.Proxy == "" {
		return nil
	}
	program, err := filepath.Abs(c.Proxy)
	if err != nil {
		return err
	}
	dir := c.path("proxy")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	args := []string{"serve", "--kubeconfig", c.path("proxy-kubeconfig"),
		"--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
		"--cert-dir", dir, "--log-format", "json"}
	if len(c.apiservers) > 1 {
		for _, s := range c.apiservers {
			args = append(args, "--server", s.url())
		}
	}
	for _, arg := range c.ProxyArgs {
		// The caller does not know the directory yet when it writes the argument.
		args = append(args, strings.ReplaceAll(arg, "{dir}", c.Dir))
	}
	// An earlier run in the same --dir left a log with old addresses.
	if err := os.Remove(c.path("watershed.log")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	process, err := c.spawn("watershed", program, args...)
	if err != nil {
		return err
	}
	p := &proxy{process: process}
	c.proxy = p
	if err := process.await(startPatience, p.readAddresses); err != nil {
		return err
	}
	return kubeconfig{server: p.url(), ca: filepath.Join(dir, "ca.crt"), token: identities[0].token}.write(c.path("kubeconfig-via-proxy"))
}

// readAddresses reads the addresses from watershed's log. The log is a file, because somebody
// would have to keep reading a pipe.
func (p *proxy) readAddresses() error {
	text, err := os.ReadFile(p.process.log)
	if err != nil {
		return err
	}
	p.address, p.admin = proxylog.Addresses(text)
	if p.address == "" || p.admin == "" {
		return errors.New("no address is logged yet")
	}
	return nil
}
