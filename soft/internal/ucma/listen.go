package ucma

import (
	"slices"
	"syscall"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/soft/internal/ibcm"
)

// maxBacklog is the most connect requests that wait (net.rdma_ucm.max_backlog).
const maxBacklog = 1024

func (c *context) listen(in *abi.RdmaUcmListen, _ int) syscall.Errno {
	c.backlog = int(in.Backlog)
	if in.Backlog == 0 || in.Backlog > maxBacklog {
		c.backlog = maxBacklog
	}
	c.id.context = c
	return c.id.listen()
}

type deviceListener struct {
	device   *Device
	listener *ibcm.Listener
}

// listen makes the ID get connect requests (rdma_listen).
func (i *id) listen() syscall.Errno {
	if i.state == idle {
		if errno := i.bind(wildcard(afInet), sockaddr{}); errno != 0 {
			return errno
		}
	}
	if i.state != bound {
		return syscall.EINVAL
	}
	if i.reuse {
		if errno := i.checkPort(i.ports, false); errno != 0 {
			return errno
		}
		i.reuse = false
	}
	i.state = listening
	if i.device != nil {
		i.listenOn(i.device)
		return 0
	}
	i.m.anywhere[i] = struct{}{}
	for _, d := range i.m.devices {
		i.listenOn(d)
	}
	return 0
}

func (i *id) listenOn(d *Device) {
	i.listens = append(i.listens, deviceListener{d, d.Listen(i.serviceID(i.src.port), d.handleRequest)})
}

func (i *id) stopListeningOn(d *Device) {
	i.listens = slices.DeleteFunc(i.listens, func(l deviceListener) bool {
		if l.device == d {
			l.listener.Close()
		}
		return l.device == d
	})
}

func (i *id) stopListening() {
	delete(i.m.anywhere, i)
	for _, l := range i.listens {
		l.listener.Close()
	}
	i.listens = nil
}
