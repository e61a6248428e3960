// Package dockerfile parses a Dockerfile and runs its commands without Docker.
package dockerfile

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"watershed.test/real/internal/require"
)

// Step is one instruction of a Dockerfile.
type Step struct{ Name, Rest string }

// Parse parses a Dockerfile. It removes comments and joins continued lines.
func Parse(text string) (all []Step) {
	text = regexp.MustCompile(`(?m)^\s*#.*\n`).ReplaceAllString(text, "")
	text = strings.ReplaceAll(text, "\\\n", " ")
	for line := range strings.Lines(text) {
		if name, rest, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			all = append(all, Step{name, strings.TrimSpace(rest)})
		}
	}
	return all
}

// Ignored implements .dockerignore as far as it is used here.
func Ignored(file string, patterns []string) bool {
	for _, pattern := range patterns {
		if whole, _ := filepath.Match(pattern, file); whole || file == pattern || strings.HasPrefix(file, pattern+"/") {
			return true
		}
	}
	return false
}

// CopyFile copies a file and creates its directory.
func CopyFile(t *testing.T, from, to string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o700))
	if target, err := os.Readlink(from); err == nil {
		require.NoError(t, os.Symlink(target, to))
		return
	}
	data, err := os.ReadFile(from)
	if errors.Is(err, fs.ErrNotExist) {
		return // deleted, and not committed yet
	}
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, data, 0o600))
}

// DryRun runs the commands of RUN in a directory of their own. The programs that they call only
// print how they were called. There is a rust-toolchain.toml, by which rustup's cargo would choose another
// compiler than the image's.
func DryRun(t *testing.T, commands []string, build, target string) (said string, err error) {
	t.Helper()
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	require.NoError(t, os.Mkdir(bin, 0o700))
	const speak = "#!/bin/sh\necho \"${0##*/} $*\"\nenv | grep '^C[CX]*_\\|LINKER\\|PAGE' | sed 's/^CC_[a-z0-9_]*=/CC=/; s/^.*LINKER/LINKER/; s/^.*PAGE/PAGE/'\n"
	for _, program := range []string{"apt-get", "rustup", "cargo", "install"} {
		script := speak
		if program == "cargo" {
			script += "test ! -e rust-toolchain.toml || { echo another compiler; exit 1; }\n"
		}
		require.NoError(t, os.WriteFile(filepath.Join(bin, program), []byte(script), 0o700))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "rust-toolchain.toml"), nil, 0o600))
	for _, text := range commands {
		text = regexp.MustCompile(`--mount=\S+`).ReplaceAllString(text, "")
		text = strings.ReplaceAll(text, "/target", dir+"/target")
		command := exec.Command("sh", "-c", text)
		command.Dir = dir
		command.Env = []string{"PATH=" + bin + ":/usr/bin:/bin", "BUILDARCH=" + build, "TARGETARCH=" + target}
		out, err := command.CombinedOutput()
		said += string(out)
		if err != nil {
			return said, err
		}
	}
	return said, nil
}
