package rdmadev

import (
	"maps"
	"net"
	"slices"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/virtual"
)

// softDevices returns the devices in user space of this process.
func (s Source) softDevices() (devices []Device, err error) {
	if s.Sys != "" {
		return nil, nil
	}
	if err := virtual.Prepare(); err != nil {
		return nil, err
	}
	for _, v := range virtual.Devices() {
		if s.Filter == nil || s.Filter(v.Name) {
			devices = append(devices, s.softDevice(v))
		}
	}
	return devices, nil
}

func (s Source) softDevice(v *virtual.Device) Device {
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

func softGIDs(v *virtual.Device) (gids []GID) {
	for _, e := range v.GIDs() {
		g := GID{Index: e.Index, GID: e.GID, Type: e.Type}
		if ifi, err := net.InterfaceByIndex(e.Interface); err == nil {
			g.Interface = ifi.Name
		}
		gids = append(gids, g)
	}
	return gids
}

func softCounters(v *virtual.Device) (list []Counter) {
	values := v.Counters()
	for _, name := range slices.Sorted(maps.Keys(values)) {
		list = append(list, newCounter(name, values[name], true))
	}
	return list
}
