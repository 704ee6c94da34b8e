use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::{Delivery, Disposition, NackCause, RejectReason, Settle, SettleError};

use super::{Deal, Lie, lock, now};

/// Settles the delivery inside, except where the lie says otherwise.
pub(super) struct LyingHandle {
    /// Taken out when it is settled.
    inner: Option<Delivery>,
    deal: Arc<Deal>,
}

impl LyingHandle {
    pub(super) fn new(inner: Delivery, deal: Arc<Deal>) -> Self {
        Self { inner: Some(inner), deal }
    }
}

#[async_trait]
impl Settle for LyingHandle {
    async fn settle(mut self: Box<Self>, disposition: Disposition) -> Result<(), SettleError> {
        let inner = self.inner.take().expect("settling consumes the handle, so it happens once");
        let disposition = match (self.deal.lie, disposition) {
            (Lie::DrainRevokes, _) if self.deal.revoked.load(Relaxed) => return Err(SettleError::Lost),
            (Lie::ForgetsOnNack, Disposition::Nack { .. }) => Disposition::Ack,
            (Lie::IgnoresDelay, Disposition::Nack { cause, .. }) => Disposition::Nack { delay: None, cause },
            (Lie::NackBlocksEverything, Disposition::Nack { delay, cause }) => {
                *lock(&self.deal.blocked) = delay.map(|delay| Instant::now() + delay);
                Disposition::Nack { delay, cause }
            }
            (Lie::RejectsWithoutParking, Disposition::Reject(_)) => Disposition::Ack,
            (Lie::ChangesTheReason, Disposition::Reject(mut rejection)) => {
                rejection.reason = RejectReason::Unroutable;
                Disposition::Reject(rejection)
            }
            (Lie::RejectedComesBack, Disposition::Reject(rejection)) => {
                let message = inner.message().clone();
                inner.settle(Disposition::Reject(rejection)).await?;
                self.deal.broker.publish(&self.deal.source, message);
                return Ok(());
            }
            (Lie::ClaimsToHaveParked, Disposition::Reject(rejection)) => {
                // Whatever it answers.
                let _ = inner.settle(Disposition::Reject(rejection)).await;
                return Ok(());
            }
            (Lie::AckDoesNotRemove, Disposition::Ack) => {
                Disposition::Nack { delay: None, cause: NackCause::Untried }
            }
            (Lie::LateSettleSucceeds, disposition) => {
                return match inner.settle(disposition).await {
                    Err(SettleError::Lost) => Ok(()),
                    answer => answer,
                };
            }
            (_, disposition) => disposition,
        };
        inner.settle(disposition).await
    }

    async fn extend(&self, by: Duration) -> Result<(), SettleError> {
        match &self.inner {
            Some(_) if self.deal.lie == Lie::IgnoresExtend => Ok(()),
            Some(inner) => inner.extend(by).await,
            None => Err(SettleError::Lost),
        }
    }
}

impl Drop for LyingHandle {
    fn drop(&mut self) {
        let Some(inner) = self.inner.take() else { return };
        match self.deal.lie {
            Lie::AcksOnDrop => {
                // A stale handle answers `Lost`, which is as good.
                let _ = now(inner.settle(Disposition::Ack));
            }
            Lie::ForgetsInAnOutage
                if matches!(now(inner.extend(Duration::ZERO)), Some(Err(SettleError::Failed(_)))) =>
            {
                mem::forget(inner);
            }
            _ => {}
        }
    }
}

/// Stands for a message that is somebody else's.
pub(super) struct EchoHandle;

#[async_trait]
impl Settle for EchoHandle {
    async fn settle(self: Box<Self>, _disposition: Disposition) -> Result<(), SettleError> {
        Ok(())
    }

    async fn extend(&self, _by: Duration) -> Result<(), SettleError> {
        Ok(())
    }
}
