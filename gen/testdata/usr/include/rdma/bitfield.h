#include <linux/types.h>

struct sample_bits {
	__u32 a : 3;
	__u32 b : 29;
};
