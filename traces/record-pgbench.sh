#!/usr/bin/env bash
# Records the page-cache accesses of a PostgreSQL server under pgbench from the kernel's own
# tracepoints, and writes them as a Highwater trace.
#
#   sudo traces/record-pgbench.sh [OUT.hwt.zst]
#
# Records every page-cache lookup of a read(2) (filemap:mm_filemap_get_pages, in the
# kernel since 6.12) and every buffered write (ext4:ext4_da_write_end, ext4:ext4_write_end) of the
# server's process tree, in the order of the kernel's clock. The client (pgbench) is not traced.
# shared_buffers is tiny, so that nearly every page access of the server reaches the page cache.
#
# Needs: root, a kernel with tracefs and those events, the database directory on ext4, PostgreSQL's
# server programs, pgbench, zstd, python3. Removes all that it creates, also after a failure.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:-$here/pgbench.hwt.zst}
pgbin=${PGBIN:-/usr/lib/postgresql/15/bin}
user=${PG_USER:-postgres}             # the server refuses to run as root
scale=${SCALE:-15}                    # 100,000 accounts each
shared_buffers=${SHARED_BUFFERS:-512kB}
clients=${CLIENTS:-8}
threads=${THREADS:-2}
transactions=${TRANSACTIONS:-10000}   # of each client
seed=${SEED:-42}                      # of pgbench's random choices; timing still differs
buffer_kb=${BUFFER_KB:-131072}        # trace buffer of each CPU; it must hold the whole run

work=$(mktemp -d "${TMPDIR:-/tmp}/record-pgbench.XXXXXX")
tracefs=$work/tracefs
instance=$tracefs/instances/highwater-$$
data=$work/data
scripts=$work/scripts

as_user() { (cd "$work" && setpriv --reuid="$user" --regid="$user" --init-groups -- "$@"); }

clean_up() {
    set +e
    [ -s "$data/postmaster.pid" ] && as_user "$pgbin/pg_ctl" -D "$data" -m immediate stop >"$work/stop.log"
    [ -d "$instance" ] && rmdir "$instance"
    mountpoint -q "$tracefs" && umount "$tracefs"
    mountpoint -q "$tracefs" || rm -rf --one-file-system "$work"
}
trap clean_up EXIT

# --- the workload -------------------------------------------------------------------------------
# Rows are chosen by Zipf's law and scattered over the table, so that hot rows are not neighbours.
write_scripts() {
    mkdir -p "$scripts"
    cat >"$scripts/choose" <<'SQL'
\set rows 100000 * :scale
\set rank random_zipfian(1, :rows, 1.05)
\set aid 1 + permute(:rank, :rows, 7)
SQL
    { cat "$scripts/choose"; cat <<'SQL'; } >"$scripts/point.sql"
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
SQL
    { cat "$scripts/choose"; cat <<'SQL'; } >"$scripts/transfer.sql"
\set bid random(1, :scale)
\set tid random(1, 10 * :scale)
\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
END;
SQL
    { cat "$scripts/choose"; cat <<'SQL'; } >"$scripts/report.sql"
SELECT sum(abalance) FROM pgbench_accounts WHERE aid BETWEEN :aid AND :aid + 999;
SQL
}

# --- the server ---------------------------------------------------------------------------------
start_server() {
    as_user "$pgbin/initdb" -D "$data" --encoding=UTF8 --locale=C --auth=trust >"$work/initdb.log"
    cat >>"$data/postgresql.conf" <<CONF
listen_addresses = ''
unix_socket_directories = '$work'
shared_buffers = $shared_buffers
max_connections = 32
wal_compression = on
CONF
    as_user "$pgbin/pg_ctl" -D "$data" -l "$work/server.log" -w start >"$work/start.log"
    as_user createdb -h "$work" bench
    as_user pgbench -h "$work" -i -q -s "$scale" bench 2>"$work/init.log"
    as_user psql -h "$work" -q -c 'CHECKPOINT' bench
}

# --- the recording ------------------------------------------------------------------------------
prepare_tracing() {
    mkdir -p "$tracefs"
    mount -t tracefs none "$tracefs"
    mkdir "$instance"
    echo 0 >"$instance/tracing_on"
    echo mono >"$instance/trace_clock"
    echo 0 >"$instance/options/overwrite" # a full buffer drops new events and counts them
    echo 1 >"$instance/options/event-fork" # children of a traced process are traced
    echo "$buffer_kb" >"$instance/buffer_size_kb"
    local postmaster
    postmaster=$(head -n 1 "$data/postmaster.pid")
    echo "$postmaster $(pgrep -P "$postmaster" | tr '\n' ' ')" >"$instance/set_event_pid"
    local event
    for event in filemap/mm_filemap_get_pages ext4/ext4_da_write_end ext4/ext4_write_end; do
        echo 1 >"$instance/events/$event/enable"
    done
}

# Blocks of 8 KiB that the server has read from the kernel since its start, by its own count.
blocks_read() { as_user psql -h "$work" -qAt -c 'SELECT sum(blks_read) FROM pg_stat_database' bench; }

record() {
    local before
    before=$(blocks_read)
    echo 1 >"$instance/tracing_on"
    as_user pgbench -h "$work" -n -c "$clients" -j "$threads" -t "$transactions" \
        --random-seed="$seed" -M prepared -s "$scale" \
        -f "$scripts/point.sql@70" -f "$scripts/transfer.sql@25" -f "$scripts/report.sql@5" bench \
        2>"$work/bench.log"
    echo 0 >"$instance/tracing_on"
    cat "$instance/trace" >"$work/trace.txt"
    local lost
    lost=$(cat "$instance"/per_cpu/cpu*/stats | awk '/overrun|dropped/ { sum += $NF } END { print sum + 0 }')
    if [ "$lost" -ne 0 ]; then
        echo "$lost events lost: raise BUFFER_KB above $buffer_kb" >&2
        exit 1
    fi
    echo "server's own count: $((2 * ($(blocks_read) - before))) pages read"
    # Inodes by file, for the summary only.
    find "$work" -xdev -type f -printf '%i %P\n' >"$work/inodes.txt"
}

python3 "$here/convert.py" test
chown "$user" "$work"
chmod 755 "$work"
write_scripts
start_server
prepare_tracing
record
python3 "$here/convert.py" encode "$work/trace.txt" "$work/trace.hwt" --names "$work/inodes.txt"
zstd -q -f -19 "$work/trace.hwt" -o "$out"
python3 "$here/convert.py" check "$out"
