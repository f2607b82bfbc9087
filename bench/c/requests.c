/* What a request of FUSE costs by itself: a server that answers at once, and programs that ask for the attributes of its root.
 *
 *     cc -O2 -pthread -o requests bench/c/requests.c -luring
 *     ./requests device|ring [CLIENTS]          as root
 *
 * `device` has two threads read requests from /dev/fuse, as servers do; `ring` has two threads for each CPU fetch them by io_uring
 * (Linux 6.14, /sys/module/fuse/parameters/enable_uring). CLIENTS (1) processes each make 20 000 requests, one after the other;
 * printed is how long one takes, and how long all together, in us.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include "clock.h"

#define REQUESTS 20000
#define PAYLOAD_BYTES (1 << 20)
#define WRITE_BYTES (128 << 10)
#define DEVICE_THREADS 2
#define THREADS_PER_CPU 2

/* Of Linux 6.14's <linux/fuse.h>. */
#define INIT_EXT (1u << 30)
#define OVER_IO_URING_2 (1u << 9)	/* in the second word of flags */
#define SECOND_FLAGS 8			/* where that is among the words of fuse_init_out */
enum { REGISTER = 1, COMMIT_AND_FETCH = 2 };
struct headers {
	char in_out[128], op_in[128];
	uint64_t flags, commit_id;
	uint32_t payload_len, padding;
	uint64_t reserved;
};
struct command {
	uint64_t flags, commit_id;
	uint16_t queue;
	uint8_t padding[6];
};

static int device;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

/* Answers a request with attributes that are not kept; returns how many bytes follow the header. */
static size_t answer(const struct fuse_in_header *request, struct fuse_out_header *header, void *out)
{
	size_t len = 0;
	header->error = -ENOSYS;
	if (request->opcode == FUSE_GETATTR) {
		struct fuse_attr_out *attr = out;
		*attr = (struct fuse_attr_out){ .attr = { .ino = 1, .mode = S_IFDIR | 0755, .nlink = 2 } };
		header->error = 0;
		len = sizeof *attr;
	}
	header->unique = request->unique;
	header->len = sizeof *header + len;
	return len;
}

static void *by_device(void *unused)
{
	char *request = malloc(PAYLOAD_BYTES), out[256];
	(void)unused;
	for (;;) {
		struct fuse_out_header header;
		const struct fuse_in_header *in = (void *)request;
		if (read(device, request, PAYLOAD_BYTES) < 0) {
			if (errno == ENODEV)
				return NULL;
			continue;
		}
		if (in->opcode == FUSE_FORGET || in->opcode == FUSE_BATCH_FORGET)
			continue;
		size_t len = answer(in, &header, out);
		struct iovec parts[2] = { { &header, sizeof header }, { out, len } };
		if (writev(device, parts, 2) < 0 && errno != ENOENT)
			fail("writev");
	}
}

static void *by_ring(void *queue)
{
	struct io_uring ring;
	struct io_uring_params parameters = {
		.flags = IORING_SETUP_SQE128 | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
	};
	struct headers *headers = calloc(1, sizeof *headers);
	char *payload = malloc(PAYLOAD_BYTES);
	struct iovec memory[2] = { { headers, sizeof *headers }, { payload, PAYLOAD_BYTES } };
	uint32_t what = REGISTER;

	if (io_uring_queue_init_params(4, &ring, &parameters))
		fail("io_uring");
	for (;;) {
		struct io_uring_sqe *entry = io_uring_get_sqe(&ring);
		struct io_uring_cqe *done;
		struct command command = { .commit_id = headers->commit_id, .queue = (uintptr_t)queue };
		if (!entry)
			fail("an empty queue is full");
		memset((void *)entry, 0, sizeof *entry);
		entry->opcode = IORING_OP_URING_CMD;
		entry->fd = device;
		entry->cmd_op = what;
		entry->addr = (uintptr_t)memory;
		entry->len = 2;
		memcpy(entry->cmd, &command, sizeof command);
		if (io_uring_submit_and_wait(&ring, 1) < 0 || io_uring_wait_cqe(&ring, &done))
			return NULL;
		int result = done->res;
		io_uring_cqe_seen(&ring, done);
		if (result < 0) {
			if (what == REGISTER && result != -ENOTCONN)
				errno = -result, fail("register a queue");
			return NULL;
		}
		struct fuse_in_header request = *(struct fuse_in_header *)headers->in_out;
		headers->payload_len = answer(&request, (void *)headers->in_out, payload);
		what = COMMIT_AND_FETCH;
	}
}

/* Mounts on `dir`, and agrees with the kernel on how requests come. */
static void begin(const char *dir, int uses_ring)
{
	char options[80], request[8192 + 64];
	struct { struct fuse_out_header header; struct fuse_init_out init; } reply = { 0 };
	const struct fuse_in_header *header = (void *)request;
	const struct fuse_init_in *init = (void *)(header + 1);

	device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	sprintf(options, "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
	if (device < 0 || mount("requests", dir, "fuse", 0, options) || read(device, request, sizeof request) < 0)
		fail("mount");
	reply.header = (struct fuse_out_header){ .len = sizeof reply, .unique = header->unique };
	reply.init = (struct fuse_init_out){ .major = init->major, .minor = init->minor, .max_write = WRITE_BYTES,
		.max_pages = WRITE_BYTES / 4096, .max_background = 64, .flags = FUSE_BIG_WRITES | FUSE_MAX_PAGES | INIT_EXT };
	if (uses_ring)
		((uint32_t *)&reply.init)[SECOND_FLAGS] = OVER_IO_URING_2;
	if (write(device, &reply, sizeof reply) < 0)
		fail("answer the first request");
}

static void start(void *(*serve)(void *), uintptr_t queue)
{
	pthread_t thread;
	if (pthread_create(&thread, NULL, serve, (void *)queue))
		fail("pthread_create");
}

int main(int argc, char **argv)
{
	char dir[] = "/tmp/requests.XXXXXX";
	int uses_ring = argc > 1 && !strcmp(argv[1], "ring"), clients = argc > 2 ? atoi(argv[2]) : 1;

	if (argc < 2 || argc > 3 || clients < 1 || (!uses_ring && strcmp(argv[1], "device")))
		return fprintf(stderr, "usage: requests device|ring [CLIENTS]\n"), 2;
	if (!mkdtemp(dir))
		fail(dir);
	begin(dir, uses_ring);
	for (int i = 0; i < DEVICE_THREADS; i++)
		start(by_device, 0);
	for (long i = 0; uses_ring && i < sysconf(_SC_NPROCESSORS_CONF) * THREADS_PER_CPU; i++)
		start(by_ring, i / THREADS_PER_CPU);
	struct stat attr;
	if (stat(dir, &attr))
		fail(dir);
	double begun = seconds(CLOCK_MONOTONIC);
	for (int i = 0; i < clients; i++)
		if (!fork()) {
			for (int j = 0; j < REQUESTS; j++)
				if (stat(dir, &attr))
					_exit(1);
			_exit(0);
		}
	while (wait(NULL) > 0)
		;
	double each = (seconds(CLOCK_MONOTONIC) - begun) * 1e6 / REQUESTS;
	printf("%s, %d clients: %.1f us a request, %.1f all together\n", argv[1], clients, each, each / clients);
	fflush(stdout);
	umount2(dir, MNT_DETACH);
	rmdir(dir);
	_exit(0);
}
