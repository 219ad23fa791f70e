package cm

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/mmap"
)

// thread runs the commands of a manager after a change of credentials. An rdma_cm of this process
// accepts commands from all threads.
//
// The kernel accepts commands to rdma_cm only from threads with the credentials that opened the
// file (ucma_write; ib_safe_file_access compares the pointers filp->f_cred and current_cred(), not
// the structures). The threads of a process share a structure until one calls setuid(2) or the
// like, which gives it a new one (prepare_creds, commit_creds). syscall.Setuid, Setgid, Setgroups
// and similar calls do so in each thread of a Go program: each has its own structure then, with
// equal contents. When the kernel refuses a command for that reason, the manager starts a thread
// that opens the node again and runs all commands from then on. MIGRATE_ID, which does not check
// the credentials of the old file, moves the IDs and their events, in order (ucma_migrate_id):
//
//	command ─► any thread ─► file        until the first refusal
//	command ─► the thread ─► new file    after it; opened again at each refusal
//
// The new file replaces the old one under the same descriptor, so waiting for events
// and closing the manager work as before.
type thread struct {
	start sync.Once
	jobs  chan func()
	done  chan struct{} // closed with the manager
	stop  func()

	// renewMu is held for writing by the thread while it renews the file, and for reading
	// by commands that run on other threads and while IDs are added.
	renewMu  sync.RWMutex
	renewals int
	old      []int // former files, the oldest first; they may have IDs of undelivered connection requests
	failed   error // of the last renewal
}

func (t *thread) init() {
	t.jobs, t.done = make(chan func()), make(chan struct{})
	t.stop = sync.OnceFunc(func() { close(t.done) })
}

// run runs a command and reads its answer. Most programs never change credentials, so the thread
// exists only after the first refusal.
func (m *manager) run(msg message, answer []byte) error {
	err := m.runOnCaller(msg)
	if err == sys.ErrRefused {
		err = m.onThread(func(fd int) error { return m.runRenewed(fd, msg) })
	}
	if err == nil {
		copy(answer, msg.mem[msg.answer:])
	}
	return err
}

// runOnCaller runs a command on the caller's thread. It fails with [sys.ErrRefused] if the
// manager's thread must run it.
func (m *manager) runOnCaller(msg message) error {
	t := &m.thread
	t.renewMu.RLock()
	defer t.renewMu.RUnlock()
	// The file belongs to the thread now, and each other thread would be refused.
	if t.renewals > 0 {
		return sys.ErrRefused
	}
	fd, err := m.file.Acquire()
	if err != nil {
		return err
	}
	defer m.file.Release()
	return msg.write(fd)
}

// runRenewed runs a command, and renews the file each time the command is refused. It is
// called on the manager's thread.
func (m *manager) runRenewed(fd int, msg message) error {
	for {
		err := msg.write(fd)
		if err != sys.ErrRefused {
			return err
		}
		if err := m.renew(fd); err != nil {
			return err
		}
	}
}

// onThread calls f on the manager's thread, with the file.
func (m *manager) onThread(f func(fd int) error) error {
	t := &m.thread
	t.start.Do(func() { go t.serve() })
	done := make(chan error, 1)
	select {
	case t.jobs <- func() {
		fd, err := m.file.Acquire()
		if err == nil {
			err = f(fd)
			m.file.Release()
		}
		done <- err
	}:
		return <-done
	case <-t.done:
		return verbs.ErrClosed
	}
}

func (t *thread) serve() {
	// The file is good for this thread's structure of credentials only, so the goroutine may not
	// move to another.
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	for {
		select {
		case f := <-t.jobs:
			f()
		case <-t.done:
			t.closeOld(t.renewals)
			return
		}
	}
}

// closeOld closes the former files, which destroys the IDs on them (ucma_close). The ID of a
// connection request is on the file that its listener had when the request came
// (ucma_connect_event_handler), and stays there when the listener and its events move. So closeOld
// closes none and returns false if the file was renewed since the caller found no events.
func (t *thread) closeOld(renewals int) bool {
	t.renewMu.Lock()
	defer t.renewMu.Unlock()
	if t.renewals != renewals {
		return false
	}
	for _, fd := range t.old {
		host.Close(fd)
	}
	t.old = nil
	return true
}

// renewed returns the number of renewals, and whether there are former files.
func (t *thread) renewed() (times int, old bool) {
	t.renewMu.RLock()
	defer t.renewMu.RUnlock()
	return t.renewals, len(t.old) > 0
}

// renew replaces the file with one that the calling thread, the manager's, may write to. It
// starts again if the thread's credentials change meanwhile, so that no ID stays behind.
func (m *manager) renew(fd int) (err error) {
	t := &m.thread
	t.renewMu.Lock()
	defer t.renewMu.Unlock()
	defer func() {
		if t.failed = err; err != nil {
			m.wakeAll()
		}
	}()
	move, err := newMigration()
	if err != nil {
		return m.notRenewed("encode migration to", err)
	}
	defer move.free()
	// syscall.Setuid and the like change the credentials of all threads, this one's too, at any
	// time: also between the opening of a file and the first command on it.
	for err = sys.ErrRefused; err == sys.ErrRefused; {
		err = m.renewOnce(fd, &move)
	}
	return err
}

// renewOnce replaces the file once. It fails with [sys.ErrRefused] if IDs have stayed on
// former files. The caller holds renewMu.
func (m *manager) renewOnce(fd int, move *migration) error {
	t := &m.thread
	file, err := m.reopen()
	if err != nil {
		return err
	}
	defer host.Close(file)
	// The files of a process that ends are closed in the order of their descriptors. The
	// new file must be closed first: its events may refer to IDs of the old one, which
	// the kernel would use after it has freed them (ucma_cleanup_ctx_events).
	old, err := host.Dup(fd, fd+1)
	if err != nil {
		return m.notRenewed("duplicate", err)
	}
	return m.file.Replace(func() error {
		if err := host.Replace(fd, file); err != nil {
			host.Close(old)
			return m.notRenewed("replace", err)
		}
		t.renewals++
		t.old = append(t.old, old)
		m.mu.Lock()
		defer m.mu.Unlock()
		// Events of an ID that has not been moved yet stay on the former file, and move with it.
		for _, id := range m.ids {
			if !id.detached {
				if err := t.migrate(fd, move, id.handle); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// reopen opens the node with the credentials of the calling thread.
func (m *manager) reopen() (int, error) {
	fd, err := host.Open(m.node)
	if err != nil {
		return -1, m.notRenewed("open", err)
	}
	return fd, nil
}

var errCredentials = errors.New("the process has changed its credentials")

func (m *manager) notRenewed(op string, err error) error {
	return &verbs.Error{Op: op, Object: m.node, Err: fmt.Errorf("%w: %w", errCredentials, err), Hint: "give its user, or one of its groups, access to the node"}
}

// migrate moves an ID that is on a former file to fd. It fails with [sys.ErrRefused] if the
// thread's credentials have changed again.
func (t *thread) migrate(fd int, move *migration, handle uint32) error {
	// The kernel wants to know which file the ID is on (ucma_get_ctx fails for another); mostly it
	// is the last one.
	for _, from := range slices.Backward(t.old) {
		if err := move.run(fd, from, handle); err == nil || err == sys.ErrRefused {
			return err
		}
	}
	return nil
}

// migrateNew moves the ID of a new connection whose event may have come from a former file.
func (m *manager) migrateNew(handle uint32) {
	m.onThread(func(fd int) error {
		move, err := newMigration()
		if err != nil {
			return err
		}
		defer move.free()
		if err = m.thread.migrate(fd, &move, handle); err == sys.ErrRefused {
			err = m.renew(fd) // moves it
		}
		return err
	})
}

// migration is the command MIGRATE_ID, which takes an ID from any open file of the process. It is
// encoded in advance: a lack of memory later would leave IDs behind.
type migration struct {
	message
	req *abi.RdmaUcmMigrateId
}

func newMigration() (migration, error) {
	var req abi.RdmaUcmMigrateId
	m, err := encode(abi.RDMA_USER_CM_CMD_MIGRATE_ID, mmap.Bytes(&req), &req.Response, len(mmap.Bytes(new(abi.RdmaUcmMigrateResp))))
	if err != nil {
		return migration{}, err
	}
	return migration{m, &mmap.Slice[abi.RdmaUcmMigrateId](m.bytes(), len(mmap.Bytes(new(abi.RdmaUcmCmdHdr))), 1)[0]}, nil
}

func (m *migration) run(to, from int, handle uint32) error {
	m.req.Id, m.req.Fd = handle, uint32(from)
	return sys.WriteCommand(to, m.bytes())
}

func (m *manager) wakeAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range m.ids {
		id.events.wake()
	}
}

// renewalErr returns why the file could not be renewed, or nil if it is usable.
func (m *manager) renewalErr() error {
	m.thread.renewMu.RLock()
	defer m.thread.renewMu.RUnlock()
	return m.thread.failed
}

// runBlocking runs a command about an ID that may block for minutes: iWARP's CONNECT, which waits
// for TCP's handshake, or DESTROY_ID, which may wait for the end of a repeated REP (see leaving.add).
// Nobody else waits for it. It runs on a duplicate of the descriptor, so that a renewal can replace
// the manager's file meanwhile, and after a change of credentials on a new file of the caller's thread
// instead of the manager's thread. The caller has locked its thread (see sys.Uninterrupted).
func (m *manager) runBlocking(id *ID, cmd uint32, req []byte, response *uint64, answerLen int) error {
	msg, err := encode(cmd, req, response, answerLen)
	if err != nil {
		return err
	}
	defer msg.free()
	move, err := newMigration()
	if err != nil {
		return err
	}
	defer move.free()
	renewals, idFD, err := m.detach(id)
	if err != nil {
		return err
	}
	defer func() { host.Close(idFD) }()
	err = sys.WriteCommand(idFD, msg.bytes())
	for err == sys.ErrRefused {
		var file int
		if file, err = m.reopen(); err != nil {
			break
		}
		if err = move.run(file, idFD, id.handle); err == nil {
			// The ID stays on the caller's own file for the command, and goes to the manager's
			// afterwards.
			file, idFD = idFD, file
			renewals = -1
			err = sys.WriteCommand(idFD, msg.bytes())
		}
		host.Close(file)
	}
	if err == nil && cmd == abi.RDMA_USER_CM_CMD_DESTROY_ID {
		return nil // it is on no file
	}
	if m.attach(id, renewals) {
		return translateErrno(err)
	}
	// Nobody reads events of the file that the ID is on: the ID must move to the manager's.
	back := m.onThread(func(fd int) error {
		move.req.Id, move.req.Fd = id.handle, uint32(idFD)
		defer func() { id.detached = false }()
		return m.runRenewed(fd, move.message)
	})
	if back == nil { // the kernel moves events without waking readers
		m.drain()
	}
	return translateErrno(cmp.Or(err, back))
}

// detach returns another descriptor of the file that the ID is on. Renewals leave the ID
// there until attach.
func (m *manager) detach(id *ID) (renewals, dup int, err error) {
	m.thread.renewMu.RLock()
	defer m.thread.renewMu.RUnlock()
	fd, err := m.file.Acquire()
	if err != nil {
		return 0, -1, err
	}
	defer m.file.Release()
	dup, err = host.Dup(fd, 0)
	id.detached = err == nil
	return m.thread.renewals, dup, err
}

// attach ends detach. It returns false if the file has been renewed since: the caller must
// then move the ID to the new file.
func (m *manager) attach(id *ID, renewals int) bool {
	m.thread.renewMu.RLock()
	defer m.thread.renewMu.RUnlock()
	if m.thread.renewals != renewals {
		return false
	}
	id.detached = false
	return true
}
