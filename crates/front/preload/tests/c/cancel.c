/* Cancels threads in the middle of file calls, below the directory given, and prints how each ended, so
 * that two runs can be compared: on a pool with the library, and on tmpfs without it.
 *
 * usage: cancel DIR
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static int file, ends[2];
static sem_t begun, cancelled;
static char page[4096];

static void cleanup(void *count)
{
	++*(int *)count;
}

/* What threads do until they are cancelled. */
static void writes(void) { for (;;) pwrite(file, page, sizeof(page), 0); }
static void reads(void) { for (;;) pread(file, page, sizeof(page), 0); }
static void vectors(void) { for (;;) preadv(file, &(struct iovec){ page, 100 }, 1, 0); }
static void syncs(void) { for (;;) fsync(file); }
static void waits(void) { read(ends[0], page, 1); }
static void polls(void) { poll(NULL, 0, -1); }
static void leaves(void) { pthread_exit("left by itself"); }

/* Not a cancellation point, as `sem_wait` is one. */
static void until_cancelled(void)
{
	while (sem_trywait(&cancelled) == -1)
		sched_yield();
}

/* For locks that another process has, and keeps. */
static struct flock taken = { .l_type = F_WRLCK, .l_start = 100000, .l_len = 1 };
static void locks(void) { fcntl(file, F_SETLKW, &taken); }
static void open_locks(void) { fcntl(file, F_OFD_SETLKW, &taken); }
static void locks_from_here(void)
{
	lseek(file, taken.l_start, SEEK_SET);
	lockf(file, F_LOCK, 1);
}

/* What they do when they are cancelled already. */
static void opens_cancelled(void) { until_cancelled(); file = open("file", O_RDWR); }
static void closes_cancelled(void) { until_cancelled(); close(file); }
static void locks_cancelled(void)
{
	until_cancelled();
	fcntl(file, F_SETLKW, &(struct flock){ .l_type = F_WRLCK });
}
/* No cancellation points, so they return. */
static void stats_cancelled(void)
{
	struct stat st;

	until_cancelled();
	fstat(file, &st);
	lseek(file, 0, SEEK_SET);
	unlink("none");
}

/* A process that has the lock until this one ends. */
static pid_t owner_of_lock(void)
{
	int has[2];
	char byte = 0;

	pipe(has);
	pid_t owner = fork();
	if (owner == 0) {
		alarm(120);
		byte = fcntl(open("file", O_RDWR), F_SETLK, &taken) == 0;
		write(has[1], &byte, 1);
		for (;;)
			pause();
	}
	if (read(has[0], &byte, 1) != 1 || byte != 1)
		printf("nobody has the lock\n");
	close(has[0]);
	close(has[1]);
	return owner;
}

struct task {
	const char *name;
	void (*work)(void);
	int type;
	int cleanups;
};

static void *run(void *argument)
{
	struct task *task = argument;

	pthread_cleanup_push(cleanup, &task->cleanups);
	pthread_setcanceltype(task->type, NULL);
	sem_post(&begun);
	task->work();
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	pthread_cleanup_pop(0);
	return "returned";
}

static void cancel(const char *name, void (*work)(void), int type, int times)
{
	for (int i = 0; i < times; i++) {
		struct task task = { name, work, type, 0 };
		pthread_t thread;
		void *result;

		pthread_create(&thread, NULL, run, &task);
		sem_wait(&begun);
		/* Anywhere in its work. */
		usleep(i * 53 % 1000);
		if (work != leaves)
			pthread_cancel(thread);
		sem_post(&cancelled);
		pthread_join(thread, &result);
		while (sem_trywait(&cancelled) == 0)
			;
		if (i == 0)
			printf("%s: %s, %d cleanups\n", name,
			       result == PTHREAD_CANCELED ? "cancelled" : (char *)result, task.cleanups);
		/* Nothing stays locked, and no number taken. */
		int fd = open("file", O_RDWR);
		if (fd != file + 3 || pwrite(fd, page, 10, 0) != 10 || close(fd) != 0)
			printf("%s: afterwards %d, %s\n", name, fd, strerror(errno));
	}
}

#define CANCEL(work, type, times) cancel(#work ", " #type, work, PTHREAD_CANCEL_##type, times)

int main(int argc, char **argv)
{
	if (argc != 2 || chdir(argv[1]) != 0 || pipe(ends) != 0)
		return 2;
	sem_init(&begun, 0, 0);
	sem_init(&cancelled, 0, 0);
	alarm(60);
	setvbuf(stdout, NULL, _IOLBF, 0);
	close(open("file", O_CREAT | O_RDWR, 0600));
	close(ends[0]);
	close(ends[1]);
	pid_t owner = owner_of_lock();
	file = open("file", O_RDWR);
	pipe(ends);
	CANCEL(opens_cancelled, DEFERRED, 1);
	CANCEL(closes_cancelled, DEFERRED, 1);
	CANCEL(locks_cancelled, DEFERRED, 1);
	CANCEL(stats_cancelled, DEFERRED, 1);
	CANCEL(leaves, DEFERRED, 1);
	CANCEL(waits, DEFERRED, 1);
	CANCEL(waits, ASYNCHRONOUS, 1);
	CANCEL(polls, DEFERRED, 1);
	CANCEL(polls, ASYNCHRONOUS, 1);
	CANCEL(reads, DEFERRED, 20);
	CANCEL(reads, ASYNCHRONOUS, 100);
	CANCEL(vectors, DEFERRED, 20);
	CANCEL(writes, DEFERRED, 20);
	CANCEL(writes, ASYNCHRONOUS, 100);
	CANCEL(syncs, DEFERRED, 20);
	CANCEL(locks, DEFERRED, 20);
	CANCEL(locks, ASYNCHRONOUS, 20);
	CANCEL(open_locks, DEFERRED, 20);
	CANCEL(locks_from_here, DEFERRED, 20);
	/* Who was cancelled waits no longer. */
	kill(owner, SIGKILL);
	waitpid(owner, NULL, 0);
	printf("free: %d\n", fcntl(file, F_OFD_SETLK, &taken));
	printf("done\n");
	return 0;
}
