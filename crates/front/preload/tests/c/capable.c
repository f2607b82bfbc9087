// What takes security.capability from a file: every change of content, size or owner, whoever makes it. Works in the
// directory at its argument and says of each call whether the file has kept it.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/capability.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "check.h"

static const char *caller;

// Gives the file a capability, by a process that may.
static void give(void)
{
	struct vfs_cap_data can = {
		.magic_etc = VFS_CAP_REVISION_2, .data = { { .permitted = 1 << CAP_NET_BIND_SERVICE } }
	};
	CHECK(setxattr("program", "security.capability", &can, sizeof(can), 0) == 0);
}

static int has(void)
{
	char value[64];

	return getxattr("program", "security.capability", value, sizeof(value)) > 0;
}

// Each call in a process of its own, which has opened the files before it becomes `uid`.
#define TRY(call) \
	do { \
		give(); \
		fflush(stdout); \
		pid_t child = fork(); \
		CHECK(child >= 0); \
		if (child == 0) { \
			if (uid) \
				CHECK(setresgid(uid, uid, uid) == 0 && setresuid(uid, uid, uid) == 0); \
			errno = 0; \
			long result = (call); \
			printf("%s: %s = %ld, %s", caller, #call, result, strerror(errno)); \
			fflush(stdout); \
			_exit(0); \
		} \
		int status; \
		CHECK(waitpid(child, &status, 0) == child && status == 0); \
		struct stat st; \
		CHECK(stat("program", &st) == 0); \
		printf(": %s, mode %o, size %ld\n", has() ? "kept" : "gone", st.st_mode, (long)st.st_size); \
	} while (0)

static void changes_by(uid_t uid, const char *name)
{
	int fd = open("program", O_RDWR), end = open("program", O_WRONLY | O_APPEND);
	int from = open("source", O_RDONLY);
	loff_t at = 0, to = 100;
	off_t start = 0;
	struct iovec parts[2] = { { "ab", 2 }, { "cd", 2 } };

	CHECK(fd >= 0 && end >= 0 && from >= 0);
	caller = name;
	TRY(pwrite(fd, "x", 1, 0));
	TRY(pwrite(fd, "x", 0, 0));
	TRY(write(fd, "sequential", 10));
	TRY(pwritev(fd, parts, 2, 50));
	TRY(write(end, "appended", 8));
	TRY(ftruncate(fd, 9000));
	TRY(ftruncate(fd, 9000));
	TRY(truncate("program", 5000));
	TRY(close(open("program", O_WRONLY)));
	TRY(close(open("program", O_WRONLY | O_TRUNC)));
	TRY(fallocate(fd, 0, 0, 20000));
	TRY(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 10));
	TRY(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096));
	TRY(posix_fallocate(fd, 0, 30000));
	TRY(copy_file_range(from, &at, fd, &to, 2000, 0));
	TRY(sendfile(fd, from, &start, 100));
	// What changes something else, or nothing.
	TRY(chmod("program", 0666));
	TRY(setxattr("program", "user.other", "value", 5, 0));
	TRY(utimensat(AT_FDCWD, "program", NULL, 0));
	TRY(pread(fd, &at, sizeof(at), 0));
	TRY(ftruncate(fd, -1));
	TRY(pwrite(fd, "x", 1, -1));
	// The kernel has the description, too.
	CHECK(lockf(fd, F_LOCK, 1) == 0);
	TRY(pwrite(fd, "x", 1, 0));
	TRY(write(fd, "sequential", 10));
	TRY(chown("program", -1, -1));
	TRY(chown("program", 12345, 12345));
	if (uid == 0) {
		// Root's changes leave set-user-ID.
		CHECK(chmod("program", 06755) == 0);
		TRY(pwrite(fd, "x", 1, 0));
		TRY(write(end, "appended", 8));
		TRY(ftruncate(fd, 9000));
		CHECK(chmod("program", 0666) == 0);
	}
	CHECK(chown("program", 12345, 12345) == 0);
	CHECK(close(fd) == 0 && close(end) == 0 && close(from) == 0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2 && chdir(argv[1]) == 0);
	CHECK(chmod(".", 0755) == 0);
	umask(0);
	int fd = open("source", O_RDWR | O_CREAT, 0666);
	CHECK(fd >= 0 && ftruncate(fd, 5000) == 0 && close(fd) == 0);
	fd = open("program", O_RDWR | O_CREAT, 0666);
	CHECK(fd >= 0 && write(fd, "content", 7) == 7 && close(fd) == 0);
	changes_by(0, "root");
	changes_by(12345, "owner");
	changes_by(54321, "other");
	puts("done");
	return 0;
}
