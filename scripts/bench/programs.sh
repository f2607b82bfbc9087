#!/bin/bash
# Measures whole programs on tmpfs, under `keepstone run` on a pool and on tmpfs (loaded), on a
# cached mount, and on ext4 on a RAM disk, alternating for ROUNDS rounds. With --cache: on ext4 on
# the disk of /var/tmp, under `keepstone run` on a cache over another such ext4, on the mount of that
# cache, and under `keepstone run` on a pool.
#
#   scripts/bench/programs.sh [--cache] [PROGRAM…]
#       of: untar find grep du cp rsync git-add git-status git-clone npm processes gcc make
#       sqlite-delete sqlite-wal pgbench mariadb redis rocksdb nginx python perl node java gzip sort rm
#       (default: all but npm)
#
# Prints the best wall time of each in seconds, and ratios. Above 1, `run` is faster than tmpfs, or
# than tmpfs with the library loaded, and the mount faster than tmpfs or ext4; with --cache, the
# cache is faster than ext4 or than the pool. Nothing waits to be written back when a program starts.
# Needs root. Installs what it lacks by apt-get. Environment: KEEPSTONE (default:
# target/dist/keepstone), ROUNDS (5),
# JSON (a file that gets the results, too), LAYOUT, the layout of the pools (bpfs, scmfs; default
# bpfs).
set -euo pipefail
# A program that fails has no time.
shopt -s inherit_errexit
root=$(cd "$(dirname "$0")/../.." && pwd)
# The files of measured programs that are more than a line of the shell.
parts=$root/scripts/bench/programs
keepstone=$(realpath "${KEEPSTONE:-$root/target/dist/keepstone}")
rounds=${ROUNDS:-5}
# shellcheck source=../lib/measured.sh
source "$root/scripts/lib/measured.sh"
measured "ROUNDS=$rounds scripts/bench/programs.sh${*:+ $*}" "${LAYOUT:-bpfs}"
kinds=(tmpfs direct loaded cached ext4)
if [ "${1:-}" = --cache ]; then
    kinds=(disk cache cache-mount direct)
    shift
fi
# shellcheck source=../lib/servers.sh
source "$root/scripts/lib/servers.sh"
# shellcheck source=../lib/ext4.sh
source "$root/scripts/lib/ext4.sh"

programs=(untar find grep du cp rsync git-add git-status git-clone processes gcc make sqlite-delete sqlite-wal pgbench mariadb redis
    rocksdb nginx python perl node java gzip sort rm)
[ $# -eq 0 ] || programs=("$@")

# need NAME: installs the packages of a program.
need() {
    case $1 in
        git-*) "$root/scripts/lib/packages.sh" git ;;
        npm) command -v npm || "$root/scripts/lib/packages.sh" npm ;;
        rsync | gzip | perl) "$root/scripts/lib/packages.sh" "$1" ;;
        gcc | make) "$root/scripts/lib/packages.sh" gcc libc6-dev make ;;
        sqlite-*) "$root/scripts/lib/packages.sh" sqlite3 ;;
        pgbench) need_server pg_ctlcluster postgresql ;;
        mariadb) need_server mariadbd mariadb-server ;;
        redis) need_server redis-server redis-server ;;
        nginx) need_server nginx nginx-light && "$root/scripts/lib/packages.sh" curl ;;
        rocksdb) "$root/scripts/lib/packages.sh" rocksdb-tools ;;
        node) command -v node || "$root/scripts/lib/packages.sh" nodejs ;;
        java) command -v javac || "$root/scripts/lib/packages.sh" default-jdk-headless ;;
    esac >/dev/null
}
"$root/scripts/lib/packages.sh" python3 e2fsprogs >/dev/null
for program in "${programs[@]}"; do need "$program"; done

work=$(mktemp -d /dev/shm/bench-programs.XXXXXX)
disk=$(mktemp -d /var/tmp/bench-programs.XXXXXX)
# Programs that become another user need access to all of it.
chmod 755 "$work"
install -m 755 "${KEEPSTONE_LIBRARY:-$(dirname "$keepstone")/libkeepstone.so}" "$work/libkeepstone.so"
export KEEPSTONE_LIBRARY=$work/libkeepstone.so INPUT=$work/input
mounted=()
clean_up() {
    cd /
    for dir in "${mounted[@]}"; do "$keepstone" umount "$dir" || true; done
    for dir in ext4 disk below; do umount "$work/$dir" 2>/dev/null || true; done
    rm -rf "$work" "$disk"
}
trap clean_up EXIT

mkdir "${kinds[@]/#/$work/}" "$INPUT"
pools=(direct cached)
if [ "${kinds[0]}" = disk ]; then
    pools=(direct)
    mkdir "$work/below"
    ext4_in "$disk/image" 2G "$work/disk"
    ext4_in "$disk/below" 2G "$work/below"
    "$keepstone" mkfs "$work/cache.pool" --cache --size 2G >/dev/null
    chmod 755 "$work/below"
    "$keepstone" attach "$work/cache.pool" "$work/below" "$work/cache" >/dev/null
    mounted+=("$work/cache")
else
    ext4_in "$work/ext4.image" 2G "$work/ext4"
fi
for kind in "${pools[@]}"; do
    "$keepstone" mkfs "$work/$kind.pool" --layout "${LAYOUT:-bpfs}" --size 2G >/dev/null
    chmod 666 "$work/$kind.pool"
    options=()
    [ "$kind" = cached ] || options=(-o direct)
    "$keepstone" mount "${options[@]}" "$work/$kind.pool" "$work/$kind" >/dev/null
    mounted+=("$work/$kind")
done

# 4650 files of 1 to 20 KB of text in 310 directories, C programs, a project of 60 C files, and
# lines to sort: the same in every run.
python3 - "$INPUT" <<'PYTHON'
import os, random, sys
top = sys.argv[1]
draw = random.Random(1)
words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(4000)]
for i in range(4650):
    directory = f"{top}/tree/d{i % 10}/e{i // 10 % 31}"
    os.makedirs(directory, exist_ok=True)
    with open(f"{directory}/file{i}.txt", "w") as file:
        file.write("\n".join(" ".join(draw.choices(words, k=10)) for _ in range(draw.randint(15, 300))))
with open(f"{top}/lines", "w") as file:
    for _ in range(600_000):
        file.write(" ".join(draw.choices(words, k=3)) + "\n")
for i in range(30):
    with open(f"{top}/program{i}.c", "w") as file:
        file.write("#include <stdio.h>\n#include <string.h>\n")
        for k in range(20):
            file.write(f"int f{k}(int x) {{ return x * {draw.randint(2, 99)} + {k}; }}\n")
        file.write('int main(void) { printf("%d\\n", f1(2)); return 0; }\n')
os.makedirs(f"{top}/project")
for i in range(60):
    with open(f"{top}/project/f{i}.c", "w") as file:
        file.write('#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include "all.h"\n')
        for k in range(20):
            file.write(f"static int g{k}(int x) {{ return x * {draw.randint(2, 99)} + {k}; }}\n")
        file.write(f'int f{i}(int x) {{ return printf("%d\\n", x) + {" + ".join(f"g{k}(x)" for k in range(20))}; }}\n')
with open(f"{top}/project/all.h", "w") as file:
    file.writelines(f"int f{i}(int x);\n" for i in range(60))
with open(f"{top}/project/main.c", "w") as file:
    file.write('#include "all.h"\nint main(void) { return ' + " + ".join(f"f{i}({i})" for i in range(60)) + "; }\n")
with open(f"{top}/project/Makefile", "w") as file:
    file.write("""objects := $(patsubst %.c,obj/%.o,$(filter-out main.c,$(wildcard *.c)))
program: main.c lib.a
\tgcc -o $@ $^
lib.a: $(objects)
\tar rcs $@ $^
obj/%.o: %.c | obj
\tgcc -O1 -MMD -c -o $@ $<
obj:
\tmkdir $@
-include $(objects:.o=.d)
""")
PYTHON
tar cf "$INPUT/tree.tar" -C "$INPUT" tree
# 40 packages of 60 files.
if [[ " ${programs[*]} " == *" npm "* ]]; then
    for package in {0..39}; do
        mkdir -p "$INPUT/packages/$package/package"
        echo "{\"name\":\"package-$package\",\"version\":\"1.0.0\"}" >"$INPUT/packages/$package/package/package.json"
        first=$((package % 4 * 60 + 1))
        find "$INPUT/tree/d$((package / 4))" -name '*.txt' | sort | sed -n "$first,$((first + 59))p" |
            xargs -d '\n' cp -t "$INPUT/packages/$package/package"
        tar czf "$INPUT/package-$package.tgz" -C "$INPUT/packages/$package" package
    done
    export npm_config_cache=$work/npm npm_config_audit=false npm_config_fund=false npm_config_update_notifier=false
fi

# prepare NAME DIR: makes the files that a program starts with, untimed.
prepare() {
    cd "$2"
    case $1 in
        untar) ;;
        find | grep | du | cp | rsync | perl | node | rm) tar xf "$INPUT/tree.tar" ;;
        git-add) tar xf "$INPUT/tree.tar" && git -C tree init -q ;;
        git-status | git-clone)
            tar xf "$INPUT/tree.tar"
            git -C tree init -q && git -C tree add . && git -C tree -c user.name=n -c user.email=e commit -qm tree
            ;;
        processes) echo content >file ;;
        gcc) cp "$INPUT"/*.c . ;;
        make) cp "$INPUT"/project/* . ;;
        npm) echo '{"name":"project","version":"1.0.0"}' >package.json ;;
        pgbench | mariadb) "$parts/$1.sh" prepare ;;
        sqlite-* | redis | rocksdb | nginx) ;;
        java)
            tar xf "$INPUT/tree.tar"
            [ -e "$INPUT/Zip.class" ] || javac -d "$INPUT" "$parts/Zip.java"
            ;;
        python) printf 'import json, http.client, xml.dom.minidom, unittest, asyncio\n' >program.py ;;
        gzip | sort) cp "$INPUT/lines" . ;;
    esac
}

# The measured part, run by bash in the directory.
# shellcheck disable=SC2016,SC2028  # that shell expands it
commands() {
    case $1 in
        untar) echo 'tar xf "$INPUT/tree.tar"' ;;
        find) echo 'find tree -printf "%s %p\n" >/dev/null' ;;
        grep) echo 'grep -r nosuchword tree || true' ;;
        du) echo 'du -s tree >/dev/null' ;;
        cp) echo 'cp -a tree copy' ;;
        rsync) echo 'rsync -a tree/ copy' ;;
        git-add) echo 'cd tree && git add . && git -c user.name=n -c user.email=e commit -qm tree' ;;
        git-status) echo 'cd tree && for i in 1 2 3 4 5; do git status >/dev/null; done' ;;
        git-clone) echo 'git clone -q tree clone' ;;
        npm) echo 'npm install --silent --offline "$INPUT"/package-*.tgz' ;;
        processes) echo 'for i in {1..200}; do cat file; done >/dev/null' ;;
        gcc) echo 'for i in {0..29}; do gcc -c program$i.c; done' ;;
        make) echo 'make -s -j2' ;;
        sqlite-*)
            echo "(echo 'pragma journal_mode=${1#sqlite-};create table t(a,b);'
                for i in {1..3000}; do echo \"insert into t values(\$i,'some text of a row');\"; done) | sqlite3 db >/dev/null"
            ;;
        pgbench | mariadb | redis | nginx) echo "'$parts/$1.sh'" ;;
        rocksdb)
            echo 'db_bench --db="$PWD/db" --benchmarks=fillsync,fillrandom,readrandom,overwrite,compact,readseq \
                --num=20000 --seed=1 --compression_type=none 2>/dev/null'
            ;;
        perl) echo 'find tree -type f -print0 | xargs -0 perl -pi -e "s/a/e/"' ;;
        node) echo "node '$parts/node.js'" ;;
        java) echo 'java -cp "$INPUT" Zip' ;;
        python) echo 'export PYTHONPYCACHEPREFIX=$PWD/cache; for i in 1 2 3 4 5; do python3 program.py; done' ;;
        gzip) echo 'gzip -1 -c lines >lines.gz && gzip -dc lines.gz >again' ;;
        sort) echo 'sort -S 8M -T . lines >sorted' ;;
        rm) echo 'rm -rf tree' ;;
    esac
}

# Prints a short call of the measured program.
version() {
    case $1 in
        untar) echo tar --version ;;
        git-*) echo git --version ;;
        processes) echo cat --version ;;
        sqlite-*) echo sqlite3 --version ;;
        pgbench) echo /usr/lib/postgresql/*/bin/postgres --version ;;
        mariadb) echo mariadbd --version ;;
        redis) echo redis-server --version ;;
        rocksdb) echo db_bench --version ;;
        nginx) echo nginx -v ;;
        python) echo python3 --version ;;
        *) echo "$1" --version ;;
    esac
}

# once NAME KIND: prints microseconds.
once() {
    local dir=$work/$2/$1 run=()
    case $2 in direct | loaded | cache) run=("$keepstone" run --) ;; esac
    # The mount of the cache.
    [ "$2" != cache-mount ] || dir=$work/cache/$1
    mkdir "$dir"
    (prepare "$1" "$dir") >/dev/null
    if [ -d "$work/cache" ]; then
        "$keepstone" attach flush "$work/cache" >/dev/null
        sync
    fi
    local script start end
    script=$(commands "$1")
    # Loads programs into memory: reading them from the disk is not measured.
    (cd "$dir" && "${run[@]}" bash -c "$(version "$1")" </dev/null &>/dev/null)
    start=$(date +%s%N)
    (cd "$dir" && "${run[@]}" bash -c "$script" </dev/null >/dev/null)
    end=$(date +%s%N)
    rm -rf "$dir"
    echo $(((end - start) / 1000))
}

results=$work/results
if [ "${kinds[0]}" = disk ]; then
    names=(ext4 run mount bpfs)
    ratios=('ext4/run 0 1' 'ext4/mount 0 2' 'bpfs/run 3 1')
else
    names=(tmpfs run loaded mount ext4)
    ratios=('tmpfs/run 0 1' 'loaded/run 2 1' 'tmpfs/mount 0 3' 'ext4/mount 4 3')
fi
printf '%-14s' program
printf ' %8s' "${names[@]}"
printf ' %12s' "${ratios[@]%% *}"
echo
for program in "${programs[@]}"; do
    best=()
    for ((round = 0; round < rounds; round++)); do
        for i in "${!kinds[@]}"; do
            took=$(once "$program" "${kinds[i]}")
            [ "$took" -ge "${best[i]:-999999999}" ] || best[i]=$took
        done
    done
    printf '%-14s' "$program"
    printf '{"program":"%s"' "$program" >>"$results"
    for i in "${!names[@]}"; do
        awk -v us="${best[i]}" 'BEGIN { printf " %8.3f", us / 1e6 }'
        printf ',"%s_us":%d' "${names[i]}" "${best[i]}" >>"$results"
    done
    echo '}' >>"$results"
    for ratio in "${ratios[@]}"; do
        read -r _ above below <<<"$ratio"
        awk -v a="${best[above]}" -v b="${best[below]}" 'BEGIN { printf " %12.2f", a / b }'
    done
    echo
done
[ -z "${JSON:-}" ] || { echo '['; sed '$!s/$/,/' "$results"; echo ']'; } >"$JSON"
