# shellcheck shell=bash
# Fetches sources from Debian's package archive without touching the machine's apt configuration.
# Scripts source this.

# fetch_source PACKAGE DIR: unpacks the upstream source of PACKAGE into DIR, which must not exist.
#
# Uses the archive and keys of the machine's own sources. Leaves out Debian's patches. Lists and
# archives stay in $KEEPSTONE_CACHE (default .work/debian-source of the checkout), so that a second
# call needs no network.
fetch_source() {
    local package=$1 dir=$2
    local here cache archive
    here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
    cache=${KEEPSTONE_CACHE:-$here/.work/debian-source}
    mkdir -p "$cache/$package"
    archive=$(find "$cache/$package" -name '*.orig.tar.*' ! -name '*.asc' | head -n 1)
    if [[ -z $archive ]]; then
        download_source "$package" "$cache"
        archive=$(find "$cache/$package" -name '*.orig.tar.*' ! -name '*.asc' | head -n 1)
    fi
    if [[ -z $archive ]]; then
        echo "the source package $package holds no upstream archive" >&2
        return 1
    fi
    mkdir "$dir"
    tar --extract --file "$archive" --directory "$dir" --strip-components 1
}

# download_source PACKAGE CACHE: downloads by apt with a state and a list of sources of its own.
download_source() {
    local package=$1 cache=$2
    local codename uri
    codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
    uri=$(sed -nE 's/^(URIs:|deb)[[:space:]]+(\[[^]]*\][[:space:]]+)?(https?:[^[:space:]]*\/debian)\/?([[:space:]].*)?$/\3/p' \
        <(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null) | head -n 1)
    mkdir -p "$cache/state/lists/partial" "$cache/state/cache/archives/partial"
    printf 'deb-src [signed-by=%s] %s %s main\n' \
        /usr/share/keyrings/debian-archive-keyring.gpg \
        "${uri:-http://deb.debian.org/debian}" "$codename" >"$cache/state/sources.list"
    local apt=(
        apt-get -qq
        -o "Dir::Etc::sourcelist=$cache/state/sources.list"
        -o Dir::Etc::sourceparts=/dev/null
        -o "Dir::State::lists=$cache/state/lists"
        -o "Dir::Cache=$cache/state/cache"
        -o APT::Sandbox::User=root
    )
    if [[ ! -s $cache/state/updated ]]; then
        "${apt[@]}" update
        date >"$cache/state/updated"
    fi
    (cd "$cache/$package" && "${apt[@]}" source --download-only "$package")
}
