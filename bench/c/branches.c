/* What snapshots, branches and clones of a pool take, by the C interface (scripts/bench/branches.sh).
 *
 *     cc -O2 -pthread -o branches bench/c/branches.c -I include -L target/release -lkeepstone
 *     ./branches trees POOL FILES BYTES      # ms, median of ROUNDS; makes FILES files of BYTES first
 *     ./branches overwrite POOL              # ns per write of 4 KiB
 *     ./branches changes POOL FILES          # ns per change of a file's mode
 *     ./branches background POOL             # ns per write of 4 KiB, alone and while a snapshot and a branch go
 *
 * POOL is there, empty, and not mounted. Directories have 100 files.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "clock.h"
#include "keepstone.h"

#define BLOCK_BYTES 4096L
#define ROUNDS 5
#define FILES_IN_DIR 100
#define SPAN_BYTES (2L << 20)

static ks_pool *pool;
static char block[BLOCK_BYTES];

static long check(long result, const char *what)
{
	if (result < 0) {
		fprintf(stderr, "branches: %s: %s\n", what, strerror(errno));
		exit(1);
	}
	return result;
}

static ks_file *open_file(const char *path)
{
	ks_file *file = ks_open(pool, path, O_RDWR | O_CREAT, 0644);

	check(file ? 0 : -1, path);
	return file;
}

static void fill(long files, long bytes)
{
	char path[64], *data = calloc(1, bytes ? bytes : 1);
	ks_file *file;
	long i;

	check(ks_mkdir(pool, "/tree", 0755), "mkdir");
	for (i = 0; i < files; i++) {
		if (i % FILES_IN_DIR == 0) {
			snprintf(path, sizeof path, "/tree/%ld", i / FILES_IN_DIR);
			check(ks_mkdir(pool, path, 0755), path);
		}
		snprintf(path, sizeof path, "/tree/%ld/file-%ld", i / FILES_IN_DIR, i % FILES_IN_DIR);
		file = open_file(path);
		if (bytes)
			check(ks_write(file, data, bytes), "write");
		ks_close(file);
	}
	free(data);
}

/* Removes the clone of what fill has made. */
static void remove_clone(long files)
{
	char path[64];
	long i;

	for (i = 0; i < files; i++) {
		snprintf(path, sizeof path, "/copy/%ld/file-%ld", i / FILES_IN_DIR, i % FILES_IN_DIR);
		check(ks_unlink(pool, path), path);
		if (i % FILES_IN_DIR == FILES_IN_DIR - 1 || i == files - 1) {
			snprintf(path, sizeof path, "/copy/%ld", i / FILES_IN_DIR);
			check(ks_rmdir(pool, path), path);
		}
	}
	check(ks_rmdir(pool, "/copy"), "rmdir");
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *took, long count)
{
	qsort(took, count, sizeof *took, by_value);
	return took[count / 2];
}

static double now(void)
{
	return seconds(CLOCK_MONOTONIC);
}

#define TIMED(took, call) do { double start = now(); check(call, #call); took = (now() - start) * 1e3; } while (0)

static void trees(long files, long bytes)
{
	double took[6][ROUNDS];
	int i;

	fill(files, bytes);
	for (i = 0; i < ROUNDS; i++) {
		TIMED(took[0][i], ks_snapshot_create(pool, "s"));
		TIMED(took[1][i], ks_snapshot_delete(pool, "s"));
	}
	for (i = 0; i < ROUNDS; i++) {
		TIMED(took[2][i], ks_branch_create(pool, "b"));
		TIMED(took[3][i], ks_branch_discard(pool, "b"));
		TIMED(took[4][i], ks_clone(pool, "/tree", "/copy"));
		double start = now();
		remove_clone(files);
		took[5][i] = (now() - start) * 1e3;
	}
	printf("%ld", files);
	for (i = 0; i < 6; i++)
		printf(" %.3f", median(took[i], ROUNDS));
	puts("");
}

/* Overwrites every block of the range once, or only the first of each 2 MiB, or all but these; returns ns per write. */
static double overwrite(ks_file *file, long bytes, int first, int others)
{
	long at, writes = 0;
	double start = now();

	for (at = 0; at < bytes; at += BLOCK_BYTES) {
		if (at % SPAN_BYTES == 0 ? !first : !others)
			continue;
		check(ks_pwrite(file, block, BLOCK_BYTES, at), "pwrite");
		writes++;
	}
	return (now() - start) * 1e9 / writes;
}

static void overwrites(void)
{
	long bytes = 512L << 20, at;
	double plain[ROUNDS], first[ROUNDS], others[ROUNDS], again[ROUNDS], snapshot[ROUNDS];
	ks_file *file = open_file("/file"), *clone;
	int i;

	for (at = 0; at < bytes; at += BLOCK_BYTES)
		check(ks_pwrite(file, block, BLOCK_BYTES, at), "pwrite");
	overwrite(file, bytes, 1, 1);
	for (i = 0; i < ROUNDS; i++) {
		plain[i] = overwrite(file, bytes, 1, 1);
		check(ks_clone(pool, "/file", "/clone"), "clone");
		clone = open_file("/clone");
		/* The blocks of pointers become the clone's own, then those of data. */
		first[i] = overwrite(clone, bytes, 1, 0);
		others[i] = overwrite(clone, bytes, 0, 1);
		again[i] = overwrite(clone, bytes, 1, 1);
		ks_close(clone);
		check(ks_unlink(pool, "/clone"), "unlink");
		check(ks_snapshot_create(pool, "s"), "snapshot");
		snapshot[i] = overwrite(file, bytes, 1, 1);
		check(ks_snapshot_delete(pool, "s"), "delete");
	}
	printf("%.0f %.0f %.0f %.0f %.0f\n", median(plain, ROUNDS), median(first, ROUNDS), median(others, ROUNDS),
	       median(again, ROUNDS), median(snapshot, ROUNDS));
}

/* Changes the mode of each file; returns ns per change. */
static double change_all(long files, mode_t mode)
{
	char path[64];
	double start = now();
	long i;

	for (i = 0; i < files; i++) {
		snprintf(path, sizeof path, "/tree/%ld/file-%ld", i / FILES_IN_DIR, i % FILES_IN_DIR);
		check(ks_chmod(pool, path, mode), path);
	}
	return (now() - start) * 1e9 / files;
}

static void changes(long files)
{
	double plain[ROUNDS], first[ROUNDS], again[ROUNDS], deleted[ROUNDS];
	int i;

	fill(files, 100);
	for (i = 0; i < ROUNDS; i++) {
		plain[i] = change_all(files, 0600);
		check(ks_snapshot_create(pool, "s"), "snapshot");
		first[i] = change_all(files, 0640);
		again[i] = change_all(files, 0600);
		TIMED(deleted[i], ks_snapshot_delete(pool, "s"));
	}
	printf("%.0f %.0f %.0f %.3f\n", median(plain, ROUNDS), median(first, ROUNDS), median(again, ROUNDS),
	       median(deleted, ROUNDS));
}

static atomic_int ended;

static void *go(void *what)
{
	double start = now();

	if (*(const char *)what == 's')
		check(ks_snapshot_delete(pool, "s"), "delete");
	else
		check(ks_branch_discard(pool, "b"), "discard");
	double took = now() - start;

	memcpy((char *)what + 8, &took, sizeof took);
	atomic_store(&ended, 1);
	return NULL;
}

static void background(void)
{
	long bytes = 64L << 20;
	ks_file *file;
	int kind, i;

	fill(200000, 100);
	file = open_file("/file");
	overwrite(file, bytes, 1, 1);
	for (kind = 0; kind < 2; kind++) {
		double alone[ROUNDS], beside[ROUNDS], took[ROUNDS];

		for (i = 0; i < ROUNDS; i++) {
			char what[16] = { "sb"[kind] };
			pthread_t thread;
			long writes = 0;
			double start;

			check(kind ? ks_branch_create(pool, "b") : ks_snapshot_create(pool, "s"), "create");
			/* The snapshot holds all inodes alone. */
			change_all(kind ? 0 : 200000, 0600 + i);
			overwrite(file, bytes, 1, 1);
			alone[i] = overwrite(file, bytes, 1, 1);
			atomic_store(&ended, 0);
			check(-pthread_create(&thread, NULL, go, what), "thread");
			start = now();
			while (!atomic_load(&ended)) {
				check(ks_pwrite(file, block, BLOCK_BYTES, writes * BLOCK_BYTES % bytes), "pwrite");
				writes++;
			}
			beside[i] = (now() - start) * 1e9 / writes;
			pthread_join(thread, NULL);
			memcpy(&took[i], what + 8, sizeof took[i]);
			took[i] *= 1e3;
		}
		printf("%.0f %.0f %.1f\n", median(alone, ROUNDS), median(beside, ROUNDS), median(took, ROUNDS));
	}
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	pool = ks_open_pool(argv[2]);
	check(pool ? 0 : -1, argv[2]);
	if (strcmp(argv[1], "trees") == 0 && argc == 5)
		trees(atol(argv[3]), atol(argv[4]));
	else if (strcmp(argv[1], "overwrite") == 0)
		overwrites();
	else if (strcmp(argv[1], "changes") == 0 && argc == 4)
		changes(atol(argv[3]));
	else if (strcmp(argv[1], "background") == 0)
		background();
	else
		return 2;
	return ks_close_pool(pool) == 0 ? 0 : 1;
}
