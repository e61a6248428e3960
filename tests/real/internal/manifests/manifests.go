// Package manifests renders and parses the Helm chart and the manifests in deploy/.
package manifests

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"watershed.test/real/internal/kubectl"
	"watershed.test/real/internal/require"
	"watershed.test/real/internal/testbed"
)

// Parse parses YAML with several documents.
func Parse(t *testing.T, text string) (all []*unstructured.Unstructured) {
	t.Helper()
	for _, part := range regexp.MustCompile(`(?m)^---\s*$`).Split(text, -1) {
		var object map[string]any
		if err := yaml.UnmarshalStrict([]byte(part), &object); err != nil {
			t.Fatalf("%v in:\n%s", err, part)
		}
		if len(object) > 0 {
			all = append(all, &unstructured.Unstructured{Object: object})
		}
	}
	return all
}

// OfKind returns the objects of a kind.
func OfKind(all []*unstructured.Unstructured, kind string) (found []*unstructured.Unstructured) {
	for _, object := range all {
		if object.GetKind() == kind {
			found = append(found, object)
		}
	}
	return found
}

// customTypes are the custom types that charts and manifests use, as their projects publish
// them.
var customTypes = []struct {
	module, version, sum string
	files                []string
}{
	{"github.com/prometheus-operator/prometheus-operator", "v0.85.0", "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=", []string{
		"example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
		"example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
		"example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
	}},
	{"github.com/cert-manager/cert-manager", "v1.21.2", "h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68=", []string{
		"deploy/crds/cert-manager.io_certificates.yaml",
		"deploy/crds/cert-manager.io_issuers.yaml",
	}},
}

// CustomTypeFiles fetches them with Go, as any module.
var CustomTypeFiles = sync.OnceValues(func() (files []string, err error) {
	for _, d := range customTypes {
		out, err := exec.Command("go", "mod", "download", "-json", d.module+"@"+d.version).Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %s", d.module, err, out)
		}
		var module struct{ Dir, Sum string }
		if err := json.Unmarshal(out, &module); err != nil {
			return nil, err
		}
		if module.Sum != d.sum {
			return nil, fmt.Errorf("%s@%s is %s, and was %s", d.module, d.version, module.Sum, d.sum)
		}
		for _, file := range d.files {
			files = append(files, filepath.Join(module.Dir, file))
		}
	}
	return files, nil
})

// ProxyContainer returns the proxy's container in a workload.
func ProxyContainer(t *testing.T, maker *unstructured.Unstructured) map[string]any {
	t.Helper()
	for _, field := range []string{"containers", "initContainers"} {
		containers, _, err := unstructured.NestedSlice(maker.Object, "spec", "template", "spec", field)
		require.NoError(t, err)
		for _, c := range containers {
			if c := c.(map[string]any); c["name"] == "watershed" {
				return c
			}
		}
	}
	t.Fatalf("%s has no container watershed", maker.GetName())
	return nil
}

// KnowsItsNode reports whether the proxy's pod knows its node's name.
func KnowsItsNode(t *testing.T, maker *unstructured.Unstructured) bool {
	t.Helper()
	variables, _, err := unstructured.NestedSlice(ProxyContainer(t, maker), "env")
	require.NoError(t, err)
	for _, variable := range variables {
		variable := variable.(map[string]any)
		field, _, _ := unstructured.NestedString(variable, "valueFrom", "fieldRef", "fieldPath")
		if variable["name"] == "NODE_NAME" && field == "spec.nodeName" {
			return true
		}
	}
	return false
}

// Args returns the arguments of the proxy's container.
func Args(t *testing.T, maker *unstructured.Unstructured) []string {
	t.Helper()
	args, _, err := unstructured.NestedStringSlice(ProxyContainer(t, maker), "args")
	require.NoError(t, err)
	if len(args) < 5 || args[0] != "serve" {
		t.Fatalf("args: %q", args)
	}
	return args
}

// Flags returns the names of the flags in these arguments.
func Flags(t *testing.T, maker *unstructured.Unstructured) (flags []string) {
	t.Helper()
	for _, arg := range Args(t, maker)[1:] {
		flag, _, _ := strings.Cut(arg, "=")
		flags = append(flags, flag)
	}
	return flags
}

// DeployDir holds the manifests.
const DeployDir = "../../deploy"

// Kustomize returns what kubectl makes of a user's own kustomization.
func Kustomize(t *testing.T, lines ...string) string {
	t.Helper()
	dir := t.TempDir()
	here := require.Value(filepath.Abs(DeployDir))(t)
	relative := require.Value(filepath.Rel(require.Value(filepath.EvalSymlinks(dir))(t), here))(t)
	text := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n" + strings.Join(lines, "\n") + "\n"
	text = strings.ReplaceAll(text, "deploy/", relative+"/")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600))
	return kubectl.Run(t, testbed.Upstream, kubectl.Command{Args: []string{"kustomize", dir}}).MustSucceed(t, "kustomize")
}

// Components returns all directories of deploy that are kustomize components.
func Components(t *testing.T) (all []string) {
	t.Helper()
	for _, file := range require.Value(filepath.Glob(DeployDir + "/*/kustomization.yaml"))(t) {
		if strings.Contains(string(require.Value(os.ReadFile(file))(t)), "kind: Component") {
			all = append(all, filepath.Base(filepath.Dir(file)))
		}
	}
	return all
}

var yamlBlock = regexp.MustCompile("(?ms)^ *```yaml\n(.*?)^ *```")

// Blocks returns the objects in a document's code blocks, by the kind that the block begins
// with.
func Blocks(t *testing.T, file string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, block := range yamlBlock.FindAllStringSubmatch(string(require.Value(os.ReadFile(file))(t)), -1) {
		var object struct{ Kind string }
		first, _, _ := strings.Cut(block[1], "\n---\n")
		if yaml.Unmarshal([]byte(first), &object) == nil && object.Kind != "" {
			found[object.Kind] = block[1]
		}
	}
	return found
}
