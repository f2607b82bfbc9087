#!/bin/bash
# Measures snapshots, branches and clones of BPFS pools in memory: by the C interface, by commands,
# with the pool mounted and not, and beside copies on tmpfs. Prints docs/measurements/branches.md.
#
#   scripts/bench/branches.sh [PART…]
#     trees       by the number of files: snapshot, branch, clone, in one process
#     commands    the commands, with 1300 files of 55 MB, and six files of 1 GiB
#     changes     the first change of a file's inode after a snapshot
#     overwrite   the first overwrite of a shared block
#     background  writes while a snapshot or a branch is removed
#     send        what a stream of 1 % of the blocks takes
#     thin        the space of a thin pool after 1 GiB of small files
#     database    a PostgreSQL database for each test: copy, start, test, stop, remove
#
# Needs root, /dev/fuse, gcc and Python; `database` the package `postgresql`. Environment: KEEPSTONE (default: target/release/keepstone),
# COUNTS (numbers of files, default: 1000 10000 100000 1000000), SHM (default: /dev/shm).
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
keepstone=$(realpath "${KEEPSTONE:-$root/target/release/keepstone}")
shm=${SHM:-/dev/shm}
# shellcheck source=../lib/measured.sh
source "$root/scripts/lib/measured.sh"
work=$(mktemp -d "$shm/branches.XXXXXX")
# Programs that are linked with the library find it by its soname.
cleanup() {
    for dir in "$work"/mnt "$work"/at; do
        if mountpoint -q "$dir"; then "$keepstone" umount "$dir" || true; fi
    done
    rm -rf "$work"
}
trap cleanup EXIT
libraries=$(dirname "$keepstone")
ln -s "$libraries/libkeepstone.so" "$work/libkeepstone.so.0"
gcc -O2 -pthread -o "$work/branches" "$root/bench/c/branches.c" -I "$root/include" -L "$libraries" -lkeepstone
export LD_LIBRARY_PATH=$work
measured "scripts/bench/branches.sh${*:+ $*}" bpfs

python3 -u - "$work" "$keepstone" "${COUNTS:-1000 10000 100000 1000000}" "$@" <<'PYTHON'
import glob, os, random, shutil, signal, statistics, subprocess, sys, time

work, keepstone, counts = sys.argv[1:4]
parts = sys.argv[4:] or ["trees", "commands", "changes", "overwrite", "background", "send", "thin", "database"]
pool, mnt = f"{work}/pool", f"{work}/mnt"
os.mkdir(mnt)
# Other jobs of the machine take no processor from such a program.
realtime = ["chrt", "-r", "1"]


def ks(*args, **more):
    return subprocess.run([keepstone, *args], check=True, capture_output=True, text=True, **more).stdout


def took(*args):
    start = time.monotonic()
    subprocess.run(args, check=True, stdout=subprocess.DEVNULL)
    return (time.monotonic() - start) * 1e3


def median(call, rounds=5, after=lambda: None):
    times = []
    for _ in range(rounds):
        times.append(call())
        after()
    return statistics.median(times)


def made(size):
    if os.path.exists(pool):
        os.remove(pool)
    ks("mkfs", pool, "--size", size)


def program(*args, before=()):
    out = subprocess.run([*before, f"{work}/branches", *args], check=True, capture_output=True, text=True).stdout
    return [list(map(float, line.split())) for line in out.splitlines()]


def row(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |")


def table(*heads):
    print()
    row(*heads)
    print("|---|" + "---:|" * (len(heads) - 1))


def shown(ms):
    return f"{ms:.3f}" if ms < 1 else f"{ms:.2f}" if ms < 10 else f"{ms:.0f}"


print()
print("# Snapshots, branches and clones")
print()
print("BPFS pools in `/dev/shm`; medians of five. Files have 100 bytes, 100 in a directory, unless stated.")

if "trees" in parts:
    print()
    print("## By the number of files")
    print()
    print("Time in ms of one call of the C interface (`ks_snapshot_create`, …), in a process that has the pool")
    print("open. The last columns are a removal of the clone by `ks_unlink` for each file, and `cp -a` and")
    print("`rm -r` of the same tree on tmpfs.")
    table("files", "snapshot", "delete it", "branch", "discard it", "clone", "remove it", "`cp -a`", "`rm -r`")
    for count in map(int, counts.split()):
        made(f"{max(256, count * 12 // 1000)}M")
        [[files, *times]] = program("trees", pool, str(count), "100")
        tmpfs = ["", ""]
        if count <= 100_000:
            for dir in range((count + 99) // 100):
                os.makedirs(f"{work}/tree/{dir}")
                for file in range(min(100, count - dir * 100)):
                    with open(f"{work}/tree/{dir}/file-{file}", "wb") as to:
                        to.write(bytes(100))
            copies, removals = [], []
            for _ in range(3):
                copies.append(took("cp", "-a", f"{work}/tree", f"{work}/copy"))
                removals.append(took("rm", "-r", f"{work}/copy"))
            shutil.rmtree(f"{work}/tree")
            tmpfs = [shown(statistics.median(copies)), shown(statistics.median(removals))]
        row(f"{int(files):,}", *map(shown, times), *tmpfs)

if "commands" in parts:
    print()
    print("## Commands")
    print()
    print("Time in ms of the whole command, with its process. A pool that no process uses is scanned first.")
    made("9G")
    ks("mount", pool, mnt, "-o", "direct")
    os.mkdir(f"{mnt}/data")
    chooser = random.Random(1)
    left = 55 << 20
    for i in range(1300):
        size = left // (1300 - i) if i < 1299 else left
        os.makedirs(f"{mnt}/data/{i // 100}", exist_ok=True)
        with open(f"{mnt}/data/{i // 100}/{i}", "wb") as to:
            to.write(chooser.randbytes(size))
        left -= size
    os.mkdir(f"{mnt}/large")
    for i in range(6):
        fd = os.open(f"{mnt}/large/{i}", os.O_CREAT | os.O_RDWR)
        os.posix_fallocate(fd, 0, 1 << 30)
        os.close(fd)
    table("command", "mounted", "not in use")

    def clone(dir):
        return lambda: took(keepstone, "clone", f"{mnt}/{dir}", f"{mnt}/copy")

    def drop():
        shutil.rmtree(f"{mnt}/copy")

    clones = [median(clone("data"), after=drop), median(clone("large"), after=drop)]
    shutil.copytree(f"{mnt}/data", f"{work}/data")
    def copy_on_tmpfs():
        ms = took("cp", "-a", f"{work}/data", f"{work}/copy")
        shutil.rmtree(f"{work}/copy")
        return ms
    copied = median(copy_on_tmpfs)
    verbs = [("snapshot", "create", "delete"), ("branch", "create", "discard")]
    both = []
    for in_use in (True, False):
        if not in_use:
            ks("umount", mnt)
        times = []
        for verb, make, remove in verbs:
            create, gone = [], []
            for _ in range(5):
                create.append(took(keepstone, verb, make, pool, "x"))
                gone.append(took(keepstone, verb, remove, pool, "x"))
            times += [statistics.median(create), statistics.median(gone)]
        times.append(median(lambda: took(keepstone, "snapshot", "list", pool)))
        both.append(times)
    names = [f"`keepstone {verb} {what}`" for verb, make, remove in verbs for what in (make, remove)]
    for name, mounted, unused in zip(names + ["`keepstone snapshot list` (the process alone)"], *both):
        row(name, shown(mounted), shown(unused))
    row("`keepstone clone` of 1300 files, 55 MB", shown(clones[0]), "–")
    row("`cp -a` of the same on tmpfs", shown(copied), "–")
    row("`keepstone clone` of 6 files of 1 GiB", shown(clones[1]), "–")
    shutil.rmtree(f"{work}/data")

if "changes" in parts:
    print()
    print("## The first change of an inode after a snapshot")
    print()
    print("Time in ns of `ks_chmod` for each of 100,000 files, of 100 bytes, 100 in a directory. The first")
    print("change of an inode copies it with its 31 neighbours, and the directories among them. The last")
    print("column is the deletion of the snapshot, which holds all inodes then.")
    made("2G")
    [[plain, first, again, deleted]] = program("changes", pool, "100000", before=realtime)
    table("plain", "first after a snapshot", "second", "deletion, ms")
    row(*(f"{ns:.0f}" for ns in (plain, first, again)), shown(deleted))

if "overwrite" in parts:
    print()
    print("## The first overwrite of a shared block")
    made("2G")
    [[plain, first, others, again, snapshot]] = program("overwrite", pool, before=realtime)
    print()
    print("Time in ns of a write of 4 KiB over each block of a file of 512 MiB. The first write in each 2 MiB")
    print("of a clone copies the block of pointers, too. The program has real-time priority (`chrt -r 1`).")
    table("write", "ns", "of plain")
    for name, ns in [("plain", plain), ("in a clone: first in its 2 MiB", first), ("in a clone: first of its block", others),
                     ("in a clone: second of its block", again), ("in the pool, after a snapshot: all blocks once", snapshot)]:
        row(name, f"{ns:.0f}", f"{ns / plain:.2f}")

if "background" in parts:
    print()
    print("## Removal in the background")
    made("4G")
    print()
    print("Time in ns of a write of 4 KiB over what a file has, alone and while another thread removes a")
    print("snapshot or a branch of 200,000 files. Both threads have real-time priority (`chrt -r 1`), so")
    print("that other jobs of the machine take no processor from them.")
    table("removed", "alone", "meanwhile", "ratio", "the removal, ms")
    rows = program("background", pool, before=realtime)
    for name, (alone, beside, ms) in zip(["snapshot", "branch"], rows):
        row(name, f"{alone:.0f}", f"{beside:.0f}", f"{beside / alone:.2f}", shown(ms))

if "send" in parts:
    print()
    print("## A stream of 1 % of the blocks")
    made("3G")
    ks("mount", pool, mnt, "-o", "direct")
    with open(f"{mnt}/file", "wb") as to:
        for _ in range(1024):
            to.write(os.urandom(1 << 20))
    ks("snapshot", "create", pool, "a")
    with open(f"{mnt}/file", "r+b") as to:
        for _ in range((1 << 30) // 4096 // 100):
            to.seek(random.randrange((1 << 30) // 4096) * 4096)
            to.write(bytes(4096))
    ks("snapshot", "create", pool, "b")
    print()
    table("stream", "MiB", "ms")
    for name, args in [("full", []), ("1 % changed", ["--from", "a"])]:
        ms = median(lambda: took(keepstone, "send", f"{pool}@b", "-o", f"{work}/stream", *args), after=lambda: None)
        row(name, f"{os.path.getsize(f'{work}/stream') / 2**20:.1f}", shown(ms))
    ks("umount", mnt)
    os.remove(f"{work}/stream")

if "thin" in parts:
    print()
    print("## The space of a thin pool")
    made("2G")
    ks("mount", pool, mnt, "-o", "direct")

    def used():
        return os.stat(pool).st_blocks * 512 / 2**20

    def held():
        space = os.statvfs(mnt)
        return (space.f_blocks - space.f_bfree) * space.f_frsize / 2**20

    print()
    print("MiB that the pool's file takes of tmpfs (`du`), and that the files in it hold (`df`), with 1 GiB")
    print("in files of 16 KiB, and some seconds after every second one, or all of them, were removed.")
    table("state", "`du`", "`df`")
    row("empty", f"{used():.1f}", f"{held():.1f}")
    for i in range(65536):
        if i % 256 == 0:
            os.mkdir(f"{mnt}/{i // 256}")
        with open(f"{mnt}/{i // 256}/{i}", "wb") as to:
            to.write(bytes(16384))
    row("1 GiB written", f"{used():.1f}", f"{held():.1f}")
    for i in range(0, 65536, 2):
        os.remove(f"{mnt}/{i // 256}/{i}")
    time.sleep(30)
    row("every second file removed, after 30 s", f"{used():.1f}", f"{held():.1f}")
    for i in range(1, 65536, 2):
        os.remove(f"{mnt}/{i // 256}/{i}")
    for i in range(256):
        os.rmdir(f"{mnt}/{i}")
    for passed, more in [(12, 12), (30, 18)]:
        time.sleep(more)
        row(f"all removed, after {passed} s", f"{used():.1f}", f"{held():.1f}")
    ks("umount", mnt)

if "database" in parts:
    print()
    print("## A database for each test")
    print()
    binaries = glob.glob("/usr/lib/postgresql/*/bin")[-1]
    postgres = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--init-groups"]
    tmpfs, socket, template = f"{work}/tmpfs", f"{work}/socket", f"{mnt}/template"
    os.chmod(work, 0o755)
    made("2G")
    # Programs under `run` use the pool's file.
    shutil.chown(pool, group="postgres")
    os.chmod(pool, 0o660)
    ks("mount", pool, mnt)
    for dir in (tmpfs, socket, template):
        os.mkdir(dir, 0o700)
        shutil.chown(dir, "postgres", "postgres")
    os.chmod(socket, 0o755)
    os.chmod(tmpfs, 0o755)

    def client(name, *args):
        base = [f"{binaries}/{name}", "-U", "postgres", "-h", socket]
        subprocess.run([*base, *args], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def server(data, before=()):
        log = open(f"{work}/log", "w")
        process = subprocess.Popen([*before, *postgres, f"{binaries}/postgres", "-D", data], stdout=log, stderr=log)
        while process.poll() is None:
            try:
                if open(f"{data}/postmaster.pid").read().split("\n")[7].strip() == "ready":
                    return process
            except (OSError, IndexError):
                pass
            time.sleep(0.001)
        raise SystemExit(open(f"{work}/log").read())

    def stop(process, data, how):
        os.kill(int(open(f"{data}/postmaster.pid").readline()), how)
        process.wait()

    subprocess.run([*postgres, f"{binaries}/initdb", "-D", template, "-A", "trust"], check=True, stdout=subprocess.DEVNULL)
    with open(f"{template}/postgresql.conf", "a") as settings:
        settings.write(f"unix_socket_directories = '{socket}'\nlisten_addresses = ''\nshared_buffers = 32MB\n")
    process = server(template)
    client("createdb", "shop")
    client("pgbench", "-i", "-q", "shop")
    stop(process, template, signal.SIGINT)
    subprocess.run(["cp", "-a", template, f"{tmpfs}/template"], check=True)
    test = ("create table t (a int primary key, b text);"
            "insert into t select i, repeat('x', 100) from generate_series(1, 5000) i; select sum(a) from t;")

    def cycle(how):
        data = f"{tmpfs if how == 'tmpfs' else mnt}/test"
        before = [keepstone, "run", "--"] if how == "run" else []
        times = [time.monotonic()]
        if how == "tmpfs":
            subprocess.run(["cp", "-a", f"{tmpfs}/template", data], check=True)
        else:
            ks("clone", template, data)
        times.append(time.monotonic())
        process = server(data, before)
        times.append(time.monotonic())
        client("psql", "-qAt", "-c", test, "shop")
        times.append(time.monotonic())
        stop(process, data, signal.SIGQUIT)
        times.append(time.monotonic())
        subprocess.run([*before, "rm", "-r", data], check=True)
        times.append(time.monotonic())
        steps = [(end - begin) * 1e3 for begin, end in zip(times, times[1:])]
        return [*steps, sum(steps)]

    kinds = {"tmpfs": "tmpfs, `cp -a`", "mount": "a pool, `clone`", "run": "the same, under `run`"}
    rounds = {kind: [] for kind in kinds}
    for _ in range(7):
        for kind in kinds:
            rounds[kind].append(cycle(kind))
    print("Time in ms, medians of seven cycles each: a copy of a data directory of some 1300 files, the")
    print("start of a server on it, a test by `psql`, `pg_ctl stop -m immediate`, `rm -r` of the copy.")
    table("where", "copy", "start", "test", "stop", "remove", "all")
    for kind, name in kinds.items():
        row(name, *(shown(statistics.median(times)) for times in zip(*rounds[kind])))
    ks("umount", mnt)
PYTHON
