/*
 * Posts requests and polls completions with libmlx5, as TestQueuesAgainstC orders.
 *
 *	libmlx5 DEVICE <orders >answers		memory to share is file 3
 *	libmlx5 deaf-ib|deaf-roce ...		without a kernel and an adapter: see deaf.h
 *
 * All that libmlx5 and the adapter share, queues, doorbell records and registers, is replaced by
 * pages of file 3 as soon as it has been made. So the test sees what libmlx5 writes, and writes
 * completions; and the adapter, which has the pages of before, never hears of any request.
 */
#define _GNU_SOURCE
#include "deaf_mlx5.h"
#include "orders.h"
#include <malloc.h>

enum {
	KEPT = 3 << 20, PAGES = 4 << 20,
	MOST = 4,	/* QPs */
	AHS = 32,
	LIST = 64,	/* requests in a list */
	DCI = 256,	/* a type of QP, as package verbs has it */
	SGES = 32,
};

static const char program[] = "libmlx5";

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_port_attr port;
static struct ibv_cq *cqs[2];
static struct ibv_srq *srq;
static struct ibv_qp *qps[MOST];
static struct ibv_ah *ahs[AHS];
static int type, gid; /* of a DCI IBV_QPT_DRIVER */
static uint64_t dcKey;

/* The driver's parts of the last command that has some. */
static char request[256], driverAnswer[256];
static size_t requestSize;

static void keep(struct ib_uverbs_ioctl_hdr *h)
{
	/* Objects of the driver have attributes of the same numbers. */
	if (h->method_id != 0 || h->object_id >= 1 << UVERBS_ID_NS_SHIFT)
		return;
	for (int i = 0; i < h->num_attrs; i++) {
		struct ib_uverbs_attr *a = &h->attrs[i];
		size_t size = a->len < sizeof request ? a->len : sizeof request;
		if (a->attr_id == UVERBS_ATTR_UHW_IN) {
			requestSize = size;
			memcpy(request, size > 8 ? (void *)(uintptr_t)a->data : &a->data, size);
		} else if (a->attr_id == UVERBS_ATTR_UHW_OUT)
			memcpy(driverAnswer, (void *)(uintptr_t)a->data, size);
	}
}

static int device_ioctl(int context, struct ib_uverbs_ioctl_hdr *h) { return mlx5_ioctl(h); }

/* device_pages maps registers, which are shared later. */
static void *device_pages(int context, size_t size, off_t off)
{
	return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void putBytes(const void *p, size_t size)
{
	put(size);
	memcpy(out, p, size);
	out += (size + 7) / 8;
}

/* replaced has the pages that are replaced, until restore. Those of registers stay so. */
static struct { char *addr; size_t off; int kept; } replaced[1 << 14];
static int count;
static size_t nextPage = PAGES, nextKept = KEPT;

/* share replaces the pages of memory, and returns its place in the file. */
static uint64_t share(void *p, size_t size, int kept)
{
	uintptr_t first = (uintptr_t)p & ~(uintptr_t)(PAGE - 1), end = (uintptr_t)p + size;
	for (int i = 0; i < count; i++)
		if (replaced[i].addr == (char *)first)
			return replaced[i].off + ((uintptr_t)p - first);
	size_t length = (end - first + PAGE - 1) & ~(size_t)(PAGE - 1);
	size_t *next = kept ? &nextKept : &nextPage, off = *next;
	*next += length;
	if (*next > (kept ? PAGES : SIZE) || count + length / PAGE > sizeof replaced / sizeof *replaced) {
		errno = ENOMEM;
		die("share");
	}
	if (!kept)
		memcpy(mem + off, (void *)first, length);
	if (mmap((void *)first, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, 3, off) == MAP_FAILED)
		die("mmap");
	for (size_t i = 0; i < length; i += PAGE) {
		replaced[count].addr = (char *)first + i;
		replaced[count].off = off + i;
		replaced[count++].kept = kept;
	}
	return off + ((uintptr_t)p - first);
}

/* restore makes pages between two addresses ordinary ones again, before they are freed. */
static void restore(void *from, void *to)
{
	static char copy[PAGE];
	int n = 0;
	for (int i = 0; i < count; i++) {
		if (replaced[i].kept || replaced[i].addr < (char *)from || replaced[i].addr >= (char *)to) {
			replaced[n++] = replaced[i];
			continue;
		}
		memcpy(copy, replaced[i].addr, PAGE);
		if (mmap(replaced[i].addr, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
			die("mmap");
		memcpy(replaced[i].addr, copy, PAGE);
	}
	count = n;
}

static char *rings[2];
static size_t ringSizes[2];
static struct mlx5_ib_create_cq cqRequests[2];
static uint32_t cqNumbers[2];
static void *cqRegister;

/*
 * findCQRegister finds the page of registers of CQs. mlx5dv_init_obj makes libmlx5 leave the CQ to the
 * program, which then would not remove the completions of a QP: so it is one of its own.
 */
static void findCQRegister(void)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);
	struct mlx5dv_cq v = {};
	struct mlx5dv_obj o = { .cq = { cq, &v } };
	if (!cq || mlx5dv_init_obj(&o, MLX5DV_OBJ_CQ))
		die("mlx5dv_init_obj");
	cqRegister = v.cq_uar;
	if ((errno = ibv_destroy_cq(cq)))
		die("ibv_destroy_cq");
}

static void putCQ(int i)
{
	ringSizes[i] = (size_t)(cqs[i]->cqe + 1) * cqRequests[i].cqe_size;
	put(cqNumbers[i]);
	put(cqs[i]->cqe + 1);
	put(cqRequests[i].cqe_size);
	put(share(rings[i], ringSizes[i], 0));
	put(share((void *)cqRequests[i].db_addr, 8, 0));
	put(share(cqRegister, PAGE, 1));
}

/* startDCI moves a DCI to RTS. */
static void startDCI(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	if ((errno = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT)))
		die("INIT");
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024 };
	if ((errno = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PATH_MTU)))
		die("RTR");
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .max_rd_atomic = 1, .timeout = 14 };
	if ((errno = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT)))
		die("RTS");
}

/* start moves a QP to RTS. It is connected to itself. */
static void start(struct ibv_qp *qp)
{
	if (type == IBV_QPT_DRIVER) {
		startDCI(qp);
		return;
	}
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | (type == IBV_QPT_RC ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC : 0),
	};
	int base = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	if ((errno = ibv_modify_qp(qp, &a, base | (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS))))
		die("INIT");
	a = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num, .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = { .port_num = 1, .dlid = port.lid },
	};
	if (port.link_layer == IBV_LINK_LAYER_ETHERNET) {
		a.ah_attr.is_global = 1;
		a.ah_attr.grh.hop_limit = 1;
		a.ah_attr.grh.sgid_index = gid;
		if (ibv_query_gid(ctx, 1, gid, &a.ah_attr.grh.dgid))
			die("ibv_query_gid");
	}
	int mask = IBV_QP_STATE;
	if (type != IBV_QPT_UD)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (type == IBV_QPT_RC)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	if ((errno = ibv_modify_qp(qp, &a, mask)))
		die("RTR");
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .max_rd_atomic = 1, .timeout = 14 };
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (type == IBV_QPT_RC)
		mask |= IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT;
	if ((errno = ibv_modify_qp(qp, &a, mask)))
		die("RTS");
}

/* createDCI makes a DCI with all operations that there are. */
static struct ibv_qp *createDCI(struct ibv_qp_init_attr *a)
{
	struct ibv_qp_init_attr_ex x = {
		.qp_type = IBV_QPT_DRIVER, .sq_sig_all = a->sq_sig_all, .send_cq = a->send_cq, .recv_cq = a->recv_cq, .cap = a->cap, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
			IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
			IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW,
	};
	struct mlx5dv_qp_init_attr dv = { .comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC, .dc_init_attr = { .dc_type = MLX5DV_DCTYPE_DCI } };
	struct ibv_qp *qp = mlx5dv_create_qp(ctx, &x, &dv);
	a->cap = x.cap;
	return qp;
}

static void create(void)
{
	int nqp = get(), all, cqeSize, nsrq, sges;
	type = get();
	if (type == DCI)
		type = IBV_QPT_DRIVER;
	all = get();
	cqeSize = get();
	setenv("MLX5_CQE_SIZE", cqeSize == 128 ? "128" : "64", 1);
	for (int i = 0; i < 2; i++) {
		int depth = get();
		if (!depth) {
			cqs[i] = cqs[0];
			continue;
		}
		if (!(cqs[i] = ibv_create_cq(ctx, depth, NULL, NULL, 0)))
			die("ibv_create_cq");
		cqRequests[i] = *(struct mlx5_ib_create_cq *)request;
		cqNumbers[i] = ((struct mlx5_ib_create_cq_resp *)driverAnswer)->cqn;
		rings[i] = (char *)cqRequests[i].buf_addr;
	}
	/* The adapter knows the doorbell records as they are now: when a CQ is resized, that has to be 0. */
	for (int i = 0; i < 2; i++)
		if (i == 0 || cqs[1] != cqs[0]) {
			putCQ(i);
			putBytes(&cqRequests[i], sizeof cqRequests[i]);
		}
	nsrq = get();
	sges = get();
	if (nsrq) {
		struct ibv_srq_init_attr a = { .attr = { .max_wr = nsrq, .max_sge = sges } };
		if (!(srq = ibv_create_srq(pd, &a)))
			die("ibv_create_srq");
		struct mlx5dv_srq v = { .comp_mask = MLX5DV_SRQ_MASK_SRQN };
		struct mlx5dv_obj o = { .srq = { srq, &v } };
		if (mlx5dv_init_obj(&o, MLX5DV_OBJ_SRQ))
			die("mlx5dv_init_obj");
		/* libmlx5 makes twice as many as requested, to let those rest that a page fault has returned. */
		size_t length = 1;
		while (length < 2 * nsrq + 1)
			length *= 2;
		put(v.srqn);
		put(length);
		put(v.stride);
		put(a.attr.max_wr);
		put(v.head);
		put(share(v.buf, length * v.stride, 0));
		put(share(v.dbrec, 8, 0));
		putBytes(request, requestSize);
	}
	struct ibv_qp_init_attr want = { .qp_type = type, .sq_sig_all = all, .send_cq = cqs[0], .recv_cq = cqs[1], .srq = srq };
	want.cap.max_send_wr = get();
	want.cap.max_send_sge = get();
	want.cap.max_inline_data = get();
	want.cap.max_recv_wr = get();
	want.cap.max_recv_sge = get();
	dcKey = get();
	if (srq)
		want.cap.max_recv_wr = want.cap.max_recv_sge = 0;
	for (int i = 0; i < nqp; i++) {
		struct ibv_qp_init_attr a = want;
		if (!(qps[i] = type == IBV_QPT_DRIVER ? createDCI(&a) : ibv_create_qp(pd, &a))) {
			fprintf(stderr, "QP type %d, sends %d, %d SGEs, inline %d, receives %d, %d SGEs, srq %d\n", type,
				want.cap.max_send_wr, want.cap.max_send_sge, want.cap.max_inline_data,
				want.cap.max_recv_wr, want.cap.max_recv_sge, nsrq);
			die("ibv_create_qp");
		}
		struct mlx5dv_qp v = {};
		struct mlx5dv_obj o = { .qp = { qps[i], &v } };
		if (mlx5dv_init_obj(&o, MLX5DV_OBJ_QP))
			die("mlx5dv_init_obj");
		put(qps[i]->qp_num);
		put(a.cap.max_send_wr);
		put(v.sq.wqe_cnt);
		put(v.rq.wqe_cnt);
		put(v.rq.stride);
		char *buf = v.rq.wqe_cnt ? v.rq.buf : v.sq.buf; /* receives come first */
		put(share(buf, (char *)v.sq.buf - buf + (size_t)v.sq.wqe_cnt * 64, 0));
		put((char *)v.sq.buf - buf);
		put(share(v.dbrec, 8, 0));
		put((share((void *)((uintptr_t)v.bf.reg & ~(uintptr_t)(PAGE - 1)), PAGE, 1)) + ((uintptr_t)v.bf.reg & (PAGE - 1)));
		put(v.bf.size);
		putBytes(request, requestSize);
		start(qps[i]);
	}
}

static void destroy(void)
{
	restore(NULL, (void *)-1);
	nextPage = PAGES;
	for (int i = 0; i < AHS; i++)
		if (ahs[i] && (errno = ibv_destroy_ah(ahs[i])))
			die("ibv_destroy_ah");
	for (int i = 0; i < MOST; i++)
		if (qps[i] && (errno = ibv_destroy_qp(qps[i])))
			die("ibv_destroy_qp");
	if (srq && (errno = ibv_destroy_srq(srq)))
		die("ibv_destroy_srq");
	if (cqs[1] != cqs[0] && (errno = ibv_destroy_cq(cqs[1])))
		die("ibv_destroy_cq");
	if ((errno = ibv_destroy_cq(cqs[0])))
		die("ibv_destroy_cq");
	memset(ahs, 0, sizeof ahs);
	memset(qps, 0, sizeof qps);
	srq = NULL;
}

/* gids tells the port's GIDs, for destinations that the kernel can resolve. */
static void gids(void)
{
	struct ibv_gid_entry e;
	put(port.link_layer == IBV_LINK_LAYER_ETHERNET);
	for (int i = 0; i < port.gid_tbl_len; i++) {
		if (ibv_query_gid_ex(ctx, 1, i, &e, 0))
			continue;
		put(1);
		put(i);
		put(e.gid_type);
		memcpy(out, e.gid.raw, 16);
		out += 2;
		gid = i;
	}
	put(0);
}

static void handle(void)
{
	int i = get();
	struct ibv_ah_attr a = { .port_num = 1 };
	a.is_global = get();
	a.grh.sgid_index = get();
	memcpy(a.grh.dgid.raw, in, 16);
	in += 2;
	a.grh.flow_label = get();
	a.grh.hop_limit = get();
	a.grh.traffic_class = get();
	a.dlid = get();
	a.sl = get();
	a.src_path_bits = get();
	a.static_rate = get();
	if (!(ahs[i] = ibv_create_ah(pd, &a))) {
		fprintf(stderr, "GID %d, rate %d\n", a.grh.sgid_index, a.static_rate);
		die("ibv_create_ah");
	}
	struct mlx5dv_ah v = {};
	struct mlx5dv_obj o = { .ah = { ahs[i], &v } };
	if (mlx5dv_init_obj(&o, MLX5DV_OBJ_AH))
		die("mlx5dv_init_obj");
	memcpy(out, v.av, 48);
	out += 6;
}

static void poll(void)
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
		put(w->src_qp);
		put(w->wc_flags);
		put(w->slid);
		put(w->sl);
		put(w->dlid_path_bits);
	}
}

static void arm(void)
{
	struct ibv_cq *cq = cqs[get()];
	put(ibv_req_notify_cq(cq, get()));
}

static struct ibv_sge sges[LIST][SGES];

static int getList(int i, int inline_)
{
	int n = get();
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
	int qp = get(), n = get(), err;
	for (int i = 0; i < n; i++) {
		wrs[i].wr_id = get();
		wrs[i].num_sge = getList(i, 0);
		wrs[i].sg_list = sges[i];
		wrs[i].next = i + 1 < n ? &wrs[i + 1] : NULL;
	}
	if (srq)
		err = ibv_post_srq_recv(srq, wrs, &bad);
	else
		err = ibv_post_recv(qps[qp], wrs, &bad);
	put(err ? bad - wrs : n);
}

/* region is what is read of a region: its PD and key, and behind struct ibv_mr that it is an ordinary one. */
union region {
	struct ibv_mr mr;
	char driver[512];
};

/* bind_mw binds a window of type 1 to a region, as only this function may. */
static int bind_mw(struct ibv_qp *qp, const struct ibv_send_wr *w)
{
	struct ibv_mw_bind b = { .wr_id = w->wr_id, .send_flags = w->send_flags, .bind_info = w->bind_mw.bind_info };
	int err = ibv_bind_mw(qp, w->bind_mw.mw, &b);
	if (!err && w->bind_mw.mw->rkey != w->bind_mw.rkey)
		die("ibv_bind_mw has made another key");
	return err;
}

/* target is what a DCI's request has, and struct ibv_send_wr has no place for. */
struct target { struct ibv_ah *ah; uint32_t dctn; uint64_t key; };

/* buildDCI builds requests of a DCI, up to one that libmlx5 refuses: then none is posted. */
static int buildDCI(struct ibv_qp *qp, struct ibv_send_wr *wrs, struct target *targets, int n)
{
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(qp);
	struct mlx5dv_qp_ex *dv = mlx5dv_qp_ex_from_ibv_qp_ex(x);
	ibv_wr_start(x);
	for (int i = 0; i < n; i++) {
		struct ibv_send_wr *w = &wrs[i];
		if ((w->opcode == IBV_WR_LOCAL_INV || w->opcode == IBV_WR_BIND_MW) && w->num_sge) { /* there is no place for data */
			ibv_wr_abort(x);
			return EINVAL;
		}
		x->wr_id = w->wr_id;
		x->wr_flags = w->send_flags;
		switch (w->opcode) {
		case IBV_WR_SEND: ibv_wr_send(x); break;
		case IBV_WR_SEND_WITH_IMM: ibv_wr_send_imm(x, w->imm_data); break;
		case IBV_WR_SEND_WITH_INV: ibv_wr_send_inv(x, w->invalidate_rkey); break;
		case IBV_WR_RDMA_WRITE: ibv_wr_rdma_write(x, w->wr.rdma.rkey, w->wr.rdma.remote_addr); break;
		case IBV_WR_RDMA_WRITE_WITH_IMM: ibv_wr_rdma_write_imm(x, w->wr.rdma.rkey, w->wr.rdma.remote_addr, w->imm_data); break;
		case IBV_WR_RDMA_READ: ibv_wr_rdma_read(x, w->wr.rdma.rkey, w->wr.rdma.remote_addr); break;
		case IBV_WR_ATOMIC_CMP_AND_SWP:
			ibv_wr_atomic_cmp_swp(x, w->wr.atomic.rkey, w->wr.atomic.remote_addr, w->wr.atomic.compare_add, w->wr.atomic.swap);
			break;
		case IBV_WR_ATOMIC_FETCH_AND_ADD: ibv_wr_atomic_fetch_add(x, w->wr.atomic.rkey, w->wr.atomic.remote_addr, w->wr.atomic.compare_add); break;
		case IBV_WR_LOCAL_INV: ibv_wr_local_inv(x, w->invalidate_rkey); continue;
		case IBV_WR_BIND_MW: ibv_wr_bind_mw(x, w->bind_mw.mw, w->bind_mw.rkey, &w->bind_mw.bind_info); continue;
		default: die("opcode");
		}
		mlx5dv_wr_set_dc_addr(dv, targets[i].ah, targets[i].dctn, targets[i].key);
		if (w->send_flags & IBV_SEND_INLINE) {
			struct ibv_data_buf list[SGES];
			for (int k = 0; k < w->num_sge; k++)
				list[k] = (struct ibv_data_buf){ (void *)(uintptr_t)w->sg_list[k].addr, w->sg_list[k].length };
			ibv_wr_set_inline_data_list(x, w->num_sge, list);
		} else
			ibv_wr_set_sge_list(x, w->num_sge, w->sg_list);
	}
	return ibv_wr_complete(x);
}

/* postDCI posts as many of a DCI's requests as libmlx5 takes. */
static int postDCI(struct ibv_qp *qp, struct ibv_send_wr *wrs, struct target *targets, int n)
{
	while (n > 0 && buildDCI(qp, wrs, targets, n))
		n--;
	return n;
}

static void post_send(void)
{
	static struct ibv_send_wr wrs[LIST];
	static struct target targets[LIST];
	static struct ibv_mw mws[LIST];
	static union region regions[LIST];
	struct ibv_send_wr *bad = NULL;
	int qp = get(), n = get();
	memset(wrs, 0, sizeof wrs);
	for (int i = 0; i < n; i++) {
		struct ibv_send_wr *w = &wrs[i];
		w->wr_id = get();
		w->opcode = get();
		w->send_flags = get();
		w->imm_data = htobe32(get());
		uint32_t inval = get();
		uint64_t remote = get();
		uint32_t rkey = get();
		uint64_t add = get(), swap = get();
		uint32_t ah = get(), qpn = get();
		uint64_t qkey = get();
		targets[i] = (struct target){ ahs[ah], qpn, qkey ? qkey : dcKey };
		if (w->opcode == IBV_WR_SEND_WITH_INV || w->opcode == IBV_WR_LOCAL_INV)
			w->invalidate_rkey = inval;
		if (w->opcode == IBV_WR_BIND_MW) {
			struct ibv_mw_bind_info *b = &w->bind_mw.bind_info;
			w->bind_mw.mw = &mws[i];
			mws[i] = (struct ibv_mw){ .context = ctx, .pd = pd, .type = get() };
			mws[i].rkey = get();
			w->bind_mw.rkey = get();
			b->mr = &regions[i].mr;
			b->mr->pd = pd;
			b->mr->lkey = get();
			b->addr = get();
			b->length = get();
			b->mw_access_flags = get();
		}
		if (type == IBV_QPT_UD) {
			w->wr.ud.ah = ahs[ah];
			w->wr.ud.remote_qpn = qpn;
			w->wr.ud.remote_qkey = qkey;
		} else if (w->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || w->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
			w->wr.atomic.remote_addr = remote;
			w->wr.atomic.rkey = rkey;
			w->wr.atomic.compare_add = add;
			w->wr.atomic.swap = swap;
		} else {
			w->wr.rdma.remote_addr = remote;
			w->wr.rdma.rkey = rkey;
		}
		w->num_sge = getList(i, w->send_flags & IBV_SEND_INLINE);
		w->sg_list = sges[i];
		w->next = i + 1 < n ? w + 1 : NULL;
	}
	int err;
	if (type == IBV_QPT_DRIVER) {
		put(postDCI(qps[qp], wrs, targets, n));
		return;
	}
	if (n == 1 && wrs->opcode == IBV_WR_BIND_MW && wrs->bind_mw.mw->type == IBV_MW_TYPE_1 && !wrs->num_sge) {
		err = bind_mw(qps[qp], wrs);
		bad = wrs;
	} else
		err = ibv_post_send(qps[qp], wrs, &bad);
	put(err ? bad - wrs : n);
}

static void reset(void)
{
	struct ibv_qp *qp = qps[get()];
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RESET };
	if ((errno = ibv_modify_qp(qp, &a, IBV_QP_STATE)))
		die("RESET");
	start(qp);
}

static void resize(void)
{
	int i = get(), n = get();
	restore(rings[i], rings[i] + ringSizes[i]);
	if ((errno = ibv_resize_cq(cqs[i], n))) {
		fprintf(stderr, "from %d to %d\n", cqs[i]->cqe, n);
		die("ibv_resize_cq");
	}
	rings[i] = (char *)((struct mlx5_ib_resize_cq *)request)->buf_addr;
	putCQ(i);
}

int main(int argc, char **argv)
{
	static void (*const orders[])(void) = { NULL, create, destroy, gids, handle, poll, arm, post_recv, post_send, reset, resize };
	int n = 0;
	mallopt(M_TRIM_THRESHOLD, 1 << 30);
	share_memory();
	watch = keep;
	ethernet = argc == 2 && !strcmp(argv[1], "deaf-roce");
	if (ethernet || (argc == 2 && !strcmp(argv[1], "deaf-ib")))
		open_mlx5(&ctx, 1);
	else {
		real = 1;
		struct ibv_device **list = ibv_get_device_list(&n);
		for (int i = 0; i < n; i++)
			if (argc == 2 && !strcmp(ibv_get_device_name(list[i]), argv[1]))
				ctx = ibv_open_device(list[i]);
	}
	if (!ctx)
		die("ibv_open_device");
	if (!(pd = ibv_alloc_pd(ctx)))
		die("ibv_alloc_pd");
	if ((errno = ibv_query_port(ctx, 1, &port)))
		die("ibv_query_port");
	findCQRegister();
	obey(orders);
	return 0;
}
