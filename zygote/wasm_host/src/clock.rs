//! The clock that gives each instance its turn. It stands while no request runs: an idle host is not woken.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;
use wasmtime::Engine;

/// How long an instance may compute until the others have their turn.
pub const TICK: Duration = Duration::from_millis(10);

#[derive(Clone)]
pub struct Clock(Arc<Shared>);

#[derive(Default)]
struct Shared {
    requests: Mutex<Requests>,
    first_begun: Condvar,
}

#[derive(Default)]
struct Requests {
    running: usize,
    /// The clock waits for the first of them.
    is_standing: bool,
}

impl Shared {
    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().expect("no thread panics while it holds the lock")
    }
}

impl Clock {
    /// Start the thread that raises the epoch of an engine.
    pub fn start(engine: Engine) -> Clock {
        let shared = Arc::new(Shared::default());
        let clock = Clock(shared.clone());
        std::thread::spawn(move || loop {
            let mut requests = shared.requests();
            while requests.running == 0 {
                requests.is_standing = true;
                requests = shared.first_begun.wait(requests).expect("no thread panics while it holds the lock");
            }
            requests.is_standing = false;
            drop(requests);
            std::thread::sleep(TICK);
            engine.increment_epoch();
        });
        clock
    }

    /// Have it go at least as long as what is returned.
    pub fn run(&self) -> Running {
        let mut requests = self.0.requests();
        requests.running += 1;
        if requests.is_standing {
            self.0.first_begun.notify_one();
        }
        drop(requests);
        Running(self.0.clone())
    }
}

/// A request that runs.
pub struct Running(Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.requests().running -= 1;
    }
}
