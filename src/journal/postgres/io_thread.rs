//! The thread that runs all connections to the server. Callers block until their future is done.
//! They may be inside another runtime, where a nested `block_on` would panic.

use std::future::Future;
use std::sync::mpsc;
use std::thread::JoinHandle;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// A thread with a runtime of its own. It ends when this is dropped.
pub(super) struct IoThread {
    handle: Handle,
    /// Dropped to end the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl IoThread {
    /// Starts the thread.
    pub(super) fn start() -> std::io::Result<IoThread> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new()
            .name("postgres".to_owned())
            // The result is an error, because the sender is dropped without sending.
            .spawn(move || runtime.block_on(async { drop(stopped.await) }))?;
        Ok(IoThread { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Runs a future on the thread, and blocks until it is done.
    pub(super) fn run<F>(&self, future: F) -> F::Output
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.handle.spawn(async move {
            // An error means that the caller has panicked.
            let _ = sender.send(future.await);
        });
        receiver.recv().expect("the future does not panic")
    }

    /// Runs a future on the thread in the background. It ends with the thread.
    pub(super) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(future);
    }
}

impl Drop for IoThread {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}
