//go:build amd64 || arm64

package mmap

import "sync/atomic"

const ordersDevice = true

func flushDevice()

//go:noescape
func storeDevice(p *uint64, v uint64)

//go:noescape
func storeDevice32(p *uint32, v uint32)

//go:noescape
func copyDevice(to, from *[64]byte)

//go:noescape
func storeDoorbell64(record *atomic.Uint64, p *uint64, v uint64)
