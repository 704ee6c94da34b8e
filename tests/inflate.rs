//! A body that inflates to a thousand times its size is refused in bounded memory. A process of its own, so that what is
//! measured is what this takes.
#![cfg(target_os = "linux")]

use std::io::Write;
use std::sync::Arc;

use ackord::flow::{Flow, StepContext};
use ackord_broker::Message;
use flate2::Compression;
use flate2::write::GzEncoder;

const MIB: usize = 1024 * 1024;

/// The most memory that this process ever had, in bytes.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<usize>().unwrap() * 1024
}

/// 1 GiB of zeros in about 1 MiB: the same member over and over, which is one gzip file (RFC 1952, 2.2).
fn bomb() -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&vec![0; MIB]).unwrap();
    encoder.finish().unwrap().repeat(1024)
}

#[test]
fn a_body_that_inflates_to_a_thousand_times_its_size_is_refused_in_bounded_memory() {
    let flow = |place: &str| {
        let flow = Flow::builder("f").from("b", "s").key(place);
        flow.step("s", async |(): (), _: StepContext| Ok(())).build().unwrap()
    };
    let body = bomb();
    assert!((MIB / 2..2 * MIB).contains(&body.len()), "{}", body.len());
    let message = Arc::new(Message::new("m", body));
    let before = peak();
    for place in ["body | gunzip | json:/id", "body | gunzip:1048576 | json:/id"] {
        for _ in 0..4 {
            let refused = flow(place).read(&message).unwrap_err();
            assert_eq!(refused.why, format!("{place} inflates beyond the cap of its gunzip step"));
        }
    }
    // The default cap is 4 MiB; a buffer that grows to it is at most twice as large, and is copied once.
    let grown = peak() - before;
    assert!(grown < 24 * MIB, "{grown} bytes");
}
