// Package providertest is a kit for tests of drivers, which are written for package provider. It plays
// what a driver meets, so that its queues are made, posted to and polled without a card, a kernel
// that knows the card, or a virtual machine:
//
//	uverbs ──► driver ──► Kernel ──► your answers      CreateCQ, CreateQP, ...
//	              │
//	              ├──► Kernel.Registers                what a doorbell has stored
//	              └──► Memory                          what Post has written, and what the card
//	                                                   would write for Poll
//
// A [Kernel] answers the commands from a table: its fields are the answers of the card's kernel driver.
// With [Kernel.Register] it is a device for package uverbs, and with [Kernel.Device] one for calls of the
// driver alone.
//
// A [Comparison] posts the same random requests with a C library, in a [Program] of its own, and
// with the driver. The folder c has the C side: deaf.h plays the kernel for libibverbs and its
// providers, and orders.h does what a Comparison orders.
//
// docs/drivers.md brings a driver to life with both, step by step. Package rdmatest plays scenarios
// on a device that there is.
package providertest
