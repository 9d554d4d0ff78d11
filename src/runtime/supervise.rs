//! Supervised tasks, each with a name. The first task that ends before it is cancelled stops the process: a process that
//! serves and does not watch, or the other way round, is worse than a restart.

use std::future::Future;

use anyhow::{Context, anyhow};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The tasks of a process.
#[derive(Debug)]
pub struct Supervisor {
    tasks: JoinSet<(&'static str, anyhow::Result<()>)>,
    stop: CancellationToken,
}

impl Default for Supervisor {
    fn default() -> Self {
        Self::new(CancellationToken::new())
    }
}

impl Supervisor {
    /// Supervises until `stop` is cancelled.
    pub fn new(stop: CancellationToken) -> Self {
        Supervisor { tasks: JoinSet::new(), stop }
    }

    /// The token that stops the tasks.
    pub fn token(&self) -> &CancellationToken {
        &self.stop
    }

    /// Starts a task. It must run until the token is cancelled.
    pub fn spawn(&mut self, name: &'static str, task: impl Future<Output = anyhow::Result<()>> + Send + 'static) {
        self.tasks.spawn(async move { (name, task.await) });
    }

    /// Starts a task that cannot fail. It must run until the token is cancelled.
    pub fn run(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn(name, async move {
            task.await;
            Ok(())
        });
    }

    /// Waits for the first task that ends before it is cancelled, and returns which one and why.
    pub async fn first_failure(&mut self) -> anyhow::Error {
        loop {
            match self.tasks.join_next().await {
                None => std::future::pending::<()>().await,
                Some(ended) => {
                    if let Some(error) = outcome_of(ended, self.stop.is_cancelled()) {
                        return error;
                    }
                }
            }
        }
    }

    /// Cancels all tasks and waits for them. Returns the first error.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.stop.cancel();
        let mut first = Ok(());
        while let Some(ended) = self.tasks.join_next().await {
            if let (Some(error), true) = (outcome_of(ended, true), first.is_ok()) {
                first = Err(error);
            }
        }
        first
    }
}

/// The error that the end of a task means, if any.
fn outcome_of(
    ended: Result<(&'static str, anyhow::Result<()>), tokio::task::JoinError>,
    stopping: bool,
) -> Option<anyhow::Error> {
    match ended {
        Ok((_, Ok(()))) if stopping => None,
        Ok((name, Ok(()))) => Some(anyhow!("task {name} exited unexpectedly")),
        Ok((name, Err(error))) => Some(
            Err::<(), _>(error).with_context(|| format!("task {name} failed")).err().unwrap_or_else(|| anyhow!("")),
        ),
        Err(error) if error.is_panic() => Some(anyhow!("a task panicked: {error}")),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn task_that_exits_before_stop_is_a_failure() {
        let mut supervisor = Supervisor::default();
        let stop = supervisor.token().clone();
        supervisor.run("good", stop.cancelled_owned());
        supervisor.spawn("bad", async { Ok(()) });
        assert_eq!(supervisor.first_failure().await.to_string(), "task bad exited unexpectedly");
        supervisor.stop().await.unwrap();
    }

    #[tokio::test]
    async fn errors_and_panics_are_reported_as_failures() {
        let mut supervisor = Supervisor::default();
        supervisor.spawn("broken", async { Err(anyhow!("no luck")) });
        assert_eq!(format!("{:#}", supervisor.first_failure().await), "task broken failed: no luck");
        supervisor.spawn("panics", async { panic!("on purpose") });
        assert!(supervisor.first_failure().await.to_string().contains("a task panicked"));
    }

    #[tokio::test]
    async fn stop_waits_for_tasks_and_returns_their_error() {
        let mut supervisor = Supervisor::default();
        let stop = supervisor.token().clone();
        supervisor.spawn("slow", async move {
            stop.cancelled().await;
            tokio::task::yield_now().await;
            Err(anyhow!("could not clean up"))
        });
        assert_eq!(format!("{:#}", supervisor.stop().await.unwrap_err()), "task slow failed: could not clean up");
    }
}
