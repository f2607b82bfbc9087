/* Nodes of a radix tree, after the bugs of WOART and P-ART. */
#include <stdint.h>

struct node { uint64_t keys[2], child[2], compact, count, unused[2]; };	/* a line */
struct path { uint64_t skip, value, next[2], unused[4]; };	/* skips bits of a key, then branches */
struct pm {
	struct node node;
	uint64_t leaf[8];
	uint64_t root, unused[7];
	struct path path[4];
};

#define OPS 4
#include "pm.h"

/* Adds a child; if the node seems to be full, its empty places are removed, which here are none. */
static int add(uint64_t key, uint64_t child)
{
	struct node *n = &pm->node;

	if (n->compact == 2 && n->count < 2)
		return 1;	/* believes that this has made room */
	if (n->compact == 2)
		return 0;
	set(n->keys[n->compact], key);
	set(n->child[n->compact], child);
	set(n->compact, n->compact + 1);
	set(n->count, n->count + 1);
	persist(*n);
	return 1;
}

/* Puts a node with a shorter path above path 1, whose path is cut by that. */
static void branch(void)
{
	struct path *old = &pm->path[1], *new = &pm->path[2], *copy = &pm->path[3];

	set(new->skip, 1);
	set(new->next[1], 3);
	if (BUG(3)) {		/* the old node stays in place: two words change */
		set(new->next[1], 1);
		persist(*new);
		set(pm->root, 2);
		set(old->skip, 1);
		flush(pm->root);
		flush(old->skip);
		fence();
		return;
	}
	set(copy->skip, 1);
	set(copy->value, old->value);
	persist(*copy);
	persist(*new);
	set(pm->root, 2);
	persist(pm->root);
}

static void format(void)
{
	pm->root = 1;
	pm->path[1].skip = 2;
	pm->path[1].value = 77;
}

static void op(int n)
{
	switch (n) {
	case 0: add(5, 50); break;
	case 1: add(6, 60); break;
	case 2: branch(); break;
	case 3: set(pm->leaf[0], 1); persist(pm->leaf[0]); break;
	}
}

static void recover(void)
{
	uint64_t n = 0;

	while (n < 2 && pm->node.child[n])
		n++;
	if (BUG(1) || BUG(2))
		return;
	set(pm->node.compact, n);
	set(pm->node.count, n);
}

static void describe(void)
{
	struct path *p = &pm->path[pm->root];

	for (uint64_t i = 0; i < 2 && pm->node.child[i]; i++)
		say("%lu=%lu ", pm->node.keys[i], pm->node.child[i]);
	/* The path from the root must skip two bits in all. */
	uint64_t skipped = p->skip;
	if (p->next[1])
		skipped += (p = &pm->path[p->next[1]])->skip;
	say("%lu, found after %lu bits", p->value, skipped);
}

static void probe(void)
{
	if (BUG(2))
		say("%d ", add(8, 80) == (pm->node.count >= 2));
	else
		say("%d ", add(7, 70));
}
