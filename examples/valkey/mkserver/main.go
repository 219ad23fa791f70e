// Command mkserver builds valkey-server with RDMA from Debian's sources, into a folder. It needs
// gcc, make, and the headers of librdmacm and libibverbs.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"

	"github.com/goverbs/verbs/lab/debian"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: mkserver FOLDER")
		os.Exit(2)
	}
	if err := build(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "mkserver:", err)
		os.Exit(1)
	}
}

func build(ctx context.Context, dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "valkey-server")); err == nil {
		return nil
	}
	source := filepath.Join(dir, "source")
	if err := os.RemoveAll(source); err != nil {
		return err
	}
	version, err := debian.Archive{Suite: "sid", Log: os.Stderr}.Source(ctx, "valkey", source)
	if err != nil {
		return err
	}
	top, err := filepath.Glob(filepath.Join(source, "*/src"))
	if err != nil || len(top) != 1 {
		return fmt.Errorf("sources of valkey %s have folders %v: %w", version, top, err)
	}
	cmd := exec.CommandContext(ctx, "make", "-C", top[0], "-j", strconv.Itoa(runtime.NumCPU()), "BUILD_RDMA=yes", "MALLOC=libc", "valkey-server", "valkey-benchmark")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("make: %w", err)
	}
	for _, name := range []string{"valkey-benchmark", "valkey-server"} { // build looks for the last
		if err := os.Rename(filepath.Join(top[0], name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	fmt.Fprintln(os.Stderr, "built valkey", version)
	return nil
}
