//! Between a row of the table and the state machine's row.

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Row as SqlRow, named_params};

use super::super::state::{Row, State};
use super::super::{Decline, MissingBody, Record, Token};
use crate::clock::Timestamp;
use crate::fingerprint::Fingerprint;

/// The first byte of a body says how the rest is to be read.
const BODY_VERSION: u8 = 1;
const COLUMNS: &str = "state, token, epoch, owner, fingerprint, attempt, crashes, started, lease_until, expires_at, \
                       kept, code, detail, body, note";

/// Why a row could not be read.
#[derive(Debug)]
pub(super) enum ReadError {
    Sqlite(rusqlite::Error),
    /// It is there, but says something that this program does not understand.
    Unreadable(String),
}

impl From<rusqlite::Error> for ReadError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

pub(super) fn read(connection: &Connection, key: &str, epoch: i64) -> Result<Option<Row>, ReadError> {
    let mut statement =
        connection.prepare_cached(&format!("SELECT {COLUMNS} FROM records WHERE key = ?1"))?;
    let row = statement.query_row([key], |row| Ok(decode(row, 0, epoch))).optional()?;
    row.transpose()
}

/// Keys and rows that start with a prefix, in order.
pub(super) fn list(
    connection: &Connection,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
    epoch: i64,
) -> Result<Vec<(String, Row)>, ReadError> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT key, {COLUMNS} FROM records WHERE key >= ?1 AND key > ?2 ORDER BY key LIMIT ?3"
    ))?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut rows = statement.query((prefix, after.unwrap_or(""), limit))?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let key: String = row.get(0)?;
        if !key.starts_with(prefix) {
            break;
        }
        found.push((key, decode(row, 1, epoch)?));
    }
    Ok(found)
}

fn decode(row: &SqlRow<'_>, first: usize, epoch: i64) -> Result<Row, ReadError> {
    let state: String = row.get(first)?;
    let claimed_in: i64 = row.get(first + 2)?;
    let detail: Option<String> = row.get(first + 12)?;
    let body: Option<Vec<u8>> = row.get(first + 13)?;
    let state = match state.as_str() {
        "claimed" => {
            // A claim of an earlier life of the process is dead, whatever its lease says.
            let until = if claimed_in < epoch { 0 } else { row.get(first + 8)? };
            State::Claimed { until: Timestamp::from_millis(until), started: row.get(first + 7)? }
        }
        "released" => State::Released,
        "in_doubt" => State::InDoubt,
        "succeeded" => State::Completed(Record::Succeeded(unwrap_body(body)?.ok_or_else(missing_body)?)),
        "without_body" => State::Completed(Record::SucceededWithoutBody(missing_body_from(detail)?)),
        "declined" => State::Completed(Record::Declined(Decline {
            code: row.get::<_, Option<String>>(first + 11)?.unwrap_or_default(),
            detail: detail.unwrap_or_default(),
            body: unwrap_body(body)?,
        })),
        other => return Err(ReadError::Unreadable(format!("state `{other}` is not known"))),
    };
    Ok(Row {
        state,
        token: Token::from_bytes(exact(row.get(first + 1)?, "token")?),
        owner: row.get::<_, String>(first + 3)?.into(),
        fingerprint: Fingerprint::from_bytes(exact(row.get(first + 4)?, "fingerprint")?),
        attempt: row.get(first + 5)?,
        crashes: row.get(first + 6)?,
        kept: row.get::<_, Option<Vec<u8>>>(first + 10)?.map(Bytes::from),
        note: row.get(first + 14)?,
        expires: Timestamp::from_millis(row.get(first + 9)?),
    })
}

pub(super) fn write(connection: &Connection, key: &str, row: &Row, epoch: i64) -> rusqlite::Result<()> {
    let mut lease_until = 0;
    let mut has_started = false;
    let (mut code, mut detail, mut body) = (None, None, None);
    let state = match &row.state {
        State::Claimed { until, started } => {
            lease_until = until.as_millis();
            has_started = *started;
            "claimed"
        }
        State::Released => "released",
        State::InDoubt => "in_doubt",
        State::Completed(Record::Succeeded(bytes)) => {
            body = Some(wrap_body(bytes));
            "succeeded"
        }
        State::Completed(Record::SucceededWithoutBody(why)) => {
            detail = Some(missing_body_text(why));
            "without_body"
        }
        State::Completed(Record::Declined(decline)) => {
            code = Some(decline.code.clone());
            detail = Some(decline.detail.clone());
            body = decline.body.as_ref().map(wrap_body);
            "declined"
        }
    };
    let mut statement = connection.prepare_cached(
        "INSERT INTO records (key, state, token, epoch, owner, fingerprint, attempt, crashes, started, lease_until,
                              expires_at, kept, code, detail, body, note)
         VALUES (:key, :state, :token, :epoch, :owner, :fingerprint, :attempt, :crashes, :started, :lease_until,
                 :expires_at, :kept, :code, :detail, :body, :note)
         ON CONFLICT (key) DO UPDATE SET
             state = :state, token = :token, epoch = :epoch, owner = :owner, fingerprint = :fingerprint,
             attempt = :attempt, crashes = :crashes, started = :started, lease_until = :lease_until,
             expires_at = :expires_at, kept = :kept, code = :code, detail = :detail, body = :body, note = :note",
    )?;
    statement.execute(named_params! {
        ":key": key,
        ":state": state,
        ":token": row.token.to_bytes(),
        ":epoch": epoch,
        ":owner": &*row.owner,
        ":fingerprint": row.fingerprint.as_bytes(),
        ":attempt": row.attempt,
        ":crashes": row.crashes,
        ":started": has_started,
        ":lease_until": lease_until,
        ":expires_at": row.expires.as_millis(),
        ":kept": row.kept.as_deref(),
        ":code": code,
        ":detail": detail,
        ":body": body,
        ":note": row.note,
    })?;
    Ok(())
}

fn wrap_body(body: &Bytes) -> Vec<u8> {
    let mut wrapped = Vec::with_capacity(body.len() + 1);
    wrapped.push(BODY_VERSION);
    wrapped.extend_from_slice(body);
    wrapped
}

fn unwrap_body(body: Option<Vec<u8>>) -> Result<Option<Bytes>, ReadError> {
    match body {
        None => Ok(None),
        Some(bytes) if bytes.first() == Some(&BODY_VERSION) => Ok(Some(Bytes::from(bytes).slice(1..))),
        Some(bytes) => Err(ReadError::Unreadable(format!("body version {:?} is not known", bytes.first()))),
    }
}

fn missing_body() -> ReadError {
    ReadError::Unreadable("a success without its body".to_owned())
}

fn missing_body_text(why: &MissingBody) -> String {
    match why {
        MissingBody::TooLarge { size, cap } => format!("too_large {size} {cap}"),
        MissingBody::NotEncodable(why) => format!("not_encodable {why}"),
    }
}

fn missing_body_from(text: Option<String>) -> Result<MissingBody, ReadError> {
    let text = text.unwrap_or_default();
    let unreadable = || ReadError::Unreadable(format!("`{text}` is no reason for a missing body"));
    let (kind, rest) = text.split_once(' ').ok_or_else(unreadable)?;
    match kind {
        "too_large" => {
            let (size, cap) = rest.split_once(' ').ok_or_else(unreadable)?;
            let number = |text: &str| text.parse().map_err(|_| unreadable());
            Ok(MissingBody::TooLarge { size: number(size)?, cap: number(cap)? })
        }
        "not_encodable" => Ok(MissingBody::NotEncodable(rest.to_owned())),
        _ => Err(unreadable()),
    }
}

fn exact<const N: usize>(bytes: Vec<u8>, what: &str) -> Result<[u8; N], ReadError> {
    bytes.try_into().map_err(|_| ReadError::Unreadable(format!("its {what} has the wrong length")))
}
