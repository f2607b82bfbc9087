/* Uses libc's streams on files below the directory given and prints what they answer, so that two runs can be compared: on a pool
 * with the library, and on tmpfs without it.
 *
 * usage: streams DIR
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <wchar.h>

#define T(expression) show(#expression, (errno = 0, (long)(expression)))
/* A pointer: whether there is one. */
#define P(expression) show(#expression, (errno = 0, (expression) ? 0L : -1L))

static long show(const char *text, long value)
{
	if (value == -1)
		printf("%s = -1 %s\n", text, strerrorname_np(errno));
	else
		printf("%s = %ld\n", text, value);
	return value;
}

/* What a file holds, by calls. */
static void content(const char *name)
{
	char buf[200];
	int fd = open(name, O_RDONLY);
	ssize_t n = fd < 0 ? -1 : read(fd, buf, sizeof buf);
	struct stat st = {0};
	if (fd >= 0)
		fstat(fd, &st);
	printf("%s: %ld bytes: %.*s\n", name, (long)st.st_size, n < 0 ? 0 : (int)n, buf);
	if (fd >= 0)
		close(fd);
}

static void modes(void)
{
	static const char *modes[] = {
		"r", "r+", "w", "w+", "a", "a+", "wx", "w+bx", "rb", "rb+", "re", "rm", "rc", "q", "", "r,ccs=UTF-8", "ax",
	};
	for (int present = 0; present < 2; present++) {
		for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
			FILE *file;
			char word[8];
			unlink("mode");
			if (present) {
				int fd = creat("mode", 0640);
				write(fd, "0123456789", 10);
				close(fd);
			}
			printf("mode %s, %s\n", modes[i], present ? "a file" : "no file");
			if (P(file = fopen("mode", modes[i])) == -1)
				continue;
			T(ftell(file));
			T(fcntl(fileno(file), F_GETFL) & (O_ACCMODE | O_APPEND));
			T(fcntl(fileno(file), F_GETFD));
			T(fputs("ab", file));
			T(ferror(file));
			clearerr(file);
			T(fflush(file));
			rewind(file);
			T(fread(word, 1, 5, file));
			T(feof(file));
			T(ftell(file));
			T(fseek(file, -2, SEEK_END));
			T(fgetc(file));
			T(ftell(file));
			T(fclose(file));
			content("mode");
		}
	}
	P(fopen("absent/mode", "w"));
	P(fopen(".", "w"));
	P(fopen(".", "r") ? (void *)1 : NULL);
	P(fopen("mode/x", "r"));
}

static void offsets(void)
{
	FILE *file;
	fpos_t position;
	char line[100], big[20000];

	P(file = fopen("offsets", "w+"));
	for (int i = 0; i < 3000; i++)
		fprintf(file, "line %d\n", i);
	T(ftell(file));
	/* The calls see what was flushed, and share the offset. */
	T(lseek(fileno(file), 0, SEEK_CUR));
	T(fflush(file));
	T(lseek(fileno(file), 0, SEEK_CUR));
	T(fseek(file, 14, SEEK_SET));
	printf("%s", fgets(line, sizeof line, file));
	T(fgetpos(file, &position));
	T(ungetc('!', file));
	T(fgetc(file));
	T(fread(big, 1, sizeof big, file));
	T(fsetpos(file, &position));
	printf("%s", fgets(line, sizeof line, file));
	T(fseek(file, 0, SEEK_CUR));
	T(fputs("LINE", file));
	T(fseeko(file, 100000, SEEK_SET));
	T(fputc('.', file));
	T(ftello(file));
	T(fseek(file, -1, SEEK_SET));
	T(fclose(file));
	content("offsets");
	T(setvbuf(file = fopen("unbuffered", "w"), NULL, _IONBF, 0));
	fprintf(file, "%s %d", "unbuffered", 1);
	content("unbuffered");
	T(ftruncate(fileno(file), 3));
	fputs("x", file);
	T(fclose(file));
	content("unbuffered");
	T(setvbuf(file = fopen("lines", "w"), NULL, _IOLBF, 0));
	fputs("one\ntwo", file);
	content("lines");
	T(fclose(file));
	content("lines");
	memset(big, 'b', sizeof big);
	file = fopen("big", "w");
	for (int i = 0; i < 50; i++)
		T(fwrite(big, 1, sizeof big - i, file));
	T(fclose(file));
	content("big");
	char *text = NULL;
	size_t room = 0;
	file = fopen("lines", "r");
	T(getline(&text, &room, file));
	T(getdelim(&text, &room, 'w', file));
	T(fclose(file));
	free(text);
}

static void wide(void)
{
	FILE *file;
	wchar_t line[50];

	P(file = fopen("wide", "w+"));
	T(fwide(file, 1));
	T(fputws(L"wide line\nand more\n", file));
	rewind(file);
	P(fgetws(line, 50, file));
	T(wcslen(line));
	T(fputc('c', file));
	T(fclose(file));
	content("wide");
	P(file = fopen("wide", "r"));
	T(fgetwc(file));
	T(ftell(file));
	T(fclose(file));
}

static void descriptors(void)
{
	int fd, other;
	FILE *file;

	T(fd = open("descriptor", O_RDWR | O_CREAT | O_TRUNC, 0644));
	T(write(fd, "begin ", 6));
	P(file = fdopen(fd, "r+"));
	T(fileno(file) == fd);
	T(ftell(file));
	T(fprintf(file, "stream "));
	T(fflush(file));
	T(write(fd, "call ", 5));
	T(fseek(file, 0, SEEK_END));
	T(fputs("end", file));
	T(other = dup(fd));
	T(fclose(file));
	T(fcntl(fd, F_GETFD));
	T(lseek(other, 0, SEEK_CUR));
	T(close(other));
	content("descriptor");
	T(fd = open("descriptor", O_RDONLY));
	P(fdopen(fd, "w"));
	P(fdopen(fd, "r+"));
	P(fdopen(fd, "?"));
	P(file = fdopen(fd, "re"));
	T(fgetc(file));
	T(lseek(fd, 0, SEEK_CUR));
	T(fclose(file));
	T(close(fd));
	T(fd = open("descriptor", O_WRONLY));
	P(fdopen(fd, "r"));
	P(file = fdopen(fd, "a"));
	T(fcntl(fd, F_GETFL) & O_APPEND);
	T(ftell(file));
	T(fputs("+", file));
	T(fclose(file));
	content("descriptor");
	P(fdopen(fd, "r"));
	P(fdopen(-1, "r"));
	T(fd = open("descriptor", O_PATH));
	P(fdopen(fd, "r"));
	T(close(fd));
	/* What is written when a stream ends cannot always be. */
	P(file = fopen("closed", "w"));
	T(fputs("lost", file));
	T(close(fileno(file)));
	T(fclose(file));
	content("closed");
	T(fd = open("printed", O_RDWR | O_CREAT | O_TRUNC, 0600));
	T(dprintf(fd, "%d %s %.1f ", 2, "three", 4.0));
	T(write(fd, "5", 1));
	T(close(fd));
	content("printed");
}

static void reopening(void)
{
	FILE *file;
	int number;

	P(file = fopen("first", "w"));
	number = fileno(file);
	fputs("first", file);
	P(file = freopen("second", "w", file));
	T(fileno(file) == number);
	fputs("second", file);
	P(file = freopen("first", "a+", file));
	fputs(" again", file);
	rewind(file);
	T(fgetc(file));
	P(freopen("first", "re", file));
	T(fcntl(fileno(file), F_GETFD));
	T(fgetc(file));
	P(freopen("/dev/null", "r", file));
	T(fgetc(file));
	P(file = freopen("second", "r", file));
	T(fgetc(file));
	P(freopen(NULL, "r", file));
	T(fgetc(file));
	P(freopen("absent/x", "r", file));
	P(file = fopen("third", "w"));
	T(fileno(file) == number);
	T(fclose(file));
	content("first");
	content("second");
}

/* A child inherits what a stream holds; what it reads, the parent does not read again. */
static void processes(void)
{
	FILE *file;
	int status;

	P(file = fopen("shared", "w+"));
	fputs("parent\n", file);
	fflush(file);
	if (fork() == 0) {
		fputs("child\n", file);
		fclose(file);
		_exit(0);
	}
	wait(&status);
	fputs("parent again\n", file);
	T(fclose(file));
	content("shared");
	/* What is still in a stream when a program ends is written then. */
	if (fork() == 0) {
		FILE *left = fopen("left", "w");
		fputs("left over", left);
		exit(0);
	}
	wait(&status);
	content("left");
	P(file = popen("cat > piped", "w"));
	fputs("through a pipe", file);
	T(pclose(file));
	content("piped");
}

static void temporary(void)
{
	char name[60];
	FILE *file;
	int fd;
	struct stat st;

	strcpy(name, "tempXXXXXX");
	T((fd = mkstemp(name)) >= 0);
	T(strlen(name));
	T(strncmp(name, "temp", 4));
	T(strcmp(name, "tempXXXXXX") != 0);
	T(fstat(fd, &st));
	T(st.st_mode & 07777);
	T(fcntl(fd, F_GETFL) & O_ACCMODE);
	T(close(fd));
	T(unlink(name));
	strcpy(name, "tempXXXXXX.txt");
	T((fd = mkostemps(name, 4, O_CLOEXEC | O_APPEND)) >= 0);
	T(strcmp(name + 10, ".txt"));
	T(fcntl(fd, F_GETFD));
	T((fcntl(fd, F_GETFL) & O_APPEND) != 0);
	P(file = fdopen(fd, "w"));
	T(fputs("temporary", file));
	T(fclose(file));
	T(rename(name, "temporary"));
	content("temporary");
	strcpy(name, "tempXXXXX");
	T(mkstemp(name));
	strcpy(name, "tempXXXXXX.txt");
	T(mkstemps(name, 3));
	T(mkstemps(name, -1));
	T(mkstemps(name, 20));
	strcpy(name, "absent/tempXXXXXX");
	T(mkstemp(name));
	T(strcmp(name, "absent/tempXXXXXX") != 0);
	P(file = tmpfile());
	T(fputs("nobody's", file));
	rewind(file);
	T(fgetc(file));
	T(fclose(file));
}

/* Streams while there is no number left, and where files may not grow. */
static void limits(void)
{
	struct rlimit limit, small;
	FILE *files[64], *file;
	int open = 0;

	getrlimit(RLIMIT_NOFILE, &limit);
	small = limit;
	small.rlim_cur = 24;
	setrlimit(RLIMIT_NOFILE, &small);
	while (open < 64 && (files[open] = fopen("offsets", "r")))
		open++;
	printf("%d streams, then %s\n", open, strerrorname_np(errno));
	for (int i = 0; i < open; i++)
		fclose(files[i]);
	setrlimit(RLIMIT_NOFILE, &limit);
	P(file = fopen("offsets", "r"));
	T(fgetc(file));
	T(fclose(file));
}

static void *writer(void *name)
{
	for (int i = 0; i < 200; i++) {
		FILE *file = fopen(name, i ? "a" : "w");
		fprintf(file, "%d\n", i);
		fclose(file);
	}
	return NULL;
}

static void threads(void)
{
	pthread_t threads[4];
	static char *names[] = {"thread0", "thread1", "thread2", "thread3"};

	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, writer, names[i]);
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		struct stat st;
		T(stat(names[i], &st));
		T(st.st_size);
	}
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc < 2 || chdir(argv[1]) != 0)
		return 2;
	modes();
	offsets();
	wide();
	descriptors();
	reopening();
	processes();
	temporary();
	limits();
	threads();
	printf("done\n");
	return 0;
}
