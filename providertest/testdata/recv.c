/*
 * The smallest C side of a comparison: posts receives with liberdma, and answers with the receive queue.
 *
 *	recv <orders >answers		memory to share is file 3
 */
#define _GNU_SOURCE
#include "deaf.h"
#include "orders.h"
#include <rdma/erdma-abi.h>

enum { DEPTH = 8, UNIT = 32, QUEUE = DEPTH * UNIT, OFFSET = 4096 };

static const char program[] = "recv";
static const struct ib_uverbs_query_device_resp limits = { .max_qp_wr = 64, .max_sge = 1, .max_cqe = 64, .phys_port_cnt = 1 };

static char *queue; /* of receives, in liberdma's memory */

static void *device_pages(int context, size_t size, off_t off)
{
	return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static int device_ioctl(int context, struct ib_uverbs_ioctl_hdr *h)
{
	switch (h->object_id << 16 | h->method_id) {
	case UVERBS_OBJECT_DEVICE << 16 | UVERBS_METHOD_GET_CONTEXT:
		ANSWER(h, UVERBS_ATTR_UHW_OUT, (struct erdma_uresp_alloc_ctx){ 0 });
		return 0;
	case UVERBS_OBJECT_CQ << 16 | UVERBS_METHOD_CQ_CREATE:
		ANSWER(h, UVERBS_ATTR_UHW_OUT, (struct erdma_uresp_create_cq){ .cq_id = 1, .num_cqe = 64 });
		return made_cq(h, 1, 64);
	case UVERBS_OBJECT_QP << 16 | UVERBS_METHOD_QP_CREATE:
		queue = (char *)(uintptr_t)((struct erdma_ureq_create_qp *)private_part(h))->qbuf_va + OFFSET;
		memset(queue, 0, QUEUE);
		ANSWER(h, UVERBS_ATTR_UHW_OUT, (struct erdma_uresp_create_qp){ .qp_id = 77, .num_sqe = 4 * DEPTH, .num_rqe = DEPTH, .rq_offset = OFFSET });
		return made_qp(h, 2, 77);
	}
	return OTHERS;
}

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;

/* create makes a new QP. */
static void create(void)
{
	struct ibv_qp_init_attr a = { .qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq, .cap = { DEPTH, DEPTH, 1, 1 } };

	if (qp && (errno = ibv_destroy_qp(qp)))
		die("ibv_destroy_qp");
	if (!(qp = ibv_create_qp(pd, &a)))
		die("ibv_create_qp");
}

/* post_recv posts a receive, and answers whether it was, and with the queue. */
static void post_recv(void)
{
	struct ibv_sge sge = { 0 };
	struct ibv_recv_wr wr = { .wr_id = get(), .num_sge = get(), .sg_list = &sge }, *bad;

	if (wr.num_sge)
		sge = (struct ibv_sge){ .addr = get(), .length = get(), .lkey = get() };
	put(!ibv_post_recv(qp, &wr, &bad));
	memcpy(out, queue, QUEUE);
	out += QUEUE / sizeof *out;
}

int main(void)
{
	struct ibv_context *ctx;

	share_memory();
	open_device("erdma_0", "pci:v00001DEDd0000107Fsv00001DEDsd00000000bc02sc00i00\n", &ctx, 1);
	if (!(pd = ibv_alloc_pd(ctx)) || !(cq = ibv_create_cq(ctx, 64, NULL, NULL, 0)))
		die("ibv_create_cq");
	obey((void (*const[])(void)){ NULL, create, post_recv });
	return 0;
}
