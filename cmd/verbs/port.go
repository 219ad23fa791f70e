package main

import (
	"fmt"
	"math/bits"

	"github.com/goverbs/verbs/uverbs"
)

// transport is what a device's node type makes of it, and ibv_devinfo's number
// for that (enum ibv_transport_type).
func transport(d uverbs.Device) (name string, number int) {
	var node int
	fmt.Sscanf(d.NodeType, "%d:", &node) // enum rdma_node_type
	switch node {
	case 1, 2, 3: // CA, switch, router
		return "InfiniBand", 0
	case 4:
		return "iWARP", 1
	case 5:
		return "usNIC", 2
	case 6:
		return "usNIC UDP", 3
	case 7:
		return "unspecified", 4
	}
	return "invalid transport", -1
}

func portFields(ctx *uverbs.Context, port int) (f fields, err error) {
	attr, err := ctx.QueryPort(port)
	if err != nil {
		return nil, err
	}
	p := attr.LegacyResp
	f.add("port", port)
	state := "invalid state"
	if s := uverbs.PortState(p.State); s >= uverbs.PortDown && s <= uverbs.PortActive {
		state = "PORT_" + s.String()
	}
	f.addf("state", state, "%s (%d)", state, p.State)
	f.mtu("max_mtu", p.MaxMtu)
	f.mtu("active_mtu", p.ActiveMtu)
	f.add("sm_lid", p.SmLid)
	f.add("port_lid", p.Lid)
	f.addf("port_lmc", p.Lmc, "0x%02x", p.Lmc)
	f.add("link_layer", pick(uint32(p.LinkLayer), "Unknown", "Unspecified", "InfiniBand", "Ethernet"))
	f.addf("max_msg_sz", p.MaxMsgSz, "0x%x", p.MaxMsgSz)
	f.addf("port_cap_flags", p.PortCapFlags, "0x%08x", p.PortCapFlags)
	f.addf("port_cap_flags2", attr.PortCapFlags2, "0x%04x", attr.PortCapFlags2)
	lanes := pick(uint32(p.MaxVlNum), "invalid value", "invalid value", "1", "2", "4", "8", "15")
	f.addf("max_vl_num", p.MaxVlNum, "%s (%d)", lanes, p.MaxVlNum)
	f.addf("bad_pkey_cntr", p.BadPkeyCntr, "0x%x", p.BadPkeyCntr)
	f.addf("qkey_viol_cntr", p.QkeyViolCntr, "0x%x", p.QkeyViolCntr)
	f.add("sm_sl", p.SmSl)
	f.add("pkey_tbl_len", p.PkeyTblLen)
	f.add("gid_tbl_len", p.GidTblLen)
	f.add("subnet_timeout", p.SubnetTimeout)
	f.add("init_type_reply", p.InitTypeReply)
	width := pickBit(uint32(p.ActiveWidth), "invalid width", "1", "4", "8", "12", "2") + "X"
	f.addf("active_width", width, "%s (%d)", width, p.ActiveWidth)
	code := attr.ActiveSpeedEx // has room for more than 8 speeds; zero from old kernels
	if code == 0 {
		code = uint32(p.ActiveSpeed)
	}
	speed := pickBit(code, "invalid speed", "2.5 Gbps", "5.0 Gbps", "10.0 Gbps", "10.0 Gbps", "14.0 Gbps", "25.0 Gbps", "50.0 Gbps", "100.0 Gbps", "200.0 Gbps")
	f.addf("active_speed", speed, "%s (%d)", speed, code)
	name, _ := transport(ctx.Device())
	iwarp := name == "iWARP"
	if !iwarp {
		phys := pick(uint32(p.PhysState), "invalid physical state",
			"invalid physical state", "SLEEP", "POLLING", "DISABLED", "PORT_CONFIGURATION TRAINNING", "LINK_UP", "LINK_ERROR_RECOVERY", "PHY TEST")
		f.addf("phys_state", phys, "%s (%d)", phys, p.PhysState)
	}
	// An iWARP port has one GID, made of its hardware address. It is of no type
	// and names nothing, and ibv_devinfo does not show it.
	gids := []gid{}
	if !iwarp {
		table, err := ctx.GIDTable()
		if err != nil {
			return nil, err
		}
		for _, g := range table {
			if g.Port == port {
				gids = append(gids, gid{g.Index, g.GID.String(), g.Type.String()})
			}
		}
	}
	f.add("gids", gids)
	return f, nil
}

func (f *fields) mtu(name string, code uint8) {
	n := uverbs.MTU(code).Bytes()
	if n == 0 {
		f.addf(name, n, "invalid MTU (%d)", code)
		return
	}
	f.addf(name, n, "%d (%d)", n, code)
}

// pick returns the name with a number, or other.
func pick(i uint32, other string, names ...string) string {
	if int(i) < len(names) {
		return names[i]
	}
	return other
}

// pickBit returns the name with the number of the one bit that is set.
func pickBit(v uint32, other string, names ...string) string {
	if bits.OnesCount32(v) != 1 {
		return other
	}
	return pick(uint32(bits.TrailingZeros32(v)), other, names...)
}
