package soft

import (
	"fmt"
	"sync"
	"syscall"

	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/soft/internal/ucma"
)

// machine is a host: devices with one connection manager.
type machine struct {
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
	all   map[hostKey]*machine
	count int // of hosts that there have been
}{all: map[hostKey]*machine{}}

// joinHost returns the host of a new device, which leaves it with leave.
func joinHost(k hostKey) *machine {
	hosts.Lock()
	defer hosts.Unlock()
	h := hosts.all[k]
	if h == nil {
		var route ucma.Router
		if k.network == nil {
			route = ucma.SystemRoute
		}
		h = &machine{hostKey: k, node: host.CM, manager: ucma.New(route)}
		if k != (hostKey{}) {
			hosts.count++
			h.node = fmt.Sprintf("%s/%d", host.CM, hosts.count)
		}
		hosts.all[k] = h
		host.Provide(h.node, func() (host.File, syscall.Errno) { return h.manager.Open(), 0 })
	}
	h.devices++
	return h
}

// leave undoes joinHost. The last device takes the connection manager with it.
func (h *machine) leave() {
	hosts.Lock()
	defer hosts.Unlock()
	if h.devices--; h.devices == 0 {
		host.Provide(h.node, nil)
		delete(hosts.all, h.hostKey)
	}
}
