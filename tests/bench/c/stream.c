// Sends bytes over rsockets, or with -t over TCP, as stream/main.go does with
// package rsock, and prints how long that took. Both take the same arguments and
// print the same.
//
//	stream [-t] -s ADDR PORT                 serve until the standard input ends
//	stream [-t]    ADDR PORT echo SIZE N     N messages there and back, in turn
//	stream [-t]    ADDR PORT send SIZE N     N messages there, and an answer at the end
//
// The client connects, and does its work once for each line of its standard input.
// Before each round it tells the server what comes, which answers with a byte.
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <rdma/rsocket.h>
#include "cm.h"

static int tcp;

#define S(f, ...) (tcp ? f(__VA_ARGS__) : r##f(__VA_ARGS__))

// What goes first in a round.
struct work {
	uint64_t oneway, size, n;
};

static void put(int fd, const void *b, size_t n)
{
	while (n) {
		ssize_t m = S(send, fd, b, n, 0);

		if (m <= 0)
			die("send");
		b += m;
		n -= m;
	}
}

static void take(int fd, void *b, size_t n)
{
	while (n) {
		ssize_t m = S(recv, fd, b, n, 0);

		if (m <= 0)
			die("recv");
		b += m;
		n -= m;
	}
}

static int open_socket(void)
{
	int one = 1, fd = tcp ? socket(AF_INET, SOCK_STREAM, 0) : rsocket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0)
		die("socket");
	S(setsockopt, fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

// answer does the server's part of a round.
static void answer(int fd, struct work *w)
{
	char *b = malloc(w->size);

	put(fd, b, 1);
	for (uint64_t i = 0; i < w->n; i++) {
		take(fd, b, w->size);
		if (!w->oneway)
			put(fd, b, w->size);
	}
	if (w->oneway)
		put(fd, b, 1);
	free(b);
}

static void serve(struct addrinfo *at)
{
	int fd, one = 1, l = open_socket();

	S(setsockopt, l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (S(bind, l, at->ai_addr, at->ai_addrlen) || S(listen, l, 8))
		die("listen");
	ready();
	while ((fd = S(accept, l, NULL, NULL)) >= 0) {
		struct work w;

		// At the end; or siw's client is gone again as it took the credits that
		// rsockets give at once for a breach of MPA.
		while (S(recv, fd, &w, sizeof(w), MSG_WAITALL) == sizeof(w))
			answer(fd, &w);
		S(close, fd);
	}
	die("accept");
}

static int dial(struct addrinfo *to)
{
	int fd = open_socket();

	for (int tries = 0; S(connect, fd, to->ai_addr, to->ai_addrlen); tries++) {
		// siw's is refused when the connection manager has chosen a port of which
		// TCP still has a connection, or as it took the server's credits for a breach.
		if (tries == 10 || (errno != EINVAL && !port_taken() && (tcp || errno != ECONNREFUSED)))
			die("connect");
		S(close, fd);
		fd = open_socket();
	}
	// siw overlooks what comes before it has begun to listen to the socket of a
	// connection that it accepted, and nothing would come after it.
	if (!tcp)
		usleep(20000);
	return fd;
}

static void measure(int fd, struct work *w, char *b, uint64_t *took)
{
	uint64_t start, last;

	put(fd, w, sizeof(*w));
	take(fd, b, 1);
	last = start = now();
	for (uint64_t i = 0; i < w->n; i++) {
		uint64_t t;

		put(fd, b, w->size);
		if (w->oneway)
			continue;
		take(fd, b, w->size);
		t = now();
		took[i] = t - last;
		last = t;
	}
	if (w->oneway)
		take(fd, b, 1);
	printf("nanoseconds %ju\nbytes %ju\n", (uintmax_t)(now() - start), (uintmax_t)(w->size * w->n));
	if (!w->oneway) {
		printf("took");
		for (uint64_t i = 0; i < w->n; i++)
			printf(" %ju", (uintmax_t)took[i]);
		printf("\n");
	}
	measured();
}

int main(int argc, char **argv)
{
	struct work w;
	uint64_t *took;
	char *b;
	int fd;

	if (argc > 1 && !strcmp(argv[1], "-t"))
		tcp = 1, argv++, argc--;
	if (argc == 4 && !strcmp(argv[1], "-s"))
		serve(lookup(argv[2], argv[3]));
	if (argc != 6) {
		fprintf(stderr, "usage: stream [-t] -s ADDR PORT | ADDR PORT echo|send SIZE N\n");
		return 1;
	}
	w = (struct work){ .oneway = !strcmp(argv[3], "send"), .size = strtoull(argv[4], NULL, 10), .n = strtoull(argv[5], NULL, 10) };
	b = calloc(1, w.size);
	took = calloc(w.n, sizeof(*took));
	fd = dial(lookup(argv[1], argv[2]));
	while (again())
		measure(fd, &w, b, took);
	S(shutdown, fd, SHUT_RDWR);
	S(close, fd);
	return 0;
}
