/*
 * The C side of a providertest.Comparison: reads orders from memory that it shares with the test, and
 * writes answers there. The program has a list of functions, and calls obey.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Places in the shared memory, file 3. What is behind DATA, the program divides. */
enum { PAGE = 4096, IN = 0, OUT = 1 << 20, DATA = 2 << 20, SIZE = 64 << 20 };

static const char program[]; /* its name, for errors */

static char *mem;
static uint64_t *in, *out;
static inline uint64_t get(void) { return *in++; }
static inline void put(uint64_t v) { *out++ = v; }

static void die(const char *what)
{
	fprintf(stderr, "%s: %s: %s\n", program, what, strerror(errno));
	exit(1);
}

/* share_memory maps the shared memory, as mem. */
static void share_memory(void)
{
	mem = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, 3, 0);
	if (mem == MAP_FAILED)
		die("mmap");
}

/* obey runs orders until there are no more. They begin with 1. The test writes a byte when it has
 * some, and waits for one. */
static void obey(void (*const orders[])(void))
{
	char c;

	while (read(0, &c, 1) == 1) {
		in = (uint64_t *)(mem + IN);
		out = (uint64_t *)(mem + OUT);
		for (int order; (order = get());)
			orders[order]();
		if (write(1, &c, 1) != 1)
			die("write");
	}
}
