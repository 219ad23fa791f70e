package uverbs

import (
	"fmt"
	"net/netip"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/attr"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// AH is the path to a port, for UD QPs of its [PD]. Close it after their requests have completed.
// It lives until Close, or until its PD becomes unreachable: a [verbs.UDAddr] is no pointer to it.
type AH struct {
	pd  *PD
	obj *object
	av  verbs.AddressVector
	num uint32
}

// CreateAH makes an address handle (ibv_create_ah(3)).
func (p *PD) CreateAH(av verbs.AddressVector) (*AH, error) {
	const op = "create AH in"
	if err := p.obj.enter(op); err != nil {
		return nil, err
	}
	defer p.obj.exit()
	core := p.ctx.contextCore
	req := abi.IbUverbsCreateAh{UserHandle: core.lastID.Add(1), PdHandle: p.handle, Attr: attr.AH(&av)}
	var resp abi.IbUverbsCreateAhResp
	created := false
	num, part, err := core.driverContext.CreateAH(&provider.AHInit{PD: p.driverPD, AV: av},
		core.invokeFunc(abi.IB_USER_VERBS_CMD_CREATE_AH, mmap.Bytes(&req), mmap.Bytes(&resp), &created))
	destroy := func() error {
		if !created { // the driver's kernel side has none
			return nil
		}
		return core.destroy(kindAH, resp.AhHandle)
	}
	if err != nil {
		destroy()
		return nil, p.obj.failSize(op, p.ctx.explainVector(&av, err), "MaxAH", core.dev.Attr.MaxAH)
	}
	a := &AH{pd: p, av: av, num: num}
	a.obj = newObject(p.obj.device, objectName{"AH %d", num}, withRelease(destroy, part), p.obj)
	a.obj.pinned = true // a verbs.UDAddr names it by its number
	return a, nil
}

// CreateReplyAH makes the address handle for answering a datagram, from its completion and the GRH
// in its buffer (ibv_create_ah_from_wc(3)).
func (p *PD) CreateReplyAH(port int, wc *verbs.WC, grh []byte) (*AH, error) {
	av, err := p.ctx.replyVector(port, wc, grh)
	if err != nil {
		return nil, err
	}
	return p.CreateAH(av)
}

func (c *Context) replyVector(port int, wc *verbs.WC, grh []byte) (verbs.AddressVector, error) {
	const op = "find reply address"
	av := verbs.AddressVector{DLID: wc.SLID, SL: wc.SL, SrcPathBits: wc.PathBits, Port: uint8(port)}
	if wc.Flags&verbs.WCGRH == 0 {
		return av, nil
	}
	if len(grh) < verbs.GRHSize {
		return av, c.obj.fail(op, fmt.Errorf("header of %d bytes: %w", len(grh), verbs.ErrNoGRH))
	}
	src, dst := wc.GRHAddrs(grh)
	switch {
	case !src.IsValid():
		return av, c.obj.fail(op, verbs.ErrNoGRH)
	case src.Is4():
		av.TrafficClass = grh[21]
	default:
		av.TrafficClass = grh[0]<<4 | grh[1]>>4
		av.FlowLabel = uint32(grh[1]&0xf)<<16 | uint32(grh[2])<<8 | uint32(grh[3])
	}
	fits := func(a netip.Addr) bool { return a == dst }
	if dst.IsMulticast() { // no GID of the port: a member of a group answers from any address
		fits = func(a netip.Addr) bool { return a.Is4() == src.Is4() }
	}
	local, err := c.bestGID(port, dst, fits)
	if err != nil {
		return av, err
	}
	av.Global, av.DGID, av.SGIDIndex, av.HopLimit = true, src.As16(), uint8(local.Index), 0xff
	return av, nil
}

// Attr returns the attributes that the handle was made with.
func (a *AH) Attr() verbs.AddressVector { return a.av }

// To returns the address of a QP at the handle's port, which has qkey.
func (a *AH) To(qpNum, qkey uint32) verbs.UDAddr {
	return verbs.UDAddr{AH: a.num, QPNum: qpNum, QKey: qkey}
}

// Close destroys the handle.
func (a *AH) Close() error {
	if a == nil {
		return verbs.ErrClosed
	}
	return a.obj.close()
}
