//! Signals: the first asks to stop, the second ends the process at once with nothing settled falsely.

use std::future::Future;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// Takes SIGTERM and SIGINT over from the system's default. The first future resolves at the first signal; the second at the
/// second one, with the code that a process has which such a signal ends.
pub(super) fn listen() -> std::io::Result<(impl Future<Output = ()> + Send, impl Future<Output = u8> + Send)>
{
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (first, asked) = oneshot::channel();
    let (second, insisted) = oneshot::channel();
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => 143,
                _ = interrupt.recv() => 130,
            }
        };
        next().await;
        let _ = first.send(());
        let _ = second.send(next().await);
    });
    let asked = async move {
        // The task lives as long as the runtime.
        let _ = asked.await;
    };
    let insisted = async move {
        match insisted.await {
            Ok(code) => code,
            Err(_) => std::future::pending().await,
        }
    };
    Ok((asked, insisted))
}
