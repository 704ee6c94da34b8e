//! Signals: the first asks to stop, the second ends the process at once with nothing settled falsely.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Both signals that ask to stop.
pub(super) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Takes them over from the system's default.
    pub(super) fn listen() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for one, and says with which code a process ends that such a signal ends.
    async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.terminate.recv() => 143,
            _ = self.interrupt.recv() => 130,
        }
    }

    /// Resolves at the first; at the second the process ends.
    pub(super) async fn first(mut self) {
        self.next().await;
        tokio::spawn(async move {
            let code = self.next().await;
            tracing::error!(code, "second signal: ending at once, what is not settled comes again");
            std::process::exit(code);
        });
    }
}
