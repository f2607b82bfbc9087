#!/bin/bash
# Kills an emulated machine with an NVDIMM at random moments, boots it again on the same memory, and
# verifies that the pool is clean and has every operation that returned to its programs.
#
#   scripts/machine/torture.sh [--rounds N] [--seed N] [--cases "fsdax devdax eadr"]
#                              [--workloads "append replace move churn sqlite git"]
#   scripts/machine/torture.sh --look CASE IMAGE
#
# Rounds are kills per case (default 5, some 15 s each; cases: fsdax devdax). The seed repeats the
# choices; the moments are as exact as the clock. --look boots a copy of IMAGE, which a failure
# left, to a shell. Installs packages by apt, as root. Environment: KEEPSTONE, the program under
# test (default: target/release/keepstone); LAYOUT, the layout of pools (bpfs, scmfs; default bpfs);
# that of lib/machine.sh.
#
# The machine runs the real stack: boot, libnvdimm, ext4 with MAP_SYNC or devdax, FUSE. It has no
# CPU cache that could lose a store: missing flushes are found by `keepstone crashtest`.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=../lib/machine.sh
source "$root/scripts/lib/machine.sh"
work=$machine/torture
# Kills of one NVDIMM until a new one replaces it, so that the pool does not fill up.
kills_per_image=20
rounds=5 seed=$RANDOM cases="fsdax devdax" workloads="append replace move churn sqlite git" look=
layout=${LAYOUT:-bpfs}
while [ $# -gt 0 ]; do
    case $1 in
        --rounds) rounds=$2; shift 2 ;;
        --seed) seed=$2; shift 2 ;;
        --cases) cases=$2; shift 2 ;;
        --workloads) workloads=$2; shift 2 ;;
        --look) look=$2 image=$3; shift 3 ;;
        *) sed -n '2,16s/^# \{0,1\}//p' "$0"; exit 2 ;;
    esac
done

# The machine, while it runs.
pid=
# Per workload, the last operation that was acknowledged, or found after a crash.
declare -A acked=()
# Per workload, the operations on earlier NVDIMMs of the case.
declare -A earlier=()
# The damage that the machine reports.
losses=()

clean_up() {
    [ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null || true
}
trap clean_up EXIT

# The initrd: the program under test, other people's programs, and the guest's part of this script.
build_initrd() {
    local keepstone tree=$work/tree program
    keepstone=$(realpath "${KEEPSTONE:-$root/target/release/keepstone}")
    [ -x "$keepstone" ] || die "no $keepstone; build it with: cargo build --release -p keepstone"
    "$root/scripts/lib/packages.sh" sqlite3 git binutils
    rm -rf "$tree"
    mkdir -p "$tree"
    for program in "$keepstone" "$(command -v sqlite3)" "$(command -v git)"; do
        machine_program "$tree" "$program"
    done
    cp "$root/scripts/machine/torture-guest.sh" "$tree/main"
    machine_initrd "$tree" "$work/initrd"
}

# boot TODO: starts the machine on $image; its report goes to $image.report, its console to
# $image.console.
boot() {
    local mode persistence domain qemu
    machine_case "$name"
    machine_command "$name" "$image" "$work/initrd" "todo=$1" "expect=$domain" \
        "layout=$layout" "journal=$journal" "workloads=${workloads// /,}"
    : >"$image.report"
    "${qemu[@]}" -serial "file:$image.report" </dev/null >"$image.console" 2>&1 &
    pid=$!
}

# wait_for LINE: waits until the machine has reported LINE; false if it reports damage, ends or
# hangs.
wait_for() {
    local end=$((SECONDS + machine_timeout))
    until grep -qx "$1" "$image.report"; do
        if grep -q '^bad ' "$image.report"; then
            # The line may still be on its way.
            sleep 1
            return 1
        fi
        kill -0 "$pid" 2>/dev/null || return 1
        ((SECONDS < end)) || { losses+=("the machine hangs before it is $1"); return 1; }
        sleep 0.02
    done
}

# Kills the machine, as if its plug were pulled.
kill_machine() {
    kill -KILL "$pid" 2>/dev/null || losses+=("the machine ended by itself")
    wait "$pid" 2>/dev/null || true
    pid=
}

# Adds the damage in the report and the console of the last boot to losses, and acknowledged
# operations to acked. Ignores a line that the kill cut off.
judge() {
    local what one n
    while read -r what one n; do
        case $what in
            up | ready | closed) ;;
            formatted) formatted=1 ;;
            found)
                ((n >= ${acked[$one]:-0})) ||
                    losses+=("$one: ${acked[$one]} operations were acknowledged, $n are there")
                acked[$one]=$n
                ;;
            ack) acked[$one]=$n ;;
            bad) losses+=("$one $n") ;;
            *) losses+=("the machine said: $what $one $n") ;;
        esac
    done <"$image.report"
    what=$(grep -m 1 -E 'BUG:|Oops|Kernel panic|EXT4-fs error' "$image.console") &&
        losses+=("the kernel said: $what")
    return 0
}

# Ends the script if any operation was lost, and keeps the files to find out why.
no_losses() {
    ((${#losses[@]} > 0)) || return 0
    local kept=$work/failed-$name-$round
    mv "$image.before" "$kept.img"
    cp "$image.report" "$kept.report"
    cp "$image.console" "$kept.console"
    say "$layout, $name, round $round, seed $seed: FAILED"
    printf '  %s\n' "${losses[@]}" >&2
    cat >&2 <<END
  $kept.img is the memory as the last kill left it; beside it the report and the console of the boot that followed.
  Look at a copy of it in the machine:  scripts/machine/torture.sh --look $name $kept.img
END
    exit 1
}

# sleep_ms MS: sleeps milliseconds.
sleep_ms() {
    sleep "$(printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)))"
}

# torture NAME: kills the machine of case NAME in each round.
torture() {
    local name=$1 image=$work/$1.img round formatted journal todo recovery_ms=1000 started
    local in_recovery=0 one expected
    acked=() earlier=()
    for ((round = 1; round <= rounds; round++)); do
        if (((round - 1) % kills_per_image == 0)); then
            machine_image "$name" "$image"
            for one in $workloads; do
                earlier[$one]=$((${earlier[$one]:-0} + ${acked[$one]:-0}))
            done
            acked=() formatted=
        fi
        todo=work
        [ -n "$formatted" ] || todo=format
        journal=wal
        ((round % 2)) || journal=delete
        cp --sparse=always "$image" "$image.before"
        boot $todo
        if wait_for up; then
            started=$(date +%s%3N)
            if ((RANDOM % 4 == 0 && round < rounds)); then
                sleep_ms $((RANDOM * recovery_ms / 32768))
                in_recovery=$((in_recovery + 1))
            elif wait_for ready; then
                recovery_ms=$(($(date +%s%3N) - started))
                # All workloads run in the last round, because the test of the checker needs its
                # operations.
                for one in $workloads; do
                    ((round < rounds)) || wait_for "ack $one .*" || break
                done
                sleep_ms $((500 + RANDOM * 5000 / 32768))
            fi
        fi
        kill_machine
        judge
        no_losses
    done
    mv "$image.before" "$image.forgotten"
    cp --sparse=always "$image" "$image.before"
    verify
    no_losses
    echo "$name: $rounds kills, $in_recovery of them during recovery; nothing lost"
    for one in $workloads; do
        echo "  $one: $((earlier[$one] + ${acked[$one]:-0})) operations"
    done

    # Tests the checker: memory set back by the last round must show in every workload, and a
    # missing pool at once.
    mv "$image.forgotten" "$image"
    expected=$(wc -w <<<"$workloads")
    [ $todo = work ] || expected=1
    verify
    ((${#losses[@]} == expected)) ||
        die "$name: set back by one round, $expected losses were to be found, not ${#losses[@]}: ${losses[*]}"
    echo "  set back by one round, it is found to lack something: ${losses[*]%%:*}"
    losses=()
    rm -f "$image"*
}

# Boots once more, without workloads: verifies everything, unmounts and checks the pool.
verify() {
    boot verify
    wait_for closed || true
    kill_machine
    judge
}

# look CASE IMAGE: opens a shell in the machine, on a copy of the image.
look() {
    local mode persistence domain qemu copy=$work/look.img
    machine_case "$1"
    cp --sparse=always "$2" "$copy"
    machine_command "$1" "$copy" "$work/initrd" todo=look "expect=$domain"
    "${qemu[@]}" -serial null
    rm -f "$copy"
}

mkdir -p "$work"
for case in $cases $look; do
    machine_case "$case"
done
machine_base
build_initrd
if [ -n "$look" ]; then
    look "$look" "$image"
    exit
fi
RANDOM=$seed
echo "torture.sh: $layout, seed $seed, $rounds kills per case, workloads $workloads"
for case in $cases; do
    torture "$case"
done
