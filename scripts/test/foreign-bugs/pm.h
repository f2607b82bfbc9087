/* What the programs of this directory share: the mapping, the marks, and the judge.
 *
 *     PROGRAM format VARIANT FILE          makes an empty structure
 *     PROGRAM run VARIANT FILE             does the operations, and prints the state after each
 *     PROGRAM check VARIANT STATES FILE    judges an image by these states
 *
 * Variant 0 is correct. A state is the output of `describe`, before and after further operations
 * (`probe`). An image is sound if, after recovery, its state is one that the program had without a
 * crash, at the last operation that returned or at the one that had begun.
 *
 * A program defines struct pm and OPS, includes this file, and defines the functions below.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <libpmem.h>
#include "crashtest.h"

static struct pm *pm;	/* the persistent memory */
static int variant;
static FILE *out;

static void format(void);
static void op(int n);		/* does operation n, of OPS */
static void recover(void);	/* after a crash */
static void describe(void);	/* prints what a reader finds */
static void probe(void);	/* further operations, which must find a sound structure */

#define BUG(n) (variant == (n))
#define say(...) fprintf(out, __VA_ARGS__)
/* A store that the compiler neither moves nor joins with others. */
#define set(place, value) (*(volatile __typeof__(place) *)&(place) = (value))
#define flush(place) pmem_flush(&(place), sizeof(place))
#define fence() pmem_drain()
#define persist(place) pmem_persist(&(place), sizeof(place))

/* Prints the state to a new string. */
static char *state(void)
{
	char *text;
	size_t len;

	out = open_memstream(&text, &len);
	describe();
	say(" | ");
	probe();
	describe();
	fclose(out);
	return text;
}

/* Prints the state: a child does so, on a copy of the memory. */
static void print_state(void)
{
	fflush(stdout);
	pid_t child = fork();

	if (!child) {
		struct pm *copy = malloc(sizeof(*pm));

		memcpy(copy, pm, sizeof(*pm));
		pm = copy;
		puts(state());
		fflush(stdout);
		_exit(0);
	}
	waitpid(child, NULL, 0);
}

static int judge(const char *states)
{
	unsigned begun = atoi(getenv("CRASH_BEGUN")), returned = atoi(getenv("CRASH_RETURNED"));
	char expected[2][4096] = { "", "" };
	FILE *file = fopen(states, "r");
	char line[4096];

	for (unsigned n = 0; file && fgets(line, sizeof(line), file); n++) {
		line[strcspn(line, "\n")] = 0;
		if (n == returned)
			strcpy(expected[0], line);
		if (n == begun)
			strcpy(expected[1], line);
	}
	recover();
	char *found = state();
	if (!strcmp(found, expected[0]) || !strcmp(found, expected[1]))
		return 0;
	fprintf(stderr, "operation %u: found %s; legal are %s, and %s\n", begun, found, expected[0], expected[1]);
	return 1;
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	variant = atoi(argv[2]);
	pm = pmem_map_file(argv[argc - 1], sizeof(*pm), PMEM_FILE_CREATE, 0600, NULL, NULL);
	if (!pm)
		return 2;
	if (!strcmp(argv[1], "check"))
		return judge(argv[3]);
	if (!strcmp(argv[1], "format")) {
		format();
		return 0;
	}
	print_state();
	for (int n = 0; n < OPS; n++) {
		CRASHTEST_BEGIN(n);
		op(n);
		CRASHTEST_END(n);
		print_state();
	}
	return 0;
}
