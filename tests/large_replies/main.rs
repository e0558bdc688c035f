//! However large the replies of a server are, little of them is shown, and nothing is copied for
//! each lock.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use common::meddler::Meddler;
use common::{Server, builder, key, ms};
use futures_util::future::join_all;

const LARGE: usize = 24 << 20;

/// Returns the peak memory of this process in bytes.
fn most_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim()
        .strip_suffix(" kB")
        .unwrap()
        .parse::<usize>()
        .unwrap()
        * 1024
}

/// This test has a process of its own, since the memory of others would count.
#[tokio::test]
async fn large_replies_are_neither_shown_nor_copied() {
    let server = Server::start();
    let meddler = Meddler::start(server.port(), 1);
    let locks = builder(&meddler.url(), ms(60_000)).connect().await.unwrap();
    let before = most_memory();
    let text = "x".repeat(LARGE);
    let replies = [
        format!("-ERR {text}\r\n"),
        format!("${LARGE}\r\n{text}\r\n"),
        format!("*2\r\n$1\r\n1\r\n${LARGE}\r\n{text}\r\n"),
    ];
    drop(text);
    for reply in replies {
        let kind = reply[..1].to_owned();
        meddler.replace_next(reply.into_bytes());
        while !meddler.has_replaced() {
            // Many attempts at once share scripts, and their answers.
            let all: Vec<_> = (0..100).map(|_| locks.get(key())).collect();
            for error in join_all(all.iter().map(lockhound::Lock::try_lock))
                .await
                .into_iter()
                .filter_map(Result::err)
            {
                let shown = format!("{error} {error:?}");
                assert!(
                    shown.len() < 1_500,
                    "{kind}: {} characters: {}",
                    shown.len(),
                    &shown[..1_500]
                );
            }
        }
    }
    // The three replies are in this process already, the proxy copies them, and the client's buffer
    // grows by doubling.
    let grown = most_memory() - before;
    println!("{} MB more", grown >> 20);
    assert!(
        grown < 10 * LARGE,
        "{} MB for {} MB",
        grown >> 20,
        LARGE >> 20
    );
}
