// vgwrdma looks up all of libibverbs by name, and finds three functions missing that verbs.h has
// inline: it would not start. This is linked with --wrap=dlsym.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <string.h>

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc) { return ibv_poll_cq(cq, n, wc); }
static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) { return ibv_post_send(qp, wr, bad); }
static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) { return ibv_post_recv(qp, wr, bad); }

void *__real_dlsym(void *handle, const char *name);

void *__wrap_dlsym(void *handle, const char *name)
{
	if (!strcmp(name, "ibv_poll_cq"))
		return poll_cq;
	if (!strcmp(name, "ibv_post_send"))
		return post_send;
	if (!strcmp(name, "ibv_post_recv"))
		return post_recv;
	return __real_dlsym(handle, name);
}
