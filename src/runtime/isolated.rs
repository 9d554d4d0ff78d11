//! A runtime of its own for a component whose work can occupy all threads of one.

use std::future::Future;
use std::io;

use tokio::runtime::{Builder, Runtime};

/// Runs a future, and all tasks that it spawns, on as many threads of its own as there are cores. They end with it, or when the
/// returned future is dropped.
///
/// # Errors
///
/// The runtime cannot be created, or the future panicked.
pub async fn run<T: Send + 'static>(name: &str, future: impl Future<Output = T> + Send + 'static) -> io::Result<T> {
    let isolated = Isolated(Some(Builder::new_multi_thread().thread_name(name).enable_all().build()?));
    let Some(runtime) = &isolated.0 else { return Err(io::ErrorKind::NotFound.into()) };
    Ok(runtime.spawn(future).await?)
}

struct Isolated(Option<Runtime>);

impl Drop for Isolated {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // Dropping a runtime waits for its threads, which another runtime does not allow.
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;
    use tokio::sync::Notify;
    use tokio::task::JoinSet;

    #[tokio::test]
    async fn occupied_threads_delay_no_other_runtime() {
        // More than there are threads. Each occupies its thread until this runtime, which they do not delay, lets it go.
        let count = 2 * std::thread::available_parallelism().unwrap().get();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        let spin = async move {
            let mut tasks = JoinSet::new();
            for _ in 0..count {
                let wait = wait.clone();
                tasks.spawn(async move { wait.lock().unwrap().recv() });
            }
            tasks.join_all().await.len()
        };
        let mut occupied = JoinSet::new();
        occupied.spawn(run("occupied", spin));
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(occupied.try_join_next().is_none());
        drop(go);
        assert_eq!(occupied.join_next().await.unwrap().unwrap().unwrap(), count);
    }

    #[tokio::test]
    async fn panic_is_an_error_and_tasks_end_with_the_future() {
        assert!(run("panics", async { panic!("deliberately") }).await.is_err());
        let (alive, begun) = (Arc::new(()), Arc::new(Notify::new()));
        let (held, beginning) = (alive.clone(), begun.clone());
        let mut running = JoinSet::new();
        running.spawn(run("endless", async move {
            beginning.notify_one();
            std::future::pending::<()>().await;
            drop(held);
        }));
        begun.notified().await;
        running.shutdown().await;
        for _ in 0..1000 {
            if Arc::strong_count(&alive) == 1 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the task still runs");
    }
}
