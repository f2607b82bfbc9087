/* Passes every pointer that a file function takes in all the ways in which a pointer can be good or bad,
 * below the directory given, and prints what each call returned, so that two runs can be compared: on a
 * pool with the library, and on tmpfs without it.
 *
 * usage: pointers DIR
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

#define PAGE 4096

/* How a pointer can lie. PLAIN comes first: what is stored elsewhere has to be the same. */
enum kind { PLAIN, UNALIGNED, AT_END, READ_ONLY, NULL_POINTER, UNMAPPED, KERNELS, ACROSS_END, KINDS };
static const char *const kind_names[] = { "plain", "unaligned", "at the end of a page", "read-only",
	"null", "unmapped", "the kernel's", "across the end of a page" };

static char *writable;  /* a page, and nothing behind it */
static char *read_only; /* the same, read-only when a call is made */
static sigjmp_buf after_fault;

static void fault(int signal)
{
	siglongjmp(after_fault, signal);
}

static char *place(enum kind kind, const void *template, size_t size)
{
	char *at = writable;

	mprotect(read_only, PAGE, PROT_READ | PROT_WRITE);
	switch (kind) {
	case UNALIGNED:
		at += 65;
		break;
	case AT_END:
		at += PAGE - size;
		break;
	case READ_ONLY:
		at = read_only + 64;
		break;
	case NULL_POINTER:
		return NULL;
	case UNMAPPED:
		return (char *)8;
	case KERNELS:
		return (char *)0xffff800000001000;
	case ACROSS_END:
		at += PAGE - (size + 1) / 2;
		memcpy(at, template, (size + 1) / 2);
		return at;
	default:
		at += 64;
	}
	memcpy(at, template, size);
	mprotect(read_only, PAGE, PROT_READ);
	return at;
}

/* Files that calls are made on: a regular file, a directory, and ends of a socket. */
static int file, other, dir, ends[2];

/* Opens them: the last calls may have left them to the kernel. */
static void fresh(void)
{
	close(file);
	close(other);
	close(dir);
	file = open("file", O_CREAT | O_RDWR, 0600);
	other = open("other", O_CREAT | O_RDWR, 0600);
	dir = open(".", O_RDONLY | O_DIRECTORY);
}

static void reset(void)
{
	lseek(file, 0, SEEK_SET);
	lseek(other, 0, SEEK_SET);
	lseek(dir, 0, SEEK_SET);
}

/* Calls with `p` where an object with this content lies, in every way; then tidies up. */
#define CALL(object, tidy, call) \
	do { \
		__auto_type template = (object); \
		char first[sizeof(template)]; \
		for (int kind = PLAIN; kind < KINDS; kind++) { \
			reset(); \
			void *p = place(kind, &template, sizeof(template)); \
			int signal = sigsetjmp(after_fault, 1); \
			if (signal) { \
				printf(#call " | %s: signal %d\n", kind_names[kind], signal); \
				continue; \
			} \
			errno = 0; \
			long result = (long)(call); \
			int error = errno; \
			printf(#call " | %s: %ld %s", kind_names[kind], result, \
			       result == -1 ? strerrorname_np(error) : ""); \
			if (kind == PLAIN) \
				memcpy(first, p, sizeof(template)); \
			else if (kind <= AT_END && memcmp(first, p, sizeof(template))) \
				printf(", stores something else"); \
			printf("\n"); \
			if (result != -1) { \
				tidy; \
			} \
		} \
	} while (0)

/* What others use of the file system meanwhile is not the call's. */
#define WITHOUT_USE(type, function, inodes_left) \
	static long function##_without_use(long result, void *p) \
	{ \
		type *found = p; \
		if (result == 0) \
			found->f_bfree = found->f_bavail = found->f_ffree = found->inodes_left = 0; \
		return result; \
	}
WITHOUT_USE(struct statfs, statfs, f_ffree)
WITHOUT_USE(struct statvfs, statvfs, f_favail)

#define NAME(text) ((struct { char bytes[sizeof(text)]; }){ text })
#define NOTHING (void)0

static void names(void)
{
	struct stat st;
	struct statx stx;
	struct statfs fs;
	struct statvfs vfs;
	char buf[64];

	CALL(NAME("file"), close(result), open(p, O_RDONLY));
	CALL(NAME("new"), close(result); unlink("new"), open(p, O_CREAT | O_RDWR, 0600));
	CALL(NAME("new"), close(result); unlink("new"), creat(p, 0600));
	CALL(NAME("file"), close(result), openat(dir, p, O_RDONLY));
	CALL(NAME("file"), NOTHING, stat(p, &st));
	CALL(NAME("file"), NOTHING, lstat(p, &st));
	CALL(NAME("file"), NOTHING, fstatat(dir, p, &st, 0));
	CALL(NAME(""), NOTHING, fstatat(file, p, &st, AT_EMPTY_PATH));
	CALL(NAME("file"), NOTHING, statx(dir, p, 0, STATX_BASIC_STATS, &stx));
	CALL(NAME(""), NOTHING, statx(file, p, AT_EMPTY_PATH, STATX_BASIC_STATS, &stx));
	CALL(NAME("file"), NOTHING, statfs(p, &fs));
	CALL(NAME("file"), NOTHING, statvfs(p, &vfs));
	CALL(NAME("file"), NOTHING, access(p, R_OK));
	CALL(NAME("file"), NOTHING, faccessat(dir, p, R_OK, 0));
	CALL(NAME("file"), NOTHING, eaccess(p, R_OK));
	CALL(NAME("file"), NOTHING, chmod(p, 0644));
	CALL(NAME("file"), NOTHING, fchmodat(dir, p, 0644, 0));
	CALL(NAME("file"), NOTHING, chown(p, 0, 0));
	CALL(NAME("file"), NOTHING, lchown(p, 0, 0));
	CALL(NAME("file"), NOTHING, fchownat(dir, p, 0, 0, 0));
	CALL(NAME("file"), NOTHING, truncate(p, 100));
	CALL(NAME("file"), NOTHING, utime(p, NULL));
	CALL(NAME("file"), NOTHING, utimes(p, NULL));
	CALL(NAME("file"), NOTHING, lutimes(p, NULL));
	CALL(NAME("file"), NOTHING, futimesat(dir, p, NULL));
	CALL(NAME("file"), NOTHING, utimensat(dir, p, NULL, 0));
	CALL(NAME("file"), unlink("new"), link(p, "new"));
	CALL(NAME("new"), unlink("new"), link("file", p));
	CALL(NAME("file"), unlink("new"), linkat(dir, p, dir, "new", 0));
	CALL(NAME("new"), unlink("new"), linkat(dir, "file", dir, p, 0));
	CALL(NAME("file"), unlink("new"), symlink(p, "new"));
	CALL(NAME("new"), unlink("new"), symlink("file", p));
	CALL(NAME("new"), unlink("new"), symlinkat("file", dir, p));
	CALL(NAME("gone"), close(creat("gone", 0600)), unlink(p));
	CALL(NAME("gone"), close(creat("gone", 0600)), unlinkat(dir, p, 0));
	CALL(NAME("gone"), close(creat("gone", 0600)), remove(p));
	CALL(NAME("file"), rename("new", "file"), rename(p, "new"));
	CALL(NAME("new"), rename("new", "file"), rename("file", p));
	CALL(NAME("file"), rename("new", "file"), renameat(dir, p, dir, "new"));
	CALL(NAME("new"), rename("new", "file"), renameat(dir, "file", dir, p));
	CALL(NAME("new"), rename("new", "file"), renameat2(dir, "file", dir, p, RENAME_NOREPLACE));
	CALL(NAME("new"), rmdir("new"), mkdir(p, 0700));
	CALL(NAME("new"), rmdir("new"), mkdirat(dir, p, 0700));
	CALL(NAME("gonedir"), mkdir("gonedir", 0700), rmdir(p));
	CALL(NAME("new"), unlink("new"), mknod(p, S_IFREG | 0600, 0));
	CALL(NAME("new"), unlink("new"), mkfifo(p, 0600));
	CALL(NAME("link"), NOTHING, readlink(p, buf, sizeof(buf)));
	CALL(NAME("link"), NOTHING, readlinkat(dir, p, buf, sizeof(buf)));
	CALL(NAME("."), NOTHING, chdir(p));
	DIR *stream;
	CALL(NAME("."), closedir(stream), (stream = opendir(p)) ? 0 : -1);
	CALL(NAME("file"), NOTHING, getxattr(p, "user.none", buf, sizeof(buf)));
	CALL(NAME("file"), NOTHING, lgetxattr(p, "user.none", buf, sizeof(buf)));
	CALL(NAME("file"), NOTHING, listxattr(p, buf, sizeof(buf)));
	CALL(NAME("file"), NOTHING, llistxattr(p, buf, sizeof(buf)));
	CALL(NAME("file"), NOTHING, removexattr(p, "trusted.none"));
	CALL(NAME("file"), NOTHING, lremovexattr(p, "trusted.none"));
}

static void extended_attributes(void)
{
	char buf[8];

	CALL(NAME("trusted.name"), removexattr("file", "trusted.name"),
	     setxattr("file", p, "value", 5, 0));
	CALL(NAME("trusted.name"), fremovexattr(file, "trusted.name"), fsetxattr(file, p, "value", 5, 0));
	CALL(NAME("value"), NOTHING, setxattr("file", "trusted.name", p, 1 << 20, 0));
	CALL(NAME("value"), NOTHING, setxattr("file", "trusted.name", p, 5, 0));
	CALL(NAME("value"), NOTHING, lsetxattr("file", "trusted.name", p, 5, 0));
	CALL(NAME("value"), NOTHING, fsetxattr(file, "trusted.name", p, 5, 0));
	CALL(NAME("trusted.name"), NOTHING, getxattr("file", p, buf, sizeof(buf)));
	CALL(NAME("trusted.name"), NOTHING, fgetxattr(file, p, buf, sizeof(buf)));
	CALL(NAME("....."), NOTHING, getxattr("file", "trusted.name", p, 5));
	CALL(NAME("....."), NOTHING, lgetxattr("file", "trusted.name", p, 5));
	CALL(NAME("....."), NOTHING, fgetxattr(file, "trusted.name", p, 5));
	CALL(NAME("....."), NOTHING, fgetxattr(file, "trusted.name", p, 0));
	CALL(NAME("............."), NOTHING, listxattr("file", p, 13));
	CALL(NAME("............."), NOTHING, llistxattr("file", p, 13));
	CALL(NAME("............."), NOTHING, flistxattr(file, p, 13));
	CALL(NAME("trusted.none"), NOTHING, removexattr("file", p));
	CALL(NAME("trusted.none"), NOTHING, fremovexattr(file, p));
}

static void content(void)
{
	static char text[300];
	struct iovec vec = { text, 100 };
	struct bytes { char bytes[100]; } bytes = { "bytes" };
	int second = open("file", O_RDWR), path_only = open("file", O_PATH);
	int read_only_file = open("file", O_RDONLY);

#define ITEM(at) (&(struct iovec){ at, 100 })
	CALL(bytes, NOTHING, read(file, p, 100));
	CALL(bytes, NOTHING, read(file, p, 0));
	CALL(bytes, NOTHING, read(dir, p, 100));
	CALL(bytes, NOTHING, pread(dir, p, 100, 0));
	CALL(bytes, NOTHING, pread(file, p, 100, 1000));
	CALL(bytes, NOTHING, pread(file, p, 100, -1));
	CALL(bytes, NOTHING, pwrite(file, p, 100, -1));
	CALL(bytes, NOTHING, read(path_only, p, 100));
	CALL(bytes, NOTHING, write(path_only, p, 100));
	CALL(bytes, NOTHING, write(read_only_file, p, 100));
	CALL(bytes, NOTHING, pread(file, p, 100, 0));
	CALL(bytes, NOTHING, readv(file, ITEM(p), 1));
	CALL(bytes, NOTHING, preadv(file, ITEM(p), 1, 0));
	CALL(bytes, NOTHING, preadv2(file, ITEM(p), 1, 0, 0));
	CALL(vec, NOTHING, readv(file, p, 1));
	CALL(vec, NOTHING, preadv(file, p, 1, 0));
	CALL(vec, NOTHING, preadv2(file, p, 1, 0, 0));
	CALL(bytes, NOTHING, write(file, p, 100));
	CALL(bytes, NOTHING, write(file, p, 0));
	CALL(bytes, NOTHING, pwrite(file, p, 100, 0));
	CALL(bytes, NOTHING, writev(file, ITEM(p), 1));
	CALL(bytes, NOTHING, pwritev(file, ITEM(p), 1, 0));
	CALL(bytes, NOTHING, pwritev2(file, ITEM(p), 1, 0, 0));
	CALL(vec, NOTHING, writev(file, p, 1));
	CALL(vec, NOTHING, pwritev(file, p, 1, 0));
	CALL(vec, NOTHING, pwritev2(file, p, 1, 0, 0));
	CALL(((off_t){ 0 }), NOTHING, copy_file_range(file, p, other, NULL, 10, 0));
	CALL(((off_t){ 0 }), NOTHING, copy_file_range(file, NULL, other, p, 10, 0));
	CALL(((off_t){ 1000 }), NOTHING, copy_file_range(file, p, other, NULL, 10, 0));
	CALL(((off_t){ 0 }), NOTHING, sendfile(other, file, p, 10));
	CALL(((off_t){ 1000 }), NOTHING, sendfile(other, file, p, 10));
	CALL(((off_t){ 0 }), read(ends[1], text, 100), sendfile(ends[0], second, p, 10));
	close(second);
	close(path_only);
	close(read_only_file);
}

static void attributes(void)
{
	struct timespec spec[2] = { { 1000, 5 }, { 2000, 7 } };
	struct timeval val[2] = { { 1000, 5 }, { 2000, 7 } };
	struct specs { struct timespec at[2]; } specs = { { spec[0], spec[1] } };
	struct vals { struct timeval at[2]; } vals = { { val[0], val[1] } };

	CALL(specs, NOTHING, utimensat(dir, "file", p, 0));
	CALL(specs, NOTHING, futimens(file, p));
	CALL(vals, NOTHING, utimes("file", p));
	CALL(vals, NOTHING, lutimes("file", p));
	CALL(vals, NOTHING, futimes(file, p));
	CALL(vals, NOTHING, futimesat(dir, "file", p));
	CALL(((struct utimbuf){ 1000, 2000 }), NOTHING, utime("file", p));
	CALL(((struct stat){ 0 }), NOTHING, stat("file", p));
	CALL(((struct stat){ 0 }), NOTHING, lstat("file", p));
	CALL(((struct stat){ 0 }), NOTHING, fstat(file, p));
	CALL(((struct stat){ 0 }), NOTHING, fstatat(dir, "file", p, 0));
	CALL(((struct stat){ 0 }), NOTHING, stat("none", p));
	CALL(((struct stat){ 0 }), NOTHING, syscall(SYS_fstat, file, p));
	CALL(specs, NOTHING, syscall(SYS_utimensat, file, NULL, p, 0));
	CALL(specs, NOTHING, syscall(SYS_utimensat, AT_FDCWD, NULL, p, 0));
	CALL(((struct statx){ 0 }), NOTHING, statx(dir, "file", 0, STATX_BASIC_STATS, p));
	CALL(((struct statfs){ 0 }), NOTHING, statfs_without_use(statfs("file", p), p));
	CALL(((struct statfs){ 0 }), NOTHING, statfs_without_use(fstatfs(file, p), p));
	CALL(((struct statvfs){ 0 }), NOTHING, statvfs_without_use(statvfs("file", p), p));
	CALL(((struct statvfs){ 0 }), NOTHING, statvfs_without_use(fstatvfs(file, p), p));
	CALL(NAME("...."), NOTHING, readlink("link", p, 4));
	CALL(NAME("...."), NOTHING, readlinkat(dir, "link", p, 4));
	CALL(NAME("...."), NOTHING, readlink("file", p, 4));
}

static void descriptors(void)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10 };
	struct flock relative = { .l_type = F_RDLCK, .l_whence = SEEK_CUR, .l_len = 10 };
	int path_only = open("file", O_PATH);

	CALL(lock, NOTHING, fcntl(file, F_GETLK, p));
	CALL(lock, NOTHING, fcntl(file, F_SETLK, p));
	CALL(lock, NOTHING, fcntl(file, F_SETLKW, p));
	CALL(relative, NOTHING, fcntl(file, F_SETLK, p));
	CALL(lock, NOTHING, fcntl(path_only, F_SETLK, p));
	CALL(lock, NOTHING, fcntl(99, F_SETLK, p));
	lock.l_type = F_UNLCK;
	CALL(lock, NOTHING, fcntl(file, F_SETLK, p));
	lock.l_type = F_WRLCK;
	CALL(lock, NOTHING, fcntl(file, F_OFD_GETLK, p));
	CALL(lock, NOTHING, fcntl(file, F_OFD_SETLK, p));
	lock.l_type = F_UNLCK;
	CALL(lock, NOTHING, fcntl(file, F_OFD_SETLK, p));
	CALL(0, NOTHING, ioctl(file, FIONREAD, p));
	CALL(0, NOTHING, ioctl(file, FIONBIO, p));
	CALL(0, NOTHING, ioctl(file, TCGETS, p));
	close(path_only);
}

static void waiting(void)
{
	struct polls { struct pollfd at[2]; } polls = { { { file, POLLIN, 0 }, { other, POLLOUT, 0 } } };
	struct timespec now = { 0 };
	struct timeval now_too = { 0 };
	fd_set set;
	sigset_t none;
	int epoll = epoll_create1(0);

	FD_ZERO(&set);
	FD_SET(file, &set);
	sigemptyset(&none);
	CALL(polls, NOTHING, poll(p, 2, 0));
	CALL(polls, NOTHING, poll(p, 0, 0));
	CALL(polls, NOTHING, poll(p, 1UL << 40, 0));
	CALL(polls, NOTHING, ppoll(p, 2, &now, NULL));
	CALL(now, NOTHING, ppoll((struct pollfd *)&polls, 2, p, NULL));
	CALL(set, NOTHING, select(file + 1, p, NULL, NULL, &now_too));
	CALL(set, NOTHING, select(file + 1, NULL, p, NULL, &now_too));
	CALL(set, NOTHING, select(file + 1, NULL, NULL, p, &now_too));
	CALL(set, NOTHING, select(-1, p, NULL, NULL, &now_too));
	CALL(set, NOTHING, pselect(file + 1, p, NULL, NULL, &now, NULL));
	FD_SET(file, &set);
	CALL(now_too, NOTHING, select(file + 1, &set, NULL, NULL, p));
	CALL(((struct epoll_event){ EPOLLIN }), epoll_ctl(epoll, EPOLL_CTL_DEL, ends[1], NULL),
	     epoll_ctl(epoll, EPOLL_CTL_ADD, ends[1], p));
	close(epoll);
}

/* A message with a descriptor of the file. */
struct letter {
	struct msghdr head;
};

static void taken(void)
{
	static char text[100], control[100];
	struct iovec vec = { text, sizeof(text) };
	struct msghdr head = { .msg_iov = &vec, .msg_iovlen = 1, .msg_control = control,
		.msg_controllen = sizeof(control) };

	while (recvmsg(ends[1], &head, MSG_DONTWAIT) > 0) {
		struct cmsghdr *first = CMSG_FIRSTHDR(&head);
		if (first)
			close(*(int *)CMSG_DATA(first));
		head.msg_controllen = sizeof(control);
	}
}

static void sending(void)
{
	struct control { char bytes[CMSG_SPACE(sizeof(int))]; } control = { 0 };
	struct iovec vec = { "x", 1 };
	struct msghdr head = { .msg_iov = &vec, .msg_iovlen = 1, .msg_control = &control,
		.msg_controllen = sizeof(control) };
	struct cmsghdr *only = CMSG_FIRSTHDR(&head);
	char text[10];

	only->cmsg_level = SOL_SOCKET;
	only->cmsg_type = SCM_RIGHTS;
	only->cmsg_len = CMSG_LEN(sizeof(int));
	*(int *)CMSG_DATA(only) = file;
#define WITH_CONTROL(at) \
	(&(struct msghdr){ .msg_iov = &vec, .msg_iovlen = 1, .msg_control = at, \
			   .msg_controllen = sizeof(control) })
	CALL(control, taken(), sendmsg(ends[0], WITH_CONTROL(p), 0));
	CALL(head, taken(), sendmsg(ends[0], p, 0));
	CALL(((struct mmsghdr){ head }), taken(), sendmmsg(ends[0], p, 1, 0));
	CALL(((struct mmsghdr){ head }), taken(), sendmmsg(ends[0], p, 0, 0));
	struct msghdr into = { .msg_iov = &(struct iovec){ text, sizeof(text) }, .msg_iovlen = 1 };
	CALL(into, NOTHING, (send(ends[0], "x", 1, 0), recvmsg(ends[1], p, MSG_DONTWAIT)));
	taken();
	CALL(((struct mmsghdr){ into }), NOTHING,
	     (send(ends[0], "x", 1, 0), recvmmsg(ends[1], p, 1, MSG_DONTWAIT, NULL)));
	taken();
}

static void numbers(void)
{
	struct pair { int fds[2]; } pair = { { 0, 0 } };

#define BOTH close(((int *)p)[0]); close(((int *)p)[1])
	CALL(pair, BOTH, pipe(p));
	CALL(pair, BOTH, pipe2(p, O_CLOEXEC));
	CALL(pair, BOTH, socketpair(AF_UNIX, SOCK_STREAM, 0, p));
}

static void listing(void)
{
	struct entries { char bytes[2048]; } entries = { { 0 } };

	CALL(entries, NOTHING, getdents64(dir, p, 2048) > 0 ? 1 : -1);
	CALL(entries, NOTHING, getdents64(dir, p, 1));
	CALL(entries, NOTHING, getdents64(file, p, 2048));
	printf("closedir: %d\n", closedir(NULL));
}

/* Of programs, only what fails. */
static void programs(void)
{
	char *arguments[] = { "none", NULL };

	CALL(NAME("none"), NOTHING, execve(p, arguments, arguments + 1));
	CALL(((struct { char *at[2]; }){ { "none", NULL } }), NOTHING, execve("none", p, arguments + 1));
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = fault };
	char *pages = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	writable = pages;
	read_only = pages + 2 * PAGE;
	munmap(pages + PAGE, PAGE);
	munmap(pages + 3 * PAGE, PAGE);
	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGBUS, &action, NULL);
	alarm(60);
	if (argc != 2 || chdir(argv[1]) != 0)
		return 2;
	file = other = dir = -1;
	fresh();
	socketpair(AF_UNIX, SOCK_DGRAM, 0, ends);
	if (ftruncate(file, 100) || symlink("file", "link") || close(creat("gone", 0600)) ||
	    mkdir("gonedir", 0700))
		return 2;
	void (*const parts[])(void) = { names, extended_attributes, content, attributes, descriptors,
		listing, waiting, numbers, sending, programs };
	for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
		fresh();
		parts[i]();
	}
	printf("done\n");
	return 0;
}
