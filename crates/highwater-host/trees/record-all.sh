#!/bin/sh
# Records every tree of this directory: record-all.sh DIR, where Debian's packages of the kernels
# were unpacked with dpkg -x (see README.md). One boot after the other, a minute each.
set -eu
DIR=$1
HERE=$(cd "$(dirname "$0")" && pwd)
one() { # one VERSION CPUS LOAD GROUPS
	for kernel in "$DIR"/boot/vmlinuz-"$1"* "$DIR"/usr/lib/modules/"$1"*/vmlinuz; do
		[ -e "$kernel" ] && break
	done
	case $kernel in
	*/boot/*) config=$DIR/boot/config-${kernel##*/vmlinuz-} ;;
	*) config=${kernel%/*}/config ;;
	esac
	out=$HERE/${1%.}-$2.tar.zst
	[ -e "$out" ] || "$HERE/record.sh" "$kernel" "$config" "$2" "$3" "$4" "$out"
}
PSI=0 one 5.10. 64 rssdemo:10000:32 1
one 6.1. 64 rssdemo:10000:32 2
one 6.12. 64 hop:2000:64 2
one 6.18. 64 hop:2000:64 2
one 7.2. 64 hop:2000:64 2
one 5.10. 2 rssdemo:10000:32 2
one 6.1. 2 rssdemo:10000:32 1
one 6.12. 2 hop:2000:64 2
one 6.18. 2 hop:2000:64 2
one 7.2. 2 hop:2000:64 2
one 6.12. 128 hop:2000:64 2
one 7.2. 128 hop:2000:64 2
one 6.18. 128 hop:2000:64 2
one 6.1. 128 rssdemo:10000:32 2
one 5.10. 128 rssdemo:10000:32 2
