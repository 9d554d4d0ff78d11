//! Work that must not delay the tasks of the runtime: one piece at a time, on a thread of its own, for at most half of the time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};

use crate::clock;

/// The longest pause after a piece of work.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Runs one piece of work at a time. After each, the next one waits for as long as that took: with any number of callers, all work
/// together takes at most half of one core.
#[derive(Clone, Debug)]
pub struct Background {
    turn: Arc<Semaphore>,
}

impl Default for Background {
    fn default() -> Background {
        Background { turn: Arc::new(Semaphore::new(1)) }
    }
}

impl Background {
    /// Waits for its turn, and returns the result of `work`; `None` if it panics. A caller that gives up before its turn causes no
    /// work.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let turn = self.turn.clone().acquire_owned().await.ok()?;
        let (done, result) = oneshot::channel();
        // It needs no signal to end, and its end is not waited for: the result arrives before the pause.
        drop(tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let began = clock::instant();
            let _ = done.send(work());
            std::thread::sleep(clock::instant().saturating_duration_since(began).min(MAX_PAUSE));
        }));
        result.await.ok()
    }
}

/// Lets this thread run only when no other thread of the container wants to, and give way as soon as one does (`SCHED_IDLE`, which a
/// nice value does not). Does nothing where threads have no such policy.
pub fn lower_priority() {
    #[cfg(target_os = "linux")]
    {
        use thread_priority::{
            NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
            thread_native_id,
        };
        let policy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
        // The thread is not less correct with the usual priority.
        let _ = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test(flavor = "multi_thread")]
    async fn work_runs_one_at_a_time_and_at_most_half_of_the_time() {
        let background = Background::default();
        let (running, max) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let began = clock::instant();
        let work = Duration::from_millis(20);
        let all = (0..5).map(|number| {
            let (running, max) = (running.clone(), max.clone());
            background.run(move || {
                max.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::sleep(work);
                running.fetch_sub(1, Ordering::SeqCst);
                number
            })
        });
        let results: Vec<Option<usize>> = futures::future::join_all(all).await;
        assert_eq!(results, (0..5).map(Some).collect::<Vec<_>>());
        assert_eq!(max.load(Ordering::SeqCst), 1);
        // Five pieces of work with four pauses between them.
        assert!(clock::instant().saturating_duration_since(began) >= work * 9);
    }

    #[tokio::test]
    async fn panic_gives_no_result_and_the_next_work_runs() {
        let background = Background::default();
        assert_eq!(background.run(|| panic!("deliberately")).await, None::<u8>);
        assert_eq!(background.run(|| 1).await, Some(1));
    }
}
