/* A list whose items are made visible by a pointer, after the bugs of P-HOT, P-BwTree, P-CLHT and
 * memcached. */
#include <stdint.h>

struct item { uint64_t key, next, unused[6]; };
struct pm {
	uint64_t first, unused[7];
	uint64_t tail, unused2[7];	/* items taken, from the end */
	struct { uint64_t end, taken, unused[6]; } chunk;
	struct item item[8];
	struct { uint64_t version, unused[7]; } meta[8];
};

#define OPS 4
#include "pm.h"

static uint64_t take(void)
{
	if (!pm->chunk.end) {		/* the first item makes the chunk */
		set(pm->tail, 8);
		persist(pm->tail);
		set(pm->chunk.end, 8);
		if (!BUG(5))
			persist(pm->chunk);
	}
	set(pm->tail, pm->tail - 1);
	if (!BUG(4))
		persist(pm->tail);
	return pm->tail;
}

static void insert(uint64_t key)
{
	uint64_t n = take();
	struct item *item = &pm->item[n];
	uint64_t *place = &pm->first;

	set(item->key, key);
	set(item->next, 0);
	if (!BUG(6)) {
		set(pm->meta[n].version, 100 + key);
		persist(pm->meta[n]);
	}
	flush(*item);
	if (!BUG(1))		/* else one fence covers both the item and what leads to it */
		fence();
	while (*place)
		place = &pm->item[*place - 1].next;
	set(*place, n + 1);
	if (BUG(2))		/* the place of the pointer, instead of the pointer */
		pmem_persist(&place, sizeof(place));
	else
		persist(*place);
	if (BUG(6)) {		/* the version comes later than the item */
		set(pm->meta[n].version, 100 + key);
		persist(pm->meta[n]);
	}
}

/* Makes a copy of the list, as a table that grows does. */
static void copy(void)
{
	uint64_t from = pm->first, copies[8] = { 0 }, n = 0;

	for (; from; from = pm->item[from - 1].next) {
		copies[n] = take();
		set(pm->item[copies[n]].key, pm->item[from - 1].key);
		set(pm->item[copies[n]].next, 0);
		set(pm->meta[copies[n]].version, pm->meta[from - 1].version);
		persist(pm->meta[copies[n]]);
		if (n++)
			set(pm->item[copies[n - 2]].next, copies[n - 1] + 1);
	}
	for (uint64_t i = 0; i < n; i++)
		pmem_flush(&pm->item[copies[BUG(3) ? 0 : i]], sizeof(struct item));
	fence();
	set(pm->first, copies[0] + 1);
	persist(pm->first);
}

static void format(void) { }

static void op(int n)
{
	if (n == 3)
		copy();
	else
		insert(n + 1);
}

static void recover(void) { }

static void describe(void)
{
	for (uint64_t n = pm->first, most = 9; n && most; n = pm->item[n - 1].next, most--)
		say("%lu.%lu ", pm->item[n - 1].key, pm->meta[n - 1].version);
}

static void probe(void) { insert(8); }
