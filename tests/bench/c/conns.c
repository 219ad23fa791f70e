// Echoes messages on many connections at once with libibverbs, as conns/main.go
// does with package uverbs, and prints how long that took and how much memory the
// connections took. Both take the same arguments and print the same.
//
//	conns -s ADDR PORT               serve one client until the standard input ends
//	conns    ADDR PORT CONNS N WARM  N messages there and back in all, each connection with one under way
//
// The client connects, has one message there and back on each connection, and does its
// work once for each line of its standard input, after WARM other messages (see
// transfer.c). All connections of a side share one CQ, for which it sleeps. Memory is that
// of the client's connections but the first, with which the program warms up.
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

static void post_send(uint32_t i)
{
	struct ibv_sge sge = part(i, 1);
	struct ibv_send_wr *bad, wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };

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
		armed = 0;
	}
	return n;
}

// echo receives n messages, and sends the next on the connection of each, as long as there
// are more to send. It returns how many it received: fewer if the peer has gone.
static uint64_t echo(uint64_t n, uint64_t more)
{
	struct ibv_wc wc[BATCH];
	uint64_t got = 0;

	while (got < n) {
		int polled = await(wc);

		for (int i = 0; i < polled; i++) {
			if (wc[i].status != IBV_WC_SUCCESS)
				return got;
			if (wc[i].opcode != IBV_WC_RECV)
				continue;
			post_recv(wc[i].wr_id);
			got++;
			if (more) {
				more--;
				post_send(wc[i].wr_id);
			}
		}
	}
	return got;
}

// request takes a connection in, or hears that one is up.
static void request(uint32_t *taken, uint32_t *up)
{
	struct rdma_conn_param param = conn_param(NULL, 0);
	struct rdma_cm_event *ev;

	must(rdma_get_cm_event(cm_channel, &ev), "get event");
	if (ev->event == RDMA_CM_EVENT_ESTABLISHED) {
		++*up;
	} else if (ev->event == RDMA_CM_EVENT_CONNECT_REQUEST && ev->param.conn.private_data_len >= sizeof(conns_n)) {
		if (!*taken) {
			memcpy(&conns_n, ev->param.conn.private_data, sizeof(conns_n));
			allot();
		}
		prepare((*taken)++, ev->id);
		must(rdma_accept(ev->id, &param), "accept");
	} else {
		fprintf(stderr, "%s, status %d\n", rdma_event_str(ev->event), ev->status);
		exit(1);
	}
	must(rdma_ack_cm_event(ev), "ack event");
}

static void serve(struct addrinfo *at)
{
	uint32_t taken = 0, up = 0;

	set_up(listen_at(cm_channel, at)->verbs);
	ready();
	while (!up || up < conns_n)
		request(&taken, &up);
	echo(UINT64_MAX, UINT64_MAX);
	pause(); // the client has ended: it has checked its messages
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

	for (uint32_t i = 0; i < conns_n; i++)
		post_send(i);
	if (echo(n, n - conns_n) < n) {
		fprintf(stderr, "a connection has failed\n");
		exit(1);
	}
	return now() - start;
}

int main(int argc, char **argv)
{
	struct rdma_cm_id *first;
	struct addrinfo *to;
	long memory;

	cm_channel = new_channel();
	if (argc == 4 && !strcmp(argv[1], "-s"))
		serve(lookup(argv[2], argv[3]));
	if (argc != 6) {
		fprintf(stderr, "usage: conns -s ADDR PORT | ADDR PORT CONNS N WARM\n");
		return 1;
	}
	to = lookup(argv[1], argv[2]);
	conns_n = atoi(argv[3]);
	first = resolve(cm_channel, to); // opens the device
	set_up(first->verbs);
	allot();
	dial(0, first, to);
	memory = resident();
	for (uint32_t i = 1; i < conns_n; i++)
		dial(i, resolve(cm_channel, to), to);
	settle(conns[conns_n - 1].id);
	messages(conns_n);
	memory = resident() - memory;

	while (again()) {
		messages(atoi(argv[5]));
		printf("messages %s\nnanoseconds %ju\nkilobytes %ld\n", argv[4], (uintmax_t)messages(atoi(argv[4])), memory);
		measured();
	}
	return 0;
}
