// One end of a connection of transfer.c: its objects, requests and counts.
#include "cm.h"

enum {
	DEPTH = 128,  // requests under way
	RECVS = 256,  // receives
	PERIOD = 32,  // one request in so many is signaled
	CREDIT = 64,  // messages received until the sender hears of it
	BATCH = 32,   // completions polled at a time, and requests posted
	INLINE = 32,  // bytes
};

enum op { SEND, WRITE, READ, ADD };

// Both sides are on one machine: no number is turned around.
struct region {
	uint64_t addr;
	uint32_t rkey, unused;
};

// What a client asks of a server.
struct work {
	struct region memory;
	uint32_t rate, op, events, size, n, list;
};

struct report {
	uint64_t messages, bytes;
};

struct end {
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_mr *mr;
	struct work work;
	struct region mine, peer;
	char *out, *in;         // what is sent, and where what comes goes
	size_t stride;          // from one to the other, and to word
	volatile uint32_t *word; // of the client: how many the peer has received; of the server: the sum
	struct ibv_sge recv_sge, sge;
	struct ibv_recv_wr recvs[BATCH];
	struct ibv_send_wr wrs[BATCH];
	struct ibv_wc wc[BATCH];
	uint32_t warm;          // messages of a round before those that are measured
	uint32_t before;        // messages before start
	uint64_t start;
	uint32_t posted;        // in a round, of what is signaled now and then
	uint32_t signaled;      // requests without their completions
	unsigned int send_events, recv_events; // to acknowledge
	struct report got;
};

// prepare gives an end its memory and queues, and makes its requests.
static void prepare(struct end *e, struct rdma_cm_id *id)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = RECVS, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = INLINE },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_recv_wr *bad;
	void *memory;

	e->id = id;
	e->pd = ibv_alloc_pd(id->verbs);
	e->channel = ibv_create_comp_channel(id->verbs);
	if (!e->pd || !e->channel)
		die("pd, channel");
	attr.send_cq = e->send_cq = ibv_create_cq(id->verbs, DEPTH + 1, NULL, e->channel, 0);
	attr.recv_cq = e->recv_cq = ibv_create_cq(id->verbs, RECVS + 1, NULL, e->channel, 0);
	if (!e->send_cq || !e->recv_cq)
		die("cqs");
	must(rdma_create_qp(id, e->pd, &attr), "create qp");
	if (e->work.op == ADD)
		access |= IBV_ACCESS_REMOTE_ATOMIC;
	e->stride = (e->work.size + 63) & ~63u;
	errno = posix_memalign(&memory, 4096, 2 * e->stride + 64);
	if (errno)
		die("memory");
	memset(memory, 0, 2 * e->stride + 64);
	e->mr = ibv_reg_mr(e->pd, memory, 2 * e->stride + 64, access);
	if (!e->mr)
		die("register mr");
	e->mine = (struct region){ .addr = (uintptr_t)memory, .rkey = e->mr->rkey };
	e->out = memory;
	e->in = e->out + e->stride;
	e->word = (uint32_t *)(e->in + e->stride);
	e->recv_sge = (struct ibv_sge){ .addr = (uintptr_t)e->in, .length = e->stride, .lkey = e->mr->lkey };
	for (int i = 0; i < BATCH; i++)
		e->recvs[i] = (struct ibv_recv_wr){ .sg_list = &e->recv_sge, .num_sge = 1, .next = i + 1 < BATCH ? &e->recvs[i + 1] : NULL };
	for (int i = 0; i < RECVS; i += BATCH)
		must(ibv_post_recv(id->qp, e->recvs, &bad), "post recv");
}

// meet makes the requests, now that it is known where the peer's memory is.
static void meet(struct end *e)
{
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD };
	struct ibv_send_wr wr = { .opcode = opcodes[e->work.op], .sg_list = &e->sge, .num_sge = 1 };

	e->sge = (struct ibv_sge){ .addr = (uintptr_t)e->out, .length = e->work.size, .lkey = e->mr->lkey };
	switch (e->work.op) {
	case SEND:
	case WRITE:
		if (e->work.size <= INLINE)
			wr.send_flags = IBV_SEND_INLINE;
		wr.wr.rdma.remote_addr = e->peer.addr + e->stride;
		wr.wr.rdma.rkey = e->peer.rkey;
		break;
	case READ:
		e->sge.addr = (uintptr_t)e->in;
		wr.wr.rdma.remote_addr = e->peer.addr;
		wr.wr.rdma.rkey = e->peer.rkey;
		break;
	case ADD:
		wr.wr.atomic.remote_addr = e->peer.addr + 2 * e->stride;
		wr.wr.atomic.rkey = e->peer.rkey;
		wr.wr.atomic.compare_add = 1;
	}
	for (int i = 0; i < BATCH; i++)
		e->wrs[i] = wr;
}

static void release(struct end *e)
{
	ibv_ack_cq_events(e->send_cq, e->send_events);
	ibv_ack_cq_events(e->recv_cq, e->recv_events);
	rdma_destroy_qp(e->id);
	must(ibv_destroy_cq(e->send_cq), "destroy cq");
	must(ibv_destroy_cq(e->recv_cq), "destroy cq");
	must(ibv_destroy_comp_channel(e->channel), "destroy channel");
	must(ibv_dereg_mr(e->mr), "deregister mr");
	must(ibv_dealloc_pd(e->pd), "dealloc pd");
	must(rdma_destroy_id(e->id), "destroy id");
	free(e->out);
}

// poll_cq takes up to n completions into e->wc.
static int poll_cq(struct end *e, struct ibv_cq *cq, int n)
{
	int got = ibv_poll_cq(cq, n, e->wc);

	if (got < 0)
		die("poll cq");
	for (int i = 0; i < got; i++)
		if (e->wc[i].status != IBV_WC_SUCCESS) {
			fprintf(stderr, "%s\n", ibv_wc_status_str(e->wc[i].status));
			exit(1);
		}
	return got;
}

// await waits for completions, at least one and at most n.
static int await(struct end *e, struct ibv_cq *cq, int n, int sleep)
{
	int got, armed = 0;

	while (!(got = poll_cq(e, cq, n))) {
		struct ibv_cq *of;
		void *context;

		if (!sleep)
			continue;
		if (!armed) {
			must(ibv_req_notify_cq(cq, 0), "arm");
			armed = 1;
			continue;
		}
		must(ibv_get_cq_event(e->channel, &of, &context), "get cq event");
		*(of == e->send_cq ? &e->send_events : &e->recv_events) += 1;
		armed = 0;
	}
	return got;
}

