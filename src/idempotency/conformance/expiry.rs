//! Leases, retention and clocks.

use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;

use super::super::{ClaimOutcome, Record, Release};
use super::cases::case;
use super::{Case, DAY, HOUR, LEASE, StoreHarness, claimed, done, ensure, key, request};

pub(super) const CASES: &[Case] = &[
    case!(in_progress_names_its_remaining_time),
    case!(an_expired_lease_is_claimable_with_another_token),
    case!(the_attempt_survives_a_takeover),
    case!(crashes_are_counted_until_a_run_ends),
    case!(a_claim_that_never_started_leaves_no_doubt),
    case!(of_two_that_take_over_one_wins),
    case!(a_taken_over_claim_is_alive),
    case!(a_lease_of_90_seconds_lives_for_90_seconds),
    case!(a_renewed_lease_lives_on),
    case!(retention_forgets),
    case!(retention_is_counted_from_completion),
    case!(a_clock_wrong_by_an_hour_changes_nothing),
];

const SECOND: Duration = Duration::from_secs(1);

fn success() -> Record {
    Record::Succeeded(Bytes::from_static(b"1"))
}

async fn in_progress_names_its_remaining_time(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    claimed(&*store, &request("remaining")).await?;
    harness.pass(SECOND * 10).await;
    match done(store.claim(&request("remaining")).await)? {
        ClaimOutcome::InProgress { remaining, owner } => {
            ensure!(remaining <= SECOND * 20, "remaining {remaining:?} after 10 s of 30 s");
            ensure!(remaining > SECOND * 15, "remaining {remaining:?} after 10 s of 30 s");
            ensure!(&*owner == "kit", "the owner is named {owner}");
            Ok(())
        }
        other => Err(format!("a busy key was told as {other:?}")),
    }
}

async fn an_expired_lease_is_claimable_with_another_token(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    let first = claimed(&*store, &request("expired")).await?;
    harness.pass(LEASE + SECOND).await;
    let second = claimed(&*store, &request("expired")).await?;
    ensure!(second.held.token != first.held.token, "the takeover kept the old token");
    let takeover = second.took_over.ok_or("the takeover does not say so")?;
    ensure!(&*takeover.from == "kit" && takeover.started, "the takeover says {takeover:?}");
    let renewed = done(store.renew(&[first.held], LEASE).await)?;
    ensure!(renewed == [super::super::Renewal::Lost], "the old token still holds the key");
    Ok(())
}

async fn the_attempt_survives_a_takeover(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    for expected in 1..=4 {
        let claim = claimed(&*store, &request("taken")).await?;
        ensure!(claim.attempt == expected, "attempt {} instead of {expected}", claim.attempt);
        harness.pass(LEASE + SECOND).await;
    }
    Ok(())
}

async fn crashes_are_counted_until_a_run_ends(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    for expected in 0..3 {
        let claim = claimed(&*store, &request("crash")).await?;
        ensure!(claim.crashes == expected, "{} crashes instead of {expected}", claim.crashes);
        harness.pass(LEASE + SECOND).await;
    }
    let claim = claimed(&*store, &request("crash")).await?;
    done(store.release(&claim.held, Release { counted: false, started: false, note: None }).await)?;
    let claim = claimed(&*store, &request("crash")).await?;
    ensure!(claim.crashes == 3, "{} crashes after one that was not started", claim.crashes);
    done(store.release(&claim.held, Release { counted: true, started: true, note: None }).await)?;
    let claim = claimed(&*store, &request("crash")).await?;
    ensure!(claim.crashes == 0, "{} crashes after a run that ended", claim.crashes);
    Ok(())
}

async fn a_claim_that_never_started_leaves_no_doubt(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    claimed(&*store, &super::ClaimRequest { starts: false, ..request("idle") }).await?;
    harness.pass(LEASE + SECOND).await;
    let claim = claimed(&*store, &request("idle")).await?;
    ensure!(claim.took_over.is_some_and(|takeover| !takeover.started), "a start that never was");
    ensure!(claim.crashes == 0, "a crash that never was");
    Ok(())
}

/// aws-powertools/powertools-lambda-typescript#5714: of any number that find one expired claim one takes it over.
async fn of_two_that_take_over_one_wins(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    claimed(&*store, &request("two")).await?;
    harness.pass(LEASE + SECOND).await;
    let mut racers = Vec::new();
    for _ in 0..16 {
        let store = harness.open().await;
        racers.push(tokio::spawn(async move { store.claim(&request("two")).await }));
    }
    let mut winners = 0;
    for racer in racers {
        let told = done(racer.await.map_err(|error| error.to_string())?)?;
        winners += usize::from(matches!(told, ClaimOutcome::Claimed(_)));
    }
    ensure!(winners == 1, "{winners} took one claim over");
    Ok(())
}

/// agentscope-ai/agentscope-java#3175: after a takeover the others see it in progress.
async fn a_taken_over_claim_is_alive(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    claimed(&*store, &request("alive")).await?;
    harness.pass(LEASE + SECOND).await;
    claimed(&*store, &request("alive")).await?;
    for _ in 0..3 {
        let told = done(store.claim(&request("alive")).await)?;
        ensure!(matches!(told, ClaimOutcome::InProgress { .. }), "a fresh takeover was told as {told:?}");
    }
    Ok(())
}

/// aws-powertools/powertools-lambda-java#1285, powertools-lambda-python!1387: seconds are not milliseconds.
async fn a_lease_of_90_seconds_lives_for_90_seconds(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    let request = || super::ClaimRequest { lease: SECOND * 90, ..super::request("ninety") };
    claimed(&*store, &request()).await?;
    harness.pass(SECOND * 89).await;
    let told = done(store.claim(&request()).await)?;
    ensure!(matches!(told, ClaimOutcome::InProgress { .. }), "dead after 89 s: {told:?}");
    harness.pass(SECOND * 2).await;
    claimed(&*store, &request()).await.map(drop)
}

async fn a_renewed_lease_lives_on(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    let claim = claimed(&*store, &request("renewed")).await?;
    for _ in 0..5 {
        harness.pass(SECOND * 20).await;
        done(store.renew(std::slice::from_ref(&claim.held), LEASE).await)?;
    }
    harness.pass(SECOND * 20).await;
    let told = done(store.claim(&request("renewed")).await)?;
    ensure!(matches!(told, ClaimOutcome::InProgress { .. }), "dead although renewed: {told:?}");
    Ok(())
}

async fn retention_forgets(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    let claim = claimed(&*store, &request("forget")).await?;
    done(store.complete(&claim.held, &success(), HOUR).await)?;
    harness.pass(HOUR + SECOND).await;
    ensure!(done(store.get(&key("forget")).await)?.is_none(), "still there after its retention");
    let claim = claimed(&*store, &request("forget")).await?;
    ensure!(claim.attempt == 1, "attempt {} after the retention", claim.attempt);
    Ok(())
}

async fn retention_is_counted_from_completion(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    let claim = claimed(&*store, &request("late")).await?;
    for _ in 0..12 {
        harness.pass(SECOND * 20).await;
        done(store.renew(std::slice::from_ref(&claim.held), LEASE).await)?;
    }
    done(store.complete(&claim.held, &success(), DAY).await)?;
    harness.pass(DAY - SECOND).await;
    let told = done(store.claim(&request("late")).await)?;
    ensure!(told == ClaimOutcome::Completed(success()), "a day after its completion it was told as {told:?}");
    Ok(())
}

/// johanhaleby/occurrent#659: a worker whose clock is ahead must not take a living claim, nor lose its own.
async fn a_clock_wrong_by_an_hour_changes_nothing(harness: &dyn StoreHarness) -> Result<(), String> {
    let right = harness.open().await;
    for seconds in [3600, -3600, 30] {
        let wrong = harness.open_skewed(seconds).await;
        let name = format!("skew-{seconds}");
        let claim = claimed(&*right, &request(&name)).await?;
        let told = done(wrong.claim(&request(&name)).await)?;
        ensure!(
            matches!(told, ClaimOutcome::InProgress { .. }),
            "{seconds} s ahead, a living claim was {told:?}"
        );
        done(right.release(&claim.held, Release { counted: true, started: true, note: None }).await)?;
        let claim = claimed(&*wrong, &request(&name)).await?;
        let told = done(right.claim(&request(&name)).await)?;
        ensure!(
            matches!(told, ClaimOutcome::InProgress { .. }),
            "claimed {seconds} s ahead, it was {told:?}"
        );
        done(wrong.complete(&claim.held, &success(), HOUR / 2).await)?;
        let told = done(right.claim(&request(&name)).await)?;
        ensure!(told == ClaimOutcome::Completed(success()), "completed {seconds} s ahead, it was {told:?}");
    }
    Ok(())
}
