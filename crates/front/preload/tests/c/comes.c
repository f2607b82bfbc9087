/*
 * Opens a name with O_CREAT and removes it, 3000 times, while another process does the same. Nothing can be wrong with that.
 *
 *   comes DIR
 */
#include <fcntl.h>
#include <unistd.h>
#include "check.h"

int main(int argc, char **argv)
{
	CHECK(chdir(argv[1]) == 0);
	for (int i = 0; i < 3000; i++) {
		int fd = open("name", O_RDWR | O_CREAT | (i % 2 ? O_TRUNC : 0), 0600);
		CHECK(fd >= 0);
		close(fd);
		CHECK(unlink("name") == 0 || errno == ENOENT);
	}
	return 0;
}
