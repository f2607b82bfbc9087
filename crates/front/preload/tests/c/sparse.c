/*
 * A sparse copy of a file that is stored to through a mapping has what was stored: SEEK_DATA and SEEK_HOLE, copy_file_range,
 * sendfile.
 *
 *   sparse DIR
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <unistd.h>
#include "check.h"

enum { SIZE = 1 << 20, PLACE = SIZE / 2 };

static char buffer[SIZE];

static int created(const char *name)
{
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);

	CHECK(fd >= 0);
	return fd;
}

static void check_copy(int copy, const char *stored)
{
	char found[8] = "";

	CHECK(ftruncate(copy, SIZE) == 0);
	CHECK(pread(copy, found, strlen(stored), PLACE) == (ssize_t)strlen(stored));
	CHECK(!strcmp(found, stored));
	close(copy);
}

static void check_copies(int from, const char *stored)
{
	off_t at = lseek(from, 0, SEEK_DATA), end;

	CHECK(at >= 0 && at <= PLACE);
	int copy = created("copy");
	for (at = 0; (at = lseek(from, at, SEEK_DATA)) >= 0; at = end) {
		end = lseek(from, at, SEEK_HOLE);
		CHECK(end > at && end <= SIZE);
		CHECK(pread(from, buffer, end - at, at) == end - at);
		CHECK(pwrite(copy, buffer, end - at, at) == end - at);
	}
	CHECK(errno == ENXIO);
	check_copy(copy, stored);

	copy = created("copy");
	off_t in = 0, out = 0;
	while (in < SIZE)
		CHECK(copy_file_range(from, &in, copy, &out, SIZE - in, 0) > 0);
	check_copy(copy, stored);

	copy = created("copy");
	for (in = 0; in < SIZE;)
		CHECK(sendfile(copy, from, &in, SIZE - in) > 0);
	check_copy(copy, stored);
}

int main(int argc, char **argv)
{
	CHECK(chdir(argv[1]) == 0);
	int fd = created("file");
	CHECK(ftruncate(fd, SIZE) == 0);
	/* The kernel may keep pages of zeros from this. */
	int reader = open("file", O_RDONLY);
	CHECK(read(reader, buffer, SIZE) == SIZE);
	char *mapped = mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(mapped != MAP_FAILED);
	strcpy(mapped + PLACE, "stored");
	check_copies(fd, "stored");
	check_copies(reader, "stored");
	/* The mapping holds the file. */
	close(fd);
	strcpy(mapped + PLACE, "again");
	check_copies(reader, "again");
	CHECK(munmap(mapped, SIZE) == 0);
	check_copies(reader, "again");
	close(reader);
	CHECK(unlink("file") == 0 && unlink("copy") == 0);
	return 0;
}
