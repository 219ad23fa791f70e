package docs

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/mmap"
)

// askService requests an InfiniBand service. Package cm has no call for it, as its devices
// have no such services.
func askService(t *testing.T, device string) error {
	fd := labtest.Must(unix.Open("/dev/infiniband/rdma_cm", unix.O_RDWR|unix.O_CLOEXEC, 0))(t)
	defer unix.Close(fd)
	var pin runtime.Pinner
	defer pin.Unpin()
	var made abi.RdmaUcmCreateIdResp
	create := abi.RdmaUcmCreateId{Uid: 1, Response: mmap.Pin(&pin, mmap.Bytes(&made)), Ps: abi.RDMA_PS_TCP, QpType: abi.IB_UVERBS_QPT_RC}
	labtest.Check(t, command(fd, abi.RDMA_USER_CM_CMD_CREATE_ID, mmap.Bytes(&create), len(mmap.Bytes(&made))))
	bind := abi.RdmaUcmBind{Id: made.Id, AddrSize: unix.SizeofSockaddrInet4}
	*bind.Addr.SsFamily() = unix.AF_INET
	copy(mmap.Bytes(&bind.Addr)[4:], netip.MustParseAddr(labtest.AddrOf(device)).AsSlice())
	labtest.Check(t, command(fd, abi.RDMA_USER_CM_CMD_BIND, mmap.Bytes(&bind), 0))
	resolve := abi.RdmaUcmResolveIbService{
		Id: made.Id, Ibs: abi.RdmaUcmIbService{ServiceId: 1, Flags: abi.RDMA_USER_CM_IB_SERVICE_FLAG_ID},
	}
	if err := command(fd, abi.RDMA_USER_CM_CMD_RESOLVE_IB_SERVICE, mmap.Bytes(&resolve), 0); err != nil {
		return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return nil
}

// command runs a command of rdma_cm.
func command(fd int, number uint32, req []byte, respLen int) error {
	header := abi.RdmaUcmCmdHdr{Cmd: number, In: uint16(len(req)), Out: uint16(respLen)}
	_, err := unix.Write(fd, append(mmap.Bytes(&header), req...))
	return err
}
