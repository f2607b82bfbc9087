"""docs/papers/bpfs.md: the figures of BPFS (Condit et al., SOSP 2009) from models and counts."""

import os

import bpfs_measured
from page import bars, change, lines, origin, paragraph, simulate, table, write

SIZES = [8, 64, 512, 1024, 4096]
CREATES = [100, 1000, 10_000]
# Computation of an operation in the models: none, and 1 µs.
COMPUTATIONS = [0, 1000]


def workloads(scale):
    """Returns the workloads of §5.2: name, options of `record`, and the number of operations."""
    appends, writes = max(130_000 // scale, 100), max(1_000_000 // scale, 100)
    for size in SIZES:
        pool = 64 + appends * max(size, 64) * 3 // 2 // (1 << 20)
        yield (f"append {size} B", appends,
               ["--workload", "append", "--bytes", size, "--size", f"{pool}M"])
    for size in SIZES:
        yield (f"random write {size} B", writes,
               ["--workload", "overwrite", "--bytes", size, "--size", "256M"])
    for files in CREATES:
        yield f"create {files}", files, ["--workload", "create"]
    yield "PostMark", max(5000 // min(scale, 5), 100), ["--workload", "postmark", "--bytes", 4096]


def record(directory, scale):
    """Records all workloads; returns the traces by name, with their operations."""
    traces = {}
    for name, operations, options in workloads(scale):
        trace = os.path.join(directory, name.replace(" ", "-"))
        simulate("record", trace, "--operations", operations, *options)
        traces[name] = (trace, operations)
    return traces


def bytes_written(traces):
    rows, counts = [], {}
    for name, (trace, operations) in traces.items():
        found = simulate("describe", trace)
        flushed, past = found["flushes"]["lines"], found["nt_stores"]["bytes"]
        counts[name] = (flushed * 64 + past) / operations
        rows.append([name, operations, f"{flushed / operations:.2f}", f"{past / operations:.1f}",
                     f"{found['fences'] / operations:.2f}", f"{counts[name]:.1f}"])
    head = ["workload", "operations", "lines flushed", "bytes past the cache", "fences",
            "bytes to the medium"]
    return rows, head, counts


def caches(traces, names, modes, *options):
    """Returns the reports of ordering modes by workload and mode."""
    of = {}
    for name in names:
        found = simulate("caches", traces[name][0], "--mode", ",".join(modes), *options)
        of[name] = {report["config"]["mode"] if "config" in report else report["mode"]: report
                    for report in found["modes"]}
    return of


def figure_5(traces):
    names = ["append 64 B", "random write 64 B", "create 1000", "PostMark"]
    modes = ["write-through", "clwb", "epoch"]
    paper = {"append 64 B": "180 %", "PostMark": "49 %"}
    rows, plotted = [], []
    for computation in COMPUTATIONS:
        reports = caches(traces, names, modes, "--computation", computation)
        speedups = []
        for name in names:
            times = {mode: reports[name][mode]["time_ns"] for mode in modes}
            writes = {mode: reports[name][mode]["counts"]["memory_writes"]
                      + reports[name][mode]["dirty_at_end"] for mode in modes}
            speedup = times["write-through"] / times["epoch"] - 1
            speedups.append(speedup * 100)
            rows.append([name, f"{computation} ns",
                         *[f"{times[mode] / 1e6:.2f}" for mode in modes],
                         f"{speedup * 100:.0f} %", paper.get(name, "-"),
                         f"{writes['write-through'] / max(writes['epoch'], 1):.2f}"])
        plotted.append((f"{computation} ns of computation", speedups))
    plot = bars("bpfs-figure-5.svg", "Epochs instead of write-through (BPFS Figure 5)",
                "speedup in %", names, plotted)
    head = ["workload", "computation", "write-through, ms", "clwb, ms", "epoch, ms", "speedup",
            "the paper", "writes saved, factor"]
    return plot, table(head, rows)


def figure_7(traces):
    names = ["append 64 B", "random write 64 B", "create 10000", "PostMark"]
    rows, series = [], []
    for name in names:
        trace, operations = traces[name]
        by = {}
        for how, options in [("counters", []), ("model", ["--model"])]:
            found = simulate("throughput", trace, "--time", 0, *options)
            rates = [(rate["mb_per_s"], rate["time_s"] * 1e6 / operations)
                     for rate in found["rates"]]
            by[how] = dict(rates)
            if how == "counters":
                series.append((name, rates))
        rows.append([name, *[f"{by[how][rate]:.2f}" for how in by for rate in (34.0, 480.0, 800.0)]])
    plot = lines("bpfs-figure-7.svg", "Time that traffic adds (BPFS Figure 7)",
                 "throughput of the memory, MB/s", "µs for an operation", series)
    head = ["workload", "counters: 34 MB/s", "480", "800", "model: 34 MB/s", "480", "800"]
    return plot, table(head, rows)


def hardware():
    found = simulate("costs")
    epochs, capacitor = found["epochs"], found["capacitor"]
    kib = found["total_bytes"] / 1024
    rows = [
        ["epoch counter of a context", "64 bits", f"{epochs['counter_bits'] // 2} bits", "the same"],
        ["more bits of a tag", "4", epochs["tag_bits_per_line"], "the same"],
        ["index of the 4 MB L2 cache", "7 KB", f"{epochs['l2_index_bits'] / 8 / 1024:.1f} KiB",
         "a bit and a counter for each epoch and 4 KiB"],
        ["in all", "approximately 40 KB", f"{kib:.1f} KiB", "L1 caches have tags and an index, too"],
        ["capacitor, row of 512 bits", "38.4 to 47.8 µF",
         f"{capacitor['ones_uf']:.1f} to {capacitor['zeros_uf']:.1f} µF",
         "a droop of 10^-4, which the paper does not state"],
    ]
    return table(["part", "the paper", "here", "why"], rows, 4)


def wear(traces):
    rows = []
    for mode in ["clwb", "write-through", "epoch"]:
        found = simulate("wear", traces["PostMark"][0], "--mode", mode, "--computation", 1000,
                         "--capacity", "1G")
        lives = {life["levelling"]: life["hours"] for life in found["lifetimes"]
                 if life["endurance"] == 1e8}
        rows.append([mode, found["totals"]["line_writes"], found["totals"]["line_max"],
                     *[f"{hours:.3g}" for hours in lives.values()]])
        names = list(lives)
    return table(["mode", "writes of lines", "most of one line",
                  *[f"{name}, h" for name in names]], rows)


# Figure 6: the memory, and computation of an operation in ns. `pcm` has a bus that takes no time.
INTERFERENCE = [("pcm", 1000), ("pcm-rows", 1000), ("pcm-rows", 5000)]


def figure_6(traces):
    """Returns plot, table, and the stencil's rate in % of that alone, by variant and system."""
    trace, _ = traces["PostMark"]
    names = {"write-through": "write-through", "epoch": "epochs", "dram": "DRAM"}
    rows, series = [], []
    for memory, computation in INTERFERENCE:
        found = simulate("interference", trace, "--memory", memory, "--queue", 128,
                         "--computation", computation)
        *systems, alone = found["systems"]
        shares = [100 * system["stencil"] / alone["stencil"] for system in systems]
        variant = f"{memory}, {computation // 1000} µs"
        series.append((variant, shares))
        rows += [[variant, names[system["backing"]], f"{system['file_system']:.2f}",
                  f"{system['stencil']:.2f}", f"{share:.0f} %"]
                 for system, share in zip(systems, shares)]
    plot = bars("bpfs-figure-6.svg", "A stencil in DRAM beside PostMark (BPFS Figure 6)",
                "% of the stencil alone", list(names.values()), series)
    head = ["memory, computation", "file system", "PostMark, lines a µs", "stencil, lines a µs",
            "of the stencil alone"]
    return plot, table(head, rows, 2), [shares for _, shares in series]


def figures(found, stencil):
    """Returns the first table, with results of this run."""

    def spread(peer, kind):
        return bpfs_measured.spread(found, peer, kind)

    def times(peer, name):
        return found[peer][name] / found[bpfs_measured.POOL][name]

    ram, disk = "ext4, RAM disk", "ext4, disk"
    return [
        ["3 a: appends", "3.3 to 4.3 times as fast as NTFS on a disk, 2.5 to 3.3 as in RAM",
         f"{spread(disk, 'append')} and {spread(ram, 'append')} times as fast as ext4",
         "NTFS runs on Windows only; ext4 keeps appends in the page cache, and here they are "
         "durable. [Direct access](../measurements/direct.md) has more peers"],
        ["3 b: random writes", "1.6 to 4.7 and 1.1 to 3.2 times",
         f"{spread(disk, 'random')} and {spread(ram, 'random')} times",
         "the same; other sizes are in [the engine](../measurements/engine.md)"],
        ["3 c: creates", "6 to 18 and 1.4 to 5.8 times",
         f"{spread(disk, 'create')} and {spread(ram, 'create')} times",
         "NTFS writes its log to the disk for each; ext4 does that later"],
        ["4 a: PostMark", "3.2 and 1.7 times",
         f"{times(disk, 'PostMark'):.1f} and {times(ram, 'PostMark'):.1f} times",
         "the same numbers of files and transactions; "
         "[more files](../measurements/postmark.md)"],
        ["4 b: build of Apache", "13 % and 3.4 % faster",
         f"{change(1 / times(disk, 'build'))} time than ext4 on a disk, "
         f"{change(1 / times(ram, 'build'))} than in RAM",
         "C files that a script makes, as Apache 2.0.63 is old; the library costs each process some "
         "milliseconds at its start"],
        ["4 c: patch", "8.7 and 1.7 times",
         f"{times(disk, 'patch'):.1f} and {times(ram, 'patch'):.1f} times",
         "sed on files that have a word; [more programs](../measurements/programs.md)"],
        ["5: epoch caches", "81 % faster than write-through, 49 to 180 %", "below, by a model",
         "simple cores, other computation; see there"],
        ["6: DRAM beside PCM", "a program in DRAM has the same IPC in three systems",
         "by a model {:.0f}, {:.0f} and {:.0f} % of its rate alone if the bus takes no time; {:.0f}, "
         "{:.0f} and {:.0f} % with a bus of DDR2-800".format(*stencil[0], *stencil[1]),
         "a stencil instead of NAS MG, and rates instead of instructions; PCM's banks and queue do not "
         "slow DRAM down, but its bytes need the bus"],
        ["7: time by throughput of PCM", "faster than a disk from 34 MB/s on, except PostMark",
         "below, by counts", "what the formula adds to the times of Figures 3 and 4"],
    ]


def page(directory, scale, command):
    traces = record(directory, scale)
    rows, head, _ = bytes_written(traces)
    plot_5, table_5 = figure_5(traces)
    plot_6, table_6, stencil = figure_6(traces)
    plot_7, table_7 = figure_7(traces)
    scale_measured = max(scale // 2, 1)
    found = bpfs_measured.measure(scale_measured)
    write("bpfs.md", [
        origin(command, "bpfs"),
        "# BPFS: the paper and here\n",
        paragraph("Figures of \"Better I/O Through Byte-Addressable, Persistent Memory\" (Condit et "
                  "al., SOSP 2009), from measurements, models and counts. "
                  f"Models and counts have 1/{scale} of the paper's operations, and measurements "
                  f"1/{scale_measured}. "
                  "Recordings differ by a few lines, as a file's time is stored only when the clock "
                  "has ticked. [SIMULATION](../SIMULATION.md) explains the models."),
        table(["figure", "the paper", "here", "why"], figures(found, stencil), 4),
        *bpfs_measured.parts(scale_measured, found),
        "## Bytes written (§5.4)\n",
        paragraph("For each operation, to the medium: lines that were flushed, and bytes stored past "
                  "the cache. Random writes begin at multiples of 8 bytes, so that long ones cross "
                  "blocks. Counts depend on whether the processor has MOVDIR64B."),
        table(head, rows),
        "## Figure 5: epoch caches\n",
        paragraph("Simulated time on phase-change memory. The paper's processor computes between "
                  "accesses; here an operation computes nothing, or for 1 µs, at its start. Cores "
                  "here wait for each access. Two things make write-through cheaper than in the "
                  "paper: blocks are stored past the cache, in whole lines, and the controller "
                  "takes a write without making the core wait."),
        plot_5, table_5,
        "## Figure 6: a program in DRAM beside PCM\n",
        paragraph("PostMark on one core, and on the other a stencil over a grid of 16 MiB in DRAM, "
                  "as NAS MG has. DRAM and PCM are ranks of one channel, and share its bus and a "
                  "queue of 128 writes. Both do the same work in each system, so the lines that "
                  "they access, or compute, in a microsecond stand for the instructions in a "
                  "cycle. On `pcm` the bus takes no time, so only the queue is shared; on "
                  "`pcm-rows` a line takes the bus for 10 ns, as DDR2-800 does. Each operation of "
                  "PostMark computes for 1 or 5 µs."),
        plot_6, table_6,
        "## Figure 7: time by throughput\n",
        paragraph("The time that the formula of §5.4 adds to that in DRAM, in µs for an operation: by "
                  "counters, which count all lines loaded, and by the model of caches."),
        plot_7, table_7,
        "## Hardware (§4.3, §4.4.1)\n", hardware(),
        "## Wear (§4.2)\n",
        paragraph("PostMark, for ever, in 1 GiB whose cells endure 10^8 writes: hours until the "
                  "first cell fails, by kind of levelling. An operation computes for 1 µs. The paper "
                  "cites 525 hours without and 49 000 hours with a memory that minimises writes, for "
                  "other programs."),
        wear(traces),
    ])
