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

/// Ctrl-C, or SIGTERM, for a command that does what it has to do before it ends. The next signal ends the process at once, even while
/// it is blocked by a pipe without a reader.
#[derive(Clone, Debug)]
pub struct Interrupt {
    has_come: watch::Receiver<bool>,
}

impl Interrupt {
    /// Handles the signals from now on. After the second one the process exits with this code.
    pub fn listen(code: u8) -> io::Result<Interrupt> {
        let mut signals = Signals::listen()?;
        let (sender, has_come) = watch::channel(false);
        #[expect(clippy::disallowed_methods, reason = "it does nothing that can panic")]
        tokio::spawn(async move {
            signals.next().await;
            sender.send_replace(true);
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
