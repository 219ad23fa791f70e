// How the programs here end when something fails.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static inline void must(int ret, const char *what)
{
	if (ret)
		die(what);
}
