"""docs/papers/scmfs.md: the figures of SCMFS (Wu and Reddy, SC 2011) beside ours."""

import os

from page import bars, bench, origin, paragraph, simulate, table, write

SYSTEMS = ["scmfs", "tmpfs", "ramfs", "ext2", "ext4"]
BYTES = {"4K": 4 << 10, "64K": 64 << 10, "512K": 512 << 10}
SEQUENTIAL, RANDOM = ["write", "re-write", "read", "re-read"], ["random read", "random write"]
MIXES = ["read-intensive", "write-intensive"]


def iozone(number, title, cases, workloads):
    """Plots MB/s of IOzone's workloads; returns plot and table."""
    names = [(workload, record) for workload in workloads for record in BYTES]
    rates = {system: [BYTES[record] / cases[f"iozone/{workload}/{record}"][system] * 1e3
                      for workload, record in names] for system in SYSTEMS}
    groups = [f"{workload[:8]} {record}" if len(names) < 7 else record for workload, record in names]
    plot = bars(f"scmfs-figure-{number}.svg", f"{title} (SCMFS Figure {number})", "MB/s", groups,
                list(rates.items()))
    rows = [[f"{workload}, {record}", *[f"{rates[system][i]:.0f}" for system in SYSTEMS]]
            for i, (workload, record) in enumerate(names)]
    return plot + "\n" + table(["workload, record", *[f"{name}, MB/s" for name in SYSTEMS]], rows)


def threads(cases, number, kinds, suffix):
    """Plots MB/s by threads; returns plot and table."""
    names = [name for name in cases if name.split("/")[1] in kinds]
    names = [name for name in names if name.split("/")[2] == "4K"]
    systems = [f"{system}{suffix}" for system in SYSTEMS]
    systems = [system for system in systems if all(system in cases[name] for name in names)]
    rates = {system: [BYTES["4K"] / cases[name][system] * 1e3 for name in names]
             for system in systems}
    labels = [f"{name.split('/')[1]}, {name.split('/')[3]}" for name in names]
    plot = bars(f"scmfs-figure-{number}.svg", f"Threads (SCMFS Figure {number})", "MB/s", labels,
                list(rates.items()))
    rows = [[label, *[f"{of[i]:.0f}" for of in rates.values()]] for i, label in enumerate(labels)]
    return plot + "\n" + table(["kind, threads", *[f"{name}, MB/s" for name in systems]], rows)


def postmark(cases):
    systems = ["scmfs", "scmfs-2", "scmfs-1", *SYSTEMS[1:]]
    rates = {system: [1e9 / cases[f"postmark/{mix}/transactions"][system] for mix in MIXES]
             for system in systems}
    plot = bars("scmfs-figure-11.svg", "PostMark (SCMFS Figure 11)", "transactions a second", MIXES,
                list(rates.items()))
    rows = [[system, *[f"{rate:.0f}" for rate in of]] for system, of in rates.items()]
    return plot + "\n" + table(["system", *[f"{mix}, a second" for mix in MIXES]], rows)


def figures(matrix, mixes):
    """Returns the first table, with results of this run."""

    def spread(workloads, peer):
        ratios = [matrix[f"iozone/{workload}/{record}"] for workload in workloads
                  for record in BYTES]
        ratios = [times[peer] / times["scmfs"] for times in ratios]
        return f"{min(ratios):.1f} to {max(ratios):.1f}"

    def gain(mix, one, other):
        times = mixes[f"postmark/{mix}/transactions"]
        return f"{times[other] / times[one]:.2f}"

    return [
        ["6: IOzone, sequential", "SCMFS beside ramfs, tmpfs and ext2, with TLB misses",
         f"{spread(SEQUENTIAL, 'tmpfs')} times as fast as tmpfs, {spread(SEQUENTIAL, 'ext2')} as ext2",
         "calls of a library instead of system calls; [more records](../measurements/iozone.md)"],
        ["7: IOzone, random", "the same",
         f"{spread(RANDOM, 'tmpfs')} times as fast as tmpfs, {spread(RANDOM, 'ext2')} as ext2",
         "misses of the TLB by a model ([misses](../measurements/misses.md)): virtual machines have no "
         "counters"],
        ["8: without large pages", "SCMFS is slower than with them",
         "[misses](../measurements/misses.md)", "page sizes by a model"],
        ["9, 10: threads, with `mmap`", "1 to 4 threads, up to 7 of 10 GB/s", "below",
         "this machine has two processors; [shares of bare copies](../measurements/scaling.md)"],
        ["11: PostMark", "writes 22 % faster than ext2 with consistency; without it, pre-allocation "
         "gains 5 %",
         "scmfs / ext2: {} (writes), {} (reads); pre-allocation {} without consistency".format(
             gain(MIXES[1], "scmfs", "ext2"), gain(MIXES[0], "scmfs", "ext2"),
             gain(MIXES[1], "scmfs-2", "scmfs-1")),
         "ext2 passes the page cache and a RAM disk here, as there; [more "
         "phases](../measurements/postmark.md)"],
        ["wear (§5)", "future work", "below, and [wear](../measurements/wear.md)",
         "the paper has no numbers"],
    ]


def page(directory, scale, command):
    rows, wear = [], []
    for workload, operations in [("append", 130_000 // scale), ("postmark", 5000 // min(scale, 5)),
                                 ("create", 10_000 // min(scale, 5))]:
        for layout in ["scmfs", "bpfs"]:
            trace = os.path.join(directory, f"{layout}-{workload}")
            simulate("record", trace, "--layout", layout, "--workload", workload,
                     "--operations", operations, "--bytes", 4096, "--size", "1G")
            found = simulate("describe", trace)
            flushed, past = found["flushes"]["lines"], found["nt_stores"]["bytes"]
            rows.append([f"{workload}, 4 KiB", layout, operations, f"{flushed / operations:.2f}",
                         f"{past / operations:.0f}", f"{found['fences'] / operations:.2f}"])
            if workload == "postmark":
                worn = simulate("wear", trace, "--computation", 1000, "--capacity", "1G")
                lives = {life["levelling"]: life["hours"] for life in worn["lifetimes"]
                         if life["endurance"] == 1e8}
                wear.append([layout, worn["totals"]["line_max"],
                             *[f"{hours:.3g}" for hours in lives.values()]])
                names = list(lives)
    matrix = bench(scale, "iozone", *[f"/{record}" for record in BYTES])
    scaled = bench(scale, "scaling", "/4K/", "--threads", 4)
    mixes = bench(scale, "postmark", "/transactions")
    write("scmfs.md", [
        origin(command, "scmfs"),
        "# SCMFS: the paper and here\n",
        paragraph("Figures of \"SCMFS: A File System for Storage Class Memory\" (Wu and Reddy, SC "
                  "2011), from measurements of this run, and from counts and models without a clock, "
                  f"at 1/{scale} of the operations. DRAM stands for persistent memory. No contender "
                  "syncs."),
        table(["figure", "the paper", "here", "why"], figures(matrix, mixes), 4),
        "## Figure 6: IOzone, sequential\n",
        iozone("6", "IOzone, sequential: write, re-write, read, re-read", matrix, SEQUENTIAL),
        "## Figure 7: IOzone, random\n", iozone("7", "IOzone, random", matrix, RANDOM),
        "## Figure 9: threads\n",
        paragraph("Records of 4 KiB at random places, by 1 to 4 threads, each in its own file, or "
                  "all in one (`write-one`)."),
        threads(scaled, "9", ("read", "write", "write-one"), ""),
        "## Figure 10: threads, with mmap\n", threads(scaled, "10", ("read", "write"), ", mapped"),
        "## Figure 11: PostMark\n",
        paragraph("10 000 files in 100 directories, then transactions. `scmfs-2` has no "
                  "consistency, `scmfs-1` no pre-allocation either. The paper's SCMFS-1 is the "
                  "first, and its SCMFS-3 is `scmfs` here."),
        postmark(mixes),
        "## Bytes written\n",
        paragraph("For each operation: lines flushed, bytes stored past the cache, fences."),
        table(["workload", "layout", "operations", "lines flushed", "bytes past the cache",
               "fences"], rows, 2),
        "## Wear (§5)\n",
        paragraph("PostMark, for ever, in 1 GiB whose cells endure 10^8 writes: hours until the "
                  "first cell fails, by kind of levelling. An operation computes for 1 µs."),
        table(["layout", "most writes of a line", *[f"{name}, h" for name in names]], wear),
    ])
