"""The macro workloads of PMBD's Table II, by programs that Debian has."""

import contextlib
import glob
import os
import random
import shutil
import subprocess
import time
from dataclasses import dataclass

from page import ROOT
from places import run


@dataclass(frozen=True)
class Amounts:
    """Numbers of things that workloads use, and of rounds."""

    files: int
    loops: int
    scale: int
    transactions: int
    rounds: int


QUICK = Amounts(files=1200, loops=150, scale=2, transactions=250, rounds=1)
FULL = Amounts(files=4650, loops=800, scale=10, transactions=2000, rounds=3)


def make_tree(top, files):
    """Makes text files of 1 to 20 KB in directories, the same in every run."""
    draw = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(draw.choices(letters, k=draw.randint(2, 9))) for _ in range(4000)]
    for i in range(files):
        directory = f"{top}/tree/d{i % 10}/e{i // 10 % 31}"
        os.makedirs(directory, exist_ok=True)
        lines = (" ".join(draw.choices(words, k=10)) for _ in range(draw.randint(15, 300)))
        with open(f"{directory}/file{i}.txt", "w") as file:
            file.write("\n".join(lines))


class Inputs:
    """Files that workloads start from, in DRAM: a tree with an archive and a patch, a database."""

    def __init__(self, directory, amounts):
        self.dir, self.amounts = directory, amounts
        os.chmod(directory, 0o755)
        make_tree(directory, amounts.files)
        shutil.copytree(f"{directory}/tree", f"{directory}/new")
        self.shell("find new -name '*[05].txt' | xargs sed -i '3s/a/A/'")
        self.shell("diff -ru tree new >patch || true")
        self.shell("tar cf tree.tar tree && rm -r new")
        # 100 words that no file has.
        self.shell("seq -f 'no-such-word-%03g' 100 >signatures")
        run("gcc", "-O2", "-pthread", "-o", f"{directory}/personalities",
            f"{ROOT}/bench/c/personalities.c", "-lm")
        with Postgres(f"{directory}/data", directory, makes=True) as server:
            server.client("pgbench", "-i", "-q", "-s", amounts.scale, "bench")

    def shell(self, script, cwd=None):
        run("bash", "-euc", script, cwd=cwd or self.dir, env={**os.environ, "INPUT": self.dir})


class Postgres:
    """A database server on a directory."""

    def __init__(self, data, sockets, makes=False):
        self.bin = glob.glob("/usr/lib/postgresql/*/bin")[-1]
        self.data, self.sockets, self.makes = data, sockets, makes
        self.server = None

    def command(self, program, *args):
        user = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--init-groups"]
        return [*user, f"{self.bin}/{program}", *map(str, args)]

    def client(self, program, *args):
        return run(*self.command(program, *args), env={**os.environ, "PGHOST": self.sockets})

    def __enter__(self):
        shutil.chown(self.sockets, "postgres", "postgres")
        if self.makes:
            os.makedirs(self.data, 0o700)
            shutil.chown(self.data, "postgres", "postgres")
            run(*self.command("initdb", "-A", "trust", "-D", self.data))
        options = ["-c", f"unix_socket_directories={self.sockets}", "-c", "listen_addresses=",
                   "-c", "shared_buffers=16MB", "-c", "max_parallel_workers_per_gather=0"]
        log = open(f"{self.sockets}/postgres.log", "w")
        self.server = subprocess.Popen(self.command("postgres", "-D", self.data, *options),
                                       stdout=log, stderr=log)
        log.close()
        ready = self.command("pg_isready", "-q", "-d", "postgres", "-h", self.sockets)
        for _ in range(1000):
            if subprocess.run(ready).returncode == 0:
                break
            time.sleep(0.01)
        if self.makes:
            self.client("createdb", "bench")
        return self

    def __exit__(self, *_):
        self.server.send_signal(2)
        self.server.wait()


def of_shell(prepare, script):
    """Returns a workload that a shell prepares and does."""

    @contextlib.contextmanager
    def ready(inputs, directory):
        yield lambda: inputs.shell(script, directory)

    return lambda inputs, directory: inputs.shell(prepare, directory), ready


def sfs():
    """Returns a file server's load: files created, appended to, read and deleted."""

    def arguments(inputs, directory, mode):
        loops = inputs.amounts.loops
        return [f"{inputs.dir}/personalities", directory, "fileserver", 131072, 200, 4, loops, mode]

    @contextlib.contextmanager
    def ready(inputs, directory):
        yield lambda: run(*arguments(inputs, directory, "run"))

    return lambda inputs, directory: run(*arguments(inputs, directory, "prepare")), ready


# Queries over the largest table: two aggregates and a join.
QUERIES = """select bid, count(*), sum(abalance) from pgbench_accounts group by bid;
select count(*) from pgbench_accounts where filler like '%x%' or abalance > 5;
select b.bid, avg(a.abalance) from pgbench_accounts a join pgbench_branches b using (bid)
    group by b.bid;"""


def database(work):
    """Returns a workload of a database: the server starts before the time."""

    def prepare(inputs, directory):
        run("cp", "-a", f"{inputs.dir}/data", directory)

    @contextlib.contextmanager
    def ready(inputs, directory):
        with Postgres(f"{directory}/data", inputs.dir) as server:
            yield lambda: work(inputs, server)

    return prepare, ready


def transactions(inputs, server):
    each = inputs.amounts.transactions
    server.client("pgbench", "-n", "-c", 4, "-t", each, "bench")


def queries(_, server):
    server.client("psql", "-q", "-d", "bench", "-c", QUERIES)


UNPACK = "tar xf $INPUT/tree.tar"
INDEX = """sqlite3 index 'create virtual table words using fts5(body);
insert into words select data from fsdir("tree") where data is not null and name glob "*/e[0-4]/*";'"""

# By the names of the paper: what is done instead, and how.
WORKLOADS = {
    "sfs": ("Filebench's fileserver, 200 files of 128 KiB", sfs()),
    "tpch": ("three queries over all rows of pgbench's tables, PostgreSQL 15", database(queries)),
    "tpcc": ("pgbench (TPC-B-like), 4 clients, PostgreSQL 15", database(transactions)),
    "tar": ("tar of a tree of text files", of_shell(UNPACK, "tar cf out.tar tree")),
    "untar": ("untar of them", of_shell("true", UNPACK)),
    "devel": ("untar, patch, tar, diff", of_shell(
        "true", f"{UNPACK}; cp -r tree old; patch -s -p1 -d tree <$INPUT/patch; tar cf out.tar tree; "
        "diff -r old tree >changes || true")),
    "glimpseindex": ("a full-text index of a sixth of the tree by SQLite's FTS5", of_shell(UNPACK, INDEX)),
    "clamav": ("a search for 100 words in the tree, `grep -rF`", of_shell(
        UNPACK, "grep -rF -f $INPUT/signatures tree || true")),
}


def once(name, inputs, at):
    """Does a workload in a mounted place; returns seconds, and bytes read and written. What it
    leaves in the page cache is written to the device within the time."""
    prepare, ready = WORKLOADS[name][1]
    directory = f"{at.dir}/{name}"
    os.makedirs(directory)
    prepare(inputs, directory)
    at.forget_pages()
    with ready(inputs, directory) as work:
        before, start = at.moved(), time.monotonic()
        work()
        run("sync", "-f", at.dir)
        took, after = time.monotonic() - start, at.moved()
    shutil.rmtree(directory)
    return took, after[0] - before[0], after[1] - before[1]
