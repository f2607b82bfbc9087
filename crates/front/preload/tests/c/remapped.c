/* What the kernel can do to a mapping of a file, by libc and by number, below the directory given. Prints what each call
 * returns and what the pages and the file hold then, so that two runs can be compared: on a pool with the library, and on
 * tmpfs without it.
 *
 * usage: remapped DIR
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 16 };
#define BOTH (PROT_READ | PROT_WRITE)
#define T(call) show(#call, (errno = 0, (long)(call)))

static int fd;
static sigjmp_buf fault;

static void show(const char *call, long result)
{
	printf("%s = %s %s\n", call, result == -1 ? "-1" : result == 0 ? "0" : "more", result == -1 ? strerrorname_np(errno) : "");
}

static void on_fault(int signal) { siglongjmp(fault, signal); }

static int letter(volatile char *at)
{
	int signal = sigsetjmp(fault, 1);

	return signal == SIGBUS ? '!' : signal ? '?' : *at ? *at : '0';
}

/* The first byte of each page, of the mapping and of the file; '!' and '?' where there is none. */
static void pages(const char *what, char *map, int count)
{
	printf("%s: ", what);
	for (int i = 0; map && i < count; i++)
		putchar(letter(map + i * PAGE));
	printf(" file ");
	for (int i = 0; i < PAGES; i++) {
		char byte = '-';
		putchar(pread(fd, &byte, 1, i * PAGE) == 1 && !byte ? '0' : byte);
	}
	putchar('\n');
}

static void file(int pages)
{
	char page[PAGE];

	if (fd > 0)
		close(fd);
	unlink("file");
	fd = open("file", O_CREAT | O_RDWR, 0600);
	for (int i = 0; i < pages; i++) {
		memset(page, 'a' + i, PAGE);
		if (pwrite(fd, page, PAGE, i * PAGE) != PAGE)
			exit(1);
	}
}

static char *mapped(int prot, int flags)
{
	char *map = mmap(NULL, PAGES * PAGE, prot, flags, fd, 0);

	if (map == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	return map;
}

static void remaps(int by_number)
{
	file(PAGES);
	char *map = mapped(BOTH, MAP_SHARED);
	for (int i = 0; i < PAGES; i++)
		if (by_number ? syscall(SYS_remap_file_pages, map + i * PAGE, PAGE, 0, PAGES - 1 - i, 0) :
				remap_file_pages(map + i * PAGE, PAGE, 0, PAGES - 1 - i, 0))
			printf("remap_file_pages %d: %s\n", i, strerrorname_np(errno));
	pages("reversed", map, PAGES);
	for (int i = 0; i < PAGES; i++)
		memset(map + i * PAGE, 'A' + i, PAGE);
	T(msync(map, PAGES * PAGE, MS_SYNC));
	pages("stored", map, PAGES);
	T(remap_file_pages(map, PAGES * PAGE, 0, 0, 0));
	pages("in order again", map, PAGES);
	T(remap_file_pages(map, PAGE, PROT_READ, 0, 0));
	T(remap_file_pages(map, 0, 0, 0, 0));
	T(remap_file_pages(map, PAGE, 0, ~0ul, 0));
	T(mprotect(map, 4 * PAGE, PROT_READ));
	T(remap_file_pages(map + PAGE, 2 * PAGE, 0, 5, 0));
	pages("read-only", map, PAGES);
	T(munmap(map, PAGES * PAGE));
	map = mapped(BOTH, MAP_PRIVATE);
	T(remap_file_pages(map, PAGE, 0, 1, 0));
	T(munmap(map, PAGES * PAGE));
	int other = open("file", O_RDONLY);
	map = mmap(NULL, PAGES * PAGE, PROT_READ, MAP_SHARED, other, 0);
	T(remap_file_pages(map, PAGE, 0, 1, 0));
	T(mprotect(map, PAGE, BOTH));
	T(munmap(map, PAGES * PAGE));
	close(other);
}

static void given_back(int prot, int flags, const char *what)
{
	puts(what);
	file(PAGES);
	char *map = mapped(prot, flags);
	if (prot & PROT_WRITE)
		memset(map, 'X', 2 * PAGE);
	pages("before", map, PAGES);
	T(madvise(map, PAGES * PAGE, MADV_DONTNEED));
	pages("given back", map, PAGES);
	T(syscall(SYS_madvise, map, PAGE, MADV_DONTNEED));
	T(madvise(map, PAGES * PAGE, MADV_WIPEONFORK));
	T(madvise(map, PAGES * PAGE, MADV_KEEPONFORK));
	T(madvise(map, PAGES * PAGE, MADV_FREE));
	T(madvise(map, PAGES * PAGE, MADV_WILLNEED));
	T(madvise(map, PAGES * PAGE, 12345));
	T(madvise(map + 1, PAGE, MADV_DONTNEED));
	pages("after", map, PAGES);
	T(munmap(map, PAGES * PAGE));
}

/* Beyond the end there is nothing. */
static void short_file(int flags)
{
	file(3);
	char *map = mapped(PROT_READ, flags);
	pages("short", map, 3);
	printf("beyond: %c\n", letter(map + 3 * PAGE));
	T(munmap(map, PAGES * PAGE));
}

static void removes(int flags, int prot)
{
	file(PAGES);
	char *map = mapped(prot, flags);
	T(madvise(map + PAGE, 2 * PAGE, MADV_REMOVE));
	pages("removed", map, PAGES);
	T(munmap(map, PAGES * PAGE));
}

static void forks(void)
{
	file(PAGES);
	char *map = mapped(BOTH, MAP_SHARED);
	int status;
	T(madvise(map + PAGE, PAGE, MADV_DONTFORK));
	fflush(stdout);
	if (fork() == 0) {
		pages("in a child", map, 4);
		/* What is mapped there now is the child's. */
		char *own = mmap(map + PAGE, PAGE, BOTH, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		printf("its own: %d\n", own == map + PAGE);
		memset(own, 'Z', PAGE);
		own = mremap(own, PAGE, 2 * PAGE, MREMAP_MAYMOVE);
		pages("moved", own, 1);
		T(msync(own, PAGE, MS_SYNC));
		fflush(stdout);
		_exit(0);
	}
	wait(&status);
	T(madvise(map + PAGE, PAGE, MADV_DOFORK));
	fflush(stdout);
	if (fork() == 0) {
		pages("in another child", map, 4);
		memset(map + PAGE, 'Y', PAGE);
		fflush(stdout);
		_exit(0);
	}
	wait(&status);
	pages("in the parent", map, 4);
	T(munmap(map, PAGES * PAGE));
}

static void moves(void)
{
	file(PAGES);
	char *map = mapped(BOTH, MAP_SHARED), *other;
	other = mremap(map, 0, 4 * PAGE, MREMAP_MAYMOVE);
	printf("twice: %d\n", other != MAP_FAILED && other != map);
	memset(other, 'T', PAGE);
	pages("a second mapping", map, PAGES);
	T(munmap(other, 4 * PAGE));
	other = mremap(map, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP);
	printf("both: %d\n", other != MAP_FAILED && other != map);
	memset(other + PAGE, 'U', PAGE);
	pages("what stays", map, PAGES);
	T(munmap(other, 4 * PAGE));
	T(mremap(map, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP));
	T(mremap(map, 4 * PAGE, 4 * PAGE, MREMAP_DONTUNMAP));
	T(mremap(map, 4 * PAGE, 4 * PAGE, 64));
	T(munmap(map, PAGES * PAGE));
}

static void synced(void)
{
	file(PAGES);
	char *map = mapped(BOTH, MAP_SHARED);
	map[0] = 1;
	T(msync(map, PAGES * PAGE, MS_SYNC | MS_INVALIDATE));
	T(mlock(map, PAGE));
	T(msync(map, PAGE, MS_SYNC | MS_INVALIDATE));
	T(msync(map, PAGE, MS_ASYNC | MS_INVALIDATE));
	T(msync(map, PAGE, MS_SYNC));
	T(munlock(map, PAGE));
	T(msync(map, PAGE, MS_SYNC | MS_INVALIDATE));
	T(munmap(map, PAGES * PAGE));
}

/* As a debugger does it. */
static void pokes(int prot, int flags, const char *what)
{
	file(PAGES);
	char *map = mapped(prot, flags);
	int memory = open("/proc/self/mem", O_RDWR);
	puts(what);
	T(pwrite(memory, "P", 1, (off_t)(long)map));
	pages("poked", map, 2);
	close(memory);
	T(munmap(map, PAGES * PAGE));
}

int main(int argc, char **argv)
{
	if (argc != 2 || chdir(argv[1]))
		return 1;
	signal(SIGBUS, on_fault);
	signal(SIGSEGV, on_fault);
	remaps(0);
	remaps(1);
	given_back(PROT_READ, MAP_PRIVATE, "private, read");
	given_back(BOTH, MAP_PRIVATE, "private, written");
	given_back(BOTH, MAP_SHARED, "shared");
	short_file(MAP_PRIVATE);
	removes(MAP_SHARED, BOTH);
	removes(MAP_SHARED, PROT_READ);
	removes(MAP_PRIVATE, BOTH);
	forks();
	moves();
	synced();
	pokes(BOTH, MAP_SHARED, "shared");
	pokes(PROT_READ, MAP_PRIVATE, "private");
	printf("done\n");
	return 0;
}
