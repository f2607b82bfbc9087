"""docs/papers/pmal.md: the tables and figures of PMAL (Song et al., 2017) beside ours."""

from page import origin, paragraph, simulate, table, write

FIGURES = [
    ["Table I: memories", "forecasts of latencies", "below", "named memories, with their sources"],
    ["Tables II, V: a write by component", "system call to memory, in ns",
     "[one write by component](../measurements/components.md)", "parts of user space, not of ext4"],
    ["4: benchmarks", "PMAL beside ext4, DAX, PMFS and NOVA",
     "[whole programs](../measurements/programs.md), [caches](../measurements/cache.md)",
     "PMFS and NOVA are not in this kernel"],
    ["5: Fileserver by files", "PMAL beside PMFS",
     "[filebench](../measurements/cache-filebench.md)", "on a cache over ext4"],
    ["6: consistency", "PMAL-O, DAX-S", "modes of durability in [SEMANTICS](../SEMANTICS.md)",
     "`ordered` of BPFS is the counterpart of PMAL-O"],
    ["7, 8: `copy_file_range`", "the page cache wins over DAX",
     "clones in [USING](../USING.md)", "BPFS shares blocks instead"],
]

# PMAL Table I: reads and writes in ns.
TABLE_1 = {"pcm": (20, 100), "stt-mram": (10, 10), "nvdimm-n": (10, 10)}


def page(_directory, _scale, command):
    rows = []
    for memory in simulate("costs")["memories"]:
        paper = TABLE_1.get(memory["name"])
        rows.append([memory["name"], f"{paper[0]} / {paper[1]}" if paper else "-",
                     f"{memory['read_ns']} / {memory['write_ns']}", memory["source"]])
    write("pmal.md", [
        origin(command),
        "# PMAL: the paper and here\n",
        paragraph("Tables and figures of \"PMAL: Enabling Lightweight Adaptation of Legacy File "
                  "Systems on Persistent Memory Systems\" (Song et al., 2017). Measured "
                  "times are in the pages that the table names."),
        table(["figure", "the paper", "here", "why"], FIGURES, 4),
        "## Table I: memories\n",
        paragraph("Nanoseconds to read and to write cells, in the paper and in the models here "
                  "([SIMULATION](../SIMULATION.md#memory)). The paper's row for DRAM is the one of "
                  "`nvdimm-n`."),
        table(["memory", "the paper", "here", "source"], rows, 4),
    ])
