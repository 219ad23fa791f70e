// Measures what posting and polling cost with liberdma, on an adapter that is not there; erdma/main.go,
// its twin, says how.
#define _GNU_SOURCE
#include "deaf.h"
#include <rdma/erdma-abi.h>
#include <x86intrin.h>
#include "cm.h"

enum { WORK = 960, DEPTH = 1024, ROUNDS = 24, SIZE = 64, MOST = 16 }; // as in erdma/main.go

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

static struct ibv_qp *qp;
static struct ibv_cq *send_cq, *recv_cq;
static uint16_t sends, recvs; // units of requests, and receives, posted
static char data[SIZE];

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

static void failed(const char *what)
{
	fprintf(stderr, "erdma: %s\n", what);
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
static const int ops[] = { SEND_OP, WRITE_OP }, sizes[] = { 1, 2 }; // units

static void bench_round(int i)
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
			complete(&rings[0], WORK, 0, ops[op], sends, sizes[op]);
			sends += WORK * sizes[op];
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
		complete(&rings[1], WORK, 1, RECV_OP, recvs, 1);
		recvs += WORK;
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
	complete(&rings[0], WORK, 0, ops[WRITE], sends, sizes[WRITE]);
	sends += WORK * sizes[WRITE];
	start = tsc();
	for (int k = 0; k < WORK; k += both.batch) {
		struct ibv_wc wc[16];

		if (ibv_post_send(qp, requests[WRITE], &bad) || ibv_poll_cq(send_cq, both.batch, wc) != both.batch || wc[0].status)
			failed("write and poll");
	}
	add(&both, start);
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
	struct ibv_context *ctx;

	if (argc != 1) {
		fprintf(stderr, "usage: erdma\n");
		return 1;
	}
	open_device("erdma_0", "pci:v00001DEDd0000107Fsv00001DEDsd00000000bc02sc00i00\n", &ctx, 1);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	send_cq = ibv_create_cq(ctx, DEPTH, NULL, NULL, 0);
	recv_cq = ibv_create_cq(ctx, DEPTH, NULL, NULL, 0);
	if (!pd || !send_cq || !recv_cq)
		die("pd, cqs");
	struct ibv_qp_init_attr init = {
		.send_cq = send_cq, .recv_cq = recv_cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 8 },
	};
	qp = ibv_create_qp(pd, &init);
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
			bench_round(i);
		double per_tick = (double)(now() - begin) / (tsc() - ticks);
		printf("units %u\n", units);
		print(posts[0], 4, per_tick);
		print(post_recvs, 2, per_tick);
		print(polls, 2, per_tick);
		print(poll_recvs, 2, per_tick);
		print(&empty, 1, per_tick);
		print(&both, 1, per_tick);
		measured();
	}
	return 0;
}
