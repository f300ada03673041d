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
# but the trace, also after a failure.
#
# PAIRS=7 measures instead: so many runs without and with a recording, in turn, and the ratio of
# their medians. WORKLOAD=scan reads all rows in each transaction, for more events a second.
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
pairs=${PAIRS:-0}                     # 0 records once, and keeps the trace
case ${WORKLOAD:-mix} in
    mix) mix=(point@70 transfer@25 report@5) ;;
    scan) mix=(scan) ;;
    *) echo "WORKLOAD=$WORKLOAD: expected mix or scan" >&2; exit 2 ;;
esac

work=$(mktemp -d "${TMPDIR:-/tmp}/record-pgbench.XXXXXX")
data=$work/data
scripts=$work/scripts
recorder=

as_user() { (cd "$work" && setpriv --reuid="$user" --regid="$user" --init-groups -- "$@"); }

clean_up() {
    set +e
    [ -n "$recorder" ] && kill -TERM "$recorder" && wait "$recorder"
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
    echo 'SELECT sum(abalance) FROM pgbench_accounts;' >"$scripts/scan.sql"
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

# Runs the workload once; prints its transactions a second.
workload() {
    as_user pgbench -h "$work" -n -c "$clients" -j "$threads" -t "$transactions" \
        --random-seed="$seed" -M prepared -s "$scale" "${files[@]}" bench 2>>"$work/bench.log" |
        sed -n 's/^tps = \([0-9.]*\).*/\1/p'
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

stop_recording() {
    # A shell starts a job in the background with SIGINT ignored.
    kill -TERM "$recorder"
    wait "$recorder" || { recorder=; echo "highwater record failed" >&2; exit 1; }
    recorder=
}

# Prints a number of the summary.
summary() { sed "s/.*\"$1\":\([0-9.]*\).*/\1/" "$work/summary.json"; }

# Runs the workload $rounds times under a recording, and compares it with the server's count.
record() {
    local before counted
    rm -f "$out"
    start_recording
    before=$(blocks_read)
    for _ in $(seq "$rounds"); do
        echo "transactions a second: $(workload)"
    done
    counted=$((2 * ($(blocks_read) - before)))
    stop_recording
    sed 's/"files":\[[^]]*\],//; s/^/summary: /' "$work/summary.json"
    awk -v counted="$counted" -v recorded="$(pages_recorded)" 'BEGIN {
        printf "server: %d pages read; recorded: %d of its relations, %+.3f %%\n",
            counted, recorded, 100 * (recorded - counted) / counted }'
}

median() { sort -n | awk '{ at[NR] = $1 } END { print (at[int((NR + 1) / 2)] + at[int(NR / 2) + 1]) / 2 }'; }

# Runs the workload without and with a recording, in turn.
measure() {
    local without with
    out=$work/measured.hwt.zst
    workload >"$work/warm"
    for _ in $(seq "$pairs"); do
        without=$(workload)
        start_recording
        with=$(workload)
        stop_recording
        printf 'transactions a second: %s, recorded %s, %.0f events a second, %d lost\n' "$without" "$with" \
            "$(awk -v n="$(summary events)" -v s="$(summary elapsed_s)" 'BEGIN { print n / s }')" "$(summary lost_events)"
        echo "$without" >>"$work/without"
        echo "$with" >>"$work/with"
        paste "$work/without" "$work/with" | awk '{ print $2 / $1 }' >"$work/ratios"
    done
    printf 'recorded against not recorded: median %.3f of %d pairs, %.3f to %.3f\n' "$(median <"$work/ratios")" "$pairs" \
        "$(sort -n "$work/ratios" | head -n 1)" "$(sort -n "$work/ratios" | tail -n 1)"
}

chown "$user" "$work"
chmod 755 "$work"
write_scripts
files=()
for script in "${mix[@]}"; do
    files+=(-f "$scripts/${script%@*}.sql${script#${script%@*}}")
done
start_server
if [ "$pairs" -gt 0 ]; then measure; else record; fi
