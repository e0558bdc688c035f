//! What must be true in every state of the quorum's model, and what has to happen in at least one.

use stateright::Property;

use super::node::{Key, Node};
use super::{CLIENTS, MAJORITY, Phase, Protocol, State};

type Claim = Property<Protocol>;

/// No two clients are inside.
pub(crate) const EXCLUSION: &str = "exclusion";
/// A holder has the key on a majority, not counting nodes that have lost their data.
pub(crate) const BELIEF: &str = "belief";
/// A later guard has a higher fence.
pub(crate) const FENCES: &str = "fences";
/// A mark never falls, unless its node loses its data.
pub(crate) const MARKS: &str = "marks";
/// When nobody wants, holds or undoes anything, or waits for an answer, the key is free on every
/// node, whatever may still be in flight. The exception is a command that is executed after its
/// second cancel was answered: the key runs out with its lease.
pub(crate) const LEAK: &str = "leak";

/// Returns what must be true in every state.
pub(crate) fn promises() -> Vec<Claim> {
    vec![
        Claim::always(EXCLUSION, |_, state| inside(state).count() <= 1),
        Claim::always(BELIEF, |model, state| {
            inside(state).all(|owner| {
                let by = state.attempt(owner);
                let has = |node: &&Node| node.is_held_by(model, by) || node.restarted;
                state.nodes.iter().filter(has).count() >= MAJORITY
            })
        }),
        Claim::always(FENCES, |_, state| !state.stale_fence),
        Claim::always(MARKS, |_, state| !state.fallen),
        Claim::always(LEAK, |_, state| {
            !state.is_quiet() || keys(state).all(|key| key.stray)
        }),
    ]
}

/// Returns what has to happen, since a model in which nothing happens keeps every promise.
pub(crate) fn sights(protocol: &Protocol) -> Vec<Claim> {
    let mut sights = vec![Claim::sometimes("all vote", |_, state: &State| {
        (0..CLIENTS as u8).any(|owner| state.votes(owner) == state.nodes.len())
    })];
    if protocol.attempts[1] > 0 {
        sights.push(Claim::sometimes("split", |_, state: &State| {
            let has = |owner| {
                state
                    .nodes
                    .iter()
                    .any(|node| node.key.is_some_and(|key| key.by.owner == owner))
            };
            has(0)
                && has(1)
                && state
                    .clients
                    .iter()
                    .all(|client| client.phase == Phase::Asking)
        }));
    }
    if protocol.fences {
        sights.push(Claim::sometimes(
            "to be written back",
            |_, state: &State| {
                state
                    .clients
                    .iter()
                    .any(|client| matches!(client.phase, Phase::Raising { .. }))
            },
        ));
    }
    if protocol.restarts > 0 && protocol.renews {
        sights.push(Claim::sometimes("taken back", |_, state: &State| {
            let again = |node: &Node| {
                node.restarted && node.abstains > 0 && node.views.iter().any(|view| view.valid > 0)
            };
            state.nodes.iter().any(again)
        }));
    }
    if protocol.restarts > 0 && protocol.fences {
        sights.push(Claim::sometimes("told", |_, state: &State| {
            let again = |node: &Node| {
                node.restarted && node.votes() && node.views.iter().any(|view| view.fence > 0)
            };
            state.nodes.iter().any(again)
        }));
    }
    if protocol.silences > 0 {
        sights.push(Claim::sometimes("late", |_, state: &State| {
            state.is_quiet() && keys(state).any(|key| key.stray)
        }));
        sights.push(Claim::sometimes("doubt", |_, state: &State| {
            inside(state).any(|owner| state.views(owner).any(|view| view.uncertain))
        }));
    }
    sights
}

/// Returns the clients that believe to hold the lock.
fn inside(state: &State) -> impl Iterator<Item = u8> {
    (0..CLIENTS as u8).filter(|&owner| state.client(owner).phase == Phase::Held)
}

fn keys(state: &State) -> impl Iterator<Item = &Key> {
    state.nodes.iter().filter_map(|node| node.key.as_ref())
}
