//! Runs work on another thread, while this one forwards signals and draws progress.

use std::io::{self, IsTerminal};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use highwater_lab::control::{Control, Progress};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::signals::Signals;

/// Interval at which signals are polled and the progress bar is drawn.
const TICK: Duration = Duration::from_millis(50);

/// Work that is shorter shows no progress bar.
const SILENT: Duration = Duration::from_secs(1);

/// Runs `work` on another thread while this one forwards signals to `control` and draws progress,
/// with the text that `message` makes of it.
///
/// # Errors
///
/// When the system refuses the thread; `work` does not run then.
pub(crate) fn watched<T: Send>(
    control: &Control,
    message: fn(&Progress) -> String,
    signals: &Signals,
    work: impl FnOnce() -> T + Send,
) -> io::Result<T> {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watcher = thread::current();
        let builder = thread::Builder::new().name("run".to_owned());
        let worker = builder.spawn_scoped(scope, || {
            let _wake = Wake {
                is_done: &is_done,
                watcher,
            };
            work()
        })?;
        let start = Instant::now();
        let mut bar = None;
        // Relaxed: joining the worker orders its result.
        while !is_done.load(Ordering::Relaxed) {
            thread::park_timeout(TICK);
            if signals.received().is_some() {
                control.stop();
            }
            if start.elapsed() >= SILENT && io::stderr().is_terminal() {
                let progress = control.progress();
                let bar = bar.get_or_insert_with(|| new_bar(&progress, start.elapsed()));
                bar.set_message(message(&progress));
                bar.set_position(progress.done);
            }
        }
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        match worker.join() {
            Ok(result) => Ok(result),
            Err(panic) => resume_unwind(panic),
        }
    })
}

/// Tells the watcher that the work is done when it is dropped, also by a panic.
struct Wake<'a> {
    /// Written by: the worker. Read by: the watcher. Publishes: nothing.
    is_done: &'a AtomicBool,
    watcher: thread::Thread,
}

impl Drop for Wake<'_> {
    fn drop(&mut self) {
        // Relaxed: the watcher joins this thread before it reads anything else.
        self.is_done.store(true, Ordering::Relaxed);
        self.watcher.unpark();
    }
}

/// Creates a progress bar on standard error, if that is a terminal.
fn new_bar(progress: &Progress, elapsed: Duration) -> ProgressBar {
    let (length, template) = match progress.total {
        0 => (None, "{elapsed_precise} {spinner} {msg}"),
        total => {
            let template = "{elapsed_precise} [{wide_bar}] {percent} %  {msg}  {eta} left";
            (Some(total), template)
        }
    };
    let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr())
        .with_elapsed(elapsed)
        .with_position(progress.done);
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        // The templates are fixed and well-formed; a failure leaves a plain bar.
        Err(_) => bar,
    }
}
