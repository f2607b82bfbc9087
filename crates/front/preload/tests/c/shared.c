// Several processes share files: descriptors over fork, exec and full tables, locks, mappings, permissions that have
// changed since. Works in the directory at its argument; ends with a word on what is not as POSIX has it.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static const char *self;

static int created(const char *name, int flags, mode_t mode) {
    int fd = open(name, O_RDWR | O_CREAT | flags, mode);
    CHECK(fd >= 0);
    return fd;
}

// Runs `f` in a forked process, which must end well.
#define IN_CHILD(...) \
    do { \
        fflush(stdout); \
        pid_t child = fork(); \
        CHECK(child >= 0); \
        if (child == 0) { \
            __VA_ARGS__; \
            fflush(stdout); \
            _exit(0); \
        } \
        int status; \
        CHECK(waitpid(child, &status, 0) == child && status == 0); \
    } while (0)

static void set(int fd, int command, short type, off_t start, off_t len) {
    const struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
    CHECK(fcntl(fd, command, &lock) == 0);
}

// Whether another process could not lock the first byte.
static int is_locked(const char *name) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        int fd = open(name, O_RDWR);
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
        _exit(fd < 0 || fcntl(fd, F_GETLK, &lock) != 0 ? 2 : lock.l_type != F_UNLCK);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) < 2);
    return WEXITSTATUS(status);
}

// What makes the kernel have a description must not end the locks of another one.
static void locks(void) {
    int fd = created("locked", 0, 0644);
    CHECK(write(fd, "0123456789", 10) == 10);
    for (int kind = 0; kind < 8; kind++) {
        int other = created("locked", O_CLOEXEC, 0644);
        int path_only = open("locked", O_PATH);
        struct flock asked = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        int saved = dup(0);
        set(fd, F_SETLK, F_WRLCK, 0, 1);
        CHECK(is_locked("locked"));
        switch (kind) {
        case 0: CHECK(fcntl(other, F_GETLK, &asked) == 0 && asked.l_type == F_UNLCK); break;
        case 1: set(other, F_OFD_SETLK, F_RDLCK, 5, 1); break;
        case 2: CHECK(flock(other, LOCK_EX) == 0); break;
        case 3: {
            void *at = mmap(0, 4096, PROT_READ, MAP_SHARED, other, 0);
            CHECK(at != MAP_FAILED && memcmp(at, "0123456789", 10) == 0 && munmap(at, 4096) == 0);
            break;
        }
        case 4: CHECK(dup2(other, 0) == 0); break;
        case 5: CHECK(close(path_only) == 0); path_only = open("locked", O_PATH); break;
        case 6: CHECK(fork() == 0 ? (_exit(0), 0) : wait(NULL) > 0); break;
        case 7: CHECK(posix_fadvise(other, 0, 0, POSIX_FADV_DONTNEED) == 0); break;
        }
        printf("locks %d: %d\n", kind, is_locked("locked"));
        CHECK(is_locked("locked"));
        // Closing any of them ends all.
        CHECK(dup2(saved, 0) == 0 && close(saved) == 0);
        CHECK(close(path_only) == 0 && close(other) == 0);
        CHECK(!is_locked("locked"));
    }
    // A stream's end counts, too.
    set(fd, F_SETLK, F_WRLCK, 0, 1);
    FILE *stream = fdopen(created("locked", 0, 0644), "r");
    CHECK(stream && is_locked("locked") && fclose(stream) == 0 && !is_locked("locked"));
    // Locks stay over exec, with the descriptor.
    IN_CHILD({
        set(fd, F_SETLK, F_WRLCK, 0, 1);
        char number[16];
        snprintf(number, sizeof number, "%d", fd);
        execl(self, "shared", "--locked", number, NULL);
    });
    // Descriptors come and go as those of SQLite's connections.
    for (int i = 0; i < 300; i++) {
        int other = created("locked", O_CLOEXEC, 0644);
        set(other, F_SETLK, F_WRLCK, 0, 1);
        void *at = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, other, 0);
        CHECK(at != MAP_FAILED && munmap(at, 4096) == 0 && close(other) == 0);
    }
    int next = dup(0);
    printf("after 300 connections: %d\n", next - fd);
    CHECK(close(next) == 0 && close(fd) == 0);
}

static void flocks(void) {
    // More than half of the numbers, each with a lock of its own.
    struct rlimit limit, few = {.rlim_cur = 256, .rlim_max = 256};
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    few.rlim_max = limit.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    int first = -1, count = 0;
    for (; count < 200; count++) {
        char name[32];
        snprintf(name, sizeof name, "flock-%d", count);
        int fd = created(name, 0, 0644);
        CHECK(flock(fd, LOCK_EX | LOCK_NB) == 0);
        if (first < 0) first = fd;
    }
    printf("%d locks\n", count);
    for (; count > 0; count--) {
        char name[32];
        snprintf(name, sizeof name, "flock-%d", count - 1);
        CHECK(close(first + count - 1) == 0 && unlink(name) == 0);
    }
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

// A descriptor is a capability: what was allowed when it was opened stays so.
static void capabilities(void) {
    mode_t mask = umask(0377);
    int source = created("read-only", 0, 0444);
    umask(mask);
    int removed = created("removed", 0, 0600), out = created("out", 0, 0600);
    CHECK(unlink("removed") == 0);
    CHECK(write(source, "some content", 12) == 12);
    CHECK(chmod(".", 0777) == 0 && chmod("out", 0000) == 0);
    IN_CHILD({
        CHECK(setgid(65534) == 0 && setuid(65534) == 0);
        FAILS(open("read-only", O_RDWR), EACCES);
        int fds[] = {source, removed, out};
        for (int i = 0; i < 3; i++) {
            int fd = fds[i];
            CHECK(flock(fd, LOCK_EX) == 0 && flock(fd, LOCK_UN) == 0);
            set(fd, F_SETLK, F_WRLCK, 0, 1);
            CHECK(pwrite(fd, "S", 1, 0) == 1);
            char *at = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            CHECK(at != MAP_FAILED && at[0] == 'S');
            at[0] = 's';
            CHECK(msync(at, 4096, MS_SYNC) == 0 && munmap(at, 4096) == 0);
            char byte;
            CHECK(pread(fd, &byte, 1, 0) == 1 && byte == 's');
            CHECK(dup2(fd, 0) == 0 && read(0, &byte, 1) >= 0);
        }
        CHECK(lseek(source, 0, SEEK_SET) == 0 && lseek(out, 0, SEEK_SET) == 0);
        CHECK(copy_file_range(source, NULL, out, NULL, 12, 0) == 12);
        off_t at = 0;
        CHECK(sendfile(out, source, &at, 12) == 12);
    });
    char buf[32];
    CHECK(pread(out, buf, sizeof buf, 0) == 24 && memcmp(buf, "some contentsome content", 24) == 0);
    CHECK(close(source) == 0 && close(removed) == 0 && close(out) == 0);
    CHECK(unlink("read-only") == 0 && unlink("out") == 0);
    puts("capabilities");
}

// One process maps, the other calls.
static void mappings(void) {
    int fd = created("mapped", 0, 0644), there[2], back[2];
    char byte;
    CHECK(ftruncate(fd, 8192) == 0 && pipe(there) == 0 && pipe(back) == 0);
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int own = open("mapped", O_RDWR);
        // What the other maps is seen, what is written is seen there.
        for (int i = 0; i < 20; i++) {
            CHECK(read(there[0], &byte, 1) == 1);
            CHECK(pread(own, &byte, 1, 100 + i) == 1 && byte == 'a' + i);
            byte = 'A' + i;
            CHECK(pwrite(own, &byte, 1, 200 + i) == 1);
            CHECK(i % 5 || fsync(own) == 0);
            CHECK(write(back[1], "x", 1) == 1);
        }
        CHECK(read(there[0], &byte, 1) == 1);
        _exit(0);
    }
    char *at = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED && at[0] == 0);
    for (int i = 0; i < 20; i++) {
        at[100 + i] = 'a' + i;
        CHECK(write(there[1], "x", 1) == 1 && read(back[0], &byte, 1) == 1);
        CHECK(at[200 + i] == 'A' + i);
    }
    // A store and the end of the mapping take nothing back.
    at[0] = 'z';
    CHECK(munmap(at, 8192) == 0 && write(there[1], "x", 1) == 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    char buf[256];
    CHECK(pread(fd, buf, 256, 0) == 256 && buf[0] == 'z' && buf[219] == 'A' + 19);
    // Mapped again after others have written beside it.
    CHECK(pwrite(fd, "new", 3, 4096) == 3);
    at = mmap(0, 8192, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED && memcmp(at + 4096, "new", 3) == 0 && munmap(at, 8192) == 0);
    for (int i = 0; i < 2; i++) CHECK(close(there[i]) == 0 && close(back[i]) == 0);
    CHECK(close(fd) == 0 && unlink("mapped") == 0);
    puts("mappings");
}

// A full table of descriptors at fork, and a parent that ends before its child.
static void full_table(void) {
    struct rlimit limit, few;
    int report[2], go[2];
    CHECK(pipe(report) == 0 && pipe(go) == 0);
    IN_CHILD({
        CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
        few = limit;
        few.rlim_cur = 64;
        CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
        int fd = created("own", 0, 0644);
        CHECK(write(fd, "own", 3) == 3);
        while (dup(0) >= 0) {}
        pid_t parent = getpid();
        if (fork() == 0) {
            // Until the parent has ended, and strangers have come.
            while (getppid() == parent) usleep(1000);
            char buf[8] = "";
            CHECK(read(go[0], buf, 1) == 1);
            ssize_t got = pread(fd, buf, 8, 0);
            int well = got == 3 && memcmp(buf, "own", 3) == 0 && pwrite(fd, "OWN", 3, 0) == 3;
            CHECK(write(report[1], well ? "w" : "-", 1) == 1);
            _exit(0);
        }
    });
    for (int i = 0; i < 50; i++) {
        int fd = created("stranger", 0, 0644);
        CHECK(write(fd, "stranger", 8) == 8 && close(fd) == 0 && unlink("stranger") == 0);
        usleep(1000);
    }
    CHECK(write(go[1], "!", 1) == 1);
    char well;
    CHECK(read(report[0], &well, 1) == 1 && well == 'w');
    CHECK(close(report[0]) == 0 && close(report[1]) == 0);
    CHECK(close(go[0]) == 0 && close(go[1]) == 0);
    int fd = open("own", O_RDONLY);
    char buf[8];
    CHECK(read(fd, buf, 8) == 3 && memcmp(buf, "OWN", 3) == 0);
    CHECK(close(fd) == 0 && unlink("own") == 0);
    puts("full table");
}

// Offsets that several programs share by what they have inherited.
static void offsets(void) {
    int fd = created("log", O_TRUNC, 0644);
    for (int i = 0; i < 4; i++) {
        fflush(stdout);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            char number[16];
            snprintf(number, sizeof number, "%d", fd);
            if (i % 2) execl(self, "shared", "--log", number, NULL);
            for (int k = 0; k < 200; k++) CHECK(write(fd, "0123456789abcde\n", 16) == 16);
            _exit(0);
        }
    }
    for (int k = 0; k < 200; k++) CHECK(write(fd, "0123456789abcde\n", 16) == 16);
    int status;
    while (wait(&status) > 0) CHECK(status == 0);
    struct stat st;
    CHECK(fstat(fd, &st) == 0);
    printf("log: %ld bytes, at %ld\n", (long)st.st_size, (long)lseek(fd, 0, SEEK_CUR));
    char line[16];
    for (off_t at = 0; at < st.st_size; at += 16)
        CHECK(pread(fd, line, 16, at) == 16 && memcmp(line, "0123456789abcde\n", 16) == 0);
    CHECK(close(fd) == 0 && unlink("log") == 0);
}

// Standard output in a file, by libc's stream and by calls; streams that libc replaces.
static void streams(void) {
    IN_CHILD({
        CHECK(freopen("stream", "w", stdout) != NULL);
        printf("one\n");
        fflush(stdout);
        CHECK(write(1, "two\n", 4) == 4);
        CHECK(freopen("other", "w", stdout) != NULL);
        printf("three\n");
        fflush(stdout);
        CHECK(write(1, "four\n", 5) == 5);
        CHECK(fclose(stdout) == 0);
        int pair[2];
        CHECK(pipe(pair) == 0 && write(pair[1], "p", 1) == 1);
        char byte;
        CHECK(read(pair[0], &byte, 1) == 1 && byte == 'p');
    });
    // The end of this pipe says that the daemon has ended, too.
    int ended[2];
    CHECK(pipe(ended) == 0);
    IN_CHILD({
        int fd = created("dup", O_TRUNC, 0644);
        CHECK(dup2(fd, 1) == 1 && close(fd) == 0);
        CHECK(write(1, "five\n", 5) == 5);
        printf("six\n");
        fflush(stdout);
        CHECK(system("echo seven") == 0);
        CHECK(write(1, "eight\n", 6) == 6);
        CHECK(daemon(1, 0) == 0);
        CHECK(write(1, "lost\n", 5) == 5);
    });
    char none;
    CHECK(close(ended[1]) == 0 && read(ended[0], &none, 1) == 0 && close(ended[0]) == 0);
    const char *names[] = {"stream", "other", "dup"};
    for (int i = 0; i < 3; i++) {
        char buf[64] = "";
        int fd = open(names[i], O_RDONLY);
        CHECK(fd >= 0 && read(fd, buf, 63) > 0 && close(fd) == 0 && unlink(names[i]) == 0);
        printf("%s: %s", names[i], buf);
    }
}

static int closes_everything(void *by) {
    switch ((long)by) {
    case 0: return close_range(3, ~0u, 0) != 0;
    case 1: return syscall(SYS_close_range, 3, ~0u, 0) != 0;
    default:
        for (int fd = 3; fd < 2048; fd++)
            close(fd);
        return 0;
    }
}

// A child with this process's descriptors, and its memory or a copy of that: how it is made, and how it closes them
// all.
static pid_t sharing_child(int how) {
    static char stack[1 << 18] __attribute__((aligned(16)));
    struct clone_args args = {.flags = CLONE_FILES, .exit_signal = SIGCHLD};
    void *by = (void *)(long)(how % 3);
    pid_t child;
    switch (how / 3) {
    case 0: return clone(closes_everything, stack + sizeof(stack), CLONE_FILES | SIGCHLD, by);
    case 1: return clone(closes_everything, stack + sizeof(stack), CLONE_FILES | CLONE_VM | CLONE_VFORK | SIGCHLD, by);
    case 2: child = syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0); break;
    default: child = syscall(SYS_clone3, &args, sizeof(args));
    }
    if (child == 0)
        _exit(closes_everything(by));
    return child;
}

// What such a child closes is closed here, and the numbers are free; all else works as before.
static void shared_table(int how) {
    int status, ends[2], fds[900];
    char read_back[8];
    int fd = created("table", 0, 0644), locked = created("locked", 0, 0644);
    CHECK(write(fd, "before", 6) == 6 && chdir(".") == 0);
    set(locked, F_SETLK, F_WRLCK, 0, 1);
    pid_t child = sharing_child(how);
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    FAILS(write(fd, "after", 5), EBADF);
    FAILS(lseek(fd, 0, SEEK_SET), EBADF);
    FAILS(fcntl(locked, F_GETFD), EBADF);
    FAILS(close(locked), EBADF);
    CHECK(pipe(ends) == 0 && ends[0] == 3 && ends[1] == 4);
    CHECK(write(ends[1], "pipe", 5) == 5 && read(ends[0], read_back, 8) == 5 && !strcmp(read_back, "pipe"));
    // Every number that the program gets is its own.
    for (int i = 0; i < 900; i++)
        CHECK((fds[i] = dup(ends[0])) >= 0);
    for (int i = 0; i < 900; i++)
        CHECK(fcntl(fds[i], F_GETFD) == 0 && close(fds[i]) == 0);
    fd = open("table", O_RDWR);
    CHECK(fd == 5 && read(fd, read_back, 8) == 6 && !memcmp(read_back, "before", 6));
    set(fd, F_SETLK, F_WRLCK, 0, 1);
    CHECK(is_locked("table") && unlink("table") == 0);
    void *at = mmap(0, 4096, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED && !memcmp(at, "before", 6));
    CHECK(close_range(3, ~0u, 0) == 0);
    FAILS(close(fd), EBADF);
    // A child of its own table changes nothing here.
    fd = created("own", 0, 0644);
    IN_CHILD(CHECK(close_range(3, ~0u, 0) == 0));
    CHECK(write(fd, "x", 1) == 1 && close(fd) == 0);
}

int main(int argc, char **argv) {
    self = realpath(argv[0], NULL);
    if (argc == 3 && !strcmp(argv[1], "--locked")) {
        CHECK(fcntl(atoi(argv[2]), F_GETFD) >= 0);
        CHECK(is_locked("locked"));
        return 0;
    }
    if (argc == 3 && !strcmp(argv[1], "--log")) {
        for (int k = 0; k < 200; k++)
            CHECK(write(atoi(argv[2]), "0123456789abcde\n", 16) == 16);
        return 0;
    }
    CHECK(argc == 2 && chdir(argv[1]) == 0);
    alarm(120);
    full_table();
    locks();
    flocks();
    capabilities();
    mappings();
    offsets();
    streams();
    for (int how = 0; how < 12; how++)
        IN_CHILD(shared_table(how));
    puts("done");
    return 0;
}
