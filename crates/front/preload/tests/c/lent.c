// Memory that the C interface lends: a file in many pieces as one slice, to be read and to be stored to. With one argument, the
// pool; prints "lent", or what is wrong.
#include "check.h"
#include <fcntl.h>
#include <string.h>

#include "keepstone.h"

#define BLOCK 4096
#define BLOCKS 900

int main(int argc, char **argv)
{
	ks_pool *pool;
	ks_file *file, *other;
	char block[BLOCK], got[16];
	const void *reads, *again;
	void *writes, *second;
	struct stat before, after;
	int i;

	CHECK(argc == 2);
	pool = ks_open_pool(argv[1]);
	CHECK(pool);
	file = ks_open(pool, "/scattered", O_RDWR | O_CREAT, 0644);
	other = ks_open(pool, "/other", O_RDWR | O_CREAT, 0644);
	CHECK(file && other);
	/* In turns, at the wrong end first: what follows each other in the file does not lie so. */
	for (i = BLOCKS - 1; i >= 0; i--) {
		memset(block, 'a' + i % 26, BLOCK);
		CHECK(ks_pwrite(file, block, BLOCK, (off_t)i * BLOCK) == BLOCK);
		CHECK(ks_pwrite(other, block, BLOCK, (off_t)i * BLOCK) == BLOCK);
	}
	CHECK(ks_get_read_buf(file, BLOCKS * BLOCK, 0, &reads) == BLOCKS * BLOCK);
	for (i = 0; i < BLOCKS; i++)
		CHECK(((const char *)reads)[(off_t)i * BLOCK + 7] == 'a' + i % 26);
	CHECK(ks_get_read_buf(file, 2 * BLOCK, 5 * BLOCK - 10, &again) == 2 * BLOCK);
	CHECK(again == (const char *)reads + 5 * BLOCK - 10);
	CHECK(ks_put_read_buf(file) == 0);

	CHECK(ks_fstat(file, &before) == 0);
	CHECK(ks_get_write_buf(file, 3 * BLOCK, 4000, &writes) == 3 * BLOCK);
	memcpy(writes, "through it", 10);
	/* At once, to all. */
	CHECK(ks_pread(file, got, 10, 4000) == 10 && memcmp(got, "through it", 10) == 0);
	CHECK(memcmp((const char *)reads + 4000, "through it", 10) == 0);
	CHECK(ks_get_write_buf(file, BLOCK, (off_t)BLOCKS * BLOCK - 100, &second) == 100);
	CHECK(ks_put_write_buf(file, second) == 0 && ks_put_write_buf(file, writes) == 0);
	FAILS(ks_put_write_buf(file, writes), EINVAL);
	CHECK(ks_get_write_buf(file, BLOCK, (off_t)BLOCKS * BLOCK, &second) == 0);
	CHECK(ks_fstat(file, &after) == 0 && after.st_size == before.st_size);
	CHECK(ks_put_read_buf(file) == 0);

	ks_close(other);
	other = ks_open(pool, "/other", O_RDONLY, 0);
	FAILS(ks_get_write_buf(other, BLOCK, 0, &second), EBADF);
	CHECK(ks_get_read_buf(other, 10 * BLOCK, 3 * BLOCK, &reads) == 10 * BLOCK);
	CHECK(((const char *)reads)[BLOCK] == 'a' + 4);
	/* Not given back: it goes with the file. */
	ks_close(other);
	ks_close(file);
	CHECK(ks_close_pool(pool) == 0);
	puts("lent");
	return 0;
}
