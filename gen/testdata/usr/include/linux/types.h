/* Stand-ins for the kernel's types. */
typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef signed int __s32;
typedef unsigned long long __u64;
typedef __u16 __be16;
typedef __u32 __be32;
#define __aligned_u64 __u64 __attribute__((aligned(8)))

struct other_header {
	__u32 a;
	__be16 b;
};
