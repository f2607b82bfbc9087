/*
 * Answers that programs rely on, about one file: what it says on tmpfs it says on a pool, through the mount or not, and on a cache.
 *
 *   answers DIR read|created|sent|stored|punched
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/falloc.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>
#include "check.h"

/* Linux 6.12. */
#ifndef F_CREATED_QUERY
#define F_CREATED_QUERY (1024 + 4)
#endif

enum { BLOCK = 4096, SENT = 20000, STORED = 20000 };

static const struct timespec long_ago[2] = { { 1579091696, 5 }, { 1579091696, 5 } };
static char buffer[1 << 16];

static struct stat status(int fd)
{
	struct stat found;

	CHECK(fstat(fd, &found) == 0);
	return found;
}

static int created(const char *name)
{
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);

	CHECK(fd >= 0);
	return fd;
}

/* What is read with O_NOATIME is no access, by whatever call. */
static void check_reads(void)
{
	int fd = created("file"), out = created("copy");

	CHECK(write(fd, "content", 7) == 7);
	CHECK(futimens(fd, long_ago) == 0);
	close(fd);
	fd = open("file", O_RDONLY | O_NOATIME);
	CHECK(fd >= 0 && fcntl(fd, F_GETFL) & O_NOATIME);
	CHECK(read(fd, buffer, 3) == 3 && pread(fd, buffer, 7, 0) == 7);
	off_t at = 0;
	CHECK(sendfile(out, fd, &at, 7) == 7);
	CHECK(status(fd).st_atim.tv_sec == long_ago[0].tv_sec);
	CHECK(fcntl(fd, F_SETFL, 0) == 0 && !(fcntl(fd, F_GETFL) & O_NOATIME));
	CHECK(fcntl(fd, F_SETFL, O_NOATIME) == 0 && pread(fd, buffer, 7, 0) == 7);
	CHECK(status(fd).st_atim.tv_sec == long_ago[0].tv_sec);
	close(fd);
	close(out);
}

static void check_created(void)
{
	int fd = open("file", O_RDWR | O_CREAT, 0600), is_new = fcntl(fd, F_CREATED_QUERY, 0);

	/* An older kernel. */
	if (is_new == -1 && errno == EINVAL)
		return;
	CHECK(fd >= 0 && is_new == 1);
	close(fd);
	fd = open("file", O_RDONLY);
	CHECK(fd >= 0 && fcntl(fd, F_CREATED_QUERY, 0) == 0);
	close(fd);
	fd = open("file", O_RDWR | O_CREAT, 0600);
	CHECK(fd >= 0 && fcntl(fd, F_CREATED_QUERY, 0) == 0);
	close(fd);
}

/* A file is sent whole by who has written it and has it open still. */
static void check_sent(void)
{
	int fd = created("file"), out = created("copy"), ends[2], rest = 0;
	off_t at = 0;

	for (int i = 0; i < SENT / 1000; i++)
		CHECK(pwrite(fd, buffer, 1000, i * 1000) == 1000);
	CHECK(sendfile(out, fd, &at, SENT) == SENT);
	CHECK(pwrite(fd, buffer, 1000, SENT) == 1000);
	at = 0;
	CHECK(copy_file_range(fd, &at, out, NULL, SENT + 1000, 0) == SENT + 1000);
	CHECK(pwrite(fd, buffer, 1000, SENT + 1000) == 1000);
	CHECK(pipe(ends) == 0 && fcntl(ends[1], F_SETPIPE_SZ, 1 << 16) > 0);
	at = 0;
	CHECK(splice(fd, &at, ends[1], NULL, SENT + 2000, 0) == SENT + 2000);
	CHECK(pwrite(fd, buffer, 1000, SENT + 2000) == 1000);
	CHECK(ioctl(fd, FIONREAD, &rest) == 0 && rest == SENT + 3000);
	close(fd);
	close(out);
}

/* Times that are set after stores through a mapping stay, whenever these are written back. */
static void check_stored(void)
{
	for (int way = 0; way < 4; way++) {
		int fd = created("file");

		CHECK(ftruncate(fd, STORED) == 0);
		char *mapped = mmap(0, STORED, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		CHECK(mapped != MAP_FAILED);
		memset(mapped, 'x', STORED);
		if (way == 1)
			CHECK(munmap(mapped, STORED) == 0);
		if (way == 2)
			CHECK(msync(mapped, STORED, MS_SYNC) == 0);
		CHECK(futimens(fd, long_ago) == 0);
		if (way == 3) {
			close(fd);
			fd = open("file", O_RDONLY);
		}
		if (way != 1)
			CHECK(munmap(mapped, STORED) == 0);
		close(fd);
		fd = open("file", O_RDONLY);
		CHECK(status(fd).st_mtim.tv_sec == long_ago[1].tv_sec);
		CHECK(read(fd, buffer, STORED) == STORED && buffer[STORED - 1] == 'x');
		close(fd);
	}
}

static void check_hole(int fd)
{
	CHECK(lseek(fd, 0, SEEK_HOLE) == BLOCK);
	CHECK(lseek(fd, BLOCK, SEEK_DATA) == 2 * BLOCK);
}

static void check_punched(void)
{
	int fd = created("file");

	memset(buffer, 'x', 3 * BLOCK);
	CHECK(write(fd, buffer, 3 * BLOCK) == 3 * BLOCK);
	CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, BLOCK, BLOCK) == 0);
	check_hole(fd);
	CHECK(fsync(fd) == 0);
	check_hole(fd);
	/* Not before: what the kernel has read of a hole, by a descriptor that may be mapped for stores, counts as data. */
	CHECK(pread(fd, buffer, BLOCK + 1, BLOCK) == BLOCK + 1);
	CHECK(buffer[0] == 0 && buffer[BLOCK - 1] == 0 && buffer[BLOCK] == 'x');
	close(fd);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3 && chdir(argv[1]) == 0);
	switch (argv[2][0]) {
	case 'r': check_reads(); break;
	case 'c': check_created(); break;
	case 's': argv[2][1] == 'e' ? check_sent() : check_stored(); break;
	default: check_punched();
	}
	unlink("copy");
	CHECK(unlink("file") == 0);
	return 0;
}
