#!/usr/bin/env bash
# Boots a machine with emulated NVMe controllers and runs the engine's conformance suite and faults in it: `make
# nvme-vm`. Where an SPDK is installed (pkg-config finds it) its rows run as well, through vfio-pci behind an IOMMU and,
# in a second boot without one, through uio_pci_generic; REQUIRE=spdk makes it a failure if any of them, or all, do not.
# PLANS names the boots, if not all are wanted: the files plan* beside this script. Each declares how many rows it has:
# one that says nothing is a failure, and those of plans that were skipped are in the total. Needs qemu-system-x86_64, a
# kernel with NVMe built in (Debian's cloud kernel) and busybox; on Debian and Ubuntu they are installed where that is
# allowed. Ends with 1 on any failure, and says what it skipped and why.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=${WORK:-target/nvme-vm}
mkdir -p "$work"

skip() {
    echo "SKIPPED nvme-vm: $*" >&2
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
command -v sfdisk >/dev/null 2>&1 || install fdisk || skip "sfdisk is missing; install fdisk"
command -v cpio >/dev/null 2>&1 || install cpio || skip "cpio is missing; install it"
command -v xz >/dev/null 2>&1 || install xz-utils || skip "xz is missing; install xz-utils"
busybox=$(command -v busybox || true)
{ [ -n "$busybox" ] && ! ldd "$busybox" >/dev/null 2>&1; } || install busybox-static || skip "busybox-static is missing; install it"
busybox=$(command -v busybox)

# The kernel is fetched, not installed: it is not for this machine.
modules="virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk"
# Not every kernel has all of them as modules.
modules="$modules configfs nvme-keyring nvme-auth nvme-fabrics nvme-tcp nvmet nvmet-tcp"
# In the order in which they need each other.
nfs_modules="netfs fscache sunrpc grace lockd nfs_acl nfs dns_resolver auth_rpcgss nfsv4 nfsd"
spdk_modules="irqbypass vfio_virqfd vfio vfio_iommu_type1 vfio-pci-core vfio-pci uio uio_pci_generic"
kernel=$work/kernel/vmlinuz
if [ ! -e "$work/kernel/nfsd.ko" ]; then
    package=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | awk '/Depends: linux-image/ {print $2; exit}' || true)
    [ -n "$package" ] || skip "no package linux-image-cloud-amd64 here; put a kernel that has NVMe built in," \
        "and its modules ${modules// /, }, into $work/kernel"
    echo "nvme-vm: fetching $package" >&2
    # Since Linux 7 Debian has what used to be one package in several.
    parts=$(apt-cache depends "$package" | awk '/Depends: linux-(binary|modules)-/ {print $2}')
    mkdir -p "$work/kernel" "$work/package" "$work/packages"
    # shellcheck disable=SC2086
    (cd "$work/packages" && apt-get download -qq "$package" $parts 2>/dev/null) || skip "$package cannot be fetched"
    for part in "$work"/packages/*.deb; do dpkg-deb -x "$part" "$work/package"; done
    find "$work/package" -name 'vmlinuz*' -type f -exec mv {} "$kernel" \;
    for module in $modules $nfs_modules $spdk_modules; do
        find "$work/package" -name "$module.ko*" -exec mv {} "$work/kernel/" \;
    done
    # Newer packages have them compressed.
    find "$work/kernel" -name '*.xz' -exec xz -d {} +
    rm -r "$work/package" "$work/packages"
fi

over_spdk="plan-vfio plan-uio plan-peer-vfio plan-peer-uio plan-faults plan-shared plan-perf plan-loopback"
plans=${PLANS:-plan plan-poll plan-fence plan-nfs plan-fdp $over_spdk}
# Whether any of them has rows over spdk: else the programs do without.
wants_spdk() {
    local plan
    for plan in plan-fdp $over_spdk; do
        case " $plans " in *" $plan "*) return 0 ;; esac
    done
    return 1
}

features="" loopback_features="" spdk_missing="" programs="tidelog-conformance tidelog-powercut tidelog-format tidelog-bench tidelog-doctor"
# SPDK's own, to compare with.
perf=$(command -v spdk_nvme_perf || pkg-config --libs-only-L spdk_nvme 2>/dev/null | sed 's|^-L\([^ ]*\).*|\1/../bin/spdk_nvme_perf|' || true)
if ! wants_spdk; then
    spdk_missing="none of these plans wants it"
elif pkg-config --exists spdk_nvme 2>/dev/null; then
    features="--features tidelog-tests/spdk,tidelog-bench/spdk,tidelog-doctor/spdk"
    loopback_features="--features spdk"
    programs="$programs tidelog-spdk"
    modules="$modules $spdk_modules"
else
    spdk_missing="no SPDK is installed (pkg-config does not find spdk_nvme)"
fi
profile=${PROFILE:-release}
# The whole workspace, as `make build` does: a part of it has dependencies with other features, which
# would be built once more.
# shellcheck disable=SC2086
cargo build --profile "$profile" -q --workspace $features
built=target/$([ "$profile" = dev ] && echo debug || echo "$profile")
root=$work/root
rm -rf "$root"
mkdir -p "$root/bin"
cp "$busybox" "$root/bin/busybox"
cp tests/nvme-vm/init tests/nvme-vm/plan* tests/nvme-vm/rows* tests/nvme-vm/disks tests/nvme-vm/fabric tests/nvme-vm/nfs "$root/"
loaded_by() { # SCRIPT MODULES
    local script=$1 module
    shift
    for module in "$@"; do
        [ -e "$work/kernel/$module.ko" ] || continue
        cp "$work/kernel/$module.ko" "$root/"
        echo "insmod /$module.ko" >>"$root/$script"
    done
}
# shellcheck disable=SC2086
loaded_by modules $modules
# shellcheck disable=SC2086
loaded_by nfs-modules $nfs_modules
chmod +x "$root/init"
for program in $programs; do echo "$built/$program"; done >"$work/programs"
[ ! -x "$perf" ] || echo "$perf" >>"$work/programs"
while read -r program; do
    strip -o "$root/bin/$(basename "$program")" "$program"
    ldd "$program" | grep -o '/[^ ]*'
done <"$work/programs" | sort -u | while read -r library; do
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
    # One takes less at once than a stripe unit, so that its transfers are cut.
    mdts=$((number == 1 ? 3 : 6))
    arguments+=(
        -drive "file=$image,format=raw,if=none,id=disk$number,cache=writeback,discard=unmap"
        -device "pcie-root-port,id=port$number,chassis=$number,slot=$number"
        -device "nvme,id=nvme$number,serial=tidelog$number,bus=port$number,mdts=$mdts"
        -device "nvme-ns,drive=disk$number,bus=nvme$number,logical_block_size=$block,physical_block_size=$block"
    )
done
# Namespaces that no pool is made of.
for odd in 1 2; do
    rm -f "$work/odd$odd"
    truncate -s 64M "$work/odd$odd"
    arguments+=(-drive "file=$work/odd$odd,format=raw,if=none,id=odd$odd,cache=writeback,discard=unmap")
done
arguments+=(
    -device "nvme,id=odd,serial=tidelog4"
    -device "nvme-ns,drive=odd1,bus=odd,nsid=1,zoned=on,zoned.zone_size=16M,zoned.zone_capacity=16M"
    -device "nvme-ns,drive=odd2,bus=odd,nsid=2,logical_block_size=4096,physical_block_size=4096,ms=8"
)
# Disks of which every write and flush is recorded: two partitions for a pool and one for notes. The engine skips its
# flushes on the second one. Not NVMe ones: QEMU's take no notice of forced writes (FUA), which would look as if they
# had not been asked for. Virtio has none, and Linux flushes instead. QEMU records a flush when it is done; here it is
# done as soon as it is begun, and the only one at a time, so that nothing completes meanwhile that would look as if it
# were covered.
mib=1048576
for disk in recorded unflushed; do
    rm -f "$work/$disk" "$work/$disk.writes"
    truncate -s 64M "$work/$disk"
    truncate -s 0 "$work/$disk.writes"
    printf 'start=2048,size=49152\nstart=51200,size=49152\nstart=100352,size=2048\n' | sfdisk -q --label dos "$work/$disk"
    arguments+=(
        -blockdev "driver=file,filename=$work/$disk,node-name=$disk-file,discard=unmap,cache.no-flush=on"
        -blockdev "driver=file,filename=$work/$disk.writes,node-name=$disk-writes"
        -blockdev "driver=blklogwrites,node-name=$disk,file=$disk-file,log=$disk-writes,log-sector-size=512"
        -device "virtio-blk-pci,drive=$disk,num-queues=1"
    )
done
. tests/nvme-vm/devices
log=$work/console.log
version=$(qemu-system-x86_64 --version | head -1 | grep -o 'version [^ ]*')

# The machine with one plan; what it says is added to the log. An emulator that crashes has shown nothing, and is
# started again a few times: behind its IOMMU it crashes now and then where other programs keep it waiting. Its
# processors have no x2APIC: with it, one of the two missed its interrupts now and then and slept for ever. Its
# controllers miss commands now and then after a reset, several times in a row, until the kernel resets them again: it
# shall do so soon, and repeat what they missed as often as it takes.
patience="nvme_core.io_timeout=8 nvme_core.max_retries=60"
boot() { # PLAN MACHINE KERNEL-ARGUMENTS ARGUMENTS
    local plan=$1 machine=$2 command_line=$3 try code
    shift 3
    devices_of "$plan"
    for try in 1 2 3 4; do
        echo "nvme-vm: booting ($version, $(basename "$kernel"), $plan)" >&2
        code=0
        timeout "${LIMIT:-900}" qemu-system-x86_64 -machine "$machine" -accel tcg,thread=multi -cpu max,-x2apic -smp 2 -m 1536 -nographic -no-reboot \
            -kernel "$kernel" -initrd "$work/initramfs" -append "console=ttyS0 quiet panic=-1 no_timer_check $patience plan=$plan $command_line" \
            "$@" "${arguments[@]}" "${extra[@]}" </dev/null >"$log.boot" 2>&1 || code=$?
        [ $code -eq 134 ] || break
        echo "nvme-vm: the emulator crashed: $(tr -d '\r' <"$log.boot" | grep -a Assertion | tail -n 1)" >&2
    done
    cat "$log.boot" >>"$log"
    echo >>"$log"
    grep -aq '^DONE' "$log.boot" || unfinished="$unfinished $plan"
}

: >"$log"
unfinished=""
recorded=""
for plan in $plans; do
    rows=$(sed -n 's/^# Rows: //p' "tests/nvme-vm/$plan")
    echo "PLAN $plan $rows" >>"$log"
    if why=$(missing_for "$plan"); then
        echo "SKIPPED $rows rows of $plan: $why" >>"$log"
        continue
    fi
    case $plan in plan | plan-short) recorded=$plan ;; esac
    case $plan in
        plan-loopback)
            # shellcheck source=tests/nvme-vm/plan-loopback
            . tests/nvme-vm/plan-loopback >>"$log" 2>>"$log.loopback"
            continue
            ;;
        plan-vfio | plan-peer-vfio | plan-fdp | plan-shared)
            boot "$plan" q35,kernel-irqchip=split intel_iommu=on \
                -device intel-iommu,intremap=on,caching-mode=on,aw-bits=48
            ;;
        plan-uio | plan-peer-uio | plan-faults | plan-perf) boot "$plan" q35 hugepages=256 ;;
        plan-poll) boot "$plan" q35 nvme.poll_queues=2 ;;
        # Two hosts' connections to one namespace are two disks, and not two ways of one host to one disk.
        plan-fence) boot "$plan" q35 nvme_core.multipath=N ;;
        # No IOMMU: behind one, Linux 6.1 crashes when a controller is removed while something has its disk open.
        *) boot "$plan" q35 "" ;;
    esac
    look_behind "$plan" >>"$log"
done

# -- what it said ----------------------------------------------------------------------------------------------

powercuts() { # NAME ARGUMENTS
    local name=$1 disk=$2 said
    shift 2
    if said=$($built/tidelog-powercut rebuild "$work/$disk.writes" --directory "$work/images" "$@" \
        --devices "$((1 * mib))+$((24 * mib)),$((25 * mib))+$((24 * mib))" --notes "$((49 * mib))+$mib" 2>"$work/powercut.err"); then
        echo "ok      $name: $said"
    else
        echo "FAILED  $name: $(tail -2 "$work/powercut.err" | tr '\n' ' ')"
    fi >>"$log"
}
# Of the last boot that recorded its disks, if it came as far.
if [ -n "$recorded" ] && [[ " $unfinished " != *" $recorded "* ]]; then
    echo "PLAN $recorded" >>"$log"
    powercuts "power cuts lose no commit" recorded --images "${IMAGES:-1000}"
    powercuts "power cuts of a disk that ignores flushes are found out" recorded --images 100 --blind
    powercuts "power cuts under an engine that skips its flushes are found out" unflushed --images 500 --lossy
fi

# How many rows of each plan ended well, and which plans have others than they declare; last, the sums: ok, all,
# skipped, and how many over spdk ended well.
count() {
    tr -d '\r' <"$log" | awk -v over_spdk=" $over_spdk " '
        /^PLAN / { plan = $2; if ($3 != "") { planned[plan] = $3; order[++plans] = plan } }
        /^ok  / { ok[plan]++ }
        /^FAILED/ { failed[plan]++ }
        /^SKIPPED [0-9]/ { skipped[plan] += $2 }
        END {
            for (at = 1; at <= plans; at++) {
                plan = order[at]
                ended = ok[plan] + failed[plan] + skipped[plan]
                if (ended != planned[plan]) printf "%s declares %d rows, and %d said how they ended\n", plan, planned[plan], ended
                good += ok[plan]; all += planned[plan]; left += skipped[plan]
                if (index(over_spdk, " " plan " ")) spdk += ok[plan]
            }
            print good + 0, all + 0, left + 0, spdk + 0
        }'
}

tr -d '\r' <"$log" | grep -aE '^(SECTION|ok  |FAILED|SKIPPED)| HANGS: ' | sed 's/^SECTION /\n/' || true
counted=$(count)
read -r ok all left spdk_ok <<<"$(tail -n 1 <<<"$counted")"
differing=$(head -n -1 <<<"$counted")
failed=$(grep -ac '^FAILED' "$log" || true)
echo
if [ "$failed" != 0 ] || [ -n "$unfinished" ]; then
    tr -d '\r' <"$log" | sed -n '/^WAITING/,/^\(ok  \|FAILED\)/p' >&2
fi
if [ -n "$unfinished" ]; then
    echo "nvme-vm: the machine did not come to its end (plan$unfinished); its last words, of $log:" >&2
    tail -20 "$log" >&2
    exit 1
fi
skipped=$(tr -d '\r' <"$log" | sed -n 's/^SKIPPED *\(.*\)/\1; /p' | tr -d '\n')
[ -z "${PLANS:-}" ] || skipped="${skipped}all but $PLANS; "
skipped=${skipped:-nothing}
echo "nvme-vm: $ok of $all rows ok, $failed failed, $left skipped; skipped: ${skipped%; }"
if [ -n "$differing" ]; then
    echo "nvme-vm: $differing" >&2
    exit 1
fi
if [ "${REQUIRE:-}" = spdk ]; then
    [ "$spdk_ok" -gt 0 ] || { echo "nvme-vm: no row over spdk ran, and REQUIRE=spdk wants them" >&2 && exit 1; }
    ! grep -aq '^SKIPPED .* rows of plan' "$log" || { echo "nvme-vm: plans were skipped, and REQUIRE=spdk wants them" >&2 && exit 1; }
fi
[ "$failed" = 0 ] && [ "$ok" -gt 0 ]
