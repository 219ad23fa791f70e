/*
 * Preloaded into udpong, for two defects of librdmacm.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <infiniband/verbs.h>

/*
 * librdmacm makes an address handle to the own port by LID only, which RoCE refuses. This adds the
 * port's first IPv4 address.
 */
struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	static const unsigned char mapped[12] = { [10] = 0xff, [11] = 0xff };
	struct ibv_ah *(*next)(struct ibv_pd *, struct ibv_ah_attr *) = dlvsym(RTLD_NEXT, "ibv_create_ah", "IBVERBS_1.1");
	union ibv_gid gid;

	for (int i = 0; !attr->is_global && !ibv_query_gid(pd->context, attr->port_num, i, &gid); i++) {
		if (memcmp(gid.raw, mapped, sizeof mapped))
			continue;
		attr->is_global = 1;
		attr->grh.dgid = gid;
		attr->grh.sgid_index = i;
		attr->grh.hop_limit = 64;
	}
	return next(pd, attr);
}

static long long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/*
 * Once a timeout of rpoll has passed, librdmacm before 63 counts a thread that polls for ever, and
 * after the next event every rpoll spins until it has an event: the client does not repeat a
 * question that was lost. With a timeout of 0 nothing is counted.
 */
int rpoll(struct pollfd *fds, nfds_t nfds, int timeout)
{
	int (*next)(struct pollfd *, nfds_t, int) = dlsym(RTLD_NEXT, "rpoll");
	long long end = now() + timeout * 1000000LL;
	int ret;

	while (!(ret = next(fds, nfds, 0)) && (timeout < 0 || now() < end))
		usleep(100);
	return ret;
}
