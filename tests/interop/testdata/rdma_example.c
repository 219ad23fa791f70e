/* rdma-example in C: a client that writes a string to a server's memory, reads it back and
 * compares, or, with -DSERVER, its server. Both describe their buffers to each other in
 * messages of 16 bytes: address, length and key. */
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rdma/rdma_verbs.h>

struct attr {
	uint64_t addr;
	uint32_t len, key;
};

static void check(int ok, const char *what)
{
	if (ok)
		return;
	perror(what);
	exit(1);
}

static struct rdma_cm_id *resolve(const char *addr, const char *port, int flags)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP }, *res;
	struct ibv_qp_init_attr qp = {
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC, .sq_sig_all = 1,
	};
	struct rdma_cm_id *id;

	check(!rdma_getaddrinfo(addr, port, &hints, &res), "rdma_getaddrinfo");
	check(!rdma_create_ep(&id, res, NULL, &qp), "rdma_create_ep");
	rdma_freeaddrinfo(res);
	return id;
}

static const char *host(struct sockaddr *addr)
{
	return inet_ntoa(((struct sockaddr_in *) addr)->sin_addr);
}

/* await waits for a completion. */
static void await(int (*get)(struct rdma_cm_id *, struct ibv_wc *), struct rdma_cm_id *id)
{
	struct ibv_wc wc;

	check(get(id, &wc) == 1, "completion");
	if (wc.status == IBV_WC_SUCCESS)
		return;
	fprintf(stderr, "%s\n", ibv_wc_status_str(wc.status));
	exit(1);
}

/* post_recv posts a receive for the peer's attributes. */
static struct ibv_mr *post_recv(struct rdma_cm_id *id)
{
	static struct attr inbox;
	struct ibv_mr *mr = rdma_reg_msgs(id, &inbox, sizeof inbox);

	check(mr != NULL, "rdma_reg_msgs");
	check(!rdma_post_recv(id, NULL, &inbox, sizeof inbox, mr), "rdma_post_recv");
	return mr;
}

static struct attr receive(struct rdma_cm_id *id, struct ibv_mr *inbox)
{
	struct attr a;

	await(rdma_get_recv_comp, id);
	a = *(struct attr *) inbox->addr;
	rdma_dereg_mr(inbox);
	return a;
}

/* describe sends the attributes of a buffer. */
static void describe(struct rdma_cm_id *id, struct ibv_mr *buffer)
{
	struct attr a = { (uintptr_t) buffer->addr, buffer->length, buffer->rkey };
	struct ibv_mr *mr = rdma_reg_msgs(id, &a, sizeof a);

	check(mr != NULL, "rdma_reg_msgs");
	check(!rdma_post_send(id, NULL, &a, sizeof a, mr, 0), "rdma_post_send");
	await(rdma_get_send_comp, id);
	rdma_dereg_mr(mr);
}

static void show(struct attr a)
{
	const char *line = "---------------------------------------------------------";

	printf("%s\nbuffer attr, addr: %#llx , len: %u , stag : %#x \n%s\n", line, (unsigned long long) a.addr, a.len, a.key, line);
}

static struct ibv_mr *buffer(struct rdma_cm_id *id, size_t len)
{
	void *mem = calloc(1, len);
	struct ibv_mr *mr;

	check(mem != NULL, "calloc");
	mr = ibv_reg_mr(id->pd, mem, len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	check(mr != NULL, "ibv_reg_mr");
	return mr;
}

static void drop(struct ibv_mr *mr)
{
	void *mem = mr->addr;

	rdma_dereg_mr(mr);
	free(mem);
}

#ifdef SERVER

static void usage(void)
{
	puts("Usage:\nrdma_server: [-a <server_addr>] [-p <server_port>]\n(default port is 20886)");
	exit(1);
}

int main(int argc, char **argv)
{
	const char *addr = "0.0.0.0", *port = "20886";
	struct rdma_cm_id *l, *id;
	struct rdma_cm_event *event;
	struct ibv_mr *inbox, *mr;
	struct attr client;
	int opt;

	setlinebuf(stdout);
	while ((opt = getopt(argc, argv, "a:p:")) != -1) {
		switch (opt) {
		case 'a':
			addr = optarg;
			break;
		case 'p':
			port = optarg;
			break;
		default:
			usage();
		}
	}
	l = resolve(addr, port, RAI_PASSIVE);
	check(!rdma_listen(l, 8), "rdma_listen");
	printf("Server is listening successfully at: %s , port: %d \n", host(rdma_get_local_addr(l)), ntohs(rdma_get_src_port(l)));
	check(!rdma_get_request(l, &id), "rdma_get_request");
	inbox = post_recv(id);
	check(!rdma_accept(id, NULL), "rdma_accept");
	printf("A new connection is accepted from %s \n", host(rdma_get_peer_addr(id)));
	client = receive(id, inbox);
	puts("Client side buffer information is received...");
	show(client);
	printf("The client has requested buffer length of : %u bytes \n", client.len);
	mr = buffer(id, client.len);
	describe(id, mr);
	check(!rdma_get_cm_event(id->channel, &event), "rdma_get_cm_event");
	check(event->event == RDMA_CM_EVENT_DISCONNECTED, rdma_event_str(event->event));
	rdma_ack_cm_event(event);
	puts("A disconnect event is received from the client...");
	drop(mr);
	rdma_destroy_ep(id);
	rdma_destroy_ep(l);
	puts("Server shut-down is complete ");
	return 0;
}

#else

static void usage(void)
{
	puts("Usage:\nrdma_client: [-a <server_addr>] [-p <server_port>] -s string (required)\n(default IP is 127.0.0.1 and port is 20886)");
	exit(1);
}

int main(int argc, char **argv)
{
	const char *addr = "127.0.0.1", *port = "20886", *text = "";
	struct rdma_conn_param param = { .responder_resources = 3, .initiator_depth = 3, .retry_count = 3, .rnr_retry_count = 7 };
	struct rdma_cm_id *id;
	struct ibv_mr *inbox, *src, *dst;
	struct attr server;
	size_t len;
	int opt;

	setlinebuf(stdout);
	while ((opt = getopt(argc, argv, "a:p:s:")) != -1) {
		switch (opt) {
		case 'a':
			addr = optarg;
			break;
		case 'p':
			port = optarg;
			break;
		case 's':
			text = optarg;
			break;
		default:
			usage();
		}
	}
	len = strlen(text);
	if (len == 0) {
		puts("Please provide a string to copy ");
		usage();
	}
	printf("Passed string is : %s , with count %zu \n", text, len);
	id = resolve(addr, port, 0);
	printf("Trying to connect to server at : %s port: %d \n", host(rdma_get_peer_addr(id)), ntohs(rdma_get_dst_port(id)));
	inbox = post_recv(id);
	check(!rdma_connect(id, &param), "rdma_connect");
	puts("The client is connected successfully ");
	/* A siw that accepts answers before it listens to its socket: what comes in between
	 * stays unread. */
	if (id->verbs->device->transport_type == IBV_TRANSPORT_IWARP)
		usleep(100000);

	src = buffer(id, len);
	memcpy(src->addr, text, len);
	describe(id, src);
	server = receive(id, inbox);
	show(server);
	dst = buffer(id, len);
	check(!rdma_post_write(id, NULL, src->addr, len, src, 0, server.addr, server.key), "rdma_post_write");
	await(rdma_get_send_comp, id);
	check(!rdma_post_read(id, NULL, dst->addr, len, dst, 0, server.addr, server.key), "rdma_post_read");
	await(rdma_get_send_comp, id);
	if (memcmp(src->addr, dst->addr, len)) {
		fputs("src and dst buffers do not match\n", stderr);
		return 1;
	}
	puts("...\nSUCCESS, source and destination buffers match ");
	check(!rdma_disconnect(id), "rdma_disconnect");
	drop(src);
	drop(dst);
	rdma_destroy_ep(id);
	puts("Client resource clean up is complete ");
	return 0;
}

#endif
