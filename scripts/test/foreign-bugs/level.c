/* A hash table of two levels, whose slots have tokens, after the bugs of Level Hashing. */
#include <stdint.h>

struct slot { uint64_t key, value; uint64_t unused[6]; };
struct level { uint64_t tokens; uint64_t unused[7]; struct slot slot[4]; };
struct pm { uint64_t top, bottom, interim; uint64_t unused[5]; struct level level[3]; };

#define OPS 7
#include "pm.h"

/* Puts an item into a slot, and changes the tokens: this slot instead of those of `old`. */
static void put(struct level *l, int i, uint64_t key, uint64_t value, uint64_t old)
{
	set(l->slot[i].key, key);
	set(l->slot[i].value, value);
	if (!BUG(1))
		persist(l->slot[i]);
	if (BUG(2) && old)	/* two stores instead of one */
		set(l->tokens, l->tokens & ~old);
	set(l->tokens, (l->tokens & ~old) | 1 << i);
	if (BUG(1))		/* the token may be durable before the item */
		persist(l->slot[i]);
	persist(l->tokens);
}

static void drop(struct level *l, int i)
{
	set(l->tokens, l->tokens & ~(1ull << i));
	persist(l->tokens);
}

static int find(struct level *l, uint64_t key)
{
	for (int i = 0; i < 4; i++)
		if (l->tokens & 1 << i && l->slot[i].key == key)
			return i;
	return -1;
}

/* Moves the items of the interim level, which has left the table, into the last slots. */
static void rehash(void)
{
	struct level *from = &pm->level[pm->interim - 1], *to = &pm->level[pm->bottom - 1];

	for (int i = 0; i < 4; i++)
		if (from->tokens & 1 << i && find(to, from->slot[i].key) < 0)
			put(to, i, from->slot[i].key, from->slot[i].value, 0);
	set(pm->interim, 0);
	persist(pm->interim);
}

/* The top leaves the table, the bottom takes its place, and an empty one is below. */
static void shrink(void)
{
	set(pm->interim, pm->top);
	set(pm->top, pm->bottom);
	set(pm->bottom, 3);
	persist(pm->top);
	rehash();
}

static void format(void)
{
	pm->top = 1, pm->bottom = 2;
}

static void op(int n)
{
	struct level *top = &pm->level[pm->top - 1], *bottom = &pm->level[pm->bottom - 1];

	switch (n) {
	case 0: put(bottom, 0, 1, 10, 0); break;
	case 1: put(bottom, 1, 2, 20, 0); break;
	case 2: put(bottom, 2, 1, 11, 1 << 0); break;	/* an update in another slot */
	case 3: put(top, 0, 2, 20, 0); drop(bottom, 1); break;	/* a move */
	case 4: put(top, 1, 3, 30, 0); break;
	case 5: shrink(); break;
	case 6: drop(top, find(top, 1)); break;
	}
}

static void recover(void)
{
	if (pm->interim && !BUG(4)) {
		if (pm->top == pm->interim)	/* the crash was before the levels changed */
			set(pm->top, pm->bottom);
		if (pm->bottom == pm->top)
			set(pm->bottom, 3);
		rehash();
	}
	for (int i = 0; i < 4 && !BUG(3); i++)	/* a move that has not ended leaves two items */
		if (pm->level[0].tokens & 1 << i && find(&pm->level[1], pm->level[0].slot[i].key) >= 0)
			drop(&pm->level[0], i);
}

static void describe(void)
{
	for (uint64_t key = 0; key < 5; key++)
		for (int n = 0; n < 2; n++) {
			struct level *l = &pm->level[(n ? pm->bottom : pm->top) - 1];
			int i = find(l, key);
			if (i >= 0)
				say("%lu=%lu ", key, l->slot[i].value);
		}
}

static void probe(void)
{
}
