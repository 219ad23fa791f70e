// Package vfiouser serves a PCI device that is a program to a virtual machine, over the vfio-user
// protocol (QEMU's docs/interop/vfio-user.rst). The client is QEMU of at least 10.1 with -device
// vfio-user-pci.
//
//	QEMU ── UNIX socket ──► Conn ──► Device   accesses of regions, reset
//	  │                      │
//	  └── guest memory ────► Memory           mapped here by its file descriptors: DMA is a copy
//	  ◄── eventfd ────────── Interrupts
//
// The guest and the client may send anything: sizes, offsets, numbers and files are checked here,
// and a device gets accesses inside of its regions only. Memory is that of files which cannot be
// truncated.
package vfiouser
