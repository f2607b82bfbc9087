"""Measured times of BPFS' Figures 3 and 4: on a pool, and on the file systems of the kernel."""

import contextlib
import os
import shutil
import tempfile
import time

from page import KEEPSTONE, ROOT, bars, duration, paragraph, table
from places import PERSISTENT, Place, mounted, run
from programs import make_tree

SIZES = [8, 64, 512, 1024, 4096]
CREATES = [100, 1000, 10_000]
POOL = "bpfs"
PEERS = [Place("tmpfs", fs="tmpfs", device="none"), Place("ext4, RAM disk", device="ram"),
         Place("ext4, disk", device="disk")]
NAMES = [POOL, *[place.name for place in PEERS]]
# The least of this many runs counts.
ROUNDS = 2
# C files that the build compiles, and their functions.
SOURCES, FUNCTIONS = 24, 60


def loads(scale):
    """Returns cases by name, each with the arguments of bench/c/bpfs.c."""
    appends, writes = max(130_000 // scale, 100), max(1_000_000 // scale, 100)
    cases = {f"append {size} B": ["append", appends, size] for size in SIZES}
    cases |= {f"random write {size} B": ["overwrite", writes, size] for size in SIZES}
    cases |= {f"create {files}": ["create", files, 1] for files in CREATES}
    cases["PostMark"] = ["postmark", 5000, 4096]
    return cases


def make_project(top, files):
    """Makes the archive that is built and patched: C files that compute, and a tree of text."""
    make_tree(top, files)
    for i in range(SOURCES):
        with open(f"{top}/tree/part{i}.c", "w") as file:
            for k in range(FUNCTIONS):
                file.write(f"int f{i}_{k}(int x) {{ int s = {k}; for (int i = 0; i < x; i++) "
                           f"s = s * {i + 3} + i % {k + 7}; return s; }}\n")
    run("tar", "cf", f"{top}/tree.tar", "-C", top, "tree")
    shutil.rmtree(f"{top}/tree")


# A tree is unpacked, built and removed; or each file that has a word is written whole.
PROGRAMS = {
    "build": "tar xf $INPUT/tree.tar; cd tree; for c in part*.c; do gcc -O1 -c $c; done; cd ..; "
             "rm -r tree",
    "patch": "tar xf $INPUT/tree.tar; grep -rl aa tree | xargs sed -i s/aa/bb/; rm -r tree",
}


def timed(directory, inputs, prefix, cases):
    """Returns the least seconds of each case and program in a directory."""
    found = {}
    for name, arguments in cases.items():
        command = [*prefix, f"{inputs}/bpfs", directory, *arguments]
        found[name] = min(float(run(*command, env=PERSISTENT)) for _ in range(ROUNDS))
    environment = {**PERSISTENT, "INPUT": inputs}
    for name, script in PROGRAMS.items():
        took = []
        for _ in range(ROUNDS):
            start = time.monotonic()
            run(*prefix, "bash", "-euc", script, cwd=directory, env=environment)
            took.append(time.monotonic() - start)
        found[name] = min(took)
    return found


@contextlib.contextmanager
def pool(memory):
    """Mounts a new pool; yields its directory."""
    file, point = f"{memory}/pool", f"{memory}/pool-mount"
    os.mkdir(point)
    run(KEEPSTONE, "mkfs", file, "--size", "3G", env=PERSISTENT)
    run(KEEPSTONE, "mount", "-o", "direct", file, point, env=PERSISTENT)
    try:
        yield point
    finally:
        run(KEEPSTONE, "umount", point)
        os.unlink(file)


def measure(scale):
    """Returns seconds by system and case."""
    cases = loads(scale)
    memory = tempfile.mkdtemp(prefix="keepstone-paper-", dir="/dev/shm")
    disk = tempfile.mkdtemp(prefix="keepstone-paper-", dir="/var/tmp")
    found = {}
    try:
        inputs = f"{memory}/inputs"
        os.mkdir(inputs)
        run("gcc", "-O2", "-o", f"{inputs}/bpfs", f"{ROOT}/bench/c/bpfs.c")
        make_project(inputs, 1200)
        with pool(memory) as directory:
            found[POOL] = timed(directory, inputs, [KEEPSTONE, "run", "--quiet", "--"], cases)
        for place in PEERS:
            with mounted(place, 3 << 30, memory, disk) as at:
                directory = f"{at.dir}/data"
                os.mkdir(directory)
                found[place.name] = timed(directory, inputs, [], cases)
    finally:
        for made in (memory, disk):
            shutil.rmtree(made)
    return found


def figure(number, title, found, names):
    """Plots how many times as long the peers take; returns plot and table."""
    series = [(system, [found[system][name] / found[POOL][name] for name in names])
              for system in NAMES[1:]]
    plot = bars(f"bpfs-figure-{number}.svg", f"{title} (BPFS Figure {number})", "time, bpfs = 1",
                [name.removeprefix("random ") for name in names], series)
    rows = [[name, *[duration(found[system][name] * 1e9) for system in NAMES],
             *[f"{of[i]:.2f}" for _, of in series]] for i, name in enumerate(names)]
    return plot + "\n" + table(["", *NAMES, *[f"{name} / bpfs" for name in NAMES[1:]]], rows)


def spread(found, peer, prefix):
    """Returns the least and the most times that a peer takes as long in cases of a kind."""
    ratios = [found[peer][name] / found[POOL][name] for name in found[POOL]
              if name.startswith(prefix)]
    return f"{min(ratios):.1f} to {max(ratios):.1f}"


def count(number):
    """Returns a number with spaces between thousands."""
    return f"{number:,}".replace(",", " ")


def parts(scale, found):
    """Returns the sections of Figures 3 and 4."""
    cases = list(loads(scale))
    return [
        "## Figures 3 and 4: measured times\n",
        paragraph(f"Times of {count(130_000 // scale)} appends, {count(1_000_000 // scale)} random "
                  "writes in a file of 128 MiB, creates, and 5000 transactions of PostMark; and of a "
                  f"build and a patch. The least of {ROUNDS} runs. *bpfs* is a pool, used under "
                  "`keepstone run`: each call is atomic, and durable when it returns. Calls of the "
                  "peers are not: ext4 writes back later, and tmpfs never. Where ext4 on the disk is faster "
                  "than in memory, its writes are still in the page cache."),
        figure("3a", "Appends", found, [name for name in cases if name.startswith("append")]),
        figure("3b", "Random writes", found, [name for name in cases if name.startswith("random")]),
        figure("3c", "Creates", found, [name for name in cases if name.startswith("create")]),
        figure("4", "PostMark, build, patch", found, ["PostMark", *PROGRAMS]),
    ]
