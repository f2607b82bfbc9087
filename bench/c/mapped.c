/* Mappings of one file in each of several directories, in turns: what touching, loading and storing take.
 *
 *     cc -O2 -o mapped bench/c/mapped.c
 *     keepstone run -- ./mapped /dev/shm/dir /mnt/pool/dir
 *
 * Prints nanoseconds an operation, the median of ROUNDS, by directory: the first touch of each page by a load and by a store,
 * then loads and stores of 8 bytes at random.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "clock.h"

#define BYTES (64L << 20)
#define PAGE 4096
#define ACCESSES 2000000
#define ROUNDS 9
#define DIRS 4

static uint64_t seed = 88172645463325252;

static uint64_t below(uint64_t n)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed % n;
}

static volatile char *map(int fd)
{
	void *m = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (m == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	return m;
}

static int up(const void *a, const void *b)
{
	return *(const double *)a < *(const double *)b ? -1 : 1;
}

int main(int argc, char **argv)
{
	static const char *what[4] = {"touch by a load", "touch by a store", "random load", "random store"};
	static double took[4][DIRS][ROUNDS];
	int fd[DIRS], d, dirs = argc - 1 < DIRS ? argc - 1 : DIRS, round, i;
	char *block = malloc(1 << 20), name[4096];
	uint64_t sum = 0;

	memset(block, 1, 1 << 20);
	for (d = 0; d < dirs; d++) {
		snprintf(name, sizeof name, "%s/mapped", argv[d + 1]);
		fd[d] = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
		for (i = 0; i < BYTES >> 20; i++)
			if (write(fd[d], block, 1 << 20) != 1 << 20)
				return perror(name), 1;
	}
	for (round = 0; round < ROUNDS; round++) {
		for (d = 0; d < dirs; d++) {
			volatile char *m = map(fd[d]);
			double start = seconds(CLOCK_MONOTONIC);
			long at;

			for (at = 0; at < BYTES; at += PAGE)
				sum += m[at];
			took[0][d][round] = (seconds(CLOCK_MONOTONIC) - start) * 1e9 / (BYTES / PAGE);
			munmap((void *)m, BYTES);
			m = map(fd[d]);
			start = seconds(CLOCK_MONOTONIC);
			for (at = 0; at < BYTES; at += PAGE)
				m[at] = 2;
			took[1][d][round] = (seconds(CLOCK_MONOTONIC) - start) * 1e9 / (BYTES / PAGE);
			start = seconds(CLOCK_MONOTONIC);
			for (i = 0; i < ACCESSES; i++)
				sum += ((volatile uint64_t *)m)[below(BYTES / 8)];
			took[2][d][round] = (seconds(CLOCK_MONOTONIC) - start) * 1e9 / ACCESSES;
			start = seconds(CLOCK_MONOTONIC);
			for (i = 0; i < ACCESSES; i++)
				((volatile uint64_t *)m)[below(BYTES / 8)] = i;
			took[3][d][round] = (seconds(CLOCK_MONOTONIC) - start) * 1e9 / ACCESSES;
			munmap((void *)m, BYTES);
		}
	}
	for (i = 0; i < 4; i++) {
		printf("%-18s", what[i]);
		for (d = 0; d < dirs; d++) {
			qsort(took[i][d], ROUNDS, sizeof(double), up);
			printf(" %8.1f ns", took[i][d][ROUNDS / 2]);
		}
		printf("\n");
	}
	return sum == 0;
}
