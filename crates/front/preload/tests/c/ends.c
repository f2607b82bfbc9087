// Calls that the kernel makes, and that go by the end of a file which has changed since the kernel got it: locks
// relative to the end, and copies.
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#ifndef F_OFD_SETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#define F_OFD_SETLKW 38
#endif

static char bytes[16384];

// Prints the lock that a child finds.
static void print_lock(const char *name)
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		int fd = open(name, O_RDWR);
		struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

		CHECK(fcntl(fd, F_GETLK, &lock) == 0);
		printf("%d: %d %ld %ld\n", lock.l_type, lock.l_whence, (long)lock.l_start, (long)lock.l_len);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static struct flock at_end(int type, off_t start, off_t len)
{
	return (struct flock){ .l_type = type, .l_whence = SEEK_END, .l_start = start, .l_len = len };
}

static void locks(int set, int wait, int get)
{
	int fd = open("locks", O_RDWR | O_CREAT | O_TRUNC, 0600);
	struct flock lock, all = { .l_type = F_UNLCK, .l_whence = SEEK_SET };

	CHECK(fd >= 0);
	for (int i = 0; i < 3; i++) {
		CHECK(pwrite(fd, bytes, 100, i * 100) == 100);
		lock = at_end(F_WRLCK, 0, 10);
		CHECK(fcntl(fd, i < 2 ? set : wait, &lock) == 0);
		print_lock("locks");
		CHECK(fcntl(fd, set, &all) == 0);
	}
	CHECK(ftruncate(fd, 50) == 0);
	lock = at_end(F_WRLCK, -10, 10);
	CHECK(fcntl(fd, set, &lock) == 0);
	print_lock("locks");
	// A question without a conflict comes back as it was.
	lock = at_end(F_RDLCK, -20, 5);
	CHECK(fcntl(fd, get, &lock) == 0);
	printf("%d: %d %ld %ld\n", lock.l_type, lock.l_whence, (long)lock.l_start, (long)lock.l_len);
	lock = at_end(F_WRLCK, -51, 10);
	FAILS(fcntl(fd, set, &lock), EINVAL);
	lock = at_end(F_WRLCK, 0x7fffffffffffffff, 10);
	FAILS(fcntl(fd, set, &lock), EOVERFLOW);
	close(fd);
}

// Two processes lock the end, and the second has to wait.
static void waits(void)
{
	int fd = open("waits", O_RDWR | O_CREAT | O_TRUNC, 0600), ready[2], status;
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 4000, .l_len = 10 };
	char byte;
	pid_t child;

	CHECK(fd >= 0 && pipe(ready) == 0 && fcntl(fd, F_SETLK, &lock) == 0);
	child = fork();
	if (child == 0) {
		CHECK(pwrite(fd, bytes, 4005, 0) == 4005);
		lock = at_end(F_WRLCK, 0, 1);
		FAILS(fcntl(fd, F_SETLK, &lock), EAGAIN);
		CHECK(write(ready[1], "!", 1) == 1);
		CHECK(fcntl(fd, F_SETLKW, &lock) == 0);
		_exit(0);
	}
	CHECK(read(ready[0], &byte, 1) == 1);
	usleep(20000);
	CHECK(waitpid(child, &status, WNOHANG) == 0);
	lock.l_type = F_UNLCK;
	CHECK(fcntl(fd, F_SETLK, &lock) == 0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	close(fd);
}

// A file that the kernel has since a fork, and that has grown since.
static void copies(void)
{
	int fd = open("copies", O_RDWR | O_CREAT | O_TRUNC, 0600), pipes[2], status;
	int memory = memfd_create("memory", 0);
	loff_t at;
	off_t from;
	pid_t child;

	CHECK(fd >= 0 && memory >= 0 && pipe(pipes) == 0);
	CHECK(write(fd, bytes, 4095) == 4095);
	child = fork();
	if (child == 0)
		_exit(write(fd, bytes, 1000) == 1000 ? 0 : 1);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	at = 5090;
	CHECK(splice(fd, &at, pipes[1], NULL, 5, 0) == 5 && at == 5095);
	CHECK(pwrite(fd, bytes, 1000, 9000) == 1000);
	from = 9990;
	CHECK(sendfile(memory, fd, &from, 20) == 10 && from == 10000);
	// Two bytes of a file that shrinks.
	CHECK(ftruncate(fd, 100) == 0);
	at = 98;
	CHECK(splice(fd, &at, pipes[1], NULL, 5, 0) == 2 && at == 100);
	close(fd);
	close(memory);
}

static volatile int signals;

static void count(int signal)
{
	signals++;
}

// A copy ends at the limit on the size of files.
static void limited(void)
{
	int from = open("from", O_RDWR | O_CREAT | O_TRUNC, 0600), to = open("to", O_RDWR | O_CREAT | O_TRUNC, 0600);
	struct rlimit limit = { 10000, RLIM_INFINITY };
	loff_t from_at = 0, to_at = 0;

	for (int i = 0; i < 2; i++)
		CHECK(write(from, bytes, sizeof(bytes)) == sizeof(bytes));
	CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
	signal(SIGXFSZ, count);
	CHECK(copy_file_range(from, &from_at, to, &to_at, sizeof(bytes), 0) == 10000);
	CHECK(signals == 0 && from_at == 10000 && to_at == 10000 && lseek(to, 0, SEEK_END) == 10000);
	FAILS(copy_file_range(from, &from_at, to, &to_at, 10, 0), EFBIG);
	CHECK(signals == 1);
	// Within a file that is longer than the limit.
	limit.rlim_cur = 5000;
	CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
	to_at = 4000;
	CHECK(copy_file_range(from, &from_at, to, &to_at, 2000, 0) == 1000);
	limit.rlim_cur = RLIM_INFINITY;
	CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
	close(from);
	close(to);
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	CHECK(argc == 2 && chdir(argv[1]) == 0);
	alarm(120);
	memset(bytes, 'x', sizeof(bytes));
	locks(F_SETLK, F_SETLKW, F_GETLK);
	locks(F_OFD_SETLK, F_OFD_SETLKW, F_OFD_GETLK);
	waits();
	copies();
	limited();
	puts("ends\ndone");
	return 0;
}
