/* Calls by number (`syscall`), and by libc where it has them, that take descriptors, paths, sets of descriptors or lists of
 * bytes, below the directory given. Each finds a file that no call has made the kernel's before. Prints what they return, so
 * that two runs can be compared: on a pool with the library, and on tmpfs without it.
 *
 * usage: numbers DIR
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>
#include <utime.h>

#define T(call) do { fd = fresh(); errno = 0; show(#call, (long)(call)); end(); } while (0)

static int fd, dir, pair[2], null;
static char buf[4096];
static struct iovec list[2] = { { buf, 3 }, { buf + 3, 5 } };
static struct stat st;
static struct statfs sfs;
static struct statx stx;
static struct timespec times[2] = { { 1000000000, 0 }, { 1000000000, 0 } }, soon;
static loff_t at, to;
static off_t from;

static int fresh(void)
{
	int made = open("file", O_CREAT | O_RDWR | O_TRUNC, 0600);

	if (made < 0 || write(made, "0123456789", 10) != 10 || lseek(made, 2, SEEK_SET) != 2)
		exit(1);
	soon = (struct timespec){ 0, 20000000 };
	memset(buf, 0, sizeof(buf));
	at = to = from = 0;
	return made;
}

static void show(const char *call, long result)
{
	printf("%s = %ld %s", call, result, result == -1 ? strerrorname_np(errno) : "");
	printf(" offset %ld", (long)lseek(fd, 0, SEEK_CUR));
	char text[16] = "";
	printf(" file %zd %s\n", pread(fd, text, 15, 0), text);
}

static void end(void)
{
	char rest[64];

	close(fd);
	fcntl(pair[0], F_SETFL, O_NONBLOCK);
	while (read(pair[0], rest, sizeof(rest)) > 0)
		;
	fcntl(pair[0], F_SETFL, 0);
}

static int fill(void)
{
	return write(pair[1], "pipe", 4) == 4;
}

static long polled(int (*function)(struct pollfd *))
{
	struct pollfd p[2] = { { fd, POLLIN | POLLOUT, 0 }, { pair[1], POLLOUT, 0 } };
	long ready = function(p);

	return ready < 0 ? -1 : ready * 1000000 + p[0].revents * 1000 + p[1].revents;
}

static int by_poll(struct pollfd *p) { return poll(p, 2, 20); }
static int raw_poll(struct pollfd *p) { return syscall(SYS_poll, p, 2, 20); }
static int by_ppoll(struct pollfd *p) { return ppoll(p, 2, &soon, NULL); }
static int raw_ppoll(struct pollfd *p) { return syscall(SYS_ppoll, p, 2, &soon, NULL, 8); }

static long selected(int number)
{
	struct timeval wait = { 0, 20000 };
	fd_set read, write;

	FD_ZERO(&read);
	FD_ZERO(&write);
	FD_SET(fd, &read);
	FD_SET(fd, &write);
	FD_SET(pair[1], &write);
	int most = (fd > pair[1] ? fd : pair[1]) + 1;
	int ready = number == 0 ? select(most, &read, &write, NULL, &wait) :
		    number == 1 ? pselect(most, &read, &write, NULL, &soon, NULL) :
		    number == 2 ? syscall(SYS_select, most, &read, &write, NULL, &wait) :
				  syscall(SYS_pselect6, most, &read, &write, NULL, &soon, NULL);
	return ready < 0 ? -1 : ready * 100 + !!FD_ISSET(fd, &read) * 10 + !!FD_ISSET(fd, &write);
}

static long polls_by_epoll(int by_number)
{
	int epoll = epoll_create1(0);
	struct epoll_event event = { EPOLLIN };
	long result = by_number ? syscall(SYS_epoll_ctl, epoll, EPOLL_CTL_ADD, fd, &event) :
				  epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
	int error = errno;

	close(epoll);
	errno = error;
	return result;
}

static long opens(void)
{
	struct open_how how = { O_RDONLY };
	int opened = syscall(SYS_openat2, dir, "file", &how, sizeof(how));
	long result = opened < 0 ? -1 : pread(opened, buf, 10, 0);

	close(opened);
	return result;
}

static long own_descriptor(void)
{
	int self = syscall(SYS_pidfd_open, getpid(), 0);
	int again = syscall(SYS_pidfd_getfd, self, fd, 0);
	long result = again < 0 ? -1 : read(again, buf, 4);

	close(again);
	close(self);
	return result;
}

static long entries(void)
{
	long total = 0, len;
	int list = open(".", O_RDONLY | O_DIRECTORY);

	while ((len = syscall(SYS_getdents, list, buf, sizeof(buf))) > 0)
		for (long at = 0; at < len; at += *(unsigned short *)(buf + at + 16))
			total++;
	close(list);
	return len < 0 ? -1 : total;
}

static long same_path(int by_number)
{
	char other[4096], given[4096];

	if (by_number ? syscall(SYS_getcwd, given, sizeof(given)) != (long)strlen(given) + 1 : !getcwd(given, sizeof(given)))
		return -1;
	return !strcmp(given, realpath(".", other));
}

static long forks(long number)
{
	int status;
	pid_t child = number < 0 ? vfork() : syscall(number);

	if (child == 0)
		_exit(pread(fd, buf, 3, 0));
	return waitpid(child, &status, 0) == child ? WEXITSTATUS(status) : -1;
}

static void special(void)
{
	int fifo;

	mkfifo("fifo", 0600);
	fifo = open("fifo", O_RDWR);
	T(copy_file_range(fd, NULL, null, NULL, 8, 0));
	T(copy_file_range(fd, NULL, fifo, NULL, 8, 0));
	T(copy_file_range(fd, NULL, pair[1], NULL, 8, 0));
	T(copy_file_range(fd, NULL, dir, NULL, 8, 0));
	T(copy_file_range(null, NULL, fd, NULL, 8, 0));
	T(copy_file_range(pair[0], NULL, fd, NULL, 8, 0));
	T(copy_file_range(dir, NULL, fd, NULL, 8, 0));
	T(copy_file_range(fd, NULL, -1, NULL, 8, 0));
	T(copy_file_range(fd, NULL, AT_FDCWD, NULL, 8, 0));
	T(syscall(SYS_copy_file_range, fd, &at, fd, NULL, 2, 0));
	T(syscall(SYS_copy_file_range, fd, NULL, pair[1], NULL, 2, 0));
	close(fifo);
}

static void jail(void)
{
	mkdir("jail", 0755);
	fflush(stdout);
	if (fork() == 0) {
		if (chroot("jail"))
			_exit(1);
		char *path = realpath(".", NULL);
		printf("realpath: %s\n", path ? path : strerrorname_np(errno));
		path = getcwd(buf, sizeof(buf));
		printf("getcwd: %s\n", path ? path : strerrorname_np(errno));
		printf("get_current_dir_name: %s\n", get_current_dir_name() ? "a path" : strerrorname_np(errno));
		printf("by number: %ld\n", syscall(SYS_getcwd, buf, sizeof(buf)) > 0 ? (long)strncmp(buf, "(unreachable)", 13) : -1);
		fflush(stdout);
		_exit(0);
	}
	wait(NULL);
}

int main(int argc, char **argv)
{
	if (argc != 2 || chdir(argv[1]) || pipe(pair))
		return 1;
	dir = open(".", O_RDONLY | O_DIRECTORY);
	null = open("/dev/null", O_RDWR);
	setvbuf(stdout, NULL, _IOFBF, 1 << 16);

	T(polled(by_poll));
	T(polled(raw_poll));
	T(polled(by_ppoll));
	T(polled(raw_ppoll));
	T(selected(0));
	T(selected(1));
	T(selected(2));
	T(selected(3));
	T(polls_by_epoll(0));
	T(polls_by_epoll(1));

	T(syscall(SYS_read, fd, buf, 3));
	T(syscall(SYS_write, fd, "abc", 3));
	T(syscall(SYS_pread64, fd, buf, 3, 1));
	T(syscall(SYS_pwrite64, fd, "abc", 3, 1));
	T(syscall(SYS_readv, fd, list, 2));
	T(syscall(SYS_writev, fd, list, 2));
	T(syscall(SYS_preadv, fd, list, 2, 1, 0));
	T(syscall(SYS_pwritev, fd, list, 2, 1, 0));
	T(syscall(SYS_preadv2, fd, list, 2, 1, 0, 0));
	T(syscall(SYS_preadv2, fd, list, 2, -1, -1, 0));
	T(syscall(SYS_pwritev2, fd, list, 2, 1, 0, RWF_APPEND));
	T(syscall(SYS_pwritev2, fd, list, 2, -1, -1, 0));
	T(syscall(SYS_lseek, fd, 1, SEEK_END));
	T(syscall(SYS_ftruncate, fd, 4));
	T(syscall(SYS_truncate, "file", 4));
	T(syscall(SYS_fallocate, fd, 0, 0, 20));
	T(syscall(SYS_fsync, fd));
	T(syscall(SYS_fdatasync, fd));
	T(syscall(SYS_syncfs, fd));
	T(syscall(SYS_sync_file_range, fd, 0, 10, 0));
	T(syscall(SYS_readahead, fd, 0, 10));
	T(syscall(SYS_fadvise64, fd, 0, 10, POSIX_FADV_DONTNEED));
	T(syscall(SYS_fadvise64, fd, 0, 10, 77));
	T(syscall(SYS_fadvise64, pair[0], 0, 10, 0));
	T(posix_fadvise(fd, 0, 10, 77));

	T(tee(fd, pair[1], 3, 0));
	T(fill() ? tee(pair[0], fd, 3, 0) : 0);
	T(syscall(SYS_tee, fd, pair[1], 3, 0));
	T(fill() ? syscall(SYS_tee, pair[0], fd, 3, 0) : 0);
	T(splice(fd, NULL, pair[1], NULL, 3, 0));
	T(syscall(SYS_splice, fd, NULL, pair[1], NULL, 3, 0));
	T(syscall(SYS_splice, fd, &at, pair[1], NULL, 3, 0));
	T(fill() ? syscall(SYS_splice, pair[0], NULL, fd, NULL, 3, 0) : 0);
	T(fill() ? syscall(SYS_splice, pair[0], NULL, fd, &to, 3, 0) : 0);
	T(syscall(SYS_vmsplice, fd, list, 1, 0));
	T(syscall(SYS_sendfile, pair[1], fd, NULL, 3));
	T(syscall(SYS_sendfile, pair[1], fd, &from, 3));
	T(syscall(SYS_sendfile, fd, fd, NULL, 3));

	T(syscall(SYS_dup, fd) < 0);
	T(syscall(SYS_dup2, fd, 200));
	T(syscall(SYS_dup3, fd, 200, O_CLOEXEC));
	T(syscall(SYS_fcntl, fd, F_GETFL) & ~0100000);
	T(syscall(SYS_fcntl, fd, F_DUPFD, 300));
	T(syscall(SYS_fcntl, fd, F_SETLK, &(struct flock){ F_WRLCK }));
	T(syscall(SYS_flock, fd, LOCK_EX | LOCK_NB));
	T(syscall(SYS_kcmp, getpid(), getpid(), 0, fd, fd));
	T(own_descriptor());
	T(opens());
	T(entries());
	T(same_path(0));
	T(same_path(1));
	T(syscall(SYS_getcwd, NULL, 100));
	T(syscall(SYS_getcwd, buf, 1));

	T(syscall(SYS_stat, "file", &st) + st.st_size);
	T(syscall(SYS_lstat, "file", &st) + st.st_size);
	T(syscall(SYS_fstat, fd, &st) + st.st_size);
	T(syscall(SYS_newfstatat, dir, "file", &st, 0));
	T(syscall(SYS_newfstatat, fd, "", &st, AT_EMPTY_PATH) + st.st_size);
	T(syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_ALL, &stx) + stx.stx_size);
	T(syscall(SYS_statx, dir, "file", 0, STATX_ALL, &stx) + stx.stx_size);
	T(syscall(SYS_statfs, "file", &sfs));
	T(syscall(SYS_fstatfs, fd, &sfs));
	T(syscall(SYS_access, "file", X_OK));
	T(syscall(SYS_faccessat, dir, "file", W_OK));
	T(syscall(SYS_faccessat2, dir, "file", W_OK, AT_EACCESS));
	T(syscall(SYS_chmod, "file", 0644));
	T(syscall(SYS_fchmod, fd, 0600));
	T(syscall(SYS_fchmodat, dir, "file", 0600));
	T(syscall(452 /* fchmodat2 */, dir, "file", 0600, 0));
	T(syscall(SYS_chown, "file", 1, 1));
	T(syscall(SYS_lchown, "file", 1, 1));
	T(syscall(SYS_fchown, fd, 1, 1));
	T(syscall(SYS_fchownat, dir, "file", 1, 1, 0));
	T(syscall(SYS_fchownat, fd, "", 2, 2, AT_EMPTY_PATH));
	T(syscall(SYS_utime, "file", NULL));
	T(syscall(SYS_utimes, "file", NULL));
	T(syscall(SYS_futimesat, dir, "file", NULL));
	T(syscall(SYS_futimesat, fd, NULL, NULL));
	T(syscall(SYS_utimensat, dir, "file", times, 0));
	T(syscall(SYS_utimensat, fd, NULL, times, 0));
	T(syscall(SYS_utimensat, AT_FDCWD, NULL, times, 0));

	T(syscall(SYS_setxattr, "file", "user.a", "value", 5, 0));
	T(syscall(SYS_lsetxattr, "file", "user.a", "value", 5, XATTR_CREATE));
	T(syscall(SYS_fsetxattr, fd, "user.b", "value", 5, 0));
	T(syscall(SYS_getxattr, "file", "user.a", buf, 10));
	T(syscall(SYS_lgetxattr, "file", "user.a", buf, 10));
	T(syscall(SYS_fgetxattr, fd, "user.b", buf, 10));
	T(syscall(SYS_listxattr, "file", buf, sizeof(buf)));
	T(syscall(SYS_llistxattr, "file", buf, sizeof(buf)));
	T(syscall(SYS_flistxattr, fd, buf, sizeof(buf)));
	T(syscall(SYS_removexattr, "file", "user.a"));
	T(syscall(SYS_lremovexattr, "file", "user.a"));
	T(syscall(SYS_fremovexattr, fd, "user.b"));

	T(syscall(SYS_mkdir, "d1", 0700));
	T(syscall(SYS_mkdirat, dir, "d2", 0700));
	T(syscall(SYS_rmdir, "d1"));
	T(syscall(SYS_unlinkat, dir, "d2", AT_REMOVEDIR));
	T(syscall(SYS_mknod, "n1", S_IFREG | 0600, 0));
	T(syscall(SYS_mknodat, dir, "n2", S_IFIFO | 0600, 0));
	T(syscall(SYS_link, "file", "l1"));
	T(syscall(SYS_linkat, dir, "file", dir, "l2", 0));
	T(syscall(SYS_symlink, "file", "s1"));
	T(syscall(SYS_symlinkat, "file", dir, "s2"));
	T(syscall(SYS_readlink, "s1", buf, 10));
	T(syscall(SYS_readlinkat, dir, "s2", buf, 10));
	T(syscall(SYS_rename, "l1", "l3"));
	T(syscall(SYS_renameat, dir, "l2", dir, "l4"));
	T(syscall(SYS_renameat2, dir, "l3", dir, "l4", RENAME_EXCHANGE));
	T(syscall(SYS_unlink, "l3"));
	T(syscall(SYS_creat, "c1", 0600) < 0);
	T(syscall(SYS_open, "file", O_RDONLY) < 0);
	T(syscall(SYS_openat, dir, "file", O_RDONLY) < 0);
	T(syscall(SYS_chdir, "."));
	T(syscall(SYS_fchdir, dir));

	T(forks(SYS_fork));
	T(forks(-1));
	special();
	jail();
	printf("done\n");
	return 0;
}
