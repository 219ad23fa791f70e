package kernel_test

import (
	"encoding/binary"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/soft/internal/kernel"
)

func createChannel(t *testing.T, f sys.File) int {
	t.Helper()
	var resp abi.IbUverbsCreateCompChannelResp
	check(t, f.Invoke(abi.IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, mmap.Bytes(&abi.IbUverbsCreateCompChannel{}), mmap.Bytes(&resp), nil, nil))
	return int(resp.Fd)
}

func allocAsync(t *testing.T, f sys.File) int {
	t.Helper()
	var fd uint32
	check(t, f.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_ASYNC_EVENT, Method: abi.UVERBS_METHOD_ASYNC_EVENT_ALLOC, Attrs: []sys.Attr{
		sys.New(abi.UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE, &fd),
	}}))
	return int(fd)
}

// TestRemovalEvents removes a device: an event says so, completion channels fail, and objects
// can be destroyed.
func TestRemovalEvents(t *testing.T) {
	d := newDevice(t)
	f := openContext(t, d)
	async, channel := allocAsync(t, f), createChannel(t, f)
	defer host.Close(async)
	defer host.Close(channel)
	_, _, err := createCQ(f, 10, async)
	want(t, "asynchronous events as a completion channel", err, syscall.EBADF)
	other := openContext(t, d)
	_, _, err = createCQ(other, 10, channel)
	want(t, "channel of another file", err, syscall.EBADF)
	cq, _, err := createCQ(f, 10, channel)
	check(t, err)
	b := make([]byte, 16)
	for name, fd := range map[string]int{"async": async, "channel": channel} {
		want(t, name+": no event", second(host.Read(fd, b)), syscall.EAGAIN)
	}
	var state host.State
	defer host.Get(channel).Watch(func(s host.State) { state = s })()

	d.Remove()
	d.Remove()
	if state != host.Failed {
		t.Errorf("the channel is in state %d", state)
	}
	want(t, "channel", second(host.Read(channel, b)), syscall.EIO)
	for fatal := false; !fatal; {
		want(t, "short read", second(host.Read(async, b[:8])), syscall.EINVAL)
		n, err := host.Read(async, b)
		if n != 16 || err != nil {
			t.Fatal(n, err)
		}
		fatal = binary.NativeEndian.Uint32(b[8:]) == uint32(verbs.EventDeviceFatal)
	}
	want(t, "after the last event", second(host.Read(async, b)), syscall.EAGAIN)
	want(t, "context of an open file", f.Ioctl(getContext), syscall.EIO)
	_, _, err = createCQ(f, 10, -1)
	want(t, "CQ", err, syscall.EIO)
	if _, errno := d.Open(); errno != syscall.ENODEV {
		t.Errorf("opened: %v", errno)
	}
	var resp abi.IbUverbsDestroyCqResp
	want(t, "destroy the CQ", f.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_CQ, Method: abi.UVERBS_METHOD_CQ_DESTROY, Attrs: []sys.Attr{
		sys.Handle(abi.UVERBS_ATTR_DESTROY_CQ_HANDLE, cq), sys.Out(abi.UVERBS_ATTR_DESTROY_CQ_RESP, &resp),
	}}), nil)
}

// TestDestroyWhileRemoved destroys objects while the device is removed, which destroys them as
// well.
func TestDestroyWhileRemoved(t *testing.T) {
	for range 100 {
		d := newDevice(t)
		f := openContext(t, d)
		var pds []uint32
		for range 100 {
			pds = append(pds, allocPD(t, f))
		}
		var removal sync.WaitGroup
		removal.Go(d.Remove)
		runtime.Gosched()
		for _, pd := range pds {
			want(t, "destroy the PD", destroyPD(f, pd), nil)
		}
		removal.Wait()
	}
}

// TestChannelClosedFirst closes a channel before its CQ, and the file before its channel.
func TestChannelClosedFirst(t *testing.T) {
	f := openContext(t, newDevice(t))
	channel, late := createChannel(t, f), createChannel(t, f)
	defer host.Close(late)
	_, _, err := createCQ(f, 10, channel)
	check(t, err)
	host.Close(channel)
	_, _, err = createCQ(f, 10, channel)
	want(t, "closed channel", err, syscall.EBADF)
	host.Close(f.FD)
	want(t, "channel of a closed file", second(host.Read(late, make([]byte, 8))), syscall.EAGAIN)
}

// TestEventsNeverEmpty reads a million events of a channel that always has one more: it keeps no memory
// for those that have been read.
func TestEventsNeverEmpty(t *testing.T) {
	d := newDevice(t)
	f := openContext(t, d)
	channel := createChannel(t, f)
	defer host.Close(channel)
	raise, b := kernel.Complete(channel), make([]byte, 16)
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	raise()
	before := heap()
	for range 1_000_000 {
		raise()
		if _, err := host.Read(channel, b); err != nil {
			t.Fatal(err)
		}
	}
	if after := heap(); after > before+1<<20 {
		t.Errorf("the heap grew from %d to %d bytes", before, after)
	}
}
