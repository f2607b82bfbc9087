/* The five personalities of Filebench, after their published descriptions: what a cache is measured with by PMAL (§V, Table IV,
 * Figures 4 and 5) and by Chell (§5.3, Figure 12).
 *
 *     cc -O2 -pthread -o personalities bench/c/personalities.c -lm
 *     ./personalities DIR PERSONALITY MEAN FILES THREADS OPERATIONS prepare
 *     keepstone run -- ./personalities DIR PERSONALITY MEAN FILES THREADS OPERATIONS run|sync
 *
 * PERSONALITY is fileserver, webserver, webproxy, varmail or oltp; MEAN is a size in bytes; OPERATIONS are loops of the flow, of
 * all threads together. `prepare` makes the files in DIR, an empty directory; `run`, another process with the same arguments,
 * prints the seconds that the loops took. `sync` does the same with every file opened with O_SYNC.
 *
 * As in Filebench, four of five files of a set that is created and deleted from are there at first; directories have 20 entries
 * (webproxy and varmail: one directory has all); files are opened to read and write, and written and read whole in pieces of 1 MiB,
 * read until nothing is left. Sizes are of a gamma distribution of shape 1.5, drawn exactly: one of shape 1, -ln(u), and one of
 * shape 1/2, half the square of a normal variable. A file has the same size whenever it is created.
 *
 * Unlike it, an append is of 1 byte to 32 KiB, 16 KiB in the mean (Filebench draws up to what it calls the mean); a file has one
 * user at a time, who takes it off the list; directories are three levels of exactly 20, not a tree of drawn widths; and oltp has
 * no semaphores and no time in user mode between its calls. Its threads are a log writer, a quarter of all as writers, and the
 * rest readers: OPERATIONS reads, as many writes (Table IV: 1:1), and a write to the log for every 100 of them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "clock.h"

#define THREADS_MAX 64
#define PATH_BYTES 4096
#define PIECE (1 << 20)
#define APPENDED_MEAN (16 << 10)
#define WIDTH 20
#define ABSENT_ONE_IN 5
#define GAMMA_SHAPE 1.5
#define PAGE_BYTES (2 << 10)
#define LOG_BYTES (10 << 20)
#define LOGGED_BYTES (256 << 10)
#define OPERATIONS_PER_LOG 100

struct worker {
	uint64_t seed;
	char *buffer;
	long loops;
	void (*loop)(struct worker *worker);
	int log;
	int *data;	/* oltp: a descriptor of each file */
};

struct personality {
	const char *name;
	int is_flat, has_absent, has_log;
	void (*loop)(struct worker *worker);	/* None: oltp, whose threads differ. */
};

struct list {
	long *files;
	long count;
};

static const char *dir;
static const struct personality *personality;
static long mean, files, operations;
static int threads, open_flags = O_RDWR;
static struct list existing, absent;
static pthread_mutex_t lists = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t given = PTHREAD_COND_INITIALIZER;

static long check(long result, const char *what)
{
	if (result < 0) {
		fprintf(stderr, "personalities: %s: %s\n", what, strerror(errno));
		exit(1);
	}
	return result;
}

static void *allocate(size_t len)
{
	void *bytes = malloc(len);

	check(bytes ? 0 : -1, "memory");
	return bytes;
}

/* Steele et al., "Fast splittable pseudorandom number generators": neighbouring seeds are as good as any. */
static uint64_t below(uint64_t *seed, uint64_t n)
{
	uint64_t x = *seed += 0x9e3779b97f4a7c15;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
	return (x ^ (x >> 31)) % n;
}

/* Above 0, up to 1. */
static double uniform(uint64_t *seed)
{
	return (below(seed, 1 << 30) + 1.0) / (1 << 30);
}

static size_t size_of(long file)
{
	uint64_t seed = file;
	double one, half, angle;

	if (!personality->loop)
		return mean;
	one = -log(uniform(&seed));
	half = -log(uniform(&seed));
	angle = cos(2 * M_PI * uniform(&seed));
	return 1 + (size_t)(mean / GAMMA_SHAPE * (one + half * angle * angle));
}

static void path_of(long file, char *path)
{
	if (personality->is_flat)
		snprintf(path, PATH_BYTES, "%s/%ld", dir, file);
	else
		snprintf(path, PATH_BYTES, "%s/%ld/%ld/%ld", dir, file / WIDTH / WIDTH, file / WIDTH % WIDTH, file % WIDTH);
}

static int open_file(long file, int flags)
{
	char path[PATH_BYTES];

	path_of(file, path);
	return check(open(path, open_flags | flags, 0644), path);
}

static int open_log(int flags)
{
	char path[PATH_BYTES];

	snprintf(path, sizeof path, "%s/log", dir);
	return check(open(path, open_flags | flags, 0644), path);
}

static void close_file(int fd)
{
	check(close(fd), "close");
}

static void write_bytes(int fd, const char *buffer, size_t len)
{
	while (len)
		len -= check(write(fd, buffer, len < PIECE ? len : PIECE), "write");
}

static void read_whole(struct worker *worker, int fd)
{
	while (check(read(fd, worker->buffer, PIECE), "read"))
		;
}

static void append(struct worker *worker, int fd)
{
	check(lseek(fd, 0, SEEK_END), "lseek");
	write_bytes(fd, worker->buffer, 1 + below(&worker->seed, 2 * APPENDED_MEAN));
}

/* Takes a file off a list, any of them, once there is one. No worker has a file when it asks for another, so somebody gives. */
static long take(struct list *list, struct worker *worker)
{
	long at, file;

	pthread_mutex_lock(&lists);
	while (!list->count)
		pthread_cond_wait(&given, &lists);
	at = below(&worker->seed, list->count);
	file = list->files[at];
	list->files[at] = list->files[--list->count];
	pthread_mutex_unlock(&lists);
	return file;
}

static void give(struct list *list, long file)
{
	pthread_mutex_lock(&lists);
	list->files[list->count++] = file;
	pthread_cond_broadcast(&given);
	pthread_mutex_unlock(&lists);
}

static void delete_one(struct worker *worker)
{
	char path[PATH_BYTES];
	long file = take(&existing, worker);

	path_of(file, path);
	check(unlink(path), path);
	give(&absent, file);
}

static void stat_one(struct worker *worker)
{
	char path[PATH_BYTES];
	struct stat status;
	long file = take(&existing, worker);

	path_of(file, path);
	check(stat(path, &status), path);
	give(&existing, file);
}

static void read_one(struct worker *worker)
{
	long file = take(&existing, worker);
	int fd = open_file(file, 0);

	read_whole(worker, fd);
	close_file(fd);
	give(&existing, file);
}

static void fileserver(struct worker *worker)
{
	long file = take(&absent, worker);
	int fd = open_file(file, O_CREAT | O_EXCL);

	write_bytes(fd, worker->buffer, size_of(file));
	close_file(fd);
	give(&existing, file);

	file = take(&existing, worker);
	fd = open_file(file, 0);
	append(worker, fd);
	close_file(fd);
	give(&existing, file);

	read_one(worker);
	delete_one(worker);
	stat_one(worker);
}

static void webserver(struct worker *worker)
{
	int i;

	for (i = 0; i < 10; i++)
		read_one(worker);
	append(worker, worker->log);
}

static void webproxy(struct worker *worker)
{
	long file;
	int fd, i;

	delete_one(worker);

	file = take(&absent, worker);
	fd = open_file(file, O_CREAT | O_EXCL);
	append(worker, fd);
	close_file(fd);
	give(&existing, file);

	for (i = 0; i < 5; i++)
		read_one(worker);
	append(worker, worker->log);
}

static void varmail(struct worker *worker)
{
	long file;
	int fd;

	delete_one(worker);

	file = take(&absent, worker);
	fd = open_file(file, O_CREAT | O_EXCL);
	append(worker, fd);
	check(fsync(fd), "fsync");
	close_file(fd);
	give(&existing, file);

	file = take(&existing, worker);
	fd = open_file(file, 0);
	read_whole(worker, fd);
	append(worker, fd);
	check(fsync(fd), "fsync");
	close_file(fd);
	give(&existing, file);

	read_one(worker);
}

/* A place for `len` bytes in a file of `size`, at a multiple of them. */
static off_t place(struct worker *worker, long size, long len)
{
	return below(&worker->seed, size / len) * len;
}

static void oltp_log(struct worker *worker)
{
	check(pwrite(worker->log, worker->buffer, LOGGED_BYTES, place(worker, LOG_BYTES, LOGGED_BYTES)), "log");
}

static void oltp_write(struct worker *worker)
{
	int fd = worker->data[below(&worker->seed, files)];

	check(pwrite(fd, worker->buffer, PAGE_BYTES, place(worker, mean, PAGE_BYTES)), "write");
}

static void oltp_read(struct worker *worker)
{
	int fd = worker->data[below(&worker->seed, files)];

	check(pread(fd, worker->buffer, PAGE_BYTES, place(worker, mean, PAGE_BYTES)), "read");
}

static const struct personality personalities[] = {
	{.name = "fileserver", .has_absent = 1, .loop = fileserver},
	{.name = "webserver", .has_log = 1, .loop = webserver},
	{.name = "webproxy", .is_flat = 1, .has_absent = 1, .has_log = 1, .loop = webproxy},
	{.name = "varmail", .is_flat = 1, .has_absent = 1, .loop = varmail},
	{.name = "oltp", .is_flat = 1, .has_log = 1},
};

static int is_absent(long file)
{
	return personality->has_absent && file % ABSENT_ONE_IN == 0;
}

static void make_directories(void)
{
	char path[PATH_BYTES];
	long i;

	for (i = 0; i < files; i += WIDTH) {
		snprintf(path, sizeof path, "%s/%ld", dir, i / WIDTH / WIDTH);
		if (i % (WIDTH * WIDTH) == 0)
			check(mkdir(path, 0755), path);
		snprintf(path, sizeof path, "%s/%ld/%ld", dir, i / WIDTH / WIDTH, i / WIDTH % WIDTH);
		check(mkdir(path, 0755), path);
	}
}

static void prepare(void)
{
	char *buffer = allocate(PIECE);
	long i;
	int fd;

	memset(buffer, 'p', PIECE);
	if (!personality->is_flat)
		make_directories();
	for (i = 0; i < files; i++) {
		if (is_absent(i))
			continue;
		fd = open_file(i, O_CREAT | O_EXCL);
		write_bytes(fd, buffer, size_of(i));
		close_file(fd);
	}
	if (personality->has_log) {
		fd = open_log(O_CREAT | O_EXCL);
		if (!personality->loop)
			write_bytes(fd, buffer, LOG_BYTES);
		close_file(fd);
	}
	free(buffer);
}

static long share(long total, int workers, int index)
{
	return total / workers + (index < total % workers);
}

/* What worker `index` of oltp does, and how often. */
static void cast_oltp(struct worker *worker, int index)
{
	int writers = threads / 4, readers = threads - 1 - writers;
	int flags = 0;
	long i;

	if (index == 0) {
		worker->loop = oltp_log;
		worker->loops = (operations + OPERATIONS_PER_LOG - 1) / OPERATIONS_PER_LOG;
	} else if (index <= writers) {
		worker->loop = oltp_write;
		worker->loops = share(operations, writers, index - 1);
		flags = O_DSYNC;
	} else {
		worker->loop = oltp_read;
		worker->loops = share(operations, readers, index - 1 - writers);
	}
	worker->data = allocate(files * sizeof *worker->data);
	for (i = 0; i < files; i++)
		worker->data[i] = open_file(i, flags);
	worker->log = open_log(O_DSYNC);
}

static void cast(struct worker *worker, int index)
{
	worker->seed = 88172645463325252 + index * 0x9e3779b9;
	worker->buffer = allocate(PIECE);
	memset(worker->buffer, 'w', PIECE);
	if (!personality->loop) {
		cast_oltp(worker, index);
		return;
	}
	worker->loop = personality->loop;
	worker->loops = share(operations, threads, index);
	if (personality->has_log)
		worker->log = open_log(0);
}

static void *run(void *argument)
{
	struct worker *worker = argument;
	long i;

	for (i = 0; i < worker->loops; i++)
		worker->loop(worker);
	return NULL;
}

static void run_all(void)
{
	static struct worker worker[THREADS_MAX];
	pthread_t thread[THREADS_MAX];
	double begun;
	long i;

	existing.files = allocate(files * sizeof *existing.files);
	absent.files = allocate(files * sizeof *absent.files);
	for (i = 0; i < files; i++)
		give(is_absent(i) ? &absent : &existing, i);
	for (i = 0; i < threads; i++)
		cast(&worker[i], i);

	begun = seconds(CLOCK_MONOTONIC);
	for (i = 0; i < threads; i++) {
		errno = pthread_create(&thread[i], NULL, run, &worker[i]);
		check(-errno, "thread");
	}
	for (i = 0; i < threads; i++) {
		errno = pthread_join(thread[i], NULL);
		check(-errno, "thread");
	}
	printf("%.6f\n", seconds(CLOCK_MONOTONIC) - begun);
}

int main(int argc, char **argv)
{
	size_t i;

	for (i = 0; argc == 8 && i < sizeof personalities / sizeof *personalities; i++)
		if (!strcmp(argv[2], personalities[i].name))
			personality = &personalities[i];
	if (!personality)
		return fprintf(stderr, "usage: personalities DIR PERSONALITY MEAN FILES THREADS OPERATIONS prepare|run|sync\n"), 2;
	dir = argv[1];
	mean = atol(argv[3]);
	files = atol(argv[4]);
	threads = atoi(argv[5]);
	operations = atol(argv[6]);
	/* oltp has a writer for four threads, and pages to choose from; the others need a file that is there and one that is not. */
	if (threads < (personality->loop ? 1 : 4) || threads > THREADS_MAX || mean < PAGE_BYTES || files < 2 || operations < 1)
		return fprintf(stderr, "personalities: too few or too many\n"), 2;

	if (!strcmp(argv[7], "prepare")) {
		prepare();
		return 0;
	}
	if (!strcmp(argv[7], "sync"))
		open_flags |= O_SYNC;
	run_all();
	return 0;
}
