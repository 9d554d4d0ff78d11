//! Shutdown in two phases: first not ready, while requests still arrive; then stop. A second signal aborts.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// SIGTERM and SIGINT.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Handles the signals from now on, so that they do not terminate the process.
    pub fn listen() -> io::Result<Signals> {
        Ok(Signals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next signal and returns its name.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Ctrl-C, SIGTERM, or the SIGHUP of a terminal that was closed, for a command that does what it has to do before it ends. The next Ctrl-C
/// or SIGTERM ends the process immediately, even while it is blocked by a pipe without a reader.
#[derive(Clone, Debug)]
pub struct Interrupt {
    has_come: watch::Receiver<bool>,
}

impl Interrupt {
    /// Handles the signals from now on. After the second one the process exits with this code.
    pub fn listen(code: u8) -> io::Result<Interrupt> {
        let mut signals = Signals::listen()?;
        // Under nohup, a command continues without its terminal.
        let mut hangup = if is_ignored(HANGUP) { None } else { Some(signal(SignalKind::hangup())?) };
        let (sender, has_come) = watch::channel(false);
        #[expect(clippy::disallowed_methods, reason = "it does nothing that can panic")]
        tokio::spawn(async move {
            let closed = async {
                match &mut hangup {
                    Some(hangup) => drop(hangup.recv().await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = signals.next() => {}
                () = closed => {}
            }
            sender.send_replace(true);
            // A terminal that was closed may say so twice: the shell does, and the kernel.
            signals.next().await;
            #[expect(clippy::disallowed_methods, reason = "the rest of the process may be blocked")]
            std::process::exit(code.into());
        });
        Ok(Interrupt { has_come })
    }

    /// For a caller that is not interrupted.
    pub fn never() -> Interrupt {
        Interrupt { has_come: watch::channel(false).1 }
    }

    /// Waits for the first signal.
    pub async fn wait(&mut self) {
        if self.has_come.wait_for(|has_come| *has_come).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Whether a signal has come.
    pub fn has_come(&self) -> bool {
        *self.has_come.borrow()
    }
}

/// The number of SIGHUP.
const HANGUP: u32 = 1;

/// Whether the process was started with this signal ignored. Known on Linux only.
fn is_ignored(signal: u32) -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores(&status, signal))
}

fn ignores(status: &str, signal: u32) -> bool {
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_status_of_the_process() {
        assert!(ignores("Name:\tx\nSigIgn:\t0000000000000001\n", HANGUP));
        assert!(!ignores("SigIgn:\t0000000000001000\n", HANGUP) && !ignores("", HANGUP));
    }
}
