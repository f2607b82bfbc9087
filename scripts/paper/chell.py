"""docs/papers/chell.md: the figures of Chell (Liu et al.) beside ours."""

import json
import os
import re
import subprocess

from page import KEEPSTONE, ROOT, bars, bench, duration, lines, origin, paragraph, table, write

OURS, PEER = "keepstone", "kernel"
PAGE = 4096
SIZES = {"8B": 8, "64B": 64, "512B": 512, "4K": 4 << 10, "16K": 16 << 10, "32K": 32 << 10,
         "64K": 64 << 10, "256K": 256 << 10, "1M": 1 << 20, "4M": 4 << 20}
MIXES = [(order, reads) for order in ("sequential", "random") for reads in (100, 50, 1)]
THREADS = [1, 4, 16]
PERSONALITIES = ["fileserver-128K", "fileserver-512K", "fileserver-2M", "webserver", "webserver-2M",
                 "varmail-16K", "varmail-128K", "varmail-512K"]
BTREES = ["bdb-1", "bdb-2", "bdb-4", "bdb-8"]


def script(name, *args, **environment):
    """Runs a script of scripts/bench; returns what it prints."""
    command = [os.path.join(ROOT, "scripts", "bench", name), *map(str, args)]
    environment = {**os.environ, "KEEPSTONE": KEEPSTONE, **environment}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return done.stdout


def speedup(times):
    return times[PEER] / times[OURS]


def by_size(name, title, cases, kinds):
    """Plots latencies by size of request: `kinds` maps labels to a prefix and a contender."""
    series = []
    for label, (prefix, contender) in kinds.items():
        points = [(SIZES[case[len(prefix):]], of[contender]) for case, of in cases.items()
                  if case.startswith(prefix) and case[len(prefix):] in SIZES]
        series.append((label, points))
    return lines(f"chell-figure-{name}.svg", title, "bytes of a request", "ns", series)


def latencies(cases):
    rows = []
    for size in SIZES:
        row = [size]
        for verb in ("pread", "pwrite"):
            times = cases.get(f"{verb}/{size}")
            row += [duration(times[PEER]), duration(times[OURS]),
                    f"{speedup(times):.2f}"] if times else ["-"] * 3
        if row[1] != "-":
            rows.append(row)
    head = ["size", "read, kernel", "read, direct", "factor", "write, kernel", "write, direct",
            "factor"]
    plots = [by_size("2-read", "Reads by size (Chell Figure 2)", cases,
                     {PEER: ("pread/", PEER), "direct": ("pread/", OURS)}),
             by_size("2-write", "Writes by size (Chell Figure 2)", cases,
                     {PEER: ("pwrite/", PEER), "direct": ("pwrite/", OURS)})]
    return "\n".join([*plots, table(head, rows)])


def first_touches(cases):
    rows = []
    for pages in (512, 256, 128, 64, 16):
        times = cases[f"first-touch/{pages}"]
        rows.append([f"{pages} ({100 * pages // 512} %)",
                     *[duration(times[of]) for of in ("on demand", "populated", PEER)]])
    plot = bars("chell-figure-3.svg", "First access to a page (Chell Figure 3)", "ns a page",
                [row[0] for row in rows],
                [(of, [cases[f"first-touch/{row[0].split()[0]}"][of] for row in rows])
                 for of in ("on demand", "populated", PEER)])
    return plot + "\n" + table(["pages of 512", "on demand", "populated", PEER], rows)


def mixes(figure, title, cases):
    """Plots xdd's mixes by threads; returns plots and table."""
    groups = [f"{order[:3]} {reads} %" for order, reads in MIXES]
    rows, plots = [], []
    for threads in THREADS:
        of = [cases[f"xdd/{order}/{reads}% reads/{threads}"] for order, reads in MIXES]
        rates = [(label, [PAGE / times[label] * 1e3 for times in of]) for label in (PEER, OURS)]
        name = f"chell-figure-{figure}-{threads}.svg"
        plots.append(bars(name, f"{title}, threads: {threads}", "MB/s", groups, rates))
        rows += [[f"{order}, {reads} % reads", threads, f"{PAGE / times[PEER] * 1e3:.0f}",
                  f"{PAGE / times[OURS] * 1e3:.0f}", f"{speedup(times):.2f}"]
                 for (order, reads), times in zip(MIXES, of)]
    head = ["mix", "threads", f"{PEER}, MB/s", "here, MB/s", "factor"]
    return "\n".join([*plots, table(head, rows)])


def iozone(cases):
    tests = {"read": "hit/read/4K", "random read": "hit/pread/4K", "backward read": "hit/backward/4K",
             "strided read": "hit/strided/4K", "write": "append/4K", "re-write": "hit/rewrite/4K",
             "random write": "hit/pwrite/4K", "record re-write": "hit/record-rewrite/4K"}
    rows = [[name, duration(cases[case][PEER]), duration(cases[case][OURS]),
             f"{speedup(cases[case]):.2f}"] for name, case in tests.items()]
    plot = bars("chell-figure-9.svg", "IOzone's tests on the cache (Chell Figure 9)", "MB/s",
                [name.replace("record", "rec.") for name in tests],
                [(label, [PAGE / cases[case][label] * 1e3 for case in tests.values()])
                 for label in (PEER, OURS)])
    return plot + "\n" + table(["test", PEER, "cache", "factor"], rows), rows


def appends(cases):
    sizes = [case.split("/")[1] for case in cases if case.startswith("append/")]
    labels = [PEER, "kernel, allocated first", OURS]
    plot = by_size("10", "Appends by size (Chell Figure 10)", cases,
                   {label: ("append/", label) for label in labels})
    rows = [[size, *[duration(cases[f"append/{size}"][label]) for label in labels]] for size in sizes]
    return plot + "\n" + table(["size", PEER, "kernel, fallocate first", "cache"], rows)


def programs(name, title, found, rows):
    """Plots times of programs, those on the page cache of ext4 divided by those on the cache."""
    series = [(label, [found[row]["ext4_us"] / found[row][f"{key}_us"] for row in rows])
              for label, key in (("cache", "run"), ("pool", "bpfs"))]
    plot = bars(f"chell-figure-{name}.svg", title, "speed, ext4 = 1",
                [row.replace("server", "s") for row in rows], series)
    body = [[row, *[f"{found[row][f'{key}_us'] / 1e6:.3f}" for key in ("ext4", "run", "bpfs")],
             f"{found[row]['ext4_us'] / found[row]['run_us']:.2f}"] for row in rows]
    return plot + "\n" + table(["load", "ext4, s", "cache, s", "pool, s", "ext4 / cache"], body)


def breakdown(cases):
    rows = []
    for verb in ("pread", "pwrite"):
        times = cases[f"{verb}/4K"]
        rows.append([verb, duration(times["copy"]), duration(times[OURS] - times["copy"]),
                     f"{100 * times['copy'] / times[OURS]:.0f} %"])
    plot = bars("chell-figure-13.svg", "Parts of a call of 4 KiB (Chell Figure 13)", "ns",
                [row[0] for row in rows],
                [("copy", [cases[f"{row[0]}/4K"]["copy"] for row in rows]),
                 ("rest", [cases[f"{row[0]}/4K"][OURS] - cases[f"{row[0]}/4K"]["copy"]
                           for row in rows])])
    return plot + "\n" + table(["call", "copy", "rest", "share of the copy"], rows), rows


def lent(cases):
    rows = []
    for size in SIZES:
        if (times := cases.get(f"lend/{size}")) and (read := cases.get(f"pread/{size}")):
            rows.append([size, duration(read[PEER]), duration(read[OURS]), duration(times[OURS]),
                         f"{read[OURS] / times[OURS]:.1f}"])
    plot = by_size("14", "Reading without a copy (Chell Figure 14)", cases, {
        PEER: ("pread/", PEER), "direct": ("pread/", OURS), "without a copy": ("lend/", OURS)})
    head = ["size", PEER, "direct", "without a copy", "direct / without"]
    return plot + "\n" + table(head, rows), rows


def tests(direct, cached, found, btree, parts):
    """Returns the rows of the first table, with results of this run."""

    def pair(cases, case):
        times = cases[case]
        return (f"{duration(times[OURS])} and {duration(times[PEER])} "
                f"({100 * (1 - times[OURS] / times[PEER]):.0f} % less)")

    def mix(cases, order, reads, threads):
        return speedup(cases[f"xdd/{order}/{reads}% reads/{threads}"])

    def gain(row):
        return f"{found[row]['ext4_us'] / found[row]['run_us']:.2f}"

    touch = direct["first-touch/512"]
    gains = [float(row[3]) for row in parts["iozone"]]
    writes = [mix(direct, order, 1, n) for order in ("sequential", "random") for n in (4, 16)]
    peer_is_tmpfs = "tmpfs instead of PMFS, which is in no kernel of today; its calls are shorter"
    return [
        ["1, 5, 6: architecture", "drawings", "[ARCHITECTURE](../ARCHITECTURE.md)",
         "nothing to measure"],
        ["2: a call of 4 KiB", "read 0.39 µs and PMFS 0.48; write 0.51 and 0.63 (19 % less)",
         f"read {pair(direct, 'pread/4K')}; write {pair(direct, 'pwrite/4K')}", peer_is_tmpfs],
        ["§3.1: an append of 4 KiB", "1.3 µs, and 1.1 by PMFS", pair(direct, "append/4K"),
         "both make the kernel's call"],
        ["3: first access to a page", "398 ns populated (88 of them for mmap), 615 on demand",
         f"{duration(touch['populated'])} populated, {duration(touch['on demand'])} on demand",
         "the kernel now maps pages around a fault, so populating gains less"],
        ["4: xdd", "1 thread: 4 to 21 % more; writes of 4 and 16 threads up to 2.7 and 4.2 times",
         f"1 thread, random reads: {mix(direct, 'random', 100, 1):.2f} times; writes of 4 and 16 "
         f"threads: {min(writes):.2f} to {max(writes):.2f} times",
         "tmpfs takes the lock of the file for a write, as PMFS"],
        ["Table 1: Berkeley DB", "27 160 operations a second on PMFS, 29 019 (6 % more)",
         f"{100 * (btree['ratio'] - 1):.0f} % more",
         f"{btree['share']} % of the time is the kernel's without it, about 25 % in the paper"],
        ["7: xdd on the cache", "sequential writes 4.1, 9 and 5.6 times (1, 4, 16 threads), random "
         "reads 1.03, 1.19 and 1.74",
         "sequential writes {:.2f}, {:.2f} and {:.2f} times, random reads {:.2f}, {:.2f} and {:.2f}"
         .format(*[mix(cached, order, reads, n) for order, reads in (("sequential", 1),
                                                                    ("random", 100))
                   for n in THREADS]),
         "files of 16 MiB instead of 1 GB; two processors instead of more than four"],
        ["8: a hit of 4 KiB", "read 0.52 µs and page cache 0.79 (35 % less); write 0.62 and 1.24 "
         "(50 % less)", f"read {pair(cached, 'hit/pread/4K')}; write {pair(cached, 'hit/pwrite/4K')}",
         "writes here are durable in the pool when they return"],
        ["9: IOzone on the cache", "from 29 % (random read) to 103 % more (random write)",
         f"{100 * (min(gains) - 1):.0f} % to {100 * (max(gains) - 1):.0f} % more",
         "files of 64 and 16 MiB instead of 1 GB"],
        ["10: appends", "fallocate pays from 32 kB on", "below",
         "the cache here allocates nothing in the backing store: it writes back later"],
        ["11: Berkeley DB on the cache", "3.7 to 4.8 times with 1 to 8 threads",
         " ".join(gain(row) for row in BTREES) + " times",
         "the paper's SSD against this machine's disk; each write is a durable transaction"],
        ["12: Filebench", "fileserver 0.77, 1.31, 1.91; webserver 1.28 (2 MB); varmail 0.82 to 3.4",
         f"fileserver {', '.join(gain(row) for row in PERSONALITIES[:3])}; webserver "
         f"{gain('webserver-2M')} (2 MB); varmail {', '.join(gain(row) for row in PERSONALITIES[5:])}",
         "new files stay in the cache here, and cost no call on the disk"],
        ["13: share of the copy", "76 % of a read of 4 KiB, 77 % of a write",
         f"{parts['copy'][0][3]} and {parts['copy'][1][3]}",
         "the file of 1 MiB lies in the processor's caches here, so that copies are short"],
        ["14: get_read_buf", "4.2 times at 4 KiB, 700 times at 1 MB",
         " and ".join(f"{row[4]} times at {row[0]}" for row in parts["lent"]
                      if row[0] in ("4K", "1M")),
         "`ks_fd_get_read_buf`, whose bytes have to be given back"],
    ]


def page(directory, scale, command):
    rounds = 5 if scale == 1 else 1
    direct = bench(scale, "chell")
    cached = bench(scale, "cached")
    saved = os.path.join(directory, "programs.json")
    script("cache.sh", *BTREES, *PERSONALITIES, ROUNDS=str(rounds), JSON=saved)
    with open(saved) as file:
        found = {row["program"]: row for row in json.load(file)}
    printed = script("chell-programs.sh", 2 * rounds + 1)
    ratio, share = re.search(r"btree: x([\d.]+) as fast.*?; (\d+) %", printed).groups()
    parts = {}
    nine, parts["iozone"] = iozone(cached)
    thirteen, parts["copy"] = breakdown(direct)
    fourteen, parts["lent"] = lent(direct)
    btree = {"ratio": float(ratio), "share": share}
    write("chell.md", [
        origin(command, "bpfs"),
        "# Chell: the paper and here\n",
        paragraph("Figures of \"Accelerating Storage Access with Persistent Memory\" (Chell), from "
                  "measurements of this run. The paper has DDR3 for the memory, PMFS for direct "
                  "access, and ext4 on an SSD of 120 GB below the cache. DRAM stands for persistent "
                  "memory in both."),
        paragraph("This machine has no DAX hardware. So times of direct access are on tmpfs, whose "
                  "mappings are as direct; `make nvdimm-test` and `make dax-programs-test` check "
                  "results on ext4 and XFS with DAX in an emulated machine, where times mean "
                  "nothing. The disk below the cache is a virtual one, and its host may answer from "
                  "memory."),
        table(["figure", "the paper", "here", "why"], tests(direct, cached, found, btree, parts), 4),
        "## Figure 2: calls by size\n", latencies(direct),
        "## Figure 3: first access\n",
        paragraph("A page of a mapping of 2 MiB that is made for it: the time of `mmap`, `munmap` "
                  "and faults is shared by the pages that are read."),
        first_touches(direct),
        "## Figure 4: xdd by direct access\n",
        paragraph("Calls of 4 KiB in 16 MiB of one file."),
        mixes("4", "xdd by direct access (Chell Figure 4)", direct),
        "## Figure 7: xdd on the cache\n", mixes("7", "xdd on the cache (Chell Figure 7)", cached),
        "## Figure 9: IOzone on the cache\n", nine,
        "## Figure 10: appends\n", appends(cached),
        "## Figure 11: Berkeley DB on the cache\n",
        paragraph("A B-tree, 35 % reads, each write a durable transaction; best of "
                  f"{rounds} rounds. *pool* is a BPFS pool without a file system below."),
        programs("11", "Berkeley DB (Chell Figure 11)", found, BTREES),
        "## Figure 12: Filebench\n",
        paragraph("64 MiB of files, 8 threads; best of the same rounds. Names end with the mean size "
                  "of a file; `webserver` has 32 KiB."),
        programs("12", "Filebench (Chell Figure 12)", found, PERSONALITIES),
        "## Figure 13: parts of a call\n", thirteen,
        "## Figure 14: reading without a copy\n", fourteen,
    ])
