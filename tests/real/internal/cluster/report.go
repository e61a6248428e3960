package cluster

import (
	"fmt"
	"io"
	"path/filepath"
)

// Report is the line that says the cluster is ready.
type Report struct {
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

// Report describes the running cluster.
func (c *Cluster) Report() Report {
	r := Report{
		Dir:             c.Dir,
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

// Greet tells a person at a terminal what there is.
func (c *Cluster) Greet(w io.Writer) {
	fmt.Fprintf(w, "A Kubernetes API runs on loopback. Its files and logs are in %s\n", c.Dir)
	fmt.Fprintf(w, "  upstream:   export KUBECONFIG=%s\n", c.path("kubeconfig"))
	if c.proxy != nil {
		fmt.Fprintf(w, "  watershed:  export KUBECONFIG=%s\n", c.path("kubeconfig-via-proxy"))
		fmt.Fprintf(w, "  its status: http://%s/\n", c.proxy.admin)
	}
	fmt.Fprintf(w, "  kubectl:    %s\n", filepath.Join(c.Bin, "kubectl"))
	fmt.Fprintln(w, "Ctrl-C stops it all.")
}
