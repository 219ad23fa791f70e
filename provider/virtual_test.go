package provider

import (
	"errors"
	"syscall"
	"testing"

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
