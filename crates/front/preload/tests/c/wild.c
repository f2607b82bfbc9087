// Pointers that lead nowhere, and a pool that is truncated while it is open: both give errors, and faults of the program itself go
// to its own handlers. With one argument, the pool, which is not mounted; prints "wild", or what is wrong.
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "keepstone.h"

#define PAGE 4096
#define WILD ((void *)0x123456789000)
/* No address of a process, and not even of the form of one. */
#define OUTSIDE ((void *)0xdeadbeefdeadbeef)

static sigjmp_buf back;
static volatile int handled;

static void on_fault(int signal)
{
	handled = signal;
	siglongjmp(back, 1);
}

static void on_later(int signal, siginfo_t *info, void *context)
{
	(void)context;
	handled = -signal;
	CHECK(info->si_addr == WILD || signal == SIGBUS);
	siglongjmp(back, 1);
}

/* Loads from an address; returns what the handler of the program has recorded. */
static int fault_at(const volatile char *at)
{
	handled = 0;
	if (!sigsetjmp(back, 1))
		(void)*at;
	return handled;
}

/* How a child ends that loads from nowhere, with the default action. */
static int death(void)
{
	int status;
	pid_t child = fork();

	if (!child) {
		signal(SIGSEGV, SIG_DFL);
		(void)*(volatile char *)WILD;
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void all_calls(ks_pool *pool, void *bad)
{
	struct timespec times[2] = { { 0, 0 }, { 0, 0 } };
	ks_file *file = ks_open(pool, "/file", O_RDWR | O_CREAT, 0644);
	char byte;

	CHECK(file && ks_pwrite(file, "content", 7, 0) == 7);
	FAILS(ks_read(file, bad, 5), EFAULT);
	FAILS(ks_write(file, bad, 5), EFAULT);
	FAILS(ks_pread(file, bad, 5, 0), EFAULT);
	FAILS(ks_pwrite(file, bad, 5, 0), EFAULT);
	FAILS(ks_get_read_buf(file, 5, 0, bad), EFAULT);
	FAILS(ks_fstat(file, bad), EFAULT);
	/* No call has changed anything. */
	CHECK(ks_lseek(file, 0, SEEK_CUR) == 0 && ks_read(file, &byte, 1) == 1 && byte == 'c');
	/* The kernel looks at the form of an address even for no bytes. */
	CHECK(ks_read(file, bad, 0) == (bad == OUTSIDE ? -1 : 0) && ks_close(file) == 0);
	CHECK(!ks_open(pool, bad, O_RDONLY, 0) && errno == EFAULT);
	CHECK(!ks_opendir(pool, bad) && errno == EFAULT);
	FAILS(ks_stat(pool, bad, bad), EFAULT);
	FAILS(ks_stat(pool, "/file", bad), EFAULT);
	FAILS(ks_lstat(pool, "/file", bad), EFAULT);
	FAILS(ks_statvfs(pool, bad), EFAULT);
	FAILS(ks_mkdir(pool, bad, 0755), EFAULT);
	FAILS(ks_unlink(pool, bad), EFAULT);
	FAILS(ks_rename(pool, "/file", bad), EFAULT);
	FAILS(ks_symlink(pool, bad, "/link"), EFAULT);
	FAILS(ks_setxattr(pool, "/file", "user.name", bad, 3, 0), EFAULT);
	FAILS(ks_setxattr(pool, "/file", bad, "value", 5, 0), EFAULT);
	CHECK(ks_setxattr(pool, "/file", "user.name", "value", 5, 0) == 0);
	FAILS(ks_getxattr(pool, "/file", "user.name", bad, 100), EFAULT);
	FAILS(ks_listxattr(pool, "/file", bad, 100), EFAULT);
	CHECK(ks_utimens(pool, "/file", times) == 0);
	if (bad)
		FAILS(ks_utimens(pool, "/file", bad), EFAULT);
	FAILS(ks_snapshot_create(pool, bad), EFAULT);
}

/* A buffer is used up to its first inaccessible byte, as by the kernel. */
static void half_buffers(ks_pool *pool)
{
	ks_file *file = ks_open(pool, "/half", O_RDWR | O_CREAT, 0644);
	char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(file && pages != MAP_FAILED && mprotect(pages + PAGE, PAGE, PROT_NONE) == 0);
	memset(pages, 'x', PAGE);
	CHECK(ks_pwrite(file, pages + PAGE - 10, 20, 0) == 10);
	CHECK(ks_pwrite(file, "0123456789abcdef", 16, 0) == 16);
	CHECK(ks_pread(file, pages + PAGE - 4, 16, 0) == 4 && memcmp(pages + PAGE - 4, "0123", 4) == 0);
	CHECK(mprotect(pages, PAGE, PROT_READ) == 0);
	FAILS(ks_pread(file, pages, 16, 0), EFAULT);
	CHECK(ks_pwrite(file, pages, 16, 0) == 16);
	CHECK(munmap(pages, 2 * PAGE) == 0 && ks_close(file) == 0);
}

int main(int argc, char **argv)
{
	int (*kernel)(int, const struct sigaction *, struct sigaction *) = dlsym(dlopen("libc.so.6", RTLD_NOW), "sigaction");
	struct sigaction action = { .sa_handler = on_fault }, old;
	char cut_path[] = "/tmp/keepstone-wild-XXXXXX", byte;
	ks_pool *pool, *second;
	ks_file *file;
	int cut, i;
	char *map;

	CHECK(argc == 2 && kernel);
	CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
	/* Before any pool is open. */
	FAILS(ks_make_pool(NULL, 1 << 24, "bpfs"), EFAULT);
	CHECK(!ks_open_pool(NULL) && errno == EFAULT);
	CHECK(!ks_open_pool(WILD) && errno == EFAULT);
	pool = ks_open_pool(argv[1]);
	CHECK(pool);
	for (i = 0; i < 2; i++) {
		all_calls(pool, NULL);
		all_calls(pool, WILD);
		all_calls(pool, OUTSIDE);
		half_buffers(pool);
		if (i == 0) {
			/* The handler that the program had, and one that it sets now. */
			CHECK(fault_at(WILD) == SIGSEGV);
			CHECK(sigaction(SIGSEGV, NULL, &old) == 0 && old.sa_handler == on_fault);
			action.sa_sigaction = on_later;
			action.sa_flags = SA_SIGINFO;
			CHECK(sigaction(SIGSEGV, &action, &old) == 0 && old.sa_handler == on_fault);
			CHECK(sigaction(SIGBUS, &action, &old) == 0 && old.sa_handler == SIG_DFL);
		}
		CHECK(sigaction(SIGSEGV, NULL, &old) == 0 && old.sa_sigaction == on_later);
		CHECK(i == 0 || fault_at(WILD) == -SIGSEGV);
	}
	CHECK(death() == SIGSEGV);
	/* A handler that the library does not see stays, too. */
	CHECK(kernel(SIGUSR1, NULL, &old) == 0 && old.sa_handler == SIG_DFL);
	CHECK(kernel(SIGSEGV, NULL, &old) == 0 && kernel(SIGSEGV, &action, NULL) == 0);
	second = ks_open_pool(argv[1]);
	CHECK(second && fault_at(WILD) == -SIGSEGV);
	CHECK(ks_close_pool(second) == 0 && kernel(SIGSEGV, &old, NULL) == 0);

	/* The pool is cut off. What is gone gives errors, and no fault. */
	file = ks_open(pool, "/file", O_RDWR, 0);
	CHECK(file && truncate(argv[1], 0) == 0);
	FAILS(ks_pread(file, &byte, 1, 0), EIO);
	FAILS(ks_pwrite(file, "x", 1, 0), EIO);
	FAILS(ks_mkdir(pool, "/dir", 0755), EIO);
	CHECK(!ks_open(pool, "/file", O_RDONLY, 0) && errno == EIO);
	ks_close(file);
	FAILS(ks_close_pool(pool), EIO);
	/* The same fault in a file of the program goes to the program. */
	cut = mkstemp(cut_path);
	CHECK(cut >= 0 && unlink(cut_path) == 0 && ftruncate(cut, PAGE) == 0);
	map = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, cut, 0);
	CHECK(map != MAP_FAILED && fault_at(map) == 0 && ftruncate(cut, 0) == 0);
	CHECK(fault_at(map) == -SIGBUS);
	puts("wild");
	return 0;
}
