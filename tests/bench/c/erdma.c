// Measures what posting and polling cost with liberdma, on an adapter that is not there; erdma/main.go,
// its twin, says how.
#define _GNU_SOURCE
#include "deaf.h"
#include <rdma/erdma-abi.h>
#include "rounds.h"

static const char program[] = "erdma";

// The device's registers are ordinary memory.
static void *device_pages(int context, size_t size, off_t off)
{
	return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

// ring is a CQ, to which the program writes what the adapter would.
struct ring {
	uint32_t (*cqes)[8];
	uint32_t size, made;
};
static struct ring rings[2];
static int cqs;
static uint32_t handles, units;

static const struct ib_uverbs_query_device_resp limits = { .max_qp_wr = 1 << 13, .max_sge = 1, .max_cqe = 1 << 20, .phys_port_cnt = 1 };

static int device_ioctl(int context, struct ib_uverbs_ioctl_hdr *h)
{
	switch (h->object_id << 16 | h->method_id) {
	case UVERBS_OBJECT_DEVICE << 16 | UVERBS_METHOD_GET_CONTEXT:
		ANSWER(h, UVERBS_ATTR_UHW_OUT, (struct erdma_uresp_alloc_ctx){ 0 });
		return 0;
	case UVERBS_OBJECT_CQ << 16 | UVERBS_METHOD_CQ_CREATE: {
		struct erdma_ureq_create_cq *req = private_part(h);
		uint32_t cqe = attr(h, UVERBS_ATTR_CREATE_CQ_CQE)->data; // a power of two

		memset((void *)(uintptr_t)req->qbuf_va, 0, req->qbuf_len);
		rings[cqs++] = (struct ring){ (void *)(uintptr_t)req->qbuf_va, cqe };
		ANSWER(h, UVERBS_ATTR_UHW_OUT, (struct erdma_uresp_create_cq){ .cq_id = ++handles, .num_cqe = cqe });
		return made_cq(h, handles, cqe);
	}
	case UVERBS_OBJECT_QP << 16 | UVERBS_METHOD_QP_CREATE: {
		struct erdma_ureq_create_qp *req = private_part(h);
		struct ib_uverbs_qp_cap *cap = (void *)(uintptr_t)attr(h, UVERBS_ATTR_CREATE_QP_CAP)->data;

		memset((void *)(uintptr_t)req->qbuf_va, 0, req->qbuf_len);
		units = 4 * cap->max_send_wr; // a power of two
		ANSWER(h, UVERBS_ATTR_UHW_OUT, (struct erdma_uresp_create_qp){
			.qp_id = ++handles, .num_sqe = units, .num_rqe = cap->max_recv_wr, .rq_offset = (units * 32 + 4095) & ~4095,
		});
		return made_qp(h, handles, handles);
	}
	}
	return OTHERS;
}

static uint16_t sends, recvs; // units of requests, and receives, posted

enum { WRITE_OP = 0, SEND_OP = 2, RECV_OP = 4 }; // enum erdma_opcode

// complete writes the completions of n requests, of which the first begins at a unit, or receives.
static void complete(struct ring *r, int n, int recv, int opcode, uint16_t index, int size)
{
	for (; n--; r->made++, index += size) {
		uint32_t *e = r->cqes[r->made & (r->size - 1)];

		e[1] = htobe32(index);
		e[2] = htobe32(qp->qp_num);
		e[4] = htobe32(SIZE);
		*(volatile uint32_t *)e = htobe32((r->made & r->size ? 0 : 1u << 31) | opcode << 16 | recv << 8);
	}
}

static void complete_sends(int op)
{
	static const int ops[] = { SEND_OP, WRITE_OP }, sizes[] = { 1, 2 }; // units

	complete(&rings[0], WORK, 0, ops[op], sends, sizes[op]);
	sends += WORK * sizes[op];
}

static void complete_recvs(void)
{
	complete(&rings[1], WORK, 1, RECV_OP, recvs, 1);
	recvs += WORK;
}

int main(int argc, char **argv)
{
	struct ibv_context *ctx;

	if (argc != 1) {
		fprintf(stderr, "usage: erdma\n");
		return 1;
	}
	open_device("erdma_0", "pci:v00001DEDd0000107Fsv00001DEDsd00000000bc02sc00i00\n", &ctx, 1);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	if (!pd)
		die("pd");
	open_cqs(ctx, DEPTH);
	qp = open_qp(pd);
	start();
	measure(bench_round, print_all, "units", &units);
	return 0;
}
