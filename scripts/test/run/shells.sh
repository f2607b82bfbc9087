# shellcheck shell=bash
# Redirections, here documents, loops, jobs, traps, in bash and in dash.
cat > script <<'SCRIPT'
set -eu
echo one > file
echo two >> file
exec 7>> file
echo three >&7
exec 7>&-
while read -r line; do echo "<$line>"; done < file
exec 5< file
read -r first <&5
read -r second <&5
echo "$first $second"
cat <&5
exec 5<&-
(cd / && echo elsewhere) >> file
{ echo out; echo err >&2; } > both 2>&1
cat both
mkdir -p dir
cd dir
pwd | sed 's,.*/,,'
echo inside > ../outside
cd ..
cat outside dir/../file
for i in 1 2 3 4 5; do echo $i > "number$i" & done
wait
cat number?
echo pattern number[2-4]
[ -s file ] && [ ! -e missing ] && echo tests
trap 'echo trapped > trapped' EXIT
umask 077
: > private
ls -l private | cut -c1-10
set -o noclobber 2>/dev/null || set -C
(echo x > file) 2>/dev/null || echo refused
cat << HERE | tr a-z A-Z >> upper
a here document of $(cat number3)
HERE
cat upper
sh -c 'cat; echo by the child' < file > result
cat result
kill -0 $$
SCRIPT
for shell in bash dash; do
    echo "-- $shell"
    mkdir "$shell"
    (cd "$shell" && "$shell" ../script; cat trapped)
done
# Features that only bash has.
mapfile -t lines < bash/file
echo "${#lines[@]} lines"
read -r -u 9 word 9< bash/upper
echo "$word"
coproc cat
echo through the coprocess >&"${COPROC[1]}"
read -r back <&"${COPROC[0]}"
echo "$back" | tee back
exec {number}>named
echo named >&"$number"
exec {number}>&-
cat named
diff <(cat bash/file) <(cat dash/file) && echo same
(
    flock -n 8 && echo locked
    flock -n named -c true && echo not locked
) 8>lock
(flock 8; echo "$BASHPID" >/dev/null) 8>lock
printf '%s\n' {1..20000} > many
wc -l < many
