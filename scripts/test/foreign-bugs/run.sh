#!/bin/bash
# Records the programs of this directory, correct and with each bug of bugs.txt, lets
# `keepstone crashtest` crash them, and prints which bugs it finds, as a table.
#
#   scripts/test/foreign-bugs/run.sh [PROGRAM ...]
#
# Fails if a bug is not found, or if a correct program has a violation. Needs a C compiler.
# Environment: KEEPSTONE (default: target/release/keepstone), CC (default: cc). Takes two minutes.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
keepstone=${KEEPSTONE:-$root/target/release/keepstone}
crashtest=$root/examples/crashtest
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

compile() {
    "${CC:-cc}" -g -O1 -Wall -Wextra -I"$here" -I"$crashtest" -fsanitize=thread -c -o "$work/$1.o" "$here/$1.c"
    "${CC:-cc}" -o "$work/$1" "$work/$1.o" "$work/recorder.o" -ldl
}

# Records a variant and crashes it. Sets `states`, `violations` and `unflushed`.
crash() {
    local program=$work/$1 variant=$2 dir=$work/$1.$2
    mkdir "$dir"
    "$program" format "$variant" "$dir/pm"
    KEEPSTONE_TRACE=$dir/trace "$program" run "$variant" "$dir/pm" >"$dir/states"
    # Exit status 1 means that there are violations.
    "$keepstone" crashtest --json --from-trace "$dir/trace" --oracle "$program check $variant $dir/states" \
        >"$dir/report" || [ $? = 1 ]
    states=$(first states_explored "$dir/report")
    violations=$(first violations "$dir/report")
    unflushed=$(first unflushed "$dir/report")
}

first() {
    sed -n "s/^ *\"$1\": \([0-9]*\).*/\1/p" "$2" | head -n 1
}

"${CC:-cc}" -O1 -c -o "$work/recorder.o" "$crashtest/recorder.c"
programs=${*:-$(grep -v '^#' "$here/bugs.txt" | cut -d' ' -f1 | uniq)}
failed=0
echo "| program | entries | pattern | result | states |"
echo "|---|---|---|---|---|"
for program in $programs; do
    compile "$program"
    crash "$program" 0
    result=sound
    if [ "$violations$unflushed" != 00 ]; then
        result="**violations**"
        failed=1
    fi
    echo "| \`$program\` | | the correct program | $result | $states |"
    while IFS=' ' read -r _ variant rest; do
        crash "$program" "$variant"
        result=found
        if [ "$violations" = 0 ]; then
            result="**not found**"
            failed=1
        elif [ "$unflushed" != 0 ]; then
            result="found, also without a crash"
        fi
        echo "| \`$program $variant\` | ${rest%%: *} | ${rest#*: } | $result | $states |"
    done < <(grep "^$program " "$here/bugs.txt")
done
exit $failed
