package host

import "syscall"

// File is an open file. Its methods return 0, or the error number with which the kernel's file
// fails. Several goroutines may call them at the same time, also during Close and after it. A file
// embeds [Unsupported] for the calls that it does not support.
type File interface {
	// Ioctl runs the ioctl RDMA_VERBS_IOCTL. msg is its argument: the header and the
	// attributes, which the file changes as the kernel does.
	Ioctl(request uint32, msg []byte) syscall.Errno
	// Write runs a command, without blocking for longer than the kernel does, and returns the
	// number of bytes taken. It must not retain b.
	Write(b []byte) (int, syscall.Errno)
	// Read reads an event. It never blocks: it fails with EAGAIN if there is none. It must not
	// retain b.
	Read(b []byte) (int, syscall.Errno)
	// Mmap returns length bytes of the memory that the offset stands for. They are aligned to
	// 8 bytes, and are garbage collected after the last reference.
	Mmap(offset int64, length int) ([]byte, syscall.Errno)
	// Watch calls changed with the current state, and then with each other state that the file
	// enters and with Readable for each event, one call at a time, until stop has returned. changed
	// must neither block nor call the file or stop. [Readiness] implements Watch.
	Watch(changed func(State)) (stop func())
	// Close is called once, when the last descriptor of the file is closed.
	Close()
}

// State is what poll(2) reports about a file.
type State int

const (
	Idle     State = iota
	Readable       // Read, or GET_EVENT of rdma_cm, would not fail with EAGAIN
	Failed         // they fail with another error from now on; poll(2) reports POLLERR
)

// Unsupported implements the calls of [File], except Close, as for a kernel's file that does
// not support them: it is always idle.
type Unsupported struct{}

func (Unsupported) Ioctl(uint32, []byte) syscall.Errno      { return syscall.ENOTTY }
func (Unsupported) Write([]byte) (int, syscall.Errno)       { return 0, syscall.EINVAL }
func (Unsupported) Read([]byte) (int, syscall.Errno)        { return 0, syscall.EINVAL }
func (Unsupported) Mmap(int64, int) ([]byte, syscall.Errno) { return nil, syscall.ENODEV }
func (Unsupported) Watch(changed func(State)) (stop func()) { changed(Idle); return func() {} }
