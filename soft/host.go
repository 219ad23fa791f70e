package soft

import (
	"fmt"
	"sync"
	"syscall"

	"github.com/goverbs/verbs/internal/virtual"
	"github.com/goverbs/verbs/soft/internal/ucma"
)

// host is a machine: devices with one connection manager.
type host struct {
	hostKey
	node    string // of rdma_cm
	manager *ucma.Manager
	devices int
}

// hostKey names a host.
type hostKey struct {
	network Network // nil is UDP
	name    string
}

// hosts has the hosts that have devices.
var hosts = struct {
	sync.Mutex
	all   map[hostKey]*host
	count int // of hosts that there have been
}{all: map[hostKey]*host{}}

// joinHost returns the host of a new device, which leaves it with leave.
func joinHost(k hostKey) *host {
	hosts.Lock()
	defer hosts.Unlock()
	h := hosts.all[k]
	if h == nil {
		var route ucma.Router
		if k.network == nil {
			route = ucma.SystemRoute
		}
		h = &host{hostKey: k, node: virtual.CM, manager: ucma.New(route)}
		if k != (hostKey{}) {
			hosts.count++
			h.node = fmt.Sprintf("%s/%d", virtual.CM, hosts.count)
		}
		hosts.all[k] = h
		virtual.Provide(h.node, func() (virtual.File, syscall.Errno) { return h.manager.Open(), 0 })
	}
	h.devices++
	return h
}

// leave undoes joinHost. The last device takes the connection manager with it.
func (h *host) leave() {
	hosts.Lock()
	defer hosts.Unlock()
	if h.devices--; h.devices == 0 {
		virtual.Provide(h.node, nil)
		delete(hosts.all, h.hostKey)
	}
}
