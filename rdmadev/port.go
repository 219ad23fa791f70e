package rdmadev

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/nldev"
)

// Port describes a port of a device.
type Port struct {
	Device    string
	Num       int // from 1
	State     verbs.PortState
	PhysState verbs.PhysState
	LinkLayer verbs.LinkLayer // Ethernet for iWARP

	// Of the link. Software devices report a constant, and a port that is down may report its last
	// rate or the lowest.
	Rate  int    // Mb/s; 0 if unknown
	Lanes int    // 1, 2, 4, 8 or 12
	Speed string // of a lane, by InfiniBand's name: "EDR"

	// Of InfiniBand and Omni-Path subnets:
	LID, SMLID uint16
	LMC, SMSL  uint8
	CapFlags   uint32 // PortInfo:CapabilityMask (IBA 14.2.5.6)

	// Interfaces has the names of the network interfaces whose addresses are GIDs of the port: its
	// own, a bond above it, VLANs. If there are none, it has the hardware's interface for this
	// port, such as an IPoIB interface, if that exists.
	Interfaces []string

	Errs []error // attributes that could not be read

	dir   string
	iwarp bool
}

// GID is an entry of a port's GID table.
type GID struct {
	Index     int
	GID       verbs.GID
	Type      verbs.GIDType
	Interface string // "" if there is none
}

func (d *Device) readPort(num int) Port {
	a := attrs{dir: d.src.class("infiniband", d.Name, "ports", strconv.Itoa(num))}
	p := Port{
		dir: a.dir, iwarp: d.Type == NodeRNIC, Device: d.Name, Num: num,
		State:     verbs.PortState(a.uint("state", 10, 8)),
		PhysState: verbs.PhysState(a.uint("phys_state", 10, 8)),
		LID:       uint16(a.uint("lid", 0, 16)),
		SMLID:     uint16(a.uint("sm_lid", 0, 16)),
		LMC:       uint8(a.uint("lid_mask_count", 10, 8)),
		SMSL:      uint8(a.uint("sm_sl", 10, 8)),
		CapFlags:  uint32(a.uint("cap_mask", 0, 32)),
	}
	switch a.text("link_layer") {
	case "InfiniBand":
		p.LinkLayer = verbs.LinkInfiniBand
	case "Ethernet":
		p.LinkLayer = verbs.LinkEthernet
	}
	if text := a.text("rate"); text != "" {
		var err error
		if p.Rate, p.Lanes, p.Speed, err = parseRate(text); err != nil {
			a.errs = append(a.errs, a.unexpected("rate", text))
		}
	}
	for _, index := range a.list("gid_attrs/ndevs") {
		// Entries that are not in use cannot be read.
		name, err := host.ReadAttr(filepath.Join(a.dir, "gid_attrs/ndevs", index))
		if err == nil && name != "" && !slices.Contains(p.Interfaces, name) {
			p.Interfaces = append(p.Interfaces, name)
		}
	}
	p.Errs = a.errs
	return p
}

// parseRate parses "100 Gb/sec (4X EDR)". The rate may have one digit after the point, and
// the name of the speed, or all that is in brackets, may be missing: "0 GB/sec".
func parseRate(text string) (mbps, lanes int, speed string, err error) {
	rate, link, _ := strings.Cut(text, " ")
	_, link, _ = strings.Cut(link, "(")
	gbps, err := strconv.ParseFloat(rate, 64)
	if err != nil || !(gbps >= 0 && gbps <= 1e6) { // it may be NaN
		return 0, 0, "", fmt.Errorf("no rate")
	}
	if link = strings.TrimSuffix(link, ")"); link != "" {
		width, name, _ := strings.Cut(link, "X")
		if lanes, err = strconv.Atoi(width); err != nil {
			return 0, 0, "", err
		}
		speed = strings.TrimSpace(name)
	}
	return int(gbps*1000 + 0.5), lanes, speed, nil
}

// readInterfaces adds the interfaces of ports for which sysfs has none, as for iWARP devices before
// Linux 6.4.
func (d *Device) readInterfaces() {
	if !slices.ContainsFunc(d.Ports, func(p Port) bool { return p.LinkLayer == verbs.LinkEthernet && p.Interfaces == nil }) {
		return
	}
	nldev.Dump(abi.RDMA_NLDEV_CMD_PORT_GET, d.handle(), func(a nldev.Attrs) error {
		port := a.Map()
		name := port[abi.RDMA_NLDEV_ATTR_NDEV_NAME].String()
		for i := range d.Ports {
			if p := &d.Ports[i]; p.Num == int(port[abi.RDMA_NLDEV_ATTR_PORT_INDEX].Uint()) && p.Interfaces == nil && name != "" {
				p.Interfaces = []string{name}
			}
		}
		return nil
	})
}

// unusedGID is a prefix without a GUID, which old kernels show for unused entries.
var unusedGID = verbs.GID{0: 0xfe, 1: 0x80}

// GIDs returns the valid entries of the port's GID table.
func (p Port) GIDs() ([]GID, error) {
	a := attrs{dir: p.dir}
	var gids []GID
	for _, index := range a.list("gids") {
		i, err := strconv.Atoi(index)
		if err != nil {
			continue
		}
		text := a.text(filepath.Join("gids", index))
		if text == "" {
			continue
		}
		gid, err := verbs.ParseGID(text)
		if err != nil {
			a.errs = append(a.errs, a.unexpected(filepath.Join("gids", index), text))
			continue
		}
		if gid == (verbs.GID{}) || gid == unusedGID {
			continue
		}
		g := GID{Index: i, GID: gid}
		// The kernel answers EINVAL if it knows no type or interface.
		typ, _ := host.ReadAttr(filepath.Join(p.dir, "gid_attrs/types", index))
		switch typ {
		case "RoCE v2":
			g.Type = verbs.GIDRoCEv2
		case "IB/RoCE v1", "RoCE v1":
			if p.LinkLayer == verbs.LinkEthernet && !p.iwarp {
				g.Type = verbs.GIDRoCEv1
			}
		}
		g.Interface, _ = host.ReadAttr(filepath.Join(p.dir, "gid_attrs/ndevs", index))
		gids = append(gids, g)
	}
	return gids, a.error("GIDs", p)
}

// PKeys returns the port's table of partition keys, without entries that are 0 at its end.
func (p Port) PKeys() ([]uint16, error) {
	a := attrs{dir: p.dir}
	var keys []uint16
	for _, index := range a.list("pkeys") {
		i, err := strconv.Atoi(index)
		if err != nil || i < 0 || i > 1<<16 {
			continue
		}
		if key := uint16(a.uint(filepath.Join("pkeys", index), 0, 16)); key != 0 {
			keys = append(keys, make([]uint16, max(0, i+1-len(keys)))...)
			keys[i] = key
		}
	}
	return keys, a.error("P_Keys", p)
}

// error returns the errors of reading what a port has, or that the port has gone meanwhile.
func (a *attrs) error(what string, p Port) error {
	errs := a.errs
	if err := a.exists(); err != nil {
		errs = append([]error{err}, errs...)
	}
	if len(errs) == 0 {
		return nil
	}
	return &verbs.Error{Op: "read", Object: fmt.Sprintf("%s of port %d", what, p.Num), Device: p.Device, Err: readErrors(errs)}
}

// readErrors are the errors of reading attributes. Error returns the text of the first.
type readErrors []error

func (e readErrors) Error() string {
	if n := len(e) - 1; n > 0 {
		return fmt.Sprintf("%v, and %d more", e[0], n)
	}
	return e[0].Error()
}

// Unwrap returns all of them.
func (e readErrors) Unwrap() []error { return e }
