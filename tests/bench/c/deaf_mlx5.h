/*
 * An mlx5 without an adapter: what the kernel's mlx5_ib answers for an emulated ConnectX-6 Dx. The
 * program has device_pages.
 */
#include "deaf.h"
#include <infiniband/mlx5dv.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/mlx5-abi.h>
#include <rdma/mlx5_user_ioctl_cmds.h>

static const struct ib_uverbs_query_device_resp limits = {
	.max_qp_wr = 1 << 15, .max_sge = 30, .max_cqe = (1 << 22) - 1, .max_srq_wr = 1 << 15, .max_srq_sge = 30, .phys_port_cnt = 1,
	.atomic_cap = IBV_ATOMIC_HCA,
};

static int ethernet; /* the port is of RoCE, with GIDs of both versions; else it is of InfiniBand, with one */
static uint32_t handles;

/* mlx5_ioctl does what mlx5_ib does for an ioctl. */
static int mlx5_ioctl(struct ib_uverbs_ioctl_hdr *h)
{
	switch (h->object_id << 16 | h->method_id) {
	case UVERBS_OBJECT_DEVICE << 16 | UVERBS_METHOD_GET_CONTEXT:
		ANSWER(h, UVERBS_ATTR_UHW_OUT, (struct mlx5_ib_alloc_ucontext_resp){
			.qp_tab_size = 1 << 18, .bf_reg_size = 512, .cache_line_size = 64, .max_sq_desc_sz = 1024,
			.max_rq_desc_sz = 512, .max_send_wqebb = 1 << 15, .max_recv_wr = 1 << 15, .max_srq_recv_wr = 1 << 15,
			.num_ports = 1, .response_length = sizeof(struct mlx5_ib_alloc_ucontext_resp), .cqe_version = 1,
			.cmds_supp_uhw = MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE | MLX5_USER_CMDS_SUPP_UHW_CREATE_AH,
			.log_uar_size = 12, .num_uars_per_page = 1,
		});
		return 0;
	case UVERBS_OBJECT_DEVICE << 16 | UVERBS_METHOD_QUERY_PORT:
		ANSWER(h, UVERBS_ATTR_QUERY_PORT_RESP, (struct ib_uverbs_query_port_resp_ex){ .legacy_resp = {
			.state = IBV_PORT_ACTIVE, .max_mtu = IBV_MTU_4096, .active_mtu = IBV_MTU_1024, .max_msg_sz = 1 << 30,
			.link_layer = ethernet ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND, .gid_tbl_len = ethernet ? 2 : 1, .lid = 1,
		} });
		return 0;
	case UVERBS_OBJECT_DEVICE << 16 | UVERBS_METHOD_QUERY_GID_ENTRY: {
		uint32_t i = attr(h, UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX)->data;

		ANSWER(h, UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, (struct ib_uverbs_gid_entry){
			.gid = { htobe64(0xfe80ull << 48), htobe64(0x1234) }, .gid_index = i, .port_num = 1,
			.gid_type = i ? IBV_GID_TYPE_ROCE_V2 : ethernet ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_IB,
		});
		return 0;
	}
	case MLX5_IB_OBJECT_UAR << 16 | MLX5_IB_METHOD_UAR_OBJ_ALLOC:
		attr(h, MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE)->data = ++handles;
		ANSWER(h, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, (uint64_t){ 0 });
		ANSWER(h, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, (uint32_t){ 4096 });
		ANSWER(h, MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, (uint32_t){ handles });
		return 0;
	case UVERBS_OBJECT_CQ << 16 | UVERBS_METHOD_CQ_CREATE:
		ANSWER(h, UVERBS_ATTR_UHW_OUT, (struct mlx5_ib_create_cq_resp){ .cqn = ++handles });
		return made_cq(h, handles, attr(h, UVERBS_ATTR_CREATE_CQ_CQE)->data);
	case UVERBS_OBJECT_SRQ << 16 | UVERBS_METHOD_SRQ_CREATE:
		attr(h, UVERBS_ATTR_CREATE_SRQ_HANDLE)->data = ++handles;
		ANSWER(h, UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, (uint32_t){ attr(h, UVERBS_ATTR_CREATE_SRQ_MAX_WR)->data });
		ANSWER(h, UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, (uint32_t){ attr(h, UVERBS_ATTR_CREATE_SRQ_MAX_SGE)->data });
		ANSWER(h, UVERBS_ATTR_UHW_OUT, (struct mlx5_ib_create_srq_resp){ .srqn = handles });
		return 0;
	case UVERBS_OBJECT_QP << 16 | UVERBS_METHOD_QP_CREATE:
		++handles;
		ANSWER(h, UVERBS_ATTR_UHW_OUT, (struct mlx5_ib_create_qp_resp){ 0 });
		return made_qp(h, handles, handles);
	case UVERBS_OBJECT_SRQ << 16 | UVERBS_METHOD_SRQ_DESTROY:
		ANSWER(h, UVERBS_ATTR_DESTROY_SRQ_RESP, (struct ib_uverbs_destroy_srq_resp){ 0 });
		return 0;
	case UVERBS_OBJECT_AH << 16 | UVERBS_METHOD_AH_DESTROY:
		return 0;
	case UVERBS_OBJECT_DEVICE << 16 | UVERBS_METHOD_INVOKE_WRITE:
		switch (attr(h, UVERBS_ATTR_WRITE_CMD)->data) {
		case IB_USER_VERBS_CMD_ALLOC_PD:
			ANSWER(h, UVERBS_ATTR_UHW_OUT, (struct mlx5_ib_alloc_pd_resp){ 1 });
			return OTHERS;
		case IB_USER_VERBS_CMD_CREATE_AH:
			ANSWER(h, UVERBS_ATTR_CORE_OUT, (struct ib_uverbs_create_ah_resp){ ++handles });
			ANSWER(h, UVERBS_ATTR_UHW_OUT, (struct mlx5_ib_create_ah_resp){ .response_length = sizeof(struct mlx5_ib_create_ah_resp), .dmac = { 2, 1, 2, 3, 4, 5 } });
			return 0;
		case IB_USER_VERBS_CMD_RESIZE_CQ: {
			struct ib_uverbs_resize_cq *req = (void *)(uintptr_t)attr(h, UVERBS_ATTR_CORE_IN)->data;

			ANSWER(h, UVERBS_ATTR_CORE_OUT, (struct ib_uverbs_resize_cq_resp){ .cqe = req->cqe });
			return 0;
		}
		}
	}
	return OTHERS;
}

/* open_mlx5 opens the device n times. */
static inline void open_mlx5(struct ibv_context **contexts, int n)
{
	open_device("mlx5_0", "pci:v000015B3d0000101Bsv000015B3sd00000000bc02sc07i00\n", contexts, n);
}
