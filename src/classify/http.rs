//! Verdicts for HTTP answers (RFC 9110 §15, RFC 6585, RFC 8470).

use std::time::Duration;

use super::Verdict;

/// The verdict for a status code, and for what the peer's `Retry-After` says.
pub fn verdict(status: u16, retry_after: Option<Duration>) -> Verdict {
    match status {
        200..=299 => Verdict::Done,
        429 => Verdict::Throttled { after: retry_after },
        503 if retry_after.is_some() => Verdict::Throttled { after: retry_after },
        // 404 and 409 may be read-after-write lag, or the first try still running: never a decline by default.
        404 | 409 | 421 | 423 | 424 | 425 => Verdict::Transient,
        // A redirect that is not followed is a wrong address; a refused credential meets every message.
        300..=399 | 401 | 403 | 407 | 507 | 511 => Verdict::WorkerFault,
        501 | 505 | 508 => Verdict::Declined,
        // The server, or a proxy before it, gave up: the work may have been done.
        408 | 500..=599 => Verdict::InDoubt,
        400..=499 => Verdict::Declined,
        // 1xx never ends an exchange; anything else is not HTTP.
        _ => Verdict::InDoubt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_of_status_has_its_verdict() {
        let after = Some(Duration::from_secs(5));
        let table: &[(&[u16], Verdict)] = &[
            (&[200, 201, 202, 204, 299], Verdict::Done),
            (&[301, 302, 307, 308, 401, 403, 407, 507, 511], Verdict::WorkerFault),
            (
                &[400, 402, 405, 406, 410, 411, 412, 413, 414, 415, 416, 417, 422, 428, 431, 451, 501],
                Verdict::Declined,
            ),
            (&[404, 409, 421, 423, 424, 425], Verdict::Transient),
            (&[408, 500, 502, 503, 504, 520, 524, 530], Verdict::InDoubt),
            (&[429], Verdict::Throttled { after: None }),
        ];
        for (statuses, expected) in table {
            for status in *statuses {
                assert_eq!(verdict(*status, None), *expected, "status {status}");
            }
        }
        assert_eq!(verdict(503, after), Verdict::Throttled { after });
        assert_eq!(verdict(429, after), Verdict::Throttled { after });
    }
}
