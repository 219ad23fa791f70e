package cm

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/mmap"
)

// thread runs the commands of a channel after a change of credentials.
//
// The kernel accepts commands to rdma_cm only from threads that have the credentials
// with which the file was opened (ib_safe_file_access compares pointers). After
// syscall.Setuid, Setgid, Setgroups and the like, each thread of a Go program has
// credentials of its own, equal but not the same. When a command is refused for that,
// the channel starts a thread that opens the node again and runs all commands from
// then on. The IDs move to the new file with their events by MIGRATE_ID, which does
// not check the credentials of the old file:
//
//	command ─► any thread ─► file        until the first refusal
//	command ─► the thread ─► new file    after it; renewed at each refusal
//
// The new file replaces the old one under the same descriptor, so waiting for events
// and closing the channel work as before.
type thread struct {
	start sync.Once
	jobs  chan func()
	over  chan struct{} // closed with the channel
	end   func()

	// gate is held for writing while the file is renewed, by the thread, and for
	// reading by commands that other threads run and while IDs are added.
	gate     sync.RWMutex
	renewals int
	old      []int // former files, which may have the IDs of requests that are still to be delivered
	failed   error // of the last renewal
}

func (t *thread) init() {
	t.jobs, t.over = make(chan func()), make(chan struct{})
	t.end = sync.OnceFunc(func() { close(t.over) })
}

// run runs a command and reads its answer.
func (c *Channel) run(m message, answer []byte) error {
	err := c.runHere(m, answer)
	if err == sys.ErrRefused {
		err = c.onThread(func(fd int) error { return c.runRenewed(fd, m, answer) })
	}
	return err
}

// runHere runs a command on the caller's thread. It fails with [sys.ErrRefused] if the
// channel's thread must run it.
func (c *Channel) runHere(m message, answer []byte) error {
	t := &c.thread
	t.gate.RLock()
	defer t.gate.RUnlock()
	if t.renewals > 0 {
		return sys.ErrRefused
	}
	err := c.file.Try(func(fd int) error { return sys.WriteCommand(fd, m.bytes()) })
	if err == nil {
		m.read(answer)
	}
	return err
}

// runRenewed runs a command on the channel's thread, which it is called on, and renews
// the file as often as the command is refused.
func (c *Channel) runRenewed(fd int, m message, answer []byte) error {
	for {
		err := sys.WriteCommand(fd, m.bytes())
		switch err {
		case nil:
			m.read(answer)
			return nil
		case sys.ErrRefused:
			if err := c.renew(fd); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// onThread calls f on the channel's thread, with the file.
func (c *Channel) onThread(f func(fd int) error) error {
	t := &c.thread
	t.start.Do(func() { go t.serve() })
	done := make(chan error, 1)
	select {
	case t.jobs <- func() { done <- c.file.Try(f) }:
		return <-done
	case <-t.over:
		return verbs.ErrClosed
	}
}

func (t *thread) serve() {
	runtime.LockOSThread() // for good: the thread ends with the goroutine
	for {
		select {
		case f := <-t.jobs:
			f()
		case <-t.over:
			t.closeOld(t.renewals)
			return
		}
	}
}

// closeOld closes the former files. It does not, and returns false, if there have been other
// renewals than the caller knows of: events may have come since it found none.
func (t *thread) closeOld(renewals int) bool {
	t.gate.Lock()
	defer t.gate.Unlock()
	if t.renewals != renewals {
		return false
	}
	for _, fd := range t.old {
		unix.Close(fd)
	}
	t.old = nil
	return true
}

// renewed returns how often the file has been renewed, and whether there are former files.
func (t *thread) renewed() (times int, old bool) {
	t.gate.RLock()
	defer t.gate.RUnlock()
	return t.renewals, len(t.old) > 0
}

// renew replaces the file by one that the calling thread, the channel's, may write to, and
// does so again if the thread's credentials change meanwhile: no ID may stay behind.
func (c *Channel) renew(fd int) (err error) {
	t := &c.thread
	t.gate.Lock()
	defer t.gate.Unlock()
	defer func() {
		if t.failed = err; err != nil {
			c.rouseAll()
		}
	}()
	move, err := newMigration()
	if err != nil {
		return notRenewed("encode migration to", err)
	}
	defer move.free()
	for err = sys.ErrRefused; err == sys.ErrRefused; {
		err = c.renewOnce(fd, &move)
	}
	return err
}

// renewOnce fails with [sys.ErrRefused] if IDs have stayed on former files. The caller holds
// the gate.
func (c *Channel) renewOnce(fd int, move *migration) error {
	t := &c.thread
	file, err := reopen()
	if err != nil {
		return err
	}
	defer unix.Close(file)
	// A process that ends closes its files in the order of their descriptors. The new
	// file must be first: its events may refer to IDs of the old one, and the kernel
	// would use those after it has freed them (ucma_cleanup_ctx_events).
	old, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, fd+1)
	if err != nil {
		return notRenewed("duplicate", err)
	}
	replace := c.file.Replace
	if c.loop != nil {
		replace = func(f func() error) error {
			return c.file.Replace(func() error { return c.loop.replace(fd, f) })
		}
	}
	return replace(func() error {
		if err := unix.Dup3(file, fd, unix.O_CLOEXEC); err != nil {
			unix.Close(old)
			return notRenewed("replace", err)
		}
		t.renewals++
		t.old = append(t.old, old)
		c.mu.Lock()
		defer c.mu.Unlock()
		for uid, id := range c.ids {
			if uid == id.uid && !id.aside { // not one of its groups
				if err := t.fetch(fd, move, id.handle); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// reopen opens the node for the calling thread.
func reopen() (int, error) {
	fd, err := unix.Open(node, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, notRenewed("open", err)
	}
	return fd, nil
}

var errCredentials = errors.New("the process has changed its credentials")

func notRenewed(op string, err error) error {
	return &verbs.Error{Op: op, Object: node, Err: fmt.Errorf("%w: %w", errCredentials, err), Hint: "give its user, or one of its groups, access to the node"}
}

// fetch moves an ID to fd from the former file that it is on, if it is on one. It fails with
// [sys.ErrRefused] if the thread's credentials have changed again.
func (t *thread) fetch(fd int, move *migration, handle uint32) error {
	for _, from := range slices.Backward(t.old) {
		if err := move.run(fd, from, handle); err == nil || err == sys.ErrRefused {
			return err
		}
	}
	return nil
}

// adopt moves an ID that has come with an event from a former file, if it is on one.
func (c *Channel) adopt(handle uint32) {
	c.onThread(func(fd int) error {
		move, err := newMigration()
		if err != nil {
			return err
		}
		defer move.free()
		if err = c.thread.fetch(fd, &move, handle); err == sys.ErrRefused {
			err = c.renew(fd) // moves it
		}
		return err
	})
}

// migration is the command MIGRATE_ID.
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

// rouseAll wakes all calls of [ID.Next].
func (c *Channel) rouseAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range c.ids {
		id.mu.Lock()
		id.rouse()
		id.mu.Unlock()
	}
}

// failure returns why the file could not be renewed, nil if it is usable.
func (c *Channel) failure() error {
	c.thread.gate.RLock()
	defer c.thread.gate.RUnlock()
	return c.thread.failed
}

// runAside runs a command about an ID that may block for minutes, so that no other
// command waits for it: after a change of credentials it is run on the caller's thread,
// which the caller has locked, and on a file of that thread's.
func (c *Channel) runAside(id *ID, m message) error {
	move, err := newMigration()
	if err != nil {
		return err
	}
	defer move.free()
	renewals, side, err := c.detach(id)
	if err != nil {
		return err
	}
	defer func() { unix.Close(side) }()
	err = sys.WriteCommand(side, m.bytes())
	for err == sys.ErrRefused {
		file, rerr := reopen()
		if rerr != nil {
			err = rerr
			break
		}
		if err = move.run(file, side, id.handle); err == nil {
			file, side = side, file
			renewals = -1
			err = sys.WriteCommand(side, m.bytes())
		}
		unix.Close(file)
	}
	if c.attach(id, renewals) {
		return err
	}
	back := c.onThread(func(fd int) error {
		move.req.Id, move.req.Fd = id.handle, uint32(side)
		defer func() { id.aside = false }()
		return c.runRenewed(fd, move.message, nil)
	})
	if back == nil { // the kernel moves events without waking their readers
		c.turn.Lock()
		c.drain()
		c.turn.Unlock()
	}
	return cmp.Or(err, back)
}

// detach returns another descriptor of the file that the ID is on, where renewals leave
// the ID until attach.
func (c *Channel) detach(id *ID) (renewals, side int, err error) {
	c.thread.gate.RLock()
	defer c.thread.gate.RUnlock()
	err = c.file.Try(func(fd int) (err error) {
		side, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	id.aside = err == nil
	return c.thread.renewals, side, err
}

// attach ends detach. It returns false if the file has been renewed since, and the ID
// must be moved to it.
func (c *Channel) attach(id *ID, renewals int) bool {
	c.thread.gate.RLock()
	defer c.thread.gate.RUnlock()
	if c.thread.renewals != renewals {
		return false
	}
	id.aside = false
	return true
}
