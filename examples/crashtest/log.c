/* A log in persistent memory: entries of one line, and a count that makes them visible.
 *
 *     log append FILE    appends ten entries
 *     log check FILE     exit status 0 if the log is sound
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <libpmem.h>
#include "crashtest.h"

struct entry {
	uint64_t number;
	char text[56];
};

struct log {
	uint64_t count;
	char unused[56];
	struct entry entries[63];
};

static void append(struct log *log, uint64_t number)
{
	struct entry *entry = &log->entries[log->count];

	entry->number = number;
	snprintf(entry->text, sizeof(entry->text), "entry %" PRIu64, number);
#ifdef FIXED
	pmem_persist(entry, sizeof(*entry));
#endif
	log->count++;
	pmem_persist(&log->count, sizeof(log->count));
}

static int check(const struct log *log)
{
	const char *returned = getenv("CRASH_RETURNED");
	uint64_t acknowledged = returned ? strtoull(returned, NULL, 10) : 0;

	if (log->count < acknowledged) {
		fprintf(stderr, "%" PRIu64 " entries, but %" PRIu64 " were acknowledged\n", log->count, acknowledged);
		return 1;
	}
	for (uint64_t i = 0; i < log->count && i < 63; i++) {
		if (log->entries[i].number != i + 1) {
			fprintf(stderr, "entry %" PRIu64 " has number %" PRIu64 "\n", i + 1, log->entries[i].number);
			return 1;
		}
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct log *log = argc == 3 ? pmem_map_file(argv[2], sizeof(*log), PMEM_FILE_CREATE, 0600, NULL, NULL) : NULL;

	if (!log)
		return 2;
	if (!strcmp(argv[1], "check"))
		return check(log);
	for (unsigned i = 0; i < 10; i++) {
		CRASHTEST_BEGIN(i);
		append(log, log->count + 1);
		CRASHTEST_END(i);
	}
	return 0;
}
