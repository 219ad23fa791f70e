// The least of an RDMA program, with libibverbs and librdmacm, as first/main.go
// has it on packages cm and uverbs. Both take the same arguments and print the
// same.
//
//	first                list the devices
//	first DEVICE         open a device, and say what memory that took
//	first -s ADDR PORT   serve until the standard input ends
//	first ADDR PORT      connect, send a byte and get it back
#include "cm.h"

enum { QUEUE = 4 };

struct conn {
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_mr *mr;
	char bytes[2]; // what is sent, and what comes
};

// prepare gives a connection its queues and memory, and posts a receive.
static void prepare(struct conn *c, struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = QUEUE, .max_recv_wr = QUEUE, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_sge sge = { .addr = (uintptr_t)&c->bytes[1], .length = 1 };
	struct ibv_recv_wr *bad, wr = { .sg_list = &sge, .num_sge = 1 };

	c->id = id;
	c->pd = ibv_alloc_pd(id->verbs);
	if (!c->pd)
		die("alloc pd");
	attr.send_cq = c->send_cq = ibv_create_cq(id->verbs, QUEUE + 1, NULL, NULL, 0);
	attr.recv_cq = c->recv_cq = ibv_create_cq(id->verbs, QUEUE + 1, NULL, NULL, 0);
	if (!c->send_cq || !c->recv_cq)
		die("create cq");
	must(rdma_create_qp(id, c->pd, &attr), "create qp");
	c->mr = ibv_reg_mr(c->pd, c->bytes, sizeof(c->bytes), IBV_ACCESS_LOCAL_WRITE);
	if (!c->mr)
		die("register mr");
	sge.lkey = c->mr->lkey;
	must(ibv_post_recv(id->qp, &wr, &bad), "post recv");
}

static void release(struct conn *c)
{
	rdma_destroy_qp(c->id);
	must(ibv_destroy_cq(c->send_cq), "destroy cq");
	must(ibv_destroy_cq(c->recv_cq), "destroy cq");
	must(ibv_dereg_mr(c->mr), "deregister mr");
	must(ibv_dealloc_pd(c->pd), "dealloc pd");
	must(rdma_destroy_id(c->id), "destroy id");
}

static void succeeded(const struct ibv_wc *wc)
{
	if (wc->status != IBV_WC_SUCCESS) {
		fprintf(stderr, "%s\n", ibv_wc_status_str(wc->status));
		exit(1);
	}
}

static void take(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	while (!ibv_poll_cq(cq, 1, &wc))
		;
	succeeded(&wc);
}

static void put(struct conn *c)
{
	struct ibv_sge sge = { .addr = (uintptr_t)c->bytes, .length = 1, .lkey = c->mr->lkey };
	struct ibv_send_wr *bad, wr = {
		.opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
	};

	must(ibv_post_send(c->id->qp, &wr, &bad), "post send");
	take(c->send_cq);
}

// hear waits for the answer to the first message. siw may overlook that until more
// comes: an empty WRITE, as of package siw, if there is no answer for a millisecond.
static void hear(struct conn *c)
{
	struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_RDMA_WRITE };
	uint64_t sent = now(), pause = 1000000;
	struct ibv_wc wc;

	while (!ibv_poll_cq(c->recv_cq, 1, &wc)) {
		if (c->id->verbs->device->transport_type != IBV_TRANSPORT_IWARP || now() - sent < pause)
			continue;
		must(ibv_post_send(c->id->qp, &wr, &bad), "post write");
		sent = now();
		pause *= 4;
	}
	succeeded(&wc);
}

static void serve(struct addrinfo *at)
{
	struct rdma_event_channel *listening = new_channel();
	struct rdma_conn_param param = conn_param(NULL, 0);

	listen_at(listening, at);
	ready();
	for (;;) {
		struct rdma_cm_id *id = expect(listening, RDMA_CM_EVENT_CONNECT_REQUEST, NULL, 0);
		struct rdma_event_channel *own = new_channel();
		struct conn c;

		must(rdma_migrate_id(id, own), "migrate id");
		prepare(&c, id);
		must(rdma_accept(id, &param), "accept");
		expect(own, RDMA_CM_EVENT_ESTABLISHED, NULL, 0);
		take(c.recv_cq);
		c.bytes[0] = c.bytes[1];
		put(&c);
		expect(own, RDMA_CM_EVENT_DISCONNECTED, NULL, 0);
		release(&c);
		rdma_destroy_event_channel(own);
	}
}

static void ping(struct addrinfo *to)
{
	struct rdma_event_channel *ch = new_channel();
	struct rdma_conn_param param = conn_param(NULL, 0);
	struct conn c;

	for (int tries = 0;; tries++) {
		prepare(&c, resolve(ch, to));
		if (!rdma_connect(c.id, &param))
			break;
		if (tries == 10 || !port_taken())
			die("connect");
		release(&c);
	}
	expect(ch, RDMA_CM_EVENT_ESTABLISHED, NULL, 0);
	c.bytes[0] = '!';
	put(&c);
	hear(&c);
	printf("byte %d\n", c.bytes[1]);
	rdma_disconnect(c.id);
	release(&c);
}

// list prints the names of all devices, or opens the one of that name.
static void list(const char *name)
{
	int n;
	struct ibv_device **devices = ibv_get_device_list(&n);

	if (!devices)
		die("devices");
	for (int i = 0; i < n; i++) {
		if (!name) {
			puts(ibv_get_device_name(devices[i]));
		} else if (!strcmp(name, ibv_get_device_name(devices[i]))) {
			if (!ibv_open_device(devices[i]))
				die("open device");
			printf("kilobytes %ld\n", resident());
		}
	}
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "-s"))
		serve(lookup(argv[2], argv[3]));
	if (argc == 3)
		ping(lookup(argv[1], argv[2]));
	else
		list(argv[1]);
	return 0;
}
