package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/uverbs"
)

type infoCmd struct {
	Device string `arg:"" optional:"" help:"Device; all if not given."`
	JSON   bool   `help:"Print JSON, with the names that ibv_devinfo uses."`
}

func (c *infoCmd) Run() error {
	devs, err := devicesNamed(c.Device)
	if err != nil {
		return err
	}
	all := []fields{}
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
		errs = append(errs, printJSON(all))
		return errors.Join(errs...)
	}
	for _, f := range all {
		f[:1].print(os.Stdout, "")
		f[1:].print(os.Stdout, "\t")
		fmt.Println()
	}
	return errors.Join(errs...)
}

// deviceFields is what ibv_devinfo -v shows of a device, under its names and
// in its order. What that leaves out if it is zero is here in any case. Driver
// and features are what ibv_devinfo does not know.
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
	f.add("hca_id", d.Name)
	f.add("driver", ctx.Driver())
	name, number := transport(d)
	f.addf("transport", name, "%s (%d)", name, number)
	if d.Firmware == "" { // software devices only tell by this way
		d.Firmware = fmt.Sprintf("%d.%d.%d", a.FwVer>>32&0xffff, a.FwVer>>16&0xffff, a.FwVer&0xffff)
	}
	f.add("fw_ver", d.Firmware)
	f.add("node_guid", colons(d.GUID))
	f.add("sys_image_guid", colons(d.SysGUID))
	f.addf("vendor_id", a.VendorId, "0x%04x", a.VendorId)
	f.add("vendor_part_id", a.VendorPartId)
	f.addf("hw_ver", a.HwVer, "0x%X", a.HwVer)
	if d.Board != "" {
		f.add("board_id", d.Board)
	}
	f.add("phys_port_cnt", a.PhysPortCnt)
	f.addf("max_mr_size", a.MaxMrSize, "0x%x", a.MaxMrSize)
	f.addf("page_size_cap", a.PageSizeCap, "0x%x", a.PageSizeCap)
	f.add("max_qp", a.MaxQp)
	f.add("max_qp_wr", a.MaxQpWr)
	f.flags("device_cap_flags", uint64(a.DeviceCapFlags), 8, deviceCaps)
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
	f.addf("atomic_cap", a.AtomicCap, "%s (%d)", pick(a.AtomicCap, "invalid atomic capability", "ATOMIC_NONE", "ATOMIC_HCA", "ATOMIC_GLOB"), a.AtomicCap)
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
	f.add("max_map_per_fmr", a.MaxMapPerFmr)
	f.add("max_srq", a.MaxSrq)
	f.add("max_srq_wr", a.MaxSrqWr)
	f.add("max_srq_sge", a.MaxSrqSge)
	f.add("max_pkeys", a.MaxPkeys)
	f.add("local_ca_ack_delay", a.LocalCaAckDelay)
	f.extended(attr)
	f.add("num_comp_vectors", ctx.CompVectors())
	var ports []fields
	for port := 1; port <= int(a.PhysPortCnt); port++ {
		p, err := portFields(ctx, port)
		if err != nil {
			return nil, err
		}
		ports = append(ports, p)
	}
	f.add("features", featureFields(ctx))
	f.add("ports", ports)
	return f, nil
}

// extended adds what came with ibv_query_device_ex. Segmentation offload, hash
// functions and packet pacing are a driver's private answer, which those this
// project drives do not give: for them ibv_devinfo shows zeros.
func (f *fields) extended(attr *uverbs.DeviceAttr) {
	odp := attr.OdpCaps
	f.flags("general_odp_caps", odp.GeneralCaps, 1, odpCaps)
	f.flags("rc_odp_caps", uint64(odp.PerTransportCaps.RcOdpCaps), 1, odpTransportCaps)
	f.flags("uc_odp_caps", uint64(odp.PerTransportCaps.UcOdpCaps), 1, odpTransportCaps)
	f.flags("ud_odp_caps", uint64(odp.PerTransportCaps.UdOdpCaps), 1, odpTransportCaps)
	f.flags("xrc_odp_caps", uint64(attr.XrcOdpCaps), 1, odpTransportCaps)
	f.addf("completion_timestamp_mask", attr.TimestampMask, "0x%016x", attr.TimestampMask)
	f.addf("hca_core_clock", attr.HcaCoreClock, "%d kHz", attr.HcaCoreClock)
	f.flags("raw_packet_caps", uint64(attr.RawPacketCaps), 1, rawPacketCaps)
	f.flags("device_cap_flags_ex", attr.DeviceCapFlagsEx, 1, deviceCapsEx)
	f.add("tso_caps", fields{
		{"max_tso", 0, "0"},
	})
	rss := attr.RssCaps
	f.add("rss_caps", fields{
		number("max_rwq_indirection_tables", rss.MaxRwqIndirectionTables),
		number("max_rwq_indirection_table_size", rss.MaxRwqIndirectionTableSize),
		{"rx_hash_function", 0, "0x0"},
		{"rx_hash_fields_mask", 0, "0x0"},
		number("supported_qp", rss.SupportedQpts),
	})
	f.add("max_wq_type_rq", attr.MaxWqTypeRq)
	f.add("packet_pacing_caps", fields{
		{"qp_rate_limit_min", 0, "0 kbps"},
		{"qp_rate_limit_max", 0, "0 kbps"},
	})
	tm := attr.TmCaps
	f.add("tm_caps", fields{
		number("max_rndv_hdr_size", tm.MaxRndvHdrSize),
		number("max_num_tags", tm.MaxNumTags),
		number("max_ops", tm.MaxOps),
		number("max_sge", tm.MaxSge),
		number("flags", tm.Flags),
	})
	moderation := attr.CqModerationCaps
	f.add("cq_moderation_caps", fields{
		number("max_cq_count", uint32(moderation.MaxCqModerationCount)),
		number("max_cq_period", uint32(moderation.MaxCqModerationPeriod)),
	})
	f.add("max_dm_size", attr.MaxDmSize)
}

func number(name string, v uint32) field { return field{name, v, fmt.Sprint(v)} }

// featureFields says of every feature whether the kernel provides it: true, or
// the errno of its refusal.
func featureFields(ctx *uverbs.Context) (f fields) {
	for _, feature := range uverbs.Features() {
		if err := ctx.Probe(feature); err != nil {
			f.add(string(feature), refusal(err))
		} else {
			f.addf(string(feature), true, "yes")
		}
	}
	return f
}

// refusal names the errno in err. What a device just does not claim to have
// counts as EOPNOTSUPP.
func refusal(err error) string {
	errno, ok := errors.AsType[syscall.Errno](err)
	switch {
	case ok && errno != unix.EOPNOTSUPP: // which has another name, too
		return unix.ErrnoName(errno)
	case errors.Is(err, errors.ErrUnsupported):
		return "EOPNOTSUPP"
	}
	return err.Error()
}

func colons(g uverbs.GUID) string {
	s := g.String()
	return strings.Join([]string{s[:4], s[4:8], s[8:12], s[12:]}, ":")
}
