package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"watershed.test/real/internal/proxylog"
)

// proxy is a watershed in front of the cluster.
type proxy struct {
	process *process
	// The addresses it said it listens on.
	address, admin string
}

func (p *proxy) url() string { return "https://" + p.address }

// startProxy does nothing if no proxy was asked for.
func (c *cluster) startProxy() error {
	if c.options.proxy == "" {
		return nil
	}
	program, err := filepath.Abs(c.options.proxy)
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
	for _, arg := range c.proxyArgs {
		// The directory is not known yet to whoever wrote the argument.
		args = append(args, strings.ReplaceAll(arg, "{dir}", c.dir))
	}
	// A log left by an earlier run in the same --dir has old addresses in it.
	if err := os.Remove(c.path("watershed.log")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	child, err := c.spawn("watershed", program, args...)
	if err != nil {
		return err
	}
	p := &proxy{process: child}
	c.proxy = p
	if err := child.await(startPatience, p.readAddresses); err != nil {
		return err
	}
	return kubeconfig{server: p.url(), ca: filepath.Join(dir, "ca.crt"), token: identities[0].token}.write(c.path("kubeconfig-via-proxy"))
}

// readAddresses looks for the lines in which watershed says where it listens.
// The log is a file and not a pipe, so that nobody has to keep reading it.
func (p *proxy) readAddresses() error {
	text, err := os.ReadFile(p.process.log)
	if err != nil {
		return err
	}
	p.address, p.admin = proxylog.Addresses(text)
	if p.address == "" || p.admin == "" {
		return errors.New("has not said where it listens")
	}
	return nil
}

// report is the line that says the cluster is ready.
type report struct {
	Dir             string            `json:"dir"`
	Servers         []string          `json:"servers"`
	CA              string            `json:"ca"`
	Kubeconfig      string            `json:"kubeconfig"`
	CertKubeconfig  string            `json:"cert_kubeconfig"`
	ProxyKubeconfig string            `json:"proxy_kubeconfig"`
	ClientCert      string            `json:"client_cert"`
	ClientKey       string            `json:"client_key"`
	AdminToken      string            `json:"admin_token"`
	Tokens          map[string]string `json:"tokens"`
	Etcd            string            `json:"etcd"`
	Pids            map[string]int    `json:"pids"`

	// Only with --proxy.
	ProxyServer        string `json:"proxy_server,omitempty"`
	ProxyAdmin         string `json:"proxy_admin,omitempty"`
	ProxyCA            string `json:"proxy_ca,omitempty"`
	KubeconfigViaProxy string `json:"kubeconfig_via_proxy,omitempty"`
}

func (c *cluster) report() report {
	r := report{
		Dir:             c.dir,
		CA:              c.path("ca.crt"),
		Kubeconfig:      c.path("kubeconfig"),
		CertKubeconfig:  c.path("cert-kubeconfig"),
		ProxyKubeconfig: c.path("proxy-kubeconfig"),
		ClientCert:      c.path("admin.crt"),
		ClientKey:       c.path("admin.key"),
		AdminToken:      identities[0].token,
		Tokens:          map[string]string{},
		Etcd:            c.etcdURL(),
		Pids:            map[string]int{"etcd": c.etcd.pid()},
	}
	for _, id := range identities {
		r.Tokens[id.user] = id.token
	}
	for _, s := range c.apiservers {
		r.Servers = append(r.Servers, s.url())
		r.Pids[s.name] = s.process.pid()
	}
	if c.proxy != nil {
		r.Pids["watershed"] = c.proxy.process.pid()
		r.ProxyServer = c.proxy.url()
		r.ProxyAdmin = "http://" + c.proxy.admin
		r.ProxyCA = filepath.Join(c.path("proxy"), "ca.crt")
		r.KubeconfigViaProxy = c.path("kubeconfig-via-proxy")
	}
	return r
}

// greet tells a person at a terminal what there is.
func (c *cluster) greet(w io.Writer) {
	fmt.Fprintf(w, "A Kubernetes API runs on loopback. Its files and logs are in %s\n", c.dir)
	fmt.Fprintf(w, "  upstream:   export KUBECONFIG=%s\n", c.path("kubeconfig"))
	if c.proxy != nil {
		fmt.Fprintf(w, "  watershed:  export KUBECONFIG=%s\n", c.path("kubeconfig-via-proxy"))
		fmt.Fprintf(w, "  its status: http://%s/\n", c.proxy.admin)
	}
	fmt.Fprintf(w, "  kubectl:    %s\n", filepath.Join(c.bin, "kubectl"))
	fmt.Fprintln(w, "Ctrl-C stops it all.")
}
