package host_test

import (
	"errors"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/mmap"
)

// echo is a file from which what was written is read.
type echo struct {
	host.Unsupported
	readiness host.Readiness
	data      []byte
	closed    int
}

func (e *echo) Watch(changed func(host.State)) func() { return e.readiness.Watch(changed) }

func (e *echo) Write(b []byte) (int, syscall.Errno) {
	e.data = append(e.data, b...)
	e.readiness.Set(host.Readable)
	return len(b), 0
}

func (e *echo) Read(b []byte) (int, syscall.Errno) {
	if len(e.data) == 0 {
		return 0, syscall.EAGAIN
	}
	n := copy(b, e.data)
	if e.data = e.data[n:]; len(e.data) == 0 {
		e.readiness.Set(host.Idle)
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
	const path = host.Scheme + "test"
	file := &echo{}
	host.Provide(path, func() (host.File, syscall.Errno) { return file, 0 })
	fd, err := host.Open(path)
	if p, perr := host.PathOf(fd); err != nil || perr != nil || p != path {
		t.Fatalf("opened %d %q: %v, %v", fd, p, err, perr)
	}
	b := make([]byte, 8)
	if _, err := host.Read(fd, b); err != syscall.EAGAIN {
		t.Errorf("read nothing: %v", err)
	}
	if n, err := host.Write(fd, []byte("hello")); n != 5 || err != nil {
		t.Errorf("wrote %d: %v", n, err)
	}
	if n, err := host.Read(fd, b); string(b[:n]) != "hello" || err != nil {
		t.Errorf("read %q: %v", b[:n], err)
	}
	if errno := host.Ioctl(fd, 7, b); errno != 0 || b[0] != 7 {
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

	dup, err := host.Dup(fd, 0)
	if err != nil || dup == fd {
		t.Fatalf("duplicated %d to %d: %v", fd, dup, err)
	}
	if err := host.Close(fd); err != nil || file.closed != 0 {
		t.Errorf("closed one of two descriptors: %v, file closed %d times", err, file.closed)
	}
	for name, err := range map[string]error{
		"close": host.Close(fd), "read": second(host.Read(fd, b)), "write": second(host.Write(fd, b)),
		"duplicate": second(host.Dup(fd, 0)),
		"map":       errors.Unwrap(second(mmap.Map(fd, 0, 1))),
	} {
		if err != syscall.EBADF {
			t.Errorf("%s closed descriptor: %v", name, err)
		}
	}
	if errno := host.Ioctl(fd, 7, b); errno != syscall.EBADF {
		t.Errorf("ioctl on a closed descriptor: %v", errno)
	}
	host.Close(dup)
	if file.closed != 1 {
		t.Errorf("the file was closed %d times", file.closed)
	}

	host.Provide(path, nil)
	if _, err := host.Open(path); err != syscall.ENOENT {
		t.Errorf("opened a node that is gone: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

// TestNoAllocation reads and writes.
func TestNoAllocation(t *testing.T) {
	fd, _ := host.Install(&echo{data: make([]byte, 0, 64)}, "echo")
	defer host.Close(fd)
	b := make([]byte, 8) // with -race, that of x/sys's functions escapes
	if n := testing.AllocsPerRun(100, func() {
		host.Get(fd).(*echo).data = host.Get(fd).(*echo).data[:0]
		host.Write(fd, b)
		if n, err := host.Read(fd, b); n != 8 || err != nil {
			t.Error(n, err)
		}
		if _, err := host.Read(fd, b); err != syscall.EAGAIN {
			t.Error(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestUnsupported calls what a file does not support.
func TestUnsupported(t *testing.T) {
	fd, _ := host.Install(struct {
		host.Unsupported
		closer
	}{}, "nothing")
	defer host.Close(fd)
	if errno := host.Ioctl(fd, 1, nil); errno != syscall.ENOTTY {
		t.Errorf("ioctl: %v", errno)
	}
	for name, err := range map[string]error{"read": second(host.Read(fd, nil)), "write": second(host.Write(fd, nil))} {
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
	var r host.Readiness
	var seen []host.State
	r.Set(host.Readable)
	stop := r.Watch(func(s host.State) { seen = append(seen, s) })
	for _, s := range []host.State{host.Readable, host.Idle, host.Idle, host.Failed} {
		r.Set(s)
	}
	stop()
	r.Set(host.Idle)
	if want := []host.State{host.Readable, host.Idle, host.Failed}; !slices.Equal(seen, want) {
		t.Errorf("saw %v, want %v", seen, want)
	}
}

// TestDevices names devices, lists those that are registered, and opens them.
func TestDevices(t *testing.T) {
	open := func() (host.File, syscall.Errno) { return &echo{}, 0 }
	a, b, c := &host.Device{Open: open}, &host.Device{Open: open}, &host.Device{Name: "test", Open: open, Attrs: map[string]string{"ports/1/pkeys/0": "0xffff"}, Counters: func() map[string]uint64 { return map[string]uint64{"sent": 7} }}
	for _, d := range []*host.Device{a, b, c} {
		if err := host.Reserve(d); err != nil {
			t.Fatal(err)
		}
		defer host.Unregister(d)
	}
	if a.Name == b.Name || a.Index == b.Index || a.Index < 1<<30 {
		t.Errorf("devices %q (%d) and %q (%d)", a.Name, a.Index, b.Name, b.Index)
	}
	if err := host.Reserve(&host.Device{Name: "test"}); !errors.Is(err, os.ErrExist) {
		t.Errorf("second device of a name: %v", err)
	}
	const dir = "/sys/class/infiniband/test/ports/1/"
	if _, err := host.ReadAttr(dir + "pkeys/0"); !errors.Is(err, os.ErrNotExist) || slices.Contains(host.Devices(), c) {
		t.Errorf("a reserved device is registered: %v", err)
	}
	host.Register(c)
	if !slices.Contains(host.Devices(), c) {
		t.Error("a registered device is missing")
	}
	for name, want := range map[string]string{"pkeys/0": "0xffff", "hw_counters/sent": "7", "pkeys/1": "", "hw_counters/lost": ""} {
		if text, err := host.ReadAttr(dir + name); text != want || errors.Is(err, os.ErrNotExist) != (want == "") {
			t.Errorf("attribute %s: %q, %v", name, text, err)
		}
	}
	for name, want := range map[string]string{dir + "hw_counters": "sent", dir + "pkeys": "0", dir: "pkeys", "/sys/class/infiniband": "test"} {
		if names, err := host.ListAttrs(name); !slices.Contains(names, want) || err != nil {
			t.Errorf("folder %s: %q, %v", name, names, err)
		}
	}
	fd, err := host.Open(c.Node)
	if err != nil {
		t.Fatal(err)
	}
	host.Close(fd)
	host.Unregister(c)
	if _, err := host.Open(c.Node); err != syscall.ENOENT {
		t.Errorf("opened a device that is gone: %v", err)
	}
}

// TestRequest requests a device by the environment.
func TestRequest(t *testing.T) {
	var values []string
	failure := errors.New("failure")
	for _, value := range []string{"", "0"} {
		t.Setenv(host.Env, value)
		if err := host.Prepare(); err != nil || host.Requested() {
			t.Errorf("%s=%s: %v", host.Env, value, err)
		}
	}
	t.Setenv(host.Env, "1")
	if err := host.Prepare(); !errors.Is(err, host.ErrNoSoft) || errors.Is(err, verbs.ErrNoRDMA) {
		t.Errorf("request without package soft: %v", err)
	}
	defer host.OnRequest(nil)
	host.OnRequest(func(value string) error { values = append(values, value); return failure })
	if err := host.Prepare(); !errors.Is(err, failure) {
		t.Errorf("request that fails: %v", err)
	}
	host.OnRequest(func(value string) error { values = append(values, value); return nil })
	for range 2 {
		if err := host.Prepare(); err != nil {
			t.Error(err)
		}
	}
	if !slices.Equal(values, []string{"1", "1"}) {
		t.Errorf("made devices %q", values)
	}
}
