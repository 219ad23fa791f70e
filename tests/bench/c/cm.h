// What the programs on librdmacm share: connections, clocks and memory.
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>

static inline void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static inline void must(int ret, const char *what)
{
	if (ret)
		die(what);
}

// now is a time in nanoseconds.
static inline uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

// resident is the process's resident memory in KiB.
static inline long resident(void)
{
	long kb = 0;
	char line[256];
	FILE *f = fopen("/proc/self/smaps_rollup", "r");

	if (!f)
		die("smaps_rollup");
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "Rss: %ld", &kb) == 1)
			break;
	fclose(f);
	return kb;
}

static inline void *until_end(void *arg)
{
	char c;

	while (read(0, &c, 1) > 0)
		;
	exit(0);
}

// ready says so, and has the process end when the standard input does.
static inline void ready(void)
{
	pthread_t end;

	if (pthread_create(&end, NULL, until_end, NULL))
		die("pthread_create");
	printf("ready\n");
	fflush(stdout);
}

// again waits for the order to measure once more, a line of the standard input. It
// returns 0 at its end.
static inline int again(void)
{
	int c;

	while ((c = getchar()) != EOF)
		if (c == '\n')
			return 1;
	return 0;
}

// measured ends the output of a measurement.
static inline void measured(void)
{
	printf("\n");
	fflush(stdout);
}

static inline struct addrinfo *lookup(const char *addr, const char *port)
{
	struct addrinfo *ai;

	if (getaddrinfo(addr, port, NULL, &ai)) {
		fprintf(stderr, "bad address %s %s\n", addr, port);
		exit(1);
	}
	return ai;
}

static inline struct rdma_event_channel *new_channel(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();

	if (!ch)
		die("event channel");
	return ch;
}

// expect takes the next event, which must be of a type, and returns whose it is.
// The first n bytes of what the peer sent along go to b.
static inline struct rdma_cm_id *expect(struct rdma_event_channel *ch, enum rdma_cm_event_type type, void *b, size_t n)
{
	struct rdma_cm_event *ev;
	struct rdma_cm_id *id;

	must(rdma_get_cm_event(ch, &ev), "get event");
	if (ev->event != type || ev->param.conn.private_data_len < n) {
		fprintf(stderr, "%s, status %d, in place of %s\n", rdma_event_str(ev->event), ev->status, rdma_event_str(type));
		exit(1);
	}
	if (n)
		memcpy(b, ev->param.conn.private_data, n);
	id = ev->id;
	must(rdma_ack_cm_event(ev), "ack event");
	return id;
}

static inline struct rdma_conn_param conn_param(const void *private, size_t n)
{
	return (struct rdma_conn_param){
		.private_data = private, .private_data_len = n,
		.responder_resources = 16, .initiator_depth = 16, .retry_count = 7, .rnr_retry_count = 7,
	};
}

// resolve makes an ID that knows its device and path.
static inline struct rdma_cm_id *resolve(struct rdma_event_channel *ch, struct addrinfo *to)
{
	struct rdma_cm_id *id;

	must(rdma_create_id(ch, &id, NULL, RDMA_PS_TCP), "create id");
	must(rdma_resolve_addr(id, NULL, to->ai_addr, 5000), "resolve addr");
	expect(ch, RDMA_CM_EVENT_ADDR_RESOLVED, NULL, 0);
	must(rdma_resolve_route(id, 5000), "resolve route");
	expect(ch, RDMA_CM_EVENT_ROUTE_RESOLVED, NULL, 0);
	return id;
}

// port_taken says that connecting failed as siw's does when the connection
// manager has chosen a port of which TCP still has a connection: try again.
static inline int port_taken(void)
{
	return errno == EADDRINUSE || errno == EADDRNOTAVAIL;
}

// settle waits until the peer can hear: a siw that accepts answers before it
// listens to its socket, and a message that comes in between stays unread until
// another does.
static inline void settle(struct rdma_cm_id *id)
{
	if (id->verbs->device->transport_type == IBV_TRANSPORT_IWARP)
		usleep(10000);
}

// listen_at returns an ID that listens, on a device if the address is one's.
static inline struct rdma_cm_id *listen_at(struct rdma_event_channel *ch, struct addrinfo *at)
{
	struct rdma_cm_id *id;

	must(rdma_create_id(ch, &id, NULL, RDMA_PS_TCP), "create id");
	must(rdma_bind_addr(id, at->ai_addr), "bind");
	must(rdma_listen(id, 1024), "listen");
	return id;
}
