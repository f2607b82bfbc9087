// Names and attributes by the C interface. With one argument, the pool; prints "attributed", or what is wrong.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "keepstone.h"

#define NAMES 200

int main(int argc, char **argv)
{
	struct timespec times[2] = { { 7, 8 }, { 0, UTIME_OMIT } };
	char path[64], seen[NAMES] = { 0 }, text[64];
	const struct dirent *entry;
	struct statvfs space;
	struct stat stat;
	ks_pool *pool;
	ks_file *file;
	ks_dir *dir;
	int i, n = 0;

	CHECK(argc == 2);
	CHECK(strstr(ks_strerror(EUCLEAN), "damaged"));
	CHECK(strcmp(ks_strerror(ENOENT), strerror(ENOENT)) == 0);
	pool = ks_open_pool(argv[1]);
	CHECK(pool);
	CHECK(ks_mkdir(pool, "/dir", 0755) == 0);
	for (i = 0; i < NAMES; i++) {
		snprintf(path, sizeof path, "/dir/%d", i);
		file = ks_open(pool, path, O_RDWR | O_CREAT, 0644);
		CHECK(file && ks_close(file) == 0);
	}
	dir = ks_opendir(pool, "dir");
	CHECK(dir);
	errno = 0;
	while ((entry = ks_readdir(dir))) {
		if (entry->d_name[0] == '.')
			continue;
		CHECK(entry->d_type == DT_REG && sscanf(entry->d_name, "%d", &i) == 1);
		CHECK(i >= 0 && i < NAMES && !seen[i]);
		seen[i] = 1;
		n++;
	}
	CHECK(errno == 0 && n == NAMES && ks_closedir(dir) == 0);
	CHECK(ks_opendir(pool, "/dir/0") == NULL && errno == ENOTDIR);

	CHECK(ks_link(pool, "/dir/0", "/hard") == 0);
	FAILS(ks_link(pool, "/dir", "/other"), EPERM);
	CHECK(ks_symlink(pool, "dir/0", "/link") == 0);
	CHECK(ks_readlink(pool, "/link", text, sizeof text) == 5 && memcmp(text, "dir/0", 5) == 0);
	CHECK(ks_readlink(pool, "/link", text, 3) == 3);
	FAILS(ks_readlink(pool, "/hard", text, sizeof text), EINVAL);
	CHECK(ks_lstat(pool, "/link", &stat) == 0 && S_ISLNK(stat.st_mode));
	CHECK(ks_stat(pool, "/link", &stat) == 0 && S_ISREG(stat.st_mode) && stat.st_nlink == 2);

	CHECK(ks_chmod(pool, "/link", 0600) == 0 && ks_chown(pool, "/hard", 12, -1) == 0);
	CHECK(ks_utimens(pool, "/hard", times) == 0);
	CHECK(ks_stat(pool, "/dir/0", &stat) == 0);
	CHECK((stat.st_mode & 07777) == 0600 && stat.st_uid == 12 && stat.st_gid == getegid());
	CHECK(stat.st_atim.tv_sec == 7 && stat.st_atim.tv_nsec == 8 && stat.st_mtim.tv_sec > 7);
	CHECK(ks_utimens(pool, "/hard", NULL) == 0);
	times[0].tv_nsec = 1000000000;
	FAILS(ks_utimens(pool, "/hard", times), EINVAL);

	CHECK(ks_setxattr(pool, "/link", "user.a", "value", 5, 0) == 0);
	FAILS(ks_setxattr(pool, "/link", "user.a", "value", 5, 1), EEXIST);
	CHECK(ks_getxattr(pool, "/hard", "user.a", NULL, 0) == 5);
	FAILS(ks_getxattr(pool, "/hard", "user.a", text, 4), ERANGE);
	CHECK(ks_getxattr(pool, "/hard", "user.a", text, 5) == 5 && memcmp(text, "value", 5) == 0);
	CHECK(ks_listxattr(pool, "/hard", text, sizeof text) == 7 && strcmp(text, "user.a") == 0);
	CHECK(ks_removexattr(pool, "/hard", "user.a") == 0);
	FAILS(ks_getxattr(pool, "/hard", "user.a", text, 5), ENODATA);

	file = ks_open(pool, "/dir/1", O_RDWR, 0);
	CHECK(file && ks_fallocate(file, 0, 0, 10000) == 0);
	CHECK(ks_fstat(file, &stat) == 0 && stat.st_size == 10000);
	CHECK(ks_fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0);
	FAILS(ks_fallocate(file, -1, 0, 1), EOPNOTSUPP);
	FAILS(ks_fallocate(file, 0, -1, 1), EINVAL);
	CHECK(ks_close(file) == 0);

	CHECK(ks_statvfs(pool, &space) == 0 && space.f_namemax == 255 && space.f_bfree < space.f_blocks);
	CHECK(ks_sync(pool) == 0 && ks_close_pool(pool) == 0);
	puts("attributed");
	return 0;
}
