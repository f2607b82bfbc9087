// Processes that fork, end and start programs while they share files of a pool: who lives, and what a child
// inherits. The arguments are a scenario and a directory.
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

// Longer than anything here takes that does not hang.
#define PATIENCE_MS 60000

static const char *dir;

static const char *in_dir(const char *name)
{
	static __thread char path[4096];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return path;
}

// A descriptor of a file without a name, which holds a number.
static int nameless(int number)
{
	char name[32];

	snprintf(name, sizeof(name), "own-%d", number);
	int fd = open(in_dir(name), O_RDWR | O_CREAT | O_EXCL, 0600);
	CHECK(fd >= 0);
	CHECK(pwrite(fd, &number, sizeof(number), 0) == sizeof(number));
	CHECK(unlink(in_dir(name)) == 0);
	return fd;
}

static int holds(int fd, int number)
{
	int found = -1;

	return pread(fd, &found, sizeof(found), 0) == sizeof(found) && found == number;
}

// Reads what others say until all of them have ended; returns how many bytes.
static int listen_to(int fd, char *heard, int len)
{
	int n = 0, got;

	do {
		struct pollfd said = { fd, POLLIN };
		CHECK(poll(&said, 1, PATIENCE_MS) == 1);
		got = read(fd, heard + n, len - n);
		CHECK(got >= 0);
		n += got;
	} while (got > 0 && n < len);
	return n;
}

// A program that comes to the pool anew, clears away what the dead have left, and makes files.
static void strangers_come(void)
{
	char script[8192];

	snprintf(script, sizeof(script),
		 "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do echo stranger > %s/stranger-$i; done", dir);
	pid_t child = fork();
	if (child == 0) {
		execl("/bin/sh", "sh", "-c", script, (char *)NULL);
		_exit(127);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void strangers_are_as_they_were(void)
{
	for (int i = 1; i <= 16; i++) {
		char name[32], text[16] = "";

		snprintf(name, sizeof(name), "stranger-%d", i);
		int fd = open(in_dir(name), O_RDONLY);
		CHECK(fd >= 0 && read(fd, text, sizeof(text)) == 9 && strcmp(text, "stranger\n") == 0);
		close(fd);
	}
}

// A process with a full table of descriptors forks and ends; its child keeps what it has inherited.
static void full_table(void)
{
	int said[2], go[2];

	CHECK(pipe(said) == 0 && pipe(go) == 0);
	pid_t parent = fork();
	if (parent == 0) {
		struct rlimit few = { 64, 64 };
		CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
		int fd = nameless(7);
		while (dup(go[0]) >= 0)
			;
		CHECK(errno == EMFILE);
		if (fork() != 0)
			_exit(0);
		char byte;
		CHECK(read(go[0], &byte, 1) == 1);
		byte = 'n';
		if (holds(fd, 7)) {
			for (int i = 0; i < 64; i++)
				CHECK(pwrite(fd, "mine", 4, i * 4) == 4);
			byte = 'y';
		}
		CHECK(write(said[1], &byte, 1) == 1);
		_exit(0);
	}
	int status;
	CHECK(waitpid(parent, &status, 0) == parent && status == 0);
	close(said[1]);
	// Those that clear away do so when they come; the server does it once a second. It may come later than this: then
	// less is seen, but nothing is wrong.
	strangers_come();
	sleep(2);
	strangers_come();
	CHECK(write(go[1], "!", 1) == 1);
	char heard[2];
	CHECK(listen_to(said[0], heard, sizeof(heard)) == 1 && heard[0] == 'y');
	strangers_are_as_they_were();
}

static void wait_us(int us)
{
	struct timespec now, end;

	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_nsec += us * 1000L;
	end.tv_sec += end.tv_nsec / 1000000000;
	end.tv_nsec %= 1000000000;
	do
		clock_gettime(CLOCK_MONOTONIC, &now);
	while (now.tv_sec < end.tv_sec || (now.tv_sec == end.tv_sec && now.tv_nsec < end.tv_nsec));
}

// Parents are killed as they fork, in a family that has had more processes than it has places for.
static void killed_parents(void)
{
	for (int i = 0; i < 300; i++) {
		pid_t child = fork();
		if (child == 0)
			kill(getpid(), SIGKILL);
		CHECK(waitpid(child, NULL, 0) == child);
	}
	int children = 0;
	for (int round = 0; round < 100; round++) {
		int said[2];

		CHECK(pipe(said) == 0);
		pid_t parent = fork();
		if (parent == 0) {
			int fd = nameless(round);
			CHECK(write(said[1], "r", 1) == 1);
			if (fork() == 0) {
				CHECK(write(said[1], holds(fd, round) ? "y" : "n", 1) == 1);
				_exit(0);
			}
			pause();
		}
		close(said[1]);
		char heard[2];
		CHECK(read(said[0], heard, 1) == 1);
		wait_us(round * 10);
		CHECK(kill(parent, SIGKILL) == 0);
		CHECK(waitpid(parent, NULL, 0) == parent);
		int n = listen_to(said[0], heard, sizeof(heard));
		CHECK(n == 0 || (n == 1 && heard[0] == 'y'));
		children += n;
		close(said[0]);
	}
	CHECK(children > 0);
}

static int shared_fd, said_fd;

static void *forks(void *unused)
{
	for (;;) {
		pid_t child = fork();
		if (child == 0) {
			CHECK(write(said_fd, holds(shared_fd, 7) ? "y" : "n", 1) == 1);
			_exit(0);
		}
		waitpid(child, NULL, 0);
	}
	return unused;
}

static void *works(void *unused)
{
	char page[4096];

	for (;;)
		pread(shared_fd, page, sizeof(page), 0);
	return unused;
}

// One thread forks, one reads, and one ends the process or starts a program; nobody hangs.
static void threads(void)
{
	static char heard[1 << 16];

	for (int round = 0; round < 90; round++) {
		int said[2];

		CHECK(pipe(said) == 0);
		pid_t child = fork();
		if (child == 0) {
			pthread_t thread;

			close(said[0]);
			said_fd = said[1];
			shared_fd = nameless(7);
			pthread_create(&thread, NULL, forks, NULL);
			pthread_create(&thread, NULL, works, NULL);
			wait_us(2000 + round * 37);
			if (round % 3 == 0)
				_exit(0);
			if (round % 3 == 1)
				exit(0);
			execl("/no/such/program", "program", (char *)NULL);
			execl("/bin/true", "true", (char *)NULL);
			_exit(127);
		}
		close(said[1]);
		int n = listen_to(said[0], heard, sizeof(heard));
		for (int i = 0; i < n; i++)
			CHECK(heard[i] == 'y');
		close(said[0]);
		int status;
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} scenarios[] = {
		{ "full-table", full_table },
		{ "killed-parents", killed_parents },
		{ "threads", threads },
	};

	setvbuf(stdout, NULL, _IONBF, 0);
	CHECK(argc == 3);
	dir = argv[2];
	// The process that the others come from has the pool, too.
	close(nameless(0));
	for (unsigned i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
		if (strcmp(argv[1], scenarios[i].name) == 0) {
			scenarios[i].run();
			puts("done");
			return 0;
		}
	}
	return 2;
}
