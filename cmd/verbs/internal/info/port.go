package info

import (
	"math/bits"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/rdmadev"
	"github.com/goverbs/verbs/uverbs"
)

// transport returns the transport of a type of device, and its number in ibv_devinfo
// (enum ibv_transport_type).
func transport(node rdmadev.NodeType) (name string, number int) {
	names := []string{"InfiniBand", "iWARP", "usNIC", "usNIC UDP", "unspecified"}
	number = max(0, int(node)-3) // InfiniBand's channel adapters, switches and routers are 1 to 3
	if node < 1 || number >= len(names) {
		return "invalid transport", -1
	}
	return names[number], number
}

func portFields(ctx *uverbs.Context, port int) (f fields, err error) {
	p, err := ctx.QueryPort(port)
	if err != nil {
		return nil, err
	}
	f.add("port", port)
	state := "invalid state"
	if s := p.State; s >= verbs.PortDown && s <= verbs.PortActive {
		state = "PORT_" + s.String()
	}
	f.addf("state", state, "%s (%d)", state, uint8(p.State))
	f.mtu("max_mtu", p.MaxMTU)
	f.mtu("active_mtu", p.ActiveMTU)
	f.add("sm_lid", p.SMLID)
	f.add("port_lid", p.LID)
	f.addf("port_lmc", p.LMC, "0x%02x", p.LMC)
	f.add("link_layer", pick(uint32(p.LinkLayer), "Unknown", "Unspecified", "InfiniBand", "Ethernet"))
	f.addf("max_msg_sz", p.MaxMessage, "0x%x", p.MaxMessage)
	f.addf("port_cap_flags", p.CapFlags, "0x%08x", p.CapFlags)
	f.addf("port_cap_flags2", p.CapFlags2, "0x%04x", p.CapFlags2)
	lanes := pick(uint32(p.MaxVLs), "invalid value", "invalid value", "1", "2", "4", "8", "15")
	f.addf("max_vl_num", p.MaxVLs, "%s (%d)", lanes, p.MaxVLs)
	f.addf("bad_pkey_cntr", p.BadPKeys, "0x%x", p.BadPKeys)
	f.addf("qkey_viol_cntr", p.QKeyViolations, "0x%x", p.QKeyViolations)
	f.add("sm_sl", p.SMSL)
	f.add("pkey_tbl_len", p.PKeys)
	f.add("gid_tbl_len", p.GIDs)
	f.add("subnet_timeout", p.SubnetTimeout)
	f.add("init_type_reply", p.InitTypeReply)
	width := pickBit(uint32(p.ActiveWidth), "invalid width", "1", "4", "8", "12", "2") + "X"
	f.addf("active_width", width, "%s (%d)", width, uint8(p.ActiveWidth))
	speed := pickBit(uint32(p.ActiveSpeed), "invalid speed", "2.5 Gbps", "5.0 Gbps", "10.0 Gbps", "10.0 Gbps", "14.0 Gbps", "25.0 Gbps", "50.0 Gbps", "100.0 Gbps", "200.0 Gbps")
	f.addf("active_speed", speed, "%s (%d)", speed, uint32(p.ActiveSpeed))
	iwarp := ctx.Device().IWARP()
	if !iwarp {
		phys := pick(uint32(p.PhysState), "invalid physical state",
			"invalid physical state", "SLEEP", "POLLING", "DISABLED", "PORT_CONFIGURATION TRAINNING", "LINK_UP", "LINK_ERROR_RECOVERY", "PHY TEST")
		f.addf("phys_state", phys, "%s (%d)", phys, uint8(p.PhysState))
	}
	// An iWARP port has one GID without a type, made of its hardware address. It is not an
	// address of anything, and ibv_devinfo does not show it.
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

func (f *fields) mtu(name string, mtu verbs.MTU) {
	n, code := mtu.Bytes(), uint8(mtu)
	if n == 0 {
		f.addf(name, n, "invalid MTU (%d)", code)
		return
	}
	f.addf(name, n, "%d (%d)", n, code)
}

// pick returns names[i], or other if there is none.
func pick(i uint32, other string, names ...string) string {
	if int(i) < len(names) {
		return names[i]
	}
	return other
}

// pickBit returns the name of the only bit set in v, or other.
func pickBit(v uint32, other string, names ...string) string {
	if bits.OnesCount32(v) != 1 {
		return other
	}
	return pick(uint32(bits.TrailingZeros32(v)), other, names...)
}
