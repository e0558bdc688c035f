//! Writes the value of a leader on all servers, and finds out who leads.

use std::time::Duration;

use super::{Quorum, Settled};
use crate::error::Error;
use crate::key::Key;
use crate::lease::majority;
use crate::op::{KeyLeader, Proclaim, ReadLeader};

impl Quorum {
    /// Writes the value of a leader. Does not wait for the slowest node. Once it is done, any
    /// majority has a node with this value or a later one.
    pub(crate) async fn proclaim(&self, proclaim: Proclaim) -> Settled {
        self.settle(self.ask(proclaim)).await
    }

    /// Returns who leads: whoever has the lock on a majority of the nodes.
    ///
    /// # Errors
    /// [`Error::Unavailable`], also if the nodes that have not answered decide; or the refusal of a
    /// server.
    pub(crate) async fn leader(&self, key: &Key) -> Result<Option<KeyLeader>, Error> {
        let nodes = self.nodes.len();
        let asking = self.ask(ReadLeader(key.clone()));
        let certain = |found: &[_], _| elected(found, nodes).is_some();
        let found = self.hear(asking, certain).await?;
        elected(&found, nodes).ok_or_else(|| {
            let answered = found.len();
            let reason = format!(
                "{answered} of {nodes} servers have answered, and the others decide who leads"
            );
            self.unavailable(self.failures(reason), Duration::ZERO)
        })
    }
}

/// Returns who leads by these answers of this number of nodes; `None` if those that are missing
/// decide. Of the values under the leader's field the last one counts.
fn elected(found: &[Option<KeyLeader>], nodes: usize) -> Option<Option<KeyLeader>> {
    let missing = nodes - found.len();
    let mut most = 0;
    for leader in found.iter().flatten() {
        let same = || {
            let named = found.iter().flatten();
            named.filter(|other| other.field == leader.field)
        };
        most = most.max(same().count());
        if same().count() >= majority(nodes) {
            let number = |leader: &&KeyLeader| leader.said.as_ref().map(|said| said.number);
            return Some(same().max_by_key(number).cloned());
        }
    }
    (most + missing < majority(nodes)).then_some(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::LeaderValue;

    fn leader(field: &str, number: Option<i64>) -> Option<KeyLeader> {
        let said = number.map(|number| LeaderValue {
            term: None,
            number,
            value: Vec::new(),
        });
        Some(KeyLeader {
            field: field.as_bytes().to_vec(),
            remaining: None,
            said,
        })
    }

    #[test]
    fn a_leader_has_a_majority_and_its_last_value() {
        let (a, b) = (leader("a", None), leader("b", Some(7)));
        let (first, second) = (leader("a", Some(1)), leader("a", Some(2)));
        assert_eq!(
            elected(std::slice::from_ref(&first), 1),
            Some(first.clone())
        );
        assert_eq!(elected(&[None], 1), Some(None));
        assert_eq!(elected(&[first.clone(), a.clone()], 3), Some(first.clone()));
        assert_eq!(
            elected(&[first.clone(), b.clone(), second.clone()], 3),
            Some(second)
        );
        assert_eq!(elected(&[None, None], 3), Some(None));
        assert_eq!(
            elected(&[a.clone(), b, None], 3),
            Some(None),
            "no caller has a majority"
        );
        assert_eq!(
            elected(&[a, None], 3),
            None,
            "the third one decides whether it leads"
        );
    }
}
