/* The clock of these programs. Include it after _GNU_SOURCE is defined. */
#include <time.h>

/* Seconds since some point in the past. */
static inline double seconds(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}
