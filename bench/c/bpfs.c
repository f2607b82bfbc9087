/* The microbenchmarks of BPFS (§5.2.1, Figure 3; §5.2.2, Figure 4 a), by system calls.
 *
 *     cc -O2 -o bpfs bench/c/bpfs.c
 *     keepstone run -- ./bpfs DIR append|overwrite|create|postmark OPERATIONS BYTES
 *
 * append: OPERATIONS writes of BYTES to the end of a file. overwrite: the same at random multiples of BYTES of a file of 128 MiB
 * that has been written before. create: OPERATIONS empty files. postmark: 100 files are made, OPERATIONS transactions read one of
 * them or append BYTES to it, and all files are removed. DIR is empty before and after. Prints seconds, without preparations.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "clock.h"

#define FILE_BYTES (128L << 20)
#define FILES 100
#define BYTES_MAX (1L << 20)

static char buffer[BYTES_MAX];

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static int open_file(long number)
{
	char name[32];
	snprintf(name, sizeof name, "file-%ld", number);
	int fd = open(name, O_RDWR | O_CREAT, 0600);
	if (fd < 0) fail(name);
	return fd;
}

static void remove_files(long count)
{
	char name[32];
	for (long i = 0; i < count; i++) {
		snprintf(name, sizeof name, "file-%ld", i);
		if (unlink(name) != 0) fail(name);
	}
}

static void write_at(int fd, long bytes, off_t at)
{
	if (pwrite(fd, buffer, bytes, at) != bytes) fail("pwrite");
}

/* A generator of Vigna's: splitmix64. */
static uint64_t drawn(uint64_t *seed)
{
	uint64_t z = (*seed += 0x9e3779b97f4a7c15);
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

/* Reads a file to its end, or appends to it. */
static void transaction(uint64_t *seed, long bytes)
{
	int fd = open_file(drawn(seed) % FILES);
	if (drawn(seed) % 2 == 0) {
		while (read(fd, buffer, bytes) > 0);
	} else {
		write_at(fd, bytes, lseek(fd, 0, SEEK_END));
	}
	close(fd);
}

int main(int argc, char **argv)
{
	long operations = argc == 5 ? atol(argv[3]) : 0, bytes = argc == 5 ? atol(argv[4]) : 0, files = 1;
	uint64_t seed = 1;
	if (operations < 1 || bytes < 1 || bytes > BYTES_MAX) {
		fprintf(stderr, "usage: bpfs DIR append|overwrite|create|postmark OPERATIONS BYTES\n");
		return 2;
	}
	if (chdir(argv[1]) != 0) fail(argv[1]);
	memset(buffer, 7, sizeof buffer);
	double start = 0, end;
	if (strcmp(argv[2], "append") == 0) {
		int fd = open_file(0);
		start = seconds(CLOCK_MONOTONIC);
		for (long i = 0; i < operations; i++) write_at(fd, bytes, i * bytes);
		end = seconds(CLOCK_MONOTONIC);
		close(fd);
	} else if (strcmp(argv[2], "overwrite") == 0) {
		int fd = open_file(0);
		for (off_t at = 0; at < FILE_BYTES; at += BYTES_MAX) write_at(fd, BYTES_MAX, at);
		start = seconds(CLOCK_MONOTONIC);
		for (long i = 0; i < operations; i++) write_at(fd, bytes, drawn(&seed) % (FILE_BYTES / bytes) * bytes);
		end = seconds(CLOCK_MONOTONIC);
		close(fd);
	} else if (strcmp(argv[2], "create") == 0) {
		files = operations;
		start = seconds(CLOCK_MONOTONIC);
		for (long i = 0; i < operations; i++) close(open_file(i));
		end = seconds(CLOCK_MONOTONIC);
	} else {
		files = 0;
		start = seconds(CLOCK_MONOTONIC);
		for (long i = 0; i < FILES; i++) close(open_file(i));
		for (long i = 0; i < operations; i++) transaction(&seed, bytes);
		remove_files(FILES);
		end = seconds(CLOCK_MONOTONIC);
	}
	remove_files(files);
	printf("%.9f\n", end - start);
	return 0;
}
