// Works in the mount `mnt` of the directory at its argument, by relative paths from outside, from inside and
// from there again, in a forked child, too; ROUNDS times the same few calls from each place.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { ROUNDS = 100 };

// The mount by a path from here; what is there is what the kernel finds by an absolute path.
static void works_by(const char *mount, const char *absolute) {
    char file[4096], other[4096], there[4096], buf[8];
    snprintf(file, sizeof file, "%s/dir/file", mount);
    snprintf(other, sizeof other, "%s//./dir/../other", mount);
    snprintf(there, sizeof there, "%s/other", absolute);
    struct stat st;
    for (int i = 0; i < ROUNDS; i++) {
        int fd = open(file, O_RDWR | O_CREAT | O_EXCL, 0640);
        CHECK(fd >= 0 && write(fd, "content", 7) == 7);
        CHECK(stat(file, &st) == 0 && st.st_size == 7);
        ino_t ino = st.st_ino;
        CHECK(rename(file, other) == 0);
        FAILS(stat(file, &st), ENOENT);
        CHECK(stat(there, &st) == 0 && st.st_ino == ino);
        CHECK(pread(fd, buf, sizeof buf, 0) == 7 && close(fd) == 0);
        CHECK(unlink(other) == 0);
    }
}

static void enter(const char *path, const char *expected) {
    char cwd[4096];
    CHECK(chdir(path) == 0);
    CHECK(getcwd(cwd, sizeof cwd) != NULL && strcmp(cwd, expected) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    const char *home = argv[1];
    char mount[4096], sub[4096];
    struct stat st;
    snprintf(mount, sizeof mount, "%s/mnt", home);
    snprintf(sub, sizeof sub, "%s/sub", home);
    enter(home, home);
    CHECK(mkdir("sub", 0755) == 0 && mkdir("mnt/dir", 0755) == 0);
    works_by("mnt", mount);
    enter("sub", sub);
    FAILS(stat("mnt/dir", &st), ENOENT);
    works_by("../mnt", mount);
    enter("../mnt", mount);
    works_by(".", mount);
    enter("..", home);
    works_by("mnt", mount);

    pid_t child = fork();
    if (child == 0) {
        works_by("mnt", mount);
        enter("sub", sub);
        works_by("../mnt", mount);
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    works_by("mnt", mount);

    // The working directory is removed; the way up from there is not.
    enter("sub", sub);
    CHECK(rmdir(sub) == 0);
    CHECK(stat("../mnt/dir", &st) == 0);
    FAILS(stat("mnt/dir", &st), ENOENT);
    int fd = open("../mnt", O_RDONLY | O_DIRECTORY);
    CHECK(fd >= 0 && fchdir(fd) == 0 && stat("dir", &st) == 0);
    enter("/", "/");
    FAILS(stat("mnt/dir", &st), ENOENT);
    CHECK(stat(mount + 1, &st) == 0);

    // A place where the user may be, but not look around.
    enter(home, home);
    CHECK(mkdir("closed", 0755) == 0 && chmod("mnt/dir", 0755) == 0);
    if ((child = fork()) == 0) {
        CHECK(chdir("closed") == 0 && stat("../mnt/dir", &st) == 0);
        CHECK(chmod(".", 0) == 0 && seteuid(12345) == 0);
        FAILS(stat("../mnt/dir", &st), EACCES);
        CHECK(stat(mount, &st) == 0);
        CHECK(seteuid(0) == 0 && stat("../mnt/dir", &st) == 0);
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(rmdir("closed") == 0 && rmdir("mnt/dir") == 0);
    return 0;
}
