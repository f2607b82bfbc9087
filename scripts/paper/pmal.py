"""docs/papers/pmal.md: the tables and figures of PMAL (Song et al., 2017) beside ours."""

import json
import os

from page import bars, origin, paragraph, script, simulate, table, write

PERSONALITIES = ["fileserver-128K", "webserver", "webproxy", "varmail-16K", "oltp"]
STORES = ["ycsb-a", "forestdb"]
FILES = ["fileserver-100", "fileserver-1000", "fileserver-5000"]
COPIES = ["copy", "copy-rw"]
SYSTEMS = [("ext4", "ext4"), ("ext4, O_SYNC", "sync"), ("cache", "run"), ("pool", "bpfs")]
# Table II: nanoseconds of a write of less than 4 KiB by component, in ext4 without and with sync.
PAPER_TOTALS = {"PMAL": 37_863, "DAX": 23_661, "PMAL-O": 33_729, "DAX-S": 117_308}

# PMAL Table I: reads and writes in ns.
TABLE_1 = {"pcm": (20, 100), "stt-mram": (10, 10), "nvdimm-n": (10, 10)}


def programs(name, title, found, rows):
    """Plots times of programs divided by those on the cache; returns plot and table."""
    systems = [(label, f"{key}_us") for label, key in SYSTEMS
               if any(f"{key}_us" in found[row] for row in rows)]
    series = [(label, [found[row][key] / found[row]["run_us"] if key in found[row] else None
                       for row in rows]) for label, key in systems]
    plot = bars(f"pmal-figure-{name}.svg", f"{title} (PMAL Figure {name})", "time, cache = 1",
                [row.replace("fileserver", "files") for row in rows], series)
    body = [[row, *[f"{found[row][key] / 1e6:.3f}" if key in found[row] else "-"
                    for _, key in systems]] for row in rows]
    return plot + "\n" + table(["load", *[f"{label}, s" for label, _ in systems]], body)


def by_component(rows):
    """Returns nanoseconds by system and component, from rows of components."""
    names = {"ext4_async_ns": "ext4", "ext4_sync_ns": "ext4, O_SYNC", "cache_ns": "cache",
             "bpfs_ns": "bpfs"}
    return {system: {row["component"]: row[key] for row in rows} for key, system in names.items()}


def components(report):
    """Returns the table of a write by component."""
    systems = list(report)
    names = list(dict.fromkeys(name for of in report.values() for name in of))
    rows = [[name, *[f"{report[system].get(name, 0):.0f}" for system in systems]] for name in names]
    return table(["ns", *systems], rows)


def figures(found, totals):
    def ratio(row, one, other):
        return f"{found[row][f'{one}_us'] / found[row][f'{other}_us']:.2f}"

    kernel = "PMFS and NOVA are in no kernel of today, and this machine has no DAX hardware"
    return [
        ["Table I: memories", "forecasts of latencies", "below",
         "named memories, with their sources"],
        ["Table II: a write by component", "parts of `write` in the kernel, by probes",
         f"ext4 {totals['ext4']:.0f} ns, with O_SYNC {totals['ext4, O_SYNC']:.0f} ns, below",
         "samples instead of probes"],
        ["Table IV: workloads", "footprints of 10 to 15 GB", "a 250th of the files, 8 threads",
         "this machine has 24 GB and two processors"],
        ["Table V: PMAL and DAX by component",
         ", ".join(f"{name} {ns / 1000:.1f} µs" for name, ns in PAPER_TOTALS.items()),
         f"a pool {totals['bpfs']:.0f} ns, a cache {totals['cache']:.0f} ns",
         "a library in the process instead of layers of the kernel"],
        ["4: benchmarks", "PMAL near ext4 without syncs, in par with PM file systems",
         "ext4 / cache: " + ", ".join(f"{row} {ratio(row, 'ext4', 'run')}"
                                      for row in [*PERSONALITIES, *STORES]), kernel],
        ["5: Fileserver by files", "PMFS becomes slower with more files, PMAL does not",
         "ext4 / cache with 100, 1000 and 5000 files: "
         + ", ".join(ratio(row, "ext4", "run") for row in FILES),
         "ext4 in the place of PMFS; 64 MiB in all instead of 20 GB"],
        ["6: consistency", "PMAL-O is faster than PMAL, DAX-S slower than DAX",
         "ext4 with O_SYNC / ext4: "
         + ", ".join(f"{row} {ratio(row, 'sync', 'ext4')}" for row in PERSONALITIES),
         "modes of durability are in [SEMANTICS](../SEMANTICS.md): `ordered` is the counterpart of "
         "PMAL-O"],
        ["7: call flow of `copy_file_range`", "a drawing", "[ARCHITECTURE](../ARCHITECTURE.md)",
         "nothing to measure"],
        ["8: `copy_file_range`", "the page cache wins over DAX",
         f"64 MiB: cache {found['copy']['run_us'] / 1e3:.0f} ms, ext4 "
         f"{found['copy']['ext4_us'] / 1e3:.0f} ms, pool {found['copy']['bpfs_us'] / 1e3:.0f} ms",
         "a pool shares blocks of the copy; `copy-rw` is the same by `read` and `write`"],
        ["§IV-E: hybrid", "DAX for large files, PMAL for small ones", "not measured",
         "there is no prototype; the cache serves both by one path"],
    ]


def page(directory, scale, command):
    rows = []
    for memory in simulate("costs")["memories"]:
        paper = TABLE_1.get(memory["name"])
        rows.append([memory["name"], f"{paper[0]} / {paper[1]}" if paper else "-",
                     f"{memory['read_ns']} / {memory['write_ns']}", memory["source"]])
    rounds = 5 if scale == 1 else 1
    saved, parts = os.path.join(directory, "programs"), os.path.join(directory, "components")
    script("cache.sh", *PERSONALITIES, *STORES, *FILES, *COPIES, ROUNDS=str(rounds), JSON=saved)
    script("components.sh", ROUNDS=str(rounds), JSON=parts)
    with open(saved) as file:
        found = {row["program"]: row for row in json.load(file)}
    with open(parts) as file:
        report = by_component(json.load(file))
    totals = {system: of["total"] for system, of in report.items()}
    write("pmal.md", [
        origin(command, "bpfs"),
        "# PMAL: the paper and here\n",
        paragraph("Tables and figures of \"PMAL: Enabling Lightweight Adaptation of Legacy File "
                  "Systems on Persistent Memory Systems\" (Song et al., 2017), from measurements of "
                  f"this run. Rounds of programs: {rounds}; the best counts. *cache* is "
                  "`keepstone attach` over ext4 on the machine's disk, the counterpart of PMAL; *pool* "
                  "is BPFS without a file system below. Pools are in DRAM and not flushed."),
        table(["figure", "the paper", "here", "why"], figures(found, totals), 4),
        "## Table I: memories\n",
        paragraph("Nanoseconds to read and to write cells, in the paper and in the models here "
                  "([SIMULATION](../SIMULATION.md#memory)). The paper's row for DRAM is the one of "
                  "`nvdimm-n`."),
        table(["memory", "the paper", "here", "source"], rows, 4),
        "## Tables II and V: a write by component\n",
        paragraph("4 KiB over what a file of 1 MiB has. `scripts/bench/components.sh` describes the "
                  "rows."),
        components(report),
        "## Figure 4: benchmarks\n",
        programs("4", "Benchmarks", found, [*PERSONALITIES, *STORES]),
        "## Figure 5: Fileserver by files\n", programs("5", "Fileserver", found, FILES),
        "## Figure 8: copy_file_range\n",
        programs("8", "64 MiB by copy_file_range", found, COPIES),
    ])
