#!/usr/bin/env bash
# Installs what `make build` has built: library, header, pkg-config file, tools, man pages, completions, also
# of the command `tidelog`, which pip installs.
#
#   PREFIX=/usr/local DESTDIR= scripts/install.sh
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=${PREFIX:-/usr/local}
root=${DESTDIR:-}$prefix
tools=(tidelog-bench tidelog-doctor tidelog-format tidelog-plan)
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
soname=$(sed -n 's/.*-soname,\(.*\)".*/\1/p' torch-bridge/build.rs)

install -d "$root"/{bin,include,lib/pkgconfig,share/licenses/tidelog,share/man/man1} \
    "$root"/share/{bash-completion/completions,zsh/site-functions,fish/vendor_completions.d}
for tool in "${tools[@]}"; do
    install -s -m 755 "target/release/$tool" "$root/bin/$tool"
    shells=("$root/share/bash-completion/completions/$tool" "$root/share/zsh/site-functions/_$tool"
        "$root/share/fish/vendor_completions.d/$tool.fish")
    for shell in bash zsh fish; do
        if [ "$tool" = tidelog-bench ]; then said=(--completions "$shell"); else said=(completions "$shell"); fi
        "target/release/$tool" "${said[@]}" >"${shells[0]}"
        shells=("${shells[@]:1}")
    done
done
carried=torch-bridge/python/tidelog/commands/completions
install -m 644 "$carried/tidelog" "$root/share/bash-completion/completions/tidelog"
install -m 644 "$carried/_tidelog" "$root/share/zsh/site-functions/_tidelog"
install -m 644 "$carried/tidelog.fish" "$root/share/fish/vendor_completions.d/tidelog.fish"
install -s -m 755 target/release/libtidelog.so "$root/lib/libtidelog.so.$version"
ln -sf "libtidelog.so.$version" "$root/lib/$soname"
ln -sf "$soname" "$root/lib/libtidelog.so"
.venv/bin/python scripts/docs/man.py "$root/share/man/man1"
install -m 644 torch-bridge/include/tidelog.h "$root/include/tidelog.h"
install -m 644 LICENSE-APACHE LICENSE-MIT "$root/share/licenses/tidelog"
cat >"$root/lib/pkgconfig/tidelog.pc" <<PC
prefix=$prefix
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: tidelog
Description: NVMe SSDs as if they were memory
Version: $version
Libs: -L\${libdir} -ltidelog
Cflags: -I\${includedir}
PC
echo "installed into $root; ldconfig makes the library known where $prefix/lib is a folder that it looks at"
