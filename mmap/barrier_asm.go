//go:build amd64 || arm64

package mmap

const ordersDevice = true

func flushDevice()

//go:noescape
func storeDevice(p *uint64, v uint64)

//go:noescape
func copyDevice(to, from *[64]byte)
