/* Berkeley DB as in Chell §3.3: a btree with a log, 35 % reads and 65 % writes of some 500 bytes at random,
 * one thread, and a cache much smaller than the database.
 *
 *     btree DIR OPERATIONS          prints seconds: elapsed, of them in the kernel
 */
#include <db.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define RECORDS 200000u

static unsigned long state = 42;

static unsigned next(unsigned n) {
    state = state * 6364136223846793005ul + 1442695040888963407ul;
    return (unsigned)((state >> 33) % n);
}

static void check(int err, const char *what) {
    if (err != 0) {
        fprintf(stderr, "%s: %s\n", what, db_strerror(err));
        exit(1);
    }
}

static void operate(DB *db, int writes) {
    char bytes[600] = {0};
    unsigned id = next(RECORDS);
    DBT key = {.data = &id, .size = sizeof id};
    DBT value = {.data = bytes, .size = 350 + next(200), .ulen = sizeof bytes, .flags = DB_DBT_USERMEM};
    if (writes) {
        memset(bytes, (int)id, sizeof bytes);
        check(db->put(db, NULL, &key, &value, 0), "put");
    } else {
        int err = db->get(db, NULL, &key, &value, 0);
        check(err == DB_NOTFOUND ? 0 : err, "get");
    }
}

static double seconds(struct timeval t) { return (double)t.tv_sec + (double)t.tv_usec / 1e6; }

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    DB_ENV *env;
    DB *db;
    check(db_env_create(&env, 0), "env");
    check(env->set_cachesize(env, 0, 4 << 20, 1), "cache");
    check(env->set_lg_max(env, 10 << 20), "log");
    check(env->log_set_config(env, DB_LOG_AUTO_REMOVE, 1), "log");
    check(env->set_flags(env, DB_TXN_WRITE_NOSYNC, 1), "flags");
    check(env->open(env, argv[1],
                    DB_CREATE | DB_PRIVATE | DB_INIT_MPOOL | DB_INIT_LOG | DB_INIT_TXN | DB_INIT_LOCK, 0644),
          "open env");
    check(db_create(&db, env, 0), "db");
    check(db->open(db, NULL, "data.db", NULL, DB_BTREE, DB_CREATE | DB_AUTO_COMMIT, 0644), "open");
    for (unsigned i = 0; i < RECORDS; i++)
        operate(db, 1);
    struct timespec from, to;
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (long i = atol(argv[2]); i > 0; i--)
        operate(db, next(100) >= 35);
    clock_gettime(CLOCK_MONOTONIC, &to);
    getrusage(RUSAGE_SELF, &after);
    printf("%.3f %.3f\n", (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) / 1e9,
           seconds(after.ru_stime) - seconds(before.ru_stime));
    check(db->close(db, 0), "close");
    check(env->close(env, 0), "close env");
    return 0;
}
