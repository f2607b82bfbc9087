/*
 * Linux AIO and io_uring, by their libraries: requests on files of a directory, mixed with such on others, and what they have
 * done. Prints that it is done, or what is not as it must be.
 *
 *   requests DIR
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <libaio.h>
#include <liburing.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(...) \
	do { \
		if (!(__VA_ARGS__)) { \
			printf("line %d: %s: %s\n", __LINE__, #__VA_ARGS__, strerror(errno)); \
			exit(1); \
		} \
	} while (0)

static char block[8192], other[8192];

static void fill(char *at, size_t len, int seed)
{
	for (size_t i = 0; i < len; i++)
		at[i] = i * 7 + seed;
}

/* Whether a file holds these bytes there, as another descriptor sees it. */
static int holds(const char *path, off_t at, const char *bytes, size_t len)
{
	char *found = malloc(len);
	int fd = open(path, O_RDONLY), is_equal;

	is_equal = pread(fd, found, len, at) == (ssize_t)len && !memcmp(found, bytes, len);
	close(fd);
	free(found);
	return is_equal;
}

static void *waits(void *context)
{
	struct io_event event;

	return (void *)(long)(io_getevents(context, 1, 1, &event, NULL) == 1 ? event.res : -1);
}

static void linux_aio(void)
{
	io_context_t context = NULL;
	struct iocb all[8], before, *list[8];
	struct io_event events[8];
	struct iovec parts[2] = { { block, 100 }, { block + 100, 4000 } };
	int fd = open("aio", O_CREAT | O_RDWR | O_TRUNC, 0644), zeros = open("/dev/zero", O_RDONLY);
	int event_fd = eventfd(0, 0), reads_only;
	eventfd_t count;
	pthread_t thread;
	void *result;

	CHECK(fd >= 0 && io_setup(8, &context) == 0);
	fill(block, sizeof block, 1);
	io_prep_pwrite(&all[0], fd, block, 5000, 0);
	io_prep_pwritev(&all[1], fd, parts, 2, 5000);
	io_prep_pread(&all[2], zeros, other, 300, 0);
	io_prep_fsync(&all[3], fd);
	for (int i = 0; i < 4; i++) {
		all[i].data = &all[i] + 1;
		list[i] = &all[i];
	}
	io_set_eventfd(&all[1], event_fd);
	before = all[0];
	CHECK(io_submit(context, 4, list) == 4);
	CHECK(!memcmp(&before.u, &all[0].u, sizeof before.u) && before.aio_fildes == all[0].aio_fildes);
	for (int got = 0; got < 4;) {
		int now = io_getevents(context, 1, 8, events, NULL);

		CHECK(now > 0);
		for (int i = 0; i < now; i++) {
			static const long results[] = { 5000, 4100, 300, 0 };
			long which = events[i].obj - all;

			CHECK(which >= 0 && which < 4 && events[i].res == results[which]);
			CHECK(events[i].data == events[i].obj + 1);
		}
		got += now;
	}
	CHECK(eventfd_read(event_fd, &count) == 0 && count == 1);
	CHECK(holds("aio", 0, block, 5000) && holds("aio", 5000, block, 4100));

	/* Reads, beyond the end, too. */
	io_prep_pread(&all[0], fd, other, 200, 4900);
	io_prep_pread(&all[1], fd, other + 200, 200, 9000);
	io_prep_pread(&all[2], fd, other + 400, 200, 20000);
	CHECK(io_submit(context, 3, list) == 3 && io_getevents(context, 3, 3, events, NULL) == 3);
	for (int i = 0; i < 3; i++)
		CHECK(events[i].res == (long[]){ 200, 100, 0 }[events[i].obj - all]);
	CHECK(!memcmp(other, block + 4900, 100) && !memcmp(other + 100, block, 100));
	CHECK(!memcmp(other + 200, block + 4000, 100));

	/* What fails is said as the kernel says it; what follows it is done. */
	reads_only = open("aio", O_RDONLY);
	io_prep_pwrite(&all[0], reads_only, block, 10, 0);
	CHECK(io_submit(context, 1, list) == -EBADF);
	io_prep_pwrite(&all[0], fd, (void *)8, 10, 0);
	list[1] = &all[1];
	io_prep_pwrite(&all[1], fd, block + 1, 10, 0);
	for (int i = 0, now; i < 2; i += now) {
		now = io_submit(context, 2 - i, list + i);
		if (now == -EFAULT)
			now = 1;
		else
			CHECK(now > 0);
	}
	CHECK(io_getevents(context, 1, 8, events, NULL) >= 1);
	CHECK(holds("aio", 0, block + 1, 10));
	CHECK(io_submit(context, 1, (struct iocb **)8) == -EFAULT);

	/* Somebody waits already. */
	pthread_create(&thread, NULL, waits, context);
	usleep(20000);
	io_prep_pwrite(&all[0], fd, block, 77, 100);
	CHECK(io_submit(context, 1, list) == 1);
	pthread_join(thread, &result);
	CHECK((long)result == 77 && holds("aio", 100, block, 77));

	/* Appended once. */
	CHECK(fcntl(fd, F_SETFL, O_APPEND) == 0);
	io_prep_pwrite(&all[0], fd, block, 50, 0);
	CHECK(io_submit(context, 1, list) == 1 && io_getevents(context, 1, 8, events, NULL) == 1);
	CHECK(events[0].res == 50 && lseek(fd, 0, SEEK_END) == 9150 && holds("aio", 9100, block, 50));

	/* By number. */
	io_prep_pread(&all[0], reads_only, other, 50, 9100);
	CHECK(syscall(SYS_io_submit, context, 1L, list) == 1);
	CHECK(io_getevents(context, 1, 8, events, NULL) == 1 && events[0].res == 50);
	CHECK(!memcmp(other, block, 50));
	CHECK(io_destroy(context) == 0);
	close(fd);
	close(reads_only);
	close(zeros);
	close(event_fd);
}

/* Waits for a completion: its result. `which`: whose it is. */
static int completed(struct io_uring *ring, long *which)
{
	struct io_uring_cqe *cqe;
	int result;

	CHECK(io_uring_wait_cqe(ring, &cqe) == 0);
	result = cqe->res;
	*which = (long)io_uring_cqe_get_data(cqe);
	io_uring_cqe_seen(ring, cqe);
	return result;
}

/* Whether so many were submitted. A thread of the kernel that takes them may not have said yet that it took those before. */
static int are(struct io_uring *ring, int told, int count)
{
	return told == count || (ring->flags & IORING_SETUP_SQPOLL && told > count);
}

static int submits(struct io_uring *ring, int count)
{
	return are(ring, io_uring_submit(ring), count);
}

static struct io_uring_sqe *request(struct io_uring *ring, long which)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);

	while (!sqe && ring->flags & IORING_SETUP_SQPOLL) {
		CHECK(io_uring_sqring_wait(ring) >= 0);
		sqe = io_uring_get_sqe(ring);
	}
	CHECK(sqe);
	/* Kept by the functions that fill the rest, from liburing 2.2 on. */
	sqe->user_data = which;
	return sqe;
}

/* Files that the ring closes and opens: each number is that of the last file. */
static void reused(struct io_uring *ring)
{
	struct io_uring_sqe *sqe;
	struct stat found;
	int one = open("one", O_CREAT | O_RDWR | O_TRUNC, 0644), two, none[2] = { -1, -1 }, both[2];
	long which;

	two = open("two", O_CREAT | O_RDWR | O_TRUNC, 0644);
	CHECK(two > one && write(one, "one", 3) == 3 && write(two, "two", 3) == 3);
	CHECK(close(two) == 0 && pread(one, other, 3, 0) == 3);
	sqe = request(ring, 0), io_uring_prep_close(sqe, one), sqe->user_data = 1;
	CHECK(submits(ring, 1) && completed(ring, &which) == 0);
	CHECK(pread(one, other, 3, 0) < 0 && errno == EBADF);
	CHECK(write(one, other, 3) < 0 && errno == EBADF && close(one) < 0 && errno == EBADF);
	sqe = request(ring, 0), io_uring_prep_openat(sqe, AT_FDCWD, "two", O_RDWR, 0), sqe->user_data = 1;
	CHECK(submits(ring, 1));
	two = completed(ring, &which);
	CHECK(two == one && write(two, "TW", 2) == 2 && fstat(two, &found) == 0);
	CHECK(holds("two", 0, "TWo", 3) && holds("one", 0, "one", 3));
	CHECK(pread(two, other, 3, 0) == 3 && !memcmp(other, "TWo", 3));
	sqe = request(ring, 0), io_uring_prep_close(sqe, two), sqe->user_data = 1;
	CHECK(submits(ring, 1) && completed(ring, &which) == 0);
	one = open("one", O_RDWR);
	CHECK(one == two && pread(one, other, 3, 0) == 3 && !memcmp(other, "one", 3));

	/* Both are registered, by a request. */
	two = open("two", O_RDWR);
	io_uring_unregister_files(ring);
	CHECK(io_uring_register_files(ring, none, 2) == 0);
	both[0] = one, both[1] = two;
	sqe = request(ring, 0), io_uring_prep_files_update(sqe, both, 2, 0), sqe->user_data = 1;
	CHECK(submits(ring, 1) && completed(ring, &which) == 2);
	sqe = request(ring, 0), io_uring_prep_write(sqe, 1, "2", 1, 0), sqe->user_data = 1;
	sqe->flags |= IOSQE_FIXED_FILE;
	CHECK(submits(ring, 1) && completed(ring, &which) == 1 && holds("two", 0, "2Wo", 3));
	close(one);
	close(two);
	unlink("one");
	unlink("two");
}

static void uring(unsigned flags)
{
	struct io_uring ring;
	struct io_uring_sqe *sqe;
	struct iovec parts[2] = { { block, 100 }, { block + 100, 4000 } }, fixed = { other, 4096 };
	struct __kernel_timespec soon = { .tv_nsec = 1000 };
	struct io_uring_cqe *cqe;
	int fd = open("ring", O_CREAT | O_RDWR | O_TRUNC, 0644), zeros = open("/dev/zero", O_RDONLY);
	int pipes[2], registered, result;
	long which;

	CHECK(fd >= 0 && pipe(pipes) == 0);
	result = io_uring_queue_init(8, &ring, flags);
	if (result == -EINVAL && flags)
		return; /* The kernel has none of these. */
	if (result == -EPERM || result == -ENOSYS)
		return; /* The machine forbids rings. */
	CHECK(result == 0);
	fill(block, sizeof block, 2);
	/* More often than the ring is long. */
	for (int round = 0; round < 5; round++) {
		sqe = request(&ring, 0), io_uring_prep_write(sqe, fd, block, 5000, 0), sqe->user_data = 10;
		sqe = request(&ring, 0), io_uring_prep_writev(sqe, fd, parts, 2, 5000), sqe->user_data = 11;
		sqe = request(&ring, 0), io_uring_prep_read(sqe, zeros, other, 300, 0), sqe->user_data = 12;
		sqe = request(&ring, 0), io_uring_prep_fsync(sqe, fd, 0), sqe->user_data = 13;
		sqe = request(&ring, 0), io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC), sqe->user_data = 14;
		CHECK(are(&ring, io_uring_submit_and_wait(&ring, 5), 5));
		for (int i = 0; i < 5; i++) {
			result = completed(&ring, &which);
			CHECK(which >= 10 && which < 15);
			CHECK(result == (int[]){ 5000, 4100, 300, 0, 0 }[which - 10]);
		}
	}
	CHECK(holds("ring", 0, block, 5000) && holds("ring", 5000, block, 4100));

	/* At the descriptor's offset, and beyond the end. */
	CHECK(lseek(fd, 9000, SEEK_SET) == 9000);
	sqe = request(&ring, 0), io_uring_prep_read(sqe, fd, other, 200, -1), sqe->user_data = 1;
	CHECK(submits(&ring, 1) && completed(&ring, &which) == 100 && which == 1);
	CHECK(!memcmp(other, block + 4000, 100) && lseek(fd, 0, SEEK_CUR) == 9100);
	sqe = request(&ring, 0), io_uring_prep_read(sqe, fd, other, 200, 100000), sqe->user_data = 2;
	CHECK(submits(&ring, 1) && completed(&ring, &which) == 0 && which == 2);

	/* In order: written, then read by one that is chained to it. */
	sqe = request(&ring, 0), io_uring_prep_write(sqe, fd, block + 3, 64, 0), sqe->user_data = 3;
	sqe->flags |= IOSQE_IO_LINK;
	sqe = request(&ring, 0), io_uring_prep_read(sqe, fd, other, 64, 0), sqe->user_data = 4;
	CHECK(submits(&ring, 2));
	for (int i = 0; i < 2; i++)
		CHECK(completed(&ring, &which) == 64);
	CHECK(!memcmp(other, block + 3, 64));

	/* What a chain breaks at cancels the rest. */
	sqe = request(&ring, 0), io_uring_prep_read(sqe, fd, other, 64, 100000), sqe->user_data = 5;
	sqe->flags |= IOSQE_IO_LINK;
	sqe = request(&ring, 0), io_uring_prep_write(sqe, fd, "x", 1, 0), sqe->user_data = 6;
	CHECK(submits(&ring, 2));
	for (int i = 0; i < 2; i++) {
		result = completed(&ring, &which);
		CHECK(result == (which == 5 ? 0 : -ECANCELED));
	}
	CHECK(holds("ring", 0, block + 3, 64));

	/* What fails. */
	sqe = request(&ring, 0), io_uring_prep_read(sqe, fd, (void *)8, 64, 0), sqe->user_data = 7;
	CHECK(submits(&ring, 1) && completed(&ring, &which) == -EFAULT && which == 7);
	sqe = request(&ring, 0), io_uring_prep_read(sqe, 1000000, other, 64, 0), sqe->user_data = 8;
	CHECK(submits(&ring, 1) && completed(&ring, &which) == -EBADF && which == 8);

	/* Submitted by who waits. */
	sqe = request(&ring, 0), io_uring_prep_write(sqe, fd, block, 64, 0), sqe->user_data = 9;
	result = io_uring_wait_cqe_timeout(&ring, &cqe, &soon);
	if (result == -ETIME) {
		io_uring_submit(&ring);
		result = io_uring_wait_cqe(&ring, &cqe);
	}
	CHECK(result == 0);
	/* Of a timeout of old kernels, perhaps. */
	while ((long)io_uring_cqe_get_data(cqe) != 9) {
		io_uring_cqe_seen(&ring, cqe);
		io_uring_submit(&ring);
		CHECK(io_uring_wait_cqe(&ring, &cqe) == 0);
	}
	CHECK(cqe->res == 64 && holds("ring", 0, block, 64));
	io_uring_cqe_seen(&ring, cqe);

	/* Other operations, and registered buffers and files. */
	sqe = request(&ring, 0), io_uring_prep_fallocate(sqe, fd, 0, 0, 20000), sqe->user_data = 1;
	CHECK(submits(&ring, 1) && completed(&ring, &which) == 0);
	CHECK(lseek(fd, 0, SEEK_END) == 20000);
	sqe = request(&ring, 0), io_uring_prep_splice(sqe, fd, 0, pipes[1], -1, 100, 0), sqe->user_data = 1;
	CHECK(submits(&ring, 1) && completed(&ring, &which) == 100);
	CHECK(read(pipes[0], other, 100) == 100 && !memcmp(other, block, 64));
	CHECK(io_uring_register_buffers(&ring, &fixed, 1) == 0);
	sqe = request(&ring, 0), io_uring_prep_read_fixed(sqe, fd, other, 200, 50, 0), sqe->user_data = 1;
	CHECK(submits(&ring, 1) && completed(&ring, &which) == 200);
	CHECK(holds("ring", 50, other, 200));
	registered = open("registered", O_CREAT | O_RDWR, 0644);
	CHECK(registered >= 0 && io_uring_register_files(&ring, &registered, 1) == 0);
	sqe = request(&ring, 0), io_uring_prep_write(sqe, 0, block, 300, 0), sqe->user_data = 1;
	sqe->flags |= IOSQE_FIXED_FILE;
	CHECK(submits(&ring, 1) && completed(&ring, &which) == 300);
	CHECK(holds("registered", 0, block, 300));
	sqe = request(&ring, 0), io_uring_prep_close(sqe, registered), sqe->user_data = 1;
	CHECK(submits(&ring, 1) && completed(&ring, &which) == 0);
	CHECK(read(registered, other, 1) < 0 && errno == EBADF);
	reused(&ring);
	io_uring_queue_exit(&ring);
	close(pipes[0]);
	close(pipes[1]);
	close(fd);
	close(zeros);
}

int main(int argc, char **argv)
{
	int status;

	if (argc != 2 || chdir(argv[1]) < 0) {
		perror("requests DIR");
		return 2;
	}
	linux_aio();
	uring(0);
	uring(IORING_SETUP_SQPOLL);
	uring(IORING_SETUP_SQE128);
	/* What stood in for requests here is there, or made anew, in a child. */
	if (fork() == 0) {
		linux_aio();
		uring(0);
		exit(0);
	}
	CHECK(wait(&status) > 0 && status == 0);
	closefrom(3);
	linux_aio();
	unlink("aio");
	unlink("ring");
	unlink("registered");
	printf("requests\ndone\n");
	return 0;
}
