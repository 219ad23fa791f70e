package provider

import (
	"testing"

	"github.com/goverbs/verbs/abi"
)

// TestOpcodes compares the opcodes with the kernel's.
func TestOpcodes(t *testing.T) {
	for op, kernel := range map[Opcode]uint32{
		OpRDMAWrite:    abi.IB_UVERBS_WR_RDMA_WRITE,
		OpRDMAWriteImm: abi.IB_UVERBS_WR_RDMA_WRITE_WITH_IMM,
		OpSend:         abi.IB_UVERBS_WR_SEND,
		OpSendImm:      abi.IB_UVERBS_WR_SEND_WITH_IMM,
		OpRDMARead:     abi.IB_UVERBS_WR_RDMA_READ,
		OpCompareSwap:  abi.IB_UVERBS_WR_ATOMIC_CMP_AND_SWP,
		OpFetchAdd:     abi.IB_UVERBS_WR_ATOMIC_FETCH_AND_ADD,
		OpLocalInv:     abi.IB_UVERBS_WR_LOCAL_INV,
		OpBindMW:       abi.IB_UVERBS_WR_BIND_MW,
		OpSendInv:      abi.IB_UVERBS_WR_SEND_WITH_INV,
		OpRDMAReadInv:  abi.IB_UVERBS_WR_RDMA_READ_WITH_INV,
		OpFlush:        abi.IB_UVERBS_WR_FLUSH,
		OpAtomicWrite:  abi.IB_UVERBS_WR_ATOMIC_WRITE,
	} {
		if op == 0 || uint32(op-1) != kernel {
			t.Errorf("%v is %d, the kernel's %d", op, op, kernel)
		}
	}
	if len(opcodeNames) != 13 {
		t.Errorf("%d opcodes", len(opcodeNames))
	}
}
