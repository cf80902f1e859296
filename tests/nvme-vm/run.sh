#!/usr/bin/env bash
# Boots a machine with emulated NVMe controllers and runs the engine's conformance suite and faults in it:
# `make nvme-vm`. Needs qemu-system-x86_64, a kernel with NVMe built in (Debian's cloud kernel) and busybox; on Debian
# and Ubuntu they are installed where that is allowed. Ends with 1 on any failure, and says what it skipped and why.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=target/nvme-vm
mkdir -p "$work"

skip() {
    echo "SKIPPED nvme-vm: $1" >&2
    [ -z "${REQUIRE:-}" ] || exit 1
    exit 0
}

# -- what the machine is made of ---------------------------------------------------------------------------

install() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || return 1
    echo "nvme-vm: installing $*" >&2
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; } >&2
}

command -v qemu-system-x86_64 >/dev/null 2>&1 || install qemu-system-x86 || skip "qemu-system-x86_64 is missing; install qemu-system-x86"
command -v cpio >/dev/null 2>&1 || install cpio || skip "cpio is missing; install it"
busybox=$(command -v busybox || true)
{ [ -n "$busybox" ] && ! ldd "$busybox" >/dev/null 2>&1; } || install busybox-static || skip "busybox-static is missing; install it"
busybox=$(command -v busybox)

# The kernel is fetched, not installed: it is not for this machine.
kernel=$(find "$work/kernel" -name 'vmlinuz-*' 2>/dev/null | head -1 || true)
if [ -z "$kernel" ]; then
    package=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | awk '/Depends: linux-image/ {print $2; exit}' || true)
    [ -n "$package" ] || skip "no package linux-image-cloud-amd64 here; put a kernel with NVMe built in at $work/kernel/vmlinuz-NAME"
    echo "nvme-vm: fetching $package" >&2
    (cd "$work" && apt-get download -qq "$package" 2>/dev/null) || skip "$package cannot be fetched"
    dpkg-deb --fsys-tarfile "$work/$package"_*.deb | tar -x -C "$work" --wildcards './boot/vmlinuz-*'
    mkdir -p "$work/kernel"
    mv "$work"/boot/vmlinuz-* "$work/kernel/"
    rm -r "$work/boot" "$work/$package"_*.deb
    kernel=$(find "$work/kernel" -name 'vmlinuz-*' | head -1)
fi

cargo build --release -q -p tidelog-tests --bin tidelog-conformance
root=$work/root
rm -rf "$root"
mkdir -p "$root/bin"
cp "$busybox" "$root/bin/busybox"
cp tests/nvme-vm/init tests/nvme-vm/plan "$root/"
chmod +x "$root/init"
strip -o "$root/bin/tidelog-conformance" target/release/tidelog-conformance
ldd target/release/tidelog-conformance | grep -o '/[^ ]*' | sort -u | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
done
(cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$work/initramfs"

# -- the machine ---------------------------------------------------------------------------------------------

arguments=()
for number in 0 1 2 3; do
    image=$work/nvme$number
    rm -f "$image"
    truncate -s 256M "$image"
    block=$((number < 2 ? 512 : 4096))
    arguments+=(
        -drive "file=$image,format=raw,if=none,id=disk$number,cache=writeback,discard=unmap"
        -device "pcie-root-port,id=port$number,chassis=$number,slot=$number"
        -device "nvme,id=nvme$number,serial=tidelog$number,bus=port$number,mdts=6"
        -device "nvme-ns,drive=disk$number,bus=nvme$number,logical_block_size=$block,physical_block_size=$block"
    )
done
log=$work/console.log
echo "nvme-vm: booting ($(qemu-system-x86_64 --version | head -1 | grep -o 'version [^ ]*'), $(basename "$kernel"))" >&2
timeout "${LIMIT:-900}" qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m 1024 -nographic -no-reboot \
    -kernel "$kernel" -initrd "$work/initramfs" -append "console=ttyS0 quiet panic=-1" \
    "${arguments[@]}" </dev/null >"$log" 2>&1 || true

# -- what it said ----------------------------------------------------------------------------------------------

tr -d '\r' <"$log" | grep -aE '^(SECTION|ok  |FAILED|SKIPPED)' | sed 's/^SECTION /\n/' || true
ok=$(grep -ac '^ok  ' "$log" || true)
failed=$(grep -ac '^FAILED' "$log" || true)
echo
if ! grep -aq '^DONE' "$log"; then
    echo "nvme-vm: the machine did not come to its end; see $log" >&2
    tail -5 "$log" >&2
    exit 1
fi
echo "nvme-vm: $ok of $((ok + failed)) rows ok; skipped: rows over spdk (no such path yet)"
[ "$failed" = 0 ] && [ "$ok" -gt 0 ]
