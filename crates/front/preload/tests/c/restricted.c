/* Restricts itself in the ways that the kernel offers to programs, below the directory given, and prints
 * what each call returned, so that two runs can be compared: on a pool with the library, and on tmpfs
 * without it.
 *
 * usage: restricted DIR
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define T(expression) show(#expression, (errno = 0, (long)(expression)))

static long show(const char *text, long value)
{
	if (value == -1)
		printf("%s = -1 %s\n", text, strerrorname_np(errno));
	else
		printf("%s = %ld\n", text, value);
	return value;
}

/* No files may be opened below any directory. */
static void by_landlock(void)
{
	struct landlock_ruleset_attr rules = { LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE |
					       LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_REMOVE_FILE };
	int set = syscall(SYS_landlock_create_ruleset, &rules, sizeof(rules), 0);

	T(set >= 0);
	T(syscall(SYS_landlock_restrict_self, set, 0));
	close(set);
}

static struct sock_filter no_opening[] = {
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 1),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOANO),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
};
static struct sock_fprog program = { 4, no_opening };

static void by_prctl(void)
{
	T(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

static void by_seccomp(void)
{
	T(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
}

static void restricted(const char *name, void (*restrict_self)(void), int first_used)
{
	printf("-- %s\n", name);
	fflush(stdout);
	if (fork() == 0) {
		char buf[10];
		struct stat st;
		int fd = first_used ? open("file", O_RDWR) : -1;

		prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
		restrict_self();
		T(open("file", O_RDWR) < 0 ? -1 : 0);
		T(open("new", O_CREAT | O_RDWR, 0600) < 0 ? -1 : 0);
		T(stat("file", &st));
		if (first_used) {
			T(read(fd, buf, 10));
			T(pwrite(fd, "other", 5, 0));
			T(close(fd));
		}
		T(unlink("file"));
		fflush(stdout);
		_exit(0);
	}
	int status;
	wait(&status);
	printf("status %d\n", status);
}

int main(int argc, char **argv)
{
	if (argc != 2 || chdir(argv[1]) != 0)
		return 2;
	alarm(60);
	for (int used = 0; used < 2; used++) {
		void (*const ways[])(void) = { by_landlock, by_prctl, by_seccomp };
		const char *const names[] = { "landlock", "prctl", "seccomp" };
		for (int i = 0; i < 3; i++) {
			int fd = open("file", O_CREAT | O_RDWR, 0600);
			write(fd, "content", 7);
			close(fd);
			restricted(names[i], ways[i], used);
		}
	}
	printf("done\n");
	return 0;
}
