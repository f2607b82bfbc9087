// Mappings of files, by calls and by addresses, from one process and from several. With one argument, in that directory: prints
// what differs from what it should be; ends with "done".
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define BOTH (PROT_READ | PROT_WRITE)

static char name[4096];
static const char *dir;

static const char *in_dir(const char *base) {
    snprintf(name, sizeof name, "%s/%s", dir, base);
    return name;
}

static int file(const char *base, size_t len, int flags) {
    int made = open(in_dir(base), O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(made >= 0);
    char page[PAGE];
    memset(page, 'a', PAGE);
    for (size_t at = 0; at < len; at += PAGE)
        CHECK(pwrite(made, page, len - at < PAGE ? len - at : PAGE, at) > 0);
    CHECK(close(made) == 0);
    int fd = open(in_dir(base), flags);
    CHECK(fd >= 0);
    return fd;
}

static char *map(int fd, size_t len, int prot, int flags, off_t at) {
    char *mapped = mmap(NULL, len, prot, flags, fd, at);
    CHECK(mapped != MAP_FAILED);
    return mapped;
}

static int ends(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

static void shared(void) {
    int fd = file("shared", 3 * PAGE + 100, O_RDWR);
    char *m = map(fd, 3 * PAGE + 100, BOTH, MAP_SHARED, 0), got[16];
    char *second = map(fd, PAGE, PROT_READ, MAP_SHARED, PAGE);
    CHECK(m[0] == 'a' && m[3 * PAGE + 99] == 'a' && m[3 * PAGE + 100] == 0);
    memcpy(m + PAGE + 10, "stored", 6);
    CHECK(pread(fd, got, 6, PAGE + 10) == 6 && memcmp(got, "stored", 6) == 0);
    CHECK(memcmp(second + 10, "stored", 6) == 0);
    CHECK(pwrite(fd, "written", 7, 2 * PAGE) == 7 && memcmp(m + 2 * PAGE, "written", 7) == 0);
    CHECK(msync(m, 3 * PAGE + 100, MS_SYNC) == 0 && msync(m + PAGE, PAGE, MS_ASYNC) == 0);
    FAILS(msync(m, PAGE, MS_SYNC | MS_ASYNC), EINVAL);
    FAILS(msync(m + 1, PAGE, MS_SYNC), EINVAL);
    CHECK(fsync(fd) == 0);
    // It is mapped whatever becomes of the descriptor and the name.
    CHECK(close(fd) == 0 && unlink(in_dir("shared")) == 0);
    m[5] = 'z';
    CHECK(m[5] == 'z' && second[10] == 's');
    // In parts: the middle first.
    CHECK(munmap(m + PAGE, PAGE) == 0 && m[0] == 'a' && m[2 * PAGE] == 'w');
    FAILS(msync(m, 3 * PAGE, MS_SYNC), ENOMEM);
    CHECK(munmap(m, 4 * PAGE) == 0 && munmap(second, PAGE) == 0);
}

static void kinds(void) {
    int fd = file("kinds", 256 * PAGE, O_RDWR), reads = open(in_dir("kinds"), O_RDONLY);
    char got[1];
    // What a private mapping changes is its own.
    char *own = map(fd, 256 * PAGE, BOTH, MAP_PRIVATE, 0);
    own[7] = 'p';
    CHECK(pread(fd, got, 1, 7) == 1 && got[0] == 'a' && own[8] == 'a');
    CHECK(mmap(NULL, PAGE, BOTH, MAP_SHARED, reads, 0) == MAP_FAILED && errno == EACCES);
    CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 1) == MAP_FAILED && errno == EINVAL);
    CHECK(mmap(NULL, 0, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EINVAL);
    int writes = open(in_dir("kinds"), O_WRONLY);
    CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, writes, 0) == MAP_FAILED && errno == EACCES);
    CHECK(close(writes) == 0);
    // What may be stored to later, the descriptor says.
    char *later = map(fd, 2 * PAGE, PROT_READ, MAP_SHARED, 0);
    CHECK(mprotect(later, PAGE, BOTH) == 0);
    later[9] = 'l';
    CHECK(pread(fd, got, 1, 9) == 1 && got[0] == 'l');
    char *never = map(reads, PAGE, PROT_READ, MAP_SHARED, 0);
    CHECK(never[9] == 'l');
    FAILS(mprotect(never, PAGE, BOTH), EACCES);
    char *none = map(fd, PAGE, PROT_NONE, MAP_SHARED, 0);
    CHECK(mprotect(none, PAGE, PROT_READ) == 0 && none[9] == 'l');
    // Another in its place, of the file and of nothing.
    char *fixed = mmap(later + PAGE, PAGE, BOTH, MAP_SHARED | MAP_FIXED, fd, 10 * PAGE);
    CHECK(fixed == later + PAGE);
    fixed[0] = 'f';
    CHECK(pread(fd, got, 1, 10 * PAGE) == 1 && got[0] == 'f' && later[0] == 'a');
    CHECK(mmap(later, PAGE, BOTH, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == later);
    CHECK(later[9] == 0 && fixed[0] == 'f');
    CHECK(mmap(fixed, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0) == MAP_FAILED && errno == EEXIST);
    CHECK(syscall(SYS_munmap, later, 2 * PAGE) == 0);
    CHECK(munmap(never, PAGE) == 0 && munmap(none, PAGE) == 0 && munmap(own, 256 * PAGE) == 0);
    CHECK(close(fd) == 0 && close(reads) == 0);
}

static void sizes(void) {
    int fd = file("sizes", 8 * PAGE, O_RDWR);
    char *m = map(fd, 8 * PAGE, BOTH, MAP_SHARED, 0), page[PAGE], got[2 * PAGE];
    // It grows and is cut while it is mapped.
    memset(page, 'n', PAGE);
    for (int i = 0; i < 600; i++)
        CHECK(pwrite(fd, page, PAGE, (8 + i) * PAGE) == PAGE);
    m[3] = '3';
    CHECK(pread(fd, got, 4, 0) == 4 && got[3] == '3');
    CHECK(ftruncate(fd, PAGE + 10) == 0 && m[PAGE + 9] == 'a' && m[PAGE + 10] == 0);
    CHECK(ftruncate(fd, 8 * PAGE) == 0 && m[PAGE + 10] == 0 && m[7 * PAGE] == 0);
    m[7 * PAGE] = '7';
    CHECK(pread(fd, got, 1, 7 * PAGE) == 1 && got[0] == '7');
    CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 7 * PAGE, PAGE) == 0);
    CHECK(m[7 * PAGE] == 0);
    // Longer, where it is or elsewhere; and shorter.
    CHECK(ftruncate(fd, 4 << 20) == 0);
    char *longer = mremap(m, 8 * PAGE, 4 << 20, MREMAP_MAYMOVE);
    CHECK(longer != MAP_FAILED && longer[3] == '3');
    longer[(4 << 20) - 1] = 'e';
    CHECK(pread(fd, got, 1, (4 << 20) - 1) == 1 && got[0] == 'e');
    CHECK(mremap(longer, 4 << 20, PAGE, 0) == longer && longer[3] == '3');
    CHECK(msync(longer, PAGE, MS_SYNC) == 0);
    CHECK(munmap(longer, PAGE) == 0 && close(fd) == 0);
}

static void processes(void) {
    int fd = file("processes", 300 * PAGE, O_RDWR), go[2];
    volatile char *m = map(fd, 300 * PAGE, BOTH, MAP_SHARED, 0);
    CHECK(pipe(go) == 0);
    pid_t child = fork();
    if (child == 0) {
        // It has inherited the mapping, which its parent gives up now.
        CHECK(read(go[0], name, 1) == 1 && m[1] == 'p');
        m[2] = 'c';
        CHECK(munmap((char *)m, 300 * PAGE) == 0);
        _exit(7);
    }
    m[1] = 'p';
    volatile char *other = map(fd, PAGE, PROT_READ, MAP_SHARED, 0);
    CHECK(munmap((char *)m, 300 * PAGE) == 0 && write(go[1], "g", 1) == 1);
    CHECK(ends(child) == 7 << 8 && other[2] == 'c');
    // One that is killed; then somebody else makes durable what it has stored.
    child = fork();
    if (child == 0) {
        m = map(fd, 300 * PAGE, BOTH, MAP_SHARED, 0);
        for (int i = 0; i < 300; i++)
            m[i * PAGE + 100] = 'k';
        CHECK(write(go[1], "k", 1) == 1);
        pause();
    }
    CHECK(read(go[0], name, 1) == 1 && kill(child, SIGKILL) == 0);
    CHECK(ends(child) == SIGKILL && fsync(fd) == 0);
    char got[1];
    CHECK(other[100] == 'k' && pread(fd, got, 1, 299 * PAGE + 100) == 1 && got[0] == 'k');
    CHECK(munmap((char *)other, PAGE) == 0);
    // What a new program finds is none of the old one's.
    child = fork();
    if (child == 0) {
        m = map(fd, 300 * PAGE, BOTH, MAP_SHARED, 0);
        m[50] = 'x';
        execlp("true", "true", NULL);
        _exit(1);
    }
    CHECK(ends(child) == 0 && pread(fd, got, 1, 50) == 1 && got[0] == 'x');
    CHECK(ftruncate(fd, 0) == 0 && close(fd) == 0 && unlink(in_dir("processes")) == 0);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IONBF, 0);
    dir = argv[1];
    alarm(100);
    shared();
    kinds();
    sizes();
    processes();
    printf("mapped\n\ndone\n");
    return 0;
}
