/* Makes every class of file call below the directory given and prints what each returned, so that two
 * runs can be compared: on a pool with the library, and on tmpfs without it. Nothing that legitimately
 * differs (inode numbers, times, sizes of directories) is printed.
 *
 * usage: calls DIR
 */
#define _GNU_SOURCE
#include <aio.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

extern char **environ;

/* Prints an expression, its value, and the error if it failed. */
#define T(expression) show(#expression, (errno = 0, (long)(expression)))

static long show(const char *text, long value)
{
	if (value == -1)
		printf("%s = -1 %s\n", text, strerrorname_np(errno));
	else
		printf("%s = %ld\n", text, value);
	return value;
}

/* The same for descriptors, whose numbers may differ only because something is left open. */
static void section(const char *name)
{
	printf("-- %s\n", name);
	fflush(stdout);
}

static void content(const char *path)
{
	char buf[256];
	int fd = open(path, O_RDONLY);
	long len = fd < 0 ? -1 : read(fd, buf, sizeof buf);
	printf("%s: %ld \"%.*s\"\n", path, len, len > 0 ? (int)len : 0, buf);
	if (fd >= 0)
		close(fd);
}

static void describe(const char *path)
{
	struct stat st;
	if (lstat(path, &st) < 0) {
		printf("%s: %s\n", path, strerrorname_np(errno));
		return;
	}
	printf("%s: mode %o links %ld uid %u gid %u size %ld\n", path, st.st_mode, (long)st.st_nlink,
	       st.st_uid, st.st_gid, S_ISDIR(st.st_mode) ? 0 : (long)st.st_size);
}

static void opening(void)
{
	int fd;

	section("opening");
	T(fd = open("new", O_RDONLY));
	T(fd = open("new", O_CREAT | O_EXCL | O_WRONLY, 0640));
	T(write(fd, "hello", 5));
	T(read(fd, &fd, 0));
	T(close(fd));
	T(close(fd));
	T(open("new", O_CREAT | O_EXCL | O_WRONLY, 0640));
	T(fd = open64("new", O_WRONLY | O_APPEND));
	T(write(fd, " world", 6));
	T(lseek(fd, 0, SEEK_CUR));
	T(close(fd));
	content("new");
	T(fd = open("new", O_RDWR | O_TRUNC));
	describe("new");
	T(close(fd));
	T(fd = creat("made", 0600));
	T(close(fd));
	T(open("new/x", O_RDONLY));
	T(open("new", O_RDONLY | O_DIRECTORY));
	T(open(".", O_WRONLY));
	T(fd = open(".", O_RDONLY | O_DIRECTORY));
	T(read(fd, &fd, 1));
	T(fd = openat(fd, "made", O_RDONLY));
	T(close(fd));
	T(close(fd - 1));
	T(symlink("made", "link"));
	T(open("link", O_RDONLY | O_NOFOLLOW));
	T(fd = open("link", O_PATH | O_NOFOLLOW));
	T(read(fd, &fd, 1));
	T(close(fd));
	T(symlink("loop", "loop"));
	T(open("loop", O_RDONLY));
	T(open("", O_RDONLY));
	T(open((char *)8, O_RDONLY));
	T(fd = open("made", O_RDONLY | O_CLOEXEC));
	T(fcntl(fd, F_GETFD));
	T(fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND));
	T(close(fd));
	char name[300];
	memset(name, 'n', sizeof name);
	name[299] = 0;
	T(open(name, O_CREAT | O_RDWR, 0600));
	T(fd = open(".", O_TMPFILE | O_RDWR, 0600) < 0 ? -1 : 0);
}

/* How many pages of a fresh buffer are there after a read that could fill all of them. */
static long pages_touched(int fd)
{
	enum { PAGES = 32 };
	unsigned char there[PAGES] = { 0 };
	char *buf = mmap(NULL, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	long count = 0;

	madvise(buf, PAGES * 4096, MADV_NOHUGEPAGE);
	if (pread(fd, buf, PAGES * 4096, 0) <= 0)
		return -1;
	mincore(buf, PAGES * 4096, there);
	for (int i = 0; i < PAGES; i++)
		count += there[i] & 1;
	munmap(buf, PAGES * 4096);
	return count;
}

static void reading_and_writing(void)
{
	char buf[64] = { 0 };
	int fd;

	section("reading and writing");
	T(fd = open("data", O_CREAT | O_RDWR, 0644));
	T(pwrite(fd, "0123456789", 10, 0));
	T(lseek(fd, 0, SEEK_CUR));
	T(write(fd, "abc", 3));
	T(pread(fd, buf, 4, 2));
	printf("%.4s\n", buf);
	T(lseek(fd, -3, SEEK_END));
	T(read(fd, buf, 64));
	T(read(fd, buf, 64));
	struct iovec v[2] = { { buf, 3 }, { buf + 10, 4 } };
	T(preadv(fd, v, 2, 1));
	printf("%.3s %.4s\n", buf, buf + 10);
	T(lseek(fd, 2, SEEK_SET));
	T(readv(fd, v, 2));
	T(pwritev(fd, v, 2, 20));
	T(writev(fd, v, 2));
	T(preadv2(fd, v, 2, -1, 0));
	T(pwritev2(fd, v, 2, 5, RWF_APPEND));
	T(preadv(fd, v, -1, 0));
	T(lseek(fd, 100, SEEK_END));
	T(write(fd, "z", 1));
	T(lseek(fd, 0, SEEK_DATA));
	T(lseek(fd, 1 << 20, SEEK_HOLE));
	T(lseek(fd, -1, SEEK_SET));
	T(lseek(fd, 0, 99));
	T(read(fd, (void *)16, 4));
	T(pread(fd, (void *)-4096L, 4, 0));
	T(pwrite(fd, (void *)16, 4, 0));
	T(pread(fd, buf, 4, -1));
	T(ftruncate(fd, 7));
	T(truncate("data", 5));
	T(ftruncate(fd, -1));
	content("data");
	T(fallocate(fd, 0, 0, 10000));
	T(posix_fallocate(fd, 0, 20000));
	T(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096));
	T(posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL));
	T(fsync(fd));
	T(fdatasync(fd));
	T(syncfs(fd));
	T(sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE));
	describe("data");
	int available = -1;
	T(lseek(fd, 5, SEEK_SET));
	T(ioctl(fd, FIONREAD, &available));
	printf("%d\n", available);
	T(isatty(fd));
	T(ioctl(fd, TIOCGWINSZ, buf));
	T(close(fd));
	/* A buffer whose second page is not there: what is there is used. */
	char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(pages + 4096, 4096);
	memset(pages, 'p', 4096);
	T(fd = open("half", O_CREAT | O_RDWR, 0600));
	T(write(fd, pages + 4090, 100));
	T(ftruncate(fd, 100));
	T(pages_touched(fd));
	T(pread(fd, pages + 4090, 100, 0));
	T(pread(fd, pages + 4090, 100, 98));
	T(close(fd));
	T(unlink("half"));
}

static void descriptors(void)
{
	int fd, copy, pair[2];
	char buf[16];
	struct stat st;

	section("descriptors");
	T(fd = open("data", O_RDWR));
	T(copy = dup(fd));
	T(lseek(fd, 3, SEEK_SET));
	T(lseek(copy, 0, SEEK_CUR));
	T(dup2(fd, 20));
	T(dup3(fd, 21, O_CLOEXEC));
	T(dup3(fd, fd, 0));
	T(fcntl(21, F_GETFD));
	T(fcntl(fd, F_DUPFD, 30));
	T(fcntl(fd, F_DUPFD_CLOEXEC, 31));
	T(fcntl(copy, F_SETFL, O_APPEND));
	T(fcntl(fd, F_GETFL) & O_APPEND);
	T(close(fd));
	T(read(copy, buf, 2));
	T(close(copy));
	T(read(copy, buf, 2));
	T(dup2(20, 0));
	T(read(0, buf, 1));
	T(dup2(0, 22));
	T(fstat(22, &st));
	T(dup2(99, 20));
	T(close_range(20, 40, 0));
	T(fstat(20, &st));
	T(pipe(pair));
	T(dup2(pair[0], 25));
	T(fd = open("data", O_RDONLY));
	T(dup2(fd, pair[0]));
	T(read(pair[0], buf, 3));
	T(dup2(25, pair[0]));
	T(write(pair[1], "pipe", 4));
	T(read(pair[0], buf, 16));
	closefrom(3);
	T(fstat(fd, &st));
	T(fd = open("data", O_RDONLY));
	T(fcntl(fd, 9999));
	T(close(fd));
}

/* The path from the directory of the test on, where that is part of it. */
static void real_path(const char *path)
{
	char here[PATH_MAX], buf[PATH_MAX] = "untouched", *allocated;

	getcwd(here, sizeof here);
	T(realpath(path, buf) != NULL);
	printf("%s\n", strncmp(buf, here, strlen(here)) ? buf : buf + strlen(here));
	allocated = canonicalize_file_name(path);
	printf("%d\n", allocated ? !strcmp(allocated, buf) : -1);
	free(allocated);
}

static void real_paths(void)
{
	char here[PATH_MAX], path[2 * PATH_MAX];

	T(mkdir("real", 0700));
	T(symlink("real", "to-real"));
	T(symlink("../to-real/.//", "real/around"));
	T(symlink("loop", "loop"));
	T(symlink("/etc/../etc/passwd", "outside"));
	T(close(creat("real/file", 0600)));
	getcwd(here, sizeof here);
	const char *paths[] = { "", ".", "..", "real", "real/", "real/.", "real/file", "real/file/", "real/file/.",
		"real/file/..", "real/file/x", "real/missing", "real/missing/x", "missing/..", "to-real/file", "to-real/",
		"real/around/around/file", "loop", "loop/x", "outside", "outside/", "/", "//", "/..", "/etc/../etc", "./././real" };
	for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
		if (strcmp(paths[i], ".."))
			real_path(paths[i]);
	snprintf(path, sizeof path, "%s/to-real/../real//around/file", here);
	real_path(path);
	snprintf(path, sizeof path, "%s/../../../../../../..", here);
	real_path(path);
	memset(path, 'x', sizeof path);
	path[sizeof path - 1] = 0;
	real_path(path);
	for (size_t i = 1; i < sizeof path - 1; i += 2)
		path[i - 1] = '.', path[i] = '/';
	real_path(path);
	T(realpath(NULL, path) != NULL);
	char template[] = "real/made-XXXXXX", wrong[] = "real/made-XXXXX";
	T(mkdtemp(template) == template);
	printf("%d\n", access(template, W_OK) == 0 && strcmp(template, "real/made-XXXXXX"));
	T(mkdtemp(wrong) != NULL);
	char missing[] = "missing/made-XXXXXX";
	T(mkdtemp(missing) != NULL);
	T(rmdir(template));
	T(unlink("real/file"));
	T(unlink("real/around"));
	T(rmdir("real"));
	T(unlink("to-real"));
	T(unlink("loop"));
	T(unlink("outside"));
}

static void names(void)
{
	char buf[PATH_MAX];

	section("names");
	T(mkdir("dir", 0755));
	T(mkdir("dir", 0755));
	T(mkdirat(AT_FDCWD, "dir/sub", 01777));
	T(rmdir("dir"));
	T(link("data", "dir/hard"));
	T(linkat(AT_FDCWD, "link", AT_FDCWD, "dir/linked", AT_SYMLINK_FOLLOW));
	describe("data");
	T(readlink("link", buf, sizeof buf));
	T(readlink("data", buf, sizeof buf));
	T(readlink("link", buf, 2));
	T(symlinkat("../data", AT_FDCWD, "dir/up"));
	content("dir/up");
	T(rename("dir/hard", "dir/harder"));
	T(renameat2(AT_FDCWD, "dir/harder", AT_FDCWD, "made", RENAME_NOREPLACE));
	T(renameat2(AT_FDCWD, "dir/harder", AT_FDCWD, "made", RENAME_EXCHANGE));
	T(renameat(AT_FDCWD, "dir", AT_FDCWD, "dir/sub/x"));
	T(unlink("dir"));
	T(unlinkat(AT_FDCWD, "dir/sub", AT_REMOVEDIR));
	T(remove("dir/harder"));
	T(mkfifo("fifo", 0600));
	T(mknod("node", S_IFREG | 0600, 0));
	describe("fifo");
	T(unlink("missing/x"));
	T(unlink("data/x"));
	T(unlink("dir/../data/"));
	T(rename("/etc/hostname", "stolen"));
	T(link("/proc/self/exe", "stolen"));
	T(access("data", R_OK | W_OK));
	T(access("data", X_OK));
	T(access("missing", F_OK));
	T(faccessat(AT_FDCWD, "link", F_OK, AT_SYMLINK_NOFOLLOW));
	T(euidaccess("data", R_OK));
	T(realpath("dir/../link", buf) != NULL);
	printf("%s\n", strrchr(buf, '/'));
	real_paths();
}

static void attributes(void)
{
	struct stat st;
	struct statx stx;
	struct statvfs vfs;
	int fd;

	section("attributes");
	T(chmod("data", 0604));
	T(fchmodat(AT_FDCWD, "data", 0640, 0));
	T(chown("data", 12, 34));
	T(lchown("link", 5, 6));
	describe("data");
	describe("link");
	T(fd = open("data", O_RDWR));
	T(fchmod(fd, 04755));
	T(fchown(fd, 0, -1));
	T(fstat(fd, &st));
	printf("%o %u %u\n", st.st_mode, st.st_uid, st.st_gid);
	struct timespec times[2] = { { 11, 22 }, { 33, 44 } };
	T(utimensat(AT_FDCWD, "data", times, 0));
	T(stat("data", &st));
	printf("%ld.%ld %ld.%ld\n", st.st_atim.tv_sec, st.st_atim.tv_nsec, st.st_mtim.tv_sec,
	       st.st_mtim.tv_nsec);
	times[0].tv_nsec = UTIME_OMIT;
	times[1].tv_sec = 55;
	T(futimens(fd, times));
	struct timeval tv[2] = { { 66, 77 }, { 88, 99 } };
	T(fstat(fd, &st));
	printf("%ld.%ld %ld.%ld\n", st.st_atim.tv_sec, st.st_atim.tv_nsec, st.st_mtim.tv_sec,
	       st.st_mtim.tv_nsec);
	T(utimes("data", tv));
	T(statx(AT_FDCWD, "data", 0, STATX_BASIC_STATS, &stx));
	printf("%lld.%u %o\n", (long long)stx.stx_mtime.tv_sec, stx.stx_mtime.tv_nsec, stx.stx_mode);
	T(statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &stx));
	T(fstatat(fd, "", &st, AT_EMPTY_PATH));
	T(stat("data", (struct stat *)16));
	T(utime("data", &(struct utimbuf){ 1, 2 }));
	T(setxattr("data", "user.a", "value", 5, 0));
	T(fsetxattr(fd, "user.b", "w", 1, XATTR_CREATE));
	T(fsetxattr(fd, "user.b", "w", 1, XATTR_CREATE));
	char value[100];
	T(getxattr("data", "user.a", value, sizeof value));
	T(getxattr("data", "user.a", value, 2));
	T(getxattr("data", "user.a", NULL, 0));
	T(fgetxattr(fd, "user.c", value, sizeof value));
	T(flistxattr(fd, value, sizeof value) > 0);
	T(listxattr("data", NULL, 0) > 0);
	T(removexattr("data", "user.a"));
	T(fremovexattr(fd, "user.a"));
	T(lsetxattr("link", "user.x", "1", 1, 0));
	T(statvfs("data", &vfs));
	printf("%lu %lu\n", vfs.f_bsize, vfs.f_namemax);
	T(fstatvfs(fd, &vfs));
	T(fpathconf(fd, _PC_NAME_MAX));
	T(close(fd));
	printf("umask %o\n", umask(077));
	T(open("masked", O_CREAT | O_RDWR, 0666) >= 0);
	printf("umask %o\n", umask(022));
	describe("masked");
}

static int compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int is_first(const struct dirent *entry)
{
	return !strcmp(entry->d_name, "entry1");
}

static int visited;

static int visit(const char *path, const struct stat *st, int flag, struct FTW *at)
{
	(void)path, (void)st, (void)flag, (void)at;
	visited++;
	return 0;
}

static void listing(void)
{
	DIR *dir;
	struct dirent *entry;
	char *list[100], buf[4096];
	int count = 0, fd;
	long place = 0;

	section("listing");
	T(mkdir("many", 0700));
	for (int i = 0; i < 50; i++) {
		sprintf(buf, "many/entry%d", i);
		close(open(buf, O_CREAT | O_WRONLY, 0600));
	}
	dir = opendir("many");
	while ((entry = readdir(dir))) {
		list[count++] = strdup(entry->d_name);
		if (count == 20)
			place = telldir(dir);
	}
	qsort(list, count, sizeof *list, compare);
	for (int i = 0; i < count; i++)
		printf("%s ", list[i]);
	printf("\n");
	rewinddir(dir);
	for (count = 0; readdir(dir); count++)
		;
	printf("%d\n", count);
	seekdir(dir, place);
	for (count = 0; readdir(dir); count++)
		;
	printf("%d after the twentieth\n", count);
	T(faccessat(dirfd(dir), "entry7", F_OK, 0));
	T(unlinkat(dirfd(dir), "entry7", 0));
	/* The kernel takes the descriptor over in the middle. */
	rewinddir(dir);
	readdir(dir);
	struct pollfd polled = { dirfd(dir), POLLIN, 0 };
	T(poll(&polled, 1, 0));
	rewinddir(dir);
	for (count = 0; readdir(dir); count++)
		;
	printf("%d\n", count);
	T(closedir(dir));
	T(opendir("data") == NULL);
	T(fd = open("many", O_RDONLY | O_DIRECTORY));
	dir = fdopendir(fd);
	for (count = 0; readdir64(dir); count++)
		;
	printf("%d\n", count);
	closedir(dir);
	T(close(fd));
	struct dirent **scanned;
	T(scandir("many", &scanned, NULL, alphasort));
	for (int i = 0; i < 3; i++)
		printf("%s\n", scanned[i]->d_name);
	T(scandir("many", &scanned, is_first, NULL));
	printf("%s\n", scanned[0]->d_name);
	T(scandir("missing", &scanned, NULL, alphasort));
	T(scandir("data", &scanned, NULL, alphasort));
	T(fd = open("many", O_RDONLY | O_DIRECTORY));
	T(scandirat(fd, ".", &scanned, NULL, alphasort));
	T(scandirat(fd, "..", &scanned, is_first, alphasort));
	T(close(fd));
	T(nftw("many", visit, 5, 0));
	printf("%d visited\n", visited);
	glob_t found;
	T(glob("many/entry1*", 0, NULL, &found));
	printf("%zu found, %x\n", found.gl_pathc, found.gl_flags);
	T(glob("many/entry2?", GLOB_APPEND | GLOB_MARK, NULL, &found));
	printf("%zu found, last %s\n", found.gl_pathc, found.gl_pathv[found.gl_pathc - 1]);
	globfree(&found);
	T(glob("m*ny/ent*[34]", GLOB_MARK | GLOB_NOSORT, NULL, &found));
	printf("%zu found\n", found.gl_pathc);
	globfree(&found);
	T(glob("./many", GLOB_MARK, NULL, &found));
	printf("%s\n", found.gl_pathv[0]);
	globfree(&found);
	T(glob("missing*", 0, NULL, &found));
	T(glob("data/*", GLOB_ERR, NULL, &found));
	T(glob("/et[c]/passw?", 0, NULL, &found));
	globfree(&found);
	T(fd = open("many", O_RDONLY | O_DIRECTORY));
	T(getdents64(fd, buf, 10));
	for (long total = 0, len;; total += len) {
		len = getdents64(fd, buf, 512);
		if (len <= 0) {
			printf("%d %ld\n", len == 0, total);
			break;
		}
	}
	T(close(fd));
}

static void directories(void)
{
	char buf[PATH_MAX], *base;
	int fd;

	section("working directory");
	T(chdir("dir"));
	base = strrchr(getcwd(buf, sizeof buf), '/');
	printf("%s\n", base);
	content("../data");
	T(open("../../../../../../etc/passwd", O_RDONLY) >= 0);
	T(fd = open("..", O_RDONLY | O_DIRECTORY));
	T(chdir("/"));
	T(access("data", F_OK));
	T(fchdir(fd));
	T(access("data", F_OK));
	T(close(fd));
	T(chdir("data"));
	T(symlink("/etc", "outside"));
	T(access("outside/passwd", R_OK));
	T(open("outside/passwd", O_WRONLY | O_EXCL | O_CREAT, 0600));
	FILE *file = fopen("stdio", "w+");
	fprintf(file, "line one\nline two\n");
	fclose(file);
	content("stdio");
	T(fd = open("stdio", O_RDWR | O_APPEND));
	file = fdopen(fd, "a+");
	T(fprintf(file, "line three\n"));
	T(fclose(file));
	T(close(fd));
	content("stdio");
	T(fd = open("printed", O_CREAT | O_RDWR, 0600));
	T(write(fd, "1 ", 2));
	T(dprintf(fd, "%d %s %.1f ", 2, "three", 4.0));
	T(write(fd, "5", 1));
	T(close(fd));
	content("printed");
	strcpy(buf, "tmpXXXXXX");
	T(close(mkstemp(buf)));
	T(unlink(buf));
}

static void mapping(void)
{
	int fd;
	char *map;

	section("mapping");
	T(fd = open("mapped", O_CREAT | O_RDWR, 0600));
	T(pwrite(fd, "private and shared", 18, 0));
	map = mmap(NULL, 18, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	printf("%.18s\n", map);
	map[0] = 'P';
	content("mapped");
	munmap(map, 18);
	map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	printf("%.18s\n", map);
	map[0] = 'S';
	T(msync(map, 4096, MS_SYNC));
	content("mapped");
	T(pwrite(fd, "x", 1, 1));
	printf("%.18s\n", map);
	munmap(map, 4096);
	T(close(fd));
	T(fd = open("mapped", O_WRONLY));
	T(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0);
	T(close(fd));
}

static void locks(void)
{
	int fd, other;
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1, .l_len = 2 };

	section("locks");
	T(fd = open("data", O_RDWR));
	T(other = open("data", O_RDWR));
	T(flock(fd, LOCK_EX | LOCK_NB));
	T(flock(other, LOCK_EX | LOCK_NB));
	T(flock(fd, LOCK_UN));
	T(flock(other, LOCK_SH));
	T(flock(other, LOCK_UN));
	T(fcntl(fd, F_SETLK, &lock));
	T(fcntl(fd, F_GETLK, &lock));
	printf("%d\n", lock.l_type);
	fflush(stdout);
	if (fork() == 0) {
		lock.l_type = F_WRLCK;
		T(fcntl(fd, F_SETLK, &lock) == -1 && (errno == EAGAIN || errno == EACCES) ? 1 : 0);
		T(fcntl(fd, F_GETLK, &lock));
		printf("%d %d\n", lock.l_type, lock.l_pid == getppid());
		T(lseek(fd, 0, SEEK_SET));
		T(lockf(fd, F_TEST, 10));
		fflush(stdout);
		_exit(0);
	}
	wait(NULL);
	lock.l_type = F_WRLCK;
	T(fcntl(other, F_OFD_SETLK, &(struct flock){ .l_type = F_WRLCK, .l_start = 50, .l_len = 1 }));
	T(close(other));
	/* Closing any descriptor of the file drops this process's record locks. */
	if (fork() == 0) {
		T(fcntl(fd, F_SETLK, &lock));
		fflush(stdout);
		_exit(0);
	}
	wait(NULL);
	T(close(fd));
}

/* More than a socket takes at once, to all kinds of them. */
static void sending(void)
{
	int from, pair[2], kinds[] = { SOCK_STREAM, SOCK_SEQPACKET };
	long sent = 0, received = 0;
	char *data = malloc(1 << 20), *back = malloc(1 << 20);

	for (int i = 0; i < 1 << 20; i++)
		data[i] = i * 2654435761u >> 24;
	T(from = open("sent", O_CREAT | O_RDWR | O_TRUNC, 0600));
	T(write(from, data, 1 << 20));
	T(lseek(from, 0, SEEK_SET));
	T(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair));
	while (received < 1 << 20) {
		long n = sendfile(pair[1], from, NULL, 2 << 20);
		sent += n > 0 ? n : 0;
		while ((n = read(pair[0], back + received, (1 << 20) - received)) > 0)
			received += n;
	}
	printf("%ld sent, %ld\n", sent, (long)lseek(from, 0, SEEK_CUR));
	printf("%d\n", memcmp(data, back, 1 << 20));
	T(sendfile(pair[1], from, NULL, 10));
	off_t at = -1;
	T(sendfile(pair[1], from, &at, 10));
	at = (1 << 20) - 5;
	T(sendfile(pair[1], from, &at, 10));
	printf("%ld\n", (long)at);
	T(close(pair[0]));
	signal(SIGPIPE, SIG_IGN);
	at = 0;
	T(sendfile(pair[1], from, &at, 10));
	signal(SIGPIPE, SIG_DFL);
	T(close(pair[1]));
	T(socketpair(AF_UNIX, kinds[1], 0, pair));
	at = 100;
	T(sendfile(pair[1], from, &at, 10));
	T(read(pair[0], back, 100));
	T(close(pair[0]));
	T(close(pair[1]));
	T(close(from));
	T(from = open("sent", O_WRONLY));
	T(pipe(pair));
	T(sendfile(pair[1], from, NULL, 10));
	T(close(from));
	T(from = open(".", O_RDONLY));
	T(sendfile(pair[1], from, NULL, 10));
	T(close(from));
	T(close(pair[0]));
	T(close(pair[1]));
	T(unlink("sent"));
	free(data);
	free(back);
}

static void copying(void)
{
	int from, to, pair[2];
	off_t offset = 2;
	char buf[100];

	section("copying");
	T(from = open("printed", O_RDONLY));
	T(to = open("copied", O_CREAT | O_RDWR | O_TRUNC, 0600));
	T(copy_file_range(from, &offset, to, NULL, 5, 0));
	printf("%ld\n", (long)offset);
	T(copy_file_range(from, NULL, to, NULL, 100, 0));
	T(lseek(from, 0, SEEK_SET));
	T(sendfile(to, from, NULL, 4));
	T(lseek(from, 0, SEEK_CUR));
	content("copied");
	T(pipe(pair));
	T(sendfile(pair[1], from, NULL, 3));
	T(read(pair[0], buf, sizeof buf));
	offset = 1;
	T(sendfile(pair[1], from, &offset, 4));
	printf("%ld\n", (long)offset);
	T(lseek(from, 0, SEEK_CUR));
	T(read(pair[0], buf, sizeof buf));
	T(splice(from, NULL, pair[1], NULL, 2, 0));
	T(read(pair[0], buf, sizeof buf));
	T(close(from));
	T(close(to));
	T(close(pair[0]));
	T(close(pair[1]));
	sending();
}

static void waiting(void)
{
	int fd, sockets[2], epoll;
	fd_set set;
	char byte, room[CMSG_SPACE(sizeof(int))];

	section("waiting and passing");
	T(fd = open("printed", O_RDONLY));
	T(lseek(fd, 2, SEEK_SET));
	FD_ZERO(&set);
	FD_SET(fd, &set);
	T(select(fd + 1, &set, NULL, NULL, NULL));
	T(read(fd, &byte, 1));
	printf("%c\n", byte);
	T(close(fd));
	T(fd = open("printed", O_RDONLY));
	T(epoll = epoll_create1(0));
	/* tmpfs refuses, FUSE does not. */
	epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &(struct epoll_event){ .events = EPOLLIN });
	T(close(epoll));
	T(close(fd));
	T(fd = open("printed", O_RDONLY));
	T(lseek(fd, 4, SEEK_SET));
	T(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
	struct iovec v = { &byte, 1 };
	struct msghdr message = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = room,
				  .msg_controllen = sizeof room };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(header), &fd, sizeof fd);
	T(sendmsg(sockets[0], &message, 0));
	T(close(fd));
	T(recvmsg(sockets[1], &message, 0));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
	T(read(fd, &byte, 1));
	printf("%c\n", byte);
	close(fd);
	close(sockets[0]);
	close(sockets[1]);
	T(fd = open("printed", O_RDONLY));
	char buf[8];
	struct aiocb control = { .aio_fildes = fd, .aio_buf = buf, .aio_nbytes = 3 };
	T(aio_read(&control));
	const struct aiocb *list[] = { &control };
	T(aio_suspend(list, 1, NULL));
	T(aio_return(&control));
	T(close(fd));
}

static void run(char *const argv[])
{
	pid_t pid;
	int status;
	fflush(stdout);
	if (posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ) == 0)
		waitpid(pid, &status, 0);
}

static void processes(void)
{
	int fd, status;
	pid_t pid;
	char buf[32];
	posix_spawn_file_actions_t actions;

	section("processes");
	T(fd = open("shared", O_CREAT | O_RDWR | O_TRUNC, 0600));
	T(write(fd, "parent ", 7));
	fflush(stdout);
	if (fork() == 0) {
		write(fd, "child ", 6);
		lseek(fd, 1, SEEK_CUR);
		_exit(3);
	}
	T(wait(&status) > 0);
	T(WEXITSTATUS(status));
	T(lseek(fd, 0, SEEK_CUR));
	T(write(fd, "parent", 6));
	sprintf(buf, "%d", fd);
	fflush(stdout);
	if ((pid = vfork()) == 0) {
		execlp("sh", "sh", "-c", "echo from sh >&$0", buf, NULL);
		_exit(127);
	}
	waitpid(pid, &status, 0);
	T(status);
	sprintf(buf, "echo number %d >&%d", fd, fd);
	fflush(stdout);
	T(system(buf));
	T(lseek(fd, 0, SEEK_CUR));
	content("shared");
	T(close(fd));
	run((char *[]){ "cat", "shared", NULL });
	T(fd = open("shared", O_RDONLY | O_CLOEXEC));
	posix_spawn_file_actions_init(&actions);
	T(posix_spawn_file_actions_adddup2(&actions, fd, 0));
	T(posix_spawn_file_actions_addopen(&actions, 1, "spawned", O_CREAT | O_WRONLY, 0600));
	T(posix_spawnp(&pid, "cat", &actions, NULL, (char *[]){ "cat", NULL }, environ));
	waitpid(pid, &status, 0);
	T(close(fd));
	content("spawned");
	FILE *pipe = popen("cat spawned; echo > popped", "r");
	T(fgetc(pipe));
	T(pclose(pipe));
	describe("popped");
	/* A scrubbed environment. */
	fflush(stdout);
	if (fork() == 0) {
		char *none[] = { NULL };
		execve("/bin/cat", (char *[]){ "cat", "popped", NULL }, none);
	}
	wait(&status);
	T(status);
	/* Descriptors over exec, and without. */
	T(open("shared", O_RDONLY) == 3);
	T(open("shared", O_RDONLY | O_CLOEXEC) == 4);
	fflush(stdout);
	if (fork() == 0)
		execl("/bin/sh", "sh", "-c", "head -c 6 <&3; (: <&4) 2>/dev/null || echo ' closed'", NULL);
	wait(NULL);
	T(read(3, buf, 6) == 0 ? 0 : 1);
	closefrom(3);
}

static volatile int handled, file;
static sigjmp_buf jump;

static void count(int signal)
{
	char byte = '.';
	(void)signal;
	handled++;
	write(file, &byte, 1);
}

static void leap(int signal)
{
	(void)signal;
	siglongjmp(jump, 1);
}

static void signals(void)
{
	struct sigaction action = { .sa_handler = count, .sa_flags = SA_RESTART }, old;
	struct itimerval every = { { 0, 300 }, { 0, 300 } }, never = { { 0, 0 }, { 0, 0 } };
	struct stat st;
	char buf[4096] = { 0 };
	int fd, before;

	section("signals");
	T(file = open("ticks", O_CREAT | O_WRONLY | O_TRUNC, 0600));
	T(fd = open("busy", O_CREAT | O_RDWR | O_TRUNC, 0600));
	T(sigaction(SIGALRM, &action, NULL));
	T(sigaction(SIGALRM, NULL, &old));
	T(old.sa_handler == count);
	T((old.sa_flags & ~0x04000000) == SA_RESTART);
	T(sigaction(SIGSEGV, NULL, &old));
	T(old.sa_handler == SIG_DFL);
	setitimer(ITIMER_REAL, &every, NULL);
	for (int i = 0; i < 20000 || handled < 20; i++)
		if (pwrite(fd, buf, sizeof buf, 4096 * (i % 16)) != sizeof buf)
			printf("a write failed\n");
	setitimer(ITIMER_REAL, &never, NULL);
	before = handled;
	fstat(file, &st);
	T(st.st_size == before);
	T(signal(SIGALRM, leap) == count);
	for (volatile int rounds = 0; rounds < 50; rounds++) {
		if (sigsetjmp(jump, 1) == 0) {
			setitimer(ITIMER_REAL, &(struct itimerval){ { 0, 0 }, { 0, 200 } }, NULL);
			for (;;)
				pwrite(fd, buf, sizeof buf, 0);
		}
	}
	T(pwrite(fd, buf, 10, 0));
	T(signal(SIGALRM, SIG_IGN) == leap);
	T(raise(SIGALRM));
	T(signal(SIGALRM, SIG_DFL) == SIG_IGN);
	/* Interrupted while it waits for a lock. */
	struct flock lock = { .l_type = F_WRLCK };
	action.sa_flags = 0;
	sigaction(SIGALRM, &action, NULL);
	fflush(stdout);
	int ready[2];
	T(pipe(ready));
	pid_t pid = fork();
	if (pid == 0) {
		fcntl(fd, F_SETLK, &lock);
		write(ready[1], "", 1);
		pause();
	}
	read(ready[0], buf, 1);
	setitimer(ITIMER_REAL, &(struct itimerval){ { 0, 0 }, { 0, 50000 } }, NULL);
	T(fcntl(fd, F_SETLKW, &lock));
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	T(fcntl(fd, F_SETLKW, &lock));
	struct rlimit limit = { 5000, RLIM_INFINITY };
	/* The handler writes, too, and on a slow machine has been called more than 5000 times. */
	ftruncate(file, 0);
	lseek(file, 0, SEEK_SET);
	signal(SIGXFSZ, count);
	before = handled;
	T(setrlimit(RLIMIT_FSIZE, &limit));
	T(pwrite(fd, buf, 4096, 4000));
	T(pwrite(fd, buf, 4096, 6000));
	T(handled - before);
	limit.rlim_cur = RLIM_INFINITY;
	T(setrlimit(RLIMIT_FSIZE, &limit));
	closefrom(3);
}

static void *scribble(void *argument)
{
	char name[32], buf[64];
	long id = (long)argument, errors = 0;
	for (int i = 0; i < 300; i++) {
		sprintf(name, "thread%ld-%d", id, i % 7);
		int fd = open(name, O_CREAT | O_RDWR, 0600);
		errors += write(fd, name, 10) != 10;
		errors += pread(fd, buf, 10, 0) != 10 || memcmp(buf, name, 10);
		errors += close(fd) != 0;
		errors += unlink(name) != 0;
	}
	return (void *)errors;
}

static void threads(void)
{
	pthread_t thread[4];
	void *errors;

	section("threads");
	for (long i = 0; i < 4; i++)
		pthread_create(&thread[i], NULL, scribble, (void *)i);
	for (int i = 0; i < 4; i++) {
		pthread_join(thread[i], &errors);
		printf("%ld errors\n", (long)errors);
	}
	for (int i = 0; i < 20; i++)
		if (fork() == 0)
			_exit((long)scribble((void *)(100L + i)) != 0);
	int status, failed = 0;
	while (wait(&status) > 0)
		failed += status != 0;
	printf("%d failed\n", failed);
}

static void users(void)
{
	section("users");
	T(mkdir("private", 0700));
	T(mkdir("open", 01777));
	T(mkdir("open/mine", 0755));
	fflush(stdout);
	if (fork() == 0) {
		T(setgroups(0, NULL));
		T(setresgid(65534, 65534, 65534));
		T(setresuid(65534, 65534, 65534));
		T(open("private/x", O_CREAT | O_RDWR, 0600));
		T(opendir("private") == NULL ? -1 : 0);
		T(open("masked", O_RDONLY));
		T(unlink("data"));
		T(rmdir("open/mine"));
		T(chmod("open", 0777));
		T(open("open/own", O_CREAT | O_RDWR, 0666) >= 0);
		describe("open/own");
		T(chown("open/own", 0, 0));
		fflush(stdout);
		_exit(0);
	}
	wait(NULL);
}

static void raw_calls(void)
{
	char buf[16];
	int fd;

	section("raw calls");
	T(fd = syscall(SYS_openat, AT_FDCWD, "printed", O_RDONLY, 0));
	T(syscall(SYS_read, fd, buf, 4));
	T(syscall(SYS_pread64, fd, buf, 4, 2L));
	T(syscall(SYS_fadvise64, fd, 0L, 0L, 0));
	T(syscall(SYS_lseek, fd, 0L, SEEK_CUR));
	T(syscall(SYS_close, fd));
	sprintf(buf, "/dev/fd/%d", fd = open("printed", O_RDONLY));
	T(open(buf, O_WRONLY | O_TRUNC) >= 0 ? 0 : -1);
	T(close(fd));
	describe("printed");
	T(fd = syscall(SYS_creat, "raw", 0640));
	T(syscall(SYS_fsetxattr, fd, "user.x", "value", 5L, 0));
	T(syscall(SYS_setxattr, "raw", "user.y", "values", 6L, 0));
	T(syscall(SYS_lsetxattr, "raw", "user.y", "values", 6L, XATTR_CREATE));
	T(syscall(SYS_fgetxattr, fd, "user.y", buf, sizeof buf));
	T(syscall(SYS_getxattr, "raw", "user.x", buf, sizeof buf));
	T(syscall(SYS_lgetxattr, "raw", "user.z", buf, sizeof buf));
	T(syscall(SYS_listxattr, "raw", NULL, 0L));
	T(syscall(SYS_llistxattr, "raw", NULL, 0L));
	T(syscall(SYS_fremovexattr, fd, "user.x"));
	T(syscall(SYS_removexattr, "raw", "user.x"));
	T(syscall(SYS_lremovexattr, "raw", "user.y"));
	T(syscall(SYS_flistxattr, fd, NULL, 0L));
	T(syscall(SYS_readahead, fd, 0L, 100L));
	T(syscall(SYS_sync_file_range, fd, 0L, 0L, 0));
	T(syscall(SYS_truncate, "raw", 5000L));
	T(syscall(SYS_access, "raw", X_OK));
	T(syscall(SYS_chmod, "raw", 0601));
	T(syscall(SYS_chown, "raw", getuid(), -1));
	T(syscall(SYS_lchown, "raw", -1, getgid()));
	T(syscall(SYS_utime, "raw", NULL));
	T(syscall(SYS_utimes, "raw", NULL));
	T(syscall(SYS_futimesat, AT_FDCWD, "raw", NULL));
	T(syscall(SYS_futimesat, fd, NULL, NULL));
	T(syscall(SYS_link, "raw", "raw-2"));
	T(syscall(SYS_symlink, "raw-2", "raw-3"));
	T(syscall(SYS_readlink, "raw-3", buf, sizeof buf));
	T(syscall(SYS_rename, "raw-2", "raw-4"));
	T(syscall(SYS_renameat, AT_FDCWD, "raw-3", AT_FDCWD, "raw-2"));
	T(syscall(SYS_readlink, "raw-4", buf, sizeof buf));
	T(syscall(SYS_umask, 027));
	T(syscall(SYS_mkdir, "raw-6", 0777));
	describe("raw-6");
	T(syscall(SYS_umask, 022));
	T(syscall(SYS_rmdir, "raw-6"));
	T(syscall(SYS_mkdir, "raw-5", 0700));
	T(syscall(SYS_mknod, "raw-5/node", S_IFREG | 0600, 0));
	T(syscall(SYS_rmdir, "raw-5"));
	T(syscall(SYS_unlink, "raw-5/node"));
	T(syscall(SYS_rmdir, "raw-5"));
	describe("raw");
	describe("raw-2");
	closefrom(3);
}

/* Down to the directory from the root, a directory at a time, as who follows no links goes. */
static void from_above(void)
{
	char path[4096], buf[16], *name, *rest = path;
	struct stat st, same;
	int dir = open("/", O_PATH | O_DIRECTORY), next, fd;

	section("from above");
	getcwd(path, sizeof path);
	while ((name = strtok_r(rest, "/", &rest))) {
		next = openat(dir, name, O_PATH | O_NOFOLLOW | O_DIRECTORY);
		close(dir);
		dir = next;
	}
	T((fd = openat(dir, "printed", O_RDONLY)) >= 0 ? 0 : -1);
	T(read(fd, buf, 4));
	T(fstatat(dir, "printed", &st, 0));
	T(fstat(fd, &same));
	T(st.st_ino == same.st_ino);
	close(fd);
	close(dir);
	/* By what remains of the path. */
	getcwd(path, sizeof path);
	dir = open("/", O_RDONLY | O_DIRECTORY);
	T(fstatat(dir, path + 1, &st, 0));
	T(st.st_nlink > 0 && S_ISDIR(st.st_mode));
	strcat(path, "/printed");
	T((fd = openat(dir, path + 1, O_RDONLY)) >= 0 ? 0 : -1);
	T(read(fd, buf, 4));
	T(faccessat(dir, path + 2, F_OK, 0));
	closefrom(3);
}

int main(int argc, char **argv)
{
	if (argc != 2 || chdir(argv[1]) < 0) {
		perror("calls DIR");
		return 2;
	}
	umask(022);
	opening();
	closefrom(3);
	reading_and_writing();
	descriptors();
	names();
	attributes();
	closefrom(3);
	listing();
	closefrom(3);
	directories();
	closefrom(3);
	mapping();
	locks();
	copying();
	waiting();
	processes();
	signals();
	threads();
	users();
	raw_calls();
	from_above();
	printf("done\n");
	return 0;
}
