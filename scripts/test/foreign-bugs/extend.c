/* An extendible hash table: a directory leads to segments, whose pattern says which keys are
 * theirs, after the bugs of CCEH. */
#include <stdint.h>

#define LOCKED 999
struct segment { uint64_t depth, pattern, unused[6]; struct { uint64_t key, value; } slot[4]; };
struct pm {
	uint64_t current, unused[7];	/* which of the two directories */
	struct { uint64_t depth, segment[7]; } dir[2];
	struct segment segment[4];
};

#define OPS 6
#include "pm.h"

/* Keys have three bits, the directory uses the upper ones. */
static int is_of(struct segment *s, uint64_t key) { return key >> (3 - s->depth) == s->pattern; }

static struct segment *segment_of(uint64_t key)
{
	return &pm->segment[pm->dir[pm->current].segment[key >> (3 - pm->dir[pm->current].depth)]];
}

/* Returns whether there is room. */
static int insert(uint64_t key, uint64_t value)
{
	struct segment *s = segment_of(key);

	for (int i = 0; i < 4; i++)
		if (!s->slot[i].key || (s->slot[i].key != LOCKED && !is_of(s, s->slot[i].key))) {
			set(s->slot[i].key, LOCKED);	/* taken, by a compare-and-swap */
			set(s->slot[i].value, value);
			set(s->slot[i].key, key);
			persist(s->slot[i]);
			return 1;
		}
	return 0;
}

static void set_depth(struct segment *s, uint64_t depth, uint64_t pattern)
{
	set(s->depth, depth);
	set(s->pattern, pattern);
	persist(*s);
}

/* Splits segment 1 into 1 and 2, and doubles the directory. */
static void split(void)
{
	struct segment *low = &pm->segment[1], *high = &pm->segment[2];

	set(high->depth, 2);
	set(high->pattern, 3);
	for (int i = 0; i < 4; i++)
		if (low->slot[i].key >> 1 == 3) {
			set(high->slot[i].key, low->slot[i].key);
			set(high->slot[i].value, low->slot[i].value);
		}
	persist(*high);
	if (BUG(1))		/* the upper keys are no longer those of `low`, and not found elsewhere */
		set_depth(low, 2, 2);
	static const uint64_t to[] = { 0, 0, 1, 2 };
	for (int i = 0; i < 4; i++)
		set(pm->dir[1].segment[i], to[i]);
	set(pm->dir[1].depth, 2);
	if (!BUG(2))
		persist(pm->dir[1]);
	set(pm->current, 1);
	persist(pm->current);
	if (BUG(2))
		persist(pm->dir[1]);
	set_depth(low, 2, 2);
}

static void format(void)
{
	pm->dir[0].depth = pm->segment[0].depth = pm->segment[1].depth = 1;
	pm->dir[0].segment[1] = pm->segment[1].pattern = 1;
}

static void op(int n)
{
	static const uint64_t keys[] = { 1, 4, 6, 7, 0, 5 };

	if (n == 4)
		split();
	else
		insert(keys[n], 10 * keys[n]);
}

static void recover(void)
{
	for (int s = 0; s < 4 && !BUG(3); s++)
		for (int i = 0; i < 4; i++)
			if (pm->segment[s].slot[i].key == LOCKED)
				set(pm->segment[s].slot[i].key, 0);
	if (pm->current)	/* half of this segment is another's by now */
		set_depth(&pm->segment[1], 2, 2);
}

static void describe(void)
{
	for (uint64_t key = 1; key < 8; key++)
		for (int i = 0; i < 4; i++)
			if (segment_of(key)->slot[i].key == key && is_of(segment_of(key), key))
				say("%lu=%lu ", key, segment_of(key)->slot[i].value);
}

/* A segment that lost no slot has room for four keys. */
static void probe(void)
{
	for (uint64_t key = 2; key < 4; key++)
		insert(key, 20);
	insert(3, 30);
	say("%d ", insert(3, 31));
}
