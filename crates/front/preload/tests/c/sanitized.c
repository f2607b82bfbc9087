/* Uses files, a thread, children and memory below the directory given, as a program that is built with a sanitizer. With
 * `overflow`, reads beyond what it has allocated.
 *
 * usage: sanitized DIR [overflow]
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void *reads(void *arg)
{
	char *text = calloc(1, 16);
	int fd = open("file", O_RDONLY);

	if (fd < 0 || pread(fd, text, 7, 0) != 7)
		exit(2);
	close(fd);
	return text;
}

int main(int argc, char **argv)
{
	struct stat st;
	pthread_t thread;
	void *text;
	int status;

	if (chdir(argv[1]))
		return 1;
	int fd = open("file", O_CREAT | O_RDWR | O_TRUNC, 0644);
	printf("write %zd\n", write(fd, "content", 7));
	if (argc > 2) {
		char *room = malloc(3);
		printf("%zd\n", pread(fd, room, 7, 0));
		free(room);
		return 0;
	}
	pthread_create(&thread, NULL, reads, NULL);
	pthread_join(thread, &text);
	printf("thread %s\n", (char *)text);
	free(text);
	char *map = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
	printf("mapped %.7s\n", map);
	munmap(map, 4096);
	FILE *stream = fopen("stream", "w+");
	fprintf(stream, "line\n");
	rewind(stream);
	printf("stream %d\n", fgetc(stream));
	fclose(stream);
	fflush(stdout);
	if (fork() == 0) {
		text = reads(NULL);
		printf("child %s\n", (char *)text);
		free(text);
		fflush(stdout);
		_exit(3);
	}
	wait(&status);
	printf("ended %d\n", WEXITSTATUS(status));
	fflush(stdout);
	printf("system %d\n", system("cat file"));
	printf("stat %d\n", fstat(fd, &st));
	printf("size %ld\n", (long)st.st_size);
	close(fd);
	printf("done\n");
	return 0;
}
