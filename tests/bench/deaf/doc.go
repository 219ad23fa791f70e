// Package deaf has devices of mlx5 and erdma without an adapter: nobody hears their doorbells.
//
//	Post ──► queue, doorbell record, registers     memory that nobody reads
//	Poll ◄── CQ ◄── Complete                       what the adapter would write
//
// A [providertest.Kernel] plays the kernel, with the answers that it gives for an emulated ConnectX-6 Dx and
// an emulated erdma. So posting and polling can be measured on the machine's own processor.
package deaf

import (
	"github.com/goverbs/verbs/providertest"
	"github.com/goverbs/verbs/uverbs"
)

// open opens a device with a name, which is not among [uverbs.Devices].
func open(name string, k *providertest.Kernel) (*uverbs.Context, error) {
	remove, err := k.Register(name)
	if err != nil {
		return nil, err
	}
	defer remove()
	return uverbs.Open(name)
}

// page returns a page of registers.
func page(_ int64, length int) ([]byte, error) { return make([]byte, length), nil }
