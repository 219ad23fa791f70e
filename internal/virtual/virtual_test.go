package virtual_test

import (
	"errors"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/unix"
	"github.com/goverbs/verbs/internal/virtual"
	"github.com/goverbs/verbs/mmap"
)

// echo is a file from which what was written is read.
type echo struct {
	virtual.Unsupported
	readiness virtual.Readiness
	data      []byte
	closed    int
}

func (e *echo) Watch(changed func(virtual.State)) func() { return e.readiness.Watch(changed) }

func (e *echo) Write(b []byte) (int, syscall.Errno) {
	e.data = append(e.data, b...)
	e.readiness.Set(virtual.Readable)
	return len(b), 0
}

func (e *echo) Read(b []byte) (int, syscall.Errno) {
	if len(e.data) == 0 {
		return 0, syscall.EAGAIN
	}
	n := copy(b, e.data)
	if e.data = e.data[n:]; len(e.data) == 0 {
		e.readiness.Set(virtual.Idle)
	}
	return n, 0
}

func (e *echo) Ioctl(request uint32, msg []byte) syscall.Errno {
	msg[0] = byte(request)
	return 0
}

func (e *echo) Mmap(offset int64, length int) ([]byte, syscall.Errno) {
	if offset != 4096 {
		return nil, syscall.EINVAL
	}
	return make([]byte, length), 0
}

func (e *echo) Close() { e.closed++ }

// TestFile opens a virtual node and uses its file as one of the kernel.
func TestFile(t *testing.T) {
	const path = virtual.Scheme + "test"
	file := &echo{}
	virtual.Provide(path, func() (virtual.File, syscall.Errno) { return file, 0 })
	fd, err := unix.Open(path, unix.O_RDWR, 0)
	if err != nil || !virtual.Is(fd) || virtual.Name(fd) != path {
		t.Fatalf("opened %d %q: %v", fd, virtual.Name(fd), err)
	}
	b := make([]byte, 8)
	if _, err := unix.Read(fd, b); err != syscall.EAGAIN {
		t.Errorf("read nothing: %v", err)
	}
	if n, err := unix.Write(fd, []byte("hello")); n != 5 || err != nil {
		t.Errorf("wrote %d: %v", n, err)
	}
	if n, err := unix.Read(fd, b); string(b[:n]) != "hello" || err != nil {
		t.Errorf("read %q: %v", b[:n], err)
	}
	if errno := unix.Ioctl(fd, 7, b); errno != 0 || b[0] != 7 {
		t.Errorf("ioctl: %v, message %v", errno, b)
	}
	region, err := mmap.Map(fd, 4096, 100)
	if err != nil {
		t.Fatal(err)
	}
	region.Bytes()[99] = 1
	if err := region.Close(); err != nil || region.Bytes() != nil {
		t.Errorf("unmapped: %v", err)
	}
	if _, err := mmap.Map(fd, 0, 100); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("mapped what is not there: %v", err)
	}

	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil || dup == fd {
		t.Fatalf("duplicated %d to %d: %v", fd, dup, err)
	}
	if err := unix.Close(fd); err != nil || file.closed != 0 {
		t.Errorf("closed one of two descriptors: %v, file closed %d times", err, file.closed)
	}
	for name, err := range map[string]error{
		"close": unix.Close(fd), "read": second(unix.Read(fd, b)), "write": second(unix.Write(fd, b)),
		"duplicate": second(unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)),
		"map":       errors.Unwrap(second(mmap.Map(fd, 0, 1))),
	} {
		if err != syscall.EBADF {
			t.Errorf("%s closed descriptor: %v", name, err)
		}
	}
	if errno := unix.Ioctl(fd, 7, b); errno != syscall.EBADF {
		t.Errorf("ioctl on a closed descriptor: %v", errno)
	}
	unix.Close(dup)
	if file.closed != 1 {
		t.Errorf("the file was closed %d times", file.closed)
	}

	virtual.Provide(path, nil)
	if _, err := unix.Open(path, 0, 0); err != syscall.ENOENT {
		t.Errorf("opened a node that is gone: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

// TestNoAllocation reads and writes.
func TestNoAllocation(t *testing.T) {
	fd, _ := virtual.Install(&echo{data: make([]byte, 0, 64)}, "echo")
	defer virtual.Close(fd)
	b := make([]byte, 8) // with -race, that of x/sys's functions escapes
	if n := testing.AllocsPerRun(100, func() {
		virtual.Get(fd).(*echo).data = virtual.Get(fd).(*echo).data[:0]
		unix.Write(fd, b)
		if n, err := unix.Read(fd, b); n != 8 || err != nil {
			t.Error(n, err)
		}
		if _, err := unix.Read(fd, b); err != syscall.EAGAIN {
			t.Error(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestUnsupported calls what a file does not support.
func TestUnsupported(t *testing.T) {
	fd, _ := virtual.Install(struct {
		virtual.Unsupported
		closer
	}{}, "nothing")
	defer virtual.Close(fd)
	if errno := unix.Ioctl(fd, 1, nil); errno != syscall.ENOTTY {
		t.Errorf("ioctl: %v", errno)
	}
	for name, err := range map[string]error{"read": second(unix.Read(fd, nil)), "write": second(unix.Write(fd, nil))} {
		if err != syscall.EINVAL {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := mmap.Map(fd, 0, 1); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("map: %v", err)
	}
}

type closer struct{}

func (closer) Close() {}

// TestWatch watches a file that becomes readable, idle and failed.
func TestWatch(t *testing.T) {
	var r virtual.Readiness
	var seen []virtual.State
	r.Set(virtual.Readable)
	stop := r.Watch(func(s virtual.State) { seen = append(seen, s) })
	for _, s := range []virtual.State{virtual.Readable, virtual.Idle, virtual.Idle, virtual.Failed} {
		r.Set(s)
	}
	stop()
	r.Set(virtual.Idle)
	if want := []virtual.State{virtual.Readable, virtual.Idle, virtual.Failed}; !slices.Equal(seen, want) {
		t.Errorf("saw %v, want %v", seen, want)
	}
}

// TestDevices names devices, lists those that are registered, and opens them.
func TestDevices(t *testing.T) {
	open := func() (virtual.File, syscall.Errno) { return &echo{}, 0 }
	a, b, c := &virtual.Device{Open: open}, &virtual.Device{Open: open}, &virtual.Device{Name: "test", Open: open, GUID: verbs.GUID{1}}
	for _, d := range []*virtual.Device{a, b, c} {
		if err := virtual.Reserve(d); err != nil {
			t.Fatal(err)
		}
		defer virtual.Unregister(d)
	}
	if a.Name == b.Name || a.Index == b.Index || a.Index < 1<<30 {
		t.Errorf("devices %q (%d) and %q (%d)", a.Name, a.Index, b.Name, b.Index)
	}
	if err := virtual.Reserve(&virtual.Device{Name: "test"}); !errors.Is(err, os.ErrExist) {
		t.Errorf("second device of a name: %v", err)
	}
	if virtual.DeviceAt(c.Node) != nil || slices.Contains(virtual.Devices(), c) {
		t.Error("a reserved device is registered")
	}
	virtual.Register(c)
	if virtual.DeviceAt(c.Node) != c || !slices.Contains(virtual.Devices(), c) {
		t.Error("a registered device is missing")
	}
	fd, err := unix.Open(c.Node, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	virtual.Unregister(c)
	if _, err := unix.Open(c.Node, 0, 0); err != syscall.ENOENT {
		t.Errorf("opened a device that is gone: %v", err)
	}
}

// TestRequest requests a device by the environment.
func TestRequest(t *testing.T) {
	var values []string
	failure := errors.New("failure")
	for _, value := range []string{"", "0"} {
		t.Setenv(virtual.Env, value)
		if err := virtual.Prepare(); err != nil || virtual.Requested() {
			t.Errorf("%s=%s: %v", virtual.Env, value, err)
		}
	}
	t.Setenv(virtual.Env, "1")
	if err := virtual.Prepare(); !errors.Is(err, virtual.ErrNoSoft) || !errors.Is(err, verbs.ErrNoRDMA) {
		t.Errorf("request without package soft: %v", err)
	}
	virtual.OnRequest(func(value string) error { values = append(values, value); return failure })
	if err := virtual.Prepare(); !errors.Is(err, failure) {
		t.Errorf("request that fails: %v", err)
	}
	virtual.OnRequest(func(value string) error { values = append(values, value); return nil })
	for range 2 {
		if err := virtual.Prepare(); err != nil {
			t.Error(err)
		}
	}
	if !slices.Equal(values, []string{"1", "1"}) {
		t.Errorf("made devices %q", values)
	}
}
