//! Verdicts for `std::io::Error`, for a call that may have had an effect.

use std::error::Error as StdError;
use std::io::{Error, ErrorKind};

use super::Verdict;

/// The verdict for an I/O error. A broken connection is in doubt, since the call may have arrived; a refused one is
/// transient, since it has not.
pub fn verdict(error: &Error) -> Verdict {
    use ErrorKind as K;
    match error.kind() {
        K::ConnectionRefused | K::HostUnreachable | K::NetworkUnreachable | K::NetworkDown => {
            Verdict::Transient
        }
        K::AddrNotAvailable | K::AddrInUse | K::NotConnected => Verdict::Transient,
        K::Interrupted | K::WouldBlock | K::ResourceBusy | K::Deadlock | K::StaleNetworkFileHandle => {
            Verdict::Transient
        }
        K::ConnectionReset | K::ConnectionAborted | K::BrokenPipe | K::UnexpectedEof | K::TimedOut => {
            Verdict::InDoubt
        }
        K::WriteZero => Verdict::InDoubt,
        K::PermissionDenied | K::ReadOnlyFilesystem | K::StorageFull | K::QuotaExceeded | K::OutOfMemory => {
            Verdict::WorkerFault
        }
        K::Unsupported => Verdict::WorkerFault,
        K::InvalidInput | K::InvalidData | K::InvalidFilename | K::FileTooLarge | K::ArgumentListTooLong => {
            Verdict::Declined
        }
        K::IsADirectory | K::NotADirectory | K::NotFound | K::AlreadyExists => Verdict::Declined,
        _ => Verdict::Transient,
    }
}

/// The first I/O error in a chain of causes.
pub fn find<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Error> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref::<Error>() {
            return Some(found);
        }
        cause = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_not_left_is_transient_and_what_may_have_arrived_is_in_doubt() {
        assert_eq!(verdict(&ErrorKind::ConnectionRefused.into()), Verdict::Transient);
        assert_eq!(verdict(&ErrorKind::ConnectionReset.into()), Verdict::InDoubt);
        assert_eq!(verdict(&ErrorKind::StorageFull.into()), Verdict::WorkerFault);
        assert_eq!(verdict(&Error::other("?")), Verdict::Transient);
    }
}
