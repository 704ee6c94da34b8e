//! Single flight inside one process: whoever comes second for a key waits for the first instead of asking the store.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use crate::fingerprint::Fingerprint;
use crate::key::IdempotencyKey;
use crate::lock::lock;

const SHARDS: usize = 16;

/// The keys that this process is working on.
#[derive(Debug)]
pub(crate) struct Flights {
    shards: [Mutex<HashMap<IdempotencyKey, Flight>>; SHARDS],
    hasher: RandomState,
    waiting: Arc<()>,
    limits: WaiterLimits,
}

/// How many may wait; whoever comes beyond that is told that the key is busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WaiterLimits {
    /// For one key.
    pub per_key: usize,
    /// In all.
    pub total: usize,
}

impl Default for WaiterLimits {
    fn default() -> Self {
        Self { per_key: 64, total: 4096 }
    }
}

#[derive(Debug)]
struct Flight {
    fingerprint: Fingerprint,
    /// Made by the first who waits; most flights have nobody.
    landed: Option<watch::Sender<Option<Landing>>>,
}

/// How a flight ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Landing {
    /// There is an outcome on record.
    Settled,
    /// The key is free again.
    Released,
}

/// What a newcomer is told.
#[derive(Debug)]
pub(crate) enum Boarding<'a> {
    /// You are the first.
    Pilot(Pilot<'a>),
    /// Somebody is at it; wait here.
    Passenger(Passenger),
    /// Somebody is at it with other content.
    Mismatch,
    /// Too many wait already.
    Full,
}

impl Flights {
    pub(crate) fn new(limits: WaiterLimits) -> Self {
        Self { shards: Default::default(), hasher: RandomState::new(), waiting: Arc::new(()), limits }
    }

    pub(crate) fn board(&self, key: &IdempotencyKey, fingerprint: Fingerprint) -> Boarding<'_> {
        let shard = self.shard(key);
        match lock(shard).entry(key.clone()) {
            Entry::Vacant(free) => {
                free.insert(Flight { fingerprint, landed: None });
                Boarding::Pilot(Pilot { shard, key: key.clone(), landing: Landing::Released })
            }
            Entry::Occupied(taken) if taken.get().fingerprint != fingerprint => Boarding::Mismatch,
            Entry::Occupied(mut taken) => {
                let landed = taken.get_mut().landed.get_or_insert_with(|| watch::Sender::new(None));
                let in_all = Arc::strong_count(&self.waiting) - 1;
                if landed.receiver_count() >= self.limits.per_key || in_all >= self.limits.total {
                    return Boarding::Full;
                }
                Boarding::Passenger(Passenger {
                    landed: landed.subscribe(),
                    _seat: Arc::clone(&self.waiting),
                })
            }
        }
    }

    fn shard(&self, key: &IdempotencyKey) -> &Mutex<HashMap<IdempotencyKey, Flight>> {
        &self.shards[self.hasher.hash_one(key) as usize % SHARDS]
    }
}

/// The one who runs. Dropping it lets the others go on, also when the run was cancelled or panicked.
#[derive(Debug)]
pub(crate) struct Pilot<'a> {
    shard: &'a Mutex<HashMap<IdempotencyKey, Flight>>,
    key: IdempotencyKey,
    landing: Landing,
}

impl Pilot<'_> {
    /// There is an outcome on record now.
    pub(crate) fn settled(&mut self) {
        self.landing = Landing::Settled;
    }
}

impl Drop for Pilot<'_> {
    fn drop(&mut self) {
        let flight = lock(self.shard).remove(&self.key);
        if let Some(landed) = flight.and_then(|flight| flight.landed) {
            landed.send_replace(Some(self.landing));
        }
    }
}

/// One who waits.
#[derive(Debug)]
pub(crate) struct Passenger {
    landed: watch::Receiver<Option<Landing>>,
    _seat: Arc<()>,
}

impl Passenger {
    pub(crate) async fn landing(mut self) -> Landing {
        match self.landed.wait_for(Option::is_some).await {
            Ok(landing) => landing.unwrap_or(Landing::Released),
            Err(_) => Landing::Released,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> IdempotencyKey {
        IdempotencyKey::verbatim(text).unwrap()
    }

    fn print(text: &str) -> Fingerprint {
        Fingerprint::of_body(Some(text.as_bytes()))
    }

    #[tokio::test]
    async fn the_second_waits_for_the_first_and_learns_how_it_ended() {
        for settled in [true, false] {
            let flights = Flights::new(WaiterLimits::default());
            let Boarding::Pilot(mut pilot) = flights.board(&key("k"), print("a")) else { panic!() };
            let Boarding::Passenger(passenger) = flights.board(&key("k"), print("a")) else { panic!() };
            if settled {
                pilot.settled();
            }
            drop(pilot);
            let expected = if settled { Landing::Settled } else { Landing::Released };
            assert_eq!(passenger.landing().await, expected);
            assert!(matches!(flights.board(&key("k"), print("b")), Boarding::Pilot(_)));
        }
    }

    #[test]
    fn other_content_under_the_same_key_is_a_mismatch_at_once() {
        let flights = Flights::new(WaiterLimits::default());
        let _pilot = flights.board(&key("k"), print("a"));
        assert!(matches!(flights.board(&key("k"), print("b")), Boarding::Mismatch));
    }

    #[test]
    fn waiters_are_capped_per_key_and_in_all() {
        let flights = Flights::new(WaiterLimits { per_key: 2, total: 3 });
        let _pilots = [flights.board(&key("k"), print("a")), flights.board(&key("l"), print("a"))];
        let k = [flights.board(&key("k"), print("a")), flights.board(&key("k"), print("a"))];
        assert!(k.iter().all(|boarding| matches!(boarding, Boarding::Passenger(_))));
        assert!(matches!(flights.board(&key("k"), print("a")), Boarding::Full));
        let _l = flights.board(&key("l"), print("a"));
        assert!(matches!(flights.board(&key("l"), print("a")), Boarding::Full));
        drop(k);
        assert!(matches!(flights.board(&key("l"), print("a")), Boarding::Passenger(_)));
    }
}
