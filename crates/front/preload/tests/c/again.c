/* Reads and overwrites a file of 1 MiB, whose path is the argument, again and again. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	static char page[4096];
	long sum = 0;
	int fd = open(argv[1], O_RDWR);

	for (int pass = 0; pass < 20; pass++) {
		for (int i = 255; i >= 0; i--) {
			if (pread(fd, page, sizeof(page), i * 4096L) != sizeof(page))
				return 1;
			sum += page[pass]++;
			if (pwrite(fd, page, sizeof(page), i * 4096L) != sizeof(page))
				return 1;
		}
	}
	printf("%ld\n", sum);
	return close(fd);
}
