/*
 * Exchanges data with TestDCWithC by the dynamically connected transport, with libmlx5.
 *
 *	dc DEVICE GID_INDEX KEY <lines >lines
 *
 * It makes a target with memory, tells where that is, and does what it is told:
 *
 *	target DCTN ADDRESS RKEY LID GID	of the other side; the answer is that of this one
 *	write LENGTH BYTE	writes so many such bytes to the other side's memory
 *	read LENGTH		reads so many of it; the answer has the first, and whether all are equal
 *	add N			adds a number to the first 8 bytes; the answer has what they were
 *	send LENGTH BYTE IMM	sends them, with an immediate
 *	recv			waits for a message; the answer has its length, first byte and immediate
 *	key KEY			sends with another key from now on; the DCI begins anew
 *
 * Other answers are the status of the completion.
 */
#include <errno.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIZE = 1 << 20, MESSAGE = 1 << 16, RECVS = 16 };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq, *recvCQ;
static struct ibv_srq *srq;
static struct ibv_mr *mr;
static struct ibv_qp *dci, *dct;
static struct ibv_ah *ah;
static struct ibv_port_attr port;
static uint8_t *mem; /* the target's; behind it that of messages that come, and then what is sent */
static int gidIndex;
static uint64_t key, peerAddr;
static uint32_t peerNum, peerKey;

static void die(const char *what)
{
	fprintf(stderr, "dc: %s: %s\n", what, strerror(errno));
	exit(1);
}

static struct ibv_qp *create(enum mlx5dv_dc_type type)
{
	struct ibv_qp_init_attr_ex a = {
		.qp_type = IBV_QPT_DRIVER, .send_cq = cq, .recv_cq = recvCQ, .pd = pd, .comp_mask = IBV_QP_INIT_ATTR_PD,
	};
	struct mlx5dv_qp_init_attr dv = { .comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC, .dc_init_attr.dc_type = type };
	if (type == MLX5DV_DCTYPE_DCT) {
		a.srq = srq;
		dv.dc_init_attr.dct_access_key = key;
	} else {
		a.cap = (struct ibv_qp_cap){ .max_send_wr = 16, .max_send_sge = 1 };
		a.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		a.send_ops_flags = IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
	}
	struct ibv_qp *qp = mlx5dv_create_qp(ctx, &a, &dv);
	if (!qp)
		die("mlx5dv_create_qp");
	return qp;
}

static void startTarget(void)
{
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	};
	if ((errno = ibv_modify_qp(dct, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)))
		die("DCT to INIT");
	a = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = port.active_mtu, .min_rnr_timer = 12,
		.ah_attr = { .port_num = 1, .is_global = 1, .grh = { .hop_limit = 64, .sgid_index = gidIndex } },
	};
	if (ibv_query_gid(ctx, 1, gidIndex, &a.ah_attr.grh.dgid))
		die("ibv_query_gid");
	if ((errno = ibv_modify_qp(dct, &a, IBV_QP_STATE | IBV_QP_PATH_MTU | IBV_QP_AV | IBV_QP_MIN_RNR_TIMER)))
		die("DCT to RTR");
}

static void startInitiator(void)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	if ((errno = ibv_modify_qp(dci, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT)))
		die("DCI to INIT");
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = port.active_mtu };
	if ((errno = ibv_modify_qp(dci, &a, IBV_QP_STATE | IBV_QP_PATH_MTU)))
		die("DCI to RTR");
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .max_rd_atomic = 4, .timeout = 14, .retry_cnt = 3, .rnr_retry = 7 };
	if ((errno = ibv_modify_qp(dci, &a, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT)))
		die("DCI to RTS");
}

static void postRecv(int i)
{
	struct ibv_sge s = { (uintptr_t)mem + SIZE + i * MESSAGE, MESSAGE, mr->lkey };
	struct ibv_recv_wr w = { .wr_id = i, .sg_list = &s, .num_sge = 1 }, *bad;
	if ((errno = ibv_post_srq_recv(srq, &w, &bad)))
		die("ibv_post_srq_recv");
}

static void setTarget(void)
{
	char text[64];
	unsigned lid;
	struct ibv_ah_attr a = { .port_num = 1, .is_global = 1, .grh = { .hop_limit = 64, .sgid_index = gidIndex } };
	if (scanf("%" SCNu32 " %" SCNu64 " %" SCNu32 " %u %63s", &peerNum, &peerAddr, &peerKey, &lid, text) != 5 || strlen(text) != 32)
		die("target");
	for (int i = 0; i < 16; i++)
		sscanf(text + 2 * i, "%2hhx", &a.grh.dgid.raw[i]);
	a.dlid = lid;
	if (!(ah = ibv_create_ah(pd, &a)))
		die("ibv_create_ah");
	union ibv_gid gid;
	if (ibv_query_gid(ctx, 1, gidIndex, &gid))
		die("ibv_query_gid");
	printf("%u %" PRIu64 " %u %u ", dct->qp_num, (uint64_t)(uintptr_t)mem, mr->rkey, port.lid);
	for (int i = 0; i < 16; i++)
		printf("%02x", gid.raw[i]);
	printf("\n");
}

/* post posts a request for n bytes of what is sent, and returns the status of its completion. */
static int post(char what, uint32_t n, uint64_t arg)
{
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(dci);
	ibv_wr_start(x);
	x->wr_id = 1;
	x->wr_flags = IBV_SEND_SIGNALED;
	switch (what) {
	case 'w': ibv_wr_rdma_write(x, peerKey, peerAddr); break;
	case 'r': ibv_wr_rdma_read(x, peerKey, peerAddr); break;
	case 'a': ibv_wr_atomic_fetch_add(x, peerKey, peerAddr, arg); break;
	default: ibv_wr_send_imm(x, htobe32(arg));
	}
	mlx5dv_wr_set_dc_addr(mlx5dv_qp_ex_from_ibv_qp_ex(x), ah, peerNum, key);
	ibv_wr_set_sge(x, mr->lkey, (uintptr_t)mem + SIZE + RECVS * MESSAGE, n);
	if ((errno = ibv_wr_complete(x)))
		die("ibv_wr_complete");
	struct ibv_wc wc;
	while (!ibv_poll_cq(cq, 1, &wc))
		;
	return wc.status;
}

int main(int argc, char **argv)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	if (argc != 4)
		die("arguments");
	for (int i = 0; i < n; i++)
		if (!strcmp(ibv_get_device_name(list[i]), argv[1]))
			ctx = ibv_open_device(list[i]);
	gidIndex = atoi(argv[2]);
	key = strtoull(argv[3], NULL, 0);
	size_t size = SIZE + RECVS * MESSAGE + SIZE;
	struct ibv_srq_init_attr s = { .attr = { .max_wr = RECVS, .max_sge = 1 } };
	if (!ctx || ibv_query_port(ctx, 1, &port) || !(pd = ibv_alloc_pd(ctx)) || !(cq = ibv_create_cq(ctx, 16, NULL, NULL, 0)) ||
	    !(recvCQ = ibv_create_cq(ctx, 2 * RECVS, NULL, NULL, 0)) || !(srq = ibv_create_srq(pd, &s)) || posix_memalign((void **)&mem, 4096, size))
		die("queues");
	memset(mem, 0, size);
	if (!(mr = ibv_reg_mr(pd, mem, size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)))
		die("ibv_reg_mr");
	dct = create(MLX5DV_DCTYPE_DCT);
	startTarget();
	dci = create(MLX5DV_DCTYPE_DCI);
	startInitiator();
	for (int i = 0; i < RECVS; i++)
		postRecv(i);
	setvbuf(stdout, NULL, _IOLBF, 0);
	uint8_t *data = mem + SIZE + RECVS * MESSAGE;
	char order[16];
	unsigned length, byte, imm;
	uint64_t add;
	while (scanf("%15s", order) == 1) {
		if (!strcmp(order, "target"))
			setTarget();
		else if (!strcmp(order, "write") && scanf("%u %u", &length, &byte) == 2) {
			memset(data, byte, length);
			printf("%d\n", post('w', length, 0));
		} else if (!strcmp(order, "read") && scanf("%u", &length) == 1) {
			int status = post('r', length, 0), equal = 1;
			for (unsigned i = 1; i < length; i++)
				equal &= data[i] == data[0];
			printf("%d %u %d\n", status, data[0], equal);
		} else if (!strcmp(order, "add") && scanf("%" SCNu64, &add) == 1) {
			int status = post('a', 8, add);
			printf("%d %" PRIu64 "\n", status, *(uint64_t *)data);
		} else if (!strcmp(order, "send") && scanf("%u %u %u", &length, &byte, &imm) == 3) {
			memset(data, byte, length);
			printf("%d\n", post('s', length, imm));
		} else if (!strcmp(order, "recv")) {
			struct ibv_wc wc;
			while (!ibv_poll_cq(recvCQ, 1, &wc))
				;
			printf("%d %u %u %u\n", wc.status, wc.byte_len, mem[SIZE + wc.wr_id * MESSAGE], be32toh(wc.imm_data));
			postRecv(wc.wr_id);
		} else if (!strcmp(order, "key") && scanf("%" SCNu64, &key) == 1) {
			struct ibv_qp_attr a = { .qp_state = IBV_QPS_RESET };
			if ((errno = ibv_modify_qp(dci, &a, IBV_QP_STATE)))
				die("DCI to RESET");
			startInitiator();
			printf("0\n");
		} else
			die(order);
	}
	return 0;
}
