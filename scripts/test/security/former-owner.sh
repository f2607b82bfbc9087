# shellcheck shell=bash
# Former owners: a file gets another owner by a program under `keepstone run`, through another mount
# of the pool, or in the directory below a cache. A user who owned it and has it open has no rights
# of the owner any more.
: "${stranger?}" "${keepstone:=}" "${place?}" "${mnt?}" "${here?}"

suite_former_owner() {
    local path layout other=$place/other below=$place/below
    mkdir "$other"
    for layout in bpfs scmfs; do
        path=$(pool "former-$layout" --layout "$layout")
        "$keepstone" mount -o direct "$path" "$mnt" >/dev/null
        former "$mnt" "$mnt" "$keepstone" run --quiet --
        "$keepstone" mount -o direct "$path" "$other" >/dev/null
        former "$mnt" "$other"
        owner_keeps_rights
        healthy "$mnt"
        unmount "$other"
        unmount "$mnt"
    done
    path=$(pool former-cache --cache)
    mkdir -p "$below"
    mount -t tmpfs -o mode=755 tmpfs "$below"
    "$keepstone" attach --max-age 1 "$path" "$below" "$mnt" >/dev/null
    former "$mnt" "$below"
    healthy "$mnt"
    unmount "$mnt"
    umount "$below"
}

# former SEEN CHANGED [RUN…]: the stranger opens its files in SEEN; root takes them over in CHANGED,
# by chown and chmod, under RUN.
former() {
    local seen=$1 changed=$2 name
    shift 2
    rm -rf "$seen/victims" "$place/stranger/go" "$place/stranger/ready"
    mkdir -p "$seen/victims/sticky"
    chmod 1777 "$seen/victims/sticky"
    for name in chmod chmod-own-namespace chgrp times acl no-acl sticky/sticky sticky/sticky-rename; do
        echo precious >"$seen/victims/$name"
        chmod 644 "$seen/victims/$name"
        setfacl -m u:1:r "$seen/victims/$name"
        chown "$stranger:$stranger" "$seen/victims/$name"
    done
    # Below a cache, everything is there before root changes it.
    [ "$seen" = "$changed" ] || "$keepstone" attach flush "$seen" >/dev/null 2>&1 || true
    as stranger python3 "$here/former.py" "$seen/victims" \
        "$place/stranger/ready" "$place/stranger/go" >"$place/attacks" &
    await_until 20 test -e "$place/stranger/ready"
    "$@" chown -R root:root "$changed/victims"
    "$@" chmod -R u=rwX,go=rX "$changed/victims"
    "$@" chmod 1777 "$changed/victims/sticky"
    # A change below a cache is reported.
    sleep 1.5
    touch "$place/stranger/go"
    wait $!
    [ ! -s "$place/attacks" ] || die "a former owner could: $(tr '\n' ' ' <"$place/attacks")"
    [ "$(find "$seen/victims" -type f | wc -l)" = 8 ] || die "a file is gone: $(find "$seen/victims")"
    for name in chmod chmod-own-namespace acl chgrp; do
        [ "$(stat -c %u:%g:%a "$seen/victims/$name")" = 0:0:644 ] ||
            die "$name: $(stat -c %u:%g:%a "$seen/victims/$name")"
    done
}

# Changes that the owner of a file on a shared pool may make, and others by their rights.
owner_keeps_rights() {
    install -d -m 777 "$mnt/open"
    as stranger sh -euc "cd '$mnt/open'; echo own >own; chmod 4711 own; touch -d 2001-01-01 own
        setfacl -m u:1:r own; setfacl -b own; mkdir -m 1777 sticky; touch sticky/own; rm sticky/own"
    echo other >"$mnt/open/other"
    chmod 666 "$mnt/open/other"
    chmod u+s,g+s,a+x "$mnt/open/other"
    # A write by another user takes the bits, and sets no times but its own.
    as stranger sh -euc "cd '$mnt/open'; touch other; echo more >>other; truncate -s 3 other"
    [ "$(stat -c %a "$mnt/open/other")" = 777 ] || die "set-user-ID stays: $(stat -c %a "$mnt/open/other")"
    refused as stranger chmod 600 "$mnt/open/other"
    refused as stranger touch -d 2001-01-01 "$mnt/open/other"
    # Capabilities count.
    setpriv --reuid 61003 --regid 61003 --clear-groups --inh-caps=+fowner --ambient-caps=+fowner \
        chmod 640 "$mnt/open/other"
    [ "$(stat -c %a "$mnt/open/other")" = 640 ] || die "CAP_FOWNER has no effect"
}
