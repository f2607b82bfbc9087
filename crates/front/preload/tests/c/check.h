// A program that ends with a word on the first of its expectations that is wrong.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(what) \
    do { \
        if (!(what)) { \
            printf("line %d: %s (errno %d)\n", __LINE__, #what, errno); \
            exit(1); \
        } \
    } while (0)
#define FAILS(what, with) CHECK((what) == -1 && errno == (with))
