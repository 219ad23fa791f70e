package verbs_test

import (
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
)

// TestKernel compares constants with those of the kernel's headers.
func TestKernel(t *testing.T) {
	for _, c := range []struct {
		name         string
		ours, kernel uint32
	}{
		{"RDMA_WRITE", uint32(verbs.OpRDMAWrite) - 1, abi.IB_UVERBS_WR_RDMA_WRITE},
		{"RDMA_WRITE_WITH_IMM", uint32(verbs.OpRDMAWriteImm) - 1, abi.IB_UVERBS_WR_RDMA_WRITE_WITH_IMM},
		{"SEND", uint32(verbs.OpSend) - 1, abi.IB_UVERBS_WR_SEND},
		{"SEND_WITH_IMM", uint32(verbs.OpSendImm) - 1, abi.IB_UVERBS_WR_SEND_WITH_IMM},
		{"RDMA_READ", uint32(verbs.OpRDMARead) - 1, abi.IB_UVERBS_WR_RDMA_READ},
		{"ATOMIC_CMP_AND_SWP", uint32(verbs.OpCompareSwap) - 1, abi.IB_UVERBS_WR_ATOMIC_CMP_AND_SWP},
		{"ATOMIC_FETCH_AND_ADD", uint32(verbs.OpFetchAdd) - 1, abi.IB_UVERBS_WR_ATOMIC_FETCH_AND_ADD},
		{"LOCAL_INV", uint32(verbs.OpLocalInv) - 1, abi.IB_UVERBS_WR_LOCAL_INV},
		{"BIND_MW", uint32(verbs.OpBindMW) - 1, abi.IB_UVERBS_WR_BIND_MW},
		{"SEND_WITH_INV", uint32(verbs.OpSendInv) - 1, abi.IB_UVERBS_WR_SEND_WITH_INV},
		{"RDMA_READ_WITH_INV", uint32(verbs.OpRDMAReadInv) - 1, abi.IB_UVERBS_WR_RDMA_READ_WITH_INV},
		{"FLUSH", uint32(verbs.OpFlush) - 1, abi.IB_UVERBS_WR_FLUSH},
		{"ATOMIC_WRITE", uint32(verbs.OpAtomicWrite) - 1, abi.IB_UVERBS_WR_ATOMIC_WRITE},

		{"WC_SEND", uint32(verbs.WCSend), abi.IB_UVERBS_WC_SEND},
		{"WC_RDMA_WRITE", uint32(verbs.WCRDMAWrite), abi.IB_UVERBS_WC_RDMA_WRITE},
		{"WC_RDMA_READ", uint32(verbs.WCRDMARead), abi.IB_UVERBS_WC_RDMA_READ},
		{"WC_COMP_SWAP", uint32(verbs.WCCompareSwap), abi.IB_UVERBS_WC_COMP_SWAP},
		{"WC_FETCH_ADD", uint32(verbs.WCFetchAdd), abi.IB_UVERBS_WC_FETCH_ADD},
		{"WC_BIND_MW", uint32(verbs.WCBindMW), abi.IB_UVERBS_WC_BIND_MW},
		{"WC_LOCAL_INV", uint32(verbs.WCLocalInv), abi.IB_UVERBS_WC_LOCAL_INV},
		{"WC_FLUSH", uint32(verbs.WCFlush), abi.IB_UVERBS_WC_FLUSH},
		{"WC_ATOMIC_WRITE", uint32(verbs.WCAtomicWrite), abi.IB_UVERBS_WC_ATOMIC_WRITE},

		{"FLUSH_GLOBAL", uint32(verbs.FlushGlobal), abi.IB_FLUSH_GLOBAL},
		{"FLUSH_PERSISTENT", uint32(verbs.FlushPersistent), abi.IB_FLUSH_PERSISTENT},
		{"FLUSH_RANGE", uint32(verbs.FlushRange), abi.IB_FLUSH_RANGE},
		{"FLUSH_MR", uint32(verbs.FlushMR), abi.IB_FLUSH_MR},

		{"ACCESS_LOCAL_WRITE", uint32(verbs.AccessLocalWrite), abi.IB_UVERBS_ACCESS_LOCAL_WRITE},
		{"ACCESS_REMOTE_WRITE", uint32(verbs.AccessRemoteWrite), abi.IB_UVERBS_ACCESS_REMOTE_WRITE},
		{"ACCESS_REMOTE_READ", uint32(verbs.AccessRemoteRead), abi.IB_UVERBS_ACCESS_REMOTE_READ},
		{"ACCESS_REMOTE_ATOMIC", uint32(verbs.AccessRemoteAtomic), abi.IB_UVERBS_ACCESS_REMOTE_ATOMIC},
		{"ACCESS_MW_BIND", uint32(verbs.AccessMWBind), abi.IB_UVERBS_ACCESS_MW_BIND},
		{"ACCESS_ZERO_BASED", uint32(verbs.AccessZeroBased), abi.IB_UVERBS_ACCESS_ZERO_BASED},
		{"ACCESS_ON_DEMAND", uint32(verbs.AccessOnDemand), abi.IB_UVERBS_ACCESS_ON_DEMAND},
		{"ACCESS_HUGETLB", uint32(verbs.AccessHugeTLB), abi.IB_UVERBS_ACCESS_HUGETLB},
		{"ACCESS_FLUSH_GLOBAL", uint32(verbs.AccessFlushGlobal), abi.IB_UVERBS_ACCESS_FLUSH_GLOBAL},
		{"ACCESS_FLUSH_PERSISTENT", uint32(verbs.AccessFlushPersistent), abi.IB_UVERBS_ACCESS_FLUSH_PERSISTENT},
		{"ACCESS_RELAXED_ORDERING", uint32(verbs.AccessRelaxedOrdering), abi.IB_UVERBS_ACCESS_RELAXED_ORDERING},

		{"RC", uint32(verbs.RC), abi.IB_UVERBS_QPT_RC},
		{"UC", uint32(verbs.UC), abi.IB_UVERBS_QPT_UC},
		{"UD", uint32(verbs.UD), abi.IB_UVERBS_QPT_UD},

		{"GID_TYPE_IB", uint32(verbs.GIDIB), abi.IB_UVERBS_GID_TYPE_IB},
		{"GID_TYPE_ROCE_V1", uint32(verbs.GIDRoCEv1), abi.IB_UVERBS_GID_TYPE_ROCE_V1},
		{"GID_TYPE_ROCE_V2", uint32(verbs.GIDRoCEv2), abi.IB_UVERBS_GID_TYPE_ROCE_V2},

		{"ADVICE_PREFETCH", uint32(verbs.AdvisePrefetch), abi.IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH},
		{"ADVICE_PREFETCH_WRITE", uint32(verbs.AdvisePrefetchWrite), abi.IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE},
		{"ADVICE_PREFETCH_NO_FAULT", uint32(verbs.AdvisePrefetchNoFault), abi.IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT},
	} {
		if c.ours != c.kernel {
			t.Errorf("%s is %d, the kernel's %d", c.name, c.ours, c.kernel)
		}
	}
}
