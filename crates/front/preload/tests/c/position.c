/*
 * Reads and writes of io_uring at the file's own position (offset -1), by a ring that the program fills itself, as libuv does.
 * Flags of open: d O_DIRECT, a O_APPEND.
 *
 *   position DIR [FLAGS]
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/io_uring.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "check.h"

static int ring;
static char *submissions, *completions;
static struct io_uring_sqe *entries;
static struct io_uring_params parameters;

static unsigned *word(char *base, unsigned at)
{
	return (unsigned *)(base + at);
}

static int done(int operation, int fd, void *bytes, unsigned len, unsigned long offset)
{
	struct io_sqring_offsets *sq = &parameters.sq_off;
	struct io_cqring_offsets *cq = &parameters.cq_off;
	unsigned tail = *word(submissions, sq->tail), place = tail & *word(submissions, sq->ring_mask);
	unsigned *head = word(completions, cq->head);
	struct io_uring_cqe *results = (void *)(completions + cq->cqes);

	memset(&entries[place], 0, sizeof entries[place]);
	entries[place].opcode = operation;
	entries[place].fd = fd;
	entries[place].addr = (unsigned long)bytes;
	entries[place].len = len;
	entries[place].off = offset;
	word(submissions, sq->array)[place] = place;
	__atomic_store_n(word(submissions, sq->tail), tail + 1, __ATOMIC_RELEASE);
	CHECK(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) == 1);
	int result = results[*head & *word(completions, cq->ring_mask)].res;
	__atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
	return result;
}

static int reads(int fd, void *bytes, unsigned len)
{
	return done(IORING_OP_READ, fd, bytes, len, -1UL);
}

static int writes(int fd, const void *bytes, unsigned len)
{
	return done(IORING_OP_WRITE, fd, (void *)bytes, len, -1UL);
}

int main(int argc, char **argv)
{
	const char *flags = argc > 2 ? argv[2] : "";
	int direct = strchr(flags, 'd') ? O_DIRECT : 0, append = strchr(flags, 'a') ? O_APPEND : 0;
	char bytes[20] = "";

	CHECK(chdir(argv[1]) == 0);
	/* The ring gets the number of a descriptor that was open when a file was opened before. */
	int other = open("/dev/null", O_RDONLY), first = open("first", O_RDWR | O_CREAT, 0644);
	CHECK(other >= 0 && first >= 0 && close(first) == 0 && unlink("first") == 0 && close(other) == 0);
	int before = open("before", O_RDWR | O_CREAT | O_TRUNC, 0644);
	CHECK(before == other && dup2(before, 100) == 100 && close(before) == 0);
	ring = syscall(SYS_io_uring_setup, 8, &parameters);
	CHECK(ring == other);
	submissions = mmap(0, 4096, 3, MAP_SHARED, ring, IORING_OFF_SQ_RING);
	completions = mmap(0, 4096, 3, MAP_SHARED, ring, IORING_OFF_CQ_RING);
	entries = mmap(0, 4096, 3, MAP_SHARED, ring, IORING_OFF_SQES);
	CHECK(submissions != MAP_FAILED && completions != MAP_FAILED && entries != MAP_FAILED);

	/* A file that was open before is the ring's, too, and its number becomes another one's. */
	CHECK(write(100, "before", 6) == 6 && done(IORING_OP_WRITE, 100, "B", 1, 0) == 1);
	before = dup(100);
	CHECK(before == first && close(100) == 0 && done(IORING_OP_CLOSE, before, 0, 0, 0) == 0);
	CHECK(pread(before, bytes, 6, 0) < 0 && errno == EBADF);
	int fd = open("after", O_RDWR | O_CREAT | O_TRUNC, 0644);
	CHECK(fd == before && write(fd, "after", 5) == 5 && close(fd) == 0);
	fd = open("before", O_RDONLY);
	CHECK(read(fd, bytes, sizeof bytes) == 6 && !memcmp(bytes, "Before", 6) && close(fd) == 0);
	CHECK(unlink("before") == 0 && unlink("after") == 0);

	fd = open("file", O_RDWR | O_CREAT | O_TRUNC | direct, 0644);
	CHECK(pwrite(fd, "abcdef", 6, 0) == 6);
	CHECK(reads(fd, bytes, 3) == 3 && reads(fd, bytes + 3, 3) == 3);
	CHECK(!memcmp(bytes, "abcdef", 6) && lseek(fd, 0, SEEK_CUR) == 6);
	CHECK(reads(fd, bytes, 3) == 0);
	close(fd);

	fd = open("file", O_RDWR | O_TRUNC | append | direct);
	CHECK(writes(fd, "123", 3) == 3 && writes(fd, "456", 3) == 3);
	CHECK(pread(fd, bytes, sizeof bytes, 0) == 6 && !memcmp(bytes, "123456", 6));
	CHECK(append || lseek(fd, 0, SEEK_CUR) == 6);
	CHECK(done(IORING_OP_READ, fd, bytes, 3, 2) == 3 && !memcmp(bytes, "345", 3));
	close(fd);

	fd = open("file", O_WRONLY | O_TRUNC);
	CHECK(writes(fd, "abc", 3) == 3 && writes(fd, "def", 3) == 3);
	close(fd);
	fd = open("file", O_RDONLY);
	CHECK(read(fd, bytes, sizeof bytes) == 6 && !memcmp(bytes, "abcdef", 6));
	close(fd);
	CHECK(unlink("file") == 0);
	return 0;
}
