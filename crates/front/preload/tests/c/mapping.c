// Maps of the C interface, and pools that it makes. With one argument, the pool; prints "mapping", or what is wrong.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "keepstone.h"

#define SIZE 100000

int main(int argc, char **argv)
{
	int stores_are_mapped, i;
	char content[SIZE], path[4096];
	const char *all, *part;
	ks_file *file, *other;
	ks_pool *pool, *second;
	char *writes;

	CHECK(argc == 2);
	pool = ks_open_pool(argv[1]);
	CHECK(pool);
	for (i = 0; i < SIZE; i++)
		content[i] = i % 251;
	file = ks_open(pool, "/file", O_RDWR | O_CREAT, 0644);
	CHECK(file && ks_write(file, content, SIZE) == SIZE);
	all = ks_map(file, SIZE, PROT_READ, 0);
	part = ks_map(file, 10, PROT_READ, 4090);
	CHECK(all && part && memcmp(all, content, SIZE) == 0 && memcmp(part, content + 4090, 10) == 0);
	CHECK(!ks_map(file, 0, PROT_READ, 0) && errno == EINVAL);
	CHECK(!ks_map(file, SIZE + 1, PROT_READ, 0) && errno == EINVAL);
	CHECK(!ks_map(file, 1, PROT_READ, -1) && errno == EINVAL);
	CHECK(!ks_map(file, 1, PROT_EXEC, 0) && errno == EINVAL);
	FAILS(ks_unmap(file, content), EINVAL);

	writes = ks_map(file, 4, PROT_READ | PROT_WRITE, SIZE - 4);
	stores_are_mapped = writes != NULL;
	if (writes) {
		memcpy(writes, "here", 4);
		CHECK(memcmp(all + SIZE - 4, "here", 4) == 0);
		CHECK(ks_unmap(file, writes) == 0);
		FAILS(ks_unmap(file, writes), EINVAL);
	} else {
		CHECK(errno == ENOTSUP);
	}
	/* The bytes stay, although the file and the pool's handle do not. */
	CHECK(ks_unlink(pool, "/file") == 0);
	other = ks_open(pool, "/other", O_RDWR | O_CREAT, 0644);
	CHECK(other && ks_write(other, content, SIZE) == SIZE);
	CHECK(memcmp(all, content, SIZE - 4) == 0);
	CHECK(!ks_map(other, 1, PROT_READ, SIZE) && errno == EINVAL);
	CHECK(ks_ftruncate(other, 3 * SIZE) == 0);
	part = ks_map(other, SIZE, PROT_READ, 2 * SIZE);
	CHECK(part || (errno == ENOTSUP && !stores_are_mapped));
	ks_close(other);
	other = ks_open(pool, "/other", O_WRONLY, 0);
	CHECK(!ks_map(other, 1, PROT_READ, 0) && errno == EBADF);
	ks_close(other);
	CHECK(ks_close_pool(pool) == 0);
	CHECK(memcmp(all, content, SIZE - 4) == 0 && ks_unmap(file, all) == 0);
	ks_close(file);

	snprintf(path, sizeof path, "%s-made", argv[1]);
	FAILS(ks_make_pool(path, 5, NULL), EINVAL);
	FAILS(ks_make_pool(path, 16 << 20, "ext4"), EINVAL);
	CHECK(ks_make_pool(path, 16 << 20, "scmfs") == 0);
	FAILS(ks_make_pool(path, 16 << 20, NULL), EEXIST);
	second = ks_open_pool(path);
	CHECK(second && ks_close_pool(second) == 0 && unlink(path) == 0);
	puts("mapping");
	return 0;
}
