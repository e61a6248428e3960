package real

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"watershed.test/real/internal/dockerfile"
	"watershed.test/real/internal/require"
)

const (
	top            = "../.."
	dockerfilePath = top + "/deploy/Dockerfile"
)

// TestDockerfileCopiesWhatItBuilds checks the Dockerfile as far as possible without Docker. The
// copied files exist and suffice for cargo. The commands are valid shell, and each architecture
// finds its compiler.
func TestDockerfileCopiesWhatItBuilds(t *testing.T) {
	all := dockerfile.Parse(string(require.Value(os.ReadFile(dockerfilePath))(t)))
	byName := map[string][]string{}
	for _, s := range all {
		byName[s.Name] = append(byName[s.Name], s.Rest)
	}
	if len(byName["FROM"]) != 2 || len(byName["RUN"]) != 2 || len(byName["COPY"]) != 3 {
		t.Fatalf("%q", all)
	}

	// The compiler is new enough for the package.
	wanted := regexp.MustCompile(`rust-version = "(.*)"`).FindSubmatch(require.Value(os.ReadFile(top + "/Cargo.toml"))(t))
	if !strings.Contains(fmt.Sprint(byName["ARG"]), "RUST_IMAGE=rust:"+string(wanted[1])+"-") {
		t.Errorf("it builds with %q, and needs Rust %s", byName["ARG"], wanted[1])
	}

	// The context, without what .dockerignore excludes, is a package that cargo accepts.
	context := t.TempDir()
	ignored := strings.Fields(string(require.Value(os.ReadFile(top + "/.dockerignore"))(t)))
	out := require.Value(exec.Command("git", "-C", top, "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output())(t)
	for _, file := range strings.Split(strings.TrimRight(string(out), "\x00"), "\x00") {
		if !dockerfile.Ignored(file, ignored) {
			dockerfile.CopyFile(t, filepath.Join(top, file), filepath.Join(context, file))
		}
	}
	for _, rest := range byName["COPY"] {
		if source, _, _ := strings.Cut(rest, " "); !strings.HasPrefix(source, "--from=") {
			if _, err := os.Stat(filepath.Join(context, source)); err != nil {
				t.Errorf("COPY %s: %v", rest, err)
			}
		}
	}
	cargo := exec.Command("cargo", "metadata", "--locked", "--offline", "--no-deps", "--format-version=1")
	cargo.Dir = context
	if out, err := cargo.Output(); err != nil || !strings.Contains(string(out), `"name":"watershed"`) {
		t.Errorf("cargo refuses the context: %v", err)
	}
	require.NoError(t, os.Remove(filepath.Join(context, "src", "main.rs")))
	cargo = exec.Command("cargo", "metadata", "--locked", "--offline", "--no-deps", "--format-version=1")
	cargo.Dir = context
	if out, _ := cargo.Output(); strings.Contains(string(out), `"kind":["bin"]`) {
		t.Error("cargo accepts a context without the program")
	}

	// The commands run with stand-ins for the programs that they call.
	for _, c := range []struct {
		build, target string
		fails         bool
		says          []string
	}{
		{build: "amd64", target: "amd64", says: []string{"cargo build --locked --profile dist --no-default-features --target x86_64-unknown-linux-gnu", "CC=x86_64-linux-gnu-gcc", "LINKER=x86_64-linux-gnu-gcc"}},
		{build: "amd64", target: "arm64", says: []string{"apt-get install --yes --no-install-recommends gcc-aarch64-linux-gnu g++-aarch64-linux-gnu libc6-dev-arm64-cross", "rustup target add aarch64-unknown-linux-gnu", "cargo build --locked --profile dist --no-default-features --target aarch64-unknown-linux-gnu", "CC=aarch64-linux-gnu-gcc", "LINKER=aarch64-linux-gnu-gcc", "PAGE=16"}},
		{build: "arm64", target: "amd64", says: []string{"gcc-x86-64-linux-gnu", "libc6-dev-amd64-cross", "rustup target add x86_64-unknown-linux-gnu", "LINKER=x86_64-linux-gnu-gcc"}},
		{build: "arm64", target: "arm64", says: []string{"--target aarch64-unknown-linux-gnu", "PAGE=16"}},
		{build: "amd64", target: "s390x", fails: true, says: []string{"no build for s390x"}},
	} {
		said, err := dockerfile.DryRun(t, byName["RUN"], c.build, c.target)
		if (err != nil) != c.fails {
			t.Errorf("%s on %s: %v: %s", c.target, c.build, err, said)
		}
		for _, wanted := range c.says {
			if !strings.Contains(said, wanted) {
				t.Errorf("%s on %s: no %q in\n%s", c.target, c.build, wanted, said)
			}
		}
		if c.build == c.target && strings.Contains(said, "apt-get") {
			t.Errorf("%s on %s needs packages:\n%s", c.target, c.build, said)
		}
	}

	// Nothing runs as root. The manifests give the arguments.
	if fmt.Sprint(byName["USER"]) != "[65532:65532]" || fmt.Sprint(byName["ENTRYPOINT"]) != `[["/usr/local/bin/watershed"]]` {
		t.Errorf("USER %s, ENTRYPOINT %s", byName["USER"], byName["ENTRYPOINT"])
	}
}
