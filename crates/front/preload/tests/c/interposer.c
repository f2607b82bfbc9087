// A library that programs preload beside ours: it sees each rmdir, and passes it on.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>

int rmdir(const char *path)
{
	int (*next)(const char *) = (int (*)(const char *))dlsym(RTLD_NEXT, "rmdir");

	write(1, "seen\n", 5);
	return next(path);
}
