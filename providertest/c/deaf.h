/*
 * A device without a card, for programs that measure or test a provider of rdma-core.
 *
 * The functions from socket to ioctl stand before those of the C library, in libibverbs and its
 * providers too. They play the kernel, as providertest.Kernel does for Go. The program has what only its
 * device answers: limits, device_ioctl and device_pages.
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* limits are what QUERY_DEVICE answers. */
static const struct ib_uverbs_query_device_resp limits;
/*
 * device_ioctl does what the kernel does for an ioctl, and returns its error, or OTHERS if the kernel does
 * the same for all devices. The context is the number of the open device.
 */
enum { OTHERS = -1 };
static int device_ioctl(int context, struct ib_uverbs_ioctl_hdr *h);
/* device_pages maps registers. */
static void *device_pages(int context, size_t size, off_t off);

/* real has all calls go to the kernel, for a program that can also have a device of its own. */
static int real;
/* watch, if it is not NULL, is called after each ioctl that has succeeded, also of the kernel. */
static void (*watch)(struct ib_uverbs_ioctl_hdr *h);

static const char node[] = "/dev/infiniband/uverbs0";
static int devices[16], opened;

static int context_of(int fd)
{
	for (int i = 0; i < opened; i++)
		if (devices[i] == fd)
			return i;
	return -1;
}

/* libibverbs looks for devices in sysfs if there is no netlink. */
int socket(int domain, int type, int protocol)
{
	if (domain != AF_NETLINK || real)
		return syscall(SYS_socket, domain, type, protocol);
	errno = EPROTONOSUPPORT;
	return -1;
}

int stat(const char *path, struct stat *st)
{
	return syscall(SYS_newfstatat, AT_FDCWD, strcmp(path, node) || real ? path : "/dev/null", st, 0);
}

int open(const char *path, int flags, ...)
{
	va_list ap;

	va_start(ap, flags);
	int mode = va_arg(ap, int);
	va_end(ap);
	if (strcmp(path, node) || real)
		return syscall(SYS_openat, AT_FDCWD, path, flags, mode);
	return devices[opened++] = syscall(SYS_openat, AT_FDCWD, "/dev/null", flags);
}

void *mmap(void *addr, size_t size, int prot, int flags, int fd, off_t off)
{
	int context = fd < 0 ? -1 : context_of(fd);

	if (context >= 0)
		return device_pages(context, size, off);
	return (void *)syscall(SYS_mmap, addr, size, prot, flags, fd, off);
}

static struct ib_uverbs_attr *attr(struct ib_uverbs_ioctl_hdr *h, int id)
{
	for (int i = 0; i < h->num_attrs; i++)
		if (h->attrs[i].attr_id == id)
			return &h->attrs[i];
	return NULL;
}

static void answer(struct ib_uverbs_ioctl_hdr *h, int id, const void *v, size_t size)
{
	struct ib_uverbs_attr *a = attr(h, id);

	if (!a)
		return;
	memset((void *)(uintptr_t)a->data, 0, a->len);
	memcpy((void *)(uintptr_t)a->data, v, size < a->len ? size : a->len);
	a->flags |= UVERBS_ATTR_F_VALID_OUTPUT;
}
#define ANSWER(h, id, ...) answer(h, id, &(__VA_ARGS__), sizeof(__VA_ARGS__))

/* common_ioctl does what the kernel does for all devices. */
static int common_ioctl(struct ib_uverbs_ioctl_hdr *h)
{
	static uint32_t pds;

	switch (h->object_id << 16 | h->method_id) {
	case UVERBS_OBJECT_ASYNC_EVENT << 16 | UVERBS_METHOD_ASYNC_EVENT_ALLOC:
		attr(h, UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE)->data = syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR);
		return 0;
	case UVERBS_OBJECT_QP << 16 | UVERBS_METHOD_QP_DESTROY:
		ANSWER(h, UVERBS_ATTR_DESTROY_QP_RESP, (struct ib_uverbs_destroy_qp_resp){ 0 });
		return 0;
	case UVERBS_OBJECT_CQ << 16 | UVERBS_METHOD_CQ_DESTROY:
		ANSWER(h, UVERBS_ATTR_DESTROY_CQ_RESP, (struct ib_uverbs_destroy_cq_resp){ 0 });
		return 0;
	case UVERBS_OBJECT_DEVICE << 16 | UVERBS_METHOD_INVOKE_WRITE:
		switch (attr(h, UVERBS_ATTR_WRITE_CMD)->data) {
		case IB_USER_VERBS_EX_CMD_QUERY_DEVICE | IB_USER_VERBS_CMD_FLAG_EXTENDED:
			ANSWER(h, UVERBS_ATTR_CORE_OUT, (struct ib_uverbs_ex_query_device_resp){
				.base = limits, .response_length = sizeof(struct ib_uverbs_ex_query_device_resp),
			});
			return 0;
		case IB_USER_VERBS_CMD_ALLOC_PD:
			ANSWER(h, UVERBS_ATTR_CORE_OUT, (struct ib_uverbs_alloc_pd_resp){ ++pds });
			return 0;
		case IB_USER_VERBS_CMD_MODIFY_QP:
			return 0;
		}
	}
	return EOPNOTSUPP;
}

int ioctl(int fd, unsigned long number, ...)
{
	va_list ap;

	va_start(ap, number);
	struct ib_uverbs_ioctl_hdr *h = va_arg(ap, void *);
	va_end(ap);
	int context = context_of(fd);
	if (context < 0) {
		int ret = syscall(SYS_ioctl, fd, number, h);

		if (ret >= 0 && number == RDMA_VERBS_IOCTL && watch)
			watch(h);
		return ret;
	}
	if (h->object_id == UVERBS_OBJECT_DEVICE && h->method_id == UVERBS_METHOD_GET_CONTEXT) {
		ANSWER(h, UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, (uint32_t){ 1 });
		ANSWER(h, UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, (uint64_t){ 0 });
	}
	errno = device_ioctl(context, h);
	if (errno == OTHERS)
		errno = common_ioctl(h);
	if (errno)
		return -1;
	if (watch)
		watch(h);
	return 0;
}

/* made_cq answers CQ_CREATE. */
static inline int made_cq(struct ib_uverbs_ioctl_hdr *h, uint32_t handle, uint32_t cqe)
{
	attr(h, UVERBS_ATTR_CREATE_CQ_HANDLE)->data = handle;
	ANSWER(h, UVERBS_ATTR_CREATE_CQ_RESP_CQE, (uint32_t){ cqe });
	return 0;
}

/* made_qp answers QP_CREATE: the sizes are as asked. */
static inline int made_qp(struct ib_uverbs_ioctl_hdr *h, uint32_t handle, uint32_t number)
{
	attr(h, UVERBS_ATTR_CREATE_QP_HANDLE)->data = handle;
	memmove((void *)(uintptr_t)attr(h, UVERBS_ATTR_CREATE_QP_RESP_CAP)->data,
		(void *)(uintptr_t)attr(h, UVERBS_ATTR_CREATE_QP_CAP)->data, sizeof(struct ib_uverbs_qp_cap));
	ANSWER(h, UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, (uint32_t){ number });
	return 0;
}

/* describe writes a file of the sysfs in which libibverbs looks. */
static void describe(const char *root, const char *name, const char *text)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", root, name);
	for (char *s = path + strlen(root) + 1; (s = strchr(s, '/')); *s++ = '/') {
		*s = 0;
		if (mkdir(path, 0700) && errno != EEXIST) {
			perror(path);
			exit(1);
		}
	}
	FILE *f = fopen(path, "w");
	if (!f || fputs(text, f) < 0 || fclose(f)) {
		perror(path);
		exit(1);
	}
}

/* private_part is the driver's part of a request. */
static inline void *private_part(struct ib_uverbs_ioctl_hdr *h) { return (void *)(uintptr_t)attr(h, UVERBS_ATTR_UHW_IN)->data; }

/* open_device opens a device of a name and a PCI alias n times. */
static void open_device(const char *name, const char *alias, struct ibv_context **contexts, int n)
{
	char root[] = "/tmp/sysfs-XXXXXX", path[128];
	struct ibv_device **list;

	if (!mkdtemp(root)) {
		perror(root);
		exit(1);
	}
	snprintf(path, sizeof(path), "%s\n", name);
	describe(root, "class/infiniband_verbs/abi_version", "6\n");
	describe(root, "class/infiniband_verbs/uverbs0/ibdev", path);
	describe(root, "class/infiniband_verbs/uverbs0/abi_version", "1\n");
	describe(root, "class/infiniband_verbs/uverbs0/dev", "1:3\n"); /* of /dev/null */
	snprintf(path, sizeof(path), "class/infiniband/%s/node_type", name);
	describe(root, path, "1: CA\n");
	snprintf(path, sizeof(path), "class/infiniband/%s/device/modalias", name);
	describe(root, path, alias);
	setenv("SYSFS_PATH", root, 1);
	list = ibv_get_device_list(NULL);
	for (int i = 0; i < n; i++)
		if (!list || !list[0] || !(contexts[i] = ibv_open_device(list[0]))) {
			perror(name);
			exit(1);
		}
	snprintf(path, sizeof(path), "rm -r %s", root);
	if (system(path)) {
		perror(path);
		exit(1);
	}
}
