use std::time::Duration;

/// What a broker can do. The worker and the conformance kit read it; nothing is inferred from a broker's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// When an unsettled message is seen again.
    pub redelivery: Redelivery,
    /// The order in which messages arrive while nothing is nacked.
    pub ordering: Ordering,
    /// Where rejected messages end.
    pub dead_letters: DeadLetters,
    /// The delays that a nack can ask for.
    pub delay: DelayBounds,
    /// How long the broker lets us hold a message.
    pub lease: Lease,
    /// Whether [`Origin::position`](crate::Origin::position) names one message for good, so that two deliveries with
    /// the same position are the same message delivered twice.
    pub stable_position: bool,
}

/// When a message that was dropped without being settled is delivered again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::enum_variant_names, reason = "each names the event on which it comes back")]
pub enum Redelivery {
    /// As soon as its delivery is dropped.
    OnDrop,
    /// When its lease has run out, see [`Lease`].
    OnLeaseEnd,
    /// When the consumer closes or its connection breaks.
    OnClose,
}

/// The order of arrival while nothing is nacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ordering {
    /// None that can be relied on.
    None,
    /// Messages of one record key arrive in the order in which they were published.
    PerKey,
    /// All messages of the source arrive in the order in which they were published.
    Total,
}

/// Where rejected messages end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadLetters {
    /// A rejected message is kept with its reason.
    Kept,
    /// The broker cannot keep rejected messages; they are dropped, and the guarantee report says so.
    Dropped,
}

/// The delays that a nack can ask for. A longer one is cut to `max`; the engine asks again when it comes back early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DelayBounds {
    /// The longest delay, zero when the broker knows none.
    pub max: Duration,
}

/// How long the broker lets us hold a message before it gives it to somebody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lease {
    /// For as long as the consumer lives.
    Unlimited,
    /// For this long from receipt, and for as long as [`Settle::extend`](crate::Settle::extend) says after that.
    Renewable(Duration),
    /// For this long from receipt; it cannot be extended.
    Fixed(Duration),
}
