// Sends bytes over rsockets, or with -t over TCP, as stream/main.go does with
// package rsock, and says how long that took. Both take the same arguments and
// print the same.
//
//	stream [-t] -s ADDR PORT                 serve until the standard input ends
//	stream [-t]    ADDR PORT echo SIZE N     N messages there and back, in turn
//	stream [-t]    ADDR PORT send SIZE N     N messages there, and an answer at the end
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <rdma/rsocket.h>
#include "die.h"

static int tcp;

#define S(f, ...) (tcp ? f(__VA_ARGS__) : r##f(__VA_ARGS__))

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void put(int fd, const char *b, size_t n)
{
	while (n) {
		ssize_t m = S(send, fd, b, n, 0);

		if (m <= 0)
			die("send");
		b += m;
		n -= m;
	}
}

static void take(int fd, char *b, size_t n)
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

static void serve(struct addrinfo *at)
{
	int fd, one = 1, l = open_socket();

	S(setsockopt, l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (S(bind, l, at->ai_addr, at->ai_addrlen) || S(listen, l, 8))
		die("listen");
	printf("ready\n");
	fflush(stdout);
	while ((fd = S(accept, l, NULL, NULL)) >= 0) {
		uint64_t work[3];
		char *b;

		/* siw's client is gone again if it took the credits that rsockets
		 * give at once for a breach of MPA. */
		if (S(recv, fd, work, sizeof(work), MSG_WAITALL) != sizeof(work)) {
			S(close, fd);
			continue;
		}
		b = malloc(be64toh(work[1]));
		for (uint64_t i = be64toh(work[2]); i > 0; i--) {
			take(fd, b, be64toh(work[1]));
			if (!work[0])
				put(fd, b, be64toh(work[1]));
		}
		if (work[0])
			put(fd, b, 1);
		take(fd, b, 1); // which does not come before the answer has arrived
		S(close, fd);
		free(b);
	}
	die("accept");
}

static void *until_end(void *arg)
{
	char c;

	while (read(0, &c, 1) > 0)
		;
	exit(0);
}

static int compare(const void *a, const void *b)
{
	double d = *(double *)a - *(double *)b;

	return d < 0 ? -1 : d > 0;
}

int main(int argc, char **argv)
{
	struct addrinfo *ai;
	uint64_t work[3], size, n;
	double start, all, *took;
	int fd, serving, oneway;
	pthread_t end;
	char *b;

	if (argc > 1 && !strcmp(argv[1], "-t"))
		tcp = 1, argv++, argc--;
	serving = argc > 1 && !strcmp(argv[1], "-s");
	if (argc != (serving ? 4 : 6)) {
		fprintf(stderr, "usage: stream [-t] [-s] ADDR PORT [echo|send SIZE N]\n");
		return 1;
	}
	if (getaddrinfo(argv[1 + serving], argv[2 + serving], NULL, &ai))
		die("bad address");
	if (serving) {
		if (pthread_create(&end, NULL, until_end, NULL))
			die("pthread_create");
		serve(ai);
	}
	oneway = !strcmp(argv[3], "send");
	size = strtoull(argv[4], NULL, 10);
	n = strtoull(argv[5], NULL, 10);
	fd = open_socket();
	for (int tries = 0; S(connect, fd, ai->ai_addr, ai->ai_addrlen); tries++) {
		/* siw's is refused when the connection manager has chosen a port
		 * of which TCP still has a connection, or as it took the server's
		 * credits for a breach. */
		if (tries == 10 || (errno != EINVAL && errno != EADDRINUSE && errno != EADDRNOTAVAIL && (tcp || errno != ECONNREFUSED)))
			die("connect");
		S(close, fd);
		fd = open_socket();
	}
	b = calloc(1, size);
	took = calloc(n, sizeof(*took));
	/* siw overlooks what comes before it has begun to listen to the socket
	 * of a connection that it accepted, and nothing would come after it. */
	if (!tcp)
		usleep(20000);
	work[0] = htobe64(oneway);
	work[1] = htobe64(size);
	work[2] = htobe64(n);
	put(fd, (char *)work, sizeof(work));
	start = now();
	for (uint64_t i = 0; i < n; i++) {
		double begin = now();

		put(fd, b, size);
		if (!oneway)
			take(fd, b, size);
		took[i] = now() - begin;
	}
	if (oneway)
		take(fd, b, 1);
	all = now() - start;
	put(fd, b, 1);
	S(shutdown, fd, SHUT_RDWR);
	S(close, fd);
	qsort(took, n, sizeof(*took), compare);
	printf("bytes %llu\nmicroseconds %.0f\nmedian %.1f\n", (unsigned long long)(size * n), all, took[n / 2]);
	return 0;
}
