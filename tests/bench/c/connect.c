// Makes connections with librdmacm, as connect/main.go does with package cm,
// and prints how long that took. Both take the same arguments and print the same.
//
//	connect -s ADDR PORT      serve until the standard input ends
//	connect    ADDR PORT N P  N connections, P under way at a time
//
// Each connection has a completion channel, as those of package cm do.
//
// The client makes the connections once for each line of its standard input, and closes each
// when it is established. Before that it sleeps, so that the server has nothing left of the
// round before.
#include "cm.h"

enum {
	QUEUE = 16,   // requests of a QP, each way
	PAUSE = 5000, // microseconds
};

static struct rdma_event_channel *events;
static struct ibv_pd *pd;
static struct ibv_context *pd_device;
static struct rdma_conn_param param = {
	.responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7,
};

struct conn {
	struct rdma_cm_id *id;
	struct ibv_comp_channel *channel;
	struct ibv_cq *send_cq, *recv_cq;
	int tries;
};

// make_qp gives a connection two completion queues and a queue pair.
static void make_qp(struct conn *c)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = QUEUE, .max_recv_wr = QUEUE, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};

	if (pd_device != c->id->verbs) {
		pd = ibv_alloc_pd(c->id->verbs);
		pd_device = c->id->verbs;
	}
	if (!pd)
		die("alloc pd");
	if (!(c->channel = ibv_create_comp_channel(c->id->verbs)))
		die("create channel");
	attr.send_cq = c->send_cq = ibv_create_cq(c->id->verbs, QUEUE, NULL, c->channel, 0);
	attr.recv_cq = c->recv_cq = ibv_create_cq(c->id->verbs, QUEUE, NULL, c->channel, 0);
	if (!c->send_cq || !c->recv_cq)
		die("create cq");
	must(rdma_create_qp(c->id, pd, &attr), "create qp");
}

static void release(struct conn *c)
{
	if (c->id->qp)
		rdma_destroy_qp(c->id);
	if (c->send_cq)
		must(ibv_destroy_cq(c->send_cq), "destroy cq");
	if (c->recv_cq)
		must(ibv_destroy_cq(c->recv_cq), "destroy cq");
	if (c->channel)
		must(ibv_destroy_comp_channel(c->channel), "destroy channel");
	must(rdma_destroy_id(c->id), "destroy id");
}

// next takes the next event, of connection c.
static enum rdma_cm_event_type next(struct conn **c)
{
	struct rdma_cm_event *ev;
	enum rdma_cm_event_type type;

	must(rdma_get_cm_event(events, &ev), "get event");
	type = ev->event;
	if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
		*c = calloc(1, sizeof(**c));
		(*c)->id = ev->id;
		ev->id->context = *c;
	}
	*c = ev->id->context;
	must(rdma_ack_cm_event(ev), "ack event");
	return type;
}

static void serve(const char *addr, const char *port)
{
	listen_at(events, lookup(addr, port));
	ready();
	for (;;) {
		struct conn *c;

		switch (next(&c)) {
		case RDMA_CM_EVENT_ESTABLISHED:
			continue;
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			make_qp(c);
			if (!rdma_accept(c->id, &param))
				continue;
			// the peer has gone
		default:
			rdma_disconnect(c->id);
			release(c);
			free(c);
		}
	}
}

static void begin(struct conn *c, struct addrinfo *to)
{
	must(rdma_create_id(events, &c->id, c, RDMA_PS_TCP), "create id");
	must(rdma_resolve_addr(c->id, NULL, to->ai_addr, 5000), "resolve addr");
}

// dial makes n connections, p at a time.
static void dial(struct addrinfo *to, int n, int p)
{
	int begun, up = 0;

	for (begun = 0; begun < p && begun < n; begun++)
		begin(calloc(1, sizeof(struct conn)), to);
	while (up < n) {
		struct conn *c;
		enum rdma_cm_event_type type = next(&c);

		switch (type) {
		case RDMA_CM_EVENT_ADDR_RESOLVED:
			must(rdma_resolve_route(c->id, 5000), "resolve route");
			continue;
		case RDMA_CM_EVENT_ROUTE_RESOLVED:
			make_qp(c);
			if (rdma_connect(c->id, &param)) {
				if (c->tries++ == 10 || !port_taken())
					die("connect");
				release(c);
				begin(c, to);
			}
			continue;
		case RDMA_CM_EVENT_ESTABLISHED:
			up++;
			rdma_disconnect(c->id);
			release(c);
			free(c);
			if (begun < n)
				begun++, begin(calloc(1, sizeof(*c)), to);
			continue;
		default:
			fprintf(stderr, "%s\n", rdma_event_str(type));
			exit(1);
		}
	}
}

int main(int argc, char **argv)
{
	struct addrinfo *to;
	int n, p;

	events = new_channel();
	if (argc == 4 && !strcmp(argv[1], "-s"))
		serve(argv[2], argv[3]);
	if (argc != 5) {
		fprintf(stderr, "usage: connect -s ADDR PORT | ADDR PORT N P\n");
		return 1;
	}
	to = lookup(argv[1], argv[2]);
	n = atoi(argv[3]);
	p = atoi(argv[4]);
	dial(to, 1, 1); // opens the device
	while (again()) {
		uint64_t start;

		usleep(PAUSE);
		start = now();
		dial(to, n, p);
		printf("connections %d\nnanoseconds %ju\n", n, (uintmax_t)(now() - start));
		measured();
	}
	return 0;
}
