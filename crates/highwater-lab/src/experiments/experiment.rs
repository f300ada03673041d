//! An experiment, and the request of a run.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use highwater::topology::{CPUS_MAX, Topology};

use super::error::ExperimentError;
use crate::control::Control;
use crate::report::{Check, Figures, Headline, Judge, Outcome, Row};

/// Upper bound of the number of threads in a request.
pub const THREADS_MAX: u32 = 1_000_000;

/// Amount of work of an experiment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Size {
    /// The amount whose results compare with the published figures.
    #[default]
    Full,
    /// Less of the same, for tests: its checks are as strict as its size allows.
    Quick,
}

/// Options of a run that mean the same to every experiment.
#[derive(Clone, Debug)]
pub struct Options {
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
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 1,
            size: Size::Full,
            is_real: false,
            threads: None,
            traces: Vec::new(),
            is_kernel: false,
            is_matrix: false,
        }
    }
}

/// A run as requested. Each experiment has its own defaults.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The machine; `None` is the experiment's own.
    pub topology: Option<Topology>,
    /// The checks that decide whether the outcome passes. `None` is all checks in a full run of an
    /// optimised build, and otherwise those that are decided by counts.
    pub judge: Option<Judge>,
    /// Everything else.
    pub options: Options,
}

impl Request {
    /// Times of a build with debug assertions are meaningless, and those of a quick run are lost in
    /// the noise of the machine.
    fn judge(&self) -> Judge {
        let measures = self.options.size == Size::Full && !cfg!(debug_assertions);
        self.judge.unwrap_or(match measures {
            true => Judge::All,
            false => Judge::Counts,
        })
    }
}

/// A [`Request`] with all defaults filled in.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The machine.
    pub topology: Topology,
    /// The checks that decide whether the outcome passes.
    pub judge: Judge,
    /// Everything else.
    pub options: Options,
}

impl Setup {
    /// Returns the figures that every experiment's configuration begins with.
    #[must_use]
    pub fn config(&self) -> Figures {
        Figures::default()
            .with("cpus", self.topology.nr_cpus())
            .with("topology", self.topology.to_string())
            .with("seed", self.options.seed)
            .with("quick", self.options.size == Size::Quick)
    }

    /// Returns `full`, or `quick` in a quick run.
    #[must_use]
    pub fn pick<T>(&self, full: T, quick: T) -> T {
        match self.options.size {
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

/// A part that only some experiments have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// A run with real threads and pages.
    Real,
    /// Replays of recorded traces.
    Traces,
    /// Reads of control groups of the running kernel.
    Kernel,
    /// Combinations that are left out by default.
    Matrix,
}

impl Extra {
    const ALL: [Self; 4] = [Self::Real, Self::Traces, Self::Kernel, Self::Matrix];

    fn is_asked_for(self, options: &Options) -> bool {
        match self {
            Self::Real => options.is_real || options.threads.is_some(),
            Self::Traces => !options.traces.is_empty(),
            Self::Kernel => options.is_kernel,
            Self::Matrix => options.is_matrix,
        }
    }

    /// Returns what an experiment without it does not do, and the remedy.
    const fn lack(self) -> &'static str {
        match self {
            Self::Real => {
                "has no run with real threads and pages: leave `--real` and `--threads` out"
            }
            Self::Traces => "replays no recorded traces: leave `--trace` out",
            Self::Kernel => "reads no groups of the kernel: leave `--kernel` out",
            Self::Matrix => "leaves no combination out: leave `--matrix` out",
        }
    }
}

/// Results of a run.
#[derive(Debug)]
pub struct Findings {
    /// Configuration, as in an [`Outcome`].
    pub config: Figures,
    /// Results of this run.
    pub rows: Vec<Row>,
    /// Published results.
    pub published: Vec<Row>,
    /// Expectations.
    pub checks: Vec<Check>,
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
    /// Its optional parts.
    pub extras: &'static [Extra],
    /// The function that runs it.
    pub run: fn(&Setup, &Control) -> Result<Findings, ExperimentError>,
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
        self.check_options(&request.options)?;
        let setup = Setup {
            topology,
            judge: request.judge(),
            options: request.options.clone(),
        };
        let Findings {
            config,
            rows,
            published,
            checks,
        } = (self.run)(&setup, control)?;
        let outcome = Outcome {
            experiment: self.name,
            thread: self.thread,
            config,
            rows,
            published,
            checks,
        };
        Ok(outcome.judged_by(setup.judge))
    }

    /// Refuses what the experiment has not.
    fn check_options(&self, options: &Options) -> Result<(), ExperimentError> {
        if let Some(threads) = options.threads
            && !(1..=THREADS_MAX).contains(&threads)
        {
            return Err(ExperimentError::Threads {
                threads,
                max: THREADS_MAX,
            });
        }
        let mut asked = Extra::ALL
            .iter()
            .filter(|extra| extra.is_asked_for(options));
        match asked.find(|extra| !self.extras.contains(extra)) {
            Some(extra) => Err(ExperimentError::Unsupported {
                experiment: self.name,
                reason: extra.lack(),
            }),
            None => Ok(()),
        }
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
    use super::*;
    use crate::report::Noun;

    fn sum_of_cpus(setup: &Setup, control: &Control) -> Result<Findings, ExperimentError> {
        control.expect(1);
        control.advance(1)?;
        Ok(Findings {
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
        extras: &[],
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
        let refused = |topology, options| {
            let request = Request {
                topology,
                options,
                ..Request::default()
            };
            let error = DEMO.run(&request, &Control::default()).unwrap_err();
            error.to_string()
        };
        let one = refused(Some(Topology::flat(1)), Options::default());
        assert!(
            one.contains("1 CPUs") && one.contains("2 to 8192") && one.contains("--cpus"),
            "{one}"
        );
        type Ask = fn(&mut Options);
        let asked: [(Ask, &str); 4] = [
            (|options| options.is_real = true, "--real"),
            (|options| options.traces = vec!["a".into()], "--trace"),
            (|options| options.is_kernel = true, "--kernel"),
            (|options| options.is_matrix = true, "--matrix"),
        ];
        for (ask, option) in asked {
            let mut options = Options::default();
            ask(&mut options);
            let refusal = refused(None, options);
            assert!(
                refusal.contains("`demo`") && refusal.contains(option),
                "{refusal}"
            );
        }
        for threads in [0, THREADS_MAX + 1] {
            let options = Options {
                threads: Some(threads),
                ..Options::default()
            };
            let number = refused(None, options);
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
}
