// Measures what posting and polling cost with libmlx5, on an adapter that is not there;
// mlx5/main.go, its twin, says how.
#define _GNU_SOURCE
#include "deaf_mlx5.h"
#include "rounds.h"

static const char program[] = "mlx5";

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

static int device_ioctl(int context, struct ib_uverbs_ioctl_hdr *h)
{
	switch (h->object_id << 16 | h->method_id) {
	case UVERBS_OBJECT_CQ << 16 | UVERBS_METHOD_CQ_CREATE:
		rings[cqs++] = (struct ring){
			(void *)(uintptr_t)((struct mlx5_ib_create_cq *)private_part(h))->buf_addr, attr(h, UVERBS_ATTR_CREATE_CQ_CQE)->data + 1,
		};
		break;
	case UVERBS_OBJECT_QP << 16 | UVERBS_METHOD_QP_CREATE:
		qp_request = *(struct mlx5_ib_create_qp *)private_part(h);
	}
	return mlx5_ioctl(h);
}

static int dci; // the QP is an initiator of DC
static uint16_t sends, recvs; // blocks posted

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

static const int wqes[] = { MLX5_OPCODE_SEND, MLX5_OPCODE_RDMA_WRITE };

static void complete_sends(int op) { complete(&rings[0], MLX5_CQE_REQ, wqes[op], &sends, dci ? 2 : 1); }
static void complete_recvs(void) { complete(&rings[1], MLX5_CQE_RESP_SEND, 0, &recvs, 1); }

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
				complete_sends(op);
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

static void print_dci(double per_tick)
{
	print(dci_posts[0][0], 8, per_tick);
	print(dci_polls, 2, per_tick);
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

	open_mlx5(&ctx, 1);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	if (!pd)
		die("pd");
	open_cqs(ctx, DEPTH - 1);
	qp = dci ? create_dci(ctx, pd) : open_qp(pd);
	start();
	measure(dci ? dci_round : bench_round, dci ? print_dci : print_all, "blocks", &qp_request.sq_wqe_count);
	return 0;
}
