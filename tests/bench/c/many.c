// Echoes messages on many connections at once with libibverbs, as many/main.go
// does with package uverbs, and prints how long that took and how much memory the
// connections took. Both take the same arguments and print the same.
//
//	many -s ADDR PORT               serve one client until the standard input ends
//	many    ADDR PORT CONNS N WARM  N messages there and back in all, each connection with one under way
//
// The client connects, has one message there and back on each connection, and does its
// work once for each line of its standard input, after WARM other messages (see
// transfer.c). All connections of a side share one CQ, for which it sleeps. Memory is that
// of all connections but the first, with which the program warms up.
#include "cm.h"

enum {
	SIZE = 64,
	QUEUE = 16,  // requests of a QP, each way
	RECVS = 2,   // receives of a connection
	PERIOD = 8,  // one request in so many is signaled
	BATCH = 16,  // completions polled at a time
	// More than enough. With a CQ of 16384 or fewer siw's library can hold few
	// connections only: a queue that the kernel has given the offset of the
	// 144th page it takes for none (SIW_INVAL_UOBJ_KEY). Here that is the CQ's.
	CQ_DEPTH = 20000,
	REPORT = 1, OVER = 2, // bytes of a message that asks for the server's report, or is the last
};

struct report {
	uint64_t messages, bytes, kilobytes;
};

struct conn {
	struct rdma_cm_id *id;
	uint32_t posted;
};

static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_mr *mr; // SIZE bytes in, and as many out, of each connection
static struct conn *conns;
static uint32_t conns_n;
static struct report got;
static unsigned int cq_events; // to acknowledge
static struct rdma_event_channel *cm_channel;

static void set_up(struct ibv_context *device)
{
	pd = ibv_alloc_pd(device);
	channel = ibv_create_comp_channel(device);
	if (!pd || !channel)
		die("pd, channel");
	cq = ibv_create_cq(device, CQ_DEPTH, NULL, channel, 0);
	if (!cq)
		die("create cq");
}

// allot makes room for the connections.
static void allot(void)
{
	size_t n = conns_n * 2 * SIZE;
	void *memory;

	conns = calloc(conns_n, sizeof(*conns));
	errno = posix_memalign(&memory, 4096, n);
	if (errno)
		die("memory");
	memset(memory, 0, n);
	mr = ibv_reg_mr(pd, memory, n, IBV_ACCESS_LOCAL_WRITE);
	if (!mr)
		die("register mr");
}

static struct ibv_sge part(uint32_t i, int out)
{
	return (struct ibv_sge){ .addr = (uintptr_t)mr->addr + (2 * i + out) * SIZE, .length = SIZE, .lkey = mr->lkey };
}

static void post_recv(uint32_t i)
{
	struct ibv_sge sge = part(i, 0);
	struct ibv_recv_wr *bad, wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 };

	must(ibv_post_recv(conns[i].id->qp, &wr, &bad), "post recv");
}

static void post_send(uint32_t i, uint32_t n)
{
	struct ibv_sge sge = part(i, 1);
	struct ibv_send_wr *bad, wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };

	sge.length = n;
	if (++conns[i].posted % PERIOD == 0)
		wr.send_flags = IBV_SEND_SIGNALED;
	must(ibv_post_send(conns[i].id->qp, &wr, &bad), "post send");
}

// prepare gives connection i a QP with receives.
static void prepare(uint32_t i, struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = QUEUE, .max_recv_wr = QUEUE, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq,
	};

	conns[i].id = id;
	must(rdma_create_qp(id, pd, &attr), "create qp");
	for (int r = 0; r < RECVS; r++)
		post_recv(i);
}

// await takes completions, and sleeps until there are.
static int await(struct ibv_wc *wc)
{
	struct ibv_cq *of;
	void *context;
	int n, armed = 0;

	while (!(n = ibv_poll_cq(cq, BATCH, wc))) {
		if (!armed) {
			must(ibv_req_notify_cq(cq, 0), "arm");
			armed = 1;
			continue;
		}
		must(ibv_get_cq_event(channel, &of, &context), "get cq event");
		cq_events++;
		armed = 0;
	}
	return n;
}

// echo sends on each connection, once it has a message, the next, as long as there are
// more to send. It returns when n have come, or one that is no echo, and the size of
// the last.
static uint32_t echo(uint64_t n, uint64_t more)
{
	struct ibv_wc wc[BATCH];

	for (;;) {
		int polled = await(wc);

		for (int i = 0; i < polled; i++) {
			if (wc[i].status != IBV_WC_SUCCESS) {
				fprintf(stderr, "%s\n", ibv_wc_status_str(wc[i].status));
				exit(1);
			}
			if (wc[i].opcode != IBV_WC_RECV)
				continue;
			post_recv(wc[i].wr_id);
			if (wc[i].byte_len != SIZE)
				return wc[i].byte_len;
			got.messages++;
			got.bytes += SIZE;
			if (more) {
				more--;
				post_send(wc[i].wr_id, SIZE);
			}
		}
		if (got.messages >= n)
			return SIZE;
	}
}

// request takes a connection in, or hears that one is up.
static void request(uint32_t *taken, uint32_t *up)
{
	struct rdma_conn_param param = conn_param(NULL, 0);
	struct rdma_cm_event *ev;

	must(rdma_get_cm_event(cm_channel, &ev), "get event");
	if (ev->event == RDMA_CM_EVENT_ESTABLISHED) {
		must(rdma_ack_cm_event(ev), "ack event");
		++*up;
		return;
	}
	if (ev->event != RDMA_CM_EVENT_CONNECT_REQUEST || ev->param.conn.private_data_len < sizeof(conns_n)) {
		fprintf(stderr, "%s, status %d\n", rdma_event_str(ev->event), ev->status);
		exit(1);
	}
	if (!*taken) {
		memcpy(&conns_n, ev->param.conn.private_data, sizeof(conns_n));
		allot();
	}
	if (*taken == 1)
		got.kilobytes = -resident();
	prepare((*taken)++, ev->id);
	must(rdma_accept(ev->id, &param), "accept");
	must(rdma_ack_cm_event(ev), "ack event");
}

static void serve(struct addrinfo *at)
{
	uint32_t taken = 0, up = 0;

	set_up(listen_at(cm_channel, at)->verbs);
	ready();
	while (!up || up < conns_n)
		request(&taken, &up);
	echo(conns_n, conns_n);
	got.kilobytes += conns_n > 1 ? resident() : 0;
	got.messages = got.bytes = 0;
	while (echo(UINT64_MAX, UINT64_MAX) == REPORT) {
		memcpy((char *)mr->addr + SIZE, &got, sizeof(got));
		post_send(0, sizeof(got));
		got.messages = got.bytes = 0;
	}
	post_send(0, OVER);
	pause(); // the connections end before this does
}

static void dial(uint32_t i, struct rdma_cm_id *id, struct addrinfo *to)
{
	struct rdma_conn_param param = conn_param(&conns_n, sizeof(conns_n));

	for (int tries = 0;; tries++) {
		prepare(i, id);
		if (!rdma_connect(id, &param))
			break;
		if (tries == 10 || !port_taken())
			die("connect");
		rdma_destroy_qp(id); // completes its receives
		for (struct ibv_wc wc; ibv_poll_cq(cq, 1, &wc) > 0;)
			;
		must(rdma_destroy_id(id), "destroy id");
		id = resolve(cm_channel, to);
	}
	expect(cm_channel, RDMA_CM_EVENT_ESTABLISHED, NULL, 0);
}

// messages has n messages there and back, and returns how long that took.
static uint64_t messages(uint64_t n)
{
	uint64_t start = now();

	got.messages = got.bytes = 0;
	for (uint32_t i = 0; i < conns_n; i++)
		post_send(i, SIZE);
	echo(n, n - conns_n);
	return now() - start;
}

static void measure(uint64_t n, uint64_t warm)
{
	uint64_t took;
	struct report theirs;

	messages(warm);
	took = messages(n);

	post_send(0, REPORT);
	if (echo(UINT64_MAX, 0) != sizeof(theirs))
		die("report");
	memcpy(&theirs, mr->addr, sizeof(theirs));
	printf("messages %ju\nbytes %ju\nkilobytes %ju\n", (uintmax_t)got.messages, (uintmax_t)got.bytes, (uintmax_t)got.kilobytes);
	printf("peer_messages %ju\npeer_bytes %ju\npeer_kilobytes %ju\n",
		(uintmax_t)theirs.messages, (uintmax_t)theirs.bytes, (uintmax_t)theirs.kilobytes);
	printf("nanoseconds %ju\n", (uintmax_t)took);
	measured();
}

int main(int argc, char **argv)
{
	struct rdma_cm_id *first;
	struct addrinfo *to;

	cm_channel = new_channel();
	if (argc == 4 && !strcmp(argv[1], "-s"))
		serve(lookup(argv[2], argv[3]));
	if (argc != 6) {
		fprintf(stderr, "usage: many -s ADDR PORT | ADDR PORT CONNS N WARM\n");
		return 1;
	}
	to = lookup(argv[1], argv[2]);
	conns_n = atoi(argv[3]);
	first = resolve(cm_channel, to); // opens the device
	set_up(first->verbs);
	allot();
	dial(0, first, to);
	got.kilobytes = -resident();
	for (uint32_t i = 1; i < conns_n; i++)
		dial(i, resolve(cm_channel, to), to);
	settle(conns[conns_n - 1].id);
	messages(conns_n);
	got.kilobytes += resident();

	while (again())
		measure(atoi(argv[4]), atoi(argv[5]));
	post_send(0, OVER);
	echo(UINT64_MAX, 0);
	ibv_ack_cq_events(cq, cq_events);
	return 0;
}
