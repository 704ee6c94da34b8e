//! The embedded default: one SQLite file, one process.
//!
//! One thread writes. It takes what is queued, works it off in one transaction, and answers only when that is on disk
//! (`synchronous=FULL`): many callers share one flush. An exclusive lock keeps a second process out, which is also why
//! claims of an earlier life of the process are known to be dead when the file is opened: nobody waits for their lease.

mod rows;
mod schema;
mod writer;

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::oneshot;

use self::writer::{Op, Reply, Request};
use super::admin::{Stats, StoreAdmin};
use super::{
    ClaimOutcome, ClaimRef, ClaimRequest, Durability, Entry, IdempotencyStore, Record, Release, Renewal,
    StoreError,
};
use crate::clock::{Clock, SystemClock};
use crate::key::IdempotencyKey;

/// A store in one SQLite file.
#[derive(Debug)]
pub struct SqliteStore {
    path: PathBuf,
    requests: Option<std::sync::mpsc::Sender<Request>>,
    writer: Option<JoinHandle<()>>,
    /// Held for as long as the store is open.
    _lock: File,
}

impl SqliteStore {
    /// Opens or creates the file, on the system's clock.
    ///
    /// # Errors
    /// [`StoreError::Refused`] with the path, what is wrong with it, and what cures it: another process has it open, the
    /// folder is missing or read-only, the file is not a database or of a newer version.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_with(path, Arc::new(SystemClock::new()))
    }

    /// Opens or creates the file, on that clock.
    ///
    /// # Errors
    /// As [`open`](SqliteStore::open).
    pub fn open_with(path: impl AsRef<Path>, clock: Arc<dyn Clock>) -> Result<Self, StoreError> {
        let path = path.as_ref().to_owned();
        check_place(&path)?;
        let lock = lock_file(&path)?;
        let (connection, epoch) = schema::open(&path).map_err(|reason| refused(&path, &reason))?;
        warn_of_network_file_system(&path);
        let (requests, queue) = std::sync::mpsc::channel();
        let shown = path.clone();
        let writer = std::thread::Builder::new()
            .name("ackord-sqlite".to_owned())
            .spawn(move || writer::run(&connection, &queue, &*clock, epoch, &shown))
            .map_err(|error| refused(&path, &format!("cannot start its thread: {error}")))?;
        Ok(Self { path, requests: Some(requests), writer: Some(writer), _lock: lock })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    async fn ask(&self, op: Op) -> Result<Reply, StoreError> {
        let (reply, answer) = oneshot::channel();
        let gone = || refused(&self.path, "its thread has ended; start the process again");
        let requests = self.requests.as_ref().ok_or_else(gone)?;
        requests.send(Request { op, reply }).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    async fn ask_unit(&self, op: Op) -> Result<(), StoreError> {
        self.ask(op).await.map(|_| ())
    }

    async fn ask_count(&self, op: Op) -> Result<u64, StoreError> {
        match self.ask(op).await? {
            Reply::Count(count) => Ok(count),
            other => Err(other.unexpected(&self.path)),
        }
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        // The thread ends when it has worked off what is queued.
        self.requests = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

#[async_trait]
impl IdempotencyStore for SqliteStore {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn durability(&self) -> Durability {
        Durability::Machine
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        match self.ask(Op::Claim(request.clone())).await? {
            Reply::Claim(outcome) => Ok(outcome),
            other => Err(other.unexpected(&self.path)),
        }
    }

    async fn renew(&self, claims: &[ClaimRef], lease: Duration) -> Result<Vec<Renewal>, StoreError> {
        match self.ask(Op::Renew(claims.to_vec(), lease)).await? {
            Reply::Renewals(renewals) => Ok(renewals),
            other => Err(other.unexpected(&self.path)),
        }
    }

    async fn keep(&self, claim: &ClaimRef, result: &Bytes) -> Result<(), StoreError> {
        self.ask_unit(Op::Keep(claim.clone(), result.clone())).await
    }

    async fn complete(
        &self,
        claim: &ClaimRef,
        record: &Record,
        retention: Duration,
    ) -> Result<(), StoreError> {
        self.ask_unit(Op::Complete(claim.clone(), record.clone(), retention)).await
    }

    async fn release(&self, claim: &ClaimRef, how: Release) -> Result<(), StoreError> {
        self.ask_unit(Op::Release(claim.clone(), how)).await
    }

    async fn doubt(&self, claim: &ClaimRef, note: &str) -> Result<(), StoreError> {
        self.ask_unit(Op::Doubt(claim.clone(), note.to_owned())).await
    }

    async fn get(&self, key: &IdempotencyKey) -> Result<Option<Entry>, StoreError> {
        match self.ask(Op::Get(key.clone())).await? {
            Reply::Entry(entry) => Ok(entry),
            other => Err(other.unexpected(&self.path)),
        }
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.ask_unit(Op::Ping).await
    }
}

#[async_trait]
impl StoreAdmin for SqliteStore {
    async fn list(
        &self,
        prefix: &str,
        after: Option<&IdempotencyKey>,
        limit: usize,
    ) -> Result<Vec<(IdempotencyKey, Entry)>, StoreError> {
        let op = Op::List { prefix: prefix.to_owned(), after: after.cloned(), limit };
        match self.ask(op).await? {
            Reply::List(list) => Ok(list),
            other => Err(other.unexpected(&self.path)),
        }
    }

    async fn release_if_dead(&self, key: &IdempotencyKey) -> Result<bool, StoreError> {
        Ok(self.ask_count(Op::ReleaseIfDead(key.clone())).await? > 0)
    }

    async fn forget(&self, key: &IdempotencyKey) -> Result<bool, StoreError> {
        Ok(self.ask_count(Op::Forget(key.clone())).await? > 0)
    }

    async fn purge(&self) -> Result<u64, StoreError> {
        self.ask_count(Op::Purge).await
    }

    async fn clear(&self) -> Result<(), StoreError> {
        self.ask_unit(Op::Clear).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        match self.ask(Op::Stats).await? {
            Reply::Stats(stats) => Ok(stats),
            other => Err(other.unexpected(&self.path)),
        }
    }
}

fn refused(path: &Path, reason: &str) -> StoreError {
    StoreError::Refused { operation: "sqlite", reason: format!("{}: {reason}", path.display()) }
}

fn check_place(path: &Path) -> Result<(), StoreError> {
    if path.is_dir() {
        return Err(refused(path, "is a folder; name a file in it, for example ackord.db"));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(refused(path, "its folder does not exist; create it, or name another in store.path"));
    }
    Ok(())
}

/// Two processes on one file would take each other's living claims for dead.
fn lock_file(path: &Path) -> Result<File, StoreError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let lock_path = PathBuf::from(name);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&lock_path)
        .map_err(|error| refused(path, &format!("{} cannot be written: {error}", lock_path.display())))?;
    match lock_soon(&file) {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let _ = file.read_to_string(&mut pid);
            let holder = if pid.trim().is_empty() { String::new() } else { format!(" (pid {})", pid.trim()) };
            let cure =
                "stop it, or give each worker its own store.path; for several workers use a shared store";
            return Err(refused(path, &format!("is in use by another worker{holder}; {cure}")));
        }
        Err(TryLockError::Error(error)) => return Err(refused(path, &format!("cannot be locked: {error}"))),
    }
    let write = file.set_len(0).and_then(|()| file.write_all(std::process::id().to_string().as_bytes()));
    write.map_err(|error| refused(path, &format!("{} cannot be written: {error}", lock_path.display())))?;
    Ok(file)
}

/// Locks, with a second's patience: when a process is killed just while it starts a command, that command holds its lock
/// until it has become another program.
fn lock_soon(file: &File) -> Result<(), TryLockError> {
    const TRIES: u32 = 100;
    for _ in 1..TRIES {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(std::time::Duration::from_millis(10)),
            answer => return answer,
        }
    }
    file.try_lock()
}

/// Locks and flushes of network file systems cannot be relied on.
fn warn_of_network_file_system(path: &Path) {
    let Ok(mounts) = std::fs::read_to_string("/proc/mounts") else { return };
    let Ok(path) = path.canonicalize() else { return };
    let mount = mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            Some((words.next()?, words.next()?))
        })
        .filter(|(point, _)| path.starts_with(point))
        .max_by_key(|(point, _)| point.len());
    if let Some((point, kind)) = mount
        && ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p"].contains(&kind)
    {
        tracing::warn!(path = %path.display(), point, kind, "the store lies on a network file system: its locks and flushes may not hold");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A killed process's lock outlives it for a moment in a command that it was just starting.
    #[test]
    fn a_lock_that_is_about_to_be_free_is_waited_for_and_a_held_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ackord.db");
        let first = SqliteStore::open(&path).unwrap();
        let refused = SqliteStore::open(&path).unwrap_err().to_string();
        assert!(refused.contains("in use by another worker"), "{refused}");
        let second = std::thread::spawn(move || SqliteStore::open(&path).map(drop));
        drop(first);
        second.join().unwrap().unwrap();
    }
}
