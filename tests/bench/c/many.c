// Echoes messages on many connections at once with libibverbs, as many/main.go
// does with package uverbs, and says how long that took and how much memory the
// connections took. Both take the same arguments and print the same.
//
//	many -s ADDR PORT          serve one client until the standard input ends
//	many    ADDR PORT CONNS N  N messages there and back in all, each connection with one under way
//
// All connections of a side share one CQ, for which it sleeps. Memory is that
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
};

struct work {
	uint32_t conns, n;
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
static struct work work;
static struct report got;
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
	void *memory;

	conns = calloc(work.conns, sizeof(*conns));
	errno = posix_memalign(&memory, 4096, work.conns * 2 * SIZE);
	if (errno)
		die("memory");
	memset(memory, 0, work.conns * 2 * SIZE);
	mr = ibv_reg_mr(pd, memory, work.conns * 2 * SIZE, IBV_ACCESS_LOCAL_WRITE);
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

// echo sends on each connection, once it has a message, the next, as long as
// there are messages to come.
static void echo(uint32_t more)
{
	struct ibv_wc wc[BATCH];
	unsigned int events = 0;
	int n, armed = 0;

	while (got.messages < work.n) {
		n = ibv_poll_cq(cq, BATCH, wc);
		if (n < 0)
			die("poll cq");
		for (int i = 0; i < n; i++) {
			if (wc[i].status != IBV_WC_SUCCESS) {
				fprintf(stderr, "%s\n", ibv_wc_status_str(wc[i].status));
				exit(1);
			}
			if (wc[i].opcode != IBV_WC_RECV)
				continue;
			got.messages++;
			got.bytes += wc[i].byte_len;
			post_recv(wc[i].wr_id);
			if (more) {
				more--;
				post_send(wc[i].wr_id, SIZE);
			}
		}
		if (n)
			continue;
		if (!armed) {
			must(ibv_req_notify_cq(cq, 0), "arm");
			armed = 1;
		} else {
			struct ibv_cq *of;
			void *context;

			must(ibv_get_cq_event(channel, &of, &context), "get cq event");
			events++;
			armed = 0;
		}
	}
	ibv_ack_cq_events(cq, events);
}

// hear waits for the message that is not an echo, of connection 0.
static void hear(void)
{
	struct ibv_wc wc;

	do
		while (!ibv_poll_cq(cq, 1, &wc))
			;
	while (wc.opcode != IBV_WC_RECV && wc.status == IBV_WC_SUCCESS);
	must(wc.status, "hear");
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
	if (ev->event != RDMA_CM_EVENT_CONNECT_REQUEST || ev->param.conn.private_data_len < sizeof(work)) {
		fprintf(stderr, "%s, status %d\n", rdma_event_str(ev->event), ev->status);
		exit(1);
	}
	if (!*taken) {
		memcpy(&work, ev->param.conn.private_data, sizeof(work));
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
	while (!up || up < work.conns)
		request(&taken, &up);
	got.kilobytes += work.conns > 1 ? resident() : 0;
	echo(work.n);
	hear(); // the client is done
	memcpy((char *)mr->addr + SIZE, &got, sizeof(got));
	post_send(0, sizeof(got));
	pause();
}

static void dial(uint32_t i, struct rdma_cm_id *id, struct addrinfo *to)
{
	struct rdma_conn_param param = conn_param(&work, sizeof(work));

	for (int tries = 0;; tries++) {
		prepare(i, id);
		if (!rdma_connect(id, &param))
			break;
		if (tries == 10 || !port_taken())
			die("connect");
		rdma_destroy_qp(id);
		must(rdma_destroy_id(id), "destroy id");
		id = resolve(cm_channel, to);
	}
	expect(cm_channel, RDMA_CM_EVENT_ESTABLISHED, NULL, 0);
}

int main(int argc, char **argv)
{
	struct rdma_cm_id *first;
	struct report theirs;
	struct addrinfo *to;
	uint64_t start;

	cm_channel = new_channel();
	if (argc == 4 && !strcmp(argv[1], "-s"))
		serve(lookup(argv[2], argv[3]));
	if (argc != 5) {
		fprintf(stderr, "usage: many -s ADDR PORT | ADDR PORT CONNS N\n");
		return 1;
	}
	to = lookup(argv[1], argv[2]);
	work = (struct work){ atoi(argv[3]), atoi(argv[4]) };
	first = resolve(cm_channel, to); // opens the device
	set_up(first->verbs);
	allot();
	dial(0, first, to);
	got.kilobytes = -resident();
	for (uint32_t i = 1; i < work.conns; i++)
		dial(i, resolve(cm_channel, to), to);
	got.kilobytes += resident();
	settle(conns[work.conns - 1].id);

	start = now();
	for (uint32_t i = 0; i < work.conns; i++)
		post_send(i, SIZE);
	echo(work.n - work.conns);
	start = now() - start;

	post_send(0, 1);
	hear();
	memcpy(&theirs, mr->addr, sizeof(theirs));
	printf("messages %ju\nbytes %ju\nkilobytes %ju\n", (uintmax_t)got.messages, (uintmax_t)got.bytes, (uintmax_t)got.kilobytes);
	printf("peer_messages %ju\npeer_bytes %ju\npeer_kilobytes %ju\n",
		(uintmax_t)theirs.messages, (uintmax_t)theirs.bytes, (uintmax_t)theirs.kilobytes);
	printf("nanoseconds %ju\nconnections %u\n", (uintmax_t)start, work.conns);
	return 0;
}
