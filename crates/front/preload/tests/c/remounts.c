// Remounts the mount at its argument, and mounts something in it: what it then does with names and with
// open files is as the kernel would have it, at once. Needs root.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

// Of <sys/mount.h>, which older libcs cannot have beside <linux/mount.h>.
int mount(const char *, const char *, const char *, unsigned long, const void *);
int umount(const char *);
int mount_setattr(int, const char *, unsigned, struct mount_attr *, size_t);

static const char *dir;

// Whether the mount takes changes, through `file` and by names.
static void is_writable(int file, int yes) {
    if (yes) {
        CHECK(pwrite(file, "x", 1, 0) == 1);
        CHECK(mkdir("new", 0700) == 0 && rmdir("new") == 0);
    } else {
        FAILS(pwrite(file, "x", 1, 0), EROFS);
        FAILS(mkdir("new", 0700), EROFS);
        FAILS(open("file", O_WRONLY), EROFS);
    }
    CHECK(access("file", F_OK) == 0);
}

static void remount(unsigned long flags) {
    CHECK(mount(NULL, dir, NULL, MS_REMOUNT | MS_BIND | flags, NULL) == 0);
}

static void set_attributes(unsigned long set, unsigned long clear) {
    struct mount_attr attributes = {.attr_set = set, .attr_clr = clear};
    CHECK(mount_setattr(AT_FDCWD, dir, 0, &attributes, sizeof attributes) == 0);
}

static ino_t inode(const char *path) {
    struct stat st;
    CHECK(stat(path, &st) == 0);
    return st.st_ino;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    dir = argv[1];
    CHECK(chdir(dir) == 0);
    int file = open("file", O_RDWR | O_CREAT, 0600);
    CHECK(file >= 0);
    is_writable(file, 1);
    remount(MS_RDONLY);
    is_writable(file, 0);
    remount(0);
    is_writable(file, 1);
    set_attributes(MOUNT_ATTR_RDONLY, 0);
    is_writable(file, 0);
    set_attributes(0, MOUNT_ATTR_RDONLY);
    is_writable(file, 1);

    CHECK(mkdir("from", 0700) == 0 && mkdir("to", 0700) == 0 && mkdir("from/inside", 0700) == 0);
    ino_t from = inode("from"), to = inode("to");
    CHECK(mount("from", "to", NULL, MS_BIND, NULL) == 0);
    CHECK(inode("to") == from && inode("to/inside") == inode("from/inside"));
    FAILS(rmdir("to"), EBUSY);
    CHECK(umount("to") == 0);
    CHECK(inode("to") == to);
    CHECK(rmdir("to") == 0);
    return 0;
}
