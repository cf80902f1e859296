#!/usr/bin/env bash
# Installs what `make build` has built: library, header, pkg-config file, tools, man pages, completions, also
# of the command `tidelog`, which pip installs.
#
#   PREFIX=/usr/local LIBDIR=$PREFIX/lib DESTDIR= STRIP=yes scripts/install.sh [uninstall]
#
# STRIP=no leaves line tables in, which packages of debug symbols are made from. `uninstall` removes the files that
# share/tidelog/installed lists, and folders that are empty then.
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=${PREFIX:-/usr/local}
libdir=${LIBDIR:-$prefix/lib}
stage=${DESTDIR:-}
built=${CARGO_TARGET_DIR:-target}/release
list=$stage$prefix/share/tidelog/installed
tools=(tidelog-bench tidelog-doctor tidelog-format tidelog-plan)
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
soname=$(sed -n 's/.*-soname,\(.*\)".*/\1/p' torch-bridge/build.rs)
installed=()

main() {
    if [ "${1:-}" = uninstall ]; then uninstall; return; fi
    trap record EXIT # also of what is cut short
    local strip=(-s)
    [ "${STRIP:-yes}" != no ] || strip=()
    local tool
    for tool in "${tools[@]}"; do
        put 755 "$built/$tool" "$prefix/bin/$tool" "${strip[@]}"
        completions "$tool"
    done
    local carried=torch-bridge/python/tidelog/commands/completions
    put 644 "$carried/tidelog" "$prefix/share/bash-completion/completions/tidelog"
    put 644 "$carried/_tidelog" "$prefix/share/zsh/site-functions/_tidelog"
    put 644 "$carried/tidelog.fish" "$prefix/share/fish/vendor_completions.d/tidelog.fish"
    put 755 "$built/libtidelog.so" "$libdir/libtidelog.so.$version" "${strip[@]}"
    link "libtidelog.so.$version" "$libdir/$soname"
    link "$soname" "$libdir/libtidelog.so"
    man_pages
    put 644 torch-bridge/include/tidelog.h "$prefix/include/tidelog.h"
    put 644 LICENSE-APACHE "$prefix/share/licenses/tidelog/LICENSE-APACHE"
    put 644 LICENSE-MIT "$prefix/share/licenses/tidelog/LICENSE-MIT"
    put 644 <(package_config) "$libdir/pkgconfig/tidelog.pc"
    echo "installed into $stage$prefix; ldconfig makes the library known where $libdir is a folder that it looks at"
}

# Mode, file, place below DESTDIR, options of install.
put() {
    install -D -m "$1" "${@:4}" "$2" "$stage$3"
    installed+=("$3")
}

record() {
    install -D -m 644 <(printf '%s\n' "${installed[@]}" "${list#"$stage"}") "$list"
}

link() {
    ln -sfn "$1" "$stage$2"
    installed+=("$2")
}

completions() {
    local words=(completions)
    [ "$1" != tidelog-bench ] || words=(--completions)
    put 644 <("$built/$1" "${words[@]}" bash) "$prefix/share/bash-completion/completions/$1"
    put 644 <("$built/$1" "${words[@]}" zsh) "$prefix/share/zsh/site-functions/_$1"
    put 644 <("$built/$1" "${words[@]}" fish) "$prefix/share/fish/vendor_completions.d/$1.fish"
}

# From what the tools say of themselves; the command `tidelog` needs PyTorch for that.
man_pages() {
    local pages python=python3 page
    pages=$(mktemp -d)
    [ ! -x .venv/bin/python ] || python=.venv/bin/python
    "$python" scripts/docs/man.py "$pages"
    for page in "$pages"/*; do put 644 "$page" "$prefix/share/man/man1/${page##*/}"; done
    rm -r "$pages"
}

package_config() {
    cat <<PC
prefix=$prefix
libdir=${libdir/#"$prefix"/\${prefix\}}
includedir=\${prefix}/include

Name: tidelog
Description: NVMe SSDs as if they were memory
Version: $version
Libs: -L\${libdir} -ltidelog
Cflags: -I\${includedir}
PC
}

uninstall() {
    [ -e "$list" ] || { echo "uninstall: $list is not there: nothing is installed in $stage$prefix" >&2; exit 1; }
    local file folder
    while read -r file; do
        rm -f "$stage$file"
        folder=$(dirname "$stage$file")
        # Others' files stay, and the folders that have them.
        while [ "$folder" != "$stage$prefix" ] && rmdir "$folder" 2>/dev/null; do folder=$(dirname "$folder"); done
    done <"$list"
    echo "removed from $stage$prefix"
}

main "$@"
