/* Keepstone: files in persistent memory, in the caller's own process.
 *
 * A pool is opened by its path; no mount is needed, and any number of processes may have it open,
 * with and without a mount (not one made with `-o exclusive`). Where the pool's memory is durable, every function is
 * atomic, and durable when it returns; in a pool of the layout scmfs not the content of files, which is
 * durable when ks_fsync or ks_close_pool has returned. Functions return -1 (handles: NULL) and set errno, as the
 * functions of POSIX they are named after. Whoever may open the pool for reading and writing may do
 * everything in it; permission bits are stored and not checked. A buffer or string that is not accessible gives EFAULT; handles
 * are not checked.
 *
 * The symbols have versions (KEEPSTONE_0.1): programs that are linked with this library run with later ones of the same
 * soname. Handles may be used by several threads, not by a forked child. Paths begin at the pool's root.
 *
 *     cc program.c -I include -L target/release -lkeepstone
 */
#ifndef KEEPSTONE_H
#define KEEPSTONE_H

#include <dirent.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ks_pool ks_pool;
typedef struct ks_file ks_file;
typedef struct ks_dir ks_dir;

/* Makes a pool of size bytes in a new file, and leaves it closed. layout: "bpfs" or "scmfs"; NULL is "bpfs". `keepstone mkfs`
 * can do more. */
int ks_make_pool(const char *path, off_t size, const char *layout);
/* What the kernel says of the file (ENOENT, EACCES…), EINVAL where it is no pool, EUCLEAN where it is damaged,
 * EBUSY where a mount has it for itself; KEEPSTONE_DEBUG=1 tells more on stderr. */
ks_pool *ks_open_pool(const char *path);
/* The meaning of an error number of these functions, in words; of others as strerror. */
const char *ks_strerror(int errnum);
/* Its files may stay open. What was done is durable then; EIO where that is not known. */
int ks_close_pool(ks_pool *pool);

/* flags: O_RDONLY, O_WRONLY or O_RDWR, with O_CREAT, O_EXCL, O_TRUNC, O_APPEND. The umask is not
 * applied. Regular files only. */
ks_file *ks_open(ks_pool *pool, const char *path, int flags, mode_t mode);
int ks_close(ks_file *file);
ssize_t ks_read(ks_file *file, void *buf, size_t count);
ssize_t ks_write(ks_file *file, const void *data, size_t count);
ssize_t ks_pread(ks_file *file, void *buf, size_t count, off_t offset);
ssize_t ks_pwrite(ks_file *file, const void *data, size_t count, off_t offset);
/* Where the bytes at offset lie in the pool, without a copy: sets *buf, returns how many bytes can be
 * read there (0 at its end). They stay until given back, once per call and before the file is closed,
 * whatever happens to the file meanwhile. In a pool of the layout scmfs that is all of count that the file
 * has (its blocks are mapped behind each other where they do not lie so, unless these are very many, or much
 * of it is holes), and what is written to the file shows; of the layout bpfs, fewer where the file is not
 * contiguous, and only what is written within 8 aligned bytes shows. */
ssize_t ks_get_read_buf(ks_file *file, size_t count, off_t offset, const void **buf);
int ks_put_read_buf(ks_file *file);
/* The same to be stored to, in a pool of the layout scmfs: sets *buf, returns how many bytes of the file are
 * there (fewer than count, or 0, only at its end: ks_ftruncate makes it longer before). What is stored shows at
 * once to all who read the file, and is durable when ks_put_write_buf has given the buffer back, by its address and
 * before the file is closed; until then a crash may leave any of it. ENOTSUP in pools of other layouts, and where
 * too much of the range would have to be allocated; EBUSY while a program without the library has the file open. */
ssize_t ks_get_write_buf(ks_file *file, size_t count, off_t offset, void **buf);
int ks_put_write_buf(ks_file *file, const void *buf);
/* Maps length bytes of a file from offset on as one piece of memory, all of them or none, without a copy. prot: PROT_READ,
 * or PROT_READ | PROT_WRITE in a pool of the layout scmfs. The bytes stay where they are until ks_unmap, or until the
 * file is closed, whatever happens to the file meanwhile; the pool need not stay open. What shows, and when stores
 * are durable, is as for ks_get_read_buf and ks_get_write_buf. Space that any program frees in a pool of the layout
 * bpfs can be used again only when no map of the pool is left. NULL with EINVAL: length is 0, or the range
 * ends behind the file. NULL with ENOTSUP: the bytes do not lie in one piece, or are a hole; ks_pread reads
 * them, and ks_get_read_buf gives the first piece. */
void *ks_map(ks_file *file, size_t length, int prot, off_t offset);
/* Gives a map back, by its address, after what was stored there is durable. EINVAL: there is no such map. */
int ks_unmap(ks_file *file, const void *addr);
/* The same as ks_get_read_buf for a descriptor of an ordinary file that `keepstone run --direct` serves (a tmpfs or DAX file
 * system): ENOTSUP for others, and for holes of sparse files; use pread then. Given back by address.
 * Writes to the file show, and what is cut off its end is gone: SIGBUS, as from mmap. */
ssize_t ks_fd_get_read_buf(int fd, size_t count, off_t offset, const void **buf);
int ks_fd_put_read_buf(const void *buf);
off_t ks_lseek(ks_file *file, off_t offset, int whence);
int ks_ftruncate(ks_file *file, off_t length);
/* mode: 0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, … as fallocate(2). */
int ks_fallocate(ks_file *file, int mode, off_t offset, off_t length);
/* Makes what was written to the file durable in a pool of the layout scmfs; elsewhere nothing is left to write. EIO where
 * the memory has not kept its word. */
int ks_fsync(ks_file *file);
int ks_fstat(ks_file *file, struct stat *buf);

int ks_stat(ks_pool *pool, const char *path, struct stat *buf);
int ks_mkdir(ks_pool *pool, const char *path, mode_t mode);
int ks_rmdir(ks_pool *pool, const char *path);
int ks_unlink(ks_pool *pool, const char *path);
int ks_rename(ks_pool *pool, const char *from, const char *to);
/* Clones a file, or a directory with all below it, to a new name, which appears as a whole (EEXIST if it exists).
 * Files share their blocks until one of them changes; a pool whose layout cannot do that copies. Attributes, extended
 * attributes, times and hard links within the tree are kept. */
int ks_clone(ks_pool *pool, const char *from, const char *to);

/* Snapshots and branches of a pool of the layout bpfs (ENOTSUP for others, and for the handle of a branch). Names
 * have 1 to 64 bytes (of branches 62) of UTF-8 without '/', '@' and control characters (EINVAL). A snapshot keeps
 * what all calls had done that returned before, of all programs. ks_open_pool("POOL@NAME") opens a branch. */
int ks_snapshot_create(ks_pool *pool, const char *name);
int ks_snapshot_delete(ks_pool *pool, const char *name);
/* Makes the tree of the pool the one of a snapshot, in one step, while this program and others use it. Snapshots and
 * branches stay. Files that are open stay open, without a name. */
int ks_snapshot_rollback(ks_pool *pool, const char *name);
/* The lists have the names, each with a NUL behind it. A size of 0 asks for the length; ERANGE: it is longer. */
ssize_t ks_snapshot_list(ks_pool *pool, char *list, size_t size);
ssize_t ks_branch_list(ks_pool *pool, char *list, size_t size);
/* Makes a branch of the present state of the pool: a tree of its own, which shares contents until they change. */
int ks_branch_create(ks_pool *pool, const char *name);
/* Makes a branch the tree of the pool, in one step; the branch ends. Changes of the pool since it was made are kept
 * where the branch has not changed the same path. Returns 0 if that is done. Otherwise both have changed some paths,
 * and nothing has changed: returns the bytes of a list of these, each with a NUL behind it, of which paths gets up to
 * size bytes. With KS_FORCE the pool gets the state of the branch for them. EBUSY: the branch is open or mounted;
 * EAGAIN: programs change the pool all the time. */
#define KS_FORCE 1
ssize_t ks_branch_commit(ks_pool *pool, const char *name, int flags, char *paths, size_t size);
/* Removes a branch; all its space becomes free. EBUSY as above. */
int ks_branch_discard(ks_pool *pool, const char *name);

/* Makes all that has completed in the pool durable. */
int ks_sync(ks_pool *pool);
int ks_statvfs(ks_pool *pool, struct statvfs *buf);
/* ks_lstat, ks_link and ks_readlink do not follow a symbolic link at the end of the path; the others do. */
int ks_lstat(ks_pool *pool, const char *path, struct stat *buf);
int ks_link(ks_pool *pool, const char *from, const char *to);
int ks_symlink(ks_pool *pool, const char *target, const char *path);
/* Returns the bytes of the target that fit, without a NUL. */
ssize_t ks_readlink(ks_pool *pool, const char *path, char *buf, size_t size);
int ks_chmod(ks_pool *pool, const char *path, mode_t mode);
/* An ID of -1 stays as it is. */
int ks_chown(ks_pool *pool, const char *path, uid_t owner, gid_t group);
/* Times of access and of modification; UTIME_NOW and UTIME_OMIT as utimensat(2). NULL: both are now. */
int ks_utimens(ks_pool *pool, const char *path, const struct timespec times[2]);
/* A size of 0 asks for the length. */
ssize_t ks_getxattr(ks_pool *pool, const char *path, const char *name, void *value, size_t size);
int ks_setxattr(ks_pool *pool, const char *path, const char *name, const void *value, size_t size, int flags);
ssize_t ks_listxattr(ks_pool *pool, const char *path, char *list, size_t size);
int ks_removexattr(ks_pool *pool, const char *path, const char *name);

/* The entries of a directory, "." and ".." among them. An entry stays until the next call on the same
 * handle, which one thread at a time may use. NULL at the end, and with errno set after a failure. */
ks_dir *ks_opendir(ks_pool *pool, const char *path);
const struct dirent *ks_readdir(ks_dir *dir);
int ks_closedir(ks_dir *dir);

#ifdef __cplusplus
}
#endif

#endif
