/* A hash table that is created, and grows into a larger one, after the bugs of Level Hashing,
 * P-CLHT and PMDK's hashmaps. */
#include <stdint.h>

struct table { uint64_t capacity, unused[7]; struct { uint64_t key, value; } slot[8]; };
struct pm {
	uint64_t root, unused[7];	/* the number of the table */
	uint64_t next, unused2[7];	/* of the one that it grows into */
	uint64_t capacity, unused3[7];	/* variant 1 */
	uint64_t factor, unused4[7];	/* of the hash function */
	struct table table[2];
};

#define OPS 5
#include "pm.h"

static uint64_t capacity(struct table *t)
{
	return BUG(1) ? pm->capacity : t->capacity;
}

static void put(struct table *t, uint64_t at, uint64_t key, uint64_t value)
{
	set(t->slot[at].value, value);
	set(t->slot[at].key, key);	/* in the same line, so later */
}

static void insert(uint64_t key, uint64_t value)
{
	struct table *t = &pm->table[pm->root - 1];
	uint64_t at = key * pm->factor % capacity(t);

	put(t, at, key, value);
	persist(t->slot[at]);
}

static void create(void)
{
	if (!BUG(5)) {
		set(pm->factor, 1);
		persist(pm->factor);
	}
	set(pm->table[0].capacity, 4);
	persist(pm->table[0].capacity);
	set(pm->capacity, 4);
	persist(pm->capacity);
	set(pm->root, 1);
	persist(pm->root);
	if (BUG(5)) {		/* the root makes visible what is not complete */
		set(pm->factor, 1);
		persist(pm->factor);
	}
}

static void copy(int is_move)
{
	struct table *from = &pm->table[0], *to = &pm->table[1];

	for (uint64_t i = 0; i < 4; i++)
		if (from->slot[i].key) {
			uint64_t at = from->slot[i].key * pm->factor % 8;
			put(to, at, from->slot[i].key, from->slot[i].value);
			if (is_move) {
				persist(to->slot[at]);
				set(from->slot[i].key, 0);
				persist(from->slot[i]);
			}
		}
	if (!BUG(2))
		persist(*to);
}

static void grow(void)
{
	if (BUG(1)) {		/* the old table has the new capacity for a while */
		set(pm->capacity, 8);
		persist(pm->capacity);
	}
	set(pm->table[1].capacity, 8);
	persist(pm->table[1].capacity);
	set(pm->next, 2);
	persist(pm->next);
	copy(BUG(4));		/* moved, the items are in both tables for a while */
	set(pm->root, 2);
	if (!BUG(3))
		persist(pm->root);
}

static void format(void) { }

static void op(int n)
{
	switch (n) {
	case 0: create(); break;
	case 1: insert(1, 10); break;
	case 2: insert(7, 70); break;
	case 3: grow(); break;
	case 4: insert(5, 50); break;
	}
}

static void recover(void) { }

static void describe(void)
{
	struct table *t = &pm->table[pm->root - 1];

	for (uint64_t key = 1; key < 10 && pm->root; key++) {
		uint64_t at = key * pm->factor % capacity(t);
		if (t->slot[at].key == key)
			say("%lu=%lu ", key, t->slot[at].value);
	}
}

static void probe(void)
{
	if (!pm->root)
		create();
	insert(2, 22);
	insert(3, 33);
}
