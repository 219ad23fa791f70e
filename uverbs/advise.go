package uverbs

import (
	"fmt"
	"slices"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/mmap"
)

// Advise passes hints about regions with AccessOnDemand to the kernel (ibv_advise_mr(3)). With wait
// it returns when the kernel has acted on them.
func (p *PD) Advise(advice verbs.Advice, wait bool, sgl ...verbs.SGE) error {
	return p.obj.do("advise MRs of", func() error {
		var flags uint64
		if wait {
			flags = abi.IB_UVERBS_ADVISE_MR_FLAG_FLUSH
		}
		if len(sgl) == 0 {
			return fmt.Errorf("no SGEs: %w", syscall.EINVAL)
		}
		maxSGEs := sys.MaxAttr / len(mmap.Bytes(&sgl[0]))
		for part := range slices.Chunk(sgl, maxSGEs) {
			if err := p.advise(advice, flags, part); err != nil {
				return err
			}
		}
		return nil
	})
}

func (p *PD) advise(advice verbs.Advice, flags uint64, sgl []verbs.SGE) error {
	list := make([]byte, 0, len(sgl)*len(mmap.Bytes(&sgl[0])))
	for i := range sgl {
		list = append(list, mmap.Bytes(&sgl[i])...)
	}
	return p.ctx.file.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_MR, Method: abi.UVERBS_METHOD_ADVISE_MR, Attrs: []sys.Attr{
		sys.Handle(abi.UVERBS_ATTR_ADVISE_MR_PD_HANDLE, p.handle),
		sys.Const(abi.UVERBS_ATTR_ADVISE_MR_ADVICE, uint64(advice)),
		sys.Const(abi.UVERBS_ATTR_ADVISE_MR_FLAGS, flags),
		sys.InBytes(abi.UVERBS_ATTR_ADVISE_MR_SGE_LIST, list),
	}})
}
