/* A library that logs operations and makes them on a file system below, which makes them durable in
 * its own time, after the bugs of SplitFS. */
#include <stdint.h>

enum { CREATE = 1, APPEND, RENAME };
struct entry { uint64_t kind, name, to, unused[5]; };
struct pm {
	uint64_t log_exists, unused[7];
	struct entry log[8];
	struct { uint64_t ino, unused[7]; } name[3];
	struct { uint64_t size, unused[7]; } file[8];
	uint64_t next_ino;
};

#define OPS 6
#include "pm.h"

/* An operation on the file system below: nothing of it is sure to be durable. */
static void below(uint64_t kind, uint64_t name, uint64_t to)
{
	if (kind == CREATE) {
		set(pm->next_ino, pm->next_ino + 1);
		set(pm->file[pm->next_ino].size, 0);
		set(pm->name[name].ino, pm->next_ino);
	} else if (kind == APPEND) {
		set(pm->file[pm->name[name].ino].size, to);
	} else {
		set(pm->name[to].ino, pm->name[name].ino);
		set(pm->name[name].ino, 0);
	}
}

static void do_it(int n, uint64_t kind, uint64_t name, uint64_t to)
{
	struct entry *e = &pm->log[n];

	if (!pm->log_exists) {
		set(pm->log_exists, 1);
		if (!BUG(1))	/* else the log may be missing after a crash */
			persist(pm->log_exists);
	}
	set(e->name, BUG(2) && kind == APPEND ? pm->name[name].ino : name);
	set(e->to, to);
	set(e->kind, kind);	/* in the same line, so later */
	persist(*e);
	below(kind, name, to);
}

static void format(void) { }

static void op(int n)
{
	switch (n) {
	case 0: do_it(n, CREATE, 0, 0); break;
	case 1: do_it(n, APPEND, 0, 4); break;
	case 2: do_it(n, CREATE, 1, 0); break;
	case 3: do_it(n, RENAME, 0, 1); break;
	case 4: do_it(n, APPEND, 1, 6); break;
	case 5: persist(*pm); break;	/* a sync */
	}
}

/* Replays the log: from the state at its start, which is empty, as what is there may be any part of
 * it. In variant 3, on top of what is there. */
static void recover(void)
{
	if (!BUG(3)) {
		memset(pm->name, 0, sizeof(pm->name));
		memset(pm->file, 0, sizeof(pm->file));
	}
	if (!BUG(2))
		pm->next_ino = 0;
	for (int n = 0; n < 8 && pm->log_exists; n++) {
		struct entry *e = &pm->log[n];

		if (!e->kind)
			break;
		if (e->kind == CREATE && pm->name[e->name].ino)
			continue;
		if (e->kind == RENAME && BUG(3) && pm->name[e->to].ino)
			continue;
		if (e->kind == APPEND && BUG(2))
			set(pm->file[e->name].size, e->to);	/* by the number that it had */
		else
			below(e->kind, e->name, e->to);
	}
}

static void describe(void)
{
	for (int name = 0; name < 3; name++)
		if (pm->name[name].ino)
			say("%c has %lu bytes; ", 'a' + name, pm->file[pm->name[name].ino].size);
}

static void probe(void) { }
