//go:build linux

package vfiouser

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// model is a device of 64 bytes, which copies from guest memory when byte 0 is written.
type model struct {
	bus    *Bus
	bytes  [64]byte
	resets int
}

func (m *model) Regions() map[int]uint64 { return map[int]uint64{BAR0: 64, Config: 16} }
func (m *model) Vectors() int            { return 2 }
func (m *model) Read(region int, off uint64, b []byte) {
	if region == Config {
		b[0] = 0xcf
		return
	}
	copy(b, m.bytes[off:])
}

func (m *model) Write(region int, off uint64, b []byte) {
	if region == BAR0 {
		copy(m.bytes[off:], b)
	}
	if off == 0 {
		m.bus.Memory.ReadAt(m.bytes[32:], 0x1000)
		m.bus.Interrupt(1)
	}
}
func (m *model) Reset() { m.resets++; m.bytes = [64]byte{} }

// client is QEMU's side.
type client struct {
	t    testing.TB
	conn *net.UnixConn
	dev  *model
	end  chan error // gets what Serve returns
	id   uint16
}

func newClient(t testing.TB) *client {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
	}
	c := &client{t: t, conn: ends[0], dev: &model{}, end: make(chan error, 1)}
	go func() {
		c.end <- Serve(ends[1], func(b *Bus) (Device, error) {
			c.dev.bus = b
			return c.dev, nil
		})
	}()
	t.Cleanup(func() { c.conn.Close() })
	return c
}

// send sends a message.
func (c *client) send(cmd uint16, flags uint32, body []byte, files ...*os.File) {
	c.t.Helper()
	c.id++
	b := make([]byte, headerSize, headerSize+len(body))
	le.PutUint16(b, c.id)
	le.PutUint16(b[2:], cmd)
	le.PutUint32(b[4:], uint32(headerSize+len(body)))
	le.PutUint32(b[8:], flags)
	var oob []byte
	if len(files) > 0 {
		var fds []int
		for _, f := range files {
			fds = append(fds, int(f.Fd()))
		}
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := c.conn.WriteMsgUnix(append(b, body...), oob, nil); err != nil {
		c.t.Fatal(err)
	}
}

// answer receives the answer to the last message.
func (c *client) answer() ([]byte, unix.Errno) {
	c.t.Helper()
	var h [headerSize]byte
	if _, err := io.ReadFull(c.conn, h[:]); err != nil {
		c.t.Fatal(err)
	}
	if id := le.Uint16(h[:]); id != c.id {
		c.t.Fatalf("answer to message %d, want %d", id, c.id)
	}
	body := make([]byte, le.Uint32(h[4:])-headerSize)
	if _, err := io.ReadFull(c.conn, body); err != nil {
		c.t.Fatal(err)
	}
	switch flags := le.Uint32(h[8:]); flags {
	case flagReply:
		return body, 0
	case flagReply | flagError:
		return nil, unix.Errno(le.Uint32(h[12:]))
	default:
		c.t.Fatalf("an answer with flags %#x", flags)
		return nil, 0
	}
}

// do sends a message that succeeds.
func (c *client) do(cmd uint16, body []byte, files ...*os.File) []byte {
	c.t.Helper()
	c.send(cmd, 0, body, files...)
	out, errno := c.answer()
	if errno != 0 {
		c.t.Fatalf("command %d: %v", cmd, errno)
	}
	return out
}

// refuse sends a message that fails with errno.
func (c *client) refuse(want unix.Errno, cmd uint16, body []byte, files ...*os.File) {
	c.t.Helper()
	c.send(cmd, 0, body, files...)
	if _, errno := c.answer(); errno != want {
		c.t.Errorf("command %d, %x: %v, want %v", cmd, body, errno, want)
	}
}

func (c *client) version() { c.do(cmdVersion, append(words(1<<16), "{}\x00"...)) }

func quads(v ...uint64) []byte {
	b := make([]byte, 8*len(v))
	for i, x := range v {
		le.PutUint64(b[i*8:], x)
	}
	return b
}

func access(off uint64, region, count uint32, data ...byte) []byte {
	return slices.Concat(quads(off), words(region, count), data)
}

func mapping(offset, addr, size uint64) []byte {
	return slices.Concat(words(32, 3), quads(offset, addr, size))
}

func TestVersion(t *testing.T) {
	c := newClient(t)
	out := c.do(cmdVersion, append(words(1<<16), "{}\x00"...))
	if le.Uint16(out) != 0 || le.Uint16(out[2:]) != 1 {
		t.Errorf("version % x", out[:4])
	}
	var v struct {
		Capabilities struct {
			MaxFDs  int `json:"max_msg_fds"`
			MaxMaps int `json:"max_dma_maps"`
		}
	}
	if err := json.Unmarshal(bytes.TrimSuffix(out[4:], []byte{0}), &v); err != nil || v.Capabilities.MaxFDs == 0 || v.Capabilities.MaxMaps > 65535 {
		t.Errorf("capabilities %s: %+v, %v", out[4:], v, err)
	}
	c.refuse(unix.ENOTSUP, cmdVersion, append(words(1), "{}\x00"...))
}

func TestInfo(t *testing.T) {
	c := newClient(t)
	c.version()
	if out := c.do(cmdGetInfo, words(16, 0, 0, 0)); !bytes.Equal(out, words(16, 3, numRegions, numIRQs)) {
		t.Errorf("info % x", out)
	}
	for region, size := range map[uint32]uint64{BAR0: 64, 1: 0, Config: 16} {
		out := c.do(cmdGetRegionInfo, append(words(32, 0, region), make([]byte, 20)...))
		if got := le.Uint64(out[16:]); got != size || (le.Uint32(out[4:]) == 3) != (size > 0) {
			t.Errorf("region %d has %d bytes and flags %#x, want %d", region, got, le.Uint32(out[4:]), size)
		}
	}
	for irq, n := range map[uint32]uint32{0: 0, irqMSIX: 2} {
		if out := c.do(cmdGetIRQInfo, words(16, 0, irq, 0)); le.Uint32(out[12:]) != n {
			t.Errorf("interrupt %d has %d vectors, want %d", irq, le.Uint32(out[12:]), n)
		}
	}
	c.refuse(unix.EINVAL, cmdGetRegionInfo, append(words(32, 0, numRegions), make([]byte, 20)...))
	c.refuse(unix.EINVAL, cmdGetIRQInfo, words(16, 0, numIRQs, 0))
	c.refuse(unix.ENOTSUP, 99, nil)
}

func TestAccess(t *testing.T) {
	c := newClient(t)
	c.version()
	c.do(cmdRegionWrite, access(8, BAR0, 4, 1, 2, 3, 4))
	// A posted write has no answer: the next one is that of the read.
	c.send(cmdRegionWrite, flagNoReply, access(12, BAR0, 2, 5, 6))
	if out := c.do(cmdRegionRead, access(8, BAR0, 6)); !bytes.Equal(out, access(8, BAR0, 6, 1, 2, 3, 4, 5, 6)) {
		t.Errorf("read % x", out)
	}
	if out := c.do(cmdRegionRead, access(0, Config, 1)); out[16] != 0xcf {
		t.Errorf("read % x", out)
	}
	for _, bad := range [][]byte{
		access(64, BAR0, 1), access(63, BAR0, 2), access(1<<64-1, BAR0, 2), access(0, BAR0, 1<<32-1), access(0, 1, 1), access(0, 1<<31, 1),
		{1, 2, 3},
	} {
		c.refuse(unix.EINVAL, cmdRegionRead, bad)
		c.refuse(unix.EINVAL, cmdRegionWrite, append(slices.Clip(bad), 0, 0)[:len(bad)])
	}
	c.refuse(unix.EINVAL, cmdRegionWrite, access(0, BAR0, 4, 1, 2)) // less data than it says
	c.do(cmdReset, nil)
	if out := c.do(cmdRegionRead, access(8, BAR0, 1)); out[16] != 0 || c.dev.resets != 1 {
		t.Errorf("%#x after %d resets", out[16], c.dev.resets)
	}
}

func eventfd(t testing.TB) *os.File {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "eventfd")
	t.Cleanup(func() { f.Close() })
	return f
}

// TestFullEventfd interrupts by an eventfd that has no room, and by a pipe: neither waits.
func TestFullEventfd(t *testing.T) {
	c := newClient(t)
	c.version()
	irq := eventfd(t)
	var most [8]byte
	binary.NativeEndian.PutUint64(most[:], 1<<64-2)
	if _, err := irq.Write(most[:]); err != nil {
		t.Fatal(err)
	}
	c.do(cmdSetIRQs, words(24, 4|1<<5, irqMSIX, 1, 1), irq)
	c.do(cmdRegionWrite, access(0, BAR0, 1, 0))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	c.refuse(unix.EINVAL, cmdSetIRQs, words(24, 4|1<<5, irqMSIX, 1, 1), w)
	c.conn.Close()
	if err := <-c.end; err != nil {
		t.Error(err)
	}
}

// TestTruncatedMemory refuses memory whose file can be truncated, and ends the connection with the
// reason.
func TestTruncatedMemory(t *testing.T) {
	c := newClient(t)
	c.version()
	c.refuse(unix.EPERM, cmdDMAMap, mapping(0, 0, 4096), unsealed(t, 4096))
	if err := <-c.end; !errors.Is(err, errUnsealed) {
		t.Errorf("the server has ended with %v", err)
	}
}

// TestTooManyFiles sends a message in parts, each with as many files as the message may have.
func TestTooManyFiles(t *testing.T) {
	c := newClient(t)
	c.version()
	mem, fds := memfd(t, 4096), []int(nil)
	for range maxFDs {
		fds = append(fds, int(mem.Fd()))
	}
	head := make([]byte, headerSize)
	le.PutUint16(head[2:], cmdDMAMap)
	le.PutUint32(head[4:], maxMessage)
	for part := head; ; part = head[:1] {
		if _, _, err := c.conn.WriteMsgUnix(part, unix.UnixRights(fds...), nil); err != nil {
			break // the server has closed the connection
		}
	}
	if err := <-c.end; !errors.Is(err, errFiles) {
		t.Errorf("the server has ended with %v", err)
	}
}

func TestDMA(t *testing.T) {
	c := newClient(t)
	c.version()
	mem := memfd(t, 4*4096)
	mem.WriteAt([]byte("from the guest"), 4096)
	c.do(cmdDMAMap, mapping(0, 0, 4*4096), mem)
	c.do(cmdDMAMap, mapping(0, 1<<20, 4096)) // memory that is not shared
	c.refuse(unix.EEXIST, cmdDMAMap, mapping(0, 4096, 4096), mem)
	c.refuse(unix.EINVAL, cmdDMAMap, mapping(4096, 2<<20, 4*4096), mem) // beyond the file
	c.refuse(unix.EINVAL, cmdDMAMap, mapping(0, 2<<20, 4096), mem, mem)
	irq := eventfd(t)
	c.do(cmdSetIRQs, words(24, 4|1<<5, irqMSIX, 1, 1), irq)
	c.do(cmdRegionWrite, access(0, BAR0, 1, 0))
	if out := c.do(cmdRegionRead, access(32, BAR0, 14)); string(out[16:]) != "from the guest" {
		t.Errorf("DMA has read %q", out[16:])
	}
	var n [8]byte
	if _, err := irq.Read(n[:]); err != nil || binary.NativeEndian.Uint64(n[:]) != 1 {
		t.Errorf("eventfd: % x, %v", n, err)
	}
	c.do(cmdSetIRQs, words(20, 1|1<<5, irqMSIX, 0, 0))
	c.do(cmdRegionWrite, access(0, BAR0, 1, 0)) // the interrupt goes nowhere
	c.do(cmdDMAUnmap, slices.Concat(words(24, 0), quads(0, 4*4096)))
	if _, err := c.dev.bus.Memory.Pages([]uint64{0}, 4096); !errors.Is(err, ErrUnmapped) {
		t.Errorf("Pages after unmap: %v", err)
	}
	c.refuse(unix.EINVAL, cmdDMAUnmap, slices.Concat(words(24, 0), quads(1<<63, 1<<63)))
	c.do(cmdDMAUnmap, slices.Concat(words(24, 2), quads(0, 0)))
	for _, bad := range [][]byte{
		words(20, 4|1<<5, irqMSIX, 1, 2), words(20, 4|1<<5, irqMSIX, 1<<31, 1<<31), words(20, 4, irqMSIX, 0, 1), words(20, 4|1<<5, 99, 0, 1),
		words(20, 4|1<<5, irqMSIX, 0, 1<<32-1),
	} {
		c.refuse(unix.EINVAL, cmdSetIRQs, bad, irq)
	}
}

// TestFilesAreClosed counts this process's files when clients have left theirs.
func TestFilesAreClosed(t *testing.T) {
	count := func() int {
		list, _ := filepath.Glob("/proc/self/fd/*")
		return len(list)
	}
	mem, irq := memfd(t, 4096), eventfd(t)
	before := count()
	for range 10 {
		c := newClient(t)
		c.version()
		c.do(cmdDMAMap, mapping(0, 0, 4096), mem)
		c.do(cmdSetIRQs, words(24, 4|1<<5, irqMSIX, 0, 2), irq, irq)
		c.refuse(unix.EINVAL, cmdSetIRQs, words(24, 4|1<<5, irqMSIX, 0, 2), irq, mem)
		c.send(cmdGetInfo, 0, words(16), mem, mem)
		c.answer()
		c.conn.Close()
		if err := <-c.end; err != nil {
			t.Fatal(err)
		}
	}
	if after := count(); after > before {
		t.Errorf("%d files are open, %d before", after, before)
	}
}

// TestBadMessage sends what ends a connection.
func TestBadMessage(t *testing.T) {
	header := func(cmd uint16, size, flags uint32) []byte {
		b := make([]byte, 16)
		le.PutUint16(b[2:], cmd)
		le.PutUint32(b[4:], size)
		le.PutUint32(b[8:], flags)
		return b
	}
	for name, msg := range map[string][]byte{
		"too short":      header(cmdVersion, 15, 0),
		"too long":       header(cmdVersion, maxMessage+1, 0),
		"longest number": header(cmdVersion, 1<<32-1, 0),
		"an answer":      header(cmdVersion, 16, flagReply),
		"before version": header(cmdReset, 16, 0),
		"truncated":      header(cmdVersion, 100, 0),
	} {
		c := newClient(t)
		c.conn.Write(msg)
		c.conn.CloseWrite()
		if err := <-c.end; err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// FuzzMessages sends messages, each with a size that is right, so that their contents are reached,
// and with files of several kinds. All files are closed in the end.
func FuzzMessages(f *testing.F) {
	for _, m := range [][]byte{
		mapping(0, 0, 4096), access(0, BAR0, 4, 1, 2, 3, 4), words(24, 4|1<<5, irqMSIX, 0, 1), slices.Concat(words(24, 2), quads(0, 0)),
	} {
		for cmd := range byte(16) {
			f.Add(append([]byte{cmd, byte(len(m))}, m...), cmd%2*2)
		}
	}
	f.Add(slices.Concat([]byte{cmdSetIRQs, 24}, words(24, 4|1<<5, irqMSIX, 1, 1), []byte{cmdRegionWrite, 20}, access(0, BAR0, 4, 1, 2, 3, 4)), byte(3))
	f.Fuzz(func(t *testing.T, data []byte, which byte) {
		before, _ := filepath.Glob("/proc/self/fd/*")
		c := newClient(t)
		c.version()
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		kinds := [][]*os.File{nil, nil, {memfd(t, 8*4096)}, {eventfd(t)}, {w}, {r}, {unsealed(t, 8*4096)}, {eventfd(t), w, memfd(t, 4096)}}
		ended := false
		for len(data) >= 2 && !ended {
			cmd, n := uint16(data[0]), min(int(data[1]), len(data)-2)
			files := kinds[which&7]
			which = which>>3 | which<<5
			c.send(cmd, 0, data[2:2+n], files...)
			_, errno := c.answer()
			ended = errno == unix.EPERM && cmd == cmdDMAMap
			data = data[2+n:]
		}
		c.conn.Close()
		if err := <-c.end; err != nil && !ended {
			t.Error(err)
		}
		r.Close()
		w.Close()
		for _, list := range kinds {
			for _, f := range list {
				f.Close()
			}
		}
		if after, _ := filepath.Glob("/proc/self/fd/*"); len(after) > len(before) {
			t.Errorf("%d files are open, %d before", len(after), len(before))
		}
	})
}
