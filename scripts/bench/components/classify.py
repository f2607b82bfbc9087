#!/usr/bin/python3
"""The time of one call by component, from samples of `perf record -g`.

    perf script --no-demangle -F comm,ip,sym,symoff,dso | classify.py LIBRARY ELAPSED RUNNING [SYMBOLS]

ELAPSED and RUNNING are ns per call, by the clock and on the CPU. Samples divide RUNNING; the difference is waiting.
Prints a line for each component, ns and its name. SYMBOLS is a file that gets each component's functions, the most frequent first.

In the kernel, a sample belongs to the innermost of its frames that has a component, so a lock or a list belongs to its user. In
user space, which has no frames, it belongs to the function. If in LIBRARY the instruction before it orders, flushes or bypasses
the cache, the sample belongs to that instruction: it may be inlined from another crate, and it waits for stores of others.
"""

import collections, re, subprocess, sys

COMPONENTS = ["system call gate", "VFS", "page cache", "memory copy", "file system", "block layer", "waiting for the disk",
              "interposition", "pool's engine", "locked instructions", "medium", "other"]

# Components of kernel functions; the first pattern that matches a frame counts.
KERNEL = [(component, re.compile(f"(?:{pattern})")) for component, pattern in {
    "other": r"asm_|sysvec_|handle_softirqs|do_softirq|__irq|irq_|hrtimer_|task_work|exc_",
    "memory copy": r"_?copy_(to|from|folio|page|mc|user)|copy_\w*_from_iter|rep_movs|__?memcpy|memcpy|memmove",
    "block layer": r"_*(blk|bio|submit_bio|blkdev|elv|dd|wbt|rq_qos|sbitmap|loop|lo)_|_*submit_bio|virtblk|bdev_|"
                   r"(io_)?schedule|__schedule|finish_task_switch|wait_for_completion",
    "file system": r"_*(ext4|jbd2|mb|dquot|mpage_\w*extent)_",
    "page cache": r"_*(filemap|folio|folios|xas|xa|iomap|pagecache|page|block|lru|mod_node|lruvec|workingset|writeback|wb|wbc)_|"
                  r"generic_perform_write|mark_buffer|create_empty_buffers|do_writepages|write_cache_pages|balance_dirty|"
                  r"fault_in|file_write_and_wait|file_check_and_advance|sync_inode|tag_pages|_*find_get|_*mark_inode_dirty|"
                  r"inode_(attach_wb|io_list)|locked_inode|_*writeback",
    "VFS": r"_*(vfs|ksys|fsnotify|fanotify|security|bpf_lsm|apparmor|selinux|fdget|fput|fget|file|inode|kiocb|mnt|sb|iov_iter|"
           r"import|generic_(write|file|update))(_|$)|new_sync|rw_verify|touch_atime|current_time|setattr|"
           r"timestamp_|ktime_get_(coarse|real)|should_remove|dentry_needs|take_dentry|exportfs|generic_encode",
    "system call gate": r"entry_SYSCALL|syscall_|_*do_syscall|_*x64_sys|exit_to_user|arch_exit",
}.items()]

CRATES = {
    **dict.fromkeys(["keepstone", "preload", "direct", "posix", "mounts", "os", "counters"], "interposition"),
    **dict.fromkeys(["bpfs", "scmfs", "namespace", "pool", "engines", "arena", "vfs", "rng", "eviction"],
                    "pool's engine"),
    "pmem": "medium",
}
MEDIUM = re.compile(r"[lsm]fence|clwb|clflush|movdir64b|v?movnt")
LOCKED = re.compile(r"lock |xchg .*\(")
COPY = re.compile(r"_*(mem(move|cpy|set)|wmemset)")


class Library:
    """The library's functions, and its instructions that follow an instruction which orders or flushes."""

    def __init__(self, path):
        def run(*command):
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()

        symbols = [line.split(None, 2) for line in run("nm", "--defined-only", path)]
        demangled = [line.split(None, 2) for line in run("nm", "--defined-only", "--demangle", path)]
        self.at = {name: int(address, 16) for address, _, name in symbols}
        self.named = {mangled[2]: plain[2] for mangled, plain in zip(symbols, demangled)}
        self.after, before = {}, ""
        for line in run("objdump", "--disassemble", "--no-show-raw-insn", path):
            address, colon, instruction = line.partition(":\t")
            if colon:
                if MEDIUM.match(before):
                    self.after[int(address, 16)] = "medium"
                elif LOCKED.match(before):
                    self.after[int(address, 16)] = "locked instructions"
                before = instruction

    def component(self, symbol, offset):
        name = self.named.get(symbol, symbol)
        crate = next((c for c in re.findall(r"(?<!std::)\b([a-z_0-9]+)::", name) if c in CRATES), None)
        if COPY.match(name) or re.search(r"(write|copy|zero)_(nt|durably)", name):
            return "memory copy", name
        if crate == "pmem":
            return "medium", name
        after = self.after.get(self.at.get(symbol, 0) + offset)
        if after:
            return after, name
        # Functions without a crate are the calls of libc that the library replaces.
        return CRATES[crate] if crate else "other" if "::" in name or symbol == "[unknown]" else "interposition", name


def kernel(frames):
    for symbol in frames:
        for component, pattern in KERNEL:
            if pattern.match(symbol):
                return component
    return "other"


def classify(frames, library):
    """Returns the component of a sample and the function to list. Frames: symbol, offset, file; innermost first."""
    symbol, offset, dso = frames[0]
    if dso.startswith("[kernel") or dso.startswith("[guest.kernel"):
        return kernel([s for s, _, d in frames if d == dso]), symbol
    if dso.endswith("/libkeepstone.so"):
        return library.component(symbol, offset)
    # The clock, for the time stamps of a write.
    if dso == "[vdso]":
        return "pool's engine", symbol
    if COPY.match(symbol):
        return "memory copy", symbol
    # Interrupts are off at the exit of the kernel: a sample that is due there is taken after it.
    if "pwrite" in symbol and "libc" in dso:
        return "system call gate", symbol
    if "pthread_testcancel" in symbol:
        return "interposition", symbol
    return "other", symbol


def samples(lines):
    frames, frame = [], re.compile(r"\s+[0-9a-f]+ (.*?)(?:\+0x([0-9a-f]+))? \((.*)\)$")
    for line in lines:
        if found := frame.match(line):
            symbol, offset, dso = found.groups()
            frames.append((symbol, int(offset or "0", 16), dso))
        elif frames:
            yield frames
            frames = []
    if frames:
        yield frames


def main(path, elapsed, running, symbols=None):
    elapsed, running, library = float(elapsed), float(running), Library(path)
    functions = {component: collections.Counter() for component in COMPONENTS}
    for frames in samples(sys.stdin):
        component, function = classify(frames, library)
        functions[component][function] += 1
    total = sum(counter.total() for counter in functions.values())
    if total < 100:
        sys.exit(f"classify.py: {total} samples are too few")
    for component in COMPONENTS:
        ns = running * functions[component].total() / total
        if component == "waiting for the disk":
            ns = max(elapsed - running, 0)
        print(f"{ns:.1f}\t{component}")
    if symbols:
        with open(symbols, "a") as file:
            for component, counter in functions.items():
                for function, count in counter.most_common():
                    print(f"{running * count / total:10.1f}  {component:20} {function}", file=file)


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    main(*sys.argv[1:])
