# shellcheck shell=bash
# The origin of a measurement, as documents of docs/measurements have it in their first paragraph.
# Benchmarks source this.

# commit_of ROOT: prints the commit of a checkout, with `-dirty` if files differ from it.
commit_of() {
    git -C "$1" describe --always --dirty --abbrev=8 --exclude='*' 2>/dev/null || echo unknown
}

# measured COMMAND [FORMAT…]: prints date, commit, machine, COMMAND, and the versions of the formats
# on the media. Environment: MEASURED_COMMIT, if the commit was determined before.
measured() {
    local root command=$1 commit processor memory flush formats='' format
    shift
    root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
    commit=${MEASURED_COMMIT:-$(commit_of "$root")}
    processor="$(nproc) × $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)"
    grep -qw hypervisor /proc/cpuinfo && processor+=' (virtual machine)'
    for flush in clwb clflushopt clflush; do
        grep -qw "$flush" /proc/cpuinfo && break
    done
    memory=$(awk '/^MemTotal/ { print int($2 / 1048576) " GiB" }' /proc/meminfo)
    for format; do
        formats+=", $format $(sed -n '1s/.*version //p' "$root/docs/format/$format.md")"
    done
    formats=${formats#, }
    printf '%s,\n' "Measured: $(date -u '+%Y-%m-%d %H:%M UTC'), commit $commit" \
        "machine: $processor, $flush, $memory, Linux $(uname -r)" "command: \`$command\`"
    echo "formats: ${formats:-none}"
}
