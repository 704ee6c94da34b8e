//! The memory broker passes the whole kit, and the kit finds each lie of an adapter in the cases that name it.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use ackord_broker::conformance::faulty::{Lie, LyingBroker, RefusingBroker};
use ackord_broker::conformance::{
    BrokerHarness, Disruption, Misuse, Parked, Supported, case_names, not_applicable, run_case, trials,
};
use ackord_broker::memory::MemoryBroker;
use ackord_broker::{Broker, ErrorKind, Message, Subscription};
use async_trait::async_trait;
use libtest_mimic::{Arguments, Trial};
use tokio::runtime::{Builder, Runtime};

fn main() -> ExitCode {
    let mut tests = trials(Arc::new(MemoryHarness::honest(None)), "memory");
    tests.extend(trials(Arc::new(MemoryHarness::honest(Some(LEASE))), "memory_with_lease"));
    tests.extend(LIES.iter().map(|(lie, lease, expected)| {
        Trial::test(format!("the_kit_finds::{lie:?}"), move || Ok(found_out(*lie, *lease, expected)?))
    }));
    tests.push(Trial::test("the_kit_finds::every_case_is_the_undoing_of_a_lie", || {
        Ok(every_case_can_fail()?)
    }));
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

/// Each lie, whether it takes a lease to tell it, and exactly the cases that fail.
const LIES: &[(Lie, Option<Duration>, &[&str])] = &[
    (
        Lie::AcksOnDrop,
        None,
        &[
            "the_id_stays_the_same_on_redelivery",
            "a_position_names_one_message_for_good",
            "an_acked_message_is_gone",
            "a_rejected_message_is_not_seen_again",
            "a_dropped_delivery_comes_back",
            "settling_the_last_first_and_dying_replays_what_was_open",
            "what_was_open_reaches_another_consumer",
        ],
    ),
    (
        Lie::ForgetsOnNack,
        None,
        &[
            "a_finite_source_ends_only_when_everything_is_settled",
            "a_nacked_message_comes_back",
            "a_delay_is_a_lower_bound",
        ],
    ),
    (Lie::IgnoresDelay, None, &["a_delay_is_a_lower_bound"]),
    (Lie::NackBlocksEverything, None, &["a_nack_blocks_only_its_own_key"]),
    (
        Lie::RejectsWithoutParking,
        None,
        &["a_rejected_message_is_parked_with_its_reason", "a_missing_dead_letter_place_never_acknowledges"],
    ),
    (Lie::ChangesTheReason, None, &["a_rejected_message_is_parked_with_its_reason"]),
    (Lie::RejectedComesBack, None, &["a_rejected_message_is_not_seen_again"]),
    (Lie::ClaimsToHaveParked, None, &["a_missing_dead_letter_place_never_acknowledges"]),
    (Lie::Reorders, None, &["messages_arrive_in_the_declared_order"]),
    (Lie::SharesMessages, None, &["two_consumers_never_hold_one_message_at_once"]),
    (
        Lie::AckDoesNotRemove,
        None,
        &["a_finite_source_ends_only_when_everything_is_settled", "an_acked_message_is_gone"],
    ),
    (Lie::DropsRepeatedHeaders, None, &["repeated_headers_arrive_in_order"]),
    (
        Lie::ReversesHeaders,
        None,
        &[
            "headers_arrive_unchanged_and_in_order",
            "repeated_headers_arrive_in_order",
            "a_null_header_arrives_null_and_not_empty",
        ],
    ),
    (Lie::NullHeaderBecomesEmpty, None, &["a_null_header_arrives_null_and_not_empty"]),
    (Lie::HeadersBecomeText, None, &["a_binary_header_arrives_unchanged"]),
    (Lie::NullBecomesEmpty, None, &["a_missing_body_arrives_missing_and_not_empty"]),
    (Lie::EmptyBecomesNull, None, &["an_empty_body_arrives_empty"]),
    (Lie::BodyBecomesText, None, &["a_binary_body_arrives_unchanged"]),
    (Lie::TrimsTheBody, None, &["a_text_body_arrives_unchanged"]),
    (Lie::LosesRecordKey, None, &["a_record_key_arrives_unchanged"]),
    (Lie::IdChanges, None, &["the_id_stays_the_same_on_redelivery"]),
    (Lie::PositionChanges, None, &["a_position_names_one_message_for_good"]),
    (Lie::MoreThanMax, None, &["receive_hands_out_at_most_max"]),
    (Lie::AnswersWithNone, None, &["receive_waits_for_a_message_instead_of_answering_with_none"]),
    (
        Lie::LosesOnCancel,
        None,
        &["a_cancelled_receive_loses_nothing", "two_consumers_never_hold_one_message_at_once"],
    ),
    (
        Lie::KeepsWhatItFetched,
        None,
        &[
            "what_was_open_reaches_another_consumer",
            "a_dropped_consumer_gives_back_what_it_had_fetched",
            "a_cut_connection_loses_nothing",
        ],
    ),
    (Lie::EndsEarly, None, &["a_finite_source_ends_only_when_everything_is_settled"]),
    (Lie::InflowAfterDrain, None, &["drain_stops_the_inflow"]),
    (Lie::SecondDrainFails, None, &["draining_twice_is_fine"]),
    (Lie::DrainRevokes, None, &["open_deliveries_still_settle_after_drain", "draining_twice_is_fine"]),
    (Lie::ForgetsInAnOutage, None, &["a_cut_connection_loses_nothing"]),
    (Lie::LateSettleSucceeds, Some(LEASE), &["settling_after_the_lease_says_lost_and_changes_nothing"]),
    (
        Lie::IgnoresExtend,
        Some(LEASE),
        &[
            "an_extended_lease_keeps_the_message_hidden",
            "settling_after_the_lease_says_lost_and_changes_nothing",
        ],
    ),
    (
        Lie::SwapsErrorKinds,
        None,
        &["a_wrong_password_is_refused_for_good", "a_refused_connection_may_work_later"],
    ),
];

/// Runs the whole kit on a lying adapter.
fn found_out(lie: Lie, lease: Option<Duration>, expected: &[&str]) -> Result<(), String> {
    let mut wrong = Vec::new();
    for case in case_names() {
        // A new broker for each case: what one left behind must not fail the next.
        let harness: Arc<dyn BrokerHarness> = Arc::new(MemoryHarness::lying(lie, lease));
        let should_fail = expected.contains(&case);
        if let Some(why) = not_applicable(&*harness, case) {
            if should_fail {
                wrong.push(format!("{case} does not apply: {why}"));
            }
            continue;
        }
        match run_case(&harness, case) {
            Ok(()) if should_fail => wrong.push(format!("{case} passed")),
            Err(error) if !should_fail => wrong.push(format!("{case} failed: {error}")),
            _ => {}
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// A case that no lie fails shows nothing. The three that need a server that freezes, restarts or moves partitions
/// are exercised by the adapters that have one.
fn every_case_can_fail() -> Result<(), String> {
    let harness = MemoryHarness::honest(Some(LEASE));
    let idle: Vec<_> = case_names()
        .filter(|case| not_applicable(&harness, case).is_none())
        .filter(|case| !LIES.iter().any(|(_, _, expected)| expected.contains(case)))
        .collect();
    if idle.is_empty() { Ok(()) } else { Err(format!("no lie fails {idle:?}")) }
}

/// Queues in memory on paused time: waits cost nothing and come out the same each time.
struct MemoryHarness {
    memory: MemoryBroker,
    /// What the cases see.
    broker: Arc<dyn Broker>,
    lie: Option<Lie>,
    sources: AtomicU64,
}

impl MemoryHarness {
    fn honest(lease: Option<Duration>) -> Self {
        let memory = lease.map_or_else(MemoryBroker::new, MemoryBroker::with_lease);
        let broker = Arc::new(memory.clone());
        Self { memory, broker, lie: None, sources: AtomicU64::new(0) }
    }

    fn lying(lie: Lie, lease: Option<Duration>) -> Self {
        let honest = Self::honest(lease);
        let broker = Arc::new(LyingBroker::new(honest.memory.clone(), lie));
        Self { broker, lie: Some(lie), ..honest }
    }
}

#[async_trait]
impl BrokerHarness for MemoryHarness {
    fn broker(&self) -> Arc<dyn Broker> {
        Arc::clone(&self.broker)
    }

    async fn fresh_source(&self, case: &str) -> Subscription {
        Subscription::new(format!("{case}-{}", self.sources.fetch_add(1, Relaxed)))
    }

    async fn publish(&self, to: &Subscription, messages: Vec<Message>) {
        self.memory.publish_all(&to.source, messages);
    }

    async fn parked(&self, of: &Subscription) -> Vec<Parked> {
        let dead = self.memory.dead_letters(&of.source).into_iter();
        dead.map(|(message, rejection)| Parked { message, reason: rejection.reason.to_string() }).collect()
    }

    fn supports(&self, how: Disruption) -> bool {
        matches!(how, Disruption::CutConnection | Disruption::LoseDeadLetters)
    }

    async fn disrupt(&self, source: &Subscription, how: Disruption) -> Supported {
        match how {
            Disruption::CutConnection => self.memory.set_available(false),
            Disruption::LoseDeadLetters => self.memory.set_dead_letters_available(&source.source, false),
            Disruption::RestartServer | Disruption::Rebalance | Disruption::Freeze => {
                return Supported::No("memory has no server".into());
            }
        }
        Supported::Yes
    }

    async fn restore(&self, source: &Subscription, _how: Disruption) {
        self.memory.set_available(true);
        self.memory.set_dead_letters_available(&source.source, true);
    }

    fn misconfigured(&self, how: Misuse) -> Option<Arc<dyn Broker>> {
        let swapped = self.lie == Some(Lie::SwapsErrorKinds);
        let kind = match (how, swapped) {
            (Misuse::WrongPassword, false) | (Misuse::RefusedConnection, true) => ErrorKind::Refused,
            (Misuse::RefusedConnection, false) | (Misuse::WrongPassword, true) => ErrorKind::Unavailable,
        };
        Some(Arc::new(RefusingBroker { kind }))
    }

    fn finite(&self) -> bool {
        true
    }

    async fn finish(&self, source: &Subscription) {
        self.memory.close(&source.source);
    }

    fn runtime(&self) -> io::Result<Runtime> {
        Builder::new_current_thread().enable_all().start_paused(true).build()
    }
}

const LEASE: Duration = Duration::from_secs(30);
