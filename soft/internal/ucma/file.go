package ucma

import (
	"slices"
	"syscall"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/soft/internal/uapi"
)

// File is an open /dev/infiniband/rdma_cm (struct ucma_file). It is never in blocking mode.
type File struct {
	host.Unsupported
	m     *Manager
	ready host.Readiness

	// The manager's lock guards these:
	contexts []*context
	events   []*pending
	closed   bool
}

// Open opens a file.
func (m *Manager) Open() *File { return &File{m: m} }

// Watch implements [host.File].
func (f *File) Watch(changed func(host.State)) (stop func()) { return f.ready.Watch(changed) }

// Close destroys the IDs that are on the file (ucma_close).
func (f *File) Close() {
	f.m.lock()
	defer f.m.unlock()
	f.closed = true
	for len(f.contexts) > 0 {
		f.contexts[len(f.contexts)-1].destroy()
	}
}

func (f *File) queue(p *pending) {
	f.events = append(f.events, p)
	f.updateState()
}

// drop removes the events for which is returns true.
func (f *File) drop(is func(*pending) bool) {
	f.events = slices.DeleteFunc(f.events, is)
	f.updateState()
}

func (f *File) updateState() {
	state := host.Idle
	if len(f.events) > 0 {
		state = host.Readable
	}
	f.ready.Set(state)
}

// command runs a command whose request is in, and for whose answer there are out bytes of
// room. It is called with the manager's lock held.
type command func(f *File, in []byte, out int) syscall.Errno

// commands has the RDMA_USER_CM_CMD that package cm uses. Others fail with ENOSYS, as those do that
// the kernel does not implement.
var commands = [...]command{
	abi.RDMA_USER_CM_CMD_CREATE_ID:     answered[abi.RdmaUcmCreateIdResp](plain((*File).createID)),
	abi.RDMA_USER_CM_CMD_DESTROY_ID:    answered[abi.RdmaUcmDestroyIdResp](plain((*File).destroyID)),
	abi.RDMA_USER_CM_CMD_RESOLVE_ROUTE: onDevice(func(r *abi.RdmaUcmResolveRoute) uint32 { return r.Id }, (*context).resolveRoute),
	abi.RDMA_USER_CM_CMD_CONNECT:       onDevice(func(r *abi.RdmaUcmConnect) uint32 { return r.Id }, (*context).connect),
	abi.RDMA_USER_CM_CMD_LISTEN:        on(func(r *abi.RdmaUcmListen) uint32 { return r.Id }, (*context).listen),
	abi.RDMA_USER_CM_CMD_ACCEPT:        onDevice(func(r *abi.RdmaUcmAccept) uint32 { return r.Id }, (*context).accept),
	abi.RDMA_USER_CM_CMD_REJECT:        onDevice(func(r *abi.RdmaUcmReject) uint32 { return r.Id }, (*context).reject),
	abi.RDMA_USER_CM_CMD_DISCONNECT:    onDevice(func(r *abi.RdmaUcmDisconnect) uint32 { return r.Id }, (*context).disconnect),
	abi.RDMA_USER_CM_CMD_INIT_QP_ATTR:  answered[abi.IbUverbsQpAttr](onDevice(func(r *abi.RdmaUcmInitQpAttr) uint32 { return r.Id }, (*context).initQPAttr)),
	abi.RDMA_USER_CM_CMD_GET_EVENT:     plain((*File).getEvent),
	abi.RDMA_USER_CM_CMD_SET_OPTION:    on(func(r *abi.RdmaUcmSetOption) uint32 { return r.Id }, (*context).setOption),
	abi.RDMA_USER_CM_CMD_NOTIFY:        on(func(r *abi.RdmaUcmNotify) uint32 { return r.Id }, (*context).notify),
	abi.RDMA_USER_CM_CMD_LEAVE_MCAST:   answered[abi.RdmaUcmDestroyIdResp](plain((*File).leave)),
	abi.RDMA_USER_CM_CMD_MIGRATE_ID:    plain((*File).migrate),
	abi.RDMA_USER_CM_CMD_QUERY:         on(func(r *abi.RdmaUcmQuery) uint32 { return r.Id }, (*context).query),
	abi.RDMA_USER_CM_CMD_BIND:          on(func(r *abi.RdmaUcmBind) uint32 { return r.Id }, (*context).bind),
	abi.RDMA_USER_CM_CMD_RESOLVE_ADDR:  on(func(r *abi.RdmaUcmResolveAddr) uint32 { return r.Id }, (*context).resolveAddr),
	abi.RDMA_USER_CM_CMD_JOIN_MCAST:    answered[abi.RdmaUcmCreateIdResp](onDevice(func(r *abi.RdmaUcmJoinMcast) uint32 { return r.Id }, (*context).join)),
}

// plain is a command that looks for its ID itself, or has none.
func plain[Req any](run func(*File, *Req, int) syscall.Errno) command {
	return func(f *File, in []byte, out int) syscall.Errno { return run(f, decode[Req](in), out) }
}

// on is a command on the ID that id returns of the request (ucma_get_ctx).
func on[Req any](id func(*Req) uint32, run func(*context, *Req, int) syscall.Errno) command {
	return plain(func(f *File, in *Req, out int) syscall.Errno {
		c, errno := f.context(id(in))
		if errno != 0 {
			return errno
		}
		return run(c, in, out)
	})
}

// onDevice is a command on an ID that must be bound to a device (ucma_get_ctx_dev).
func onDevice[Req any](id func(*Req) uint32, run func(*context, *Req, int) syscall.Errno) command {
	return on(id, func(c *context, in *Req, out int) syscall.Errno {
		if c.id.device == nil {
			return syscall.EINVAL
		}
		return run(c, in, out)
	})
}

// answered is a command with an answer of a fixed size.
func answered[Resp any](run command) command {
	return func(f *File, in []byte, out int) syscall.Errno {
		if out < len(mmap.Bytes(new(Resp))) {
			return syscall.ENOSPC
		}
		return run(f, in, out)
	}
}

// decode returns the structure in b. What is missing is zero.
func decode[T any](b []byte) *T {
	v := new(T)
	copy(mmap.Bytes(v), b)
	return v
}

// respond writes an answer to the address that the request has for it.
func respond[T any](addr uint64, out int, answer *T) syscall.Errno {
	return copyOut(addr, out, mmap.Bytes(answer))
}

// copyOut copies an answer to the caller's memory, as much of it as there is room for.
func copyOut(addr uint64, room int, answer []byte) syscall.Errno {
	return uapi.Access(addr, min(room, len(answer)), func(mem []byte) { copy(mem, answer) })
}

// headerSize is the size of abi.RdmaUcmCmdHdr.
const headerSize = 8

// Write runs a command (ucma_write).
func (f *File) Write(b []byte) (int, syscall.Errno) {
	if len(b) < headerSize {
		return 0, syscall.EINVAL
	}
	h := decode[abi.RdmaUcmCmdHdr](b)
	if h.Cmd >= uint32(len(commands)) || headerSize+int(h.In) > len(b) {
		return 0, syscall.EINVAL
	}
	run := commands[h.Cmd]
	if run == nil {
		return 0, syscall.ENOSYS
	}
	f.m.lock()
	defer f.m.unlock()
	if f.closed {
		return 0, syscall.EBADF
	}
	if errno := run(f, b[headerSize:][:h.In], int(h.Out)); errno != 0 {
		return 0, errno
	}
	return len(b), 0
}

func (f *File) getEvent(in *abi.RdmaUcmGetEvent, out int) syscall.Errno {
	var size abi.RdmaUcmEventResp
	if out < len(mmap.Bytes(&size))-len(mmap.Bytes(&size.Reserved))-len(mmap.Bytes(&size.Ece)) {
		return syscall.ENOSPC
	}
	if len(f.events) == 0 {
		return syscall.EAGAIN
	}
	p := f.events[0]
	if errno := respond(in.Response, out, &p.resp); errno != 0 {
		return errno
	}
	f.events[0] = nil
	f.events = f.events[1:]
	f.updateState()
	p.context.reported++
	if p.group != nil {
		p.group.reported++
	}
	if p.conn != nil {
		p.context.backlog++
		p.conn.request = nil
	}
	return 0
}

// migrate is MIGRATE_ID: it moves an ID and its events from another file to f.
func (f *File) migrate(in *abi.RdmaUcmMigrateId, out int) syscall.Errno {
	file := host.Get(int(int32(in.Fd)))
	if file == nil {
		return syscall.ENOENT
	}
	from, ok := file.(*File)
	if !ok || from.m != f.m {
		return syscall.EINVAL
	}
	c, errno := from.context(in.Id)
	if errno != 0 {
		return errno
	}
	if from != f {
		from.removeContext(c)
		f.addContext(c)
	}
	var moved []*pending
	from.drop(func(p *pending) bool {
		if p.context == c {
			moved = append(moved, p)
		}
		return p.context == c
	})
	for _, p := range moved {
		f.queue(p)
	}
	return respond(in.Response, out, &abi.RdmaUcmMigrateResp{EventsReported: c.reported})
}
