// A file that its owner maps and stores to, and another user, in a process of its own, who may read it, or no longer, or
// not at all. Runs as root, in the directory at its argument; prints what it sees; ends with "done".
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <grp.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define LEN (20 * PAGE + 100)
#define BOTH (PROT_READ | PROT_WRITE)
#define NOBODY 65534
// Where each stores next, so that the other knows what to look for.
#define AT(step) ((step) * PAGE + 10)

static char name[4096];
static const char *dir;
// To the other process, and from it.
static int to, from;

static const char *in_dir(const char *base) {
    snprintf(name, sizeof name, "%s/%s", dir, base);
    return name;
}

// The other may go on; then waits for it.
static void other_goes_on(void) {
    char byte = 'x';
    CHECK(write(to, &byte, 1) == 1 && read(from, &byte, 1) == 1);
}

// What the kernel lets this process do at an address: "r--s" and the like.
static void permissions_at(const void *at, char permissions[5]) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[8192];
    strcpy(permissions, "none");
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        char found[5];
        CHECK(sscanf(line, "%lx-%lx %4s", &start, &end, found) == 3);
        if (start <= (unsigned long)at && (unsigned long)at < end) strcpy(permissions, found);
    }
    CHECK(maps && fclose(maps) == 0);
}

static void made(const char *base, char fill, size_t len, mode_t mode) {
    char page[PAGE];
    memset(page, fill, PAGE);
    int fd = open(in_dir(base), O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (size_t at = 0; at < len; at += PAGE)
        CHECK(pwrite(fd, page, len - at < PAGE ? len - at : PAGE, at) > 0);
    CHECK(fchmod(fd, mode) == 0 && close(fd) == 0);
}

static void *mapped_or_not(int fd, size_t len, int prot, int flags) {
    return mmap(NULL, len, prot, flags, fd, 0);
}

// The other user: may read "open", until its owner takes that away, and "closed" never.
static void reader(void) {
    char byte, got[8], permissions[5];
    CHECK(read(from, &byte, 1) == 1);
    FAILS(open(in_dir("closed"), O_RDONLY), EACCES);
    FAILS(open(in_dir("closed"), O_WRONLY), EACCES);
    FAILS(open(in_dir("open"), O_RDWR), EACCES);
    FAILS(open(in_dir("open"), O_WRONLY), EACCES);
    FAILS(truncate(in_dir("open"), 0), EACCES);
    FAILS(chmod(in_dir("open"), 0666), EPERM);
    int fd = open(in_dir("open"), O_RDONLY);
    CHECK(fd >= 0);
    CHECK(mapped_or_not(fd, LEN, BOTH, MAP_SHARED) == MAP_FAILED && errno == EACCES);
    CHECK(mapped_or_not(fd, LEN, PROT_WRITE, MAP_SHARED) == MAP_FAILED && errno == EACCES);

    char *seen = mapped_or_not(fd, LEN, PROT_READ, MAP_SHARED);
    CHECK(seen != MAP_FAILED && memcmp(seen + AT(1), "stored", 6) == 0);
    CHECK(pread(fd, got, 6, AT(1)) == 6 && memcmp(got, "stored", 6) == 0);
    FAILS(mprotect(seen, LEN, BOTH), EACCES);
    FAILS(mprotect(seen + PAGE, PAGE, PROT_WRITE), EACCES);
    permissions_at(seen, permissions);
    printf("a reader's mapping: %s\n", permissions);
    // Behind the end there is nobody's content.
    for (size_t at = LEN; at % PAGE; at++) CHECK(seen[at] == 0);
    // What is private does not reach the owner.
    char *own = mapped_or_not(fd, LEN, BOTH, MAP_PRIVATE);
    CHECK(own != MAP_FAILED && memcmp(own + AT(1), "stored", 6) == 0);
    memcpy(own + AT(1), "forged", 6);
    CHECK(memcmp(seen + AT(1), "stored", 6) == 0);
    other_goes_on();

    // The owner has stored more.
    CHECK(memcmp(seen + AT(2), "later", 5) == 0 && memcmp(own + AT(1), "forged", 6) == 0);
    puts("stores are seen");
    other_goes_on();

    // The owner has taken the permission away: what was opened and mapped before stays.
    FAILS(open(in_dir("open"), O_RDONLY), EACCES);
    CHECK(memcmp(seen + AT(3), "hidden", 6) == 0);
    CHECK(pread(fd, got, 6, AT(3)) == 6 && memcmp(got, "hidden", 6) == 0);
    char *again = mapped_or_not(fd, LEN, PROT_READ, MAP_SHARED);
    CHECK(again != MAP_FAILED && memcmp(again + AT(3), "hidden", 6) == 0);
    CHECK(munmap(seen, LEN) == 0 && munmap(own, LEN) == 0);
    puts("a mapping outlives a permission");
    other_goes_on();

    // The owner has removed the file and made others.
    CHECK(memcmp(again + AT(3), "hidden", 6) == 0);
    for (size_t at = 0; at < LEN; at++) CHECK(again[at] != 's');
    CHECK(munmap(again, LEN) == 0 && close(fd) == 0);
    puts("what is removed stays while it is mapped");
    CHECK(write(to, &byte, 1) == 1);
}

// The owner, whose other process has begun.
static void owner(void) {
    made("before", 's', LEN, 0600);
    made("closed", 's', LEN, 0600);
    made("open", 'a', LEN, 0644);
    made("behind", 's', LEN, 0600);
    int fd = open(in_dir("open"), O_RDWR);
    char *mapped = mapped_or_not(fd, LEN, BOTH, MAP_SHARED);
    CHECK(fd >= 0 && mapped != MAP_FAILED);
    memcpy(mapped + AT(1), "stored", 6);
    other_goes_on();

    CHECK(memcmp(mapped + AT(1), "stored", 6) == 0);
    memcpy(mapped + AT(2), "later", 5);
    other_goes_on();

    CHECK(chmod(in_dir("open"), 0600) == 0);
    memcpy(mapped + AT(3), "hidden", 6);
    other_goes_on();

    memset(mapped + AT(1), 'a', 6);
    CHECK(unlink(in_dir("open")) == 0 && munmap(mapped, LEN) == 0 && close(fd) == 0);
    for (int i = 0; i < 20; i++) {
        char base[32];
        snprintf(base, sizeof base, "new-%d", i);
        made(base, 's', LEN, 0600);
    }
    other_goes_on();
}

int main(int argc, char **argv) {
    CHECK(argc == 2 || argc == 4);
    dir = argv[1];
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 4) {
        from = atoi(argv[2]), to = atoi(argv[3]);
        reader();
        return 0;
    }
    int there[2], back[2], status;
    CHECK(chmod(dir, 0755) == 0 && pipe(there) == 0 && pipe(back) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char in[16], out[16];
        snprintf(in, sizeof in, "%d", there[0]);
        snprintf(out, sizeof out, "%d", back[1]);
        CHECK(close(there[1]) == 0 && close(back[0]) == 0);
        CHECK(setgroups(0, NULL) == 0 && setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
        execl("/proc/self/exe", argv[0], dir, in, out, (char *)NULL);
        CHECK(!"executed");
    }
    CHECK(close(there[0]) == 0 && close(back[1]) == 0);
    to = there[1], from = back[0];
    owner();
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    puts("done");
}
