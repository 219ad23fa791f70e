package rxe

import (
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
)

// verbs.SGE is laid out as struct rxe_sge; the size is checked here, the fields by a
// test.
var _ [unsafe.Sizeof(verbs.SGE{})]byte = [unsafe.Sizeof(abi.RxeSge{})]byte{}

// copySGL writes sgl to dst, which has room for it, and returns the sum of
// its lengths.
func copySGL(dst unsafe.Pointer, sgl []verbs.SGE) uint64 {
	if len(sgl) == 1 { // as most are
		*(*verbs.SGE)(dst) = sgl[0]
		return uint64(sgl[0].Length)
	}
	return copySGLSlow(dst, sgl)
}

//go:noinline
func copySGLSlow(dst unsafe.Pointer, sgl []verbs.SGE) (length uint64) {
	for i := range sgl {
		*(*verbs.SGE)(unsafe.Add(dst, uintptr(i)*unsafe.Sizeof(sgl[0]))) = sgl[i]
		length += uint64(sgl[i].Length)
	}
	return length
}

func setDMA(d *abi.RxeDmaInfo, length uint64, numSGE int) {
	d.Length = uint32(length)
	d.Resid = uint32(length)
	d.CurSge = 0
	d.NumSge = uint32(numSGE)
	d.SgeOffset = 0
}
