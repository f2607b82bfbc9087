"""docs/papers/pmbd.md: the figures of PMBD (Chen, Mesnier and Hahn, 2014) beside ours."""

import os
import shutil
import statistics
import tempfile

from page import bars, bench, origin, paragraph, table, write
from places import Place, mounted
from programs import FULL, QUICK, WORKLOADS, Inputs, once

LOADS = [f"{size}/{order}/{depth}" for size in ("4K", "256K") for order in ("seq", "rand")
         for depth in (1, 32)]
BYTES = {"4K": 4 << 10, "256K": 256 << 10}

BASELINE = Place("baseline", protect="none", scheme="wb", has_barriers=False)
SCHEMES = [
    BASELINE,
    Place("window", scheme="wb", has_barriers=False),
    Place("window, clflush", scheme="clflush", has_barriers=False),
    Place("window, nt", has_barriers=False),
    Place("window, barriers", scheme="wb"),
    Place("window, clflush, barriers", scheme="clflush"),
    Place("window, nt, barriers"),
]
PMBD = SCHEMES[-1]
FILE_SYSTEMS = [Place("tmpfs", fs="tmpfs", device="none"), Place("ramfs", fs="ramfs", device="none"),
                *[Place(fs, fs=fs) for fs in ("ext2", "ext3", "xfs")]]
DEVICES = [Place("RAM disk", device="ram"), Place("disk", device="disk")]
SLOWER = [Place(f"{verb} {factor}×", emulate=f"{verb}={factor}x")
          for verb, factors in (("read", (2, 5, 10)), ("write", (2, 5, 10, 20, 50)))
          for factor in factors]
SENSITIVE = ["tpch", "tpcc"]


def bandwidth(figure, title, cases, kind, systems):
    """Plots MB/s by load of contenders of the bench, whose names `systems` maps to ours; returns
    plot and table."""
    speeds = {label: [] for label in systems}
    rows = []
    for load in LOADS:
        times = cases[f"{kind}/{load}"]
        row = [load.replace("/", " ")]
        for label, contender in systems.items():
            speeds[label].append(BYTES[load.split("/")[0]] / times[contender] * 1e3)
            row.append(f"{speeds[label][-1]:.0f}")
        rows.append(row)
    plot = bars(f"pmbd-figure-{figure}.svg", f"{title} (PMBD Figure {figure.split('-')[0]})", "MB/s",
                [load.replace("/", " ") for load in LOADS], list(speeds.items()))
    return plot + "\n" + table(["request, order, depth", *[f"{label}, MB/s" for label in systems]],
                               rows), speeds


def measure(places, names, inputs, size, memory, disk):
    """Returns seconds and bytes of workloads by place: the median of the rounds."""
    found = {}
    for place in places:
        with mounted(place, size, memory, disk) as at:
            for name in names:
                rounds = [once(name, inputs, at) for _ in range(inputs.amounts.rounds)]
                found[place.name, name] = [statistics.median(of) for of in zip(*rounds)]
    return found


def normalised(figure, title, found, places, base, names=tuple(WORKLOADS)):
    """Plots times divided by those in the place `base`; returns plot and table."""
    series, rows = [], []
    for place in places:
        series.append((place, [found[place, name][0] / found[base, name][0] for name in names]))
    for i, name in enumerate(names):
        rows.append([name, f"{found[base, name][0]:.3f}", *[f"{of[i]:.2f}" for _, of in series]])
    plot = bars(f"pmbd-figure-{figure}.svg", f"{title} (PMBD Figure {figure})",
                f"time, {base} = 1", [name[:8] for name in names], series)
    return plot + "\n" + table(["workload", f"{base}, s", *[name for name, _ in series]], rows)


def table_2(found, inputs, device):
    rows = []
    for name, (what, _) in WORKLOADS.items():
        took, read, written = found[device, name]
        share = 100 * written / max(read + written, 1)
        rows.append([name, PAPER_TABLE_2[name][0], what, PAPER_TABLE_2[name][1], f"{share:.0f} %",
                     f"{(read + written) / 1e6:.0f}", f"{took:.3f}"])
    head = ["name", "the paper", "here", "writes, the paper", "writes", "MB moved", "seconds"]
    return table(head, rows, 3)


PAPER_TABLE_2 = {
    "sfs": ("SPECsfs 2008", "7.4 %"), "tpch": ("TPC-H, PostgreSQL 9", "9.7 %"),
    "tpcc": ("TPC-C, PostgreSQL 9", "63.7 %"), "tar": ("tar of a kernel's source", "46.9 %"),
    "untar": ("untar of it", "52.2 %"), "devel": ("untar, patch, tar, diff", "38 %"),
    "glimpseindex": ("a text index of 12 GB", "5.5 %"), "clamav": ("a virus scan of 14 GB", "0.3 %"),
}


def figures(speeds, found):
    """Returns the rows of the first table, with results of this run."""
    at = {load: i for i, load in enumerate(LOADS)}

    def speed(figure, system, load):
        return speeds[figure][system][at[load]]

    def ratio(figure, one, other, load):
        return speed(figure, one, load) / speed(figure, other, load)

    def times(one, other, name):
        return found[one, name][0] / found[other, name][0]

    worst = max(ratio("3", "no protection", "pages", load) for load in LOADS)
    rows = [
        ["3: page protection", "up to 18 times as slow: 14.8 GB/s and 808 MB/s",
         f"up to {worst:.0f} times as slow",
         "mprotect in a process of few threads; the paper interrupts 12 cores for each change"],
        ["5: one buffer of 16 MB; 4K, 32 requests", "in order 789, unsorted 315, sorted 2028 MB/s; "
         "at random 786 and sorted 374",
         "in order {:.0f}, {:.0f}, {:.0f}; at random {:.0f} and {:.0f}".format(
             *[speed("5", system, f"4K/seq/32") for system in ("pages", "unsorted", "sorted")],
             *[speed("5", system, f"4K/rand/32") for system in ("pages", "sorted")]),
         "a round ends with a flush of the buffer, so that it counts all writes"],
        ["6: 16 buffers; 4K, 32 requests", "in order 2028 to 3074, at random 374 to 724 MB/s",
         "in order {:.0f} to {:.0f}, at random {:.0f} to {:.0f}".format(
             *[speed("6", system, f"4K/{order}/32") for order in ("seq", "rand")
               for system in ("1 buffer", "16 buffers")]),
         "two processors gain less from parallel buffers than 12; runs of 64 pages share a buffer"],
        ["8: private mappings", "90 % of no protection (random writes of 256K, 32 requests), 85 % "
         "(sequential reads)",
         "window {:.0f} % and {:.0f} %; the default {:.0f} % and {:.0f} %".format(
             *[100 * ratio("8-" + verb, system, "no protection", f"256K/{order}/32")
               for system in ("window", "default") for verb, order in (("write", "rand"),
                                                                       ("read", "seq"))]),
         "the paper changes a page table entry of one core in the kernel; a process needs system "
         "calls, and the default avoids most of them"],
        ["9: write schemes", "movntq best, except 4K with 32 requests",
         "nt {:.1f} times clflush with 4K and 32 requests, {:.1f} times with 256K".format(
             ratio("9", "nt", "clflush", "4K/rand/32"), ratio("9", "nt", "clflush", "256K/rand/32")),
         "clflushopt and clwb do not wait for each other, as clflush did"],
        ["10: schemes, whole programs", "nt as fast as no persistence; clflush slowest",
         "see below: time of nt / clflush {:.2f} in untar, {:.2f} in tpcc".format(
             times("window, nt", "window, clflush", "untar"),
             times("window, nt", "window, clflush", "tpcc")),
         "the way through the kernel's loop device costs more than the scheme"],
        ["11: bandwidth of the final design", "16 GB/s reads, 11 GB/s writes, 75 to 85 % of the peak",
         "below: reads to {:.0f}, writes to {:.0f} MB/s; the default {:.0f} and {:.0f}".format(
             *[max(speeds["8-" + verb][system]) for system in ("window", "default")
               for verb in ("read", "write")]),
         "two processors, and calls of a library instead of requests of a kernel"],
        ["12: write barriers", "no cost with nt or clflush, up to 4.1 times with wbinvd (tpcc)",
         "tpcc: {:.2f}, {:.2f} and {:.2f} times".format(
             *[times(f"{name}, barriers", name, "tpcc")
               for name in ("window, nt", "window, clflush", "window")]),
         "a process cannot execute wbinvd: it flushes the lines that it knows to be dirty"],
        ["13: file systems", "tmpfs ahead by 19 % (tpch), 16 % (clamav), 10 % (glimpseindex), 3 "
         "times (untar); ext2 fastest on PM, ext3 and XFS slowest",
         "ext4 / tmpfs: {:.2f}, {:.2f}, {:.2f} and {:.1f} times".format(
             *[times(PMBD.name, "tmpfs", name)
               for name in ("tpch", "clamav", "glimpseindex", "untar")]),
         "times here include writing everything back, and requests pass a server in user space"],
        ["14: other devices", "devel 1.8 times as fast as on a hard disk; tpcc 110 times, and 5.7 "
         "times an SSD", "disk of this machine / PMBD: devel {:.2f}, tpcc {:.2f}".format(
             *[times("disk", PMBD.name, name) for name in ("devel", "tpcc")]),
         "a virtual disk; this machine has neither a hard disk nor an SSD of its own, and its host "
         "may answer from memory"],
        ["15: slower memory", "tpch 1.4 times with reads 10 times as slow, tpcc 3.6 times with "
         "writes 50 times as slow", "tpch {:.2f}, tpcc {:.2f} times".format(
             times("read 10×", PMBD.name, "tpch"), times("write 50×", PMBD.name, "tpcc")),
         "only copies are slowed down, as in the paper; requests take longer here, copies the same"],
        ["Table II: workloads", "eight", "eight, below", "programs that Debian has; smaller data"],
    ]
    return table(["figure", "the paper", "here", "why"], rows, 4)


def page(directory, scale, command):
    cases = bench(scale, "bdev", "protect/", "buffers/", "scheme/")
    none = "unprotected"
    best = "keepstone"
    speeds, parts = {}, {}
    for figure, title, kind, systems in [
        ("3", "Page protection, writing", "protect/write", {"pages": "pages", "no protection": none}),
        ("5", "Behind one buffer of 16 MB", "buffers/write", {
            "pages": "pages", "unsorted": "pages, 1 buffer, unsorted", "sorted": "pages, 1 buffer",
            "no protection": none}),
        ("6", "Several buffers", "buffers/write", {
            "1 buffer": "pages, 1 buffer", "16 buffers": "pages, 16 buffers"}),
        ("8-write", "Private mappings, writing", "protect/write", {
            "window": "window", "default": best, "no protection": none}),
        ("8-read", "Private mappings, reading", "protect/read", {
            "window": "window", "default": best, "no protection": none}),
        ("9", "Write schemes, unprotected", "scheme/write", {
            "nt": "nt", "clflush": "clflush", "clwb": "clwb", "write-back": "wb, barrier every 32"}),
    ]:
        parts[figure], speeds[figure] = bandwidth(figure, title, cases, kind, systems)
    amounts = FULL if scale == 1 else QUICK
    size = (3 << 30) if scale == 1 else (512 << 20)
    memory = tempfile.mkdtemp(prefix="keepstone-paper-", dir="/dev/shm")
    disk = tempfile.mkdtemp(prefix="keepstone-paper-", dir="/var/tmp")
    try:
        os.chmod(memory, 0o755)
        os.mkdir(f"{memory}/inputs")
        inputs = Inputs(f"{memory}/inputs", amounts)
        places = [*SCHEMES, *FILE_SYSTEMS, *DEVICES]
        found = measure(places, WORKLOADS, inputs, size, memory, disk)
        found |= measure(SLOWER, SENSITIVE, inputs, size, memory, disk)
    finally:
        for made in (memory, disk):
            shutil.rmtree(made)
    names = [place.name for place in SCHEMES]
    barriers = [name for name in names if "barriers" in name]
    plain = [name for name in names[1:] if name not in barriers]
    rounds = "once" if amounts.rounds == 1 else f"{amounts.rounds} times, and the median is shown"
    write("pmbd.md", [
        origin(command, "pmbd"),
        "# PMBD: the paper and here\n",
        paragraph("Figures of \"A Protected Block Device for Persistent Memory\" (Chen, Mesnier and "
                  "Hahn, 2014), from measurements of this run. The paper's device is a kernel module "
                  "on 12 cores at 3.3 GHz; here the device is a library (Figures 3 to 9 and 11) or a "
                  "server behind the kernel's loop device (Figures 10 and 12 to 15), on two "
                  "processors of a virtual machine. DRAM stands for persistent memory in both. "
                  "Queue depth 32 is 32 threads here. *window* is the paper's private mapping."),
        figures(speeds, found),
        "## Figure 3: page protection\n", parts["3"],
        "## Figure 5: one buffer\n", parts["5"],
        "## Figure 6: several buffers\n",
        paragraph("Both have 16 MiB in all. The paper deals writes out in turn; here runs of 64 "
                  "pages share a buffer, so that pages in order stay together."),
        parts["6"],
        "## Figures 8 and 11: private mappings\n",
        paragraph("*default* is protection keys if the processor has them, else chunks of 2 MiB "
                  "([BDEV](../BDEV.md#protection)). All store past the cache, and are durable when "
                  "a request ends, which is the paper's final design."),
        parts["8-write"], parts["8-read"],
        "## Figure 9: write schemes\n",
        paragraph("Write-back has a barrier after 32 requests, which flushes what they wrote. "
                  "Without protection, unlike the paper's, so that the scheme alone differs."),
        parts["9"],
        "## Table II: workloads\n",
        paragraph(f"Each ran {rounds}, on ext4 on the device with `window`, `nt` and barriers. Times "
                  "include writing back what is in the page cache, and begin with none of the "
                  "device's pages in it. SPECsfs, TPC-H, TPC-C, glimpse and the signatures of "
                  "clamav are not in Debian, so similar loads take their places."),
        table_2(found, inputs, PMBD.name),
        "## Figure 10: schemes without barriers\n",
        paragraph("ext4 with `barrier=0`. The baseline is neither protected nor flushed."),
        normalised("10", "Schemes without barriers", found, plain, BASELINE.name),
        "## Figure 12: schemes with barriers\n",
        normalised("12", "Schemes with barriers", found, barriers, BASELINE.name),
        "## Figure 13: file systems\n",
        normalised("13", "File systems on PM, tmpfs and ramfs", found,
                   ["ramfs", "ext2", "ext3", PMBD.name, "xfs"], "tmpfs"),
        paragraph(f"*{PMBD.name}* is ext4."),
        "## Figure 14: other devices\n",
        paragraph("*RAM disk* is a loop device on a file of tmpfs, *disk* one on a file of the "
                  "machine's disk, both with direct I/O. An array of hard disks and an SSD like the "
                  "paper's are not in this machine, so they have no column."),
        normalised("14", "Other devices", found, [PMBD.name, "RAM disk"], "disk"),
        "## Figure 15: slower memory\n",
        paragraph("Copies are delayed in proportion to the time that they take. "
                  "[Sensitivity](../measurements/sensitivity.md) has SQLite and plain requests."),
        normalised("15", "Slower memory", found, [place.name for place in SLOWER], PMBD.name,
                   SENSITIVE),
    ])
