//! The state machine behind a key, once for all stores that hold it in this process. Pure: `now` is an argument.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{
    Claim, ClaimOutcome, ClaimRef, ClaimRequest, Entry, EntryState, Record, Release, Takeover, Token,
};
use crate::clock::Timestamp;
use crate::fingerprint::Fingerprint;

/// The most bytes of a note that are kept.
const NOTE_LIMIT: usize = 1024;

/// All that a store keeps under a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) state: State,
    /// Whose claim it is or, when it is over, was: so that a repeated call is recognised.
    pub(crate) token: Token,
    pub(crate) owner: Arc<str>,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) attempt: u32,
    /// Tries in a row that started and never ended, the present one not included.
    pub(crate) crashes: u32,
    pub(crate) kept: Option<Bytes>,
    pub(crate) note: Option<String>,
    pub(crate) expires: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    Claimed { until: Timestamp, started: bool },
    Released,
    Completed(Record),
    InDoubt,
}

/// The token does not hold the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lost;

/// Whether what is on record still counts.
pub(crate) fn is_live(row: &Row, now: Timestamp) -> bool {
    let claimed = matches!(row.state, State::Claimed { until, .. } if until > now);
    claimed || row.expires > now
}

/// Answers a claim, and what to put on record in the place of `row` (`None` = leave it).
pub(crate) fn claim(
    row: Option<&Row>,
    request: &ClaimRequest,
    now: Timestamp,
) -> (ClaimOutcome, Option<Row>) {
    let Some(row) = row.filter(|row| is_live(row, now)) else {
        return grant(request, now, Row::fresh(request), 1, None);
    };
    if row.fingerprint != request.fingerprint {
        return (ClaimOutcome::Mismatch, None);
    }
    match &row.state {
        State::Completed(record) => (ClaimOutcome::Completed(record.clone()), None),
        State::InDoubt => {
            let note = row.note.clone().unwrap_or_default();
            (ClaimOutcome::InDoubt { note, attempt: row.attempt }, None)
        }
        State::Released => grant(request, now, row.clone(), row.attempt + 1, None),
        // Our own claim, whose answer was lost on the way.
        State::Claimed { .. } if row.token == request.token => {
            grant(request, now, row.clone(), row.attempt, None)
        }
        State::Claimed { until, .. } if *until > now => {
            let outcome =
                ClaimOutcome::InProgress { remaining: until.remaining(now), owner: Arc::clone(&row.owner) };
            (outcome, None)
        }
        State::Claimed { started, .. } => {
            let takeover = Takeover { from: Arc::clone(&row.owner), started: *started };
            let mut row = row.clone();
            row.crashes += u32::from(takeover.started);
            let attempt = row.attempt + 1;
            grant(request, now, row, attempt, Some(takeover))
        }
    }
}

fn grant(
    request: &ClaimRequest,
    now: Timestamp,
    mut row: Row,
    attempt: u32,
    took_over: Option<Takeover>,
) -> (ClaimOutcome, Option<Row>) {
    row.state = State::Claimed { until: now.plus(request.lease), started: request.starts };
    row.token = request.token;
    row.owner = Arc::clone(&request.owner);
    row.attempt = attempt;
    row.expires = now.plus(request.retention.max(request.lease));
    let claim = Claim {
        held: ClaimRef { key: request.key.clone(), token: request.token },
        attempt,
        crashes: row.crashes,
        took_over,
        kept: row.kept.clone(),
    };
    (ClaimOutcome::Claimed(claim), Some(row))
}

impl Row {
    fn fresh(request: &ClaimRequest) -> Self {
        Self {
            state: State::Released,
            token: request.token,
            owner: Arc::clone(&request.owner),
            fingerprint: request.fingerprint,
            attempt: 0,
            crashes: 0,
            kept: None,
            note: None,
            expires: Timestamp::from_millis(0),
        }
    }

    fn holds(&self, token: Token) -> bool {
        self.token == token && matches!(self.state, State::Claimed { .. })
    }

    /// An expired claim that nobody took over is still its owner's.
    pub(crate) fn renew(&mut self, token: Token, lease: Duration, now: Timestamp) -> Result<(), Lost> {
        match &mut self.state {
            State::Claimed { until, .. } if self.token == token => {
                *until = now.plus(lease);
                self.expires = self.expires.max(*until);
                Ok(())
            }
            _ => Err(Lost),
        }
    }

    pub(crate) fn keep(&mut self, token: Token, result: &Bytes) -> Result<(), Lost> {
        if !self.holds(token) {
            return Err(Lost);
        }
        self.kept = Some(result.clone());
        Ok(())
    }

    pub(crate) fn complete(
        &mut self,
        token: Token,
        record: &Record,
        retention: Duration,
        now: Timestamp,
    ) -> Result<(), Lost> {
        match &self.state {
            State::Claimed { .. } if self.token == token => {}
            // Repeated, because the first answer was lost.
            State::Completed(_) if self.token == token => return Ok(()),
            _ => return Err(Lost),
        }
        self.state = State::Completed(record.clone());
        self.kept = None;
        self.crashes = 0;
        self.expires = now.plus(retention);
        Ok(())
    }

    pub(crate) fn release(&mut self, token: Token, how: Release) -> Result<(), Lost> {
        match &self.state {
            State::Claimed { .. } if self.token == token => {}
            State::Released if self.token == token => return Ok(()),
            _ => return Err(Lost),
        }
        self.state = State::Released;
        if how.started {
            self.crashes = 0;
        }
        if !how.counted {
            self.attempt = self.attempt.saturating_sub(1);
        }
        if let Some(note) = how.note {
            self.note = Some(cut(note));
        }
        Ok(())
    }

    pub(crate) fn doubt(&mut self, token: Token, note: &str) -> Result<(), Lost> {
        match &self.state {
            State::Claimed { .. } if self.token == token => {}
            State::InDoubt if self.token == token => return Ok(()),
            _ => return Err(Lost),
        }
        self.state = State::InDoubt;
        self.note = Some(cut(note.to_owned()));
        Ok(())
    }

    /// For operators: frees what is in doubt or dead; `false` when it is neither.
    pub(crate) fn release_if_dead(&mut self, now: Timestamp) -> bool {
        match &self.state {
            State::InDoubt => {}
            State::Claimed { until, .. } if *until <= now => {}
            _ => return false,
        }
        self.state = State::Released;
        self.crashes = 0;
        true
    }

    pub(crate) fn entry(&self, now: Timestamp) -> Entry {
        let state = match &self.state {
            State::Claimed { until, started } => EntryState::InProgress {
                owner: Arc::clone(&self.owner),
                remaining: until.remaining(now),
                started: *started,
            },
            State::Released => EntryState::Released,
            State::Completed(record) => EntryState::Completed(record.clone()),
            State::InDoubt => EntryState::InDoubt,
        };
        Entry { state, attempt: self.attempt, retained: self.expires.remaining(now), note: self.note.clone() }
    }
}

fn cut(mut note: String) -> String {
    if note.len() > NOTE_LIMIT {
        let at = (0..=NOTE_LIMIT).rev().find(|at| note.is_char_boundary(*at)).unwrap_or(0);
        note.truncate(at);
    }
    note
}
