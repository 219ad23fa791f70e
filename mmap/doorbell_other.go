//go:build !amd64

package mmap

import "sync/atomic"

func copyDoorbell(record *atomic.Uint32, v uint32, to, from *[64]byte) {
	record.Store(v)
	flushDevice()
	copyDevice(to, from)
	flushDevice()
}

func storeDoorbell(record *atomic.Uint32, v uint32, p *uint64, w uint64) {
	record.Store(v)
	flushDevice()
	storeDevice(p, w)
	flushDevice()
}
