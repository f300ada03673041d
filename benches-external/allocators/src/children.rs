//! A child process for each source of blocks. The parent writes a line,
//! `WORK ACCESS THREADS TIMES`; the child times that round and answers
//! `NANOSECONDS IS_AT_ONCE RESIDENT_MIB`.

use std::cell::{Cell, RefCell};
use std::io::{self, BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::{env, iter};

use crate::blocks::{Access, Work, resident_mib};
use crate::sources;
use crate::timing::Round;

const SERVE: &str = "--serve";
const TUNABLES: &str = "GLIBC_TUNABLES";

/// The parent's end.
pub(crate) struct Child {
    name: &'static str,
    pipes: RefCell<(ChildStdin, BufReader<ChildStdout>)>,
    resident_mib: Cell<f64>,
}

impl Child {
    pub(crate) fn start(name: &'static str) -> Self {
        let program = env::current_exe().expect("the system tells which program runs");
        let mut command = Command::new(program);
        command
            .args([SERVE, name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if name == "tcmalloc" {
            command.env(TUNABLES, "glibc.pthread.rseq=0");
        }
        // The child ends at the end of its input, that is, with this process.
        let child = command.spawn().expect("this program starts once more");
        let stdin = child.stdin.expect("it was asked for");
        let stdout = BufReader::new(child.stdout.expect("it was asked for"));
        Self {
            name,
            pipes: RefCell::new((stdin, stdout)),
            resident_mib: Cell::new(f64::NAN),
        }
    }

    /// Lets the child time a round.
    pub(crate) fn round(&self, work: Work, access: Access, threads: u32, times: u32) -> Round {
        let (stdin, stdout) = &mut *self.pipes.borrow_mut();
        let nth = Work::ALL.iter().position(|&other| other == work);
        let nth = nth.expect("all are in the list");
        let written = u32::from(access == Access::Written);
        writeln!(stdin, "{nth} {written} {threads} {times}").expect("the child lives");
        let mut answer = String::new();
        stdout.read_line(&mut answer).expect("the child lives");
        let mut words = answer.split_whitespace();
        let mut told = || {
            let (ns, is_at_once) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            self.resident_mib.set(words.next()?.parse().ok()?);
            Some(Round { ns, is_at_once })
        };
        told().unwrap_or_else(|| panic!("{} answered `{answer}`", self.name))
    }
}

impl Child {
    /// Returns the resident memory after the last round.
    pub(crate) fn resident_mib(&self) -> f64 {
        self.resident_mib.get()
    }
}

/// Returns the source that this process was started for, if it is a child.
pub(crate) fn served() -> Option<String> {
    let mut arguments = env::args().skip_while(|argument| argument != SERVE);
    arguments.nth(1)
}

/// Times rounds of one source until its input ends.
pub(crate) fn serve(name: &str) -> ExitCode {
    let Some(time) = sources::named(name) else {
        return ExitCode::FAILURE;
    };
    let mut lines = io::stdin().lines();
    for line in iter::from_fn(|| lines.next()?.ok()) {
        let numbers: Vec<u32> = line
            .split(' ')
            .filter_map(|word| word.parse().ok())
            .collect();
        let [nth, written, threads, times] = numbers[..] else {
            return ExitCode::FAILURE;
        };
        let (work, access) = (Work::ALL[nth as usize], Access::ALL[written as usize]);
        let round = time(work, access, threads, times);
        println!("{} {} {}", round.ns, round.is_at_once, resident_mib());
    }
    ExitCode::SUCCESS
}
