/* A client that connects, sends a message and disconnects at once: by
 * rdma_cm, or with -r by rsockets. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>

static char message[] = "hello";

static void check(int ok, const char *what)
{
	if (ok)
		return;
	perror(what);
	exit(1);
}

static void stream(const char *addr, const char *port)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };
	int s = rsocket(AF_INET, SOCK_STREAM, 0);

	to.sin_addr.s_addr = inet_addr(addr);
	check(s >= 0, "rsocket");
	check(!rconnect(s, (struct sockaddr *) &to, sizeof to), "rconnect");
	check(rsend(s, message, sizeof message, 0) == sizeof message, "rsend");
	check(!rclose(s), "rclose");
}

static void connection(char *addr, char *port)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *to;
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = sizeof message },
		.qp_type = IBV_QPT_RC, .sq_sig_all = 1,
	};
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_id *id;
	struct ibv_wc wc;

	check(!rdma_getaddrinfo(addr, port, &hints, &to), "rdma_getaddrinfo");
	check(!rdma_create_ep(&id, to, NULL, &attr), "rdma_create_ep");
	check(!rdma_connect(id, &param), "rdma_connect");
	check(!rdma_post_send(id, NULL, message, sizeof message, NULL, IBV_SEND_INLINE), "rdma_post_send");
	check(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "rdma_get_send_comp");
	check(!rdma_disconnect(id), "rdma_disconnect");
	rdma_destroy_ep(id);
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "-r"))
		stream(argv[2], argv[3]);
	else if (argc == 3)
		connection(argv[1], argv[2]);
	else
		check(0, "usage: short [-r] ADDR PORT");
	return 0;
}
