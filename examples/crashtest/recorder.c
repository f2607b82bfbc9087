/* Records the stores, flushes and fences of a program that uses libpmem, for
 * `keepstone crashtest --from-trace`. docs/CRASHTUTORIAL.md shows its use.
 *
 * Preloaded, it takes the place of libpmem's functions, and finds stores by comparing the mapping
 * with a copy at each of these calls:
 *
 *     cc -shared -fPIC -o recorder.so recorder.c -ldl
 *     KEEPSTONE_TRACE=crash.trace LD_PRELOAD=./recorder.so ./program
 *
 * Linked into a program whose files were compiled with -fsanitize=thread, it receives each store
 * from the compiler, in order and with its line of source. The runtime of that sanitizer is not
 * linked: this file has the functions that the compiler calls. Without libpmem, it also has those.
 *
 *     cc -g -fsanitize=thread -c program.c
 *     cc -o program program.o recorder.c -ldl
 *     KEEPSTONE_TRACE=crash.trace ./program
 *
 * The first mapping of a file is recorded: its content at the start goes to $KEEPSTONE_TRACE.initial,
 * the steps to $KEEPSTONE_TRACE. Without that variable, nothing is recorded. Stores through other mappings of the file,
 * and flushes that the program makes by instructions of its own, are not seen. Operations of one
 * word by the compiler's atomics are. 128-bit atomics are not supported.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINE 64
#define EXPORT __attribute__((visibility("default"), no_sanitize_thread))
#define INTERNAL static __attribute__((no_sanitize_thread))
#define CALLER ((const char *)__builtin_return_address(0) - 1)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *trace;
static unsigned char *region, *shadow;
static size_t region_len;
static unsigned threads;
static __thread unsigned own_thread; /* from 1 on; 0: not numbered yet */

/* A store that the compiler has announced and that may not have been made yet. */
static struct {
	unsigned char *at;
	size_t len;
	const char *caller;
	unsigned thread;
} announced;

INTERNAL unsigned thread_number(void)
{
	if (!own_thread)
		own_thread = ++threads;
	return own_thread - 1;
}

/* Prints the place of a caller as MODULE+OFFSET, without spaces. */
INTERNAL void put_site(const char *prefix, const char *caller)
{
	Dl_info info;

	if (!dladdr(caller, &info) || !info.dli_fname) {
		fprintf(trace, " -\n");
		return;
	}
	fprintf(trace, " %s", prefix);
	for (const char *c = info.dli_fname; *c; c++)
		fputc(*c == ' ' ? '?' : *c, trace);
	fprintf(trace, "+0x%tx\n", caller - (const char *)info.dli_fbase);
}

INTERNAL void put_store(unsigned thread, size_t at, size_t len, const char *prefix, const char *caller)
{
	fprintf(trace, "%u store 0x%zx ", thread, at);
	for (size_t i = 0; i < len; i++)
		fprintf(trace, "%02x", region[at + i]);
	put_site(prefix, caller);
	memcpy(shadow + at, region + at, len);
}

/* Records the announced store, which has been made by now. */
INTERNAL void settle(void)
{
	if (announced.len)
		put_store(announced.thread, announced.at - region, announced.len, "", announced.caller);
	announced.len = 0;
}

/* Records the stores that were not announced: for each line, the words from the first changed one to
 * the last, which persist in any order. */
INTERNAL void compare(const char *caller)
{
	settle();
	for (size_t at = 0; at < region_len; at += LINE) {
		size_t end = at + LINE < region_len ? at + LINE : region_len, first = at;
		if (!memcmp(region + at, shadow + at, end - at))
			continue;
		while (region[first] == shadow[first])
			first++;
		while (region[end - 1] == shadow[end - 1])
			end--;
		put_store(thread_number(), first, end - first, "before:", caller);
	}
}

/* Begins a step: returns whether it belongs to the region, with the lock taken. */
INTERNAL int enter(const void *addr, size_t len, const char *caller)
{
	const unsigned char *at = addr;

	pthread_mutex_lock(&lock);
	if (trace && (!at || (at < region + region_len && at + len > region))) {
		compare(caller);
		return 1;
	}
	pthread_mutex_unlock(&lock);
	return 0;
}

INTERNAL void leave(void)
{
	pthread_mutex_unlock(&lock);
}

INTERNAL void put_flush(const void *addr, size_t len, const char *caller)
{
	size_t at = (const unsigned char *)addr < region ? 0 : (size_t)((const unsigned char *)addr - region);

	if (at + len > region_len)
		len = region_len - at;
	fprintf(trace, "%u flush 0x%zx %zu", thread_number(), at, len);
	put_site("", caller);
}

INTERNAL void put_fence(const char *caller)
{
	fprintf(trace, "%u fence", thread_number());
	put_site("", caller);
}

/* Starts to record a mapping, if it is the first. */
INTERNAL void begin_region(void *addr, size_t len)
{
	const char *name = getenv("KEEPSTONE_TRACE");
	char initial[4096];
	FILE *copy;

	pthread_mutex_lock(&lock);
	if (!trace && name && *name && addr && len < UINT32_MAX) {
		snprintf(initial, sizeof(initial), "%s.initial", name);
		copy = fopen(initial, "w");
		trace = fopen(name, "w");
		shadow = malloc(len);
		if (!copy || !trace || !shadow || fwrite(addr, 1, len, copy) != len || fclose(copy)) {
			perror(name);
			_exit(1);
		}
		memcpy(shadow, addr, len);
		region = addr;
		region_len = len;
		fprintf(trace, "keepstone-trace 1 0x%zx\n", len);
	}
	pthread_mutex_unlock(&lock);
}

__attribute__((destructor)) INTERNAL void end_region(void)
{
	pthread_mutex_lock(&lock);
	if (trace) {
		compare(CALLER);
		fclose(trace);
		trace = NULL;
	}
	pthread_mutex_unlock(&lock);
}

/* Operations. */

INTERNAL void mark(const char *word, unsigned operation, const char *caller)
{
	if (enter(NULL, 0, caller)) {
		fprintf(trace, "%u %s %u\n", thread_number(), word, operation);
		leave();
	}
}

EXPORT void crashtest_begin(unsigned operation)
{
	mark("begin", operation, CALLER);
}

EXPORT void crashtest_end(unsigned operation)
{
	mark("end", operation, CALLER);
}

/* The functions of libpmem. */

#define PMEM_FILE_CREATE 1
#define PMEM_FILE_EXCL 2
#define PMEM_F_MEM_NODRAIN (1U << 0)
#define PMEM_F_MEM_NOFLUSH (1U << 5)

EXPORT void *pmem_map_file(const char *path, size_t len, int flags, mode_t mode, size_t *mapped_len,
	int *is_pmem)
{
	void *(*next)(const char *, size_t, int, mode_t, size_t *, int *) = dlsym(RTLD_NEXT, "pmem_map_file");
	struct stat st;
	void *addr;
	size_t all = 0;
	int fd;

	if (next) {
		addr = next(path, len, flags, mode, &all, is_pmem);
	} else {
		fd = open(path, O_RDWR | O_CLOEXEC | (flags & PMEM_FILE_CREATE ? O_CREAT : 0) |
			(flags & PMEM_FILE_EXCL ? O_EXCL : 0), mode);
		if (fd < 0)
			return NULL;
		if ((flags & PMEM_FILE_CREATE && ftruncate(fd, len)) || fstat(fd, &st)) {
			close(fd);
			return NULL;
		}
		all = st.st_size;
		addr = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		close(fd);
		addr = addr == MAP_FAILED ? NULL : addr;
		if (is_pmem)
			*is_pmem = 1;
	}
	if (mapped_len)
		*mapped_len = all;
	begin_region(addr, all);
	return addr;
}

EXPORT int pmem_unmap(void *addr, size_t len)
{
	if (addr == region)
		end_region();
	return munmap(addr, len);
}

EXPORT int pmem_is_pmem(const void *addr, size_t len)
{
	(void)addr;
	(void)len;
	return 1;
}

INTERNAL void flush(const void *addr, size_t len, int fences, const char *caller)
{
	if (enter(addr, len, caller)) {
		put_flush(addr, len, caller);
		if (fences)
			put_fence(caller);
		leave();
	}
}

EXPORT void pmem_flush(const void *addr, size_t len) { flush(addr, len, 0, CALLER); }
EXPORT void pmem_deep_flush(const void *addr, size_t len) { flush(addr, len, 0, CALLER); }
EXPORT void pmem_persist(const void *addr, size_t len) { flush(addr, len, 1, CALLER); }
EXPORT int pmem_deep_persist(const void *addr, size_t len) { flush(addr, len, 1, CALLER); return 0; }
EXPORT int pmem_msync(const void *addr, size_t len) { flush(addr, len, 1, CALLER); return 0; }

INTERNAL void fence(const char *caller)
{
	if (enter(NULL, 0, caller)) {
		put_fence(caller);
		leave();
	}
}

EXPORT void pmem_drain(void) { fence(CALLER); }
EXPORT int pmem_deep_drain(const void *addr, size_t len) { (void)addr; (void)len; fence(CALLER); return 0; }

/* Copies or fills: a store, and as the flags want a flush and a fence. */
INTERNAL void *move(void *dest, const void *src, int c, size_t len, unsigned flags, const char *caller)
{
	int recorded = len && enter(dest, len, caller);

	if (src)
		memmove(dest, src, len);
	else
		memset(dest, c, len);
	if (recorded) {
		put_store(thread_number(), (unsigned char *)dest - region, len, "", caller);
		if (!(flags & PMEM_F_MEM_NOFLUSH))
			put_flush(dest, len, caller);
		if (!(flags & (PMEM_F_MEM_NOFLUSH | PMEM_F_MEM_NODRAIN)))
			put_fence(caller);
		leave();
	}
	return dest;
}

#define COPY(name) \
	EXPORT void *pmem_##name(void *d, const void *s, size_t n, unsigned f) { return move(d, s, 0, n, f, CALLER); } \
	EXPORT void *pmem_##name##_persist(void *d, const void *s, size_t n) { return move(d, s, 0, n, 0, CALLER); } \
	EXPORT void *pmem_##name##_nodrain(void *d, const void *s, size_t n) { \
		return move(d, s, 0, n, PMEM_F_MEM_NODRAIN, CALLER); \
	}
COPY(memcpy)
COPY(memmove)
EXPORT void *pmem_memset(void *d, int c, size_t n, unsigned f) { return move(d, NULL, c, n, f, CALLER); }
EXPORT void *pmem_memset_persist(void *d, int c, size_t n) { return move(d, NULL, c, n, 0, CALLER); }
EXPORT void *pmem_memset_nodrain(void *d, int c, size_t n) { return move(d, NULL, c, n, PMEM_F_MEM_NODRAIN, CALLER); }

/* The functions that the compiler calls before each access. */

INTERNAL void announce(void *addr, size_t len, const char *caller)
{
	unsigned char *at = addr;

	if (!trace || at < region || at + len > region + region_len)
		return;
	pthread_mutex_lock(&lock);
	settle();
	announced.at = at;
	announced.len = len;
	announced.caller = caller;
	announced.thread = thread_number();
	pthread_mutex_unlock(&lock);
}

#define ACCESS(len) \
	EXPORT void __tsan_read##len(void *a) { (void)a; } \
	EXPORT void __tsan_unaligned_read##len(void *a) { (void)a; } \
	EXPORT void __tsan_volatile_read##len(void *a) { (void)a; } \
	EXPORT void __tsan_write##len(void *a) { announce(a, len, CALLER); } \
	EXPORT void __tsan_unaligned_write##len(void *a) { announce(a, len, CALLER); } \
	EXPORT void __tsan_volatile_write##len(void *a) { announce(a, len, CALLER); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
EXPORT void __tsan_read_range(void *a, size_t n) { (void)a; (void)n; }
EXPORT void __tsan_write_range(void *a, size_t n) { announce(a, n, CALLER); }
EXPORT void __tsan_vptr_update(void *a, void *v) { (void)v; announce(a, sizeof(void *), CALLER); }
EXPORT void __tsan_vptr_read(void *a) { (void)a; }
EXPORT void __tsan_init(void) {}
EXPORT void __tsan_func_entry(void *caller) { (void)caller; }
EXPORT void __tsan_func_exit(void) {}
EXPORT void __tsan_atomic_thread_fence(int order) { (void)order; __atomic_thread_fence(__ATOMIC_SEQ_CST); }
EXPORT void __tsan_atomic_signal_fence(int order) { (void)order; }

#define UPDATE(bits, type, name) \
	EXPORT type __tsan_atomic##bits##_##name(volatile type *a, type v, int o) { \
		(void)o; announce((void *)a, sizeof(type), CALLER); \
		return __atomic_##name(a, v, __ATOMIC_SEQ_CST); \
	}
#define ATOMICS(bits, type) \
	EXPORT type __tsan_atomic##bits##_load(const volatile type *a, int o) { \
		(void)o; return __atomic_load_n(a, __ATOMIC_SEQ_CST); \
	} \
	EXPORT void __tsan_atomic##bits##_store(volatile type *a, type v, int o) { \
		(void)o; announce((void *)a, sizeof(type), CALLER); \
		__atomic_store_n(a, v, __ATOMIC_SEQ_CST); \
	} \
	EXPORT type __tsan_atomic##bits##_exchange(volatile type *a, type v, int o) { \
		(void)o; announce((void *)a, sizeof(type), CALLER); \
		return __atomic_exchange_n(a, v, __ATOMIC_SEQ_CST); \
	} \
	EXPORT int __tsan_atomic##bits##_compare_exchange_strong(volatile type *a, type *e, type v, int o, int f) { \
		(void)o; (void)f; announce((void *)a, sizeof(type), CALLER); \
		return __atomic_compare_exchange_n(a, e, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
	} \
	EXPORT int __tsan_atomic##bits##_compare_exchange_weak(volatile type *a, type *e, type v, int o, int f) { \
		(void)o; (void)f; announce((void *)a, sizeof(type), CALLER); \
		return __atomic_compare_exchange_n(a, e, v, 1, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
	} \
	UPDATE(bits, type, fetch_add) UPDATE(bits, type, fetch_sub) UPDATE(bits, type, fetch_and) \
	UPDATE(bits, type, fetch_or) UPDATE(bits, type, fetch_xor) UPDATE(bits, type, fetch_nand)
ATOMICS(8, uint8_t)
ATOMICS(16, uint16_t)
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)
