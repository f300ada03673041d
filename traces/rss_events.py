#!/usr/bin/env python3
"""Converts recorded `rss_stat` events to an RSS trace, and checks one. Standard library only.

  rss_events.py snapshot ROOT...                    the tasks there are: kernel threads, trees of ROOT
  rss_events.py encode EVENTS.txt OUT --snapshot FILE...   text of tracefs' `trace` file -> rss trace
  rss_events.py check TRACE[.zst]                   decode, check, and count
  rss_events.py test                                this file's own tests

The format is described in traces/README.md, "Format of the RSS traces". The reader of the lab
(crates/highwater-lab/src/rss_trace) tracks spaces by the same rules as `Tracker` here; a test
compares the counts of the two implementations.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys

VERSION = 2
PAGE_SHIFT = 12
KERNEL_THREAD = 0x00200000  # PF_KTHREAD in the flags of /proc/PID/stat
CLONE_VM = 0x100
BORN_PAGES_MAX = 512  # what one step of copying or building a new space adds at most
MEMBERS = ["MM_FILEPAGES", "MM_ANONPAGES", "MM_SWAPENTS", "MM_SHMEMPAGES"]
STATES = {"R": 0, "S": 1, "D": 2, "T": 4, "t": 8, "X": 16, "Z": 32, "P": 64, "I": 128}

# The task's name is always 16 columns wide.
LINE = re.compile(r".{16}-(\d+) +\[(\d+)\] \S+ +(\d+)\.(\d{6}): (\w+): (.*)$", re.DOTALL)
RSS = re.compile(r"mm_id=(\d+) curr=(\d) type=(\w+) size=(\d+)B$")
SWITCH = re.compile(
    r"prev_comm=.* prev_pid=(\d+) prev_prio=-?\d+ prev_state=(\S+) ==> "
    r"next_comm=.* next_pid=(\d+) next_prio=-?\d+$"
)
NEW_TASK = re.compile(r"pid=(\d+) comm=.* clone_flags=([0-9a-f]+) oom_score_adj=-?\d+$")
PREPARE_EXEC = re.compile(r"interp=.* pid=(\d+) comm=.*$", re.DOTALL)
EXIT = re.compile(r"comm=.* pid=(\d+) prio=-?\d+ group_dead=(true|false)$")


def state_bits(text):
    """`S`, `R+`, `D|K`: the numbers that the kernel prints as letters."""
    bits = 256 if text.endswith("+") else 0
    for letter in text.rstrip("+").split("|"):
        bits |= STATES[letter]
    return bits


def parse(lines):
    """Yields (time in us, cpu, pid, kind, fields) in the order of the events."""
    for number, line in enumerate(lines, 1):
        line = line.rstrip("\n")
        if line.startswith("#") or not line.strip():
            continue
        event = parse_line(line)
        if event is None:
            sys.exit(f"line {number}: not an event of this recording: {line}")
        yield event


def parse_line(line):
    found = LINE.match(line)
    if not found:
        return None
    pid, cpu, time = int(found[1]), int(found[2]), int(found[3]) * 1_000_000 + int(found[4])
    name, text = found[5], found[6]
    if name == "rss_stat" and (rss := RSS.match(text)):
        size = int(rss[4])
        assert size % (1 << PAGE_SHIFT) == 0, line
        fields = (int(rss[1]), int(rss[2]), MEMBERS.index(rss[3]), size >> PAGE_SHIFT)
        return time, cpu, pid, "R", fields
    if name == "sched_switch" and (switch := SWITCH.match(text)):
        assert int(switch[1]) == pid, line
        return time, cpu, pid, "S", (state_bits(switch[2]), int(switch[3]))
    if name == "task_newtask" and (new := NEW_TASK.match(text)):
        return time, cpu, pid, "N", (int(new[1]), int(new[2], 16))
    if name == "sched_prepare_exec" and (prepare := PREPARE_EXEC.match(text)):
        assert int(prepare[1]) == pid, line
        return time, cpu, pid, "X", ()
    if name == "sched_process_exit" and (left := EXIT.match(text)):
        assert int(left[1]) == pid, line
        return time, cpu, pid, "Z", (int(left[2] == "true"),)
    return None


def select(events, kernel, tree):
    """Yields the events of the task tree, and every switch.

    Of other tasks it keeps only a kernel thread's change to one of the tree's spaces: reclaim,
    collapse into huge pages. `kernel` and `tree` grow with new tasks.
    """
    owned = set()
    for event in events:
        _, _, pid, kind, fields = event
        if kind == "N" and pid in (kernel if pid not in tree else tree):
            (kernel if pid not in tree else tree).add(fields[0])
        if kind == "R" and fields[1]:
            (owned.add if pid in tree else owned.discard)(fields[0])
        is_owned = kind == "R" and (pid in kernel or pid == 0) and fields[0] in owned
        if kind == "S" or pid in tree or is_owned:
            yield event


def unseen_after(events):
    """Yields tasks that ran on a CPU whose next event, without a switch, is of another task."""
    running = {}
    for _, cpu, pid, kind, fields in events:
        if running.setdefault(cpu, pid) != pid:
            yield running[cpu]
        running[cpu] = fields[1] if kind == "S" else pid


def encode(events, kernel):
    """Returns the text of a trace."""
    events = list(events)
    start = events[0][0]
    seen = {task for _, _, pid, kind, fields in events if kind == "S" for task in (pid, fields[1])}
    cpus = 1 + max(cpu for _, cpu, _, _, _ in events)
    out = [f"# rss-trace {VERSION} unit_ns=1000 cpus={cpus} events={len(events)}"]
    out += [f"K {pid}" for pid in sorted(seen & kernel)]
    for time, cpu, pid, kind, fields in events:
        if kind == "R":
            fields = (f"{fields[0]:x}", *fields[1:])
        elif kind == "N":
            fields = (fields[0], f"{fields[1]:x}")
        out.append(" ".join(map(str, (kind, time - start, cpu, pid, *fields))))
    return "\n".join(out) + "\n"


FIELDS = {"R": 4, "S": 2, "N": 2, "X": 0, "Z": 1}


def decode(text):
    """Returns the kernel threads, the events, and the number of CPUs of a version 2 trace."""
    lines = text.split("\n")
    header = re.fullmatch(r"# rss-trace 2 unit_ns=1000 cpus=(\d+) events=(\d+)", lines[0])
    if not header or lines.pop() != "":
        sys.exit("not a whole rss trace of version 2")
    kernel, events = set(), []
    for line in lines[1:]:
        kind, *rest = line.split(" ")
        if kind == "K":
            assert not events, line
            kernel.add(int(rest[0]))
            continue
        time, cpu, pid, *fields = rest
        assert len(fields) == FIELDS[kind], line
        base = {"R": (16, 10, 10, 10), "N": (10, 16)}.get(kind, (10, 10))
        fields = tuple(int(field, radix) for field, radix in zip(fields, base))
        events.append((int(time), int(cpu), int(pid), kind, fields))
    if len(events) != int(header[2]):
        sys.exit(f"{len(events)} events where the header says {header[2]}")
    return kernel, events, int(header[1])


class Space:
    """One lifetime of an address space: the space of an `mm_id` from its first event to its last."""

    def __init__(self, born):
        self.born, self.builder, self.sizes = born, None, {}
        self.base, self.sum = {}, {}

    def is_empty(self):
        return not any(self.sizes.values())


class Task:
    def __init__(self, space=None):
        self.space, self.building, self.execs, self.left = space, None, False, False


class Tracker:
    """Tracks the space of each task, and the active space of each CPU."""

    def __init__(self, kernel, cpus):
        self.kernel, self.tasks, self.named = kernel | {0}, {}, {}
        self.running, self.active = [None] * cpus, [None] * cpus
        self.seen, self.parked = [None] * cpus, [False] * cpus
        self.spaces, self.counts = [], dict.fromkeys("RSNXZ", 0)
        self.hits = self.misses = self.activations = self.flushes = self.inferred = 0

    def task(self, pid):
        return self.tasks.setdefault(pid, Task())

    def finish_exec(self, cpu, task):
        task.space, task.building, task.execs = task.building, None, False
        self.active[cpu] = task.space

    def space_of(self, pid, mm_id, curr, size):
        space = self.named.get(mm_id)
        if space and (not space.is_empty() or (curr and self.task(pid).space is space)):
            return space
        built = not curr and pid not in self.kernel
        born = space is not None or (built and size <= BORN_PAGES_MAX)
        space = self.named[mm_id] = Space(born)
        self.spaces.append(space)
        if built:
            space.builder = self.task(pid)
            space.builder.building = space
        return space

    def rss(self, cpu, pid, mm_id, curr, member, size):
        space, task = self.space_of(pid, mm_id, curr, size), self.task(pid)
        if curr:
            if task.execs and space is task.building:
                task.execs = False
            if space.builder and space.builder.building is space:
                space.builder.building = None
            space.builder = None
            task.space, task.left = space, task.left and task.space is space
            self.active[cpu] = space
        elif task.space is space and pid not in self.kernel:
            if task.execs:
                self.finish_exec(cpu, task)
            else:
                task.left = True
        before = space.sizes.get(member, 0 if space.born else None)
        if before is None:
            before = space.base[member] = size
        space.sum[member] = space.sum.get(member, 0) + size - before
        space.sizes[member] = size
        assert space.sum[member] + space.base.get(member, 0) == size
        return space

    def switch(self, cpu, following):
        leaving = self.tasks.get(self.running[cpu])
        if leaving and leaving.execs:
            self.finish_exec(cpu, leaving)
        self.running[cpu] = following
        task = self.task(following)
        if following not in self.kernel and not task.left:
            self.active[cpu] = task.space

    def event(self, event):
        space, cpu = self.follow(event), event[1]
        if self.active[cpu] is not self.seen[cpu]:
            self.activations += self.active[cpu] is not None
            self.flushes += self.parked[cpu]
            self.seen[cpu], self.parked[cpu] = self.active[cpu], False
        if space:
            is_hit = self.active[cpu] is space
            self.hits, self.misses = self.hits + is_hit, self.misses + (not is_hit)
            self.parked[cpu] |= is_hit

    def follow(self, event):
        """Applies an event; returns the space that it changes, if any."""
        _, cpu, pid, kind, fields = event
        self.counts[kind] += 1
        if self.running[cpu] != pid:  # the switch to it was before the trace, or is not in it
            self.inferred += self.running[cpu] is not None
            self.switch(cpu, pid)
        if kind == "S":
            self.switch(cpu, fields[1])
        task = self.task(pid)
        if kind == "R":
            return self.rss(cpu, pid, *fields)
        if kind == "N" and fields[1] & CLONE_VM:
            self.tasks[fields[0]] = Task(task.space)
        elif kind == "N":
            self.tasks[fields[0]] = Task(task.building)
            if task.building:
                task.building.builder = task.building = None
        elif kind == "X":
            task.execs = True
        elif kind == "Z":
            task.left = True
        return None


def run_snapshot(args):
    parents, kernel, threads = {}, [], {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
            threads[int(pid)] = [int(tid) for tid in os.listdir(f"/proc/{pid}/task")]
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
        parents[int(pid)] = int(fields[1])
        if int(fields[6]) & KERNEL_THREAD:
            kernel.append(int(pid))
    tree = set(args.roots)
    while more := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= more
    for pid in kernel:
        print("K", pid)
    for pid in tree:
        for tid in threads.get(pid, [pid]):
            print("T", tid)


def run_encode(args):
    kinds = {"K": set(), "T": set()}
    for name in args.snapshot:
        with open(name, encoding="utf-8") as lines:
            for line in lines:
                kind, pid = line.split()
                kinds[kind].add(int(pid))
    with open(args.events, encoding="utf-8", errors="replace", newline="\n") as lines:
        events = list(parse(lines))
    if len(events) != args.expect:
        sys.exit(f"{len(events)} events read where the ring buffers held {args.expect}")
    kernel, tree = kinds["K"], kinds["T"]
    kept = list(select(events, kernel, tree))
    if not any(kind == "R" for _, _, _, kind, _ in kept):
        sys.exit("the kernel told nothing about the workload's memory: record it again")
    if torn := tree.intersection(unseen_after(kept)):
        sys.exit(f"the kernel told no switch away from {len(torn)} of the workload's tasks")
    text = encode(kept, kernel)
    assert decode(text)[1] == [(time - kept[0][0], *rest) for time, *rest in kept]
    with open(args.out, "w", encoding="utf-8", newline="\n") as out:
        out.write(text)
    print(f"{len(events)} events, {len(kept)} of them of the workload or switches")


def run_check(args):
    with open(args.trace, "rb") as file:
        packed = file.read()
    data = packed
    if packed[:4] == b"\x28\xb5\x2f\xfd":
        data = subprocess.run(["zstd", "-dc"], input=packed, stdout=subprocess.PIPE, check=True).stdout
    kernel, events, cpus = decode(data.decode("utf-8"))
    assert all(a[0] <= b[0] for a, b in zip(events, events[1:])), "time runs backwards"
    tracker = Tracker(kernel, cpus)
    for event in events:
        tracker.event(event)
    counts, spaces = tracker.counts, tracker.spaces
    print(f"file            {len(packed)} bytes, sha256 {hashlib.sha256(packed).hexdigest()}")
    print(f"decoded         {len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}")
    print(f"rss events      {counts['R']}")
    print(f"switches        {counts['S']}, and {tracker.inferred} inferred")
    print(f"new tasks       {counts['N']}, execs {counts['X']}, exits {counts['Z']}")
    print(f"spaces          {len(spaces)} of {len(tracker.named)} ids, {cpus} CPUs")
    print(f"born, at zero   {sum(s.born for s in spaces)}, {sum(s.is_empty() for s in spaces)}")
    print(f"span            {events[-1][0] / 1e6:.3f} s")
    print(f"hits, misses    {tracker.hits}, {tracker.misses}")
    print(f"activations     {tracker.activations}, {tracker.flushes} flushes")


SAMPLE = """\
# tracer: nop
              sh-10      [001] ...1.  1.000000: rss_stat: mm_id=255 curr=1 type=MM_ANONPAGES size=40960B
              sh-10      [001] ...1.  1.000001: rss_stat: mm_id=16 curr=0 type=MM_ANONPAGES size=40960B
              sh-10      [001] .....  1.000002: task_newtask: pid=11 comm=sh clone_flags=1200000 oom_score_adj=0
              sh-10      [001] d..2.  1.000003: sched_switch: prev_comm=sh prev_pid=10 prev_prio=120 prev_state=S ==> next_comm=a ==> next_pid=7 next_pid=11 next_prio=120
 a ==> next_pid=-11      [001] ...1.  1.000004: rss_stat: mm_id=16 curr=1 type=MM_FILEPAGES size=8192B
              sh-11      [001] ...1.  1.000005: rss_stat: mm_id=17 curr=0 type=MM_ANONPAGES size=4096B
              sh-11      [001] .....  1.000006: sched_prepare_exec: interp=/bin/a b filename=/bin/a b pid=11 comm=sh
              sh-11      [001] ...1.  1.000007: rss_stat: mm_id=16 curr=0 type=MM_FILEPAGES size=0B
              sh-11      [001] ...1.  1.000008: rss_stat: mm_id=16 curr=0 type=MM_ANONPAGES size=0B
              sh-11      [001] ...1.  1.000009: rss_stat: mm_id=17 curr=1 type=MM_ANONPAGES size=8192B
              sh-11      [001] d..2.  1.000010: sched_switch: prev_comm=sh prev_pid=11 prev_prio=120 prev_state=R+ ==> next_comm=kworker/1:1 next_pid=5 next_prio=120
     kworker/1:1-5       [001] ...1.  1.000011: rss_stat: mm_id=17 curr=0 type=MM_ANONPAGES size=4096B
     kworker/1:1-5       [001] d..2.  1.000012: sched_switch: prev_comm=kworker/1:1 prev_pid=5 prev_prio=120 prev_state=I ==> next_comm=other next_pid=99 next_prio=120
           other-99      [001] ...1.  1.000013: rss_stat: mm_id=77 curr=1 type=MM_ANONPAGES size=4096B
           other-99      [001] d..2.  1.000014: sched_switch: prev_comm=other prev_pid=99 prev_prio=120 prev_state=S ==> next_comm=sh next_pid=11 next_prio=120
              sh-11      [001] .....  1.000015: sched_process_exit: comm=sh pid=11 prio=120 group_dead=true
              sh-11      [001] ...1.  1.000016: rss_stat: mm_id=17 curr=0 type=MM_ANONPAGES size=0B
"""

ENCODED = """\
# rss-trace 2 unit_ns=1000 cpus=2 events=16
K 5
R 0 1 10 ff 1 1 10
R 1 1 10 10 0 1 10
N 2 1 10 11 1200000
S 3 1 10 1 11
R 4 1 11 10 1 0 2
R 5 1 11 11 0 1 1
X 6 1 11
R 7 1 11 10 0 0 0
R 8 1 11 10 0 1 0
R 9 1 11 11 1 1 2
S 10 1 11 256 5
R 11 1 5 11 0 1 1
S 12 1 5 128 99
S 14 1 99 1 11
Z 15 1 11 1
R 16 1 11 11 0 1 0
"""


def run_test(_):
    events = list(parse(SAMPLE.splitlines(keepends=True)))
    assert len(events) == 17
    kernel = {2, 5}
    text = encode(select(events, kernel, {10}), kernel)
    assert text == ENCODED, text
    kernel, events, cpus = decode(text)
    tracker = Tracker(kernel, cpus)
    for event in events:
        tracker.event(event)
    assert [space.born for space in tracker.spaces] == [False, True, True]
    assert [space.is_empty() for space in tracker.spaces] == [False, True, True]
    # Misses: writes into the forked and into the replaced space while another is active, and two
    # from the old space by the exec.
    assert (tracker.hits, tracker.misses) == (5, 4), (tracker.hits, tracker.misses)
    assert tracker.inferred == 0
    # 255, 16, 17, then 17 again after the other task; each but the last left with parked changes.
    assert (tracker.activations, tracker.flushes) == (4, 3)
    assert list(unseen_after(events)) == []
    assert list(unseen_after(event for event in events if event[0] != 10)) == [11]
    assert state_bits("D|I") == 130
    print("rss_events.py: all tests pass")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("snapshot", help="the kernel threads and the trees of tasks")
    command.add_argument("roots", type=int, nargs="+")
    command.set_defaults(run=run_snapshot)
    command = commands.add_parser("encode", help="tracefs text to a trace")
    command.add_argument("events")
    command.add_argument("out")
    command.add_argument("--snapshot", action="append", required=True)
    command.add_argument("--expect", type=int, required=True, help="events that were recorded")
    command.set_defaults(run=run_encode)
    command = commands.add_parser("check", help="decode, check, count")
    command.add_argument("trace")
    command.set_defaults(run=run_check)
    command = commands.add_parser("test", help="this file's own tests")
    command.set_defaults(run=run_test)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
