package provider

import (
	"encoding/binary"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// SetImm sets the immediate of a completion to imm, in host byte order.
func SetImm(wc *verbs.WC, imm uint32) {
	wc.Flags |= verbs.WCWithImm
	binary.BigEndian.PutUint32(exBytes(wc), imm)
}

// SetInvalidatedRKey sets the key that the completed receive invalidated.
func SetInvalidatedRKey(wc *verbs.WC, rkey uint32) {
	wc.Flags |= verbs.WCWithInv
	binary.NativeEndian.PutUint32(exBytes(wc), rkey)
}

// exBytes returns the 4 bytes of the union ex: verbs.WC is laid out as struct ib_uverbs_wc.
func exBytes(wc *verbs.WC) []byte {
	const off = unsafe.Offsetof(abi.IbUverbsWc{}.Ex)
	return mmap.Bytes(wc)[off : off+4]
}
