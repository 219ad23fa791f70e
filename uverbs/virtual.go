package uverbs

import (
	"net/netip"
	"slices"

	"github.com/goverbs/verbs/internal/host"
)

// rxeABI is RXE_UVERBS_ABI_VERSION of rdma_user_rxe.h.
const rxeABI = 2

// virtualDevices lists the devices in user space, which are like rxe's.
func virtualDevices() (devs []Device, err error) {
	if err := host.Prepare(); err != nil {
		return nil, err
	}
	for _, v := range host.Devices() {
		devs = append(devs, Device{
			Name: v.Name, Node: v.Node, NodeType: "1: CA", GUID: v.GUID, SysGUID: v.SysGUID, Firmware: v.Firmware,
			Ports: 1, ABI: rxeABI,
		})
	}
	return devs, nil
}

// hasVirtualAddr reports whether d is a device in user space with an address.
func (d Device) hasVirtualAddr(addr netip.Addr) bool {
	v := host.DeviceAt(d.Node)
	return v != nil && slices.ContainsFunc(v.Addrs, func(a netip.Addr) bool {
		return a == addr.Unmap() || addr.Zone() == "" && a.WithZone("") == addr
	})
}

// interfacesOf returns the network interfaces with the addresses of a device in user space.
func interfacesOf(v *host.Device) (names []string) {
	for _, addr := range v.Addrs {
		for _, name := range interfacesWith(addr) {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}
