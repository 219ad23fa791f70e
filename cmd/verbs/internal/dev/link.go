package dev

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/goverbs/verbs/rdmadev"
)

// Link is verbs link, for kong.
type Link struct {
	Add    linkAdd    `cmd:"" help:"Create a software device on a network interface."`
	Del    linkDel    `cmd:"" help:"Remove a software device."`
	Rename linkRename `cmd:"" help:"Change the name of a device."`
	Move   linkMove   `cmd:"" help:"Move a device to another network namespace."`
}

type linkAdd struct {
	Name      string `arg:"" help:"Name of the new device."`
	Type      string `arg:"" help:"rxe (Soft-RoCE) or siw (Soft-iWARP)."`
	Interface string `arg:"" help:"Network interface."`
}

func (c *linkAdd) Help() string {
	return "Examples:\n\n  verbs link add rxe0 rxe eth0\n  verbs link add siw0 siw eth0"
}

func (c *linkAdd) Run(context.Context) error {
	return privileged(rdmadev.AddLink(c.Name, c.Type, c.Interface))
}

type linkDel struct {
	Device string `arg:"" placeholder:"DEVICE" help:"Name of the device."`
}

func (c *linkDel) Help() string {
	return "Programs that use the device get errors. The kernel waits until they have closed it.\n\nExamples:\n\n  verbs link del rxe0\n  verbs link del siw0"
}

func (c *linkDel) Run(context.Context) error {
	return with(c.Device, rdmadev.Device.Delete)
}

type linkRename struct {
	Device string `arg:"" placeholder:"DEVICE" help:"Name of the device."`
	Name   string `arg:"" help:"New name."`
}

func (c *linkRename) Help() string {
	return "Examples:\n\n  verbs link rename mlx5_0 rdma0\n  verbs link rename rdma0 mlx5_0"
}

func (c *linkRename) Run(context.Context) error {
	return with(c.Device, func(d rdmadev.Device) error { return d.Rename(c.Name) })
}

type linkMove struct {
	Device    string `arg:"" placeholder:"DEVICE" help:"Name of the device."`
	Namespace string `arg:"" help:"Name of the namespace (ip netns), or path of its file, such as /proc/PID/ns/net."`
}

func (c *linkMove) Help() string {
	return `The system must not share devices between namespaces ("rdma system set netns exclusive"),
and the driver must be able to move devices.

Examples:

  verbs link move mlx5_0 blue
  verbs link move mlx5_0 /proc/4711/ns/net`
}

func (c *linkMove) Run(context.Context) error {
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
