package kubectl

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/poll"
)

// Helm runs helm against a target.
func Helm(tt *testing.T, t api.Target, args ...string) Result {
	tt.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*poll.Patience)
	defer cancel()
	home := tt.TempDir()
	command := exec.CommandContext(ctx, filepath.Join(".bin", "helm"), args...)
	command.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + home, "KUBECONFIG=" + t.Kubeconfig}
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	err := command.Run()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		tt.Fatalf("helm: %v", err)
	}
	return Result{stdout.String(), stderr.String(), command.ProcessState.ExitCode()}
}

// MustSucceed returns stdout, and fails the test after a failed command.
func (r Result) MustSucceed(t *testing.T, what string) string {
	t.Helper()
	if r.Code != 0 {
		t.Fatalf("%s: exit code %d\n%s%s", what, r.Code, r.Stdout, r.Stderr)
	}
	return r.Stdout
}
