package dev

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/goverbs/verbs/rdmadev"
)

// Link is verbs link, for kong.
type Link struct {
	Add    LinkAdd    `cmd:"" help:"Create a software device on a network interface."`
	Del    LinkDel    `cmd:"" help:"Remove a software device."`
	Rename LinkRename `cmd:"" help:"Change the name of a device."`
	Move   LinkMove   `cmd:"" help:"Move a device to another network namespace."`
}

// LinkAdd is verbs link add, for kong.
type LinkAdd struct {
	Name      string `arg:"" help:"Name of the new device."`
	Type      string `arg:"" help:"rxe (Soft-RoCE) or siw (Soft-iWARP)."`
	Interface string `arg:"" help:"Network interface."`
}

func (c *LinkAdd) Help() string {
	return "Examples:\n\n  verbs link add rxe0 rxe eth0\n  verbs link add siw0 siw eth0"
}

func (c *LinkAdd) Run(context.Context) error {
	return privileged(rdmadev.AddLink(c.Name, c.Type, c.Interface))
}

// LinkDel is verbs link del, for kong.
type LinkDel struct {
	Device string `arg:"" placeholder:"DEVICE" help:"Name of the device."`
}

func (c *LinkDel) Help() string {
	return "Programs that use the device get errors. The kernel waits until they have closed it.\n\nExamples:\n\n  verbs link del rxe0\n  verbs link del siw0"
}

func (c *LinkDel) Run(context.Context) error {
	return with(c.Device, rdmadev.Device.Delete)
}

// LinkRename is verbs link rename, for kong.
type LinkRename struct {
	Device string `arg:"" placeholder:"DEVICE" help:"Name of the device."`
	Name   string `arg:"" help:"New name."`
}

func (c *LinkRename) Help() string {
	return "Examples:\n\n  verbs link rename mlx5_0 rdma0\n  verbs link rename rdma0 mlx5_0"
}

func (c *LinkRename) Run(context.Context) error {
	return with(c.Device, func(d rdmadev.Device) error { return d.Rename(c.Name) })
}

// LinkMove is verbs link move, for kong.
type LinkMove struct {
	Device    string `arg:"" placeholder:"DEVICE" help:"Name of the device."`
	Namespace string `arg:"" help:"Name of the namespace (ip netns), or path of its file, such as /proc/PID/ns/net."`
}

func (c *LinkMove) Help() string {
	return `The system must not share devices between namespaces ("rdma system set netns exclusive"),
and the driver must be able to move devices.

Examples:

  verbs link move mlx5_0 blue
  verbs link move mlx5_0 /proc/4711/ns/net`
}

func (c *LinkMove) Run(context.Context) error {
	path := c.Namespace
	if !strings.Contains(path, "/") {
		path = filepath.Join("/run/netns", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return with(c.Device, func(d rdmadev.Device) error { return d.MoveTo(f) })
}

// with calls do with the device that has a name.
func with(name string, do func(rdmadev.Device) error) error {
	d, err := source.Find(name)
	if err != nil {
		return err
	}
	return privileged(do(d))
}

// privileged adds what an ordinary user needs to change devices.
func privileged(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w (this needs CAP_NET_ADMIN: run it as root)", err)
	}
	return err
}
