/* A file system that changes inodes in place under undo journals, one for each processor, after the
 * bugs of PMFS and WineFS. */
#include <stdint.h>

struct inode { uint64_t valid, size, time, block, unused[4]; };
struct journal { uint64_t count, unused[7]; struct { uint64_t at, unused[7], old[8]; } entry[3]; };
struct pm {
	struct journal journal[2];
	struct { uint64_t ino, size, unused[6]; } to_cut;	/* what a mount has to finish */
	struct { uint64_t ino, unused[7]; } name[2];
	struct inode inode[4];		/* from 1 on */
	uint64_t block[4][16];
};

#define OPS 9
#include "pm.h"

static struct journal *journal;
static uint64_t *free_blocks;	/* derived: made by a mount */

#define add(place) add_line((uint64_t *)&(place))
static void add_line(uint64_t *line)
{
	uint64_t n = journal->count;

	set(journal->entry[n].at, line - (uint64_t *)pm);
	for (int i = 0; i < 8; i++)
		set(journal->entry[n].old[i], line[i]);
	persist(journal->entry[n]);
	set(journal->count, n + 1);
	persist(journal->count);
}

static void commit(void)
{
	flush(pm->inode);
	flush(pm->name);
	flush(pm->to_cut);
	fence();
	set(journal->count, 0);
	flush(journal->count);
	if (!BUG(2))		/* else the operation returns before it is durable */
		fence();
}

static void create(int name)
{
	uint64_t ino = 1;

	while (pm->inode[ino].valid || (ino == pm->to_cut.ino && !BUG(7)))
		ino++;
	add(pm->inode[ino]);
	add(pm->name[name]);
	set(pm->inode[ino].size, 0);
	set(pm->inode[ino].block, ino);
	set(pm->inode[ino].valid, 1);
	set(pm->name[name].ino, ino);
	commit();
}

static void append(int name, uint64_t words, uint64_t time)
{
	struct inode *inode = &pm->inode[pm->name[name].ino];
	uint64_t *data = pm->block[inode->block];

	for (uint64_t i = 0; i < words; i++)
		set(data[inode->size + i], 10 * time + i);
	/* Past the cache; in variant 6, what does not fill a line is stored through it. */
	pmem_flush(&data[inode->size], BUG(6) ? words / 8 * 64 : words * 8);
	fence();
	if (BUG(5)) {		/* two words, as if a store of 16 bytes were atomic */
		set(inode->size, inode->size + words);
		set(inode->time, time);
		persist(*inode);
		return;
	}
	add(*inode);
	set(inode->size, inode->size + words);
	set(inode->time, time);
	commit();
}

static void overwrite(int name, uint64_t time)
{
	struct inode *inode = &pm->inode[pm->name[name].ino];
	uint64_t to = BUG(4) ? inode->block : 3;

	for (int i = 0; i < 16; i++)
		set(pm->block[to][i], i < 2 ? 10 * time + i : pm->block[inode->block][i]);
	persist(pm->block[to]);
	add(*inode);
	set(inode->block, to);
	set(inode->time, time);
	commit();
}

static void finish_cut(void)
{
	pm->inode[pm->to_cut.ino].size = pm->to_cut.size;
	persist(pm->inode[pm->to_cut.ino]);
	set(pm->to_cut.ino, 0);
	persist(pm->to_cut.ino);
}

static void cut(int name, uint64_t size)
{
	set(pm->to_cut.size, size);
	set(pm->to_cut.ino, pm->name[name].ino);
	persist(pm->to_cut);
	finish_cut();
}

/* The name goes; the inode is on the list until its blocks are free. */
static void remove_name(int name)
{
	uint64_t ino = pm->name[name].ino;

	add(pm->name[name]);
	add(pm->to_cut);
	add(pm->inode[ino]);
	set(pm->to_cut.size, 0);
	set(pm->to_cut.ino, ino);
	set(pm->name[name].ino, 0);
	set(pm->inode[ino].valid, 0);
	commit();
}

static void format(void) { }

static void op(int n)
{
	journal = &pm->journal[n % 2];
	switch (n) {
	case 0: create(0); break;
	case 1: append(0, 3, 1); break;
	case 2: append(0, 7, 2); break;
	case 3: overwrite(0, 3); break;
	case 4: cut(0, 1); break;
	case 5: remove_name(0); break;
	case 6: create(1); break;
	case 7: append(1, 2, 7); break;
	case 8: finish_cut(); break;	/* of the removed file */
	}
}

static void recover(void)
{
	static uint64_t derived[4];

	for (int cpu = 0; cpu < (BUG(3) ? 1 : 2); cpu++) {
		journal = &pm->journal[cpu];
		for (uint64_t n = journal->count; n--;)
			memcpy((uint64_t *)pm + journal->entry[n].at, journal->entry[n].old, 64);
		journal->count = 0;
	}
	for (int i = 0; i < (BUG(1) ? 1 : 2); i++) {
		if (i == (BUG(1) ? 1 : 0))
			free_blocks = derived;
		if (pm->to_cut.ino && (BUG(1) || i == 1)) {	/* needs the free blocks */
			free_blocks[pm->inode[pm->to_cut.ino].block] = 1;
			finish_cut();
		}
	}
}

static void describe(void)
{
	for (int name = 0; name < 2; name++) {
		struct inode *inode = &pm->inode[pm->name[name].ino];

		if (!pm->name[name].ino)
			continue;
		say("%c%s, time %lu:", 'a' + name, inode->valid ? "" : " has no inode", inode->time);
		for (uint64_t i = 0; i < inode->size && i < 16; i++)
			say(" %lu", pm->block[inode->block][i]);
		say("; ");
	}
}

static void probe(void) { }
