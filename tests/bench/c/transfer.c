// Moves messages over a connection with libibverbs, as transfer/main.go does
// with package uverbs, and prints how long that took. Both take the same arguments
// and print the same.
//
//	transfer    -s ADDR PORT                          serve until the standard input ends
//	transfer [-e] ADDR PORT lat OP SIZE N WARM 1      N messages, one at a time: OP is send, write, read or add
//	transfer      ADDR PORT rate OP SIZE N WARM LIST  N messages, as many as go, LIST posted at a time: OP is send or write
//
// The client connects, and does its work once for each line of its standard input.
// Both sides poll; with -e they sleep until there is a completion. In latency
// tests the server answers each SEND and WRITE, and a time is that of the way
// there and back. Before each round the client wakes the server, which answers. Before the N
// messages that are measured it transfers WARM others: for some milliseconds after a wait both
// the kernel's scheduler and Go's runtime are busier than later.
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

struct conn {
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
	uint32_t got;           // messages, in a round
};

// prepare gives a connection its memory and queues, and makes its requests.
static void prepare(struct conn *e, struct rdma_cm_id *id)
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
static void meet(struct conn *e)
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

static void release(struct conn *e)
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
static int poll_cq(struct conn *e, struct ibv_cq *cq, int n)
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
static int await(struct conn *e, struct ibv_cq *cq, int n, int sleep)
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

static const char *ops[] = { "send", "write", "read", "add" };

// post posts the next n messages with one call. The last of all, the last before those
// that are measured, and four of those in flight are signaled; the ID is how many have been posted
// with it.
static void post(struct conn *e, uint32_t n)
{
	struct ibv_send_wr *last = &e->wrs[n - 1], *bad;
	uint32_t before = e->posted;

	e->posted += n;
	for (uint32_t i = 0; i + 1 < n; i++)
		e->wrs[i].next = &e->wrs[i + 1];
	last->next = NULL;
	last->wr_id = e->posted;
	if (e->posted / PERIOD != before / PERIOD || e->posted == e->work.n || (before < e->warm && e->posted >= e->warm) || e->work.op == READ || e->work.op == ADD) {
		last->send_flags |= IBV_SEND_SIGNALED;
		e->signaled++;
	}
	must(ibv_post_send(e->id->qp, e->wrs, &bad), "post send");
	last->send_flags &= ~IBV_SEND_SIGNALED;
}

// post_word posts a SEND of a number, or with addr a WRITE.
static void post_word(struct conn *e, uint32_t word, uint64_t addr)
{
	struct ibv_sge sge = { .addr = (uintptr_t)&word, .length = sizeof(word) };
	struct ibv_send_wr *bad, wr = {
		.opcode = addr ? IBV_WR_RDMA_WRITE : IBV_WR_SEND, .sg_list = &sge, .num_sge = 1,
		.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = addr, .rkey = e->peer.rkey },
	};

	must(ibv_post_send(e->id->qp, &wr, &bad), "post send");
	e->signaled++;
}

// reap takes completions of what was posted, at least one and at most n.
static void reap(struct conn *e, int n, int sleep)
{
	e->signaled -= await(e, e->send_cq, n, sleep);
}

// take takes messages, at least one and at most n, and offers their receives again.
static void take(struct conn *e, int n, int sleep)
{
	struct ibv_recv_wr *bad, *last, *next;

	n = await(e, e->recv_cq, n, sleep);
	e->got += n;
	last = &e->recvs[n - 1];
	next = last->next;
	last->next = NULL;
	must(ibv_post_recv(e->id->qp, e->recvs, &bad), "post recv");
	last->next = next;
}

// put sends message i of a latency test. Once in PERIOD it takes a completion.
static void put(struct conn *e, uint32_t i)
{
	if (e->work.op == WRITE)
		e->out[e->work.size - 1] = i + 1;
	if (i % PERIOD == PERIOD - 1 && i > PERIOD)
		reap(e, 1, e->work.events);
	post(e, 1);
}

// get waits until message i has been received, or written.
static void get(struct conn *e, uint32_t i)
{
	volatile char *last = e->in + e->work.size - 1;

	if (e->work.op == SEND)
		take(e, 1, e->work.events);
	else
		while (*last != (char)(i + 1))
			;
}

static void ask(struct conn *e, uint32_t *took)
{
	uint64_t last = now(), t;

	for (uint32_t i = 0; i < e->work.n; i++) {
		if (e->work.op == SEND || e->work.op == WRITE) {
			put(e, i);
			get(e, i);
		} else {
			post(e, 1);
			reap(e, 1, e->work.events);
		}
		t = now();
		if (i >= e->warm)
			took[i - e->warm] = t - last;
		last = t;
	}
}

static void answer(struct conn *e)
{
	for (uint32_t i = 0; i < e->work.n; i++) {
		get(e, i);
		put(e, i);
	}
}

// stream sends all, as far as the queues take it and the peer receives, until the peer has all.
static void stream(struct conn *e)
{
	uint32_t n = e->work.n, list = e->work.list, completed = 0;

	while (completed < n || (e->work.op == SEND && *e->word < n)) {
		int got;

		while (e->posted < n) {
			uint32_t k = n - e->posted < list ? n - e->posted : list;

			if (e->posted + k > completed + DEPTH || (e->work.op == SEND && e->posted + k > *e->word + RECVS))
				break;
			post(e, k);
		}
		got = poll_cq(e, e->send_cq, BATCH); // not reap: the peer's word may come first
		e->signaled -= got;
		if (got)
			completed = e->wc[got - 1].wr_id;
		if (e->before < e->warm && completed >= e->warm) {
			e->before = completed;
			e->start = now();
		}
	}
}

// drink receives all, and tells the sender.
static void drink(struct conn *e)
{
	uint32_t told = 0;

	while (e->got < e->work.n) {
		take(e, BATCH, 0);
		if (e->got - told < CREDIT && e->got < e->work.n)
			continue;
		if (e->signaled == DEPTH / 2)
			reap(e, BATCH, 0);
		told = e->got;
		post_word(e, told, e->peer.addr + 2 * e->stride);
	}
}

// tell says whether a round follows, and waits until all is sent.
static void tell(struct conn *e, uint32_t more)
{
	post_word(e, more, 0);
	while (e->signaled)
		reap(e, BATCH, e->work.events);
}

// hear waits until the peer says whether a round follows, and prepares for it.
static uint32_t hear(struct conn *e)
{
	uint32_t more;

	take(e, 1, 1);
	memcpy(&more, e->in, sizeof(more));
	e->posted = e->before = e->got = 0;
	e->in[e->work.size - 1] = 0;
	*e->word = 0;
	return more;
}

static void serve(struct addrinfo *at)
{
	struct rdma_event_channel *listening = new_channel();

	listen_at(listening, at);
	ready();
	for (;;) {
		struct conn e = { 0 };
		struct rdma_cm_id *id = expect(listening, RDMA_CM_EVENT_CONNECT_REQUEST, &e.work, sizeof(e.work));
		struct rdma_event_channel *own = new_channel();
		struct rdma_conn_param param = conn_param(&e.mine, sizeof(e.mine));

		must(rdma_migrate_id(id, own), "migrate id");
		e.peer = e.work.memory;
		prepare(&e, id);
		meet(&e);
		must(rdma_accept(id, &param), "accept");
		expect(own, RDMA_CM_EVENT_ESTABLISHED, NULL, 0);
		while (hear(&e)) {
			tell(&e, 1);
			if (e.work.op == READ || e.work.op == ADD || (e.work.rate && e.work.op == WRITE))
				continue;
			e.work.rate ? drink(&e) : answer(&e);
		}
		expect(own, RDMA_CM_EVENT_DISCONNECTED, NULL, 0);
		release(&e);
		rdma_destroy_event_channel(own);
	}
}

static void dial(struct conn *e, struct addrinfo *to)
{
	struct rdma_event_channel *ch = new_channel();

	for (int tries = 0;; tries++) {
		struct rdma_conn_param param = conn_param(&e->work, sizeof(e->work));

		prepare(e, resolve(ch, to));
		e->work.memory = e->mine;
		if (!rdma_connect(e->id, &param))
			break;
		if (tries == 10 || !port_taken())
			die("connect");
		release(e);
	}
	expect(ch, RDMA_CM_EVENT_ESTABLISHED, &e->peer, sizeof(e->peer));
	meet(e);
	settle(e->id);
}

// measure does the work once, and prints how long it took.
static void measure(struct conn *e, uint32_t *took)
{
	tell(e, 1);
	hear(e);
	e->start = now();
	e->work.rate ? stream(e) : ask(e, took);
	printf("measured %u\nnanoseconds %ju\n", e->work.n - e->before, (uintmax_t)(now() - e->start));
	if (!e->work.rate) {
		printf("took");
		for (uint32_t i = 0; i < e->work.n - e->warm; i++)
			printf(" %u", took[i]);
		printf("\n");
	}
	measured();
}

int main(int argc, char **argv)
{
	struct conn e = { 0 };
	uint32_t *took;

	if (argc == 4 && !strcmp(argv[1], "-s"))
		serve(lookup(argv[2], argv[3]));
	if (argc > 1 && !strcmp(argv[1], "-e"))
		e.work.events = 1, argv++, argc--;
	if (argc != 9) {
		fprintf(stderr, "usage: transfer -s ADDR PORT | [-e] ADDR PORT lat|rate OP SIZE N WARM LIST\n");
		return 1;
	}
	e.work.rate = !strcmp(argv[3], "rate");
	while (e.work.op < ADD && strcmp(argv[4], ops[e.work.op]))
		e.work.op++;
	e.work.size = atoi(argv[5]);
	e.warm = atoi(argv[7]);
	e.work.n = atoi(argv[6]) + e.warm;
	e.work.list = atoi(argv[8]);
	took = calloc(e.work.n - e.warm, sizeof(*took));
	dial(&e, lookup(argv[1], argv[2]));

	while (again())
		measure(&e, took);
	tell(&e, 0);
	rdma_disconnect(e.id);
	release(&e);
	return 0;
}
