package rxe

import (
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
)

// verbs.SGE is laid out as struct rxe_sge; the size is checked here, the fields by a test.
var _ [unsafe.Sizeof(verbs.SGE{})]byte = [unsafe.Sizeof(abi.RxeSge{})]byte{}

// copySGL writes sgl to dst, which has room for it, and returns the sum of its lengths.
func copySGL(dst unsafe.Pointer, sgl []verbs.SGE) (length uint64) {
	for i := range sgl {
		length += copySGE(unsafe.Add(dst, uintptr(i)*unsafe.Sizeof(sgl[0])), &sgl[i])
	}
	return length
}

func copySGE(dst unsafe.Pointer, sge *verbs.SGE) uint64 {
	*(*verbs.SGE)(dst) = *sge
	return uint64(sge.Length)
}

func setDMA(d *abi.RxeDmaInfo, length uint64, numSGE int) {
	d.Length = uint32(length)
	d.Resid = uint32(length)
	d.CurSge = 0
	d.NumSge = uint32(numSGE)
	d.SgeOffset = 0
}
