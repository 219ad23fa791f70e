// What native.c and native/cgo.go share: a connected pair of queue pairs in one
// process, and doorbells that the kernel does not hear.
#include <sys/syscall.h>
#include <x86intrin.h>
#include "cm.h"

enum { WORK = 960, DEPTH = 1024, SIZE = 64, MOST = 16 }; // as in native/main.go

// write takes the place of the C library's, in libibverbs too: both drivers
// ring by it. While mute is set it returns at once; the first call's message is
// kept, with an answer that goes to a place that lasts.
static int mute, held_fd;
static size_t held;
static char held_msg[256];
static uint64_t held_answer;

ssize_t write(int fd, const void *buf, size_t n)
{
	if (mute) {
		if (!held && n <= sizeof(held_msg)) {
			held = n;
			held_fd = fd;
			memcpy(held_msg, buf, n);
		}
		return n;
	}
	return syscall(SYS_write, fd, buf, n);
}

// unmute rings once for all that was posted.
static void unmute(void)
{
	uint64_t answer = (uintptr_t)&held_answer;

	mute = 0;
	if (!held) {
		fprintf(stderr, "no doorbell was held back\n");
		exit(1);
	}
	memcpy(held_msg + 8, &answer, sizeof(answer)); // behind the header
	if (syscall(SYS_write, held_fd, held_msg, held) != (long)held)
		die("doorbell");
	held = 0;
}

static uint64_t tsc(void)
{
	unsigned int cpu;
	uint64_t t = __rdtscp(&cpu);

	_mm_lfence();
	return t;
}

struct conn {
	struct rdma_cm_id *id;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_mr *mr;
	struct ibv_send_wr send[MOST];
	struct ibv_recv_wr recv[MOST];
	struct ibv_sge sge[MOST];
	struct ibv_wc wc[MOST];
};

// prepare gives a connection its queues, memory and requests.
static void prepare(struct conn *e, struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_pd *pd = ibv_alloc_pd(id->verbs);

	e->id = id;
	attr.send_cq = e->send_cq = ibv_create_cq(id->verbs, DEPTH, NULL, NULL, 0);
	attr.recv_cq = e->recv_cq = ibv_create_cq(id->verbs, DEPTH, NULL, NULL, 0);
	if (!pd || !e->send_cq || !e->recv_cq)
		die("pd, cqs");
	must(rdma_create_qp(id, pd, &attr), "create qp");
	e->mr = ibv_reg_mr(pd, calloc(1, SIZE), SIZE, IBV_ACCESS_LOCAL_WRITE);
	if (!e->mr)
		die("register mr");
	for (int i = 0; i < MOST; i++) {
		e->sge[i] = (struct ibv_sge){ .addr = (uintptr_t)e->mr->addr, .length = SIZE, .lkey = e->mr->lkey };
		e->send[i] = (struct ibv_send_wr){
			.wr_id = i, .sg_list = &e->sge[i], .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
		};
		e->recv[i] = (struct ibv_recv_wr){ .wr_id = i, .sg_list = &e->sge[i], .num_sge = 1 };
	}
}

// batch links the first n requests.
static void batch(struct conn *e, int n)
{
	for (int i = 0; i < MOST; i++) {
		e->send[i].next = i + 1 < n ? &e->send[i + 1] : NULL;
		e->recv[i].next = i + 1 < n ? &e->recv[i + 1] : NULL;
	}
}

static void connect_pair(const char *addr, const char *port, struct conn *client, struct conn *server)
{
	struct rdma_conn_param param = conn_param(NULL, 0);
	struct rdma_event_channel *cch = new_channel(), *sch = new_channel();
	struct addrinfo *ai = lookup(addr, port);

	listen_at(sch, ai);
	prepare(client, resolve(cch, ai));
	must(rdma_connect(client->id, &param), "connect");
	prepare(server, expect(sch, RDMA_CM_EVENT_CONNECT_REQUEST, NULL, 0));
	must(rdma_accept(server->id, &param), "accept");
	expect(cch, RDMA_CM_EVENT_ESTABLISHED, NULL, 0);
	expect(sch, RDMA_CM_EVENT_ESTABLISHED, NULL, 0);
}
