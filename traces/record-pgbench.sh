#!/usr/bin/env bash
# Records the page-cache accesses of a PostgreSQL server under pgbench with `highwater record`, and
# compares the reads with the server's own count.
#
#   sudo traces/record-pgbench.sh [OUT.hwt.zst]
#
# The server and all its processes are recorded; the client (pgbench) is not. shared_buffers is
# tiny, so that nearly every page access of the server reaches the page cache.
#
# Needs: root, Linux 6.12 or later, PostgreSQL's server programs, pgbench, and the program
# `highwater` (HIGHWATER names it; target/release/highwater by default). Removes all that it creates
# but the trace, also after a failure. RECORD=0 runs the workload without recording it.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:-$here/pgbench.hwt.zst}
highwater=${HIGHWATER:-$here/../target/release/highwater}
pgbin=${PGBIN:-/usr/lib/postgresql/15/bin}
user=${PG_USER:-postgres}             # the server refuses to run as root
scale=${SCALE:-15}                    # 100,000 accounts each
shared_buffers=${SHARED_BUFFERS:-512kB}
clients=${CLIENTS:-8}
threads=${THREADS:-2}
transactions=${TRANSACTIONS:-10000}   # of each client
rounds=${ROUNDS:-1}                   # the workload is repeated so often
seed=${SEED:-42}                      # of pgbench's random choices; timing still differs

work=$(mktemp -d "${TMPDIR:-/tmp}/record-pgbench.XXXXXX")
data=$work/data
scripts=$work/scripts
recorder=

as_user() { (cd "$work" && setpriv --reuid="$user" --regid="$user" --init-groups -- "$@"); }

clean_up() {
    set +e
    [ -n "$recorder" ] && kill -INT "$recorder" && wait "$recorder"
    [ -s "$data/postmaster.pid" ] && as_user "$pgbin/pg_ctl" -D "$data" -m immediate stop >"$work/stop.log"
    rm -rf --one-file-system "$work"
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

# Blocks of 8 KiB that the server has read from the kernel since its start, by its own count.
blocks_read() { as_user psql -h "$work" -qAt -c 'SELECT sum(blks_read) FROM pg_stat_database' bench; }

workload() {
    as_user pgbench -h "$work" -n -c "$clients" -j "$threads" -t "$transactions" \
        --random-seed="$seed" -M prepared -s "$scale" \
        -f "$scripts/point.sql@70" -f "$scripts/transfer.sql@25" -f "$scripts/report.sql@5" bench \
        2>>"$work/bench.log" | sed -n 's/^tps = \([0-9.]*\).*/transactions a second: \1/p'
}

# --- the recording ------------------------------------------------------------------------------
# Pages that the recording read from the database's relations: the files that blks_read counts.
pages_recorded() {
    tr '{' '\n' <"$work/summary.json" |
        sed -n 's#.*/data/\(base\|global\)/[0-9/]*[0-9]\(_[a-z]*\)\?\(\.[0-9]*\)\?","read_pages":\([0-9]*\).*#\4#p' |
        awk '{ sum += $1 } END { print sum + 0 }'
}

start_recording() {
    "$highwater" record -o "$out" --pid "$(head -n 1 "$data/postmaster.pid")" --strict --json \
        >"$work/summary.json" &
    recorder=$!
    for _ in $(seq 100); do
        sleep 0.1
        [ "$(stat -c %s "$out" 2>/dev/null || echo 0)" -gt 0 ] && kill -0 "$recorder" && break
    done
    sleep 0.5
}

chown "$user" "$work"
chmod 755 "$work"
write_scripts
start_server
if [ "${RECORD:-1}" = 1 ]; then
    rm -f "$out"
    start_recording
fi
before=$(blocks_read)
for _ in $(seq "$rounds"); do
    workload
done
counted=$((2 * ($(blocks_read) - before)))
echo "server's own count: $counted pages read"
if [ -n "$recorder" ]; then
    kill -INT "$recorder"
    wait "$recorder" || { recorder=; echo "highwater record failed" >&2; exit 1; }
    recorder=
    sed 's/"files":\[[^]]*\],//; s/^/summary: /' "$work/summary.json"
    awk -v counted="$counted" -v recorded="$(pages_recorded)" 'BEGIN {
        printf "recorded: %d pages read from relations, %+.3f %%\n", recorded, 100 * (recorded - counted) / counted }'
fi
