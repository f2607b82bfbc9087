/*
 * The older functions that set handlers of signals answer as those of libc, and a program never gets to see the handler
 * of the library: it could set that as its own.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"

static volatile int handled;

static void count(int signal)
{
	handled++;
}

static const char *name(void (*handler)(int))
{
	return handler == SIG_DFL	? "default"
	       : handler == SIG_IGN	? "ignored"
	       : handler == SIG_ERR	? "error"
	       : handler == SIG_HOLD	? "held"
	       : handler == count	? "count"
					: "unknown";
}

/* Prints the handler that the call returns, and how often the program's handler has run. */
#define H(call) \
	do { \
		const char *was = name(call); \
		printf("%d: %s = %s, %d handled\n", __LINE__, #call, was, handled); \
	} while (0)

/* Prints what sigaction reports of a signal. */
static void report(int signal)
{
	struct sigaction now;
	CHECK(sigaction(signal, NULL, &now) == 0);
	printf("  %s, flags %x, blocks itself %d, another %d\n", name(now.sa_handler), now.sa_flags & ~0x24000000,
	       sigismember(&now.sa_mask, signal), sigismember(&now.sa_mask, SIGUSR2));
}

int main(int argc, char **argv)
{
	void (*before)(int);

	CHECK(argc == 2 && chdir(argv[1]) == 0);
	/* A signal that is held comes when it is released, and what was returned can be set again. */
	H(sigset(SIGUSR1, count));
	report(SIGUSR1);
	H(before = sigset(SIGUSR1, SIG_HOLD));
	raise(SIGUSR1);
	H(sigset(SIGUSR1, SIG_HOLD));
	H(sigset(SIGUSR1, before));
	raise(SIGUSR1);
	H(sigset(SIGUSR1, SIG_DFL));
	H(sigset(SIGUSR1, SIG_HOLD));
	H(sigset(SIGUSR1, SIG_IGN));
	H(sigset(1000, SIG_HOLD));
	H(sigset(SIGKILL, count));

	H(signal(SIGUSR1, count));
	report(SIGUSR1);
	CHECK(siginterrupt(SIGUSR1, 1) == 0);
	report(SIGUSR1);
	H(signal(SIGUSR1, count));
	report(SIGUSR1);
	CHECK(siginterrupt(SIGUSR1, 0) == 0);
	report(SIGUSR1);
	H(signal(SIGUSR1, count));
	report(SIGUSR1);
	FAILS(siginterrupt(1000, 1), EINVAL);
	H(sysv_signal(SIGUSR1, count));
	report(SIGUSR1);
	raise(SIGUSR1);
	H(signal(SIGUSR1, count));
	CHECK(sigignore(SIGUSR1) == 0);
	raise(SIGUSR1);
	report(SIGUSR1);
	FAILS(sigignore(SIGKILL), EINVAL);

	/* A bad pointer is an error still if faults are ignored. */
	CHECK(sigignore(SIGSEGV) == 0 && sigignore(SIGBUS) == 0);
	report(SIGSEGV);
	raise(SIGSEGV);
	CHECK(siginterrupt(SIGSEGV, 1) == 0 && siginterrupt(SIGBUS, 0) == 0);
	report(SIGBUS);
	int fd = open("file", O_CREAT | O_RDWR, 0600);
	CHECK(fd >= 0 && write(fd, "content", 7) == 7);
	FAILS(write(fd, (void *)16, 7), EFAULT);
	FAILS(pread(fd, (void *)16, 7, 0), EFAULT);
	H(sigset(SIGSEGV, count));
	FAILS(pread(fd, (void *)16, 7, 0), EFAULT);
	raise(SIGSEGV);
	H(sigset(SIGSEGV, SIG_DFL));
	puts("done");
	return 0;
}
