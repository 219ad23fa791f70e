// Moves messages over a connection with libibverbs, as transfer/main.go does
// with package uverbs, and prints how long that took. Both take the same arguments
// and print the same.
//
//	transfer    -s ADDR PORT                          serve until the standard input ends
//	transfer [-e] ADDR PORT lat OP SIZE N WARM        N messages, one at a time: OP is send, write, read or add
//	transfer      ADDR PORT rate OP SIZE N WARM LIST  N messages, as many as go, LIST posted at a time: OP is send or write
//
// The client connects, and does its work once for each line of its standard input.
// Both sides poll; with -e they sleep until there is a completion. In latency
// tests the server answers each SEND and WRITE, and a time is that of the way
// there and back. Before each round the client wakes the server, and after it each
// side sends the other what it has received. Before the N messages that are measured it
// transfers WARM others: for some milliseconds after a wait both the kernel's scheduler and
// Go's runtime are busier than later.
#include "end.h"

static const char *ops[] = { "send", "write", "read", "add" };

// flight returns how many messages are in flight at most. If all large ones of a round were,
// none might be measured.
static uint32_t flight(struct end *e)
{
	return e->work.size > 64 << 10 ? 8 : DEPTH;
}

// post posts the next n messages with one call. The last of all, the last before those
// that are measured, and four of those in flight are signaled; the ID is how many have been posted
// with it.
static void post(struct end *e, uint32_t n)
{
	struct ibv_send_wr *last = &e->wrs[n - 1], *bad;
	uint32_t before = e->posted, period = flight(e) / 4;

	e->posted += n;
	for (uint32_t i = 0; i + 1 < n; i++)
		e->wrs[i].next = &e->wrs[i + 1];
	last->next = NULL;
	last->wr_id = e->posted;
	if (e->posted / period != before / period || e->posted == e->work.n || (before < e->warm && e->posted >= e->warm) || e->work.op == READ || e->work.op == ADD) {
		last->send_flags |= IBV_SEND_SIGNALED;
		e->signaled++;
	}
	must(ibv_post_send(e->id->qp, e->wrs, &bad), "post send");
	last->send_flags &= ~IBV_SEND_SIGNALED;
}

// post_inline posts a SEND of n bytes, or with addr a WRITE.
static void post_inline(struct end *e, void *b, size_t n, uint64_t addr)
{
	struct ibv_sge sge = { .addr = (uintptr_t)b, .length = n };
	struct ibv_send_wr *bad, wr = {
		.opcode = addr ? IBV_WR_RDMA_WRITE : IBV_WR_SEND, .sg_list = &sge, .num_sge = 1,
		.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = addr, .rkey = e->peer.rkey },
	};

	must(ibv_post_send(e->id->qp, &wr, &bad), "post send");
	e->signaled++;
}

// reap takes completions of what was posted, at least one and at most n.
static int reap(struct end *e, int n, int sleep)
{
	int got = await(e, e->send_cq, n, sleep);

	e->signaled -= got;
	return got;
}

// repost offers n receives again.
static void repost(struct end *e, int n)
{
	struct ibv_recv_wr *bad, *last = &e->recvs[n - 1], *next = last->next;

	last->next = NULL;
	must(ibv_post_recv(e->id->qp, e->recvs, &bad), "post recv");
	last->next = next;
}

// take takes messages, at least one, and offers their receives again.
static int take(struct end *e, int n)
{
	n = await(e, e->recv_cq, n, e->work.events);
	for (int i = 0; i < n; i++)
		e->got.bytes += e->wc[i].byte_len;
	e->got.messages += n;
	repost(e, n);
	return n;
}

// put sends message i of a latency test. Once in PERIOD it takes a completion.
static void put(struct end *e, uint32_t i)
{
	if (e->work.op == WRITE)
		e->out[e->work.size - 1] = i + 1;
	if (i % PERIOD == PERIOD - 1 && i > PERIOD)
		reap(e, 1, e->work.events);
	post(e, 1);
}

// see waits until message i has been written.
static void see(struct end *e, uint32_t i)
{
	volatile char *last = e->in + e->work.size - 1;

	while (*last != (char)(i + 1))
		;
	e->got.messages++;
	e->got.bytes += e->work.size;
}

static void ask(struct end *e, uint32_t *took)
{
	uint64_t last = now(), t;

	for (uint32_t i = 0; i < e->work.n; i++) {
		switch (e->work.op) {
		case SEND:
			put(e, i);
			take(e, 1);
			break;
		case WRITE:
			put(e, i);
			see(e, i);
			break;
		default:
			post(e, 1);
			reap(e, 1, e->work.events);
			e->got.messages++;
			e->got.bytes += e->work.size;
		}
		t = now();
		if (i >= e->warm)
			took[i - e->warm] = t - last;
		last = t;
	}
}

static void answer(struct end *e)
{
	for (uint32_t i = 0; i < e->work.n; i++) {
		if (e->work.op == SEND)
			take(e, 1);
		else
			see(e, i);
		put(e, i);
	}
}

// stream sends all, as far as the queues take it and the peer receives.
static void stream(struct end *e)
{
	uint32_t n = e->work.n, list = e->work.list, completed = 0;

	while (completed < n) {
		int got;

		while (e->posted < n) {
			uint32_t k = n - e->posted < list ? n - e->posted : list;

			// One of the peer's receives is for the report. siw does not wait for it.
			if (e->posted + k > completed + flight(e) || (e->work.op == SEND && e->posted + k > *e->word + RECVS - 1))
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
	e->got = (struct report){ n, (uint64_t)n * e->work.size };
}

// drink receives all, and tells the sender.
static void drink(struct end *e)
{
	uint32_t told = 0;

	while (e->got.messages < e->work.n) {
		take(e, e->work.n - e->got.messages < BATCH ? e->work.n - e->got.messages : BATCH);
		if (e->got.messages - told < CREDIT)
			continue;
		if (e->signaled == DEPTH / 2)
			reap(e, BATCH, 0);
		told = e->got.messages;
		post_inline(e, &told, sizeof(told), e->peer.addr + 2 * e->stride);
	}
}

// tell sends a report, and waits until all is sent.
static void tell(struct end *e, struct report r)
{
	post_inline(e, &r, sizeof(r), 0);
	while (e->signaled)
		reap(e, BATCH, e->work.events);
}

// hear takes the peer's report.
static struct report hear(struct end *e, int sleep)
{
	struct report r;

	await(e, e->recv_cq, 1, sleep);
	memcpy(&r, e->in, sizeof(r));
	repost(e, 1);
	return r;
}

static const struct report begin = { 1, 0 }, over = { 0, 0 };

// reset prepares an end for a round.
static void reset(struct end *e)
{
	e->posted = e->before = 0;
	e->got = over;
	*e->word = 0;
}

static void serve(struct addrinfo *at)
{
	struct rdma_event_channel *listening = new_channel();

	listen_at(listening, at);
	ready();
	for (;;) {
		struct end e = { 0 };
		struct rdma_cm_id *id = expect(listening, RDMA_CM_EVENT_CONNECT_REQUEST, &e.work, sizeof(e.work));
		struct rdma_event_channel *own = new_channel();
		struct rdma_conn_param param = conn_param(&e.mine, sizeof(e.mine));
		int passive = e.work.op == READ || e.work.op == ADD || (e.work.rate && e.work.op == WRITE);

		must(rdma_migrate_id(id, own), "migrate id");
		e.peer = e.work.memory;
		prepare(&e, id);
		meet(&e);
		must(rdma_accept(id, &param), "accept");
		expect(own, RDMA_CM_EVENT_ESTABLISHED, NULL, 0);
		while (hear(&e, 1).messages == begin.messages) {
			reset(&e);
			tell(&e, begin);
			if (!passive)
				e.work.rate ? drink(&e) : answer(&e);
			hear(&e, passive || e.work.events); // the client is done
			if (e.work.op == ADD)
				e.got.messages = *e.word;
			tell(&e, e.got);
		}
		expect(own, RDMA_CM_EVENT_DISCONNECTED, NULL, 0);
		release(&e);
		rdma_destroy_event_channel(own);
	}
}

static void dial(struct end *e, struct addrinfo *to)
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
static void measure(struct end *e, uint32_t *took)
{
	struct report theirs;
	uint64_t all;

	reset(e);
	tell(e, begin);
	hear(e, 1);
	e->start = now();
	e->work.rate ? stream(e) : ask(e, took);
	tell(e, e->got);
	theirs = hear(e, e->work.events);
	all = now() - e->start;

	printf("messages %ju\nbytes %ju\n", (uintmax_t)e->got.messages, (uintmax_t)e->got.bytes);
	printf("peer_messages %ju\npeer_bytes %ju\n", (uintmax_t)theirs.messages, (uintmax_t)theirs.bytes);
	printf("measured %u\nnanoseconds %ju\n", e->work.n - e->before, (uintmax_t)all);
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
	struct end e = { 0 };
	uint32_t *took;

	if (argc == 4 && !strcmp(argv[1], "-s"))
		serve(lookup(argv[2], argv[3]));
	if (argc > 1 && !strcmp(argv[1], "-e"))
		e.work.events = 1, argv++, argc--;
	if (argc < 7) {
		fprintf(stderr, "usage: transfer -s ADDR PORT | [-e] ADDR PORT lat|rate OP SIZE N [WARM [LIST]]\n");
		return 1;
	}
	e.work.rate = !strcmp(argv[3], "rate");
	while (e.work.op < ADD && strcmp(argv[4], ops[e.work.op]))
		e.work.op++;
	e.work.size = atoi(argv[5]);
	e.warm = argc > 7 ? atoi(argv[7]) : 0;
	e.work.n = atoi(argv[6]) + e.warm;
	e.work.list = argc > 8 ? atoi(argv[8]) : 1;
	took = calloc(e.work.n - e.warm, sizeof(*took));
	dial(&e, lookup(argv[1], argv[2]));

	while (again())
		measure(&e, took);
	tell(&e, over);
	rdma_disconnect(e.id);
	release(&e);
	return 0;
}
