// A program that works near its limits: at each of them, of descriptors and of memory, that were set before it
// started or since, a call does what it says or fails for lack of that, and nobody gets another file's bytes.
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

// More than the highest limit of descriptors.
#define FILES 80
#define SIZE 4096
// Longer than anything here takes that does not hang.
#define PATIENCE_S 120

static const char *self, *dir;

static const char *name_of(int number)
{
	static char path[4096];

	snprintf(path, sizeof(path), "%s/file-%d", dir, number);
	return path;
}

// What each byte of a file is.
static char letter(int number)
{
	return '!' + number;
}

// Whether a call that failed did so for lack of something.
#define LACKS() (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == EAGAIN)
#define SUCCEEDS_OR_LACKS(what) CHECK((what) != -1 || LACKS())

static void check_bytes(const char *bytes, int len, int number)
{
	for (int i = 0; i < len; i++)
		CHECK(bytes[i] == letter(number));
}

// Reads there, and on from where the descriptor is.
static void holds(int fd, int number)
{
	char bytes[64];

	CHECK(pread(fd, bytes, sizeof(bytes), SIZE / 2) == sizeof(bytes));
	check_bytes(bytes, sizeof(bytes), number);
	CHECK(lseek(fd, 0, SEEK_SET) == 0);
	CHECK(read(fd, bytes, sizeof(bytes)) == sizeof(bytes));
	check_bytes(bytes, sizeof(bytes), number);
	CHECK(lseek(fd, 0, SEEK_CUR) == sizeof(bytes));
}

static void make_files(void)
{
	char bytes[SIZE];

	for (int i = 0; i < FILES; i++) {
		int fd = open(name_of(i), O_RDWR | O_CREAT | O_TRUNC, 0600);
		CHECK(fd >= 0);
		memset(bytes, letter(i), SIZE);
		CHECK(write(fd, bytes, SIZE) == SIZE && close(fd) == 0);
	}
}

static int open_files(int *fds)
{
	int n = 0;

	for (; n < FILES - 1; n++) {
		fds[n] = open(name_of(n), O_RDWR);
		if (fds[n] < 0) {
			CHECK(LACKS());
			break;
		}
	}
	return n;
}

// Waits for a child that says what is wrong itself.
static void wait_for(pid_t child)
{
	int status;

	if (child < 0) {
		CHECK(LACKS());
		return;
	}
	CHECK(waitpid(child, &status, 0) == child);
	if (status != 0)
		printf("a child ended with %#x\n", status);
	CHECK(status == 0);
}

static void lock(int fd)
{
	struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

	SUCCEEDS_OR_LACKS(fcntl(fd, F_SETLK, &whole));
	SUCCEEDS_OR_LACKS(flock(fd, LOCK_EX | LOCK_NB));
}

static void map(int fd, int number, int kind)
{
	char *at = mmap(NULL, SIZE, PROT_READ, kind, fd, 0);

	if (at == MAP_FAILED) {
		CHECK(LACKS());
		return;
	}
	check_bytes(at, SIZE, number);
	CHECK(munmap(at, SIZE) == 0);
}

static void fork_some(int *fds, int n)
{
	for (int round = 0; round < 2; round++) {
		pid_t child = fork();
		if (child == 0) {
			for (int i = 0; i < n; i++)
				holds(fds[i], i);
			if (n > 1) {
				CHECK(close(fds[0]) == 0);
				int fd = open(name_of(n), O_RDWR);
				CHECK(fd >= 0 || LACKS());
				if (fd >= 0)
					holds(fd, n);
			}
			_exit(0);
		}
		wait_for(child);
	}
}

// A program that inherits finds what its numbers were.
static void exec_some(int *fds, int n)
{
	pid_t child = fork();

	if (child == 0) {
		char list[4096] = "";
		alarm(PATIENCE_S);
		// Its libraries are opened, too.
		if (n > 0)
			CHECK(close(fds[--n]) == 0);
		for (int i = 0; i < n; i++)
			sprintf(list + strlen(list), "%d ", fds[i]);
		// Where that fails, it goes on.
		CHECK(execl("/nowhere", "nowhere", (char *)NULL) == -1 && (errno == ENOENT || LACKS()));
		for (int i = 0; i < n; i++)
			holds(fds[i], i);
		execl(self, self, dir, "inherit", list, (char *)NULL);
		CHECK(LACKS());
		_exit(0);
	}
	wait_for(child);
}

static void work(void)
{
	int fds[FILES];
	int n = open_files(fds);

	for (int i = 0; i < n; i++)
		holds(fds[i], i);
	fork_some(fds, n);
	exec_some(fds, n);
	for (int i = 0; i < n; i += 3)
		lock(fds[i]);
	for (int i = 0; i < n; i++)
		holds(fds[i], i);
	// Half of them are closed, and what is opened there next is itself.
	for (int i = 0; i < n; i += 2)
		CHECK(close(fds[i]) == 0);
	for (int i = 1; i < n; i += 2) {
		int fd = dup(fds[i]);
		CHECK(fd >= 0 || LACKS());
		if (fd >= 0) {
			holds(fd, i);
			SUCCEEDS_OR_LACKS(dup2(fds[i], fd));
			CHECK(close(fd) == 0);
		}
	}
	for (int i = 0; i < n; i += 2) {
		fds[i] = open(name_of(i), O_RDWR | O_CREAT, 0600);
		CHECK(fds[i] >= 0 || LACKS());
	}
	for (int i = 0; i < n; i++) {
		if (fds[i] < 0)
			continue;
		holds(fds[i], i);
		map(fds[i], i, i % 4 == 0 ? MAP_SHARED : MAP_PRIVATE);
	}
	fork_some(fds, 0);
	for (int i = 0; i < n; i++) {
		if (fds[i] >= 0) {
			holds(fds[i], i);
			CHECK(close(fds[i]) == 0);
		}
	}
	// One number is enough for a file.
	int fd = open(name_of(0), O_RDONLY);
	CHECK(fd >= 0 || errno == ENOMEM || n == 0);
	if (fd >= 0) {
		holds(fd, 0);
		CHECK(close(fd) == 0);
	}
}

static unsigned long size_now(void)
{
	char line[128];
	unsigned long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");

	CHECK(file && fgets(line, sizeof(line), file) && sscanf(line, "%lu", &pages) == 1);
	fclose(file);
	return pages * 4096;
}

static void limit(int resource, unsigned long to)
{
	struct rlimit few;

	CHECK(getrlimit(resource, &few) == 0);
	few.rlim_cur = to;
	CHECK(setrlimit(resource, &few) == 0);
}

// Works under a limit, in a process of its own that has used the pool before, or in a program that starts with it.
static void work_under(int resource, unsigned long to, int starts)
{
	pid_t child = fork();

	if (child == 0) {
		alarm(PATIENCE_S);
		limit(resource, to);
		if (starts) {
			execl(self, self, dir, "work", (char *)NULL);
			CHECK(LACKS());
			_exit(0);
		}
		work();
		_exit(0);
	}
	int status;
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	if (status != 0)
		printf("limit %lu of %d, %s: %#x\n", to, resource, starts ? "at start" : "later", status);
	CHECK(status == 0);
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	self = argv[0];
	dir = argv[1];
	if (argc == 3) {
		work();
		return 0;
	}
	if (argc == 4) {
		char *list = argv[3], *next;
		for (int i = 0;; i++, list = next) {
			int fd = strtol(list, &next, 10);
			if (next == list)
				return 0;
			holds(fd, i);
		}
	}
	make_files();
	for (int starts = 0; starts < 2; starts++)
		for (int most = 4; most <= 64; most += most < 16 ? 1 : 4)
			work_under(RLIMIT_NOFILE, most, starts);
	for (int more = 0; more < 24; more++)
		work_under(RLIMIT_AS, size_now() + more * (32 << 10), 0);
	puts("done");
	return 0;
}
