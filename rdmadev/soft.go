package rdmadev

import (
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/host"
)

// softDevices returns the devices in user space of this process.
func (s Source) softDevices() (devices []Device, err error) {
	if s.Sys != "" {
		return nil, nil
	}
	if err := host.Prepare(); err != nil {
		return nil, err
	}
	for _, v := range host.Devices() {
		if s.Filter == nil || s.Filter(v.Name) {
			devices = append(devices, s.softDevice(v))
		}
	}
	return devices, nil
}

func (s Source) softDevice(v *host.Device) Device {
	attr := v.Port()
	port := Port{
		Device: v.Name, Num: 1, State: attr.State, PhysState: attr.PhysState, LinkLayer: verbs.LinkEthernet,
		Rate: 2500, Lanes: 1, Speed: "SDR", // as rxe
		CapFlags: attr.CapFlags, soft: v,
	}
	for _, g := range softGIDs(v) {
		if g.Interface != "" && !slices.Contains(port.Interfaces, g.Interface) {
			port.Interfaces = append(port.Interfaces, g.Interface)
		}
	}
	return Device{
		Name: v.Name, Index: v.Index, Type: NodeCA, Protocol: RoCE, NodeGUID: v.GUID, SystemGUID: v.SysGUID,
		Description: "RoCE v2 in user space", Firmware: v.Firmware, Driver: "soft", NUMANode: -1,
		Ports: []Port{port}, src: s, soft: v,
	}
}

func softGIDs(v *host.Device) (gids []GID) {
	for _, e := range v.GIDs() {
		g := GID{Index: e.Index, GID: e.GID, Type: e.Type}
		if ifi, err := net.InterfaceByIndex(e.Interface); err == nil {
			g.Interface = ifi.Name
		}
		gids = append(gids, g)
	}
	return gids
}

func softCounters(v *host.Device) (list []Counter) {
	values := v.Counters()
	for _, name := range slices.Sorted(maps.Keys(values)) {
		list = append(list, newCounter(name, values[name], true))
	}
	return list
}

// softObjects returns the objects of a kind on a device in user space.
func (d Device) softObjects(kind string) []host.Object {
	return slices.DeleteFunc(d.soft.Objects(), func(o host.Object) bool { return o.Kind != kind })
}

// softList describes the objects of a kind.
func softList[T any](d Device, kind string, describe func(Owner, host.Object) T) (list []T) {
	owner := Owner{PID: os.Getpid(), Comm: filepath.Base(os.Args[0])}
	if name, err := readText("/proc/self/comm"); err == nil && name != "" {
		owner.Comm = name
	}
	for _, o := range d.softObjects(kind) {
		list = append(list, describe(owner, o))
	}
	return list
}

func (d Device) softQPs() []QP {
	return softList(d, "qp", func(owner Owner, o host.Object) QP {
		return QP{
			Owner: owner, Num: o.Num, Port: o.Port, PD: o.PD, Type: o.QPType, State: o.State,
			RemoteNum: o.RemoteNum, RecvPSN: o.RecvPSN, SendPSN: o.SendPSN,
		}
	})
}

func (d Device) softCQs() []CQ {
	return softList(d, "cq", func(owner Owner, o host.Object) CQ {
		return CQ{Owner: owner, Num: o.Num, Context: o.Context, Depth: o.Depth, Users: o.Users}
	})
}

func (d Device) softMRs() []MR {
	return softList(d, "mr", func(owner Owner, o host.Object) MR {
		return MR{Owner: owner, Num: o.Num, PD: o.PD, Length: o.Length, LKey: o.Key, RKey: o.Key}
	})
}

func (d Device) softPDs() []PD {
	return softList(d, "pd", func(owner Owner, o host.Object) PD {
		return PD{Owner: owner, Num: o.Num, Context: o.Context, Users: o.Users}
	})
}

func (d Device) softContexts() []Context {
	return softList(d, "ctx", func(owner Owner, o host.Object) Context { return Context{owner, o.Num} })
}

func (d Device) softCMIDs() []CMID {
	return softList(d, "cm_id", func(owner Owner, o host.Object) CMID {
		id := CMID{
			Owner: owner, Num: o.Num, Port: o.Port, QPType: o.QPType, PortSpace: portSpace(o.Space), State: o.CMState,
			Local: o.Local, Remote: o.Remote,
		}
		if len(o.QPs) > 0 {
			id.QP = o.QPs[0]
		}
		return id
	})
}

func (d Device) softSRQs() []SRQ {
	return softList(d, "srq", func(owner Owner, o host.Object) SRQ {
		s := SRQ{Owner: owner, Num: o.Num, PD: o.PD, Type: "BASIC"}
		for _, num := range o.QPs {
			s.QPs = append(s.QPs, Range{num, num})
		}
		return s
	})
}
