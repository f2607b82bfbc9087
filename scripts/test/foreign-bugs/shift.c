/* A sorted array that shifts its entries, after the bugs of FAST_FAIR. Four entries are a line. An
 * entry is valid if its value differs from that of its left neighbour, so readers need no lock. */
#include <stdint.h>

struct entry { uint64_t key, value; };
struct pm { struct entry entry[16]; };

#define OPS 9
#include "pm.h"

static uint64_t left_of(int i) { return i ? pm->entry[i - 1].value : 1; }
static int is_valid(int i) { return pm->entry[i].value != left_of(i); }

static int length(void)
{
	int n = 0;

	while (n < 15 && pm->entry[n].value)
		n++;
	return n;
}

static void insert(uint64_t key, uint64_t value)
{
	int i = length();

	set(pm->entry[i + 1].value, 0);
	if (i % 4 == 3)
		persist(pm->entry[i + 1]);
	for (; i && pm->entry[i - 1].key > key; i--) {
		set(pm->entry[i].value, pm->entry[i - 1].value);
		set(pm->entry[i].key, pm->entry[i - 1].key);
		if (i % 4 == 0)
			persist(pm->entry[i]);
	}
	set(pm->entry[i].value, left_of(i));
	set(pm->entry[i].key, key);
	set(pm->entry[i].value, value);
	persist(pm->entry[i]);
}

static void erase_at(int i)
{
	int n = length();

	set(pm->entry[i].value, left_of(i));
	for (; i < n; i++) {
		set(pm->entry[i].key, pm->entry[i + 1].key);
		set(pm->entry[i].value, pm->entry[i + 1].value);
		if (i % 4 == (BUG(1) ? 0 : 3))	/* the line that is complete */
			persist(pm->entry[i]);
	}
	persist(pm->entry[n]);
	if (!BUG(1) && n)
		persist(pm->entry[n - 1]);
}

static void erase(uint64_t key)
{
	for (int i = 0; i < length(); i++)
		if (pm->entry[i].key == key) {
			erase_at(i);
			return;
		}
}

static void format(void) { }

static void op(int n)
{
	static const uint64_t keys[] = { 10, 20, 30, 40, 50, 60, 15 };

	if (n < 7)
		insert(keys[n], 100 * (n + 1));
	else
		erase(n == 7 ? 10 : 40);
}

/* An insertion that has not ended leaves an entry that readers ignore, and `erase` does not. */
static void recover(void)
{
	for (int i = 0; i < length() && !BUG(2); i++)
		if (!is_valid(i))
			erase_at(i--);
}

static void describe(void)
{
	for (int i = 0; i < 15 && pm->entry[i].value; i++)
		if (is_valid(i))
			say("%lu=%lu ", pm->entry[i].key, pm->entry[i].value);
}

static void probe(void) { erase(30); }
