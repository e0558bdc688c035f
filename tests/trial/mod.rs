//! A kind of lock that is no part of the library. It shows that a kind is one file and one folder
//! of Lua: its locks have other keys and another channel, and keep the contract.

use crate::behaviours::{Chosen, Deployment, on_each, with_every_behaviour};
use crate::key::Family;
use crate::kind::{CommandsOfKind, Format, Kind, LockKind, LockRole, Scripts};
use crate::lua::Texts;

static FAMILY: Family = Family {
    key: "trial:",
    channel: "trial__channel:",
    braces: false,
};

pub(super) static TRIAL: Kind = Kind {
    name: "trial",
    format: Format::Redisson,
    family: &FAMILY,
    role: LockRole::Alone,
    counted: LockKind::Lock,
    key_type: "hash",
    announced: true,
    labelled: true,
    tokens: false,
    calls: CommandsOfKind {
        to_lock: &["HEXISTS LOCK f", "HSET LOCK f 1", "HSETNX LOCK f 1"],
        to_inspect: &["GET LOCK", "HGETALL LOCK"],
        to_do_both: &[],
        to_retake: &["EXISTS LOCK"],
    },
    scripts: Scripts::of(TEXTS),
};

/// Where it does nothing of its own, it has the texts of another kind.
const TEXTS: Texts = &[
    ("acquire", include_str!("acquire.lua")),
    (
        "acquire_all",
        include_str!("../../lua/redisson/acquire_all.lua"),
    ),
    ("count", include_str!("../../lua/redisson/count.lua")),
    ("release", include_str!("release.lua")),
    ("keep", include_str!("../../lua/redisson/keep.lua")),
    (
        "hand_over",
        include_str!("../../lua/redisson/hand_over.lua"),
    ),
    ("renew", include_str!("../../lua/redisson/renew.lua")),
    ("retake", include_str!("../../lua/redisson/retake.lua")),
    ("extend", include_str!("../../lua/redisson/extend.lua")),
    ("raise", include_str!("../../lua/redisson/raise.lua")),
];

const CHOSEN: Chosen = Chosen {
    by: |builder| builder.kind(&TRIAL),
    prefix: "trial:",
};

/// One of each kind, held at once under one name.
#[cfg(feature = "testing")]
#[tokio::test]
async fn locks_of_two_families_have_nothing_in_common() {
    let server = crate::testing::Server::new();
    let connect = || crate::Locker::builder().memory(&server);
    let trial = connect().kind(&TRIAL).connect().await.expect("connected");
    let other = connect().connect().await.expect("connected");
    let locks = [&trial, &other].map(|locker| locker.get("k"));
    let held = [
        locks[0].lock().await.expect("taken"),
        locks[1].lock().await.expect("taken"),
    ];
    assert!(server.holder("trial:k").is_some() && server.holder("k").is_some());
    assert_eq!(
        held.each_ref().map(|guard| guard.key().as_str()),
        ["k", "k"],
        "names are bare"
    );
    assert_ne!(held[0].key(), held[1].key());
    let [first, second] = held;
    first.unlock().await.expect("released");
    assert!(server.holder("k").is_some(), "the other one stays");
    second.unlock().await.expect("released");
}

mod one_server {
    use super::*;
    with_every_behaviour!(on_each! Deployment::of(1, CHOSEN););
}

mod three_servers {
    use super::*;
    with_every_behaviour!(on_each! Deployment::of(3, CHOSEN););
}

#[cfg(feature = "testing")]
mod one_server_in_memory {
    use super::*;
    with_every_behaviour!(on_each! Deployment::in_memory(1, CHOSEN););
}
