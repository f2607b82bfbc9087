// Snapshots and branches by the C interface. With one argument, the pool; prints "trees", or what is wrong.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "keepstone.h"

// Gives a file of an open pool this content.
static void put(ks_pool *pool, const char *path, const char *text)
{
	ks_file *file = ks_open(pool, path, O_WRONLY | O_CREAT | O_TRUNC, 0644);

	CHECK(file && ks_write(file, text, strlen(text)) == (ssize_t)strlen(text) && ks_close(file) == 0);
}

static int has(ks_pool *pool, const char *path, const char *text)
{
	char found[64] = { 0 };
	ks_file *file = ks_open(pool, path, O_RDONLY, 0);

	CHECK(file && ks_read(file, found, sizeof found - 1) >= 0 && ks_close(file) == 0);
	return strcmp(found, text) == 0;
}

int main(int argc, char **argv)
{
	char path[4200], list[256];
	ks_pool *pool, *branch;

	CHECK(argc == 2);
	snprintf(path, sizeof path, "%s@test", argv[1]);
	pool = ks_open_pool(argv[1]);
	CHECK(pool);
	put(pool, "/file", "prepared");
	put(pool, "/other", "prepared");
	CHECK(ks_branch_list(pool, list, sizeof list) == 0);
	FAILS(ks_branch_discard(pool, "none"), ENOENT);
	FAILS(ks_branch_create(pool, "a/b"), EINVAL);
	FAILS(ks_branch_create(pool, "\xff"), EINVAL);

	CHECK(ks_branch_create(pool, "test") == 0 && ks_branch_create(pool, "more") == 0);
	FAILS(ks_branch_create(pool, "test"), EEXIST);
	FAILS(ks_snapshot_create(pool, "test"), EEXIST);
	CHECK(ks_branch_list(pool, NULL, 0) == 10);
	CHECK(ks_branch_list(pool, list, sizeof list) == 10 && memcmp(list, "more\0test", 10) == 0);
	FAILS(ks_branch_list(pool, list, 9), ERANGE);

	branch = ks_open_pool(path);
	CHECK(branch);
	put(branch, "/file", "changed");
	CHECK(has(branch, "/file", "changed") && has(pool, "/file", "prepared"));
	FAILS(ks_branch_create(branch, "of-a-branch"), ENOTSUP);
	FAILS(ks_branch_commit(pool, "test", 0, NULL, 0), EBUSY);
	FAILS(ks_branch_discard(pool, "test"), EBUSY);
	CHECK(ks_close_pool(branch) == 0);
	put(pool, "/file", "by the pool");
	put(pool, "/other", "by the pool");
	FAILS(ks_branch_commit(pool, "test", 2, NULL, 0), EINVAL);
	CHECK(ks_branch_commit(pool, "test", 0, NULL, 0) == 6);
	CHECK(ks_branch_commit(pool, "test", 0, list, sizeof list) == 6 && strcmp(list, "/file") == 0);
	CHECK(has(pool, "/file", "by the pool"));
	CHECK(ks_branch_commit(pool, "test", KS_FORCE, list, sizeof list) == 0);
	CHECK(has(pool, "/file", "changed") && has(pool, "/other", "by the pool"));
	FAILS(ks_branch_commit(pool, "test", 0, NULL, 0), ENOENT);
	CHECK(ks_branch_discard(pool, "more") == 0 && ks_branch_list(pool, list, sizeof list) == 0);

	CHECK(ks_snapshot_create(pool, "monday") == 0);
	FAILS(ks_snapshot_create(pool, "monday"), EEXIST);
	FAILS(ks_snapshot_create(pool, "@monday"), EINVAL);
	CHECK(ks_snapshot_list(pool, list, sizeof list) == 7 && strcmp(list, "monday") == 0);
	FAILS(ks_snapshot_delete(pool, "none"), ENOENT);
	put(pool, "/file", "later");
	put(pool, "/later", "later");
	FAILS(ks_snapshot_rollback(pool, "none"), ENOENT);
	FAILS(ks_snapshot_rollback(pool, "a/b"), EINVAL);
	CHECK(ks_snapshot_rollback(pool, "monday") == 0);
	CHECK(has(pool, "/file", "changed") && !ks_open(pool, "/later", O_RDONLY, 0) && errno == ENOENT);
	CHECK(ks_snapshot_delete(pool, "monday") == 0 && ks_snapshot_list(pool, list, sizeof list) == 0);
	CHECK(ks_close_pool(pool) == 0);
	puts("trees");
	return 0;
}
