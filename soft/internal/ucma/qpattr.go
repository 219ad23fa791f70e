package ucma

import (
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/attr"
)

func (f *File) initQPAttr(in *abi.RdmaUcmInitQpAttr, out int) syscall.Errno {
	state := verbs.QPState(in.QpState)
	if state > verbs.StateErr {
		return syscall.EINVAL
	}
	c, errno := f.boundContext(in.Id)
	if errno != 0 {
		return errno
	}
	a, mask, err := c.id.qpAttr(state)
	if err != nil {
		return errnoOf(err)
	}
	return respond(in.Response, out, qpAttr(&a, mask))
}

// qpAttr returns the attributes with which the program's QP moves to a state
// (rdma_init_qp_attr).
func (i *id) qpAttr(state verbs.QPState) (attr verbs.QPAttr, mask verbs.QPAttrMask, err error) {
	if i.cm == nil || i.datagram() {
		attr, mask = verbs.QPAttr{State: state, Port: 1}, verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort
		if i.datagram() {
			i.setDefaultQKey()
			attr.QKey = i.qkey
			mask |= verbs.MaskQKey
		} else {
			mask |= verbs.MaskAccess
		}
	} else if attr, mask, err = i.cm.QPAttr(state); err != nil {
		return attr, mask, err
	}
	if state == verbs.StateRTR {
		attr.RQPSN = i.psn
	}
	if mask&verbs.MaskTimeout != 0 && i.ackTimeout.set {
		attr.Timeout = i.ackTimeout.value
	}
	return attr, mask, nil
}

// qpAttr returns attributes in the kernel's form (ib_copy_qp_attr_to_user).
func qpAttr(a *verbs.QPAttr, mask verbs.QPAttrMask) *abi.IbUverbsQpAttr {
	return &abi.IbUverbsQpAttr{
		QpAttrMask: uint32(mask), QpState: uint32(a.State), PathMtu: uint32(a.PathMTU), Qkey: a.QKey, RqPsn: a.RQPSN, SqPsn: a.SQPSN,
		DestQpNum: a.DestQPNum, QpAccessFlags: uint32(a.Access), AhAttr: attr.AH(&a.AV), PkeyIndex: a.PKeyIndex,
		MaxRdAtomic: a.MaxRDAtomic, MaxDestRdAtomic: a.MaxDestRDAtomic, MinRnrTimer: a.MinRNRTimer, PortNum: a.Port,
		Timeout: a.Timeout, RetryCnt: a.RetryCount, RnrRetry: a.RNRRetry,
	}
}
