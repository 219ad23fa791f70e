// Package vfiouser serves a PCI device in software to a virtual machine, over the vfio-user protocol
// (QEMU's docs/interop/vfio-user.rst). The client is QEMU 10.1 or later with -device vfio-user-pci.
//
//	QEMU ── UNIX socket ──► Serve ─► Device   accesses of regions, reset
//	  │                      │
//	  └── guest memory ────► Memory           mapped here by its file descriptors: DMA is a copy
//	  ◄── eventfd ────────── Interrupts
//
// The guest and the client may send anything: this package checks sizes, offsets, numbers and files,
// and passes on only accesses inside of a device's regions. It maps only files that cannot be
// truncated, as an access beyond a file's end would end the process.
package vfiouser
