// A file grows and is mapped, while others have the kernel open it: as SQLite's index of its log. Works in the
// directory at its argument.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

int main(int argc, char **argv) {
    CHECK(argc == 2 && chdir(argv[1]) == 0);
    alarm(120);
    pid_t others[2];
    int status;
    CHECK(close(open("grown", O_RDWR | O_CREAT, 0644)) == 0);
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        others[i] = fork();
        CHECK(others[i] >= 0);
        if (others[i] == 0) alarm(120);
        while (others[i] == 0) {
            int fd = open("grown", O_RDWR);
            struct flock asked = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
            CHECK(fcntl(fd, F_GETLK, &asked) == 0 && close(fd) == 0);
        }
    }
    for (int round = 0; round < 400; round++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            int fd = open("grown", O_RDWR | (round % 4 ? 0 : O_APPEND));
            CHECK(ftruncate(fd, 3) == 0);
            if (round % 4)
                for (int page = 1; page <= 8; page++) CHECK(pwrite(fd, "", 1, page * 4096 - 1) == 1);
            else
                for (int page = 0; page < 8; page++) CHECK(write(fd, (char[4096]){0}, 4096) == 4096);
            char *at = mmap(0, 8 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            CHECK(at != MAP_FAILED);
            // What lies beyond the size that the kernel knows is SIGBUS.
            for (int page = 0; page < 8; page++) at[page * 4096] = 1;
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    for (int i = 0; i < 2; i++)
        CHECK(kill(others[i], SIGKILL) == 0 && waitpid(others[i], &status, 0) == others[i]);
    CHECK(WIFSIGNALED(status) && unlink("grown") == 0);
    puts("400 rounds\ndone");
    return 0;
}
