//! Verdicts for the exit codes of commands.

use super::Verdict;

/// `EX_DATAERR` of sysexits.h: the input is wrong, for good.
pub const DECLINE: i32 = 65;
/// `EX_TEMPFAIL` of sysexits.h: try again later.
pub const TRY_AGAIN: i32 = 75;

/// The verdict for an exit code; `None` when a signal ended the command, so that it may have taken effect.
pub fn verdict(code: Option<i32>) -> Verdict {
    match code {
        Some(0) => Verdict::Done,
        Some(DECLINE) => Verdict::Declined,
        // 126 and 127 are the shell's words for "cannot be run" and "not found".
        Some(126 | 127) => Verdict::WorkerFault,
        Some(_) => Verdict::Transient,
        None => Verdict::InDoubt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exit_code_has_a_verdict_and_only_65_declines() {
        for code in -1..=255 {
            let expected = match code {
                0 => Verdict::Done,
                65 => Verdict::Declined,
                126 | 127 => Verdict::WorkerFault,
                _ => Verdict::Transient,
            };
            assert_eq!(verdict(Some(code)), expected, "exit code {code}");
        }
        assert_eq!(verdict(None), Verdict::InDoubt);
    }
}
