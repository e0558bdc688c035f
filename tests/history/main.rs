//! The check of histories, checked: what each model of a lock explains and what it does not, and a
//! broken lock.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use std::time::Duration;

use common::history::{Call, History, Model, Op};
use common::{Server, builder, key, ms, record};
use lockhound::{Lock, Owner};

const MODELS: [Model; 4] = [
    Model::OwnerAware,
    Model::Reentrant(2),
    Model::Fenced,
    Model::ReentrantFenced(2),
];

const fn lock(fence: u64) -> Op {
    Op::Lock { fence }
}

/// Returns a history of calls on one lock: owner, operation, call time, return time (0: no answer).
fn history(calls: &[(&str, Op, u64, u64)]) -> History {
    let call = |&(who, op, called, returned): &(&str, Op, u64, u64)| {
        let returned = (returned > 0).then_some(returned);
        Call {
            key: "k".into(),
            who: who.into(),
            op,
            called,
            returned,
        }
    };
    History {
        calls: calls.iter().map(call).collect(),
    }
}

/// Returns which of the models explain these calls.
fn explained(calls: &[(&str, Op, u64, u64)]) -> [bool; 4] {
    MODELS.map(|model| history(calls).check(model).is_ok())
}

#[test]
fn histories_of_a_correct_lock_are_explained() {
    let (unlock, lose) = (Op::Unlock, Op::Lose);
    let in_turn = [
        ("a", lock(1), 1, 2),
        ("a", unlock, 3, 4),
        ("b", lock(2), 5, 6),
        ("b", unlock, 7, 8),
    ];
    // B waits while A holds the lock, and gets it before A is told that it is released.
    let handed_over = [
        ("a", lock(1), 1, 2),
        ("b", lock(2), 3, 6),
        ("a", unlock, 4, 8),
        ("b", unlock, 9, 10),
    ];
    let lost = [
        ("a", lock(1), 1, 2),
        ("a", lose, 3, 9),
        ("b", lock(2), 4, 5),
        ("b", unlock, 6, 7),
    ];
    // The outcome of the release is unknown: it was executed late.
    let unknown = [
        ("a", lock(1), 1, 2),
        ("a", unlock, 3, 0),
        ("b", lock(2), 20, 21),
        ("b", unlock, 22, 23),
    ];
    // The last release was never executed.
    let never = [("a", lock(1), 1, 2), ("a", unlock, 3, 0)];
    for calls in [&in_turn[..], &handed_over, &lost, &unknown, &never] {
        assert_eq!(explained(calls), [true; 4], "{calls:?}");
    }
}

#[test]
fn histories_of_a_broken_lock_are_not_explained() {
    let (unlock, lose) = (Op::Unlock, Op::Lose);
    let both_in = [
        ("a", lock(1), 1, 2),
        ("b", lock(2), 3, 4),
        ("a", unlock, 5, 6),
        ("b", unlock, 7, 8),
    ];
    let not_its_own = [("a", lock(1), 1, 2), ("b", unlock, 3, 4)];
    let not_there = [("a", unlock, 1, 2)];
    let twice = [
        ("a", lock(1), 1, 2),
        ("a", unlock, 3, 4),
        ("a", unlock, 5, 6),
    ];
    // A still believed to hold the lock when B had it.
    let lost_late = [
        ("a", lock(1), 1, 2),
        ("b", lock(2), 3, 4),
        ("a", lose, 5, 6),
    ];
    let unknown_too_late = [
        ("a", lock(1), 1, 2),
        ("b", lock(2), 3, 4),
        ("a", unlock, 5, 0),
    ];
    for calls in [
        &both_in[..],
        &not_its_own,
        &not_there,
        &twice,
        &lost_late,
        &unknown_too_late,
    ] {
        assert_eq!(explained(calls), [false; 4], "{calls:?}");
    }
}

#[test]
fn only_a_re_entrant_lock_is_re_entered_and_only_to_its_bound() {
    let nested = [
        ("a", lock(1), 1, 2),
        ("a", lock(1), 3, 4),
        ("a", Op::Unlock, 5, 6),
        ("a", Op::Unlock, 7, 8),
    ];
    assert_eq!(explained(&nested), [false, true, false, true]);
    let thrice = [
        ("a", lock(1), 1, 2),
        ("a", lock(1), 3, 4),
        ("a", lock(1), 5, 6),
    ];
    assert_eq!(explained(&thrice), [false; 4]);
    // One of two guards is gone: the lock is still held.
    let half = [
        ("a", lock(1), 1, 2),
        ("a", lock(1), 3, 4),
        ("a", Op::Unlock, 5, 6),
        ("b", lock(2), 7, 8),
    ];
    assert_eq!(explained(&half), [false; 4]);
    let all_lost = [
        ("a", lock(1), 1, 2),
        ("a", lock(1), 3, 4),
        ("a", Op::Lose, 5, 6),
        ("b", lock(2), 7, 8),
    ];
    assert_eq!(explained(&all_lost), [false, true, false, true]);
}

#[test]
fn only_a_fenced_lock_needs_fences_that_grow() {
    let unlock = Op::Unlock;
    for (fence, grows) in [(7, false), (6, false), (8, true)] {
        let again = [
            ("a", lock(7), 1, 2),
            ("a", unlock, 3, 4),
            ("b", lock(fence), 5, 6),
            ("b", unlock, 7, 8),
        ];
        assert_eq!(explained(&again), [true, true, grows, grows], "{fence}");
    }
    let another = [
        ("a", lock(7), 1, 2),
        ("a", lock(8), 3, 4),
        ("a", unlock, 5, 6),
        ("a", unlock, 7, 8),
    ];
    assert_eq!(
        explained(&another),
        [false, true, false, false],
        "the fence of a re-entry is that of the hold"
    );
    // Two callers waited at the same time, and the fences show that the later one was first.
    let overtaken = [
        ("a", lock(2), 1, 9),
        ("b", lock(1), 2, 10),
        ("b", unlock, 11, 14),
        ("a", unlock, 15, 16),
    ];
    assert_eq!(
        explained(&overtaken),
        [false; 4],
        "A was granted the lock before B released it"
    );
    let overtaken = [
        ("a", lock(2), 1, 13),
        ("b", lock(1), 2, 10),
        ("b", unlock, 11, 14),
        ("a", unlock, 15, 16),
    ];
    assert_eq!(explained(&overtaken), [true; 4]);
}

/// Each of many holds ends by a release without an answer, or is lost unseen: that makes two orders
/// of each.
#[test]
fn ends_without_answers_do_not_multiply_the_search() {
    let hold = |at: u64| {
        let who = if at.is_multiple_of(2) { "a" } else { "b" };
        let since = at * 10;
        [
            (who, lock(at + 1), since, since + 2),
            (who, lock(at + 1), since, since + 3),
            (who, Op::Unlock, since + 4, 0),
            (who, Op::Unlock, since + 5, 0),
            (who, Op::Lose, since + 6, 0),
        ]
    };
    let mut calls: Vec<_> = (1..200).flat_map(hold).collect();
    let fenced = Model::ReentrantFenced(64);
    history(&calls).check(fenced).unwrap();
    // All orders are tried in vain.
    calls.push(("c", Op::Unlock, 3_000, 3_001));
    history(&calls)
        .check(fenced)
        .expect_err("C does not hold it");
}

#[test]
fn a_release_does_not_end_a_later_hold() {
    let calls = [
        ("a", lock(1), 1, 2),
        ("a", Op::Unlock, 3, 0),
        ("a", Op::Lose, 3, 0),
        ("a", lock(2), 5, 6),
    ];
    let then = [("b", lock(3), 7, 8)];
    let beside = [&calls[..], &then].concat();
    assert_eq!(explained(&calls), [true; 4]);
    assert_eq!(
        explained(&beside),
        [true, true, false, false],
        "it could be that of the later hold without fences"
    );
}

const fn read(fence: u64) -> Op {
    Op::Read { fence }
}

const fn unread(fence: u64) -> Op {
    Op::Unread { fence }
}

const fn lose_read(fence: u64) -> Op {
    Op::LoseRead { fence }
}

/// Checks these calls against a read-write lock whose guards nest twice.
fn as_read_write(calls: &[(&str, Op, u64, u64)]) -> Result<(), String> {
    history(calls).check(Model::ReadWrite(2))
}

#[test]
fn histories_of_a_correct_read_write_lock_are_explained() {
    let (unlock, lose) = (Op::Unlock, Op::Lose);
    // The fences of reads are in no order among themselves.
    let together = [
        ("w", lock(1), 1, 2),
        ("w", unlock, 3, 4),
        ("a", read(3), 5, 6),
        ("b", read(2), 7, 8),
        ("a", unread(3), 9, 10),
        ("b", unread(2), 11, 12),
        ("w", lock(4), 13, 14),
    ];
    // The writer waits, and gets the lock before the reader is told that it has released it.
    let in_turn = [
        ("a", read(1), 1, 2),
        ("w", lock(2), 3, 6),
        ("a", unread(1), 4, 8),
        ("w", unlock, 9, 10),
    ];
    let downgraded = [
        ("w", lock(1), 1, 2),
        ("w", read(2), 3, 4),
        ("w", unlock, 3, 5),
        ("a", read(3), 6, 7),
        ("w", unread(2), 8, 9),
        ("a", unread(3), 10, 11),
        ("b", lock(4), 12, 13),
    ];
    let nested = [
        ("a", read(1), 1, 2),
        ("a", read(1), 3, 4),
        ("a", unread(1), 5, 6),
        ("a", unread(1), 7, 8),
        ("w", lock(2), 9, 10),
        ("w", lock(2), 11, 12),
    ];
    // B came in beside A.
    let beside = [
        ("a", read(1), 1, 2),
        ("b", read(1), 3, 4),
        ("a", unread(1), 5, 6),
        ("b", unread(1), 7, 8),
        ("w", lock(2), 9, 10),
    ];
    let lost = [
        ("a", read(1), 1, 2),
        ("a", read(1), 3, 4),
        ("a", lose_read(1), 5, 12),
        ("w", lock(2), 7, 8),
        ("w", lose, 9, 12),
        ("b", read(3), 10, 11),
    ];
    let unknown = [
        ("a", read(1), 1, 2),
        ("a", unread(1), 3, 0),
        ("w", lock(2), 20, 21),
    ];
    for calls in [
        &together[..],
        &in_turn,
        &downgraded,
        &nested,
        &beside,
        &lost,
        &unknown,
    ] {
        as_read_write(calls).unwrap();
    }
}

const fn see(term: u64) -> Op {
    Op::See { term }
}

#[test]
fn observers_see_the_leaders_of_their_time() {
    let (unlock, lose) = (Op::Unlock, Op::Lose);
    let in_turn = [
        ("o", see(0), 1, 2),
        ("a", lock(1), 3, 6),
        ("o", see(1), 4, 5),
        ("a", unlock, 7, 8),
        ("o", see(0), 9, 10),
        ("b", lock(2), 11, 12),
        ("o", see(2), 13, 14),
    ];
    // A change between two looks is not seen.
    let missed = [
        ("a", lock(1), 1, 2),
        ("o", see(1), 3, 4),
        ("a", unlock, 5, 6),
        ("b", lock(2), 7, 8),
        ("o", see(2), 9, 10),
    ];
    // The server has it for longer than its leader.
    let lingers = [
        ("a", lock(1), 1, 2),
        ("a", lose, 3, 4),
        ("o", see(1), 5, 6),
        ("o", see(0), 7, 8),
    ];
    for calls in [&in_turn[..], &missed, &lingers] {
        history(calls).check(Model::Election).unwrap();
    }
    let another = [("a", lock(2), 1, 2), ("o", see(1), 3, 4)];
    let released = [
        ("a", lock(1), 1, 2),
        ("a", unlock, 3, 4),
        ("o", see(1), 5, 6),
    ];
    let falls = [
        ("a", lock(1), 1, 2),
        ("a", unlock, 3, 12),
        ("b", lock(2), 5, 12),
        ("o", see(2), 6, 7),
        ("o", see(1), 8, 9),
    ];
    let again = [
        ("a", lock(1), 1, 2),
        ("a", lose, 3, 4),
        ("o", see(0), 5, 6),
        ("o", see(1), 7, 8),
    ];
    let nobody = [("a", lock(1), 1, 2), ("o", see(0), 3, 4)];
    for calls in [&another[..], &released, &falls, &again, &nobody] {
        history(calls)
            .check(Model::Election)
            .expect_err(&format!("{calls:?}"));
    }
}

const fn set(count: u32, has_set: bool) -> Op {
    Op::SetCount { count, has_set }
}

const fn left(count: u32) -> Op {
    Op::ReadCount { count }
}

#[test]
fn a_latch_counts_once_and_opens_at_zero() {
    let (down, open) = (Op::CountDown, Op::WaitOpen);
    let round = [
        ("a", open, 1, 2),
        ("a", set(2, true), 3, 4),
        ("b", set(5, false), 5, 6),
        ("c", open, 5, 12),
        ("a", down, 7, 8),
        ("b", left(1), 9, 10),
        ("b", down, 11, 12),
        ("b", left(0), 13, 14),
        ("a", set(1, true), 15, 16),
    ];
    // A call that gave up counts later, or never.
    let unknown = |last| {
        [
            ("a", set(2, true), 1, 2),
            ("a", down, 3, 0),
            ("b", left(2), 4, 5),
            ("b", down, 6, 7),
            ("b", left(last), 8, 9),
        ]
    };
    for calls in [&round[..], &unknown(0), &unknown(1)] {
        history(calls).check(Model::Latch).unwrap();
    }
    let begun = ("a", set(2, true), 1, 2);
    let twice = [begun, ("a", down, 3, 4), ("b", left(0), 5, 6)];
    let not = [begun, ("a", down, 3, 4), ("b", left(2), 5, 6)];
    let too_soon = [begun, ("a", down, 3, 4), ("b", open, 5, 6)];
    let refused = [("a", set(2, false), 1, 2)];
    let again = [begun, ("b", set(1, true), 3, 4)];
    for calls in [&twice[..], &not, &too_soon, &refused, &again] {
        history(calls)
            .check(Model::Latch)
            .expect_err(&format!("{calls:?}"));
    }
}

#[test]
fn a_reader_beside_a_writer_is_not_explained() {
    let (unlock, lose) = (Op::Unlock, Op::Lose);
    let reader_comes_in = [
        ("w", lock(1), 1, 2),
        ("a", read(2), 3, 4),
        ("w", unlock, 5, 6),
    ];
    let writer_comes_in = [
        ("a", read(1), 1, 2),
        ("w", lock(2), 3, 4),
        ("a", unread(1), 5, 6),
    ];
    // An owner reads inside its write, and does not write inside its read.
    let upgraded = [("a", read(1), 1, 2), ("a", lock(2), 3, 4)];
    let beside_a_downgrade = [
        ("w", lock(1), 1, 2),
        ("w", read(2), 3, 4),
        ("w", unlock, 5, 6),
        ("b", lock(3), 7, 8),
        ("w", unread(2), 9, 10),
    ];
    let beside_one_of_two = [
        ("a", read(1), 1, 2),
        ("b", read(2), 3, 4),
        ("a", unread(1), 5, 6),
        ("w", lock(3), 7, 8),
        ("b", unread(2), 9, 10),
    ];
    // Its reader still believed to hold it.
    let read_lost_late = [
        ("a", read(1), 1, 2),
        ("w", lock(2), 3, 4),
        ("a", lose_read(1), 5, 6),
    ];
    let write_lost_late = [
        ("w", lock(1), 1, 2),
        ("a", read(2), 3, 4),
        ("w", lose, 5, 6),
    ];
    for calls in [
        &reader_comes_in[..],
        &writer_comes_in,
        &upgraded,
        &beside_a_downgrade,
        &beside_one_of_two,
        &read_lost_late,
        &write_lost_late,
    ] {
        as_read_write(calls).expect_err(&format!("{calls:?}"));
    }
}

#[test]
fn two_writers_are_not_explained() {
    let beside = [
        ("a", lock(1), 1, 2),
        ("b", lock(2), 3, 4),
        ("a", Op::Unlock, 5, 6),
    ];
    as_read_write(&beside).expect_err("both write");
    let thrice = [("a", lock(1), 1, 2); 3];
    as_read_write(&thrice).expect_err("more guards than the bound");
}

#[test]
fn a_release_of_what_is_not_read_is_not_explained() {
    let twice = [
        ("a", read(1), 1, 2),
        ("a", unread(1), 3, 4),
        ("a", unread(1), 5, 6),
    ];
    let of_another_read = [("a", read(1), 1, 2), ("a", unread(2), 3, 4)];
    let of_a_write = [("a", lock(1), 1, 2), ("a", unread(1), 3, 4)];
    let as_a_write = [("a", read(1), 1, 2), ("a", Op::Unlock, 3, 4)];
    // Readers may share a fence, but each has reads of its own.
    let of_another_owner = [
        ("a", read(1), 1, 2),
        ("b", read(1), 3, 4),
        ("b", unread(1), 5, 6),
        ("b", unread(1), 7, 8),
    ];
    let lost_by_another = [("a", read(1), 1, 2), ("b", lose_read(1), 3, 4)];
    for calls in [
        &twice[..],
        &of_another_read,
        &of_a_write,
        &as_a_write,
        &of_another_owner,
        &lost_by_another,
    ] {
        as_read_write(calls).expect_err(&format!("{calls:?}"));
    }
}

#[test]
fn the_fence_of_a_read_is_between_those_of_the_writes_around_it() {
    // The writes before and after the read have the fences 5 and 10.
    for (fence, is_between) in [
        (4, false),
        (5, false),
        (6, true),
        (9, true),
        (10, false),
        (11, false),
    ] {
        let calls = [
            ("w", lock(5), 1, 2),
            ("w", Op::Unlock, 3, 4),
            ("a", read(fence), 5, 6),
            ("a", unread(fence), 7, 8),
            ("w", lock(10), 9, 10),
        ];
        assert_eq!(as_read_write(&calls).is_ok(), is_between, "{fence}");
    }
    // A read inside a write is above that.
    for (fence, is_above) in [(4, false), (5, false), (6, true)] {
        let calls = [("w", lock(5), 1, 2), ("w", read(fence), 3, 4)];
        assert_eq!(as_read_write(&calls).is_ok(), is_above, "{fence}");
    }
    // The fences of later writes are above that of a read that was lost.
    let after_a_loss = [
        ("a", read(5), 1, 2),
        ("a", lose_read(5), 3, 4),
        ("w", lock(4), 5, 6),
    ];
    as_read_write(&after_a_loss).expect_err("4 is below 5");
}

/// Releases of reads without answers are tried in all orders, as those of writes are.
#[test]
fn reads_without_ends_do_not_multiply_the_search() {
    let hold = |at: u64| {
        let (since, fence) = (at * 10, at * 3 + 1);
        [
            ("a", read(fence), since, since + 2),
            ("b", read(fence + 1), since, since + 3),
            ("a", unread(fence), since + 4, 0),
            ("b", unread(fence + 1), since + 4, 0),
            ("b", lose_read(fence + 1), since + 4, 0),
            ("w", lock(fence + 2), since + 5, since + 8),
            ("w", Op::Unlock, since + 9, 0),
        ]
    };
    let mut calls: Vec<_> = (1..200).flat_map(hold).collect();
    as_read_write(&calls).unwrap();
    // All orders are tried in vain.
    calls.push(("c", Op::Unlock, 3_000, 3_001));
    as_read_write(&calls).expect_err("C does not write");
}

#[test]
fn a_lock_without_readers_explains_no_read() {
    assert_eq!(explained(&[("a", read(1), 1, 2)]), [false; 4]);
}

#[test]
fn locks_are_checked_independently() {
    let mut both = history(&[("a", lock(1), 1, 2)]);
    both.calls.extend(
        history(&[("b", lock(1), 1, 2)])
            .calls
            .into_iter()
            .map(|call| Call {
                key: "l".into(),
                ..call
            }),
    );
    both.check(Model::Fenced).unwrap();
    both.calls.extend(
        history(&[
            ("a", read(2), 3, 4),
            ("a", unread(2), 5, 0),
            ("a", lose_read(2), 5, 0),
        ])
        .calls,
    );
    let text: Vec<Call> = both
        .calls
        .iter()
        .map(|call| Call::parse(&call.to_string()).unwrap())
        .collect();
    assert_eq!(text, both.calls, "a history that is written can be read");
}

/// Enters and leaves, and records its calls.
async fn visits(lock: Lock, key: String, rounds: usize) -> Vec<Call> {
    let (mut calls, owner) = (Vec::new(), Owner::new());
    let lock = lock.owned_by(owner.clone());
    let call = |op, called| {
        let (key, who, returned) = (key.clone(), owner.to_string(), Some(record::now()));
        Call {
            key,
            who,
            op,
            called,
            returned,
        }
    };
    for _ in 0..rounds {
        let called = record::now();
        let guard = lock.lock().await.unwrap();
        calls.push(call(
            Op::Lock {
                fence: guard.fence().get(),
            },
            called,
        ));
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..300))).await;
        let called = record::now();
        guard.unlock().await.unwrap();
        calls.push(call(Op::Unlock, called));
    }
    calls
}

async fn contest(same: bool) -> History {
    let server = Server::start();
    let (a, b) = tokio::join!(
        builder(&server.url(), ms(5_000)).connect(),
        builder(&server.url(), ms(5_000)).connect()
    );
    let (lockers, name) = ([a.unwrap(), b.unwrap()], key());
    let tasks: Vec<_> = (0..8)
        .map(|at| {
            // A broken lock: each process has one of its own.
            let key = if same {
                name.clone()
            } else {
                format!("{name}:{}", at % 2)
            };
            tokio::spawn(visits(lockers[at % 2].get(key), name.clone(), 40))
        })
        .collect();
    let mut history = History::default();
    for task in tasks {
        history.calls.extend(task.await.unwrap());
    }
    history
}

#[tokio::test]
async fn calls_of_many_tasks_are_explained_unless_the_lock_is_broken() {
    let sound = contest(true).await;
    assert_eq!(sound.calls.len(), 640);
    for model in MODELS {
        sound.check(model).unwrap();
    }
    let broken = contest(false).await;
    for model in MODELS {
        let error = broken.check(model).expect_err("two are in at once");
        assert!(error.contains("no order of the calls on"), "{error}");
    }
}
