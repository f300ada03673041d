//! A process for each source of blocks, as its parent sees it; what the child does is in `serving`.

use std::cell::{Cell, RefCell};
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use crate::blocks::{Access, Latency, Work};
use crate::serving::{BYSTANDER, SERVE};
use crate::timing::Round;

const TUNABLES: &str = "GLIBC_TUNABLES";

/// The parent's end.
pub(crate) struct Child {
    name: &'static str,
    pipes: RefCell<(ChildStdin, BufReader<ChildStdout>)>,
    resident_mib: Cell<f64>,
}

impl Child {
    /// Starts this program once more, for the source of that name.
    pub(crate) fn start(name: &'static str) -> Self {
        let program = env::current_exe().expect("the system tells which program runs");
        Self::start_program(name, &program)
    }

    /// Starts a program that serves one source.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub(crate) fn start_program(name: &'static str, program: &Path) -> Self {
        let mut command = Command::new(program);
        command
            .args([SERVE, name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if name == "tcmalloc" {
            command.env(TUNABLES, "glibc.pthread.rseq=0");
        }
        // The child ends at the end of its input, that is, with this process.
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let stdin = child.stdin.expect("it was asked for");
        let stdout = BufReader::new(child.stdout.expect("it was asked for"));
        Self {
            name,
            pipes: RefCell::new((stdin, stdout)),
            resident_mib: Cell::new(f64::NAN),
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Lets the child time a round.
    pub(crate) fn round(&self, work: Work, access: Access, threads: u32, times: u32) -> Round {
        let nth = Work::ALL.iter().position(|&other| other == work);
        let nth = nth.expect("all are in the list");
        let [ns, is_at_once, resident] = self.ask(&format!("{nth}"), access, threads, times);
        self.resident_mib.set(resident);
        Round {
            ns,
            is_at_once: is_at_once != 0.0,
        }
    }

    /// Lets the child time a bystander beside so many threads; a `part`th of the usual turns.
    pub(crate) fn bystander(&self, access: Access, others: u32, part: u32) -> Latency {
        let [p50, p99, p99_9, resident] = self.ask(BYSTANDER, access, others, part);
        self.resident_mib.set(resident);
        Latency { p50, p99, p99_9 }
    }

    fn ask<const N: usize>(
        &self,
        work: &str,
        access: Access,
        threads: u32,
        times: u32,
    ) -> [f64; N] {
        let (stdin, stdout) = &mut *self.pipes.borrow_mut();
        let written = u32::from(access == Access::Written);
        writeln!(stdin, "{work} {written} {threads} {times}").expect("the child lives");
        let mut answer = String::new();
        stdout.read_line(&mut answer).expect("the child lives");
        let numbers: Result<Vec<f64>, _> = answer.split_whitespace().map(str::parse).collect();
        let numbers = numbers.ok().and_then(|numbers| numbers.try_into().ok());
        numbers.unwrap_or_else(|| panic!("{} answered `{answer}`", self.name))
    }

    /// Returns the resident memory after the last round.
    pub(crate) fn resident_mib(&self) -> f64 {
        self.resident_mib.get()
    }
}
