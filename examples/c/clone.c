/* Clones a file or a directory tree of a pool, without a mount.
 *
 *     cc -o clone examples/c/clone.c -I include -L target/release -lkeepstone
 *     LD_LIBRARY_PATH=target/release ./clone /dev/shm/pool /template /test-1
 */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "keepstone.h"

int main(int argc, char **argv)
{
	ks_pool *pool;
	int status = 0;

	if (argc != 4) {
		fprintf(stderr, "usage: clone POOL FROM TO\n");
		return 2;
	}
	pool = ks_open_pool(argv[1]);
	if (!pool) {
		fprintf(stderr, "%s: %s\n", argv[1], strerror(errno));
		return 1;
	}
	if (ks_clone(pool, argv[2], argv[3]) != 0) {
		fprintf(stderr, "%s: %s\n", argv[3], strerror(errno));
		status = 1;
	}
	if (ks_close_pool(pool) != 0) {
		fprintf(stderr, "%s: %s\n", argv[1], strerror(errno));
		status = 1;
	}
	return status;
}
