/* A file system with a log for each inode, whose tail commits, after the bugs of NOVA. What readers
 * see is derived from the logs: by operations as they go, by recovery from the beginning. */
#include <stdint.h>

enum { ADD = 1, DELETE, WRITE, SIZE, FALLOCATE };
struct entry { uint64_t kind, a, b, c, unused[4]; };	/* names: name, ino; files: size, block, first */
struct inode { uint64_t valid, unused[7], head, unused2[7], tail, unused3[7], links, unused4[7]; };
struct pm {
	struct { uint64_t active, unused[7]; struct { uint64_t ino, tail, links, unused[5]; } old[3]; } journal;
	struct inode inode[4];		/* 0 and 1 are directories */
	struct entry log[4][8];
	uint64_t block[4][8];
	struct { uint64_t epoch, unused[7], taken[8]; } snapshots;
};

#define OPS 11
#include "pm.h"

static struct { uint64_t name[2][3], size[4], block[4], blocks[4]; int dead; } view;
static uint64_t epoch;

/* Adds an entry to what readers see. */
static void see(int ino, struct entry *e, int is_recovery)
{
	switch (e->kind) {
	case ADD: view.name[ino][e->a] = e->b; break;
	case DELETE: view.name[ino][e->a] = 0; break;
	case WRITE:
		view.size[ino] = e->a;
		view.block[ino] = is_recovery && BUG(7) ? e->b + e->c : e->b;
		view.blocks[ino] = 1;
		break;
	case SIZE: view.size[ino] = e->a; break;
	case FALLOCATE: view.blocks[ino] = is_recovery && BUG(8) ? (view.size[ino] + 7) / 8 : e->a; break;
	}
}

/* Appends an entry that is not committed yet; returns the tail that commits it. */
static uint64_t append(int ino, uint64_t kind, uint64_t a, uint64_t b, uint64_t c)
{
	struct inode *inode = &pm->inode[ino];
	struct entry *e = &pm->log[ino][inode->tail ? inode->tail - 1 : 0];

	set(e->a, a);
	set(e->b, b);
	set(e->c, c);
	set(e->kind, kind);
	persist(*e);
	see(ino, e, 0);
	if (!inode->head && !BUG(2)) {
		set(inode->head, ino + 1);
		if (BUG(1))	/* other inodes stay without a log after a crash */
			fence();
		else
			persist(inode->head);
	}
	return (inode->tail ? inode->tail : 1) + 1;
}

static void set_tail(int ino, uint64_t tail)
{
	set(pm->inode[ino].tail, tail);
	persist(pm->inode[ino].tail);
	if (BUG(2)) {		/* the head comes second */
		set(pm->inode[ino].head, ino + 1);
		persist(pm->inode[ino].head);
	}
}

/* Notes an inode in the journal; a crash before the end sets it back. */
static void begin(int n, int ino)
{
	set(pm->journal.old[n].ino, ino);
	set(pm->journal.old[n].tail, pm->inode[ino].tail);
	set(pm->journal.old[n].links, pm->inode[ino].links);
	persist(pm->journal.old[n]);
}

static void set_journal(uint64_t entries)
{
	set(pm->journal.active, entries);
	persist(pm->journal.active);
}

static void set_links(int ino, uint64_t links)
{
	set(pm->inode[ino].links, links);
	persist(pm->inode[ino].links);
}

static void link_to(int dir, int name, int ino)
{
	begin(0, dir);
	begin(1, ino);
	if (!BUG(5))		/* else the count changes in place, before the name is there */
		set_journal(2);
	set_links(ino, pm->inode[ino].links + 1);
	set_tail(dir, append(dir, ADD, name, ino, 0));
	set_journal(0);
}

static void create(int name, int ino)
{
	set_links(ino, 0);
	set_tail(ino, append(ino, SIZE, 0, 0, 0));
	set(pm->inode[ino].valid, 1);
	persist(pm->inode[ino].valid);
	link_to(0, name, ino);
}

/* Moves a name between directories, over one that exists. */
static void rename_over(int from, int to, int name)
{
	uint64_t ino = view.name[from][name];

	begin(0, from);
	begin(1, to);
	if (BUG(3)) {		/* the name that is replaced goes first, for itself */
		set(pm->log[to][0].kind, DELETE);
		persist(pm->log[to][0]);
	}
	if (!BUG(4))		/* else both names exist for a while */
		set_journal(2);
	set_tail(to, append(to, ADD, name, ino, 0));
	set_tail(from, append(from, DELETE, name, 0, 0));
	set_journal(0);
}

static void remove_name(int dir, int name, int ino)
{
	begin(0, dir);
	begin(1, ino);
	if (BUG(9)) {		/* the inode goes before the name */
		set(pm->inode[ino].valid, 0);
		persist(pm->inode[ino].valid);
	}
	set_journal(2);
	set_links(ino, pm->inode[ino].links - 1);
	set_tail(dir, append(dir, DELETE, name, 0, 0));
	set_journal(0);
}

static void write_file(int ino, uint64_t words, uint64_t block, uint64_t value)
{
	for (uint64_t i = 0; i < words; i++)
		set(pm->block[block][i], value + i);
	persist(pm->block[block]);
	set_tail(ino, append(ino, WRITE, words, block, 1));
}

static void cut(int ino, uint64_t size)
{
	uint64_t *data = pm->block[view.block[ino]];

	if (BUG(6)) {		/* the last entry that sets a size changes, with writes behind it */
		set(pm->log[ino][0].a, size);
		persist(pm->log[ino][0]);
		view.size[ino] = size;
		return;
	}
	if (BUG(10))		/* the old data is zeroed after the size, which can grow before */
		set_tail(ino, append(ino, SIZE, size, 0, 0));
	else {			/* a copy, without the old data */
		write_file(ino, size, 3, data[0]);
		return;
	}
	for (uint64_t i = size; i < 8; i++)
		set(data[i], 0);
	pmem_persist(data, 64);
}

static void snapshot(void)
{
	uint64_t id = epoch;

	if (BUG(11))		/* the number on the media is that of this snapshot, not of the next */
		set(pm->snapshots.epoch, id);
	else
		set(pm->snapshots.epoch, id + 1);
	persist(pm->snapshots.epoch);
	set(pm->snapshots.taken[id], 1);
	persist(pm->snapshots.taken[id]);
	epoch = id + 1;
}

static void format(void)
{
	pm->inode[0].valid = pm->inode[1].valid = 1;
}

static void op(int n)
{
	switch (n) {
	case 0: create(0, 2); break;
	case 1: create(1, 3); break;
	case 2: link_to(1, 1, 2); break;
	case 3: rename_over(0, 1, 1); break;
	case 4: write_file(2, 4, 1, 10); break;
	case 5: cut(2, 2); break;
	case 6: set_tail(2, append(2, FALLOCATE, 2, 0, 0)); break;
	case 7: write_file(3, 3, 2, 30); break;
	case 8: snapshot(); break;
	case 9: remove_name(1, 1, 3); break;
	case 10: snapshot(); break;
	}
}

static void recover(void)
{
	void *buffers;

	for (uint64_t n = 0; n < pm->journal.active; n++) {
		pm->inode[pm->journal.old[n].ino].tail = pm->journal.old[n].tail;
		pm->inode[pm->journal.old[n].ino].links = pm->journal.old[n].links;
	}
	for (int ino = 0; ino < 4; ino++) {
		struct inode *inode = &pm->inode[ino];
		struct entry *first = inode->head ? pm->log[inode->head - 1] : NULL;

		for (uint64_t i = 1; i < inode->tail && (inode->head || BUG(2)); i++)
			see(ino, first++, 1);
		if (!BUG(12))	/* else what an inode without a log frees is not initialised */
			buffers = inode->tail ? malloc(64) : NULL;
		else
			memset(&buffers, inode->tail ? 0 : 0x5a, sizeof(buffers));
		free(buffers);
	}
	epoch = pm->snapshots.epoch;
}

static void describe(void)
{
	for (int dir = 0; dir < 2; dir++)
		for (int name = 0; name < 3; name++) {
			uint64_t ino = view.name[dir][name];

			if (!ino)
				continue;
			say("%d/%c%s: %lu links, %lu blocks,", dir, 'a' + name, pm->inode[ino].valid ? "" : " has no inode",
				pm->inode[ino].links, view.blocks[ino]);
			for (uint64_t i = 0; i < view.size[ino]; i++)
				say(" %lu", pm->block[view.block[ino]][i]);
			say("; ");
		}
	for (int i = 0; i < 8; i++)
		say("%s", pm->snapshots.taken[i] ? "snapshot " : "");
	say("next %s", pm->snapshots.taken[epoch] ? "exists" : "is new");
}

/* A file grows. What is behind its old end must be zero. */
static void probe(void)
{
	for (int ino = 2; ino < 4; ino++)
		if (view.blocks[ino])
			view.size[ino] += 2;
}
