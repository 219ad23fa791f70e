package provider

import (
	"bytes"
	"errors"
	"slices"
	"syscall"
	"testing"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/mmap"
)

// recorder is a virtual file that records commands.
type recorder struct {
	host.Unsupported
	written abi.IbUverbsCmdHdr
	request abi.IbUverbsReqNotifyCq
	errno   syscall.Errno
}

func (r *recorder) Write(b []byte) (int, syscall.Errno) {
	n := copy(mmap.Bytes(&r.written), b)
	copy(mmap.Bytes(&r.request), b[n:])
	return len(b), r.errno
}

func (r *recorder) Close() {}

// TestVirtualCommand runs a command on a virtual file: without a system call and an allocation.
func TestVirtualCommand(t *testing.T) {
	file := &recorder{}
	fd, errno := host.Install(file, "test")
	if errno != 0 {
		t.Fatal(errno)
	}
	defer host.Close(fd)
	n := NewNotify(&Device{FD: fd, Driver: abi.RDMA_DRIVER_RXE}, 7)
	defer n.Close()
	for _, solicited := range []bool{true, false} {
		if err := n.Arm(solicited); err != nil {
			t.Fatal(err)
		}
		if file.written.Command != abi.IB_USER_VERBS_CMD_REQ_NOTIFY_CQ || file.request.CqHandle != 7 || (file.request.SolicitedOnly == 1) != solicited {
			t.Errorf("command %+v, request %+v", file.written, file.request)
		}
	}
	if allocs := testing.AllocsPerRun(100, func() { n.Arm(false) }); allocs > 0 {
		t.Errorf("%v allocations", allocs)
	}
	file.errno = syscall.EIO
	if err := n.Arm(false); !errors.Is(err, syscall.EIO) {
		t.Errorf("a command that fails: %v", err)
	}
}

// kernelFile keeps the last command, and answers it.
type kernelFile struct {
	host.Unsupported
	refuse   syscall.Errno // of a write
	command  []byte
	ioctls   int
	invoked  abi.IbUverbsIoctlHdr
	attrs    []abi.IbUverbsAttr
	response []byte
}

func (f *kernelFile) Close() {}

func (f *kernelFile) Write(b []byte) (int, syscall.Errno) {
	if f.refuse != 0 {
		return 0, f.refuse
	}
	f.command = bytes.Clone(b)
	if len(f.response) > 0 {
		copy(unsafe.Slice(*(**byte)(unsafe.Pointer(&b[8])), len(f.response)), f.response)
	}
	return len(b), 0
}

func (f *kernelFile) Ioctl(request uint32, msg []byte) syscall.Errno {
	if f.ioctls++; request != abi.RDMA_VERBS_IOCTL {
		return syscall.ENOTTY
	}
	n := copy(mmap.Bytes(&f.invoked), msg)
	f.attrs = nil
	for range f.invoked.NumAttrs {
		var a abi.IbUverbsAttr
		n += copy(mmap.Bytes(&a), msg[n:])
		f.attrs = append(f.attrs, a)
	}
	return 0
}

// commandOf returns what a command's header and request are as bytes.
func commandOf[T any](command uint32, words, answer uint16, req T) []byte {
	return slices.Concat(mmap.Bytes(&abi.IbUverbsCmdHdr{Command: command, InWords: words, OutWords: answer}), mmap.Bytes(&req))
}

// TestCommands compares the commands of the data path with their structures, written and by ioctl.
func TestCommands(t *testing.T) {
	file := &kernelFile{}
	fd, errno := host.Install(file, "test")
	if errno != 0 {
		t.Fatal(errno)
	}
	defer host.Close(fd)
	dev := &Device{FD: fd, Driver: 77}
	bell, err := NewDoorbell(dev, 9, true)
	if err != nil {
		t.Fatal(err)
	}
	defer bell.Close()
	query := NewStateQuery(dev, 10)
	defer query.Close()
	state := make([]byte, unsafe.Sizeof(abi.IbUverbsQueryQpResp{}))
	state[unsafe.Offsetof(abi.IbUverbsQueryQpResp{}.QpState)] = byte(verbs.StateSQE)
	notify := NewNotify(dev, 11)
	defer notify.Close()
	for _, test := range []struct {
		name     string
		run      func() error
		response []byte
		command  []byte
		answers  uint16 // bytes, to the address in the request
	}{
		{"doorbell", bell.Ring, nil, commandOf(abi.IB_USER_VERBS_CMD_POST_SEND, 8, 1, abi.IbUverbsPostSend{QpHandle: 9, WqeSize: 56}), 4},
		{"flush", func() error { return FlushQP(dev, 8) }, nil,
			commandOf(abi.IB_USER_VERBS_CMD_MODIFY_QP, 30, 0, abi.IbUverbsModifyQp{QpHandle: 8, AttrMask: 1, QpState: uint8(verbs.StateErr)}), 0},
		{"query", func() error {
			s, err := query.Ask()
			if s != verbs.StateSQE {
				t.Errorf("state %v", s)
			}
			return err
		}, state, commandOf(abi.IB_USER_VERBS_CMD_QUERY_QP, 6, 32, abi.IbUverbsQueryQp{QpHandle: 10, AttrMask: 1}), 128},
		{"arm", func() error { return notify.Arm(true) }, nil, commandOf(abi.IB_USER_VERBS_CMD_REQ_NOTIFY_CQ, 4, 0, abi.IbUverbsReqNotifyCq{CqHandle: 11, SolicitedOnly: 1}), 0},
	} {
		for range 2 {
			file.response, file.command = test.response, nil
			if err := test.run(); err != nil {
				t.Fatalf("%s: %v", test.name, err)
			}
			if got := file.command; test.answers > 0 && len(got) > 16 {
				clear(got[8:16])
			}
			if !bytes.Equal(file.command, test.command) {
				t.Errorf("%s:\n%x, want\n%x", test.name, file.command, test.command)
			}
		}
		file.refuse, file.response = syscall.EACCES, nil // from a thread with other credentials
		for i := range 2 {
			if err := test.run(); err != nil || file.ioctls != i+1 {
				t.Fatalf("%s: %d ioctls: %v", test.name, file.ioctls, err)
			}
		}
		file.refuse, file.ioctls = 0, 0
		length := uint16(len(test.command) - 8)
		want := [][2]uint16{{abi.UVERBS_ATTR_WRITE_CMD, 8}, {abi.UVERBS_ATTR_CORE_IN, length}}
		if test.answers > 0 {
			want = append(want, [2]uint16{abi.UVERBS_ATTR_CORE_OUT, test.answers})
		}
		h := abi.IbUverbsIoctlHdr{Length: uint16(24 + 16*len(want)), ObjectId: abi.UVERBS_OBJECT_DEVICE, MethodId: abi.UVERBS_METHOD_INVOKE_WRITE, NumAttrs: uint16(len(want)), DriverId: 77}
		if file.invoked != h || len(file.attrs) != len(want) {
			t.Fatalf("%s: ioctl %+v, want %+v", test.name, file.invoked, h)
		}
		for i, a := range file.attrs {
			if a.AttrId != want[i][0] || a.Len != want[i][1] || a.Flags != abi.UVERBS_ATTR_F_MANDATORY || i == 0 && *a.Data() != uint64(test.command[0]) {
				t.Errorf("%s: attribute %+v, want %v", test.name, a, want[i])
			}
		}
	}
	// A short request is in its attribute.
	if in := file.attrs[1]; in.Len != 8 || !bytes.Equal(mmap.Bytes(in.Data()), mmap.Bytes(&abi.IbUverbsReqNotifyCq{CqHandle: 11, SolicitedOnly: 1})) {
		t.Errorf("request of 8 bytes: %+v", in)
	}
}
