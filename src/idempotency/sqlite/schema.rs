//! The file's layout. Readable with the `sqlite3` shell: plain names, times in milliseconds since the Unix epoch.

use std::path::Path;

use rusqlite::{Connection, ErrorCode, OpenFlags};

const VERSION: i64 = 1;

/// A rowid table with a unique index on the key: measured to be several times faster than `WITHOUT ROWID` for random
/// keys, since a row that grows from claim to record does not move in a tree ordered by key.
const SCHEMA: &str = "
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE records (
    key         TEXT    NOT NULL,
    state       TEXT    NOT NULL, -- claimed | released | succeeded | without_body | declined | in_doubt
    token       BLOB    NOT NULL,
    epoch       INTEGER NOT NULL, -- the life of the process that claimed it
    owner       TEXT    NOT NULL,
    fingerprint BLOB    NOT NULL,
    attempt     INTEGER NOT NULL,
    crashes     INTEGER NOT NULL,
    started     INTEGER NOT NULL,
    lease_until INTEGER NOT NULL, -- ms
    expires_at  INTEGER NOT NULL, -- ms
    kept        BLOB,             -- the action's result, while its hooks have not passed
    code        TEXT,             -- of a decline
    detail      TEXT,             -- of a decline, or why there is no body
    body        BLOB,             -- a version byte, then the encoded result
    note        TEXT
);
CREATE UNIQUE INDEX records_key ON records (key);
";

/// Opens the file and begins a new life: the answer's number is higher than any before.
pub(super) fn open(path: &Path) -> Result<(Connection, i64), String> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|error| explain(&error))?;
    connection.set_prepared_statement_cache_capacity(32);
    prepare(&connection)
        .map_err(|error| match error {
            Trouble::Sqlite(error) => explain(&error),
            Trouble::Text(text) => text,
        })
        .map(|epoch| (connection, epoch))
}

enum Trouble {
    Sqlite(rusqlite::Error),
    Text(String),
}

impl From<rusqlite::Error> for Trouble {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

fn prepare(connection: &Connection) -> Result<i64, Trouble> {
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    match version {
        0 => {
            let tables: i64 =
                connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))?;
            if tables > 0 {
                return Err(Trouble::Text(
                    "is a database of another program; name another file in store.path".into(),
                ));
            }
            connection.execute_batch(&format!(
                "BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {VERSION}; COMMIT"
            ))?;
        }
        VERSION => {}
        newer => {
            return Err(Trouble::Text(format!(
                "has layout {newer}, this program knows {VERSION}; use the version of ackord that wrote it, or newer"
            )));
        }
    }
    let epoch = connection.query_row(
        "INSERT INTO meta (name, value) VALUES ('epoch', 1)
         ON CONFLICT (name) DO UPDATE SET value = value + 1 RETURNING value",
        [],
        |row| row.get(0),
    )?;
    Ok(epoch)
}

/// What is wrong and what cures it.
pub(super) fn explain(error: &rusqlite::Error) -> String {
    let cure = match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => "it is not a SQLite database; name another file in store.path",
        Some(ErrorCode::DatabaseCorrupt) => {
            "it is damaged; restore it from a copy, or name another file in store.path"
        }
        Some(ErrorCode::DiskFull) => "the disk is full; free some space and start again, nothing is lost",
        Some(ErrorCode::ReadOnly) => "it cannot be written; make the file and its folder writable",
        Some(ErrorCode::CannotOpen) => "it cannot be opened; make its folder exist and writable",
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            "another program holds it; stop that program"
        }
        Some(ErrorCode::SystemIoFailure) => "the disk failed; look at the system's log",
        _ => return error.to_string(),
    };
    format!("{cure} ({error})")
}
