// Makes connections with librdmacm, as connect/main.go does with package cm,
// and prints how long that took. Both take the same arguments and print the same.
//
//	connect -s ADDR PORT          serve until the standard input ends
//	connect    ADDR PORT rate N P N connections, P under way at a time
//	connect    ADDR PORT each N   N connections, each when nothing is left of the one before
//	connect    ADDR PORT first N  the same, each up to the first byte: 8 bytes there and back
//
// The client makes the connections once for each line of its standard input. The
// server writes a byte to a socket for each connection that it has torn down: with rate
// these wait until the end, for which the socket has room if N is at most 200.
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>
#include "cm.h"

enum {
	QUEUE = 16, // requests of a QP, each way
	RECVS = 8,  // receives of a connection that echoes, and messages sent at most
	SIZE = 8,   // bytes of a message
	AGAIN = 1000000, // nanoseconds without an answer, for the first time
};

static struct rdma_event_channel *events;
static struct ibv_pd *pd;
static struct ibv_context *pd_device;
static struct rdma_conn_param param = {
	.responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7,
};

struct conn {
	struct rdma_cm_id *id;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_mr *mr; // of one that echoes
	uint64_t begin;
	int tries;
	char bytes[SIZE];
};

// local returns a socket, and its address in at.
static int local(const char *port, struct sockaddr_un *at, socklen_t *n)
{
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	if (fd < 0)
		die("socket");
	memset(at, 0, sizeof(*at));
	at->sun_family = AF_UNIX;
	*n = offsetof(struct sockaddr_un, sun_path) + 1 + sprintf(at->sun_path + 1, "connect-%s", port);
	return fd;
}

// make_qp gives a connection two completion queues and a queue pair, and to echo
// memory and receives.
static void make_qp(struct conn *c, int echo)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = QUEUE, .max_recv_wr = QUEUE, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_sge sge = { .addr = (uintptr_t)c->bytes, .length = SIZE };
	struct ibv_recv_wr *bad, wr = { .sg_list = &sge, .num_sge = 1 };

	if (pd_device != c->id->verbs) {
		pd = ibv_alloc_pd(c->id->verbs);
		pd_device = c->id->verbs;
	}
	if (!pd)
		die("alloc pd");
	attr.send_cq = c->send_cq = ibv_create_cq(c->id->verbs, QUEUE, NULL, NULL, 0);
	attr.recv_cq = c->recv_cq = ibv_create_cq(c->id->verbs, QUEUE, NULL, NULL, 0);
	if (!c->send_cq || !c->recv_cq)
		die("create cq");
	must(rdma_create_qp(c->id, pd, &attr), "create qp");
	if (!echo)
		return;
	c->mr = ibv_reg_mr(pd, c->bytes, SIZE, IBV_ACCESS_LOCAL_WRITE);
	if (!c->mr)
		die("register mr");
	sge.lkey = c->mr->lkey;
	for (int i = 0; i < RECVS; i++)
		must(ibv_post_recv(c->id->qp, &wr, &bad), "post recv");
}

static void post_send(struct conn *c)
{
	struct ibv_sge sge = { .addr = (uintptr_t)c->bytes, .length = SIZE, .lkey = c->mr->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };

	must(ibv_post_send(c->id->qp, &wr, &bad), "post send");
}

// has_come says whether a message has.
static int has_come(struct conn *c)
{
	struct ibv_wc wc;

	if (!ibv_poll_cq(c->recv_cq, 1, &wc))
		return 0;
	if (wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "%s\n", ibv_wc_status_str(wc.status));
		exit(1);
	}
	return 1;
}

static void clear(struct conn *c)
{
	if (c->id->qp)
		rdma_destroy_qp(c->id);
	if (c->send_cq)
		must(ibv_destroy_cq(c->send_cq), "destroy cq");
	if (c->recv_cq)
		must(ibv_destroy_cq(c->recv_cq), "destroy cq");
	if (c->mr)
		must(ibv_dereg_mr(c->mr), "deregister mr");
	must(rdma_destroy_id(c->id), "destroy id");
}

static void release(struct conn *c)
{
	clear(c);
	free(c);
}

// tell tells the client that a connection has been torn down.
static void tell(int listener)
{
	static int client = -1;

	while (send(client, "", 1, MSG_NOSIGNAL) != 1)
		if ((client = accept(listener, NULL, NULL)) < 0)
			die("accept");
}

static void serve(const char *addr, const char *port)
{
	struct sockaddr_un at;
	socklen_t n;
	int telling = local(port, &at, &n);

	if (bind(telling, (struct sockaddr *)&at, n) || listen(telling, 8))
		die("listen");
	listen_at(events, lookup(addr, port));
	ready();
	for (;;) {
		struct rdma_cm_event *ev;
		enum rdma_cm_event_type type;
		struct conn *c;
		int failed = 0;

		must(rdma_get_cm_event(events, &ev), "get event");
		type = ev->event;
		c = ev->id->context;
		if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
			c = calloc(1, sizeof(*c));
			c->id = ev->id;
			c->id->context = c;
			make_qp(c, *(char *)ev->param.conn.private_data);
			failed = rdma_accept(c->id, &param); // the peer has gone
		}
		must(rdma_ack_cm_event(ev), "ack event");
		if (type == RDMA_CM_EVENT_ESTABLISHED && c->mr) {
			while (!has_come(c))
				;
			post_send(c);
		}
		if (failed || (type != RDMA_CM_EVENT_CONNECT_REQUEST && type != RDMA_CM_EVENT_ESTABLISHED)) {
			rdma_disconnect(c->id);
			release(c);
			tell(telling);
		}
	}
}

static void begin(struct conn *c, struct addrinfo *to)
{
	must(rdma_create_id(events, &c->id, c, RDMA_PS_TCP), "create id");
	must(rdma_resolve_addr(c->id, NULL, to->ai_addr, 5000), "resolve addr");
}

static void begin_new(struct addrinfo *to)
{
	struct conn *c = calloc(1, sizeof(*c));

	c->begin = now();
	begin(c, to);
}

// ask sends a message and waits for the answer. siw overlooks a message that comes
// before it listens to the socket of a connection that it accepted, until another
// does.
static void ask(struct conn *c)
{
	uint64_t last = 0;

	for (int sent = 0; !has_come(c);) {
		if (sent == RECVS || (sent && now() - last < (uint64_t)AGAIN << (sent - 1)))
			continue;
		post_send(c);
		sent++;
		last = now();
	}
}

// dial makes n connections, p at a time, each of which ends when it is up, and
// returns how long that took, without what is torn down after the last.
static uint64_t dial(struct addrinfo *to, int telling, int n, int p, int alone, uint64_t *took)
{
	int begun = 0, up = 0, left = n;
	uint64_t start = now();
	char torn;

	while (begun < p && begun < n)
		begun++, begin_new(to);
	while (up < n) {
		struct rdma_cm_event *ev;
		enum rdma_cm_event_type type;
		struct conn *c;
		int echo = *(char *)param.private_data;

		must(rdma_get_cm_event(events, &ev), "get event");
		type = ev->event;
		c = ev->id->context;
		if (ev->status) {
			fprintf(stderr, "%s: %d\n", rdma_event_str(type), ev->status);
			exit(1);
		}
		must(rdma_ack_cm_event(ev), "ack event");
		switch (type) {
		case RDMA_CM_EVENT_ADDR_RESOLVED:
			must(rdma_resolve_route(c->id, 5000), "resolve route");
			continue;
		case RDMA_CM_EVENT_ROUTE_RESOLVED:
			make_qp(c, echo);
			if (rdma_connect(c->id, &param)) {
				if (c->tries++ == 10 || !port_taken())
					die("connect");
				clear(c);
				begin(c, to);
			}
			continue;
		case RDMA_CM_EVENT_ESTABLISHED:
			if (echo)
				ask(c);
			took[up++] = now() - c->begin;
			rdma_disconnect(c->id);
			release(c);
			if (alone && read(telling, &torn, 1) == 1)
				left--;
			if (begun < n)
				begun++, begin_new(to);
			continue;
		default:
			continue;
		}
	}
	start = now() - start;
	while (left && read(telling, &torn, 1) == 1)
		left--;
	return start;
}

int main(int argc, char **argv)
{
	struct sockaddr_un at;
	struct addrinfo *to;
	uint64_t *took;
	int n, p, alone, telling;
	char echo;
	socklen_t len;

	events = new_channel();
	if (argc == 4 && !strcmp(argv[1], "-s"))
		serve(argv[2], argv[3]);
	if (argc < 5) {
		fprintf(stderr, "usage: connect -s ADDR PORT | ADDR PORT rate|each|first N [P]\n");
		return 1;
	}
	to = lookup(argv[1], argv[2]);
	telling = local(argv[2], &at, &len);
	if (connect(telling, (struct sockaddr *)&at, len))
		die("connect");
	n = atoi(argv[4]);
	p = argc > 5 ? atoi(argv[5]) : 1;
	alone = strcmp(argv[3], "rate");
	echo = !strcmp(argv[3], "first");
	param.private_data = &echo;
	param.private_data_len = 1;
	took = calloc(n + 1, sizeof(*took));
	dial(to, telling, 1, 1, 1, took); // opens the device
	while (again()) {
		printf("connections %d\nnanoseconds %ju\ntook", n, (uintmax_t)dial(to, telling, n, p, alone, took));
		for (int i = 0; i < n; i++)
			printf(" %ju", (uintmax_t)took[i]);
		printf("\n");
		measured();
	}
	return 0;
}
