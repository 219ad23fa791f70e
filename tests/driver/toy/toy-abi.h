/* SPDX-License-Identifier: MIT */
/*
 * What a driver of the toy card shares with the kernel and with the card. The card is made up: it has
 * what modern cards have, and nothing else. Kernel headers have the first part; the second comes from a
 * manual, or from the kernel driver.
 */
#ifndef TOY_ABI_H
#define TOY_ABI_H

#include <linux/types.h>

/* Private parts of the verbs. */

struct toy_alloc_ucontext_resp {
	__aligned_u64 db_mmap_offset; /* of the page of registers */
	__u32 max_inline;
	__u32 reserved;
};

struct toy_create_cq {
	__aligned_u64 buf_addr; /* struct toy_cqe, a power of two */
	__aligned_u64 db_addr;  /* doorbell record, 8 bytes: the number of completions taken */
};

struct toy_create_cq_resp {
	__u32 cqn;
	__u32 reserved;
};

struct toy_create_qp {
	__aligned_u64 send_addr; /* struct toy_wqe, a power of two */
	__aligned_u64 recv_addr; /* struct toy_rqe, a power of two */
	__aligned_u64 db_addr;   /* doorbell records, 8 bytes each: of sends, of receives */
};

/* Registers of 8 bytes, at these offsets of the page. */
#define TOY_DB_SEND 0 /* QP number << 32 | number of requests posted */
#define TOY_DB_RECV 8 /* the same for receives */
#define TOY_DB_ARM 16 /* CQ number << 32 | number of completions taken; TOY_ARM_SOLICITED */

#define TOY_ARM_SOLICITED (1ULL << 63)

#define TOY_MAX_SGE 2
#define TOY_MAX_INLINE 32

/* Elements of the queues. The card is little-endian. */

struct toy_sge {
	__aligned_u64 addr;
	__u32 length;
	__u32 lkey;
};

enum toy_opcode {
	TOY_SEND = 1,
	TOY_WRITE = 2,
	TOY_READ = 3,
	TOY_RECV = 4,
};

#define TOY_SIGNALED 1
#define TOY_SOLICITED 2
#define TOY_FENCE 4
#define TOY_INLINE 8 /* the data is in place of sge */
#define TOY_IMM 16

struct toy_wqe {
	__u8 opcode;
	__u8 flags;
	__u16 num; /* of elements, or bytes of inline data */
	__u32 imm;
	__aligned_u64 remote_addr;
	__u32 rkey;
	__u32 reserved;
	struct toy_sge sge[TOY_MAX_SGE];
	__aligned_u64 reserved2;
};

struct toy_rqe {
	struct toy_sge sge[TOY_MAX_SGE]; /* empty ones have length 0 */
};

struct toy_cqe {
	__u32 qpn;
	__u32 index; /* of the request, counted from the first after RESET */
	__u8 opcode; /* TOY_RECV, or that of the request */
	__u8 flags;  /* TOY_IMM */
	__u16 status; /* enum ib_wc_status */
	__u32 length;
	__u32 imm;
	__u32 reserved[2];
	__u32 owner; /* written last: 1 in the first round of the ring, 0 in the second, and so on */
};

#endif
