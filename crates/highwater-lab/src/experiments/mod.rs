//! The experiments of the mailing-list discussions, on the library's code and the designs discussed
//! there.
//!
//! One file each. An experiment takes a machine (a topology of virtual CPUs unless it says
//! otherwise), a seed and a size, and returns an [`Outcome`] whose checks say whether the published
//! figures were reproduced and ours hold. The same request gives the same counts; times differ.
//!
//! To add one: a file here with an `EXPERIMENT` of type [`Experiment`], and a line in
//! [`EXPERIMENTS`].

mod buckets;
pub(crate) mod clock;
mod contenders;
mod control;
mod crew;
mod error;
mod fit;
mod flushers;
pub mod flush_mixed;
pub mod flush_reads;
mod lineup;
mod meeting;
mod memcg;
pub mod pcp_exit;
pub mod pcp_tune;
mod periodic;
pub mod policies;
mod rmap;
pub mod rmap_mapped;
pub mod rmap_read;
pub mod rss_cost;
pub mod rss_hits;
pub mod rss_hop;
pub mod rss_theft;
mod service;
mod truth;
pub mod victim;

use std::ops::RangeInclusive;
use std::path::PathBuf;

use highwater::topology::{CPUS_MAX, Topology};

use crate::report::{Figures, Headline, Judge, Outcome};

pub use control::{Control, Progress};
pub use error::ExperimentError;

/// Every experiment, in the order in which `highwater lab all` runs them.
pub static EXPERIMENTS: &[&Experiment] = &[
    &rss_theft::EXPERIMENT,
    &rss_hits::EXPERIMENT,
    &rss_hop::EXPERIMENT,
    &rss_cost::EXPERIMENT,
    &victim::EXPERIMENT,
    &flush_mixed::EXPERIMENT,
    &flush_reads::EXPERIMENT,
    &pcp_exit::EXPERIMENT,
    &pcp_tune::EXPERIMENT,
    &policies::EXPERIMENT,
    &rmap_mapped::EXPERIMENT,
    &rmap_read::EXPERIMENT,
];

/// Upper bound of the number of threads in a request.
pub const THREADS_MAX: u32 = 1_000_000;

/// Returns the experiment called `name`.
#[must_use]
pub fn find(name: &str) -> Option<&'static Experiment> {
    EXPERIMENTS
        .iter()
        .copied()
        .find(|experiment| experiment.name == name)
}

/// Amount of work of an experiment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Size {
    /// The amount whose results compare with the published figures.
    #[default]
    Full,
    /// Less of the same, for tests: its checks are as strict as its size allows.
    Quick,
}

/// Options of a run. Each experiment has its own defaults.
#[derive(Clone, Debug)]
pub struct Request {
    /// The machine; `None` is the experiment's own.
    pub topology: Option<Topology>,
    /// Random seed.
    pub seed: u64,
    /// How much.
    pub size: Size,
    /// With real threads and pages, for the experiments that can.
    pub is_real: bool,
    /// Number of threads, for the experiments that can be real; `None` is the experiment's own.
    pub threads: Option<u32>,
    /// Recorded traces to replay, for the experiments that can.
    pub traces: Vec<PathBuf>,
    /// Also reads control groups of the running kernel, for the experiments that can.
    pub is_kernel: bool,
    /// Runs every combination, for the experiments that leave some out by default.
    pub is_matrix: bool,
    /// The checks that decide whether the outcome passes. `None` is all checks in a full run of an
    /// optimised build, and otherwise those that are decided by counts.
    pub judge: Option<Judge>,
}

impl Request {
    /// Times of a build with debug assertions are meaningless, and those of a quick run are lost in
    /// the noise of the machine.
    fn judge(&self) -> Judge {
        let measures = self.size == Size::Full && !cfg!(debug_assertions);
        self.judge.unwrap_or(match measures {
            true => Judge::All,
            false => Judge::Counts,
        })
    }
}

impl Default for Request {
    fn default() -> Self {
        Self {
            topology: None,
            seed: 1,
            size: Size::Full,
            is_real: false,
            threads: None,
            traces: Vec::new(),
            is_kernel: false,
            is_matrix: false,
            judge: None,
        }
    }
}

/// A [`Request`] with all defaults filled in.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The machine.
    pub topology: Topology,
    /// Random seed.
    pub seed: u64,
    /// How much.
    pub size: Size,
    /// Run with real threads and pages.
    pub is_real: bool,
    /// Number of threads, if the request says so.
    pub threads: Option<u32>,
    /// Recorded traces to replay as well.
    pub traces: Vec<PathBuf>,
    /// Also read control groups of the running kernel.
    pub is_kernel: bool,
    /// Run every combination.
    pub is_matrix: bool,
    /// The checks that decide whether the outcome passes.
    pub judge: Judge,
}

impl Setup {
    /// Returns the figures that every experiment's configuration begins with.
    #[must_use]
    pub fn config(&self) -> Figures {
        Figures::default()
            .with("cpus", self.topology.nr_cpus())
            .with("topology", self.topology.to_string())
            .with("seed", self.seed)
            .with("quick", self.size == Size::Quick)
    }

    /// Returns `full`, or `quick` in a quick run.
    #[must_use]
    pub fn pick<T>(&self, full: T, quick: T) -> T {
        match self.size {
            Size::Full => full,
            Size::Quick => quick,
        }
    }

    /// Returns the number of repetitions: `timed`, enough for medians of times, or `counted` where
    /// only counts are judged; `quick` in a quick run.
    #[must_use]
    pub fn repeats<T>(&self, timed: T, counted: T, quick: T) -> T {
        let full = match self.judge {
            Judge::All => timed,
            Judge::Counts => counted,
        };
        self.pick(full, quick)
    }
}

/// One experiment.
#[derive(Debug)]
pub struct Experiment {
    /// Its name in `highwater lab`.
    pub name: &'static str,
    /// The mailing-list discussion that it reproduces.
    pub thread: &'static str,
    /// Its result, in one line.
    pub summary: &'static str,
    /// The conclusion at the top of its table.
    pub headline: Headline,
    /// Its default machine, as `SOCKETSxLLCSxCORESxTHREADS`.
    pub topology: &'static str,
    /// Numbers of CPUs that its machine may have.
    pub cpus: RangeInclusive<usize>,
    /// Whether it can run with real threads and pages.
    pub has_real: bool,
    /// Whether it replays recorded traces.
    pub has_traces: bool,
    /// Whether it can also read control groups of the running kernel.
    pub has_kernel: bool,
    /// Whether it leaves combinations out by default.
    pub has_matrix: bool,
    /// The function that runs it.
    pub run: fn(&Setup, &Control) -> Result<Outcome, ExperimentError>,
}

impl Experiment {
    /// Runs the experiment.
    ///
    /// # Errors
    ///
    /// When the request is out of range, when the run was told to stop, or when the system refused
    /// a resource. A check that does not hold is no error: the outcome reports it.
    pub fn run(&self, request: &Request, control: &Control) -> Result<Outcome, ExperimentError> {
        let topology = match &request.topology {
            Some(topology) => topology.clone(),
            None => self.topology.parse().map_err(ExperimentError::Topology)?,
        };
        let cpus = topology.nr_cpus();
        if !self.cpus.contains(&cpus) {
            return Err(ExperimentError::Cpus {
                experiment: self.name,
                cpus,
                min: *self.cpus.start(),
                max: *self.cpus.end(),
            });
        }
        if let Some(threads) = request.threads
            && !(1..=THREADS_MAX).contains(&threads)
        {
            return Err(ExperimentError::Threads { threads });
        }
        if (request.is_real || request.threads.is_some()) && !self.has_real {
            return Err(ExperimentError::NoReal {
                experiment: self.name,
            });
        }
        if !request.traces.is_empty() && !self.has_traces {
            return Err(ExperimentError::NoTraces {
                experiment: self.name,
            });
        }
        if request.is_kernel && !self.has_kernel {
            return Err(ExperimentError::NoKernel {
                experiment: self.name,
            });
        }
        if request.is_matrix && !self.has_matrix {
            return Err(ExperimentError::NoMatrix {
                experiment: self.name,
            });
        }
        let setup = Setup {
            topology,
            seed: request.seed,
            size: request.size,
            is_real: request.is_real,
            threads: request.threads,
            traces: request.traces.clone(),
            is_kernel: request.is_kernel,
            is_matrix: request.is_matrix,
            judge: request.judge(),
        };
        Ok((self.run)(&setup, control)?.judged_by(setup.judge))
    }
}

/// Returns a machine of `cpus` CPUs: two sockets of last-level caches of 8 cores with 2 threads if
/// the number allows it (384 CPUs make `2x12x8x2`), else one such socket, else cores behind one
/// cache.
///
/// # Errors
///
/// When `cpus` is 0 or more than a topology can have.
pub fn machine_of(cpus: usize) -> Result<Topology, ExperimentError> {
    if !(1..=CPUS_MAX).contains(&cpus) {
        return Err(ExperimentError::MachineSize { cpus });
    }
    let shape = if cpus.is_multiple_of(32) {
        format!("2x{}x8x2", cpus / 32)
    } else if cpus.is_multiple_of(16) {
        format!("1x{}x8x2", cpus / 16)
    } else {
        return Ok(Topology::flat(cpus));
    };
    shape.parse().map_err(ExperimentError::Topology)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::report::{Check, Noun};

    fn sum_of_cpus(setup: &Setup, control: &Control) -> Result<Outcome, ExperimentError> {
        control.expect(1);
        control.advance(1)?;
        Ok(Outcome {
            experiment: "demo",
            thread: "none",
            config: setup.config(),
            rows: Vec::new(),
            published: Vec::new(),
            checks: vec![Check::counted("cpus").equal(&setup.topology.nr_cpus(), &384)],
        })
    }

    const DEMO: Experiment = Experiment {
        name: "demo",
        thread: "none",
        summary: "counts the CPUs",
        headline: Headline::of_variants("a", "b", Noun::Count("CPUs"), ["ours", "theirs"]),
        topology: "2x12x8x2",
        cpus: 2..=8192,
        has_real: false,
        has_traces: false,
        has_kernel: false,
        has_matrix: false,
        run: sum_of_cpus,
    };

    /// Goal: defaults are the experiment's own. Method: a demo that checks its CPUs.
    #[test]
    fn requests_default_to_the_experiment() {
        let control = Control::default();
        let outcome = DEMO.run(&Request::default(), &control).unwrap();
        assert!(outcome.passes(), "{outcome:?}");
        let two = Request {
            topology: Some(Topology::flat(2)),
            ..Request::default()
        };
        assert!(!DEMO.run(&two, &control).unwrap().passes());
    }

    /// Goal: a request that cannot be met is refused with value, range and remedy.
    #[test]
    fn requests_out_of_range_are_refused() {
        let refused = |request: Request| {
            let error = DEMO.run(&request, &Control::default()).unwrap_err();
            error.to_string()
        };
        let one = refused(Request {
            topology: Some(Topology::flat(1)),
            ..Request::default()
        });
        assert!(
            one.contains("1 CPUs") && one.contains("2 to 8192") && one.contains("--cpus"),
            "{one}"
        );
        let real = refused(Request {
            is_real: true,
            ..Request::default()
        });
        assert!(real.contains("`demo`") && real.contains("--real"), "{real}");
        let traces = refused(Request {
            traces: vec!["a".into()],
            ..Request::default()
        });
        assert!(
            traces.contains("`demo`") && traces.contains("--trace"),
            "{traces}"
        );
        let kernel = refused(Request {
            is_kernel: true,
            ..Request::default()
        });
        assert!(
            kernel.contains("`demo`") && kernel.contains("--kernel"),
            "{kernel}"
        );
        let matrix = refused(Request {
            is_matrix: true,
            ..Request::default()
        });
        assert!(
            matrix.contains("`demo`") && matrix.contains("--matrix"),
            "{matrix}"
        );
        for threads in [0, THREADS_MAX + 1] {
            let number = refused(Request {
                threads: Some(threads),
                ..Request::default()
            });
            let words = [&threads.to_string(), "1 to 1000000", "--threads"];
            assert!(words.iter().all(|word| number.contains(*word)), "{number}");
        }
        for cpus in [0, CPUS_MAX + 1] {
            let size = machine_of(cpus).unwrap_err().to_string();
            assert!(size.contains(&cpus.to_string()), "{size}");
        }
    }

    /// Goal: a run that was told to stop ends at its next step.
    #[test]
    fn a_stopped_run_is_interrupted() {
        let control = Control::default();
        control.stop();
        let error = DEMO.run(&Request::default(), &control).unwrap_err();
        assert!(matches!(error, ExperimentError::Interrupted), "{error}");
    }

    /// Goal: any number of CPUs makes a machine of that many CPUs.
    #[test]
    fn machines_have_as_many_cpus_as_asked_for() {
        for cpus in [1, 2, 3, 16, 48, 250, 384, 1024, 8192] {
            let machine = machine_of(cpus).unwrap();
            assert_eq!(machine.nr_cpus(), cpus);
        }
        let shape: Topology = "2x12x8x2".parse().unwrap();
        assert_eq!(machine_of(384).unwrap().to_string(), shape.to_string());
    }

    /// Goal: names are unique, so that each experiment can be asked for, and defaults are valid.
    #[test]
    fn every_experiment_can_be_asked_for() {
        let names: BTreeSet<_> = EXPERIMENTS.iter().map(|each| each.name).collect();
        assert_eq!(names.len(), EXPERIMENTS.len());
        for experiment in EXPERIMENTS {
            let machine: Topology = experiment.topology.parse().unwrap();
            assert!(experiment.cpus.contains(&machine.nr_cpus()));
            assert!(find(experiment.name).is_some());
            assert!(!["list", "all"].contains(&experiment.name));
        }
    }
}
