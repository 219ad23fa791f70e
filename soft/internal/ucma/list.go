package ucma

import (
	"os"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/nldev"
)

// stateNumbers are the states in netlink (enum rdma_cm_state).
var stateNumbers = [...]uint8{
	idle: 0, addrQuery: 1, addrKnown: 2, routeKnown: 4, connecting: 5, wasConnected: 6, bound: 7, listening: 8, removed: 9,
	destroying: 10,
}

// Objects returns, as entries of netlink's table, the IDs that are bound to the device, or listen
// on all devices (fill_res_cm_id_entry of nldev.c).
func (d *Device) Objects() (all [][]byte) {
	d.m.lock()
	defer d.m.unlock()
	for num, c := range d.m.contexts.Values {
		if c == nil || c.id == nil || c.id.device != d && (c.id.device != nil || c.id.state != listening) {
			continue
		}
		i := c.id
		a := nldev.Attrs{}.Uint32(abi.RDMA_NLDEV_ATTR_RES_PID, uint32(os.Getpid())).Uint32(abi.RDMA_NLDEV_ATTR_RES_CM_IDN, uint32(num)).
			Uint32(abi.RDMA_NLDEV_ATTR_RES_TYPE, uint32(i.typ)).Uint32(abi.RDMA_NLDEV_ATTR_RES_PS, uint32(i.space)).
			Uint8(abi.RDMA_NLDEV_ATTR_RES_STATE, stateNumbers[i.state]).Uint32(abi.RDMA_NLDEV_ATTR_RES_LQPN, i.qpNum).
			Bytes(abi.RDMA_NLDEV_ATTR_RES_SRC_ADDR, i.src.storage()).Bytes(abi.RDMA_NLDEV_ATTR_RES_DST_ADDR, i.dst.storage())
		if i.device == d {
			a = a.Uint32(abi.RDMA_NLDEV_ATTR_PORT_INDEX, 1)
		}
		all = append(all, a)
	}
	return all
}

// storage returns the address as a struct sockaddr_storage.
func (a *sockaddr) storage() []byte {
	b := make([]byte, 128)
	if a.addr.IsValid() {
		a.encode(b)
	}
	return b
}
