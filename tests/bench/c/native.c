// Measures what the verbs of the data path cost in user space, with libibverbs;
// native/main.go, its twin, says how.
#include "pair.h"

#define COUNT(a) (int)(sizeof(a) / sizeof((a)[0]))
enum { MOST_ROUNDS = 4096 };

struct series {
	const char *name;
	int batch, n;
	double ticks[MOST_ROUNDS];
};

static struct series recvs[] = { { "post_recv", 1 }, { "post_recv", 16 } };
static struct series sends[] = { { "post_send", 1 }, { "post_send", 16 } };
static struct series polls[] = { { "poll", 1 }, { "poll", 16 } };
static struct series empty[] = { { "poll_empty", 1 } };

static struct conn client, server;
static int sent, received; // completions

static void add(struct series *s, uint64_t start)
{
	s->ticks[s->n++] = (double)(tsc() - start) / WORK;
}

static int drain(struct ibv_cq *cq, struct ibv_wc *wc, int n)
{
	uint64_t deadline = now() + 10000000000;
	int all = 0;

	while (n > 0) {
		int got = ibv_poll_cq(cq, n < MOST ? n : MOST, wc);

		for (int i = 0; i < got; i++)
			if (wc[i].status != IBV_WC_SUCCESS) {
				fprintf(stderr, "%s\n", ibv_wc_status_str(wc[i].status));
				exit(1);
			}
		n -= got;
		all += got;
		if (!got) {
			if (now() > deadline) {
				fprintf(stderr, "%d completions are missing\n", n);
				exit(1);
			}
			usleep(1000);
		}
	}
	return all;
}

static int poll_recvs(struct series *s)
{
	int n = 0;
	uint64_t start = tsc();

	while (n < WORK) {
		int got = ibv_poll_cq(server.recv_cq, s->batch, server.wc);

		n += got;
		if (got < s->batch)
			return n;
	}
	add(s, start);
	return n;
}

static void bench_round(int i)
{
	struct series *r = &recvs[i % COUNT(recvs)], *s = &sends[i % COUNT(sends)], *p = &polls[i / 2 % COUNT(polls)];
	struct ibv_recv_wr *bad_recv;
	struct ibv_send_wr *bad_send;
	uint64_t start;
	int n;

	batch(&server, r->batch);
	start = tsc();
	for (int k = 0; k < WORK; k += r->batch)
		must(ibv_post_recv(server.id->qp, server.recv, &bad_recv), "post recv");
	add(r, start);
	batch(&server, 1);
	must(ibv_post_recv(server.id->qp, server.recv, &bad_recv), "post recv");

	batch(&client, s->batch);
	mute = 1;
	start = tsc();
	for (int k = 0; k < WORK; k += s->batch)
		must(ibv_post_send(client.id->qp, client.send, &bad_send), "post send");
	add(s, start);
	batch(&client, 1);
	must(ibv_post_send(client.id->qp, client.send, &bad_send), "post send");
	unmute();

	sent += drain(client.send_cq, client.wc, WORK + 1);
	usleep(3000);
	n = poll_recvs(p);
	n += drain(server.recv_cq, server.wc, WORK + 1 - n);
	start = tsc();
	for (int k = 0; k < WORK; k++)
		n += ibv_poll_cq(server.recv_cq, 1, server.wc);
	add(empty, start);
	received += n;
	if (n > WORK + 1) {
		fprintf(stderr, "more completions than requests\n");
		exit(1);
	}
}

static int smaller(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void print(struct series *s, int n, double per_tick)
{
	for (; n--; s++) {
		if (!s->n) {
			fprintf(stderr, "no figures of %s\n", s->name);
			exit(1);
		}
		qsort(s->ticks, s->n, sizeof(s->ticks[0]), smaller);
		printf("%s_%d %.3f\n", s->name, s->batch, s->ticks[s->n / 2] * per_tick);
	}
}

int main(int argc, char **argv)
{
	int rounds = argc == 4 ? atoi(argv[3]) : 0;
	uint64_t begin, ticks;
	double per_tick;

	if (rounds < 1 || rounds > MOST_ROUNDS) {
		fprintf(stderr, "usage: native ADDR PORT ROUNDS\n");
		return 1;
	}
	connect_pair(argv[1], argv[2], &client, &server);
	begin = now();
	ticks = tsc();
	for (int i = 0; i < rounds; i++)
		bench_round(i);
	per_tick = (double)(now() - begin) / (tsc() - ticks);
	printf("sends %d\nreceives %d\n", sent, received);
	print(recvs, COUNT(recvs), per_tick);
	print(sends, COUNT(sends), per_tick);
	print(polls, COUNT(polls), per_tick);
	print(empty, COUNT(empty), per_tick);
	measured();
	return 0;
}
