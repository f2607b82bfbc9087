/* What one write of 4 KiB takes, over what a file has already: the call whose components PMAL measures (Tables II and V).
 *
 *     cc -O2 -o writes bench/c/writes.c
 *     ./writes FILE async|sync COUNT [CONTROL ACKNOWLEDGED]
 *
 * FILE is there and a multiple of 4 KiB; its blocks are written round and round, WARM_UP times for what only the first writes do
 * (page cache, content that a cache loads), then COUNT times. `sync` opens it with O_SYNC. Prints two numbers, ns per
 * call of the latter: elapsed, and of them on the CPU, by this process.
 *
 * CONTROL and ACKNOWLEDGED are the FIFOs of `perf record -D -1 --control fifo:CONTROL,ACKNOWLEDGED`: what it records is the loop.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "clock.h"

#define BLOCK_BYTES (4 << 10)
#define WARM_UP 4096

static char block[BLOCK_BYTES] __attribute__((aligned(BLOCK_BYTES)));

static long check(long result, const char *what)
{
	if (result < 0) {
		fprintf(stderr, "writes: %s: %s\n", what, strerror(errno));
		exit(1);
	}
	return result;
}

static void overwrite(int fd, long blocks, long count)
{
	long i, len;

	for (i = 0; i < count; i++) {
		len = check(pwrite(fd, block, BLOCK_BYTES, i % blocks * BLOCK_BYTES), "pwrite");
		if (len != BLOCK_BYTES) {
			fprintf(stderr, "writes: wrote %ld bytes\n", len);
			exit(1);
		}
	}
}

/* perf obeys, and says so by a line. */
static void tell(int control, int acknowledged, const char *command)
{
	char byte;

	check(write(control, command, strlen(command)), "perf's control");
	do {
		if (check(read(acknowledged, &byte, 1), "perf's acknowledgement") == 0) {
			fprintf(stderr, "writes: perf has ended\n");
			exit(1);
		}
	} while (byte != '\n');
}

int main(int argc, char **argv)
{
	int fd, control = -1, acknowledged = -1;
	struct stat st;
	long count;
	double elapsed, running;

	if ((argc != 4 && argc != 6) || (strcmp(argv[2], "async") && strcmp(argv[2], "sync"))) {
		fprintf(stderr, "writes FILE async|sync COUNT [CONTROL ACKNOWLEDGED]\n");
		return 2;
	}
	count = atol(argv[3]);
	fd = check(open(argv[1], O_RDWR | (strcmp(argv[2], "sync") ? 0 : O_SYNC)), argv[1]);
	check(fstat(fd, &st), argv[1]);
	if (count <= 0 || st.st_size < BLOCK_BYTES || st.st_size % BLOCK_BYTES) {
		fprintf(stderr, "writes: nothing to write\n");
		return 2;
	}
	memset(block, 'w', sizeof block);
	overwrite(fd, st.st_size / BLOCK_BYTES, WARM_UP);
	if (argc == 6) {
		control = check(open(argv[4], O_WRONLY), argv[4]);
		acknowledged = check(open(argv[5], O_RDONLY), argv[5]);
		tell(control, acknowledged, "enable\n");
	}
	elapsed = seconds(CLOCK_MONOTONIC);
	running = seconds(CLOCK_PROCESS_CPUTIME_ID);
	overwrite(fd, st.st_size / BLOCK_BYTES, count);
	running = (seconds(CLOCK_PROCESS_CPUTIME_ID) - running) * 1e9;
	elapsed = (seconds(CLOCK_MONOTONIC) - elapsed) * 1e9;
	if (argc == 6)
		tell(control, acknowledged, "disable\n");
	printf("%.1f %.1f\n", elapsed / count, running / count);
	return 0;
}
