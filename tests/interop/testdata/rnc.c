/* A netcat of rsockets: it connects or, with -l, listens, and copies both ways
 * at once, standard input in pieces of SIZE bytes. The end of the input is a
 * shutdown once the peer has ended, whose end is a part of the output's. SLEEP seconds pass before
 * anything is done. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <rdma/rsocket.h>

static void check(int ok, const char *what)
{
	if (ok)
		return;
	perror(what);
	exit(1);
}

int main(int argc, char **argv)
{
	static char in[1 << 20], out[1 << 20];
	struct sockaddr_in addr = { .sin_family = AF_INET };
	int listening = !strcmp(argv[1], "-l"), s, reading = 1, writing = 1, ended = 0;
	size_t size, have = 0, done = 0;

	argv += listening;
	argc -= listening;
	check(argc == 5, "usage: rnc [-l] ADDR PORT SIZE SLEEP");
	addr.sin_addr.s_addr = inet_addr(argv[1]);
	addr.sin_port = htons(atoi(argv[2]));
	size = atoi(argv[3]);
	s = rsocket(AF_INET, SOCK_STREAM, 0);
	check(s >= 0, "rsocket");
	if (listening) {
		int l = s;
		check(!rbind(l, (struct sockaddr *) &addr, sizeof addr), "rbind");
		check(!rlisten(l, 1), "rlisten");
		s = raccept(l, NULL, NULL);
		check(s >= 0, "raccept");
		rclose(l);
	} else {
		check(!rconnect(s, (struct sockaddr *) &addr, sizeof addr), "rconnect");
	}
	check(!rfcntl(s, F_SETFL, O_NONBLOCK), "rfcntl");
	sleep(atoi(argv[4]));

	while (reading || writing || ended) {
		struct pollfd p = { .fd = s, .events = (reading ? POLLIN : 0) | (writing ? POLLOUT : 0) };
		ssize_t n;

		/* An end of the peer's that comes while rshutdown waits for what was
		 * sent to arrive makes it wait no longer, and rclose drops the rest. */
		if (ended && !reading) {
			check(!rshutdown(s, SHUT_WR), "rshutdown");
			break;
		}

		check(rpoll(&p, 1, -1) == 1, "rpoll");
		if (reading && p.revents & ~POLLOUT) {
			n = rrecv(s, in, sizeof in, 0);
			check(n >= 0 || errno == EAGAIN || errno == EWOULDBLOCK, "rrecv");
			if (n == 0)
				reading = 0;
			else if (n > 0)
				check(fwrite(in, 1, n, stdout) == (size_t) n, "fwrite");
		}
		if (writing && p.revents & ~POLLIN) {
			if (done == have) {
				n = read(0, out, size);
				check(n >= 0, "read");
				if (n == 0) {
					writing = 0;
					ended = 1;
					continue;
				}
				have = n;
				done = 0;
			}
			n = rsend(s, out + done, have - done, 0);
			check(n >= 0 || errno == EAGAIN || errno == EWOULDBLOCK, "rsend");
			if (n > 0)
				done += n;
		}
	}
	check(!fflush(stdout), "fflush");
	check(!rclose(s), "rclose");
	return 0;
}
