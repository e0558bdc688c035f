//! Checks a model in every state within its bounds, and a mutant of it.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

/// What the checker needs of a model.
pub(crate) trait Checked:
    Model<State: Clone + Debug + Hash + PartialEq + Send + Sync, Action: Clone + Debug + PartialEq>
    + Debug
    + Send
    + Sync
    + 'static
{
}

/// Checks every state within the bounds.
pub(crate) fn keeps_its_promises(protocol: impl Checked) {
    let (start, bounds) = (Instant::now(), format!("{protocol:?}"));
    let checker = protocol.checker().spawn_bfs().join();
    let (states, steps, depth) = (
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
    );
    println!(
        "{bounds}: {states} states, {steps} steps, depth {depth}, {:.1?}",
        start.elapsed()
    );
    assert!(checker.is_done(), "states are left");
    checker.assert_properties();
}

/// Checks that a mutant breaks each of these promises, and prints how.
pub(crate) fn breaks(mutant: impl Checked, promises: &[&'static str]) {
    let (start, name) = (Instant::now(), format!("{mutant:?}"));
    let all = HasDiscoveries::AllOf(promises.iter().copied().collect());
    let checker = mutant.checker().finish_when(all).spawn_bfs().join();
    println!(
        "{name}: {} states, {:.1?}",
        checker.unique_state_count(),
        start.elapsed()
    );
    for promise in promises {
        let way = checker.discovery(promise);
        assert!(way.is_some(), "{name} keeps the promise: {promise}");
        println!(
            "not \"{promise}\": {:#?}",
            way.map(stateright::Path::into_actions)
        );
    }
}
