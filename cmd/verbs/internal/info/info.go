// Package info implements verbs info, which shows what devices can do, as ibv_devinfo -v does.
package info

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/rdmadev"
	"github.com/goverbs/verbs/uverbs"
)

// Cmd is verbs info, for kong.
type Cmd struct {
	Device string `arg:"" optional:"" placeholder:"DEVICE" help:"Device, by name, GUID, interface or address; all by default."`
	JSON   bool   `help:"Print JSON, with the names that ibv_devinfo uses."`
}

func (c *Cmd) Help() string {
	return `Examples:

  verbs info                    all devices
  verbs info rxe0               one of them
  verbs info eth1 --json        the device of a network interface, as JSON`
}

func (c *Cmd) Run() error {
	devs, err := devicesAt(c.Device)
	if c.JSON && c.Device == "" && errors.Is(err, verbs.ErrNoDevice) {
		err = cmp.Or(cli.WriteJSON(os.Stdout, []fields{}), err)
	}
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
		errs = append(errs, cli.WriteJSON(os.Stdout, all))
		return errors.Join(errs...)
	}
	out := &cli.Output{W: os.Stdout}
	for _, f := range all {
		f[:1].print(out, cli.Width(os.Stdout), "")
		f[1:].print(out, cli.Width(os.Stdout), "\t")
		fmt.Fprintln(out)
	}
	return errors.Join(append(errs, out.Err)...)
}

// devicesAt returns the device that spec describes, see [uverbs.Find], or all if it is
// empty. It is an error if there are none.
func devicesAt(spec string) ([]uverbs.Device, error) {
	if spec == "" {
		devs, err := uverbs.Devices()
		if err != nil || len(devs) > 0 {
			return devs, err
		}
	}
	d, err := uverbs.Find(spec)
	if err != nil {
		return nil, err
	}
	return []uverbs.Device{d}, nil
}

// deviceFields returns what ibv_devinfo -v shows about a device, with the same names and order, and
// also values that ibv_devinfo leaves out if zero, the driver, the place of a PCI device and the
// features.
func deviceFields(d uverbs.Device) (f fields, err error) {
	ctx, err := d.Open()
	if err != nil {
		return nil, err
	}
	defer ctx.Close()
	a, err := ctx.QueryDevice()
	if err != nil {
		return nil, err
	}
	f.add("hca_id", d.Name)
	r, err := rdmadev.Find(d.Name)
	if err != nil {
		return nil, err
	}
	driver := ctx.Driver()
	if r.Driver == "soft" { // its queues have rxe's format
		driver = r.Driver
	}
	f.add("driver", driver)
	name, number := transport(r.Type)
	f.addf("transport", name, "%s (%d)", name, number)
	f.add("fw_ver", cmp.Or(r.Firmware, a.Firmware())) // software devices report it only to verbs
	f.add("node_guid", colons(d.GUID))
	f.add("sys_image_guid", colons(r.SystemGUID))
	f.addf("vendor_id", a.VendorID, "0x%04x", a.VendorID)
	f.add("vendor_part_id", a.VendorPartID)
	f.addf("hw_ver", a.HWVersion, "0x%X", a.HWVersion)
	if r.Board != "" {
		f.add("board_id", r.Board)
	}
	f.pci(r)
	f.add("phys_port_cnt", a.Ports)
	f.addf("max_mr_size", a.MaxMRSize, "0x%x", a.MaxMRSize)
	f.addf("page_size_cap", a.PageSizeCap, "0x%x", a.PageSizeCap)
	f.add("max_qp", a.MaxQP)
	f.add("max_qp_wr", a.MaxQPWR)
	f.flags("device_cap_flags", a.CapFlags&math.MaxUint32, 8, deviceCaps)
	f.add("max_sge", a.MaxSGE)
	f.add("max_sge_rd", a.MaxSGERead)
	f.add("max_cq", a.MaxCQ)
	f.add("max_cqe", a.MaxCQE)
	f.add("max_mr", a.MaxMR)
	f.add("max_pd", a.MaxPD)
	f.add("max_qp_rd_atom", a.MaxQPRDAtomic)
	f.add("max_ee_rd_atom", a.MaxEERDAtomic)
	f.add("max_res_rd_atom", a.MaxResRDAtomic)
	f.add("max_qp_init_rd_atom", a.MaxQPInitRDAtomic)
	f.add("max_ee_init_rd_atom", a.MaxEEInitRDAtomic)
	f.addf("atomic_cap", uint32(a.AtomicCap), "%s (%d)", pick(uint32(a.AtomicCap), "invalid atomic capability", "ATOMIC_NONE", "ATOMIC_HCA", "ATOMIC_GLOB"), uint32(a.AtomicCap))
	f.add("max_ee", a.MaxEE)
	f.add("max_rdd", a.MaxRDD)
	f.add("max_mw", a.MaxMW)
	f.add("max_raw_ipv6_qp", a.MaxRawIPv6QP)
	f.add("max_raw_ethy_qp", a.MaxRawEthernetQP)
	f.add("max_mcast_grp", a.MaxMcastGroup)
	f.add("max_mcast_qp_attach", a.MaxMcastQPAttach)
	f.add("max_total_mcast_qp_attach", a.MaxTotalMcastQPAttach)
	f.add("max_ah", a.MaxAH)
	f.add("max_fmr", a.MaxFMR)
	f.add("max_map_per_fmr", a.MaxMapPerFMR)
	f.add("max_srq", a.MaxSRQ)
	f.add("max_srq_wr", a.MaxSRQWR)
	f.add("max_srq_sge", a.MaxSRQSGE)
	f.add("max_pkeys", a.MaxPKeys)
	f.add("local_ca_ack_delay", a.LocalCAAckDelay)
	f.extended(a, driver == "mlx5")
	f.add("num_comp_vectors", ctx.CompVectors())
	var ports []fields
	for port := 1; port <= a.Ports; port++ {
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

// pci adds where a device is in the machine, which software devices are not.
func (f *fields) pci(d rdmadev.Device) {
	if d.PCI.Addr == "" {
		return
	}
	f.add("pci_addr", d.PCI.Addr)
	switch p := d.PCI; {
	case p.PhysFn != "":
		f.addf("pci_physfn", p.PhysFn, "%s, of which this is a virtual function", p.PhysFn)
	case p.MaxVirtFns > 0:
		f.addf("pci_virtfns", len(p.VirtFns), "%d of at most %d", len(p.VirtFns), p.MaxVirtFns)
	}
	f.add("numa_node", d.NUMANode)
}

// extended adds the attributes of ibv_query_device_ex. Segmentation offload, hash functions
// and packet pacing come from private responses of drivers. rxe and siw do not send them:
// ibv_devinfo shows zeros for them. mlx5 does, but nothing here reads them, so they are left out.
func (f *fields) extended(a *verbs.DeviceAttr, private bool) {
	f.flags("general_odp_caps", a.ODP.General, 1, odpCaps)
	f.flags("rc_odp_caps", uint64(a.ODP.RC), 1, odpTransportCaps)
	f.flags("uc_odp_caps", uint64(a.ODP.UC), 1, odpTransportCaps)
	f.flags("ud_odp_caps", uint64(a.ODP.UD), 1, odpTransportCaps)
	f.flags("xrc_odp_caps", uint64(a.ODP.XRC), 1, odpTransportCaps)
	f.addf("completion_timestamp_mask", a.TimestampMask, "0x%016x", a.TimestampMask)
	f.addf("hca_core_clock", a.CoreClock, "%d kHz", a.CoreClock)
	f.flags("raw_packet_caps", uint64(a.RawPacketCaps), 1, rawPacketCaps)
	f.flags("device_cap_flags_ex", a.CapFlags, 1, deviceCapsEx)
	rss := fields{
		number("max_rwq_indirection_tables", a.RSS.MaxRWQIndirectionTables),
		number("max_rwq_indirection_table_size", a.RSS.MaxRWQIndirectionTableSize),
	}
	if !private {
		f.add("tso_caps", fields{number("max_tso", 0)})
		rss = append(rss, field{"rx_hash_function", 0, "0x0"}, field{"rx_hash_fields_mask", 0, "0x0"})
	}
	f.add("rss_caps", append(rss, number("supported_qp", int(a.RSS.QPTypes))))
	f.add("max_wq_type_rq", a.MaxWQTypeRQ)
	if !private {
		f.add("packet_pacing_caps", fields{{"qp_rate_limit_min", 0, "0 kbps"}, {"qp_rate_limit_max", 0, "0 kbps"}})
	}
	tm := a.TagMatching
	f.add("tm_caps", fields{
		number("max_rndv_hdr_size", tm.MaxRendezvousHeader),
		number("max_num_tags", tm.MaxTags),
		number("max_ops", tm.MaxOps),
		number("max_sge", tm.MaxSGE),
		number("flags", int(tm.Flags)),
	})
	f.add("cq_moderation_caps", fields{
		number("max_cq_count", a.MaxCQModCount),
		number("max_cq_period", a.MaxCQModPeriod),
	})
	f.add("max_dm_size", a.MaxDMSize)
}

func number(name string, v int) field { return field{name, v, fmt.Sprint(v)} }

// featureFields reports for every feature whether programs can use it: true, or the errno with
// which it is refused.
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

// refusal returns the name of the errno in err, EOPNOTSUPP if the device lacks the feature.
func refusal(err error) string {
	errno, ok := errors.AsType[syscall.Errno](err)
	switch {
	case ok && errno != syscall.EOPNOTSUPP: // ErrnoName returns ENOTSUP for it
		return sys.ErrnoName(errno)
	case errors.Is(err, errors.ErrUnsupported):
		return "EOPNOTSUPP"
	}
	return err.Error()
}

func colons(g verbs.GUID) string {
	s := g.String()
	return strings.Join([]string{s[:4], s[4:8], s[8:12], s[12:]}, ":")
}
