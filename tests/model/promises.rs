//! What must be true in every state of the model, and what has to happen in at least one.

use stateright::Property;

use crate::Protocol;
use crate::client::{Client, Hold, Undo};

type Claim = Property<Protocol>;

/// No two owners are inside.
pub(crate) const EXCLUSION: &str = "exclusion";
/// A holder with validity left has the key, unless it was deleted from outside and the next renewal
/// is not yet answered.
pub(crate) const BELIEF: &str = "belief";
/// A late command does nothing to a later hold, and no command is answered by the hold of another
/// attempt.
pub(crate) const STALE: &str = "generations";
/// The hold count on the server is right. A granted hold begins with one.
pub(crate) const COUNT: &str = "count";
/// A client that is answered "gone" is not inside any more.
pub(crate) const TOLD: &str = "told";
/// When no owner wants, holds or undoes anything, the key is free, whatever may still be in flight.
/// The exception is an acquire that is executed after its second cancel was sent: see [`RUNS_OUT`].
pub(crate) const LEAK: &str = "leak";
/// Nothing in flight renews the lease of such an acquire: the key is free within a lease.
pub(crate) const RUNS_OUT: &str = "runs out";

/// Returns what must be true in every state.
pub(crate) fn promises() -> Vec<Claim> {
    vec![
        Claim::always(EXCLUSION, |_, state| state.inside().count() <= 1),
        Claim::always(BELIEF, |model, state| {
            let held = state.server.key.map(|key| model.field(key.by));
            state.inside().all(|by| held == Some(model.field(by)))
        }),
        Claim::always(STALE, |_, state| !state.server.harm.stale),
        Claim::always(COUNT, |model, state| {
            // The only way to a second guard is a count of two.
            let most = |owner: u8| model.owners[usize::from(owner)].guards;
            let counted = state
                .server
                .key
                .is_none_or(|key| (1..=most(key.by.owner)).contains(&key.count));
            counted && !state.server.harm.miscounted
        }),
        Claim::always(TOLD, |_, state| !state.server.harm.untold),
        Claim::always(LEAK, |_, state| {
            !state.is_quiet() || state.server.key.is_none_or(|key| key.stray)
        }),
        Claim::always(RUNS_OUT, |model, state| {
            !state.is_quiet() || state.runs_out(model)
        }),
    ]
}

/// Returns what has to happen, since a model in which nothing happens keeps every promise.
pub(crate) fn sights(protocol: &Protocol) -> Vec<Claim> {
    let mut sights = vec![
        Claim::sometimes("too late", |_, state| {
            state.is_quiet() && state.server.key.is_some()
        }),
        Claim::sometimes("late grant", |_, state| {
            state.clients.iter().any(|client| {
                client
                    .acquire
                    .is_some_and(|acquire| acquire.granted && acquire.valid == 0)
            })
        }),
    ];
    if protocol.owners.len() > 1 {
        sights.push(Claim::sometimes("succession", |_, state| {
            state.inside().count() == 1 && state.clients.iter().any(is_lost)
        }));
    }
    if protocol.renews {
        sights.push(Claim::sometimes("late answer", |_, state| {
            let late = |client: &Client| {
                is_lost(client) && client.renewal.is_some_and(|renewal| renewal.done)
            };
            state.clients.iter().any(late)
        }));
    }
    if protocol.owners.iter().any(|limits| limits.attempts > 1) {
        sights.push(Claim::sometimes("late undo", |_, state| {
            state
                .clients
                .iter()
                .any(|client| client.inside() == Some(1) && client.undos[0] == Undo::First)
        }));
    }
    if protocol.owners.iter().any(|limits| limits.guards > 1) {
        sights.push(Claim::sometimes("nesting", |_, state| {
            state.server.key.is_some_and(|key| key.count == 2)
        }));
    }
    if protocol.deletions > 0 {
        sights.push(Claim::sometimes("deletion", |_, state| {
            state
                .victim
                .is_some_and(|by| state.client(by.owner).inside() == Some(by.number))
                && state.inside().count() == 1
        }));
    }
    sights
}

fn is_lost(client: &Client) -> bool {
    matches!(client.hold, Hold::Lost { .. })
}
