//go:build linux

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/lab/internal/job"
)

// runOnHost runs the program on this machine, if it has an RDMA device.
func runOnHost(ctx context.Context, args []string) (int, error) {
	if devices, _ := filepath.Glob("/sys/class/infiniband/*"); len(devices) == 0 {
		return job.ExitLab, errors.New("--host: this machine has no RDMA device: modprobe rdma_rxe; rdma link add rxe0 type rxe netdev DEV")
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "VERBS_LAB="+sys.KernelRelease())
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return job.ExitStatus(exit.Sys().(syscall.WaitStatus)), nil
	}
	return job.ExitCode(err), err
}
