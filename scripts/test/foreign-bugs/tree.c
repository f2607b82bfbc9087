/* A B-tree of one inner node, whose leaves are linked, after the bugs of FAST_FAIR and Masstree. */
#include <stdint.h>

struct node { uint64_t count, sibling, unused[6], key[8]; };
struct pm { uint64_t root, unused[7]; struct node leaf[4], inner; };	/* 1 to 4, and 5 */

#define OPS 6
#include "pm.h"

static struct node *leaf(uint64_t n) { return &pm->leaf[n - 1]; }

static void append(struct node *node, uint64_t key)
{
	set(node->key[node->count], key);
	persist(node->key);
	set(node->count, node->count + 1);
	persist(node->count);
}

/* Makes an inner node of leaves that are linked, and the root of it. */
static void new_root(void)
{
	set(pm->inner.count, 0);
	for (uint64_t n = 1; n; n = leaf(n)->sibling)
		append(&pm->inner, n);
	set(pm->root, 5);
	persist(pm->root);
}

static void split(uint64_t n, uint64_t into)
{
	struct node *left = leaf(n), *right = leaf(into);

	for (uint64_t i = 2; i < left->count; i++)
		append(right, left->key[i]);
	set(right->sibling, left->sibling);
	persist(right->sibling);
	set(left->sibling, into);	/* makes the upper keys in `left` invisible */
	persist(left->sibling);
	set(left->count, 2);
	persist(left->count);
	new_root();
}

/* Empties the right leaf of two into the left. */
static void merge(void)
{
	struct node *left = leaf(1), *right = leaf(2);

	if (BUG(2)) {
		set(left->sibling, right->sibling);
		persist(left->sibling);
	}
	for (uint64_t i = 0; i < right->count; i++)
		set(left->key[left->count + i], right->key[i]);
	persist(left->key);
	if (BUG(3)) {		/* for a while, keys are in both */
		set(left->count, left->count + right->count);
		persist(left->count);
		set(left->sibling, right->sibling);
		persist(left->sibling);
	} else if (!BUG(2)) {	/* both words are in one line: the sibling goes first, then the count */
		uint64_t both[2] = { left->count + right->count, right->sibling };
		memcpy(&leaf(3)->count, both, sizeof(both));
		for (uint64_t i = 0; i < both[0]; i++)
			set(leaf(3)->key[i], left->key[i]);
		persist(*leaf(3));
		set(pm->root, 3);	/* a copy, which one word makes visible */
		persist(pm->root);
		return;
	} else {
		set(left->count, left->count + right->count);
		persist(left->count);
	}
	set(pm->root, 1);
	persist(pm->root);
}

static void format(void) { pm->root = 1; }

static void op(int n)
{
	if (n < 3)
		append(leaf(1), n + 1);
	else if (n == 3)
		split(1, 2);
	else if (n == 4)
		append(leaf(2), 4);
	else
		merge();
}

static void recover(void)
{
	if (pm->root == 1 && leaf(1)->sibling && !BUG(1)) {	/* a split has not ended */
		if (leaf(1)->count > 2)
			set(leaf(1)->count, 2);
		new_root();
	}
}

static void describe(void)
{
	uint64_t leaves = 0;

	for (uint64_t n = pm->root == 5 ? pm->inner.key[0] : pm->root; n && leaves < 4; n = leaf(n)->sibling, leaves++)
		for (uint64_t i = 0; i < leaf(n)->count; i++)
			if (!leaf(n)->sibling || leaf(n)->key[i] < leaf(leaf(n)->sibling)->key[0] || BUG(3))
				say("%lu ", leaf(n)->key[i]);
	say("in %lu leaves, %lu of them with a parent", leaves, pm->root == 5 ? pm->inner.count : 1);
}

static void probe(void) { }
