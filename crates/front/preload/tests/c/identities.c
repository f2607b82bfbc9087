/* Threads that change their identity in turn, by libc and by number, below the directory given. After each change, all
 * threads make the same calls, one after the other, and print what they get, so that two runs can be compared: on a pool
 * with the library, and on tmpfs without it.
 *
 * usage: identities DIR
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 3, USER = 12345, GROUP = 12346 };

static char dir[PATH_MAX];
static int dirfd_of_all, fd_of_all;
static const char *change;
static int step;

static void show(int who, const char *call, long result)
{
	printf("%s: thread %d: %s = %ld %s\n", change, who, call, result < 0 ? -1 : result,
	       result < 0 ? strerrorname_np(errno) : "");
}

#define T(call) show(who, #call, (errno = 0, (long)(call)))

static long opened(int fd)
{
	if (fd < 0)
		return -1;
	close(fd);
	return 0;
}

static long owner(const char *name)
{
	struct stat st;

	if (fstatat(dirfd_of_all, name, &st, 0))
		return -1;
	return st.st_uid * 100000L + st.st_gid;
}

static long mode(const char *name)
{
	struct stat st;

	return fstatat(dirfd_of_all, name, &st, 0) ? -1 : (long)st.st_mode;
}

/* What a thread may do. */
static void look(int who)
{
	char path[PATH_MAX + 32], made[32];

	snprintf(path, sizeof(path), "%s/private", dir);
	snprintf(made, sizeof(made), "open/%d-%d", step, who);
	T(opened(open(path, O_RDWR)));
	T(opened(open("private", O_RDONLY)));
	T(opened(openat(dirfd_of_all, "private", O_RDONLY)));
	T(opened(openat(dirfd_of_all, "of-group", O_RDONLY)));
	T(opened(open("closed/file", O_RDONLY)));
	snprintf(path, sizeof(path), "%s/closed/file", dir);
	T(opened(open(path, O_RDONLY)));
	T(access("private", R_OK));
	T(faccessat(dirfd_of_all, "private", R_OK, AT_EACCESS));
	T(syscall(SYS_faccessat, dirfd_of_all, "private", R_OK));
	T(fchmod(fd_of_all, 0600));
	T(fchmodat(dirfd_of_all, "private", 0600, 0));
	T(fchown(fd_of_all, 0, 0));
	T(opened(openat(dirfd_of_all, made, O_CREAT | O_EXCL | O_WRONLY, 0666)));
	T(owner(made));
	T(mode(made));
	strcat(made, "d");
	T(mkdir(made, 0777));
	T(owner(made));
	T(unlinkat(dirfd_of_all, "sticky/file", 0));
	T(setxattr("private", "trusted.name", "value", 5, 0));
}

static pthread_barrier_t barrier;
static int changing;
static int (*how)(void);

static void *run(void *arg)
{
	int who = (long)arg;

	for (;;) {
		pthread_barrier_wait(&barrier);
		if (!how)
			return NULL;
		if (who == changing)
			show(who, "change", how());
		for (int i = 0; i < THREADS; i++) {
			pthread_barrier_wait(&barrier);
			if (i == who)
				look(who);
		}
		pthread_barrier_wait(&barrier);
	}
}

static void by(int who, const char *name, int (*function)(void))
{
	changing = who;
	change = name;
	how = function;
	step++;
	pthread_barrier_wait(&barrier);
	for (int i = 0; i < THREADS; i++)
		pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier);
}

static gid_t groups[] = { GROUP };

static int set_capabilities(unsigned effective)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2];

	if (syscall(SYS_capget, &header, data))
		return -1;
	data[0].effective = effective & data[0].permitted;
	return syscall(SYS_capset, &header, data);
}

static int nothing(void) { return 0; }
static int fsuid(void) { setfsgid(USER); return setfsuid(USER) != 0; }
static int fsuid_back(void) { setfsuid(0); setfsgid(0); return setfsuid(-1) != 0; }
static int raw_fsuid(void) { syscall(SYS_setfsgid, USER); return syscall(SYS_setfsuid, USER) != 0; }
static int raw_groups(void) { return syscall(SYS_setgroups, 1, groups); }
static int raw_resuid(void) { return syscall(SYS_setresuid, -1, USER, -1); }
static int raw_resuid_back(void) { return syscall(SYS_setresuid, -1, 0, -1); }
static int raw_reuid(void) { return syscall(SYS_setreuid, USER, 0); }
static int raw_reuid_back(void) { return syscall(SYS_setreuid, 0, 0); }
static int raw_resgid(void) { return syscall(SYS_setresgid, -1, GROUP, -1); }
static int raw_gid(void) { return syscall(SYS_setgid, 0); }
static int no_caps(void) { return set_capabilities(1u << CAP_SETUID | 1u << CAP_SETGID | 1u << CAP_SETPCAP); }
static int all_caps(void) { return set_capabilities(~0u); }
static int securebits(void) { return prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0); }
static int no_securebits(void) { return prctl(PR_SET_SECUREBITS, 0, 0, 0, 0); }
static int effective(void) { return seteuid(USER); }
static int effective_back(void) { return seteuid(0); }
static int all_groups(void) { return setgroups(1, groups); }
static int no_groups(void) { return setgroups(0, NULL); }
static int private_umask(void) { return unshare(CLONE_FS) ? -1 : (umask(077), 0); }
static int raw_umask(void) { return syscall(SYS_unshare, CLONE_FS) ? -1 : (syscall(SYS_umask, 027), 0); }
static int drop_all(void) { return setgid(USER) ? -1 : setuid(USER); }

/* A child has the identity of the thread that forks. */
static int forks(void)
{
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		look(changing);
		fflush(stdout);
		_exit(0);
	}
	int status;
	return waitpid(child, &status, 0) == child ? status : -1;
}

static void *created(void *arg)
{
	look((long)arg);
	return NULL;
}

/* So does a thread that it makes. */
static int creates(void)
{
	pthread_t thread;

	return pthread_create(&thread, NULL, created, (void *)(long)changing) || pthread_join(thread, NULL);
}

/* Alone, before there are threads. */
static void alone(const char *name, int (*function)(void))
{
	change = name;
	step++;
	show(0, "change", function());
	look(0);
}

static int make(const char *name, mode_t mode)
{
	int fd = open(name, O_CREAT | O_RDWR, 0600);

	if (fd < 0 || write(fd, "content", 7) != 7 || fchmod(fd, mode))
		exit(1);
	return fd;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];

	umask(022);
	if (argc != 2 || !realpath(argv[1], dir) || chdir(dir) || chmod(dir, 0755) || setgroups(0, NULL))
		return 1;
	fd_of_all = make("private", 0600);
	close(make("of-group", 0640));
	if (chown("of-group", 0, GROUP) || mkdir("open", 0777) || chmod("open", 0777) || mkdir("closed", 0700) ||
	    mkdir("sticky", 0777) || chmod("sticky", 01777))
		return 1;
	close(make("closed/file", 0666));
	close(make("sticky/file", 0666));
	dirfd_of_all = open(".", O_RDONLY | O_DIRECTORY);
	setvbuf(stdout, NULL, _IOFBF, 1 << 16);

	alone("alone, setfsuid", fsuid);
	alone("alone, back", fsuid_back);
	alone("alone, by number", raw_resuid);
	alone("alone, back by number", raw_resuid_back);
	unlink("sticky/file");

	pthread_barrier_init(&barrier, NULL, THREADS + 1);
	for (long i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, run, (void *)i);
	by(0, "nothing", nothing);
	by(0, "setfsuid", fsuid);
	by(0, "a thread of setfsuid", creates);
	by(0, "a child of setfsuid", forks);
	by(1, "a child beside setfsuid", forks);
	by(0, "setfsuid back", fsuid_back);
	by(1, "setfsuid by number", raw_fsuid);
	by(2, "seteuid by libc", effective);
	by(0, "seteuid back", effective_back);
	by(1, "setfsuid back after all", fsuid_back);
	by(2, "setresuid by number", raw_resuid);
	by(2, "setgroups by number, refused", raw_groups);
	by(2, "setresuid by number, back", raw_resuid_back);
	by(2, "setgroups by number", raw_groups);
	by(2, "and a user", raw_fsuid);
	by(2, "and back", fsuid_back);
	by(0, "setgroups by libc", all_groups);
	by(1, "a user with groups", raw_resuid);
	by(1, "a user with groups, back", raw_resuid_back);
	by(0, "no groups", no_groups);
	by(1, "setresgid by number", raw_resgid);
	by(1, "setgid by number", raw_gid);
	by(1, "capset", no_caps);
	by(1, "capset back", all_caps);
	by(2, "setreuid by number", raw_reuid);
	by(2, "securebits", securebits);
	by(2, "no securebits", no_securebits);
	by(2, "setreuid back", raw_reuid_back);
	by(0, "unshare", private_umask);
	by(1, "unshare by number", raw_umask);
	by(0, "setuid by libc", drop_all);
	how = NULL;
	pthread_barrier_wait(&barrier);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	change = "in the end";
	look(9);
	printf("done\n");
	return 0;
}
