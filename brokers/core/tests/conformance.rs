//! The kit on the memory broker, with and without a lease, and the kit's own test: each lie is caught by exactly the cases
//! that name it.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ackord_broker::conformance::faulty::{CAUGHT_BY, Lie, MemoryHarness};
use ackord_broker::conformance::{BrokerHarness, case_names, run_case, trials};
use libtest_mimic::{Arguments, Trial};

/// Long beside what a loaded machine may pause for.
const LEASE: Option<Duration> = Some(Duration::from_secs(2));

fn main() -> ExitCode {
    let args = Arguments::from_args();
    let harness = |lease| -> Arc<dyn BrokerHarness> { Arc::new(MemoryHarness::honest(lease)) };
    let mut tests = trials("memory", &harness(None));
    tests.extend(trials("memory_with_lease", &harness(LEASE)));
    tests.extend(CAUGHT_BY.iter().map(|(lie, cases)| {
        let run = || caught(*lie, cases).map_err(Into::into);
        Trial::test(format!("the_kit_catches::{lie:?}"), run)
    }));
    libtest_mimic::run(&args, tests).exit_code()
}

/// Exactly the named cases fail for that lie.
fn caught(lie: Lie, expected: &[&str]) -> Result<(), String> {
    // Only lies about leases need one; without it nothing depends on how fast the machine is.
    let lease = LEASE.filter(|_| matches!(lie, Lie::SettlesAfterLease | Lie::IgnoresExtend));
    let harness = MemoryHarness::lying(lease, lie);
    let failed: Vec<_> =
        case_names(&harness).into_iter().filter(|case| run_case(&harness, case).is_err()).collect();
    let missed: Vec<_> = expected.iter().filter(|case| !failed.contains(case)).collect();
    let unexpected: Vec<_> = failed.iter().filter(|case| !expected.contains(case)).collect();
    if missed.is_empty() && unexpected.is_empty() {
        return Ok(());
    }
    Err(format!("{lie:?}: not caught by {missed:?}, caught beside that by {unexpected:?}"))
}
