// A program that has all its memory locked: what is its own is, and the pools that it uses are not, of which only
// what files take exists.
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define MIB (1 << 20)
#define NOBODY 65534

// Bytes of this process, as its status says.
static long bytes_of(const char *format)
{
	FILE *status = fopen("/proc/self/status", "r");
	char line[256];
	long kib = -1;

	CHECK(status != NULL);
	while (fgets(line, sizeof(line), status))
		sscanf(line, format, &kib);
	fclose(status);
	CHECK(kib >= 0);
	return kib << 10;
}

static long locked(void)
{
	return bytes_of("VmLck: %ld");
}

static void use(int fd)
{
	char bytes[4096];

	memset(bytes, 'x', sizeof(bytes));
	CHECK(pwrite(fd, bytes, sizeof(bytes), 0) == sizeof(bytes));
	memset(bytes, 0, sizeof(bytes));
	CHECK(pread(fd, bytes, sizeof(bytes), 0) == sizeof(bytes) && bytes[77] == 'x');
}

static void check_locked(int flags)
{
	// Code of this program at least; and no pool, which is larger than all that is its own.
	CHECK(locked() >= MIB && locked() < 64 * MIB);
	CHECK(bytes_of("RssShmem: %ld") < 64 * MIB);
	if (!(flags & MCL_FUTURE))
		return;
	long before = locked();
	char *more = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(more != MAP_FAILED);
	memset(more, 1, 4 * MIB);
	CHECK(locked() >= before + 4 * MIB);
	CHECK(munmap(more, 4 * MIB) == 0);
}

static void lock_all(const char *path, int attach_first, int flags)
{
	int fd = -1;

	if (attach_first) {
		fd = open(path, O_RDWR | O_CREAT, 0600);
		CHECK(fd >= 0);
		use(fd);
	}
	CHECK(mlockall(flags) == 0);
	if (!attach_first) {
		fd = open(path, O_RDWR | O_CREAT, 0600);
		CHECK(fd >= 0);
		use(fd);
	}
	check_locked(flags);
	use(fd);
	CHECK(munlockall() == 0 && locked() == 0);
	use(fd);
	CHECK(close(fd) == 0);
}

// One who may lock little.
static void lock_with_limit(const char *path)
{
	struct rlimit limit, none = { 4096, 4096 };
	int fd = open(path, O_RDWR | O_CREAT, 0600);

	CHECK(fd >= 0);
	use(fd);
	CHECK(getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && setreuid(NOBODY, NOBODY) == 0);
	// Enough for this program, but not for a pool.
	CHECK(limit.rlim_cur >= 8 * MIB);
	CHECK(mlockall(MCL_CURRENT) == 0);
	check_locked(MCL_CURRENT);
	CHECK(munlockall() == 0);
	CHECK(setrlimit(RLIMIT_MEMLOCK, &none) == 0);
	CHECK(mlockall(MCL_CURRENT) == -1 && errno == ENOMEM && locked() == 0);
	CHECK(mlockall(0) == -1 && errno == EINVAL);
	CHECK(mlockall(1 << 20) == -1 && errno == EINVAL);
	use(fd);
}

static void in_child(void (*body)(const char *), const char *path)
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		body(path);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void lock_later(const char *path) { lock_all(path, 1, MCL_CURRENT | MCL_FUTURE); }
static void lock_current(const char *path) { lock_all(path, 1, MCL_CURRENT); }
static void lock_before(const char *path) { lock_all(path, 0, MCL_CURRENT | MCL_FUTURE); }

int main(int argc, char **argv)
{
	char path[4096];

	CHECK(argc == 2);
	snprintf(path, sizeof(path), "%s/file", argv[1]);
	in_child(lock_before, path);
	in_child(lock_later, path);
	in_child(lock_current, path);
	in_child(lock_with_limit, path);
	puts("done");
	return 0;
}
