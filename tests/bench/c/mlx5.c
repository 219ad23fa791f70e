// Measures what posting and polling cost with libmlx5, on an adapter that is not there;
// mlx5/main.go, its twin, says how.
#define _GNU_SOURCE
#include "deaf.h"
#include <infiniband/mlx5dv.h>
#include <rdma/mlx5-abi.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <x86intrin.h>
#include "cm.h"

enum { WORK = 960, DEPTH = 1024, ROUNDS = 24, SIZE = 64, MOST = 16 }; // as in mlx5/main.go

// The device's registers are ordinary memory.
static void *device_pages(int context, size_t size, off_t off)
{
	return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

// ring is a CQ, to which the program writes what the adapter would.
struct ring {
	struct mlx5_cqe64 *cqes;
	uint32_t size, made;
};
static struct ring rings[2];
static int cqs;
static struct mlx5_ib_create_qp qp_request;
static uint32_t handles;

static const struct ib_uverbs_query_device_resp limits = { .max_qp_wr = 1 << 15, .max_sge = 30, .max_cqe = (1 << 22) - 1, .phys_port_cnt = 1 };

static int device_ioctl(int context, struct ib_uverbs_ioctl_hdr *h)
{
	switch (h->object_id << 16 | h->method_id) {
	case UVERBS_OBJECT_DEVICE << 16 | UVERBS_METHOD_GET_CONTEXT:
		ANSWER(h, UVERBS_ATTR_UHW_OUT, (struct mlx5_ib_alloc_ucontext_resp){
			.qp_tab_size = 1 << 18, .bf_reg_size = 512, .cache_line_size = 64, .max_sq_desc_sz = 1024,
			.max_rq_desc_sz = 512, .max_send_wqebb = 1 << 15, .max_recv_wr = 1 << 15, .max_srq_recv_wr = 1 << 15,
			.num_ports = 1, .response_length = sizeof(struct mlx5_ib_alloc_ucontext_resp), .cqe_version = 1,
			.log_uar_size = 12, .num_uars_per_page = 1,
		});
		return 0;
	case UVERBS_OBJECT_DEVICE << 16 | UVERBS_METHOD_QUERY_PORT:
		ANSWER(h, UVERBS_ATTR_QUERY_PORT_RESP, (struct ib_uverbs_query_port_resp_ex){ .legacy_resp = {
			.state = IBV_PORT_ACTIVE, .max_mtu = IBV_MTU_4096, .active_mtu = IBV_MTU_1024,
			.max_msg_sz = 1 << 30, .link_layer = IBV_LINK_LAYER_INFINIBAND,
		} });
		return 0;
	case MLX5_IB_OBJECT_UAR << 16 | MLX5_IB_METHOD_UAR_OBJ_ALLOC:
		attr(h, MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE)->data = ++handles;
		ANSWER(h, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, (uint64_t){ 0 });
		ANSWER(h, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, (uint32_t){ 4096 });
		ANSWER(h, MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, (uint32_t){ handles });
		return 0;
	case UVERBS_OBJECT_CQ << 16 | UVERBS_METHOD_CQ_CREATE: {
		struct mlx5_ib_create_cq *req = private_part(h);
		uint32_t cqe = attr(h, UVERBS_ATTR_CREATE_CQ_CQE)->data;

		rings[cqs++] = (struct ring){ (void *)(uintptr_t)req->buf_addr, cqe + 1 };
		ANSWER(h, UVERBS_ATTR_UHW_OUT, (struct mlx5_ib_create_cq_resp){ .cqn = ++handles });
		return made_cq(h, handles, cqe);
	}
	case UVERBS_OBJECT_QP << 16 | UVERBS_METHOD_QP_CREATE:
		qp_request = *(struct mlx5_ib_create_qp *)private_part(h);
		++handles;
		ANSWER(h, UVERBS_ATTR_UHW_OUT, (struct mlx5_ib_create_qp_resp){ 0 });
		return made_qp(h, handles, handles);
	case UVERBS_OBJECT_DEVICE << 16 | UVERBS_METHOD_INVOKE_WRITE:
		if (attr(h, UVERBS_ATTR_WRITE_CMD)->data == IB_USER_VERBS_CMD_ALLOC_PD)
			ANSWER(h, UVERBS_ATTR_UHW_OUT, (struct mlx5_ib_alloc_pd_resp){ 1 });
	}
	return OTHERS;
}

static struct ibv_qp *qp;
static int dci; // it is an initiator of DC
static struct ibv_cq *send_cq, *recv_cq;
static uint16_t sends, recvs; // blocks posted
static char data[SIZE];

// complete writes the completions of WORK requests of some blocks, of which the first is that with the counter.
static void complete(struct ring *r, int cqe, int wqe, uint16_t *counter, int blocks)
{
	for (int n = WORK; n--; r->made++) {
		struct mlx5_cqe64 *e = &r->cqes[r->made & (r->size - 1)];

		e->srqn_uidx = htobe32(qp_request.uidx);
		e->byte_cnt = htobe32(SIZE);
		e->sop_drop_qpn = htobe32(wqe << 24 | qp->qp_num);
		e->wqe_counter = htobe16(*counter);
		*counter += blocks;
		e->op_own = cqe << 4 | !!(r->made & r->size);
	}
}

static void failed(const char *what)
{
	fprintf(stderr, "mlx5: %s\n", what);
	exit(1);
}

// poll polls WORK completions, n at a time.
static void poll(struct ibv_cq *cq, int n)
{
	struct ibv_wc wc[16];

	for (int k = 0; k < WORK; k += n)
		if (ibv_poll_cq(cq, n, wc) != n || wc[n - 1].status)
			failed("poll");
}

static uint64_t tsc(void)
{
	unsigned int cpu;
	uint64_t t = __rdtscp(&cpu);

	_mm_lfence();
	return t;
}

struct series {
	const char *name;
	int batch, n;
	double ticks[2 * ROUNDS];
};

static void add(struct series *s, uint64_t start) { s->ticks[s->n++] = (double)(tsc() - start) / WORK; }

enum { SEND, WRITE };
static struct series posts[2][2] = {
	{ { "send", 1 }, { "send", 16 } },
	{ { "write", 1 }, { "write", 16 } },
};
static struct series post_recvs[] = { { "post_recv", 1 }, { "post_recv", 16 } };
static struct series polls[] = { { "poll", 1 }, { "poll", 16 } }, poll_recvs[] = { { "poll_recv", 1 }, { "poll_recv", 16 } };
static struct series empty = { "poll_empty", 1 }, both = { "write_and_poll", 16 };

static struct ibv_send_wr requests[2][MOST];
static struct ibv_recv_wr receives[MOST];
static struct ibv_sge sges[MOST];
static const int wqes[] = { MLX5_OPCODE_SEND, MLX5_OPCODE_RDMA_WRITE };

static void bench_round(void)
{
	struct ibv_send_wr *bad;
	struct ibv_recv_wr *bad_recv;
	uint64_t start;

	for (int op = SEND; op <= WRITE; op++)
		for (int b = 0; b < 2; b++) {
			struct series *s = &posts[op][b];
			struct ibv_send_wr *last = &requests[op][s->batch - 1], *next = last->next;

			last->next = NULL;
			start = tsc();
			for (int k = 0; k < WORK; k += s->batch)
				if (ibv_post_send(qp, requests[op], &bad))
					failed("post send");
			add(s, start);
			last->next = next;
			complete(&rings[0], MLX5_CQE_REQ, wqes[op], &sends, 1);
			s = &polls[b];
			start = tsc();
			poll(send_cq, s->batch);
			if (op == WRITE)
				add(s, start);
		}
	for (int b = 0; b < 2; b++) {
		struct series *s = &post_recvs[b];
		struct ibv_recv_wr *last = &receives[s->batch - 1], *next = last->next;

		last->next = NULL;
		start = tsc();
		for (int k = 0; k < WORK; k += s->batch)
			if (ibv_post_recv(qp, receives, &bad_recv))
				failed("post recv");
		add(s, start);
		last->next = next;
		complete(&rings[1], MLX5_CQE_RESP_SEND, 0, &recvs, 1);
		s = &poll_recvs[b];
		start = tsc();
		poll(recv_cq, s->batch);
		add(s, start);
	}
	start = tsc();
	for (int k = 0; k < WORK; k++) {
		struct ibv_wc wc;

		if (ibv_poll_cq(recv_cq, 1, &wc))
			failed("poll empty");
	}
	add(&empty, start);

	// The completions are there before the requests, as if the adapter took no time.
	complete(&rings[0], MLX5_CQE_REQ, wqes[WRITE], &sends, 1);
	start = tsc();
	for (int k = 0; k < WORK; k += both.batch) {
		struct ibv_wc wc[16];

		if (ibv_post_send(qp, requests[WRITE], &bad) || ibv_poll_cq(send_cq, both.batch, wc) != both.batch || wc[0].status)
			failed("write and poll");
	}
	add(&both, start);
}

// The same for a DCI: with and without inline data. Only the newer functions post its requests.
static struct series dci_posts[2][2][2] = {
	{ { { "dci_send_inline", 1 }, { "dci_send_inline", 16 } }, { { "dci_send", 1 }, { "dci_send", 16 } } },
	{ { { "dci_write_inline", 1 }, { "dci_write_inline", 16 } }, { { "dci_write", 1 }, { "dci_write", 16 } } },
};
static struct series dci_polls[] = { { "dci_poll", 1 }, { "dci_poll", 16 } };

static struct ibv_ah *target;

static void post_dci(int op, int list, int batch)
{
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(qp);
	struct mlx5dv_qp_ex *dv = mlx5dv_qp_ex_from_ibv_qp_ex(x);

	for (int k = 0; k < WORK; k += batch) {
		ibv_wr_start(x);
		for (int i = 0; i < batch; i++) {
			x->wr_id = i;
			x->wr_flags = IBV_SEND_SIGNALED;
			if (op == SEND)
				ibv_wr_send(x);
			else
				ibv_wr_rdma_write(x, 6, (uintptr_t)data);
			mlx5dv_wr_set_dc_addr(dv, target, 7, 8);
			if (list)
				ibv_wr_set_sge(x, sges[i].lkey, sges[i].addr, sges[i].length);
			else
				ibv_wr_set_inline_data(x, data, 8);
		}
		if (ibv_wr_complete(x))
			failed("post to the DCI");
	}
}

static void dci_round(void)
{
	for (int op = SEND; op <= WRITE; op++)
		for (int list = 0; list < 2; list++)
			for (int b = 0; b < 2; b++) {
				struct series *s = &dci_posts[op][list][b];
				uint64_t start = tsc();

				post_dci(op, list, s->batch);
				add(s, start);
				complete(&rings[0], MLX5_CQE_REQ, wqes[op], &sends, 2);
				start = tsc();
				poll(send_cq, s->batch);
				if (op == WRITE && list)
					add(&dci_polls[b], start);
			}
}

// create_dci makes a DCI with the operations that it needs here.
static struct ibv_qp *create_dci(struct ibv_context *ctx, struct ibv_pd *pd)
{
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_DRIVER, .send_cq = send_cq, .recv_cq = recv_cq, .pd = pd,
		.cap = { .max_send_wr = DEPTH, .max_send_sge = 1, .max_inline_data = 8 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE,
	};
	struct mlx5dv_qp_init_attr dv = { .comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC, .dc_init_attr = { .dc_type = MLX5DV_DCTYPE_DCI } };

	target = ibv_create_ah(pd, &(struct ibv_ah_attr){ .port_num = 1, .dlid = 1 });
	if (!target)
		die("create ah");
	return mlx5dv_create_qp(ctx, &init, &dv);
}

static int smaller(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void print(struct series *s, int n, double per_tick)
{
	for (; n--; s++) {
		qsort(s->ticks, s->n, sizeof(s->ticks[0]), smaller);
		printf("%s_%d %.3f\n", s->name, s->batch, s->ticks[s->n / 2] * per_tick);
		s->n = 0;
	}
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (!strcmp(argv[i], "-single"))
			setenv("MLX5_SINGLE_THREADED", "1", 1);
		else if (!strcmp(argv[i], "-dci"))
			dci = 1;
		else {
			fprintf(stderr, "usage: mlx5 [-single] [-dci]\n");
			return 1;
		}
	struct ibv_context *ctx;

	open_device("mlx5_0", "pci:v000015B3d0000101Bsv000015B3sd00000000bc02sc07i00\n", &ctx, 1);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	send_cq = ibv_create_cq(ctx, DEPTH - 1, NULL, NULL, 0);
	recv_cq = ibv_create_cq(ctx, DEPTH - 1, NULL, NULL, 0);
	if (!pd || !send_cq || !recv_cq)
		die("pd, cqs");
	struct ibv_qp_init_attr init = {
		.send_cq = send_cq, .recv_cq = recv_cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 8 },
	};
	qp = dci ? create_dci(ctx, pd) : ibv_create_qp(pd, &init);
	if (!qp)
		die("create qp");
	for (int i = IBV_QPS_INIT; i <= IBV_QPS_RTS; i++)
		must(ibv_modify_qp(qp, &(struct ibv_qp_attr){ .qp_state = i }, IBV_QP_STATE), "modify qp");
	for (int i = 0; i < MOST; i++) {
		sges[i] = (struct ibv_sge){ .addr = (uintptr_t)data, .length = SIZE, .lkey = 5 };
		struct ibv_send_wr wr = {
			.wr_id = i, .next = i + 1 < MOST ? &requests[SEND][i + 1] : NULL, .sg_list = &sges[i], .num_sge = 1,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { .remote_addr = (uintptr_t)data, .rkey = 6 },
		};
		requests[WRITE][i] = wr;
		requests[WRITE][i].opcode = IBV_WR_RDMA_WRITE;
		requests[WRITE][i].next = i + 1 < MOST ? &requests[WRITE][i + 1] : NULL;
		wr.opcode = IBV_WR_SEND;
		requests[SEND][i] = wr;
		requests[SEND][i].send_flags |= IBV_SEND_INLINE;
		static struct ibv_sge short_one;
		short_one = (struct ibv_sge){ .addr = (uintptr_t)data, .length = 8 };
		requests[SEND][i].sg_list = &short_one;
		receives[i] = (struct ibv_recv_wr){ .wr_id = i, .next = i + 1 < MOST ? &receives[i + 1] : NULL, .sg_list = &sges[i], .num_sge = 1 };
	}
	while (again()) {
		uint64_t begin = now(), ticks = tsc();

		for (int i = 0; i < ROUNDS; i++)
			if (dci)
				dci_round();
			else
				bench_round();
		double per_tick = (double)(now() - begin) / (tsc() - ticks);
		printf("blocks %u\n", qp_request.sq_wqe_count);
		if (dci) {
			print(dci_posts[0][0], 8, per_tick);
			print(dci_polls, 2, per_tick);
		} else {
			print(posts[0], 4, per_tick);
			print(post_recvs, 2, per_tick);
			print(polls, 2, per_tick);
			print(poll_recvs, 2, per_tick);
			print(&empty, 1, per_tick);
			print(&both, 1, per_tick);
		}
		measured();
	}
	return 0;
}
