//! The one thread that reads and writes: group commit.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rusqlite::{Connection, ErrorCode};
use tokio::sync::oneshot;

use super::super::admin::Stats;
use super::super::state::{self, Lost, Row};
use super::super::{ClaimOutcome, ClaimRef, ClaimRequest, Entry, Record, Release, Renewal, StoreError};
use super::rows::{self, ReadError};
use super::{refused, schema};
use crate::clock::{Clock, Timestamp};
use crate::key::IdempotencyKey;

/// The most requests in one transaction.
const GROUP: usize = 256;
/// How often what is past its retention is looked for, and how many rows are looked at then.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
const SWEEP_ROWS: i64 = 2_000;

#[derive(Debug)]
pub(super) struct Request {
    pub(super) op: Op,
    pub(super) reply: oneshot::Sender<Result<Reply, StoreError>>,
}

#[derive(Debug)]
pub(super) enum Op {
    Claim(ClaimRequest),
    Renew(Vec<ClaimRef>, Duration),
    Keep(ClaimRef, Bytes),
    Complete(ClaimRef, Record, Duration),
    Release(ClaimRef, Release),
    Doubt(ClaimRef, String),
    Get(IdempotencyKey),
    Ping,
    List { prefix: String, after: Option<IdempotencyKey>, limit: usize },
    ReleaseIfDead(IdempotencyKey),
    Forget(IdempotencyKey),
    Purge,
    Clear,
    Stats,
}

#[derive(Debug)]
pub(super) enum Reply {
    Done,
    Claim(ClaimOutcome),
    Renewals(Vec<Renewal>),
    Entry(Option<Entry>),
    List(Vec<(IdempotencyKey, Entry)>),
    Count(u64),
    Stats(Stats),
}

impl Reply {
    pub(super) fn unexpected(self, path: &Path) -> StoreError {
        refused(path, &format!("answered {self:?} to another question"))
    }
}

struct Writer<'a> {
    connection: &'a Connection,
    clock: &'a dyn Clock,
    epoch: i64,
    path: &'a Path,
    /// Set when a commit failed in a way after which nobody knows what is on disk: nothing is answered any more.
    broken: Option<String>,
    sweep_from: i64,
}

/// Runs until every sender is gone.
pub(super) fn run(
    connection: &Connection,
    queue: &Receiver<Request>,
    clock: &dyn Clock,
    epoch: i64,
    path: &Path,
) {
    let mut writer = Writer { connection, clock, epoch, path, broken: None, sweep_from: 0 };
    let mut next_sweep = Instant::now() + SWEEP_EVERY;
    let mut group = Vec::with_capacity(GROUP);
    loop {
        match queue.recv_timeout(next_sweep.saturating_duration_since(Instant::now())) {
            Ok(first) => group.push(first),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        // Whatever came while the last group was flushed goes with this one.
        while group.len() < GROUP
            && let Ok(next) = queue.try_recv()
        {
            group.push(next);
        }
        if !group.is_empty() {
            writer.commit_group(&mut group);
        }
        if Instant::now() >= next_sweep {
            writer.sweep();
            next_sweep = Instant::now() + SWEEP_EVERY;
        }
    }
}

impl Writer<'_> {
    /// Works the group off in one transaction and answers when it is on disk.
    fn commit_group(&mut self, group: &mut Vec<Request>) {
        if let Some(reason) = &self.broken {
            for request in group.drain(..) {
                let _ = request.reply.send(Err(refused(self.path, reason)));
            }
            return;
        }
        let outcome = self.transaction(group);
        match outcome {
            Ok(answers) => {
                for (request, answer) in group.drain(..).zip(answers) {
                    let _ = request.reply.send(answer);
                }
            }
            Err(error) => {
                if !self.connection.is_autocommit() {
                    let _ = self.connection.execute_batch("ROLLBACK");
                }
                let text = schema::explain(&error);
                if is_lasting(&error) {
                    self.broken =
                        Some(format!("{text}; what is on disk is unknown, start the process again"));
                }
                for request in group.drain(..) {
                    let _ = request.reply.send(Err(refused(self.path, &text)));
                }
            }
        }
    }

    fn transaction(&self, group: &[Request]) -> rusqlite::Result<Vec<Result<Reply, StoreError>>> {
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let now = self.clock.now();
        let mut answers = Vec::with_capacity(group.len());
        for request in group {
            match self.answer(&request.op, now) {
                Ok(reply) => answers.push(Ok(reply)),
                Err(Trouble::OfTheRequest(error)) => answers.push(Err(error)),
                Err(Trouble::OfTheFile(error)) => return Err(error),
            }
        }
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        Ok(answers)
    }

    fn answer(&self, op: &Op, now: Timestamp) -> Result<Reply, Trouble> {
        match op {
            Op::Claim(request) => {
                let row = self.read(&request.key)?;
                let (outcome, row) = state::claim(row.as_ref(), request, now);
                if let Some(row) = row {
                    self.write(&request.key, &row)?;
                }
                Ok(Reply::Claim(outcome))
            }
            Op::Renew(claims, lease) => {
                let mut renewals = Vec::with_capacity(claims.len());
                for claim in claims {
                    renewals.push(match self.change(claim, |row| row.renew(claim.token, *lease, now)) {
                        Ok(_) => Renewal::Renewed,
                        Err(Trouble::OfTheRequest(_)) => Renewal::Lost,
                        Err(error) => return Err(error),
                    });
                }
                Ok(Reply::Renewals(renewals))
            }
            Op::Keep(claim, result) => self.change(claim, |row| row.keep(claim.token, result)),
            Op::Complete(claim, record, retention) => {
                self.change(claim, |row| row.complete(claim.token, record, *retention, now))
            }
            Op::Release(claim, how) => self.change(claim, |row| row.release(claim.token, how.clone())),
            Op::Doubt(claim, note) => self.change(claim, |row| row.doubt(claim.token, note)),
            Op::Get(key) => {
                let row = self.read(key)?.filter(|row| state::is_live(row, now));
                Ok(Reply::Entry(row.map(|row| row.entry(now))))
            }
            Op::Ping => Ok(Reply::Done),
            Op::List { prefix, after, limit } => self.list(prefix, after.as_ref(), *limit, now),
            Op::ReleaseIfDead(key) => {
                let Some(mut row) = self.read(key)?.filter(|row| state::is_live(row, now)) else {
                    return Ok(Reply::Count(0));
                };
                let released = row.release_if_dead(now);
                if released {
                    self.write(key, &row)?;
                }
                Ok(Reply::Count(u64::from(released)))
            }
            Op::Forget(key) => self.count("DELETE FROM records WHERE key = ?1", [key.as_str()]),
            Op::Purge => self.count(
                "DELETE FROM records WHERE expires_at <= ?1 AND NOT (state = 'claimed' AND lease_until > ?1)",
                [now.as_millis()],
            ),
            Op::Clear => self.count("DELETE FROM records", []),
            Op::Stats => self.stats(now),
        }
    }

    fn read(&self, key: &IdempotencyKey) -> Result<Option<Row>, Trouble> {
        rows::read(self.connection, key.as_str(), self.epoch).map_err(|error| Trouble::of(error, key))
    }

    fn write(&self, key: &IdempotencyKey, row: &Row) -> Result<(), Trouble> {
        rows::write(self.connection, key.as_str(), row, self.epoch).map_err(Trouble::OfTheFile)
    }

    fn change(
        &self,
        claim: &ClaimRef,
        change: impl FnOnce(&mut Row) -> Result<(), Lost>,
    ) -> Result<Reply, Trouble> {
        let lost = || Trouble::OfTheRequest(StoreError::LostOwnership { key: claim.key.clone() });
        let mut row = self.read(&claim.key)?.ok_or_else(lost)?;
        change(&mut row).map_err(|Lost| lost())?;
        self.write(&claim.key, &row)?;
        Ok(Reply::Done)
    }

    fn count<P: rusqlite::Params>(&self, sql: &str, params: P) -> Result<Reply, Trouble> {
        let changed = self.connection.prepare_cached(sql)?.execute(params)?;
        Ok(Reply::Count(changed as u64))
    }

    fn list(
        &self,
        prefix: &str,
        after: Option<&IdempotencyKey>,
        limit: usize,
        now: Timestamp,
    ) -> Result<Reply, Trouble> {
        let after = after.map(IdempotencyKey::as_str);
        let rows = match rows::list(self.connection, prefix, after, limit, self.epoch) {
            Ok(rows) => rows,
            Err(ReadError::Sqlite(error)) => return Err(error.into()),
            Err(ReadError::Unreadable(reason)) => {
                return Err(Trouble::OfTheRequest(refused(
                    self.path,
                    &format!("a row under {prefix}: {reason}"),
                )));
            }
        };
        let live = rows.into_iter().filter(|(_, row)| state::is_live(row, now));
        let keyed =
            live.filter_map(|(key, row)| Some((IdempotencyKey::verbatim(&key).ok()?, row.entry(now))));
        Ok(Reply::List(keyed.collect()))
    }

    fn stats(&self, now: Timestamp) -> Result<Reply, Trouble> {
        let mut stats = Stats::default();
        let mut statement = self.connection.prepare_cached(
            "SELECT state, count(*) FROM records
             WHERE expires_at > ?1 OR (state = 'claimed' AND lease_until > ?1) GROUP BY state",
        )?;
        let mut rows = statement.query([now.as_millis()])?;
        while let Some(row) = rows.next()? {
            let count = u64::try_from(row.get::<_, i64>(1)?).unwrap_or(0);
            match row.get::<_, String>(0)?.as_str() {
                "claimed" => stats.in_progress += count,
                "released" => stats.released += count,
                "declined" => stats.declined += count,
                "in_doubt" => stats.in_doubt += count,
                _ => stats.succeeded += count,
            }
        }
        Ok(Reply::Stats(stats))
    }

    /// Forgets some of what is past its retention. Rows lie in the order in which they were made, so walking along the row
    /// ids finds them without an index that every claim would have to keep up.
    fn sweep(&mut self) {
        if self.broken.is_some() {
            return;
        }
        let now = self.clock.now().as_millis();
        let upper = self.sweep_from + SWEEP_ROWS;
        let swept = self.connection.prepare_cached(
            "DELETE FROM records WHERE rowid > ?1 AND rowid <= ?2 AND expires_at <= ?3
             AND NOT (state = 'claimed' AND lease_until > ?3)",
        );
        let swept = swept.and_then(|mut statement| statement.execute((self.sweep_from, upper, now)));
        let last: rusqlite::Result<Option<i64>> =
            self.connection.query_row("SELECT max(rowid) FROM records", [], |row| row.get(0));
        match (swept, last) {
            (Ok(_), Ok(Some(last))) if upper < last => self.sweep_from = upper,
            (Ok(_), Ok(_)) => self.sweep_from = 0,
            (Err(error), _) | (_, Err(error)) => {
                tracing::warn!(path = %self.path.display(), %error, "old records could not be forgotten");
            }
        }
    }
}

enum Trouble {
    /// Only this request fails.
    OfTheRequest(StoreError),
    /// The whole group fails.
    OfTheFile(rusqlite::Error),
}

impl Trouble {
    fn of(error: ReadError, key: &IdempotencyKey) -> Self {
        match error {
            ReadError::Sqlite(error) => error.into(),
            ReadError::Unreadable(reason) => {
                Self::OfTheRequest(StoreError::Unreadable { key: key.clone(), reason })
            }
        }
    }
}

impl From<rusqlite::Error> for Trouble {
    fn from(error: rusqlite::Error) -> Self {
        Self::OfTheFile(error)
    }
}

/// A full disk passes; a flush that failed does not, since the system may have dropped what it could not write.
fn is_lasting(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::SystemIoFailure | ErrorCode::DatabaseCorrupt))
}
