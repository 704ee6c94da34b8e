//! Adapters that lie, to test the kit itself: [`MemoryBroker`] with one promise broken.

mod handle;
mod message;

use std::future::{Future, poll_fn};
use std::mem;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use async_trait::async_trait;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};

use crate::memory::MemoryBroker;
use crate::{
    Attempt, Broker, BrokerError, Capabilities, Consumer, Delivery, ErrorKind, Message, Subscription,
};
use handle::{EchoHandle, LyingHandle};

/// One broken promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// A dropped delivery counts as acknowledged.
    AcksOnDrop,
    /// A nacked message is gone.
    ForgetsOnNack,
    /// A nacked message comes back at once.
    IgnoresDelay,
    /// A nack holds up everything until its delay is over.
    NackBlocksEverything,
    /// A rejected message is gone and kept nowhere.
    RejectsWithoutParking,
    /// A dead letter has another reason.
    ChangesTheReason,
    /// A rejected message is parked and delivered again.
    RejectedComesBack,
    /// A rejection that could not be kept is answered with success.
    ClaimsToHaveParked,
    /// Batches arrive in reverse.
    Reorders,
    /// What one consumer holds is handed to another.
    SharesMessages,
    /// An acknowledged message comes back.
    AckDoesNotRemove,
    /// Of several headers with one name the last stays.
    DropsRepeatedHeaders,
    /// Headers arrive in reverse.
    ReversesHeaders,
    /// A header without a value gets an empty one.
    NullHeaderBecomesEmpty,
    /// Header values are made UTF-8.
    HeadersBecomeText,
    /// A missing body becomes an empty one.
    NullBecomesEmpty,
    /// An empty body becomes a missing one.
    EmptyBecomesNull,
    /// The body is made UTF-8.
    BodyBecomesText,
    /// White space around the body is cut.
    TrimsTheBody,
    /// The record key is lost.
    LosesRecordKey,
    /// The id differs on each delivery.
    IdChanges,
    /// The position differs on each delivery.
    PositionChanges,
    /// One message more than was asked for.
    MoreThanMax,
    /// A poll without messages is answered with none.
    AnswersWithNone,
    /// A `receive` that is cancelled half way keeps what it had fetched for ever.
    LosesOnCancel,
    /// A consumer that is dropped keeps what it had fetched for ever.
    KeepsWhatItFetched,
    /// A finite source ends while messages are open.
    EndsEarly,
    /// Drain does nothing.
    InflowAfterDrain,
    /// A second drain fails.
    SecondDrainFails,
    /// Drain makes open deliveries stale.
    DrainRevokes,
    /// What is dropped while the broker is away never comes back.
    ForgetsInAnOutage,
    /// Settling after the lease is answered with success.
    LateSettleSucceeds,
    /// Extending is answered with success and does nothing.
    IgnoresExtend,
    /// Errors of subscribing have the other kind.
    SwapsErrorKinds,
}

/// A [`MemoryBroker`] behind an adapter that tells one lie.
#[derive(Debug)]
pub struct LyingBroker {
    inner: MemoryBroker,
    lie: Lie,
    /// What consumers hold, for [`Lie::SharesMessages`].
    echoes: Arc<Mutex<Vec<Echo>>>,
    consumers: AtomicU64,
}

impl LyingBroker {
    /// Lies about that broker's queues.
    pub fn new(inner: MemoryBroker, lie: Lie) -> Self {
        Self { inner, lie, echoes: Arc::default(), consumers: AtomicU64::new(0) }
    }
}

#[async_trait]
impl Broker for LyingBroker {
    fn name(&self) -> &'static str {
        "lying"
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn subscribe(&self, to: &Subscription) -> Result<Box<dyn Consumer>, BrokerError> {
        let inner = self.inner.subscribe(to).await.map_err(|error| match (self.lie, error.kind()) {
            (Lie::SwapsErrorKinds, ErrorKind::Unavailable) => {
                BrokerError::new(ErrorKind::Refused, "subscribe", error)
            }
            _ => error,
        })?;
        Ok(Box::new(LyingConsumer {
            inner,
            fetched: Vec::new(),
            drained: false,
            number: self.consumers.fetch_add(1, Relaxed),
            echoes: Arc::clone(&self.echoes),
            deal: Arc::new(Deal {
                lie: self.lie,
                broker: self.inner.clone(),
                source: to.source.clone(),
                revoked: AtomicBool::new(false),
                blocked: Mutex::new(None),
            }),
        }))
    }
}

/// Answers every subscription with an error of one kind, as an adapter with a wrong setting does.
#[derive(Debug)]
pub struct RefusingBroker {
    /// The kind.
    pub kind: ErrorKind,
}

#[async_trait]
impl Broker for RefusingBroker {
    fn name(&self) -> &'static str {
        "refusing"
    }

    fn capabilities(&self) -> Capabilities {
        MemoryBroker::new().capabilities()
    }

    async fn subscribe(&self, _to: &Subscription) -> Result<Box<dyn Consumer>, BrokerError> {
        Err(BrokerError::new(self.kind, "subscribe", "set up wrongly on purpose"))
    }
}

/// What a consumer and its deliveries share.
#[derive(Debug)]
struct Deal {
    lie: Lie,
    broker: MemoryBroker,
    source: String,
    /// For [`Lie::DrainRevokes`].
    revoked: AtomicBool,
    /// For [`Lie::NackBlocksEverything`].
    blocked: Mutex<Option<Instant>>,
}

#[derive(Debug)]
struct Echo {
    holder: u64,
    source: String,
    message: Message,
}

struct LyingConsumer {
    inner: Box<dyn Consumer>,
    /// For [`Lie::KeepsWhatItFetched`].
    fetched: Vec<Delivery>,
    drained: bool,
    number: u64,
    echoes: Arc<Mutex<Vec<Echo>>>,
    deal: Arc<Deal>,
}

#[async_trait]
impl Consumer for LyingConsumer {
    async fn receive(&mut self, max: NonZeroUsize) -> Result<Vec<Delivery>, BrokerError> {
        let max = match self.deal.lie {
            Lie::MoreThanMax => max.saturating_add(1),
            _ => max,
        };
        let mut deliveries = match self.deal.lie {
            Lie::SharesMessages if let Some(echo) = self.echo() => return Ok(vec![echo]),
            Lie::AnswersWithNone => match once(self.inner.receive(max)).await {
                Poll::Ready(answer) => answer?,
                Poll::Pending => Vec::new(),
            },
            Lie::EndsEarly if self.deal.broker.is_closed(&self.deal.source) => {
                match once(self.inner.receive(max)).await {
                    Poll::Ready(answer) => answer?,
                    Poll::Pending => return Err(BrokerError::ended()),
                }
            }
            Lie::LosesOnCancel => {
                let mut kept = Kept(self.inner.receive(max).await?);
                yield_now().await;
                mem::take(&mut kept.0)
            }
            Lie::KeepsWhatItFetched => {
                if self.fetched.is_empty() {
                    self.fetched = self.inner.receive(WINDOW).await?;
                }
                let count = max.get().min(self.fetched.len());
                self.fetched.drain(..count).collect()
            }
            Lie::NackBlocksEverything => {
                let blocked = *lock(&self.deal.blocked);
                if let Some(until) = blocked {
                    sleep_until(until).await;
                }
                self.inner.receive(max).await?
            }
            _ => self.inner.receive(max).await?,
        };
        if self.deal.lie == Lie::Reorders {
            deliveries.reverse();
        }
        Ok(deliveries.into_iter().map(|delivery| self.disguise(delivery)).collect())
    }

    async fn drain(&mut self) -> Result<(), BrokerError> {
        match self.deal.lie {
            Lie::InflowAfterDrain => return Ok(()),
            Lie::SecondDrainFails if self.drained => {
                return Err(BrokerError::new(ErrorKind::Unavailable, "drain", "drained already"));
            }
            Lie::DrainRevokes => self.deal.revoked.store(true, Relaxed),
            _ => {}
        }
        self.drained = true;
        self.inner.drain().await
    }
}

impl LyingConsumer {
    fn disguise(&self, delivery: Delivery) -> Delivery {
        if self.deal.lie == Lie::SharesMessages {
            lock(&self.echoes).push(Echo {
                holder: self.number,
                source: self.deal.source.clone(),
                message: delivery.message().clone(),
            });
        }
        let attempt = delivery.attempt();
        let message = message::distorted(self.deal.lie, delivery.message().clone(), attempt);
        Delivery::new(message, attempt, Box::new(LyingHandle::new(delivery, Arc::clone(&self.deal))))
    }

    /// What another living consumer of this source holds or held.
    fn echo(&self) -> Option<Delivery> {
        let mut echoes = lock(&self.echoes);
        let other = |echo: &Echo| echo.holder != self.number && echo.source == self.deal.source;
        let at = echoes.iter().position(other)?;
        Some(Delivery::new(echoes.swap_remove(at).message, Attempt::Unknown, Box::new(EchoHandle)))
    }
}

impl Drop for LyingConsumer {
    fn drop(&mut self) {
        // In the queue's eyes a delivery that is never dropped is held for ever.
        mem::take(&mut self.fetched).into_iter().for_each(mem::forget);
        lock(&self.echoes).retain(|echo| echo.holder != self.number);
    }
}

/// Deliveries that are lost when this is dropped before they are taken out.
struct Kept(Vec<Delivery>);

impl Drop for Kept {
    fn drop(&mut self) {
        mem::take(&mut self.0).into_iter().for_each(mem::forget);
    }
}

/// Polls a future once.
async fn once<F: Future>(future: F) -> Poll<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
}

/// The answer of a future that is ready at once, as those of the memory broker are.
fn now<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const WINDOW: NonZeroUsize = NonZeroUsize::new(64).expect("64 is not zero");
