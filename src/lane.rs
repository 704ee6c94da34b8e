//! Lanes: messages of one order key go one after the other, in the order in which they came.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::oneshot;

use crate::lock::lock;

type Waiting = VecDeque<oneshot::Sender<()>>;

/// The lanes of one flow. A lane exists while somebody is in it.
#[derive(Debug, Default)]
pub(crate) struct Lanes(Mutex<HashMap<Arc<str>, Waiting>>);

/// A place in a lane. Dropping it lets the next one go.
#[derive(Debug)]
pub(crate) struct Place {
    lanes: Arc<Lanes>,
    key: Arc<str>,
    turn: Option<oneshot::Receiver<()>>,
}

impl Lanes {
    /// Takes the last place in the lane. Not `async`: the order of the calls is the order of the lane.
    pub(crate) fn enter(self: &Arc<Self>, key: &str) -> Place {
        let key: Arc<str> = key.into();
        let mut lanes = self.lock();
        let turn = match lanes.get_mut(&key) {
            None => {
                lanes.insert(Arc::clone(&key), Waiting::new());
                None
            }
            Some(waiting) => {
                let (send, receive) = oneshot::channel();
                waiting.push_back(send);
                Some(receive)
            }
        };
        Place { lanes: Arc::clone(self), key, turn }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Waiting>> {
        lock(&self.0)
    }
}

impl Place {
    /// Whether it is this one's turn already.
    pub(crate) fn is_first(&self) -> bool {
        self.turn.is_none()
    }

    /// Waits for the turn. Cancel-safe.
    pub(crate) async fn turn(&mut self) {
        if let Some(turn) = &mut self.turn {
            // An error would mean that the lane is gone, which cannot be while this place is in it.
            let _ = turn.await;
            self.turn = None;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut lanes = self.lanes.lock();
        if let Some(turn) = &mut self.turn {
            // Turns are given under the lock: either it has come, and is passed on below, or the sender finds this
            // receiver gone and goes on to the next.
            if turn.try_recv().is_err() {
                turn.close();
                return;
            }
        }
        let Some(waiting) = lanes.get_mut(&self.key) else { return };
        while let Some(next) = waiting.pop_front() {
            if next.send(()).is_ok() {
                return;
            }
        }
        lanes.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lane_goes_in_order_and_other_lanes_do_not_wait() {
        let lanes = Arc::new(Lanes::default());
        let first = lanes.enter("a");
        let mut second = lanes.enter("a");
        let mut third = lanes.enter("a");
        assert!(first.is_first() && !second.is_first() && lanes.enter("b").is_first());
        assert!(futures_util::poll!(Box::pin(second.turn())).is_pending());
        drop(first);
        second.turn().await;
        assert!(futures_util::poll!(Box::pin(third.turn())).is_pending());
        drop(second);
        third.turn().await;
        drop(third);
        assert!(lanes.lock().is_empty());
    }

    #[tokio::test]
    async fn one_that_leaves_while_waiting_or_unseen_with_its_turn_stops_nobody() {
        let lanes = Arc::new(Lanes::default());
        let first = lanes.enter("a");
        let leaves_early = lanes.enter("a");
        let leaves_with_its_turn = lanes.enter("a");
        let mut last = lanes.enter("a");
        drop(leaves_early);
        drop(first);
        drop(leaves_with_its_turn);
        last.turn().await;
        drop(last);
        assert!(lanes.lock().is_empty());
    }
}
