// Has a file of a pool open, truncates the pool (its first argument), and says what calls give then.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char buffer[1 << 20];

static void say(const char *what, long result) {
    printf("%s: %s\n", what, result < 0 ? strerrorname_np(errno) : "fine");
}

int main(int argc, char **argv) {
    struct stat stat;
    int near = open("near", O_RDWR), far = open("far", O_RDONLY);
    if (argc < 2 || near < 0 || far < 0 || pread(far, buffer, 1, 0) != 1) return 1;
    if (truncate(argv[1], 20 << 20) != 0) return 2;
    say("far", pread(far, buffer, sizeof buffer, 90 << 20));
    say("near", pread(near, buffer, 1000, 0));
    say("size", fstat(far, &stat));
    say("write", pwrite(near, buffer, 1000, 0));
    say("create", open("new", O_CREAT | O_WRONLY, 0644));
    return 0;
}
