// Rounds of posting and polling on an adapter that is not there: rounds/rounds.go, its twin, says how.
#include <x86intrin.h>
#include "cm.h"

enum { WORK = 960, DEPTH = 1024, ROUNDS = 24, SIZE = 64, MOST = 16 }; // as there
enum { SEND, WRITE };

// What a program has: its name, and what writes the completions of WORK requests, or receives.
static const char program[];
static void complete_sends(int op);
static void complete_recvs(void);

static struct ibv_qp *qp;
static struct ibv_cq *send_cq, *recv_cq;
static char data[SIZE];

static void failed(const char *what)
{
	fprintf(stderr, "%s: %s\n", program, what);
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
			complete_sends(op);
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
		complete_recvs();
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
	complete_sends(WRITE);
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

// open_cqs makes the CQs.
static void open_cqs(struct ibv_context *ctx, int depth)
{
	send_cq = ibv_create_cq(ctx, depth, NULL, NULL, 0);
	recv_cq = ibv_create_cq(ctx, depth, NULL, NULL, 0);
	if (!send_cq || !recv_cq)
		die("cqs");
}

// open_qp makes an RC QP.
static struct ibv_qp *open_qp(struct ibv_pd *pd)
{
	struct ibv_qp_init_attr init = {
		.send_cq = send_cq, .recv_cq = recv_cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 8 },
	};

	return ibv_create_qp(pd, &init);
}

// start moves the QP to RTS, and makes the requests.
static void start(void)
{
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
}

// print_all prints the figures of bench_round.
static void print_all(double per_tick)
{
	print(posts[0], 4, per_tick);
	print(post_recvs, 2, per_tick);
	print(polls, 2, per_tick);
	print(poll_recvs, 2, per_tick);
	print(&empty, 1, per_tick);
	print(&both, 1, per_tick);
}

// measure measures as often as the standard input has lines. unit is what the program counts the send
// queue in, and size how many those are.
static void measure(void (*round)(void), void (*print_figures)(double), const char *unit, const unsigned *size)
{
	while (again()) {
		uint64_t begin = now(), ticks = tsc();

		for (int i = 0; i < ROUNDS; i++)
			round();
		double per_tick = (double)(now() - begin) / (tsc() - ticks);
		printf("%s %u\n", unit, *size);
		print_figures(per_tick);
		measured();
	}
}
