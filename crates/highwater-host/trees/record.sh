#!/bin/sh
# Records a tree of /proc and /sys of a kernel under QEMU, without KVM.
#
#   record.sh KERNEL CONFIG CPUS LOAD GROUPS OUT.tar.zst
#   record.sh vmlinuz-6.1.0-56-cloud-amd64 config-6.1.0-56-cloud-amd64 64 rssdemo:10000:32 2 \
#       out.tar.zst
#
# KERNEL and CONFIG are files of Debian's packages linux-image-*-cloud-amd64, unpacked by dpkg -x.
# LOAD is a process of workload.c; GROUPS is the version of control groups, 1 or 2. PSI=1 in the
# environment turns pressure on where the kernel's build leaves it off.
# Needs gcc with static glibc, busybox-static, cpio, qemu-system-x86_64 of at least 9.0, zstd, tar.
set -eu
KERNEL=$1 CONFIG=$2 CPUS=$3 LOAD=$4 GROUPS_VERSION=$5 OUT=$6
HERE=$(cd "$(dirname "$0")" && pwd)
DIR=$(mktemp -d)
trap 'rm -rf "$DIR"' EXIT
mkdir -p "$DIR/root/bin" "$DIR/root/proc" "$DIR/root/sys" "$DIR/root/tmp" "$DIR/root/dev"
gcc -O2 -static -o "$DIR/root/bin/hop" "$HERE/workload.c" -lpthread
ln -s hop "$DIR/root/bin/rssdemo"
ln -s hop "$DIR/root/bin/hold"
cp "$(command -v busybox)" "$DIR/root/bin/busybox"
cp "$HERE/init" "$DIR/root/init"
chmod 755 "$DIR/root/init"
# The options that a check may ask for; all of them would be a third of the tree.
grep -E '^(# )?CONFIG_(PCP_BATCH|NR_CPUS|NUMA|MEMCG|PSI|LRU_GEN|ZSWAP|SWAP|TRANSPARENT|SMP|HZ)' \
	"$CONFIG" > "$DIR/root/config"
mknod "$DIR/root/dev/console" c 5 1
mknod "$DIR/root/dev/null" c 1 3
mknod "$DIR/root/dev/zero" c 1 5
mknod "$DIR/root/dev/ttyS1" c 4 65
(cd "$DIR/root" && find . | cpio -o -H newc --quiet | gzip -1) > "$DIR/initramfs"
timeout 900 qemu-system-x86_64 -machine q35 -accel tcg,thread=single -cpu qemu64,+x2apic \
	-smp "$CPUS" -m 4096 -nographic -no-reboot -nic none -monitor none \
	-serial stdio -serial "file:$DIR/tree.gz" \
	-kernel "$KERNEL" -initrd "$DIR/initramfs" \
	-append "console=ttyS0 quiet panic=-1 tsc=reliable nokaslr mitigations=off nowatchdog \
lpj=4000000 cpu_init_udelay=0 no_timer_check clocksource=tsc ${PSI:+psi=$PSI} \
load=$LOAD groups=$GROUPS_VERSION" < /dev/null
gzip -t "$DIR/tree.gz"
# The same bytes for the same files.
mkdir "$DIR/tree"
tar xzf "$DIR/tree.gz" -C "$DIR/tree"
chmod -R u+rwX,go+rX "$DIR/tree"
tar cf "$DIR/tree.tar" -C "$DIR/tree" --sort=name --owner=0 --group=0 --numeric-owner \
	--mtime=@0 --format=ustar .
zstd -q -f --ultra -22 --long=27 "$DIR/tree.tar" -o "$OUT"
