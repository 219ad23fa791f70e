package mlx5

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"syscall"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// addressHandle is a path: struct mlx5_av of qp.h, which each datagram contains. Posting adds the
// destination's key and number.
type addressHandle struct {
	ctx *context
	num uint32
	av  [avSize]byte
}

// Offsets in an address vector.
const (
	avQKey   = 0
	avQPN    = 8  // dqp_dct
	avRateSL = 12 // stat_rate_sl
	avBits   = 13 // fl_mlid: source path bits
	avLID    = 14 // rlid; on RoCE v2 the UDP source port
	avMAC    = 20 // rmac
	avClass  = 26 // tclass
	avHops   = 27 // hop_limit
	avGRH    = 28 // grh_gid_fl: whether there is a GRH, index of the GID, flow label
	avGID    = 32 // rgid

	extended = 1 << 31 // of dqp_dct, MLX5_EXTENDED_UD_AV: the vector has its full size
	withGRH  = 1 << 30 // of grh_gid_fl, on InfiniBand

	maxHandles = 1<<32 - 2
	flowMask   = 0xfffff
)

// CreateAH makes an address handle. On RoCE the kernel resolves the MAC address of the peer.
func (c *context) CreateAH(init *provider.AHInit, create func(provider.UHW) error) (uint32, provider.Object, error) {
	v := &init.AV
	if ports := int(c.resp.NumPorts); v.Port < 1 || int(v.Port) > ports {
		return 0, nil, fmt.Errorf("port %d of %d: %w", v.Port, ports, syscall.EINVAL)
	}
	a := &addressHandle{ctx: c}
	if c.dev.Port.LinkLayer == verbs.LinkEthernet { // all ports of an adapter have one link layer
		if err := c.resolve(a, v, create); err != nil {
			return 0, nil, err
		}
	} else {
		a.setInfiniBand(v)
	}
	var err error
	if a.num, err = c.ahs.reserve(maxHandles); err != nil {
		return 0, nil, err
	}
	c.ahs.set(a.num, a)
	return a.num, a, nil
}

// resolve writes a vector for RoCE.
func (c *context) resolve(a *addressHandle, v *verbs.AddressVector, create func(provider.UHW) error) error {
	if !v.Global {
		return fmt.Errorf("no global route, which RoCE requires: %w", syscall.EINVAL)
	}
	var e abi.IbUverbsGidEntry
	err := sys.File{FD: c.dev.FD, Driver: c.dev.Driver}.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_DEVICE, Method: abi.UVERBS_METHOD_QUERY_GID_ENTRY, Attrs: []sys.Attr{
		sys.Const(abi.UVERBS_ATTR_QUERY_GID_ENTRY_PORT, uint64(v.Port)),
		sys.Const(abi.UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX, uint64(v.SGIDIndex)),
		sys.Const(abi.UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS, 0),
		sys.Out(abi.UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, &e),
	}})
	if err != nil {
		return fmt.Errorf("query GID %d of port %d: %w", v.SGIDIndex, v.Port, err)
	}
	var resp abi.Mlx5IbCreateAhResp
	if err := create(provider.UHW{Out: mmap.Bytes(&resp)}); err != nil {
		return err
	}
	a.setRoCE(v, verbs.GIDType(e.GidType), resp.Dmac)
	return nil
}

// setRoCE writes a vector for RoCE. The adapter needs no bit for the GRH or IP header, which all
// packets have. The service level is a priority of 3 bits.
func (a *addressHandle) setRoCE(v *verbs.AddressVector, typ verbs.GIDType, mac [6]byte) {
	a.av[avRateSL] = rate(v.StaticRate)<<4 | v.SL&7<<1
	if typ == verbs.GIDRoCEv2 {
		binary.BigEndian.PutUint16(a.av[avLID:], sourcePort(v.FlowLabel))
	}
	copy(a.av[avMAC:], mac[:])
	a.setRoute(v, 0)
}

func (a *addressHandle) setInfiniBand(v *verbs.AddressVector) {
	a.av[avRateSL] = rate(v.StaticRate)<<4 | v.SL&0xf
	a.av[avBits] = v.SrcPathBits & 0x7f
	binary.BigEndian.PutUint16(a.av[avLID:], v.DLID)
	if v.Global {
		a.setRoute(v, withGRH)
	}
}

func (a *addressHandle) setRoute(v *verbs.AddressVector, grh uint32) {
	a.av[avClass], a.av[avHops] = v.TrafficClass, v.HopLimit
	binary.BigEndian.PutUint32(a.av[avGRH:], grh|uint32(v.SGIDIndex)<<20|v.FlowLabel&flowMask)
	copy(a.av[avGID:], v.DGID[:])
}

// put writes the vector and a destination to a request.
func (a *addressHandle) put(p unsafe.Pointer, to *verbs.UDAddr) {
	*(*[avSize]byte)(p) = a.av
	put32(unsafe.Add(p, avQKey), to.QKey)
	put32(unsafe.Add(p, avQPN), to.QPNum|extended)
}

// putDC is put for a request of a DCI: the key of its target takes the place of the Q_Key, and of the
// word behind it (struct mlx5_av: key.dc_key, dqp_dct).
func (a *addressHandle) putDC(p unsafe.Pointer, dctn uint32, key uint64) {
	*(*[avSize]byte)(p) = a.av
	put64(unsafe.Add(p, avQKey), key)
	put32(unsafe.Add(p, avQPN), dctn|extended)
}

// sourcePort returns the UDP source port of RoCE v2 packets, which switches spread flows by. It
// depends on the flow label (rdma_flow_label_to_udp_sport), and is random without one.
func sourcePort(flow uint32) uint16 {
	const first, bits = 0xc000, 0x3fff // IB_ROCE_UDP_ENCAP_VALID_PORT_MIN
	if flow &= flowMask; flow == 0 {
		return first + uint16(rand.Uint32N(bits+1))
	}
	return first | uint16(flow&bits^flow>>14)
}

// rates are the adapter's codes of static rates, by enum ib_rate. The codes of rates from 2.5 to
// 120 Gb/s are that number plus 5 (MLX5_STAT_RATE_OFFSET); other rates have the code of the next
// higher one. Code 0 is no limit.
var rates = [...]uint8{
	2: 7, 3: 8, 4: 9, 5: 10, 6: 11, 7: 12, 8: 13, 9: 14, 10: 15,
	11: 11, 12: 13, 13: 15, 15: 9, 16: 15, 19: 9, 20: 13,
}

func rate(r verbs.Rate) uint8 {
	if int(r) < len(rates) {
		return rates[r]
	}
	return 0
}

// Release implements [provider.Object].
func (a *addressHandle) Release() { a.ctx.ahs.remove(a.num) }
