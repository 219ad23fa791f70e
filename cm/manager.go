package cm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/mmap"
)

// manager is a connection to rdma_cm, the connection manager: its file, the IDs on it, and a
// goroutine that reads their events and puts each into the queue of its ID.
//
// Locks are taken in this order: an Endpoint's closing, Transport.mu, deliverMu, an ID's closing,
// renewMu, manager.mu, leaving.mu and alarms.mu, queue.mu. Two of a kind are held only when a
// listener's ID closes those of requests that nobody has taken, which have none below them.
type manager struct {
	node    string // rdma_cm's device: the kernel's or one of this process
	file    host.EventFile
	channel *Channel      // its queue gets the events of all IDs; nil if each ID or listener has a queue
	done    chan struct{} // closed when dispatch has ended

	thread thread
	alarms alarms

	// deliverMu is held from reading an event until it is delivered: its holder
	// knows that no event is in delivery.
	deliverMu sync.Mutex
	reader    message // the command GET_EVENT; zero when dispatch has ended
	resp      abi.RdmaUcmEventResp
	readFunc  func(fd int) error // readEvent, as a func value: no allocation per call
	onUnused  func()             // called with mu held when no IDs are left; nil unless a Transport owns the manager

	mu  sync.Mutex
	ids map[uint64]*ID // by the uid that the kernel has for the ID
	err error          // why the manager has ended
}

// lastUID numbers IDs. No number is used twice, so a late event finds no other ID.
var lastUID atomic.Uint64

// openManager opens rdma_cm's device. The caller must call dispatch in a new goroutine.
func openManager(node string) (*manager, error) {
	fd, err := host.Open(node)
	switch err {
	case syscall.ENOENT, syscall.ENXIO, syscall.ENODEV:
		err = fmt.Errorf("%w: %w", verbs.ErrNoCM, err)
	}
	if err != nil {
		return nil, fail("open", node, err)
	}
	file, err := host.NewEventFile(fd)
	if err != nil {
		return nil, fail("open", node, err)
	}
	m := &manager{node: node, file: file, done: make(chan struct{}), ids: map[uint64]*ID{}}
	var req abi.RdmaUcmGetEvent
	m.reader, err = encode(abi.RDMA_USER_CM_CMD_GET_EVENT, mmap.Bytes(&req), &req.Response, len(mmap.Bytes(&m.resp)))
	if err != nil {
		file.Close()
		return nil, fail("open", node, err)
	}
	file.Relay()
	m.thread.init()
	m.alarms.init()
	m.readFunc = m.readEvent
	return m, nil
}

// close closes the file, which destroys the IDs that are still on it.
func (m *manager) close() {
	m.file.Close()
	m.thread.stop()
	<-m.done
	m.alarms.stop()
}

// dispatch passes events to their IDs until the manager is closed.
func (m *manager) dispatch() {
	defer close(m.done)
	for {
		err := m.file.Sleep(context.Background(), time.Time{}, m.readFunc)
		if errors.Is(err, errCredentials) {
			select {
			case <-time.After(retryRenewal):
				err = nil
			case <-m.thread.done:
				err = verbs.ErrClosed
			}
		}
		if err != nil {
			m.end(err)
			return
		}
	}
}

// retryRenewal is the delay before the dispatcher tries again to renew the file.
const retryRenewal = time.Second

// end ends the IDs of a manager that is closed or whose events cannot be read any more.
func (m *manager) end(why error) {
	m.deliverMu.Lock()
	if m.reader.mem != nil {
		m.reader.free()
		m.reader = message{}
	}
	m.deliverMu.Unlock()
	m.mu.Lock()
	ids := slices.Collect(maps.Values(m.ids))
	m.err = cmp.Or(m.err, why)
	m.notifyUnused()
	m.mu.Unlock()
	for _, id := range ids {
		id.events.end(id, why)
		if e := id.endpoint.Load(); e != nil && m.channel != nil { // no event of the channel will end it
			e.end(why, !e.plan.SingleThreaded, false) // its program may be in a call on the QP
		}
	}
	if m.channel != nil {
		m.channel.events.close(why)
	}
}

func (m *manager) hasEnded() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err != nil
}

// countIDs returns how many IDs the program has open, and how many Transport.leaving keeps after
// the program has closed their endpoints.
func (m *manager) countIDs() (used, leaving int) {
	m.deliverMu.Lock() // so that no event is in delivery whose NewID the listener will refuse
	defer m.deliverMu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range m.ids {
		if id.leaving.Load() {
			leaving++
		}
	}
	return len(m.ids) - leaving, leaving
}

// notifyUnused calls onUnused if there are no IDs. The caller holds m.mu.
func (m *manager) notifyUnused() {
	if m.onUnused != nil && len(m.ids) == 0 {
		m.onUnused()
	}
}

// readEvent reads an event and delivers it, or returns EAGAIN.
func (m *manager) readEvent(int) error {
	m.deliverMu.Lock()
	defer m.deliverMu.Unlock()
	return m.readEventLocked()
}

func (m *manager) readEventLocked() error {
	if m.reader.mem == nil {
		return verbs.ErrClosed
	}
	for {
		times, _ := m.thread.renewed()
		err := m.run(m.reader, mmap.Bytes(&m.resp))
		if err == nil {
			m.deliver(&m.resp)
		}
		if err != syscall.EAGAIN {
			return err
		}
		// The former files have no event left, unless one has come since.
		if _, old := m.thread.renewed(); !old || m.thread.closeOld(times) {
			return err
		}
	}
}

func (m *manager) poll() { m.readEvent(0) }

func (m *manager) drain() {
	m.deliverMu.Lock()
	defer m.deliverMu.Unlock()
	for m.readEventLocked() == nil {
	}
}

// deliver puts an event into the queue of its ID. The kernel has one list of events for a file
// (ucma_get_event takes its first), and the caller holds deliverMu, so events of one ID, and of all
// IDs with one queue, keep their order.
//
// The event of a connection request makes an ID, with the handle that the kernel has chosen
// (ucma_connect_event_handler); its uid is the listener's. The new ID has uid 0 until ucma_accept
// sets it, and ucma_event_handler drops events of uid 0: a peer that gives up is not seen before.
func (m *manager) deliver(r *abi.RdmaUcmEventResp) {
	m.thread.renewMu.RLock()
	old := len(m.thread.old) > 0
	m.mu.Lock()
	id := m.ids[r.Uid]
	e := decodeEvent(r, id != nil && id.space.datagram())
	e.ID = id
	if e.Type == ConnectRequest {
		space := PortSpaceTCP
		if id != nil {
			space = id.space
		}
		e.NewID = m.add(r.Id, space, nil)
	}
	m.mu.Unlock()
	m.thread.renewMu.RUnlock()
	if old && e.NewID != nil {
		m.migrateNew(r.Id)
	}
	if (id == nil || !id.events.push(e)) && e.NewID != nil {
		e.NewID.Close() // the listener has just been closed, or its backlog is full
	}
}

// add makes the ID for a kernel handle. Its events go to the manager's channel, if there is one, or
// else to q, which may have other IDs; nil is a new queue. The caller holds m.mu.
func (m *manager) add(handle uint32, space PortSpace, q *queue) *ID {
	switch {
	case m.channel != nil:
		q = m.channel.events
	case q == nil:
		q = newQueue(m)
	}
	q.mu.Lock()
	if q.m == nil { // nobody waits in it yet
		q.m = m
	}
	q.users++
	q.mu.Unlock()
	id := &ID{m: m, uid: lastUID.Add(1), handle: handle, space: space, events: q}
	if m.err != nil {
		q.end(id, m.err)
	} else {
		m.ids[id.uid] = id
	}
	return id
}

// noHandle is the handle of an ID that the kernel does not know yet. 0 is the kernel's first.
const noHandle = 1<<32 - 1

// addID adds an ID that the kernel does not know before create.
func (m *manager) addID(space PortSpace, q *queue) *ID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.add(noHandle, space, q)
}

func (m *manager) forget(id *ID) {
	m.mu.Lock()
	delete(m.ids, id.uid)
	m.notifyUnused()
	m.mu.Unlock()
	id.events.end(id, verbs.ErrClosed)
}

// message is a command in memory that the kernel reads, with room for the answer.
type message struct {
	mem    []byte // header, request, answer
	answer int    // offset of the answer
	size   int    // of header and request
	// handle takes the answer of CREATE_ID as soon as it is there: a renewal moves a new ID by its handle, and may
	// come before the caller of run goes on.
	handle *uint32
}

// encode makes a message of a request. If response is not nil, encode sets it, a
// field of the request, to the address at which the kernel writes the answer.
func encode(cmd uint32, req []byte, response *uint64, answerLen int) (message, error) {
	hdr := mmap.Bytes(&abi.RdmaUcmCmdHdr{Cmd: cmd, In: uint16(len(req)), Out: uint16(answerLen)})
	size := len(hdr) + len(req)
	answer := (size + 7) &^ 7
	mem, err := mmap.Alloc(answer + answerLen)
	if err != nil {
		return message{}, err
	}
	if response != nil {
		*response = mmap.Addr(mem[answer:])
		clear(mem[answer:][:answerLen]) // an older kernel does not fill all of it
	}
	copy(mem, hdr)
	copy(mem[len(hdr):], req)
	return message{mem: mem, answer: answer, size: size}, nil
}

// bytes returns header and request, which the kernel reads.
func (m message) bytes() []byte { return m.mem[:m.size] }

func (m message) free() { mmap.Free(m.mem) }

// write writes a command to fd.
func (m message) write(fd int) error {
	err := sys.WriteCommand(fd, m.bytes())
	if err == nil && m.handle != nil {
		copy(mmap.Bytes(m.handle), m.mem[m.answer:])
	}
	return err
}

// enotsupp is the kernel's internal ENOTSUPP, which should never reach a program.
// Joining an IPv6 multicast group on RoCE returns it nevertheless.
const enotsupp = syscall.Errno(524)

func translateErrno(err error) error {
	if err == enotsupp {
		return syscall.EOPNOTSUPP
	}
	return err
}

// exec runs a command and reads its answer into resp. response is the field of req for the answer's
// address; it is nil if the command has none.
func (m *manager) exec(cmd uint32, req []byte, response *uint64, resp []byte) error {
	msg, err := encode(cmd, req, response, len(resp))
	if err != nil {
		return err
	}
	defer msg.free()
	return translateErrno(m.run(msg, resp))
}
