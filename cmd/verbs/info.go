package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/goverbs/verbs/uverbs"
)

type infoCmd struct {
	Device string `arg:"" optional:"" help:"Device; all if not given."`
	JSON   bool   `help:"Print JSON, with the names that ibv_devinfo uses."`
}

// field is one line of ibv_devinfo -v, and one member of the JSON object.
type field struct {
	name  string
	value any    // for JSON: a number, string, list or fields
	text  string // for people; if empty, value as it is
}

type fields []field

func (f *fields) add(name string, value any, format ...any) {
	text := fmt.Sprint(value)
	if len(format) > 0 {
		text = fmt.Sprintf(format[0].(string), format[1:]...)
	}
	*f = append(*f, field{name, value, text})
}

// MarshalJSON keeps the order.
func (f fields) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range f {
		if i > 0 {
			b.WriteByte(',')
		}
		v, err := json.Marshal(m.value)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%q:%s", m.name, v)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

func (c *infoCmd) Run() error {
	devs, err := devicesNamed(c.Device)
	if err != nil {
		return err
	}
	var all []fields
	var errs []error
	for _, d := range devs {
		f, err := deviceFields(d)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, f)
	}
	if c.JSON {
		if all == nil {
			all = []fields{}
		}
		errs = append(errs, printJSON(all))
	} else {
		for _, f := range all {
			f.print("")
			fmt.Println()
		}
	}
	return errors.Join(errs...)
}

func (f fields) print(indent string) {
	for _, m := range f {
		switch v := m.value.(type) {
		case []fields:
			for _, p := range v {
				p.print(indent + "\t\t")
			}
		case []gidField:
			for _, g := range v {
				fmt.Printf("%s\tGID[%3d]:\t\t%s, %s\n", indent, g.Index, g.GID, g.Type)
			}
		default:
			fmt.Fprintf(os.Stdout, "%s%-24s\t%s\n", indent, m.name+":", m.text)
		}
		if indent == "" && m.name == "hca_id" {
			indent = "\t"
		}
	}
}

type gidField struct {
	Index int    `json:"index"`
	GID   string `json:"gid"`
	Type  string `json:"type"`
}

func colons(g uverbs.GUID) string {
	s := g.String()
	return strings.Join([]string{s[:4], s[4:8], s[8:12], s[12:]}, ":")
}

func deviceFields(d uverbs.Device) (f fields, err error) {
	ctx, err := d.Open()
	if err != nil {
		return nil, err
	}
	defer ctx.Close()
	attr, err := ctx.QueryDevice()
	if err != nil {
		return nil, err
	}
	a := attr.Base
	transport, number := "InfiniBand", 0
	if strings.HasSuffix(d.NodeType, "RNIC") {
		transport, number = "iWARP", 1
	}
	f.add("hca_id", d.Name)
	f.add("driver", ctx.Driver())
	f.add("transport", transport, "%s (%d)", transport, number)
	if d.Firmware == "" { // software devices only tell by this way
		d.Firmware = fmt.Sprintf("%d.%d.%d", a.FwVer>>32&0xffff, a.FwVer>>16&0xffff, a.FwVer&0xffff)
	}
	f.add("fw_ver", d.Firmware)
	f.add("node_guid", colons(d.GUID))
	f.add("sys_image_guid", colons(d.SysGUID))
	f.add("vendor_id", a.VendorId, "0x%04x", a.VendorId)
	f.add("vendor_part_id", a.VendorPartId)
	f.add("hw_ver", a.HwVer, "0x%X", a.HwVer)
	if d.Board != "" {
		f.add("board_id", d.Board)
	}
	f.add("phys_port_cnt", a.PhysPortCnt)
	f.add("max_mr_size", a.MaxMrSize, "0x%x", a.MaxMrSize)
	f.add("page_size_cap", a.PageSizeCap, "0x%x", a.PageSizeCap)
	f.add("max_qp", a.MaxQp)
	f.add("max_qp_wr", a.MaxQpWr)
	f.add("device_cap_flags", a.DeviceCapFlags, "0x%08x %s", a.DeviceCapFlags, strings.Join(names(capNames, uint64(a.DeviceCapFlags)), " "))
	f.add("max_sge", a.MaxSge)
	f.add("max_sge_rd", a.MaxSgeRd)
	f.add("max_cq", a.MaxCq)
	f.add("max_cqe", a.MaxCqe)
	f.add("max_mr", a.MaxMr)
	f.add("max_pd", a.MaxPd)
	f.add("max_qp_rd_atom", a.MaxQpRdAtom)
	f.add("max_ee_rd_atom", a.MaxEeRdAtom)
	f.add("max_res_rd_atom", a.MaxResRdAtom)
	f.add("max_qp_init_rd_atom", a.MaxQpInitRdAtom)
	f.add("max_ee_init_rd_atom", a.MaxEeInitRdAtom)
	f.add("atomic_cap", a.AtomicCap, "%s (%d)", pick(a.AtomicCap, "ATOMIC_NONE", "ATOMIC_HCA", "ATOMIC_GLOB"), a.AtomicCap)
	f.add("max_ee", a.MaxEe)
	f.add("max_rdd", a.MaxRdd)
	f.add("max_mw", a.MaxMw)
	f.add("max_raw_ipv6_qp", a.MaxRawIpv6Qp)
	f.add("max_raw_ethy_qp", a.MaxRawEthyQp)
	f.add("max_mcast_grp", a.MaxMcastGrp)
	f.add("max_mcast_qp_attach", a.MaxMcastQpAttach)
	f.add("max_total_mcast_qp_attach", a.MaxTotalMcastQpAttach)
	f.add("max_ah", a.MaxAh)
	f.add("max_fmr", a.MaxFmr)
	f.add("max_srq", a.MaxSrq)
	f.add("max_srq_wr", a.MaxSrqWr)
	f.add("max_srq_sge", a.MaxSrqSge)
	f.add("max_pkeys", a.MaxPkeys)
	f.add("local_ca_ack_delay", a.LocalCaAckDelay)
	odp := attr.OdpCaps
	f.add("general_odp_caps", odp.GeneralCaps, "0x%x", odp.GeneralCaps)
	f.add("rc_odp_caps", odp.PerTransportCaps.RcOdpCaps, "0x%x", odp.PerTransportCaps.RcOdpCaps)
	f.add("uc_odp_caps", odp.PerTransportCaps.UcOdpCaps, "0x%x", odp.PerTransportCaps.UcOdpCaps)
	f.add("ud_odp_caps", odp.PerTransportCaps.UdOdpCaps, "0x%x", odp.PerTransportCaps.UdOdpCaps)
	f.add("xrc_odp_caps", attr.XrcOdpCaps, "0x%x", attr.XrcOdpCaps)
	f.add("completion_timestamp_mask", attr.TimestampMask, "0x%x", attr.TimestampMask)
	f.add("hca_core_clock", attr.HcaCoreClock, "%d kHZ", attr.HcaCoreClock)
	f.add("device_cap_flags_ex", attr.DeviceCapFlagsEx, "0x%X", attr.DeviceCapFlagsEx)
	f.add("max_rwq_indirection_tables", attr.RssCaps.MaxRwqIndirectionTables)
	f.add("max_rwq_indirection_table_size", attr.RssCaps.MaxRwqIndirectionTableSize)
	f.add("max_wq_type_rq", attr.MaxWqTypeRq)
	f.add("num_comp_vectors", ctx.CompVectors())
	var ports []fields
	for port := 1; port <= int(a.PhysPortCnt); port++ {
		p, err := portFields(ctx, port)
		if err != nil {
			return nil, err
		}
		ports = append(ports, p)
	}
	f.add("ports", ports)
	return f, nil
}

func portFields(ctx *uverbs.Context, port int) (f fields, err error) {
	attr, err := ctx.QueryPort(port)
	if err != nil {
		return nil, err
	}
	table, err := ctx.GIDTable()
	if err != nil {
		return nil, err
	}
	p := attr.LegacyResp
	f.add("port", port)
	state := "PORT_" + uverbs.PortState(p.State).String()
	f.add("state", state, "%s (%d)", state, p.State)
	f.add("max_mtu", uverbs.MTU(p.MaxMtu).Bytes(), "%v", uverbs.MTU(p.MaxMtu))
	f.add("active_mtu", uverbs.MTU(p.ActiveMtu).Bytes(), "%v", uverbs.MTU(p.ActiveMtu))
	f.add("sm_lid", p.SmLid)
	f.add("port_lid", p.Lid)
	f.add("port_lmc", p.Lmc, "0x%02x", p.Lmc)
	f.add("link_layer", pick(uint32(p.LinkLayer), "Unspecified", "InfiniBand", "Ethernet"))
	f.add("max_msg_sz", p.MaxMsgSz, "0x%x", p.MaxMsgSz)
	f.add("port_cap_flags", p.PortCapFlags, "0x%08x", p.PortCapFlags)
	f.add("port_cap_flags2", attr.PortCapFlags2, "0x%04x", attr.PortCapFlags2)
	f.add("max_vl_num", p.MaxVlNum)
	f.add("bad_pkey_cntr", p.BadPkeyCntr, "0x%x", p.BadPkeyCntr)
	f.add("qkey_viol_cntr", p.QkeyViolCntr, "0x%x", p.QkeyViolCntr)
	f.add("sm_sl", p.SmSl)
	f.add("pkey_tbl_len", p.PkeyTblLen)
	f.add("gid_tbl_len", p.GidTblLen)
	f.add("subnet_timeout", p.SubnetTimeout)
	f.add("init_type_reply", p.InitTypeReply)
	width := map[uint8]string{1: "1X", 2: "4X", 4: "8X", 8: "12X", 16: "2X"}[p.ActiveWidth]
	f.add("active_width", width, "%s (%d)", width, p.ActiveWidth)
	speed := map[uint8]string{1: "2.5 Gbps", 2: "5.0 Gbps", 4: "10.0 Gbps", 8: "10.0 Gbps", 16: "14.0 Gbps", 32: "25.0 Gbps", 64: "50.0 Gbps", 128: "100.0 Gbps"}[p.ActiveSpeed]
	f.add("active_speed", speed, "%s (%d)", speed, p.ActiveSpeed)
	phys := pick(uint32(p.PhysState), "", "SLEEP", "POLLING", "DISABLED", "PORT_CONFIGURATION TRAINNING", "LINK_UP", "LINK_ERROR_RECOVERY", "PHY TEST")
	f.add("phys_state", phys, "%s (%d)", phys, p.PhysState)
	gids := []gidField{}
	for _, g := range table {
		if g.Port == port {
			gids = append(gids, gidField{g.Index, g.GID.String(), g.Type.String()})
		}
	}
	f.add("gids", gids)
	return f, nil
}

func pick(i uint32, names ...string) string {
	if int(i) < len(names) {
		return names[i]
	}
	return "unknown"
}

// names lists the flags that are set.
func names(table []flagName, flags uint64) (set []string) {
	for _, n := range table {
		if flags&n.bit != 0 {
			set = append(set, n.name)
		}
	}
	return set
}
