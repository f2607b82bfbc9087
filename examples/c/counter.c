/* Counts its runs in a file of a pool, and keeps a log of them.
 *
 *     keepstone mkfs /dev/shm/pool --size 64M
 *     cc -o counter examples/c/counter.c -I include -L target/release -lkeepstone
 *     LD_LIBRARY_PATH=target/release ./counter /dev/shm/pool
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "keepstone.h"

int main(int argc, char **argv)
{
	ks_pool *pool;
	ks_file *counter, *log;
	struct stat st;
	uint64_t runs = 0;
	const void *first;
	char line[64];
	int len;

	if (argc != 2) {
		fprintf(stderr, "usage: counter POOL\n");
		return 2;
	}
	pool = ks_open_pool(argv[1]);
	if (!pool) {
		perror(argv[1]);
		return 1;
	}
	ks_mkdir(pool, "/runs", 0755);
	counter = ks_open(pool, "/runs/count", O_RDWR | O_CREAT, 0644);
	log = ks_open(pool, "/runs/log", O_RDWR | O_CREAT | O_APPEND, 0644);
	if (!counter || !log || ks_pread(counter, &runs, sizeof runs, 0) < 0) {
		perror("/runs");
		return 1;
	}
	runs++;
	/* Eight bytes change whole or not at all, whatever happens now. */
	if (ks_pwrite(counter, &runs, sizeof runs, 0) != sizeof runs) {
		perror("/runs/count");
		return 1;
	}
	len = snprintf(line, sizeof line, "run %llu\n", (unsigned long long)runs);
	if (ks_write(log, line, len) != len || ks_stat(pool, "/runs/log", &st) < 0) {
		perror("/runs/log");
		return 1;
	}
	printf("%s%lld bytes of log\n", line, (long long)st.st_size);
	/* The log where it lies, without a copy. */
	len = ks_get_read_buf(log, 5, 0, &first);
	if (len != 5 || memcmp(first, "run 1", 5) != 0) {
		fprintf(stderr, "/runs/log does not begin with run 1\n");
		return 1;
	}
	ks_put_read_buf(log);
	ks_close(log);
	ks_close(counter);
	return ks_close_pool(pool) < 0;
}
