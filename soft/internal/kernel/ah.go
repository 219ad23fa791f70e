package kernel

import (
	"syscall"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/attr"
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/mmap"
)

// createAH is the write command CREATE_AH.
func createAH(c command) syscall.Errno {
	req, errno := requestOf[abi.IbUverbsCreateAh](c)
	if errno != 0 {
		return errno
	}
	if req.Attr.PortNum != 1 {
		return syscall.EINVAL
	}
	handle, o, errno := c.file.create(abi.UVERBS_OBJECT_AH, []ref{pdRef(req.PdHandle)}, func(o *object, of []*object) error {
		ah, err := pdOf(of[0]).CreateAH(attr.OfAH(&req.Attr))
		if err == nil {
			o.value, o.destroy = ah, ah.Destroy
		}
		return err
	})
	if errno != 0 {
		return errno
	}
	driver := abi.RxeCreateAhResp{AhNum: o.value.(*engine.AH).Num()}
	return c.file.finish(o, handle, first(c.driverOut.write(mmap.Bytes(&driver)), respond(c, &abi.IbUverbsCreateAhResp{AhHandle: handle})))
}
