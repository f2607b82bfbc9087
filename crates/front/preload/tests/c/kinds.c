/* Takes files for what they are not, closed numbers for files, and asks for what only the kernel knows,
 * below the directory given, and prints what each call returned, so that two runs can be compared: on a
 * pool with the library, and on tmpfs without it.
 *
 * usage: kinds DIR
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/kcmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define T(expression) show(#expression, (errno = 0, (long)(expression)))

static void show(const char *text, long value)
{
	if (value == -1)
		printf("%s = -1 %s\n", text, strerrorname_np(errno));
	else
		printf("%s = %ld\n", text, value);
}

/* Every kind of call that wants something else than a file. */
static void wrong_kinds(int fd)
{
	struct sockaddr_un address = { AF_UNIX };
	socklen_t len = sizeof(address);
	struct termios terminal;
	struct itimerspec timer = { 0 };
	struct epoll_event event = { EPOLLIN };
	struct msghdr message = { 0 };
	char byte = 0, name[64];
	int value = 0, epoll = epoll_create1(0);
	socklen_t value_len = sizeof(value);

	T(bind(fd, (struct sockaddr *)&address, len));
	T(connect(fd, (struct sockaddr *)&address, len));
	T(listen(fd, 1));
	T(accept(fd, NULL, NULL));
	T(accept4(fd, NULL, NULL, 0));
	T(shutdown(fd, SHUT_RD));
	T(getpeername(fd, (struct sockaddr *)&address, &len));
	T(getsockname(fd, (struct sockaddr *)&address, &len));
	T(getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &value_len));
	T(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, value_len));
	T(send(fd, &byte, 1, 0));
	T(sendto(fd, &byte, 1, 0, NULL, 0));
	T(recv(fd, &byte, 1, 0));
	T(recvfrom(fd, &byte, 1, 0, NULL, NULL));
	T(sendmsg(fd, &message, 0));
	T(recvmsg(fd, &message, 0));
	T(sendmmsg(fd, &(struct mmsghdr){ message }, 1, 0));
	T(recvmmsg(fd, &(struct mmsghdr){ message }, 1, 0, NULL));
	T(tcgetattr(fd, &terminal));
	T(tcdrain(fd));
	T(tcflow(fd, TCOON));
	T(tcflush(fd, TCIFLUSH));
	T(tcgetpgrp(fd));
	T(tcsendbreak(fd, 0));
	T(tcsetpgrp(fd, getpgrp()));
	T(isatty(fd));
	T(ttyname_r(fd, name, sizeof(name)));
	T(ioctl(fd, TIOCGWINSZ, &value));
	T(epoll_wait(fd, &event, 1, 0));
	T(epoll_ctl(fd, EPOLL_CTL_ADD, 0, &event));
	T(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
	T(epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL));
	close(epoll);
	T(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
	T(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, NULL));
	T(inotify_add_watch(fd, ".", IN_OPEN));
	T(inotify_rm_watch(fd, 1));
	T(timerfd_gettime(fd, &timer));
	T(timerfd_settime(fd, 0, &timer, NULL));
}

static const char *names[] = { "open", "closed", "path only", "directory" };

static void links(void)
{
	char path[64];
	int fd = open(".", O_TMPFILE | O_RDWR, 0600);

	T(write(fd, "new", 3));
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	T(linkat(AT_FDCWD, path, AT_FDCWD, "by-self", AT_SYMLINK_FOLLOW));
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", getpid(), fd);
	T(linkat(AT_FDCWD, path, AT_FDCWD, "by-pid", AT_SYMLINK_FOLLOW));
	T(linkat(AT_FDCWD, path, AT_FDCWD, "the-link", 0));
	snprintf(path, sizeof(path), "/dev/fd/%d", fd);
	T(linkat(AT_FDCWD, path, AT_FDCWD, "by-dev", AT_SYMLINK_FOLLOW));
	T(linkat(fd, "", AT_FDCWD, "by-number", AT_EMPTY_PATH));
	T(rename(path, "renamed"));
	close(fd);
	T(access("by-self", F_OK));
	T(access("by-pid", F_OK));
	fd = open(".", O_TMPFILE | O_RDWR | O_EXCL, 0600);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	T(linkat(AT_FDCWD, path, AT_FDCWD, "exclusive", AT_SYMLINK_FOLLOW));
	close(fd);
}

/* Prints the end of the working directory. */
static void where(void)
{
	char buf[PATH_MAX], *path = getcwd(buf, sizeof(buf)), *allocated = getcwd(NULL, 0);

	printf("cwd %s %s\n", path ? strrchr(path, '/') : strerrorname_np(errno),
	       allocated && path && strcmp(path, allocated) == 0 ? "twice" : "");
	free(allocated);
	if (!getcwd(buf, 2))
		printf("short: %s\n", strerrorname_np(errno));
}

static void working_directory(void)
{
	T(mkdir("before", 0700));
	T(chdir("before"));
	where();
	T(rename("../before", "../after"));
	where();
	T(rmdir("../after"));
	where();
	T(open("new", O_CREAT | O_RDWR, 0600));
	T(chdir(getenv("TOP")));
}

static void comparing(void)
{
	int a = open("file", O_RDWR), b = open("file", O_RDWR), c = dup(a);
	pid_t own = getpid();

	T(syscall(SYS_kcmp, own, own, KCMP_FILE, a, b) != 0);
	T(syscall(SYS_kcmp, own, own, KCMP_FILE, a, c));
	close(a);
	close(b);
	close(c);
}

static void copying(void)
{
	const off_t far = LLONG_MAX - 5;
	off_t from = 0, to;
	int a = open("file", O_RDWR), b = open("other", O_CREAT | O_RDWR, 0600);

	T(ftruncate(a, 100));
	to = LLONG_MAX;
	T(copy_file_range(a, &from, b, &to, 10, 0));
	to = -1;
	T(copy_file_range(a, &from, b, &to, 10, 0));
	to = 0, from = far;
	T(copy_file_range(a, &from, b, &to, 10, 0));
	from = -5;
	T(copy_file_range(a, &from, b, &to, 10, 0));
	from = 0, to = 0;
	T(copy_file_range(a, &from, b, &to, SIZE_MAX, 0));
	T(copy_file_range(a, &from, a, &to, 10, 0));
	T(lseek(b, 0, SEEK_END));
	close(a);
	close(b);
}

/* A request that is given a descriptor. */
static void cloning(void)
{
	int fd = open("file", O_RDWR), null = open("/dev/null", O_RDWR);

	T(ioctl(null, 0x40049409, fd));
	close(fd);
	close(null);
}

/* More files than one table of the library's takes. */
static void many(void)
{
	enum { MANY = 17000 };
	static int fds[MANY];
	struct rlimit limit = { MANY + 100, MANY + 100 };
	int opened = 0, fd;

	T(setrlimit(RLIMIT_NOFILE, &limit));
	while (opened < MANY && (fds[opened] = open("file", O_RDWR)) >= 0)
		opened++;
	T(opened);
	T((fd = open("one more", O_CREAT | O_EXCL | O_RDWR, 0400)) >= 0);
	T(write(fd, "content", 7));
	T(lseek(fd, 0, SEEK_CUR));
	close(fd);
	T(mkdir("somewhere", 0700));
	T(chdir("somewhere"));
	T((fd = open("another", O_CREAT | O_RDWR, 0600)) >= 0);
	close(fd);
	T(access("another", F_OK));
	T(chdir(".."));
	while (opened > 0)
		close(fds[--opened]);
	T(fd = open("one more", O_RDONLY));
	T(pread(fd, fds, 100, 0));
	close(fd);
}

int main(int argc, char **argv)
{
	if (argc != 2 || chdir(argv[1]) != 0)
		return 2;
	alarm(60);
	setenv("TOP", argv[1], 1);
	int fds[4] = { open("file", O_CREAT | O_RDWR, 0600), open("file", O_RDWR), open("file", O_PATH),
		open(".", O_RDONLY) };
	close(fds[1]);
	for (int i = 0; i < 4; i++) {
		printf("-- %s\n", names[i]);
		wrong_kinds(fds[i]);
	}
	close(fds[0]);
	close(fds[2]);
	close(fds[3]);
	links();
	working_directory();
	comparing();
	copying();
	cloning();
	many();
	printf("done\n");
	return 0;
}
