package kernel

import (
	"encoding/binary"
	"sync"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/fifo"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/mmap"
)

// eventFile is a completion channel or a file of asynchronous events.
type eventFile struct {
	host.Unsupported
	readiness host.Readiness

	file *file // that it belongs to
	size int   // of the structure of an event

	mu     sync.Mutex // taken by callbacks of the engine
	events fifo.Queue[event]
	ended  bool // there will be no more events
}

// event is an event that has not been read.
type event struct {
	element uint64
	typ     uint32
	source  *eventSource // or nil
}

// eventSource is an object that causes events. Its counters are guarded by the event file's mu.
type eventSource struct {
	file       *eventFile // or nil
	userHandle uint64
	reported   uint32 // events that have been read
}

var (
	compEventSize  = len(mmap.Bytes(new(abi.IbUverbsCompEventDesc)))
	asyncEventSize = len(mmap.Bytes(new(abi.IbUverbsAsyncEventDesc)))
)

// raise adds an event of an object. The engine calls it.
func (s *eventSource) raise(t verbs.AsyncEventType) {
	if s.file != nil {
		s.file.add(event{s.userHandle, uint32(t), s})
	}
}

// complete adds the event of an armed CQ. The engine calls it.
func (s *eventSource) complete() { s.file.add(event{element: s.userHandle, source: s}) }

// end discards the object's events and returns how many have been read.
func (s *eventSource) end() uint32 {
	f := s.file
	if f == nil {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for range f.events.Len() {
		if e := f.events.Pop(); e.source != s {
			f.events.Push(e)
		}
	}
	f.update()
	return s.reported
}

func (f *eventFile) add(e event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return
	}
	f.events.Push(e)
	f.readiness.Event()
}

// update updates the readiness. The caller holds mu.
func (f *eventFile) update() {
	switch {
	case f.events.Len() > 0:
		f.readiness.Set(host.Readable)
	case f.ended:
		f.readiness.Set(host.Failed)
	default:
		f.readiness.Set(host.Idle)
	}
}

// Watch implements [host.File].
func (f *eventFile) Watch(changed func(host.State)) (stop func()) {
	return f.readiness.Watch(changed)
}

// Read implements [host.File]: it returns one event (ib_uverbs_event_read).
func (f *eventFile) Read(b []byte) (int, syscall.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.events.Len() > 0:
	case f.ended:
		return 0, syscall.EIO
	default:
		return 0, syscall.EAGAIN
	}
	if len(b) < f.size {
		return 0, syscall.EINVAL
	}
	e := f.events.Pop()
	if e.source != nil {
		e.source.reported++
	}
	binary.NativeEndian.PutUint64(b, e.element)
	if f.size == asyncEventSize {
		binary.NativeEndian.PutUint32(b[8:], e.typ)
		binary.NativeEndian.PutUint32(b[12:], 0)
	}
	f.update()
	return f.size, 0
}

// end ends the events: later reads fail with EIO.
func (f *eventFile) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	f.update()
}

// Close implements [host.File]. Objects of the channel may live longer.
func (f *eventFile) Close() {
	f.file.removeEventFile(f)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended, f.events = true, fifo.Queue[event]{}
	f.update()
}

func (f *file) newEventFile(size int) (int, syscall.Errno) {
	e := &eventFile{file: f, size: size}
	if errno := f.addEventFile(e); errno != 0 {
		return -1, errno
	}
	fd, errno := host.Install(e, "[infinibandevent]")
	if errno != 0 {
		e.Close()
	}
	return fd, errno
}

// eventFileAt returns the event file with a descriptor, for events of a size.
func (f *file) eventFileAt(fd int, size int) (*eventFile, syscall.Errno) {
	e, ok := host.Get(fd).(*eventFile)
	if !ok || e.file != f || e.size != size {
		return nil, syscall.EBADF
	}
	return e, 0
}
