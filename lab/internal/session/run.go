//go:build linux

// Package session runs what a command line asks for, when it is this process's turn to have a machine: Run
// a program on a machine or on two, and Test the packages of a go test one after the other on one machine.
package session

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/goverbs/verbs/lab/internal/image"
	"github.com/goverbs/verbs/lab/internal/job"
	"github.com/goverbs/verbs/lab/internal/machine"
)

// Config describes a run.
type Config struct {
	Kernel, Peer string
	Arch         string
	Suite        string // of the userland; the host's if empty
	Write        string
	Parallel     int // machines at a time, see takeTurn
	machine.Options
}

// Run runs a program on a machine, or on two. A test's time counts from begun.
func Run(ctx context.Context, c Config, args []string, std machine.Stdio, begun time.Time) (int, error) {
	k, err := c.prepare(ctx)
	if err != nil {
		return job.ExitLab, err
	}
	dir, err := os.Getwd()
	if err != nil {
		return job.ExitLab, err
	}
	t, err := machine.NewTask(k, c.Options, c.Write, args, os.Environ(), dir)
	if err != nil {
		return job.ExitLab, err
	}
	t.Begun = begun
	done, err := takeTurn(ctx, c.Parallel)
	if err != nil {
		return job.ExitLab, err
	}
	defer done()
	c.choose(ctx, k)
	if c.Peer == "" {
		return machine.RunAlone(ctx, k, t, c.Options, std)
	}
	peer, err := image.Fetch(ctx, c.Peer, image.ArchByName(c.Arch))
	if err == nil && (k.UML() || peer.UML()) {
		err = errors.New("--peer: User-mode Linux has no wire to another machine")
	}
	if err == nil && len(c.NICs) > 0 {
		err = prepareModules(ctx, peer, c.AdapterModules())
	}
	if err != nil {
		return job.ExitLab, err
	}
	return machine.RunPair(ctx, k, peer, t, c.Options, std)
}

// prepare fetches the kernel and, if c names them, the userland, and what adapters need: their wire, a QEMU
// and their modules. It sets c's fields of Options for these.
func (c *Config) prepare(ctx context.Context) (image.Kernel, error) {
	on := image.ArchByName(c.Arch)
	k, err := image.Fetch(ctx, c.Kernel, on)
	if err == nil && c.Suite != "" {
		c.Userland, err = image.FetchUserland(ctx, c.Suite, on)
	}
	if err == nil && len(c.NICs) > 0 {
		if c.AdapterWire, err = machine.NewWire(c.Options); err == nil {
			c.Emulator, err = image.FindEmulator(ctx, on)
		}
		if err == nil {
			err = prepareModules(ctx, k, c.AdapterModules())
		}
	}
	return k, err
}

// prepareModules prepares modules that a kernel has been fetched without.
func prepareModules(ctx context.Context, k image.Kernel, names []string) error {
	if err := k.BuildLater(ctx, names); err != nil {
		return err
	}
	return k.UnpackLater(ctx, names)
}

// choose chooses the accelerator. It may boot a machine.
func (c *Config) choose(ctx context.Context, k image.Kernel) {
	if k.Arch.Foreign() {
		c.Accel = "tcg"
	}
	if c.Accel == "" && !k.UML() {
		c.Accel = machine.Accelerator(ctx, k, c.Options)
	}
}
