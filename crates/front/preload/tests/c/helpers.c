// Children of clone(CLONE_VM): they end or execute a program, and their parent goes on with its files.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static char stack[1 << 18];
static int file, other;

static int ends(void *unused)
{
	_exit(7);
}

static int executes(void *unused)
{
	execl("/bin/true", "true", (char *)NULL);
	_exit(99);
}

static int fails_to_execute(void *unused)
{
	execl("/no/such/program", "program", (char *)NULL);
	_exit(7);
}

static int locks(void *unused)
{
	_exit(flock(file, LOCK_EX) == 0 && flock(file, LOCK_UN) == 0 ? 7 : 99);
}

// Puts a file onto the number of another one, and writes what the program prints there.
static int redirects(void *unused)
{
	if (dup2(file, other) != other)
		_exit(99);
	if (write(other, "child", 5) != 5 || open("made", O_RDWR | O_CREAT, 0600) < 0)
		_exit(99);
	close(file);
	execl("/bin/true", "true", (char *)NULL);
	_exit(99);
}

static void *returns(void *unused)
{
	return unused;
}

static void is_usable(int fd)
{
	char bytes[4] = "";
	off_t end = lseek(fd, 0, SEEK_END);

	CHECK(end >= 0 && write(fd, "abc", 3) == 3 && lseek(fd, 0, SEEK_CUR) == end + 3);
	CHECK(pread(fd, bytes, 3, end) == 3 && memcmp(bytes, "abc", 3) == 0);
}

static void child_of(int (*function)(void *), int flags, int expected)
{
	struct stat stat_before, stat_after;
	int status, next;
	pid_t child;

	CHECK(fstat(other, &stat_before) == 0);
	child = clone(function, stack + sizeof(stack), flags | SIGCHLD, NULL);
	CHECK(child > 0);
	CHECK(waitpid(child, &status, 0) == child);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != expected)
		printf("flags %x: status %x\n", flags, status);
	is_usable(file);
	is_usable(other);
	CHECK(fstat(other, &stat_after) == 0 && stat_before.st_ino == stat_after.st_ino);
	next = open("next", O_RDWR | O_CREAT, 0600);
	CHECK(next == other + 1);
	is_usable(next);
	CHECK(close(next) == 0 && unlink("next") == 0 && stat("file", &stat_after) == 0);
	// Forks, too.
	child = fork();
	if (child == 0)
		_exit(write(file, "fork", 4) == 4 ? 0 : 1);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void children(int flags)
{
	child_of(ends, flags, 7);
	child_of(executes, flags, 0);
	child_of(fails_to_execute, flags, 7);
	child_of(locks, flags, 7);
	if (!(flags & CLONE_FILES))
		child_of(redirects, flags, 0);
}

int main(int argc, char **argv)
{
	static const int flags[] = {
		CLONE_VM | CLONE_VFORK,
		CLONE_VM | CLONE_VFORK | CLONE_FILES,
		CLONE_VM,
	};

	setvbuf(stdout, NULL, _IONBF, 0);
	CHECK(argc == 2 && chdir(argv[1]) == 0);
	alarm(120);
	// With and without a second thread before. In a process of its own each: a child without
	// CLONE_VFORK makes the files the kernel's.
	for (int threads = 0; threads < 2; threads++) {
		for (int i = 0; i < 3; i++) {
			int status;
			pid_t process = fork();

			if (process == 0) {
				pthread_t thread;

				alarm(120);
				file = open("file", O_RDWR | O_CREAT | O_TRUNC, 0600);
				other = open("other", O_RDWR | O_CREAT | O_TRUNC, 0600);
				CHECK(file >= 0 && other == file + 1);
				if (threads)
					CHECK(pthread_create(&thread, NULL, returns, NULL) == 0 && pthread_join(thread, NULL) == 0);
				children(flags[i]);
				_exit(0);
			}
			CHECK(waitpid(process, &status, 0) == process);
			printf("%d threads, flags %x: status %x\n", threads, flags[i], status);
		}
	}
	puts("helpers\ndone");
	return 0;
}
