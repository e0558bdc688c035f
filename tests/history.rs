//! The check of histories, checked: what each model of a lock explains and what it does not, and a
//! broken lock.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

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
fn only_a_re_entrant_lock_is_re_entered_and_only_up_to_its_bound() {
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
