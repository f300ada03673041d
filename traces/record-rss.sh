#!/usr/bin/env bash
# Records a kernel's counts of a workload's resident memory as an RSS trace: every change of an
# address space's counters, and context switches.
#
#   sudo traces/record-rss.sh build  [OUT.txt.zst]           24 x gcc -O2 under make -j2
#   sudo traces/record-rss.sh server [OUT.txt.zst]           pgbench and its PostgreSQL server
#   sudo traces/record-rss.sh run OUT.txt.zst COMMAND...     a workload of your own
#
# Records kmem:rss_stat, task:task_newtask, sched:sched_prepare_exec and
# sched:sched_process_exit of the workload's tree of processes, and every sched:sched_switch of the
# machine, in the order of the kernel's clock, in a tracefs instance of its own. A recording that
# lost an event is rejected. The trace contains no names of processes and files.
#
# Needs: root, a kernel with tracefs and those events (6.11 or later), zstd, python3; `build`: gcc
# and make; `server`: PostgreSQL's server programs and pgbench. Removes all that it creates or
# mounts, also after a failure or an interrupt.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
buffer_kb=${BUFFER_KB:-65536}         # trace buffer of each CPU; it must hold the whole run
jobs=${JOBS:-24}                      # build: compilations
parallel=${PARALLEL:-2}               # build: at a time
functions=${FUNCTIONS:-8}            # build: functions in each file
pgbin=${PGBIN:-/usr/lib/postgresql/15/bin}
user=${PG_USER:-postgres}             # server: it refuses to run as root
shared_buffers=${SHARED_BUFFERS:-64MB}
scale=${SCALE:-4}                     # server: 100,000 accounts each
clients=${CLIENTS:-8}
threads=${THREADS:-2}
transactions=${TRANSACTIONS:-300}     # server: of each client
seed=${SEED:-42}                      # server: of pgbench's random choices; timing still differs

events=(kmem/rss_stat task/task_newtask sched/sched_prepare_exec sched/sched_process_exit
    sched/sched_switch)

fail() {
    echo "record-rss.sh: $*" >&2
    exit 1
}

usage() {
    sed -n '5,7s/^# *//p' "${BASH_SOURCE[0]}" >&2
    exit 2
}

# --- requirements -------------------------------------------------------------------------------
need_programs() {
    local program
    for program in "$@"; do
        command -v "$program" >/dev/null || fail "needs the program \`$program\`, which is not installed"
    done
}

check_needs() {
    [ "$(id -u)" -eq 0 ] || fail "needs root: it reads tracefs"
    need_programs zstd python3 setsid mount umount mountpoint
    grep -qw tracefs /proc/filesystems || fail "the kernel has no tracefs (CONFIG_TRACING)"
    case $mode in
    build) need_programs gcc make ;;
    server)
        need_programs "$pgbin/initdb" "$pgbin/pg_ctl" pgbench createdb setpriv
        id "$user" >/dev/null 2>&1 || fail "needs a user \`$user\` for the server: set PG_USER"
        ;;
    esac
}

# --- clean up -----------------------------------------------------------------------------------
work=
instance=
mounted=
workload=

clean_up() {
    set +e
    trap '' INT TERM
    [ -n "$instance" ] && [ -d "$instance" ] && echo 0 >"$instance/tracing_on"
    [ -n "$workload" ] && kill -KILL -- "-$workload" 2>/dev/null && wait "$workload" 2>/dev/null
    [ -s "$work/data/postmaster.pid" ] && as_user "$pgbin/pg_ctl" -D "$work/data" -m immediate stop >"$work/stop.log"
    [ -n "$instance" ] && [ -d "$instance" ] && rmdir "$instance"
    [ -n "$mounted" ] && umount "$mounted"
    [ -n "$mounted" ] && mountpoint -q "$mounted" || rm -rf --one-file-system "$work"
}

# --- the workloads ------------------------------------------------------------------------------
# A C file of some size from a fixed recipe, and a makefile that compiles it many times over.
prepare_build() {
    local i
    {
        echo '#include <stdio.h>'
        echo '#include <stdlib.h>'
        echo '#include <string.h>'
        for i in $(seq 1 "$functions"); do
            cat <<C
struct item$i { int key; double weight; struct item$i *next; };
static int order$i(const void *a, const void *b) {
    const struct item$i *x = a, *y = b;
    return x->weight < y->weight ? -1 : x->weight > y->weight ? 1 : x->key - y->key;
}
int work$i(struct item$i *items, int count, char *text) {
    long sum = 0;
    for (int k = 0; k < count; k++) {
        items[k].weight = items[k].key * 1.${i}e-3 + strlen(text) % ($i + 3);
        for (int j = k; j > 0 && items[j].key > items[j - 1].key; j -= ${i} % 4 + 1)
            sum += items[j].key ^ items[j - 1].key << (j % ${i});
    }
    qsort(items, count, sizeof *items, order$i);
    for (struct item$i *at = items; at; at = at->next)
        switch (at->key % 7) {
        case 0: sum += snprintf(text, 32, "%d %f", at->key, at->weight); break;
        case 3: sum ^= at->key * ${i}L; break;
        case 5: text = strchr(text, 'a' + at->key % 26); break;
        default: sum -= at->key / ($i + 1);
        }
    return (int)(sum % 1000);
}
C
        done
    } >"$work/source.c"
    {
        printf 'all:'
        printf ' unit%d.o' $(seq 1 "$jobs")
        printf '\nunit%%.o: source.c\n\tgcc -O2 -c -o $@ $<\n'
    } >"$work/Makefile"
    command=(make -s -C "$work" "-j$parallel" all)
}

as_user() { (cd "$work" && setpriv --reuid="$user" --regid="$user" --init-groups -- "$@"); }

prepare_server() {
    chown "$user" "$work"
    as_user "$pgbin/initdb" -D "$work/data" --encoding=UTF8 --locale=C --auth=trust >"$work/initdb.log"
    cat >>"$work/data/postgresql.conf" <<CONF
listen_addresses = ''
unix_socket_directories = '$work'
shared_buffers = $shared_buffers
CONF
    as_user "$pgbin/pg_ctl" -D "$work/data" -l "$work/server.log" -w start >"$work/start.log"
    as_user createdb -h "$work" bench
    as_user pgbench -h "$work" -i -q -s "$scale" bench 2>"$work/init.log"
    roots+=("$(head -n 1 "$work/data/postmaster.pid")")
    command=(setpriv --reuid="$user" --regid="$user" --init-groups --
        pgbench -h "$work" -n -c "$clients" -j "$threads" -t "$transactions" --random-seed="$seed" bench)
}

# --- the recording ------------------------------------------------------------------------------
prepare_tracing() {
    local tracefs=/sys/kernel/tracing event missing=()
    if ! mountpoint -q "$tracefs"; then
        tracefs=$work/tracefs
        mkdir "$tracefs"
        mount -t tracefs none "$tracefs" || fail "cannot mount tracefs: not permitted here?"
        mounted=$tracefs
    fi
    for event in "${events[@]}"; do
        [ -d "$tracefs/events/$event" ] || missing+=("$event")
    done
    [ "${#missing[@]}" -eq 0 ] || fail "this kernel ($(uname -r)) lacks the events: ${missing[*]}"
    instance=$tracefs/instances/highwater-$$
    mkdir "$instance"
    echo 0 >"$instance/tracing_on"
    echo mono >"$instance/trace_clock"
    echo 0 >"$instance/options/overwrite" # a full buffer drops new events and counts them
    echo "$buffer_kb" >"$instance/buffer_size_kb"
    for event in "${events[@]}"; do
        echo 1 >"$instance/events/$event/enable"
    done
}

# The workload waits for the tracer, in a process group of its own so that all of it can be ended.
start_workload() {
    mkfifo "$work/begin"
    setsid bash -c 'read -r _ <"$0"; exec "$@"' "$work/begin" "${command[@]}" \
        >"$work/workload.log" 2>&1 </dev/null &
    workload=$!
    roots+=("$workload")
}

# Sum of one counter over the ring buffers of all CPUs.
buffers() { cat "$instance"/per_cpu/cpu*/stats | awk -F': ' -v name="$1" '$1 ~ name { sum += $2 } END { print sum + 0 }'; }

record() {
    local status=0 lost
    python3 "$here/rss_events.py" snapshot "${roots[@]}" >"$work/before.txt"
    echo 1 >"$instance/tracing_on"
    echo >"$work/begin"
    wait "$workload" || status=$?
    echo 0 >"$instance/tracing_on"
    python3 "$here/rss_events.py" snapshot "${roots[@]}" >"$work/after.txt"
    if [ "$status" -ne 0 ]; then
        tail -n 5 "$work/workload.log" >&2
        fail "the workload ended with status $status"
    fi
    workload=
    lost=$(buffers '^(overrun|commit overrun|dropped events)$')
    [ "$lost" -eq 0 ] || fail "$lost events lost: raise BUFFER_KB above $buffer_kb"
    recorded=$(buffers '^entries$')
    cat "$instance/trace" >"$work/trace.txt"
}

[ $# -ge 1 ] || usage
mode=$1
shift
command=()
roots=()
case $mode in
build | server)
    [ $# -le 1 ] || usage
    out=${1:-$here/rss-$mode.txt.zst}
    ;;
run)
    [ $# -ge 2 ] || usage
    out=$1
    shift
    command=("$@")
    ;;
*) usage ;;
esac

check_needs
python3 "$here/rss_events.py" test
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
work=$(mktemp -d "${TMPDIR:-/tmp}/record-rss.XXXXXX")
chmod 755 "$work"
[ "$mode" = run ] || "prepare_$mode"
prepare_tracing
start_workload
record
# Takes only kernel threads from the later snapshot: another task may have reused the root's number.
python3 "$here/rss_events.py" encode "$work/trace.txt" "$work/trace.rss" --expect "$recorded" \
    --snapshot "$work/before.txt" --snapshot <(grep '^K' "$work/after.txt")
zstd -q -f -19 "$work/trace.rss" -o "$out"
python3 "$here/rss_events.py" check "$out"
