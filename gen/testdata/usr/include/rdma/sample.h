#ifndef SAMPLE_H
#define SAMPLE_H

#include <linux/types.h>

/* Macros: a number, an expression, an address-like one; what is none. */
#define SAMPLE_VERSION 3
#define SAMPLE_FLAGS (1u << 31 | SAMPLE_VERSION)
#define SAMPLE_MINUS (-2)
#define SAMPLE_NAME "a string"
#define SAMPLE_CALL(x) ((x) + 1)
#define SAMPLE_EMPTY

enum {
	SAMPLE_FIRST, /* SAMPLE_NOT_THIS, */
	SAMPLE_SECOND = 5,
	SAMPLE_THIRD,
};

enum sample_enum {
	SAMPLE_NEGATIVE = -1,
	SAMPLE_BIG = 1ULL << 40,
	SAMPLE_LAST
};

struct sample_plain {
	__u8 byte;
	__u32 word;		/* three bytes of padding before it */
	__be32 net_order;
	__s32 sign;
	__aligned_u64 wide;
	__u16 list[3];		/* two bytes of padding behind it */
	enum sample_enum choice;
	struct other_header nested;
};

union sample_union {
	__u8 raw[12];
	__u32 words[3];
	struct {
		__be16 a;
		__u16 b;
	} pair;
};

struct sample_unnamed {
	__u32 head;
	union {
		__u64 data;
		struct {
			__u8 lo, hi;
		} bytes;
		struct {
			__u32 inner_a;
			__u32 inner_b;
		};
	};
	struct {
		__u16 flat_a;
		__u16 flat_b;
	};
	struct {
		__u8 x;
		union sample_union y;
	} named[2];
};

struct sample_flexible {
	__u32 count;
	__u32 pad;
	struct sample_plain items[];
};

struct sample_flexible_union {
	__u32 count;
	union {
		struct { struct {} empty_a; __u8 bytes[]; };
		struct { struct {} empty_b; __u32 words[]; };
	};
};


#endif
