//! Claims, records and tokens.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;

use super::super::{
    ClaimOutcome, Decline, EntryState, IdempotencyStore, MissingBody, Record, Release, Renewal, StoreError,
    Token,
};
use super::{Case, DAY, HOUR, LEASE, StoreHarness, claimed, done, ensure, key, request};
use crate::fingerprint::Fingerprint;

macro_rules! case {
    ($name:ident) => {
        Case { name: stringify!($name), needs_reopen: false, run: |harness| $name(harness).boxed() }
    };
    ($name:ident, reopen) => {
        Case { name: stringify!($name), needs_reopen: true, run: |harness| $name(harness).boxed() }
    };
}
pub(super) use case;

pub(super) const CASES: &[Case] = &[
    case!(one_winner_among_64_racers),
    case!(completed_returns_the_exact_record),
    case!(a_decline_stays_a_decline),
    case!(a_null_result_is_a_result),
    case!(a_record_of_a_mebibyte_is_whole),
    case!(release_frees_at_once),
    case!(the_attempt_survives_a_release),
    case!(a_repeated_claim_is_the_same_claim),
    case!(a_repeated_completion_is_fine),
    case!(a_stale_token_cannot_complete),
    case!(a_stale_token_cannot_renew),
    case!(a_stale_token_cannot_release),
    case!(a_release_never_erases_an_outcome),
    case!(other_content_mismatches_while_busy),
    case!(other_content_mismatches_when_completed),
    case!(other_content_mismatches_when_released),
    case!(a_doubt_stays_a_doubt),
    case!(a_kept_result_is_given_to_the_next),
    case!(odd_keys_do_not_collide),
    case!(a_cancelled_claim_leaves_nothing_or_something_that_expires),
    case!(records_survive_reopening, reopen),
    case!(the_attempt_survives_reopening, reopen),
    case!(a_claim_of_an_earlier_life_is_dead_at_once_or_after_its_lease, reopen),
];

fn counted() -> Release {
    Release { counted: true, started: true, note: None }
}

fn success(text: &str) -> Record {
    Record::Succeeded(Bytes::from(text.to_owned()))
}

async fn one_winner_among_64_racers(harness: &dyn StoreHarness) -> Result<(), String> {
    let mut racers = Vec::new();
    for _ in 0..64 {
        let store = harness.open().await;
        racers.push(tokio::spawn(async move { store.claim(&request("race")).await }));
    }
    let mut winners = 0;
    for racer in racers {
        match done(racer.await.map_err(|error| error.to_string())?)? {
            ClaimOutcome::Claimed(_) => winners += 1,
            ClaimOutcome::InProgress { .. } => {}
            other => return Err(format!("a racer was told {other:?}")),
        }
    }
    ensure!(winners == 1, "{winners} racers were told that the claim is theirs");
    Ok(())
}

async fn completed_returns_the_exact_record(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    let records = [
        success("{\"a\": [1.10,  \"é\"]}"),
        success("false"),
        success("\"\""),
        success("[]"),
        Record::SucceededWithoutBody(MissingBody::TooLarge { size: 300_000, cap: 262_144 }),
        Record::SucceededWithoutBody(MissingBody::NotEncodable("a map with keys that are no text".into())),
    ];
    for (n, record) in records.iter().enumerate() {
        let request = request(&format!("exact-{n}"));
        let claim = claimed(&*store, &request).await?;
        done(store.complete(&claim.held, record, DAY).await)?;
        let told = done(harness.open().await.claim(&super::request(&format!("exact-{n}"))).await)?;
        ensure!(told == ClaimOutcome::Completed(record.clone()), "{record:?} came back as {told:?}");
    }
    Ok(())
}

async fn a_decline_stays_a_decline(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    for body in [None, Some(Bytes::from_static(b"{\"code\":\"CardDeclined\"}"))] {
        let name = format!("decline-{}", body.is_some());
        let record =
            Record::Declined(Decline { code: "CardDeclined".into(), detail: "no funds".into(), body });
        let claim = claimed(&*store, &request(&name)).await?;
        done(store.complete(&claim.held, &record, DAY).await)?;
        let told = done(store.claim(&request(&name)).await)?;
        ensure!(told == ClaimOutcome::Completed(record), "a decline came back as {told:?}");
    }
    Ok(())
}

async fn a_null_result_is_a_result(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    let claim = claimed(&*store, &request("null")).await?;
    done(store.complete(&claim.held, &success("null"), DAY).await)?;
    let told = done(store.claim(&request("null")).await)?;
    ensure!(told == ClaimOutcome::Completed(success("null")), "completed with null was told as {told:?}");
    Ok(())
}

async fn a_record_of_a_mebibyte_is_whole(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    let record = success(&"x".repeat(1024 * 1024));
    let claim = claimed(&*store, &request("large")).await?;
    done(store.complete(&claim.held, &record, DAY).await)?;
    let told = done(store.claim(&request("large")).await)?;
    ensure!(told == ClaimOutcome::Completed(record), "a record of 1 MiB did not come back whole");
    Ok(())
}

async fn release_frees_at_once(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    let claim = claimed(&*store, &request("free")).await?;
    done(store.release(&claim.held, counted()).await)?;
    let next = claimed(&*store, &request("free")).await?;
    ensure!(next.took_over.is_none(), "a released claim is not taken over");
    ensure!(next.crashes == 0, "a released claim is no crash");
    Ok(())
}

async fn the_attempt_survives_a_release(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    for expected in [1, 2, 3] {
        let claim = claimed(&*store, &request("tries")).await?;
        ensure!(claim.attempt == expected, "attempt {} instead of {expected}", claim.attempt);
        done(store.release(&claim.held, counted()).await)?;
    }
    let claim = claimed(&*store, &request("tries")).await?;
    done(store.release(&claim.held, Release { counted: false, started: true, note: None }).await)?;
    let claim = claimed(&*store, &request("tries")).await?;
    ensure!(claim.attempt == 4, "a try that does not count was counted: attempt {}", claim.attempt);
    Ok(())
}

/// Shopify/ci-queue!327, redis/go-redis#2985: the answer to a claim was lost, and it is asked again.
async fn a_repeated_claim_is_the_same_claim(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    let request = request("lost answer");
    let first = claimed(&*store, &request).await?;
    let again = claimed(&*store, &request).await?;
    ensure!(first == again, "asked again with the same token, {first:?} became {again:?}");
    Ok(())
}

async fn a_repeated_completion_is_fine(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    let claim = claimed(&*store, &request("twice")).await?;
    done(store.complete(&claim.held, &success("1"), DAY).await)?;
    done(store.complete(&claim.held, &success("1"), DAY).await)
}

/// Lets a claim expire and be taken over; the stale one, and the new.
async fn taken_over(
    harness: &dyn StoreHarness,
    name: &str,
) -> Result<(Arc<dyn IdempotencyStore>, super::Claim, super::Claim), String> {
    let store = harness.open().await;
    let stale = claimed(&*store, &request(name)).await?;
    harness.pass(LEASE + HOUR / 60).await;
    let winner = claimed(&*store, &request(name)).await?;
    Ok((store, stale, winner))
}

fn is_lost<T>(result: &Result<T, StoreError>) -> bool {
    matches!(result, Err(StoreError::LostOwnership { .. }))
}

async fn assert_held(store: &dyn IdempotencyStore, winner: &super::Claim) -> Result<(), String> {
    let renewed = done(store.renew(std::slice::from_ref(&winner.held), LEASE).await)?;
    ensure!(renewed == [Renewal::Renewed], "a stale token took the claim from its holder");
    Ok(())
}

async fn a_stale_token_cannot_complete(harness: &dyn StoreHarness) -> Result<(), String> {
    let (store, stale, winner) = taken_over(harness, "stale complete").await?;
    ensure!(is_lost(&store.complete(&stale.held, &success("late"), DAY).await), "a stale token completed");
    ensure!(
        is_lost(&store.keep(&stale.held, &Bytes::from_static(b"1")).await),
        "a stale token kept a result"
    );
    ensure!(is_lost(&store.doubt(&stale.held, "late").await), "a stale token set a doubt");
    assert_held(&*store, &winner).await?;
    done(store.complete(&winner.held, &success("winner"), DAY).await)?;
    ensure!(is_lost(&store.complete(&stale.held, &success("late"), DAY).await), "a stale token overwrote");
    let told = done(store.claim(&request("stale complete")).await)?;
    ensure!(told == ClaimOutcome::Completed(success("winner")), "the winner's record became {told:?}");
    Ok(())
}

async fn a_stale_token_cannot_renew(harness: &dyn StoreHarness) -> Result<(), String> {
    let (store, stale, winner) = taken_over(harness, "stale renew").await?;
    let answers = done(store.renew(&[stale.held, winner.held], LEASE).await)?;
    ensure!(answers == [Renewal::Lost, Renewal::Renewed], "stale and winner were told {answers:?}");
    Ok(())
}

async fn a_stale_token_cannot_release(harness: &dyn StoreHarness) -> Result<(), String> {
    let (store, stale, winner) = taken_over(harness, "stale release").await?;
    ensure!(is_lost(&store.release(&stale.held, counted()).await), "a stale token released");
    assert_held(&*store, &winner).await
}

async fn a_release_never_erases_an_outcome(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    let claim = claimed(&*store, &request("erase")).await?;
    done(store.complete(&claim.held, &success("1"), DAY).await)?;
    ensure!(is_lost(&store.release(&claim.held, counted()).await), "a completed key was released");
    let told = done(store.claim(&request("erase")).await)?;
    ensure!(told == ClaimOutcome::Completed(success("1")), "after the release it was told as {told:?}");
    Ok(())
}

fn other_content(name: &str) -> super::ClaimRequest {
    super::ClaimRequest { fingerprint: Fingerprint::of_body(Some(b"other")), ..request(name) }
}

/// aws-powertools/powertools-lambda-typescript#5705 and its kin: in each state the fingerprint counts.
async fn other_content_mismatches_while_busy(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    claimed(&*store, &request("busy")).await?;
    let told = done(store.claim(&other_content("busy")).await)?;
    ensure!(told == ClaimOutcome::Mismatch, "other content while busy was told {told:?}");
    Ok(())
}

async fn other_content_mismatches_when_completed(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    let declined = Record::Declined(Decline { code: "No".into(), detail: String::new(), body: None });
    for (name, record) in [("done", success("1")), ("declined", declined)] {
        let claim = claimed(&*store, &request(name)).await?;
        done(store.complete(&claim.held, &record, DAY).await)?;
        let told = done(store.claim(&other_content(name)).await)?;
        ensure!(told == ClaimOutcome::Mismatch, "other content when {name} was told {told:?}");
    }
    Ok(())
}

async fn other_content_mismatches_when_released(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    let claim = claimed(&*store, &request("released")).await?;
    done(store.release(&claim.held, counted()).await)?;
    let told = done(store.claim(&other_content("released")).await)?;
    ensure!(told == ClaimOutcome::Mismatch, "other content when released was told {told:?}");
    Ok(())
}

async fn a_doubt_stays_a_doubt(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    let claim = claimed(&*store, &request("doubt")).await?;
    done(store.doubt(&claim.held, "the answer was lost").await)?;
    harness.pass(HOUR).await;
    let told = done(store.claim(&request("doubt")).await)?;
    let expected = ClaimOutcome::InDoubt { note: "the answer was lost".into(), attempt: 1 };
    ensure!(told == expected, "a doubt was told as {told:?}");
    Ok(())
}

async fn a_kept_result_is_given_to_the_next(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    let kept = Bytes::from_static(b"{\"charged\":true}");
    let claim = claimed(&*store, &request("kept")).await?;
    ensure!(claim.kept.is_none(), "a first claim has nothing kept");
    done(store.keep(&claim.held, &kept).await)?;
    done(store.release(&claim.held, counted()).await)?;
    let claim = claimed(&*store, &request("kept")).await?;
    ensure!(claim.kept.as_ref() == Some(&kept), "after a release {:?} was kept", claim.kept);
    harness.pass(HOUR).await;
    let claim = claimed(&*store, &request("kept")).await?;
    ensure!(claim.kept.as_ref() == Some(&kept), "after a takeover {:?} was kept", claim.kept);
    Ok(())
}

async fn odd_keys_do_not_collide(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    let mut odd: Vec<String> = [
        "a", "A", "a ", "a:b", "a%3Ab", "é", "e\u{301}", "日本", "a\nb", "a'b", "a\"b", "a*", "a?", "{a}",
        "a\u{0}b",
    ]
    .map(ToOwned::to_owned)
    .to_vec();
    odd.push("x".repeat(10_000));
    odd.push(format!("{}y", "x".repeat(9_999)));
    for name in &odd {
        claimed(&*store, &request(name))
            .await
            .map_err(|error| format!("{name:?} met another key: {error}"))?;
    }
    let distinct: HashSet<_> = odd.iter().map(|name| key(name)).collect();
    ensure!(distinct.len() == odd.len(), "two odd keys are one");
    Ok(())
}

async fn a_cancelled_claim_leaves_nothing_or_something_that_expires(
    harness: &dyn StoreHarness,
) -> Result<(), String> {
    let store = harness.open().await;
    for n in 0..16 {
        let request = request(&format!("cancelled-{n}"));
        // Polled once, then dropped.
        let _ = store.claim(&request).now_or_never();
    }
    for n in 0..16 {
        // What was cancelled may still be on its way and take effect later: then it expires later.
        let mut told = done(store.claim(&request(&format!("cancelled-{n}"))).await)?;
        for _ in 0..3 {
            if matches!(told, ClaimOutcome::InProgress { .. }) {
                harness.pass(LEASE + HOUR).await;
                told = done(store.claim(&request(&format!("cancelled-{n}"))).await)?;
            }
        }
        ensure!(matches!(told, ClaimOutcome::Claimed(_)), "a cancelled claim does not expire: {told:?}");
    }
    Ok(())
}

async fn records_survive_reopening(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    let claim = claimed(&*store, &request("kept on disk")).await?;
    done(store.complete(&claim.held, &success("1"), DAY).await)?;
    drop(store);
    let store = harness.reopen().await;
    let told = done(store.claim(&request("kept on disk")).await)?;
    ensure!(told == ClaimOutcome::Completed(success("1")), "after reopening it was told as {told:?}");
    Ok(())
}

async fn the_attempt_survives_reopening(harness: &dyn StoreHarness) -> Result<(), String> {
    let store = harness.open().await;
    let claim = claimed(&*store, &request("tries on disk")).await?;
    done(store.release(&claim.held, counted()).await)?;
    drop(store);
    let store = harness.reopen().await;
    let claim = claimed(&*store, &request("tries on disk")).await?;
    ensure!(claim.attempt == 2, "after reopening attempt {}", claim.attempt);
    Ok(())
}

async fn a_claim_of_an_earlier_life_is_dead_at_once_or_after_its_lease(
    harness: &dyn StoreHarness,
) -> Result<(), String> {
    let store = harness.open().await;
    let dead = claimed(&*store, &request("earlier life")).await?;
    drop(store);
    let store = harness.reopen().await;
    if let Ok(ClaimOutcome::InProgress { .. }) = store.claim(&request("earlier life")).await {
        harness.pass(LEASE + HOUR).await;
    } else {
        let entry = done(store.get(&key("earlier life")).await)?.ok_or("the claim is forgotten")?;
        ensure!(matches!(entry.state, EntryState::InProgress { .. }), "it became {:?}", entry.state);
        ensure!(is_lost(&store.complete(&dead.held, &success("1"), DAY).await), "a dead claim completed");
        return Ok(());
    }
    let claim =
        claimed(&*store, &super::ClaimRequest { token: Token::random(), ..request("earlier life") }).await?;
    ensure!(claim.took_over.is_some_and(|takeover| takeover.started), "the doubt is forgotten");
    Ok(())
}
