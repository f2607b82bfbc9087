"""docs/papers/scmfs.md: the figures of SCMFS (Wu and Reddy, SC 2011) beside ours."""

import os

from page import origin, paragraph, simulate, table, write

FIGURES = [
    ["6, 7: IOzone, sequential and random", "SCMFS, ramfs, tmpfs, ext2",
     "[IOzone's matrix](../measurements/iozone.md)", "the same records, a file of this machine's size"],
    ["8: PostMark", "SCMFS, tmpfs, ramfs, ext2", "[PostMark](../measurements/postmark.md)",
     "peers of this kernel"],
    ["9, 10: threads", "1 to 4 threads", "[threads](../measurements/scaling.md)",
     "this machine has two processors"],
    ["11: TLB misses", "counters of the processor", "[misses](../measurements/misses.md)",
     "by a model: virtual machines have no counters"],
    ["wear (§5)", "no numbers", "below, and [wear](../measurements/wear.md)",
     "the paper only names the technique"],
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
    write("scmfs.md", [
        origin(command, "scmfs"),
        "# SCMFS: the paper and here\n",
        paragraph("Figures of \"SCMFS: A File System for Storage Class Memory\" (Wu and Reddy, SC "
                  "2011). Measured times are in the pages that the table names; what follows are "
                  f"counts and models without a clock, at 1/{scale} of the operations."),
        table(["figure", "the paper", "here", "why"], FIGURES, 4),
        "## Bytes written\n",
        paragraph("For each operation: lines flushed, bytes stored past the cache, fences."),
        table(["workload", "layout", "operations", "lines flushed", "bytes past the cache",
               "fences"], rows, 2),
        "## Wear (§5)\n",
        paragraph("PostMark, for ever, in 1 GiB whose cells endure 10^8 writes: hours until the "
                  "first cell fails, by kind of levelling. An operation computes for 1 µs."),
        table(["layout", "most writes of a line", *[f"{name}, h" for name in names]], wear),
    ])
