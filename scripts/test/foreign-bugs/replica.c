/* Inodes with a replica and checksums, after the bugs of NOVA-Fortis. */
#include <stdint.h>

struct copy { uint64_t has_log, value[8], size, unused[5], check; };	/* two lines */
struct pm {
	struct copy copy[2];		/* the inode, and its replica */
	uint64_t replica, unused[7];	/* its number */
	uint64_t data[8], data_check, size_checked, unused2[6];
	struct { uint64_t low, high, check, unused[5]; } range;
	uint64_t block_is_free, freeing, unused3[6];
};

#define OPS 6
#include "pm.h"

static const char *error = "";

static uint64_t check_of(struct copy *c)
{
	uint64_t sum = 17 + c->has_log + 3 * c->size;

	for (int i = 0; i < 8; i++)
		sum = 31 * sum + c->value[i];
	return sum;
}

/* Stores a copy, and makes it durable, or leaves that to a later fence. */
static void store(int n, struct copy *new, int needs_fence)
{
	set(pm->copy[n].has_log, new->has_log);
	for (int i = 0; i < 8; i++)
		set(pm->copy[n].value[i], new->value[i]);
	set(pm->copy[n].size, new->size);
	set(pm->copy[n].check, check_of(new));
	flush(pm->copy[n]);
	if (needs_fence)
		fence();
}

static void change(struct copy *new)
{
	store(0, new, !BUG(1));	/* else both copies can be torn */
	store(1, new, 1);
}

static uint64_t data_check(uint64_t words)
{
	uint64_t sum = 5;

	for (uint64_t i = 0; i < words; i++)
		sum = 31 * sum + pm->data[i];
	return sum;
}

static void make_replica(void)
{
	struct copy new = { 0 };

	change(&new);
	set(pm->replica, 1);
	if (!BUG(4))
		persist(pm->replica);
}

static void make_log(void)
{
	struct copy new = pm->copy[0];

	new.has_log = 1;
	change(&new);
}

static void write_data(void)
{
	struct copy new = pm->copy[0];

	for (uint64_t i = 0; i < 8; i++)
		set(pm->data[i], 10 + i);
	persist(pm->data);
	set(pm->size_checked, 8);
	set(pm->data_check, data_check(8));
	persist(pm->data_check);
	new.size = 8;
	change(&new);
}

/* The words behind the new end become zero, which the checksum covers. */
static void cut(void)
{
	struct copy new = pm->copy[0];

	new.size = 2;
	change(&new);
	for (int i = 2; i < 8; i++)
		set(pm->data[i], 0);
	persist(pm->data);
	set(pm->data_check, data_check(8));
	persist(pm->data_check);
}

static void set_range(uint64_t low, uint64_t high)
{
	uint64_t old = pm->range.high;

	set(pm->range.low, low);
	set(pm->range.high, high);
	set(pm->range.check, low + 3 * (BUG(5) ? old : high));
	persist(pm->range);
}

static void free_block(void)
{
	if (pm->block_is_free)
		error = "a free block is freed, ";
	set(pm->block_is_free, 1);
	persist(pm->block_is_free);
}

static void format(void) { }

static void op(int n)
{
	switch (n) {
	case 0: make_replica(); break;
	case 1: make_log(); break;
	case 2: write_data(); break;
	case 3: cut(); break;
	case 4: set_range(3, 7); break;
	case 5:
		set(pm->freeing, 1);
		persist(pm->freeing);
		free_block();
		set(pm->freeing, 0);
		persist(pm->freeing);
		break;
	}
}

static void recover(void)
{
	for (int n = 0; n < 2; n++)	/* a copy that is wrong gets the content of the other */
		if (pm->replica && check_of(&pm->copy[n]) != pm->copy[n].check) {
			if (check_of(&pm->copy[!n]) != pm->copy[!n].check)
				error = "both copies are wrong, ";
			else
				pm->copy[n] = pm->copy[!n];
		}
	if (!BUG(2))	/* the inode is stored first, so it is newer: else only one may have a log */
		pm->copy[1] = pm->copy[0];
	if (pm->copy[0].size == 2 && !BUG(3)) {	/* a cut that may not have ended */
		for (int i = 2; i < 8; i++)
			set(pm->data[i], 0);
		set(pm->data_check, data_check(8));
	}
	if (pm->range.check != pm->range.low + 3 * pm->range.high) {
		if (BUG(5))
			error = "the range is wrong, ";
		memset(&pm->range, 0, sizeof(pm->range));
	}
	if (pm->freeing && (BUG(6) || !pm->block_is_free))
		free_block();
	pm->freeing = 0;
}

static void describe(void)
{
	struct copy *c = &pm->copy[0];

	say("%slog %lu %lu, size %lu", error, c->has_log, pm->copy[1].has_log, c->size);
	if (c->size && pm->data_check != data_check(8))
		say(", data is unreadable");
	say(", range %lu to %lu, %s", pm->range.low, pm->range.high, pm->block_is_free ? "free" : "in use");
	if (c->has_log && !pm->replica)
		say(", no replica");
}

static void probe(void) { }
