/* The functions of libpmem that the programs use, for machines without its header. */
#ifndef LIBPMEM_H
#define LIBPMEM_H

#include <stddef.h>
#include <sys/types.h>

#define PMEM_FILE_CREATE (1 << 0)

void *pmem_map_file(const char *path, size_t len, int flags, mode_t mode, size_t *mapped_len, int *is_pmem);
void pmem_persist(const void *addr, size_t len);
void pmem_flush(const void *addr, size_t len);
void pmem_drain(void);

#endif
