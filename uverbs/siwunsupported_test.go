//go:build linux

package uverbs_test

import (
	"context"
	"encoding/binary"
	"os"
	"reflect"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

// TestSIWUnsupported checks that the kernel's siw lacks immediates and atomics, which
// provider/siw refuses: it writes such requests to the mapped queue by hand. An RDMA
// WRITE with an immediate has no number in siw-abi.h. The kernel reports that it has no
// atomics: it treats them as a bug of its own and completes nothing (siw_qp_sq_process).
func TestSIWUnsupported(t *testing.T) {
	labtest.RequireBoth(t)
	if attr := labtest.Must(labtest.OpenDevice(t, labtest.SIW).QueryDevice())(t); attr.AtomicCap != verbs.AtomicNone {
		t.Errorf("siw has atomics: %v", attr.AtomicCap)
	}
	for name, c := range map[string]struct {
		opcode uint8
		works  bool
	}{
		"SEND":           {abi.SIW_OP_SEND, true}, // shows that postRaw works
		"SEND_WITH_IMM":  {abi.SIW_OP_SEND_WITH_IMM, false},
		"none of SIW_OP": {abi.SIW_OP_REG_MR, false},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := labtest.NewPair(t, labtest.SIW, rdmatest.PairOptions{Type: verbs.RC, Events: true})
			if _, err := b.PostRecv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{b.MR.SGE(0, 100)}}); err != nil {
				t.Fatal(err)
			}
			postRaw(t, a.QP, c.opcode)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			var wcs [1]verbs.WC
			if _, err := a.SendCQ.PollWait(ctx, wcs[:]); err != nil {
				t.Fatal(err)
			}
			if wc := wcs[0]; wc.ID != 77 || (wc.Status == verbs.WCSuccess) != c.works {
				t.Errorf("completion %+v: %v", wc, wc.Status)
			}
		})
	}
}

// postRaw writes a request without data to the first element of a siw QP's queue, and
// rings the doorbell.
func postRaw(t *testing.T, qp *uverbs.QP, opcode uint8) {
	t.Helper()
	v := reflect.ValueOf(qp).Elem()
	base := v.FieldByName("send").Elem().Elem().FieldByName("queue").FieldByName("base").Pointer()
	sqe := binary.NativeEndian.AppendUint64(nil, 77)
	sqe = binary.NativeEndian.AppendUint16(sqe, abi.SIW_WQE_VALID|abi.SIW_WQE_SIGNALLED)
	sqe = append(sqe, 1, opcode) // of an empty SGE
	sqe = append(sqe, make([]byte, 4+8+16)...)
	mem := labtest.Made(os.OpenFile("/proc/self/mem", os.O_RDWR, 0))(t)
	if _, err := mem.WriteAt(sqe, int64(base)); err != nil {
		t.Fatal(err)
	}
	cmd := binary.NativeEndian.AppendUint32(nil, abi.IB_USER_VERBS_CMD_POST_SEND)
	cmd = binary.NativeEndian.AppendUint16(cmd, 8) // words of request and response
	cmd = binary.NativeEndian.AppendUint16(cmd, 1)
	var resp [1]uint64
	cmd = binary.NativeEndian.AppendUint64(cmd, uint64(reflect.ValueOf(&resp).Pointer()))
	cmd = binary.NativeEndian.AppendUint32(cmd, uint32(v.FieldByName("handle").Uint()))
	cmd = append(cmd, make([]byte, 4+4)...) // no requests: they are in the queue
	cmd = binary.NativeEndian.AppendUint32(cmd, 64)
	if _, err := unix.Write(qp.PD().Context().FD(), cmd); err != nil && opcode == abi.SIW_OP_SEND {
		t.Fatal(err)
	}
}
