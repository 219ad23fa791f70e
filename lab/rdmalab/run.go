//go:build linux

package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/goverbs/verbs/lab/internal/image"
	"github.com/goverbs/verbs/lab/internal/job"
	"github.com/goverbs/verbs/lab/internal/machine"
)

func runInLab(ctx context.Context, c config, args []string, std machine.Stdio, begun time.Time) (int, error) {
	k, err := c.prepare(ctx)
	if err != nil {
		return job.ExitLab, err
	}
	dir, err := os.Getwd()
	if err != nil {
		return job.ExitLab, err
	}
	t, err := machine.NewTask(k, c.Options, c.write, args, os.Environ(), dir)
	if err != nil {
		return job.ExitLab, err
	}
	t.Begun = begun
	done, err := takeTurn(ctx, c.parallel)
	if err != nil {
		return job.ExitLab, err
	}
	defer done()
	c.choose(ctx, k)
	if c.peer == "" {
		return machine.RunAlone(ctx, k, t, c.Options, std)
	}
	peer, err := image.Fetch(ctx, c.peer, image.ArchByName(c.arch))
	if err == nil && (k.UML() || peer.UML()) {
		err = errors.New("--peer: User-mode Linux has no wire to another machine")
	}
	if err == nil && len(c.NICs) > 0 {
		err = peer.UnpackLater(ctx, image.AdapterModules)
	}
	if err != nil {
		return job.ExitLab, err
	}
	return machine.RunPair(ctx, k, peer, t, c.Options, std)
}

// prepare fetches the kernel and the userland.
func (c *config) prepare(ctx context.Context) (image.Kernel, error) {
	on := image.ArchByName(c.arch)
	k, err := image.Fetch(ctx, c.kernel, on)
	if err == nil && c.suite != "" {
		c.Userland, err = image.FetchUserland(ctx, c.suite, on)
	}
	if err == nil && len(c.NICs) > 0 {
		if c.AdapterWire, err = machine.NewWire(c.Options); err == nil {
			c.Emulator, err = image.FindEmulator(ctx, on)
		}
		if err == nil {
			err = k.UnpackLater(ctx, image.AdapterModules)
		}
	}
	return k, err
}

// choose chooses the accelerator. It may boot a machine.
func (c *config) choose(ctx context.Context, k image.Kernel) {
	if k.Arch.Foreign() {
		c.Accel = "tcg"
	}
	if c.Accel == "" && !k.UML() {
		c.Accel = machine.Accelerator(ctx, k, c.Options)
	}
}
