/* Transactions with an undo log, and allocation in them, after the bugs of libpmemobj, its examples
 * (B-tree, red-black trees, hashmaps) and the journals of PMFS and WineFS. */
#include <stdint.h>

struct word { uint64_t value, unused[7]; };
struct pm {
	struct word count;	/* of the entries of the log that are valid */
	struct { uint64_t at, old, unused[6]; } log[8];
	struct word word[4];	/* all are equal between transactions */
	struct word allocated;	/* number of objects that are taken */
	struct word object[4], root;
};

#define OPS 4
#include "pm.h"

static void add(struct word *w)
{
	uint64_t n = pm->count.value;

	if (BUG(3)) {		/* the entry counts before it is durable */
		set(pm->count.value, n + 1);
		set(pm->log[n].at, w - &pm->count);
		set(pm->log[n].old, w->value);
		flush(pm->log[n]);
		persist(pm->count);
		return;
	}
	set(pm->log[n].at, w - &pm->count);
	set(pm->log[n].old, w->value);
	persist(pm->log[n]);
	set(pm->count.value, n + 1);
	persist(pm->count);
}

static void commit(void)
{
	if (BUG(4)) {		/* the log goes before the data is durable */
		set(pm->count.value, 0);
		persist(pm->count);
	}
	for (int i = 0; i < 4; i++)
		flush(pm->word[i]);
	flush(pm->allocated);
	flush(pm->object);
	flush(pm->root);
	fence();
	set(pm->count.value, 0);
	persist(pm->count);
}

/* Changes all words, as a rotation in a tree does. */
static void change(uint64_t value)
{
	for (int i = 0; i < 4; i++) {
		if (!BUG(1) || i != 2)
			add(&pm->word[BUG(2) ? (i == 2 ? 1 : i) : i]);
		set(pm->word[i].value, value);
	}
	commit();
}

/* Takes an object, and makes it the root. */
static void allocate(uint64_t value)
{
	uint64_t n = pm->allocated.value;

	if (!BUG(5))		/* else the object stays taken, with nothing that leads to it */
		add(&pm->allocated);
	set(pm->allocated.value, n + 1);
	persist(pm->allocated);
	set(pm->object[n].value, value);
	if (BUG(6)) {		/* the root is no part of the transaction, and leads to an object that is */
		set(pm->root.value, n + 1);
		persist(pm->root);
	} else {
		add(&pm->root);
		set(pm->root.value, n + 1);
	}
	commit();
}

static void format(void) { }

static void op(int n)
{
	if (n % 2)
		allocate(n);
	else
		change(n + 1);
}

static void recover(void)
{
	for (uint64_t n = pm->count.value; n--;)
		set((&pm->count)[pm->log[n].at].value, pm->log[n].old);
	set(pm->count.value, 0);
}

static void describe(void)
{
	for (int i = 0; i < 4; i++)
		say("%lu ", pm->word[i].value);
	say("%lu taken ", pm->allocated.value);
	if (pm->root.value)
		say("root is %lu, of %lu", pm->object[pm->root.value - 1].value, pm->root.value);
}

static void probe(void) { allocate(9); }
