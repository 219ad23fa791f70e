package kernel

import (
	"syscall"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/attr"
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/mmap"
)

// createAH is the write command CREATE_AH.
func createAH(c command, req abi.IbUverbsCreateAh) syscall.Errno {
	if req.Attr.PortNum != 1 {
		return syscall.EINVAL
	}
	return create(c.file, abi.UVERBS_OBJECT_AH, []ref{pdRef(req.PdHandle)}, func(_ *object, of []*object) (*engine.AH, func() error, error) {
		ah, err := pdOf(of[0]).CreateAH(attr.OfAH(&req.Attr))
		return ah, ah.Destroy, err
	}, func(_ *object, ah *engine.AH, handle uint32) syscall.Errno {
		driver := abi.RxeCreateAhResp{AhNum: ah.Num()}
		return first(c.driverOut.write(mmap.Bytes(&driver)), respond(c, &abi.IbUverbsCreateAhResp{AhHandle: handle}))
	})
}
