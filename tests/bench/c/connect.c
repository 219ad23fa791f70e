// Makes connections with librdmacm, as connect/main.go does with package cm,
// and says how long that took. Both take the same arguments and print the same.
//
//	connect -s ADDR PORT            serve until the standard input ends
//	connect    ADDR PORT N P REST   N connections, P under way at a time, with
//	                                REST microseconds between one and the next
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>
#include "die.h"

static struct rdma_event_channel *events;
static struct ibv_pd *pd;
static struct ibv_context *pd_device;

struct conn {
	struct rdma_cm_id *id;
	struct ibv_cq *send_cq, *recv_cq;
	double begin;
};

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

// make_qp gives a connection two completion queues and a queue pair.
static void make_qp(struct conn *c)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};

	if (pd_device != c->id->verbs) {
		pd = ibv_alloc_pd(c->id->verbs);
		pd_device = c->id->verbs;
	}
	if (!pd)
		die("alloc pd");
	attr.send_cq = c->send_cq = ibv_create_cq(c->id->verbs, 16, NULL, NULL, 0);
	attr.recv_cq = c->recv_cq = ibv_create_cq(c->id->verbs, 16, NULL, NULL, 0);
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
	must(rdma_destroy_id(c->id), "destroy id");
	free(c);
}

static struct rdma_conn_param param = {
	.responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7,
};

static struct addrinfo *lookup(const char *addr, const char *port)
{
	struct addrinfo *ai;

	if (getaddrinfo(addr, port, NULL, &ai)) {
		fprintf(stderr, "bad address %s %s\n", addr, port);
		exit(1);
	}
	return ai;
}

static void serve(const char *addr, const char *port)
{
	struct rdma_cm_id *listener;
	struct rdma_cm_event *ev;
	struct pollfd fds[2] = { { .fd = 0, .events = POLLIN }, { .fd = events->fd, .events = POLLIN } };

	must(rdma_create_id(events, &listener, NULL, RDMA_PS_TCP), "create id");
	must(rdma_bind_addr(listener, lookup(addr, port)->ai_addr), "bind");
	must(rdma_listen(listener, 1024), "listen");
	must(fcntl(events->fd, F_SETFL, O_NONBLOCK), "fcntl");
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		if (poll(fds, 2, -1) < 0)
			die("poll");
		if (fds[0].revents)
			return;
		while (!rdma_get_cm_event(events, &ev)) {
			enum rdma_cm_event_type type = ev->event;
			struct conn *c = ev->id->context;

			if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
				c = calloc(1, sizeof(*c));
				c->id = ev->id;
				c->id->context = c;
				make_qp(c);
				must(rdma_accept(c->id, &param), "accept");
			}
			rdma_ack_cm_event(ev);
			if (type == RDMA_CM_EVENT_DISCONNECTED) {
				rdma_disconnect(c->id);
				release(c);
			}
		}
	}
}

static void begin(struct addrinfo *to)
{
	struct conn *c = calloc(1, sizeof(*c));

	c->begin = now();
	must(rdma_create_id(events, &c->id, c, RDMA_PS_TCP), "create id");
	must(rdma_resolve_addr(c->id, NULL, to->ai_addr, 5000), "resolve addr");
}

static int compare(const void *a, const void *b)
{
	double d = *(double *)a - *(double *)b;

	return d < 0 ? -1 : d > 0;
}

// dial makes n connections, p at a time, each of which ends when it is up.
static void dial(struct addrinfo *to, int n, int p, int rest, double *took)
{
	int begun = 0, up = 0, ended = 0;

	while (begun < p && begun < n)
		begun++, begin(to);
	while (ended < n) {
		struct rdma_cm_event *ev;
		enum rdma_cm_event_type type;
		struct conn *c;

		must(rdma_get_cm_event(events, &ev), "get event");
		type = ev->event;
		c = ev->id->context;
		if (ev->status) {
			fprintf(stderr, "%s: %d\n", rdma_event_str(type), ev->status);
			exit(1);
		}
		rdma_ack_cm_event(ev);
		switch (type) {
		case RDMA_CM_EVENT_ADDR_RESOLVED:
			must(rdma_resolve_route(c->id, 5000), "resolve route");
			continue;
		case RDMA_CM_EVENT_ROUTE_RESOLVED:
			make_qp(c);
			must(rdma_connect(c->id, &param), "connect");
			continue;
		case RDMA_CM_EVENT_ESTABLISHED:
			took[up++] = now() - c->begin;
			rdma_disconnect(c->id);
			release(c);
			ended++;
			if (rest)
				usleep(rest);
			if (begun < n)
				begun++, begin(to);
			continue;
		default:
			continue;
		}
	}
}

int main(int argc, char **argv)
{
	struct addrinfo *to;
	double *took, start, all;
	int n, p;

	if (argc < 4 || !(events = rdma_create_event_channel()))
		die("usage: connect [-s] ADDR PORT [N P REST]");
	if (!strcmp(argv[1], "-s")) {
		serve(argv[2], argv[3]);
		return 0;
	}
	to = lookup(argv[1], argv[2]);
	n = atoi(argv[3]);
	p = atoi(argv[4]);
	took = calloc(n + 1, sizeof(*took));
	dial(to, 1, 1, 0, took); // opens the device
	start = now();
	dial(to, n, p, argc > 5 ? atoi(argv[5]) : 0, took);
	all = now() - start;
	qsort(took, n, sizeof(*took), compare);
	printf("connections %d\nmicroseconds %.0f\nmedian %.1f\n", n, all, took[n / 2]);
	return 0;
}
