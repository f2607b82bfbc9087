/* A B-tree of Berkeley DB whose writes are durable one by one, used by several threads: what a cache is measured with by Chell
 * (§5.3, Figure 11) and, with other mixes, by PMAL (§V, YCSB-A and ForestDB).
 *
 *     cc -O2 -pthread -o btree bench/c/btree.c -ldb-5.3 -lm
 *     keepstone run -- ./btree DIR THREADS TRANSACTIONS READS uniform|zipf
 *
 * READS is in percent; the rest are writes, each a transaction of its own, whose commit writes the log and syncs it. Keys are
 * drawn evenly, or as by YCSB (zipfian, 0.99, scattered over the database). Loads the database into DIR, an empty directory,
 * makes all of it durable, and then prints the seconds that the transactions took.
 *
 * Records are of 511 bytes in the mean when they are loaded, and writes of 431, the paper's requests; log files of 10 MB are the
 * paper's, too. The database has 13 MB in place of the paper's 5.5 GB, and the buffer pool of Berkeley DB 4 MB, so that most
 * reads, and writes of pages that have to leave, reach the file.
 *
 * The regions of the environment (buffers, locks, the end of the log) are files in DIR that are mapped as shared memory, as Berkeley
 * DB has it by default. Mappings work in all systems that are compared; with DB_PRIVATE, that is, regions in the process's own
 * memory, it takes as long in each of them (2026-11-26).
 */
#define _GNU_SOURCE
#include <db.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "clock.h"

#define RECORDS 20000
#define THREADS_MAX 64
#define LOADED_BYTES 511
#define WRITTEN_BYTES 431
#define PAGE 4096
#define BUFFER_POOL (4 << 20)
#define LOG_FILE (10 << 20)
#define LOADED_AT_ONCE 500
#define THETA 0.99

static DB_ENV *env;
static DB *db;
static long transactions;
static int threads, reads, is_zipf;
static double zeta, zeta_2;

static void check(int error, const char *what)
{
	if (error) {
		fprintf(stderr, "btree: %s: %s\n", what, db_strerror(error));
		exit(1);
	}
}

static uint64_t below(uint64_t *seed, uint64_t n)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed % n;
}

/* Gray et al., "Quickly generating billion-record synthetic databases", as YCSB has it; the hash scatters what is popular. */
static uint64_t zipf(uint64_t *seed)
{
	double u = below(seed, 1 << 30) / (double)(1 << 30), uz = u * zeta;
	double alpha = 1 / (1 - THETA), eta = (1 - pow(2.0 / RECORDS, 1 - THETA)) / (1 - zeta_2 / zeta);
	uint64_t rank = uz < 1 ? 0 : uz < zeta_2 ? 1 : (uint64_t)(RECORDS * pow(eta * u - eta + 1, alpha));

	return rank * 0x9e3779b97f4a7c15 % RECORDS;
}

/* Half to three halves of the mean. */
static size_t length(uint64_t *seed, size_t mean)
{
	return mean / 2 + below(seed, mean + 1);
}

/* Returns what `put` does: a deadlock is the caller's to retry. */
static int put(DB_TXN *txn, uint64_t number, void *bytes, size_t len)
{
	char name[24];
	DBT key = {.data = name, .size = snprintf(name, sizeof name, "key%012lu", (unsigned long)number)};
	DBT data = {.data = bytes, .size = len};

	return db->put(db, txn, &key, &data, 0);
}

static void load(void)
{
	char bytes[2 * LOADED_BYTES];
	uint64_t seed = 1;
	long i;

	memset(bytes, 'l', sizeof bytes);
	for (i = 0; i < RECORDS;) {
		DB_TXN *txn;

		check(env->txn_begin(env, NULL, &txn, DB_TXN_NOSYNC), "begin");
		do
			check(put(txn, i, bytes, length(&seed, LOADED_BYTES)), "load");
		while (++i % LOADED_AT_ONCE && i < RECORDS);
		check(txn->commit(txn, 0), "commit");
	}
	check(env->txn_checkpoint(env, 0, 0, DB_FORCE), "checkpoint");
}

static void read_one(uint64_t number)
{
	char name[24], bytes[2 * LOADED_BYTES];
	DBT key = {.data = name, .size = snprintf(name, sizeof name, "key%012lu", (unsigned long)number)};
	DBT data = {.data = bytes, .ulen = sizeof bytes, .flags = DB_DBT_USERMEM};
	int error;

	do
		error = db->get(db, NULL, &key, &data, 0);
	while (error == DB_LOCK_DEADLOCK);
	check(error, "get");
}

static void write_one(uint64_t number, void *bytes, size_t len)
{
	for (;;) {
		DB_TXN *txn;
		int error;

		check(env->txn_begin(env, NULL, &txn, 0), "begin");
		error = put(txn, number, bytes, len);
		if (!error) {
			check(txn->commit(txn, DB_TXN_SYNC), "commit");
			return;
		}
		check(txn->abort(txn), "abort");
		check(error == DB_LOCK_DEADLOCK ? 0 : error, "put");
	}
}

static void *run(void *argument)
{
	long i, id = (long)argument, mine = transactions / threads + (id < transactions % threads);
	uint64_t seed = 88172645463325252 + id * 0x9e3779b97f4a7c15;
	char bytes[2 * WRITTEN_BYTES];

	memset(bytes, 'w', sizeof bytes);
	for (i = 0; i < mine; i++) {
		uint64_t number = is_zipf ? zipf(&seed) : below(&seed, RECORDS);

		if (below(&seed, 100) < (uint64_t)reads)
			read_one(number);
		else
			write_one(number, bytes, length(&seed, WRITTEN_BYTES));
	}
	return NULL;
}

int main(int argc, char **argv)
{
	uint32_t flags = DB_CREATE | DB_INIT_TXN | DB_INIT_LOCK | DB_INIT_LOG | DB_INIT_MPOOL | DB_THREAD;
	pthread_t thread[THREADS_MAX];
	double begun;
	long i;

	threads = argc == 6 ? atoi(argv[2]) : 0;
	if (threads < 1 || threads > THREADS_MAX)
		return fprintf(stderr, "usage: btree DIR THREADS TRANSACTIONS READS uniform|zipf\n"), 2;
	transactions = atol(argv[3]);
	reads = atoi(argv[4]);
	is_zipf = !strcmp(argv[5], "zipf");
	for (i = 1; i <= RECORDS; i++)
		zeta += pow(i, -THETA);
	zeta_2 = 1 + pow(2, -THETA);

	check(db_env_create(&env, 0), "environment");
	check(env->set_cachesize(env, 0, BUFFER_POOL, 1), "set_cachesize");
	check(env->set_lg_max(env, LOG_FILE), "set_lg_max");
	check(env->set_lk_detect(env, DB_LOCK_DEFAULT), "set_lk_detect");
	check(env->open(env, argv[1], flags, 0644), argv[1]);
	check(db_create(&db, env, 0), "database");
	check(db->set_pagesize(db, PAGE), "set_pagesize");
	check(db->open(db, NULL, "records.db", NULL, DB_BTREE, DB_CREATE | DB_AUTO_COMMIT | DB_THREAD, 0644), "records.db");
	load();

	begun = seconds(CLOCK_MONOTONIC);
	for (i = 0; i < threads; i++)
		check(pthread_create(&thread[i], NULL, run, (void *)i), "thread");
	for (i = 0; i < threads; i++)
		check(pthread_join(thread[i], NULL), "thread");
	printf("%.6f\n", seconds(CLOCK_MONOTONIC) - begun);
	check(db->close(db, 0), "close");
	check(env->close(env, 0), "close");
	return 0;
}
