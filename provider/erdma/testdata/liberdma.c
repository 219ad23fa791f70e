/*
 * Posts requests and polls completions with liberdma, as TestQueuesAgainstC orders.
 *
 *	liberdma <orders >answers		memory to share is file 3
 *
 * There is neither a kernel nor an adapter: see deaf.h. As soon as liberdma has made a queue, its
 * pages are replaced by pages of file 3, and so are doorbell records and registers from the start. So
 * the test sees what liberdma writes, and writes completions.
 */
#define _GNU_SOURCE
#include "deaf.h"
#include "orders.h"
#include <malloc.h>
#include <rdma/erdma-abi.h>

enum { REGISTERS = 3 << 20, RECORDS = 4 << 20, PAGES = 8 << 20, CONTEXTS = 5, MOST = 4, LIST = 64, SGES = 32 };

static const char program[] = "liberdma";
static const struct ib_uverbs_query_device_resp limits = { .max_qp_wr = 1 << 13, .max_sge = 1, .max_cqe = 1 << 20, .phys_port_cnt = 1 };

/* Kinds of the contexts' registers. The test knows them too. */
static const struct { unsigned type, offset; } kinds[CONTEXTS] = { { 0, 0 }, { 1, 0 }, { 1, 7 }, { 1, 15 }, { 2, 3 } };

static void *device_pages(int context, size_t size, off_t off)
{
	return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, 3, REGISTERS + context * 3 * PAGE + off);
}

/* Queues that are made, by their handle: the memory, and its place in the file. */
static struct { char *addr; size_t size, place, record; } made[1 << 10];
static unsigned handles;
static size_t next;
static uint32_t number; /* of the next CQ or QP */

/* Pages of doorbell records, which stay until the program ends: liberdma gives none back, see
 * docs/upstream/liberdma-records.md. */
static char *records[(PAGES - RECORDS) / PAGE];

/* replace replaces the pages of memory by those at a place of the file, with the same contents or none. */
static void replace(char *addr, size_t size, size_t place, int keep)
{
	if (place + size > SIZE)
		die("too many queues");
	if (keep)
		memcpy(mem + place, addr, size);
	else
		memset(mem + place, 0, size);
	if (mmap(addr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, 3, place) == MAP_FAILED)
		die("mmap");
}

static size_t place_of_record(uint64_t addr)
{
	char *page = (char *)(uintptr_t)(addr & ~(uint64_t)(PAGE - 1));
	int i;

	for (i = 0; records[i] && records[i] != page; i++)
		if (i + 1 == sizeof records / sizeof *records)
			die("too many pages of doorbell records");
	if (!records[i]) {
		records[i] = page;
		replace(page, PAGE, RECORDS + i * PAGE, 1);
	}
	return RECORDS + i * PAGE + (addr & (PAGE - 1));
}

static unsigned share(uint64_t addr, size_t size, uint64_t record)
{
	if (addr & (PAGE - 1) || size & (PAGE - 1) || ++handles == sizeof made / sizeof *made)
		die("share");
	made[handles].addr = (char *)(uintptr_t)addr;
	made[handles].size = size;
	made[handles].place = next;
	made[handles].record = place_of_record(record);
	replace(made[handles].addr, size, next, 0);
	next += size;
	return handles;
}

/* give_back makes the pages ordinary ones again, before they are freed. */
static void give_back(unsigned handle)
{
	if (mmap(made[handle].addr, made[handle].size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
		die("mmap");
}

static unsigned power(unsigned n)
{
	unsigned p = 1;

	while (p < n)
		p *= 2;
	return p;
}

static int device_ioctl(int context, struct ib_uverbs_ioctl_hdr *h)
{
	switch (h->object_id << 16 | h->method_id) {
	case UVERBS_OBJECT_DEVICE << 16 | UVERBS_METHOD_GET_CONTEXT:
		ANSWER(h, UVERBS_ATTR_UHW_OUT, (struct erdma_uresp_alloc_ctx){
			.sdb_type = kinds[context].type, .sdb_offset = kinds[context].offset, .sdb = 0, .rdb = PAGE, .cdb = 2 * PAGE,
		});
		return 0;
	case UVERBS_OBJECT_CQ << 16 | UVERBS_METHOD_CQ_CREATE: {
		struct erdma_ureq_create_cq *req = private_part(h);
		uint32_t cqe = power(attr(h, UVERBS_ATTR_CREATE_CQ_CQE)->data);

		ANSWER(h, UVERBS_ATTR_UHW_OUT, (struct erdma_uresp_create_cq){ .cq_id = number, .num_cqe = cqe });
		return made_cq(h, share(req->qbuf_va, req->qbuf_len, req->db_record_va), cqe);
	}
	case UVERBS_OBJECT_QP << 16 | UVERBS_METHOD_QP_CREATE: {
		struct erdma_ureq_create_qp *req = private_part(h);
		struct ib_uverbs_qp_cap *cap = (void *)(uintptr_t)attr(h, UVERBS_ATTR_CREATE_QP_CAP)->data;
		uint32_t units = power(4 * cap->max_send_wr);

		ANSWER(h, UVERBS_ATTR_UHW_OUT, (struct erdma_uresp_create_qp){
			.qp_id = number, .num_sqe = units, .num_rqe = power(cap->max_recv_wr), .rq_offset = (units * 32 + PAGE - 1) & ~(PAGE - 1),
		});
		return made_qp(h, share(req->qbuf_va, req->qbuf_len, req->db_record_va), number);
	}
	case UVERBS_OBJECT_QP << 16 | UVERBS_METHOD_QP_DESTROY:
		give_back(attr(h, UVERBS_ATTR_DESTROY_QP_HANDLE)->data);
		break;
	case UVERBS_OBJECT_CQ << 16 | UVERBS_METHOD_CQ_DESTROY:
		give_back(attr(h, UVERBS_ATTR_DESTROY_CQ_HANDLE)->data);
		break;
	}
	return OTHERS;
}

static struct ibv_context *contexts[CONTEXTS];
static struct ibv_pd *pds[CONTEXTS];
static struct ibv_comp_channel channels[CONTEXTS];
static int events[2]; /* a pipe in place of the channel's file */
static struct ibv_cq *cqs[2];
static struct ibv_qp *qps[MOST];

static void create(void)
{
	int context = get(), n = get();
	struct ibv_qp_init_attr want = { .qp_type = IBV_QPT_RC, .sq_sig_all = get() };

	handles = 0;
	next = PAGES;
	for (int i = 0; i < 2; i++) {
		int depth = get();

		number = get();
		cqs[i] = cqs[0];
		if (depth && !(cqs[i] = ibv_create_cq(contexts[context], depth, NULL, &channels[context], 0)))
			die("ibv_create_cq");
		put(made[handles].place);
		put(made[handles].size);
		put(cqs[i]->cqe);
		put(made[handles].record);
	}
	want.cap.max_send_wr = get();
	want.cap.max_send_sge = get();
	want.cap.max_inline_data = get();
	want.cap.max_recv_wr = get();
	want.cap.max_recv_sge = get();
	want.send_cq = cqs[0];
	want.recv_cq = cqs[1];
	for (int i = 0; i < n; i++) {
		struct ibv_qp_init_attr a = want;

		number = get();
		if (!(qps[i] = ibv_create_qp(pds[context], &a)))
			die("ibv_create_qp");
		put(made[handles].place);
		put(made[handles].size);
		put(made[handles].record);
	}
	memset(mem + REGISTERS, 0, CONTEXTS * 3 * PAGE);
}

static void destroy(void)
{
	for (int i = 0; i < MOST; i++)
		if (qps[i] && (errno = ibv_destroy_qp(qps[i])))
			die("ibv_destroy_qp");
	if (cqs[1] != cqs[0] && (errno = ibv_destroy_cq(cqs[1])))
		die("ibv_destroy_cq");
	if ((errno = ibv_destroy_cq(cqs[0])))
		die("ibv_destroy_cq");
	memset(qps, 0, sizeof qps);
}

static void poll_cq(void)
{
	static struct ibv_wc wcs[LIST];
	struct ibv_cq *cq = cqs[get()];

	memset(wcs, 0, sizeof wcs);
	int n = ibv_poll_cq(cq, get(), wcs);
	put(n);
	for (int i = 0; i < n; i++) {
		struct ibv_wc *w = &wcs[i];
		put(w->wr_id);
		put(w->status);
		put(w->opcode);
		put(w->vendor_err);
		put(w->byte_len);
		put(w->invalidated_rkey);
		put(w->qp_num);
		put(w->wc_flags);
	}
}

static void arm(void)
{
	struct ibv_cq *cq = cqs[get()];

	put(ibv_req_notify_cq(cq, get()));
}

/* event has liberdma count an event of a CQ. */
static void event(void)
{
	struct ibv_cq *cq = cqs[get()];
	uint64_t handle = (uintptr_t)cq;
	void *context;

	if (write(events[1], &handle, sizeof handle) != sizeof handle || ibv_get_cq_event(cq->channel, &cq, &context))
		die("ibv_get_cq_event");
}

static struct ibv_sge sges[LIST][SGES];

static int get_list(int i, int inline_)
{
	int n = get();

	memset(sges[i], 0, sizeof *sges[i]); /* liberdma reads it even if there is none */
	for (int k = 0; k < n; k++) {
		sges[i][k].addr = get() + (inline_ ? (uintptr_t)mem : 0);
		sges[i][k].length = get();
		sges[i][k].lkey = get();
	}
	return n;
}

static void post_recv(void)
{
	static struct ibv_recv_wr wrs[LIST];
	struct ibv_recv_wr *bad = NULL;
	int qp = get(), n = get();

	for (int i = 0; i < n; i++) {
		wrs[i].wr_id = get();
		wrs[i].num_sge = get_list(i, 0);
		wrs[i].sg_list = sges[i];
		wrs[i].next = i + 1 < n ? &wrs[i + 1] : NULL;
	}
	put(ibv_post_recv(qps[qp], wrs, &bad) ? bad - wrs : n);
}

static void post_send(void)
{
	static struct ibv_send_wr wrs[LIST];
	struct ibv_send_wr *bad = NULL;
	int qp = get(), n = get();

	memset(wrs, 0, sizeof wrs);
	for (int i = 0; i < n; i++) {
		struct ibv_send_wr *w = &wrs[i];
		w->wr_id = get();
		w->opcode = get();
		w->send_flags = get();
		uint32_t imm = get(), rkey = get();
		uint64_t remote = get(), add = get(), swap = get();
		switch (w->opcode) {
		case IBV_WR_ATOMIC_CMP_AND_SWP:
		case IBV_WR_ATOMIC_FETCH_AND_ADD:
			w->wr.atomic.remote_addr = remote;
			w->wr.atomic.rkey = rkey;
			w->wr.atomic.compare_add = add;
			w->wr.atomic.swap = swap;
			break;
		case IBV_WR_SEND_WITH_INV:
			w->invalidate_rkey = rkey;
			break;
		default:
			w->wr.rdma.remote_addr = remote;
			w->wr.rdma.rkey = rkey;
		}
		if (w->opcode == IBV_WR_SEND_WITH_IMM || w->opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
			w->imm_data = htobe32(imm);
		w->num_sge = get_list(i, w->send_flags & IBV_SEND_INLINE);
		w->sg_list = sges[i];
		w->next = i + 1 < n ? w + 1 : NULL;
	}
	put(ibv_post_send(qps[qp], wrs, &bad) ? bad - wrs : n);
}

/* probe tells whether liberdma has a SEND that invalidates. */
static void probe(void)
{
	struct ibv_cq *cq = ibv_create_cq(contexts[0], 1, NULL, NULL, 0);
	struct ibv_qp_init_attr a = { .qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq, .cap = { 1, 1, 1, 1 } };
	struct ibv_send_wr w = { .opcode = IBV_WR_SEND_WITH_INV }, *bad;
	struct ibv_qp *qp;

	number = 1;
	next = PAGES;
	if (!cq || !(qp = ibv_create_qp(pds[0], &a)))
		die("probe");
	put(!ibv_post_send(qp, &w, &bad));
	if (ibv_destroy_qp(qp) || ibv_destroy_cq(cq))
		die("probe");
}

int main(void)
{
	static void (*const orders[])(void) = { NULL, create, destroy, poll_cq, arm, event, post_recv, post_send, probe };

	mallopt(M_TRIM_THRESHOLD, 1 << 30);
	share_memory();
	if (pipe(events))
		die("pipe");
	open_device("erdma_0", "pci:v00001DEDd0000107Fsv00001DEDsd00000000bc02sc00i00\n", contexts, CONTEXTS);
	for (int i = 0; i < CONTEXTS; i++) {
		channels[i] = (struct ibv_comp_channel){ .context = contexts[i], .fd = events[0] };
		if (!(pds[i] = ibv_alloc_pd(contexts[i])))
			die("ibv_alloc_pd");
	}
	obey(orders);
	return 0;
}
