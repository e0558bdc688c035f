//! The map that says which server of a cluster has which slot.

use std::sync::Arc;

use super::super::check::value;
use super::super::host_port::HostPort;
use super::super::reply::Reply;
use super::super::slot::{SLOTS, Slot};

/// The slots of each server, as sorted ranges.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct SlotMap(Vec<Range>);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Range {
    first: Slot,
    last: Slot,
    master: HostPort,
}

impl SlotMap {
    /// Reads the answer to CLUSTER SLOTS: for each range the first slot, the last slot, the master
    /// and its replicas. Returns `None` if it is no such answer, or names no server. A master
    /// without an address is left out: no node of the cluster knows where it is.
    pub(super) fn read(reply: &Reply, told_by: &HostPort) -> Option<Self> {
        let Reply::Array(entries) = reply else {
            return None;
        };
        let ranges = entries
            .iter()
            .map(|entry| range(entry, told_by))
            .collect::<Option<Vec<_>>>()?;
        let mut ranges: Vec<_> = ranges
            .into_iter()
            .filter(|range| range.master.port != 0)
            .collect();
        ranges.sort_unstable();
        (!ranges.is_empty()).then_some(Self(ranges))
    }

    /// Returns the server that has a slot.
    pub(super) fn master(&self, slot: Slot) -> Option<&HostPort> {
        let at = self.0.partition_point(|range| range.last < slot);
        self.0
            .get(at)
            .filter(|range| range.first <= slot)
            .map(|range| &range.master)
    }

    /// Returns how many slots no server is known to have.
    pub(super) fn without_master(&self) -> usize {
        let had = |range: &Range| usize::from((range.last + 1).saturating_sub(range.first));
        usize::from(SLOTS).saturating_sub(self.0.iter().map(had).sum())
    }

    /// Returns every server that has slots, once.
    pub(super) fn masters(&self) -> Vec<HostPort> {
        let mut masters: Vec<_> = self.0.iter().map(|range| range.master.clone()).collect();
        masters.sort_unstable();
        masters.dedup();
        masters
    }

    /// Returns the map after MOVED has named another server for a slot.
    pub(super) fn moved(&self, slot: Slot, to: &HostPort) -> Self {
        let mut ranges = Vec::with_capacity(self.0.len() + 2);
        for range in &self.0 {
            if slot < range.first || range.last < slot {
                ranges.push(range.clone());
                continue;
            }
            if range.first < slot {
                ranges.push(Range {
                    last: slot - 1,
                    ..range.clone()
                });
            }
            if slot < range.last {
                ranges.push(Range {
                    first: slot + 1,
                    ..range.clone()
                });
            }
        }
        ranges.push(Range {
            first: slot,
            last: slot,
            master: to.clone(),
        });
        ranges.sort_unstable();
        Self(ranges)
    }
}

fn range(entry: &Reply, told_by: &HostPort) -> Option<Range> {
    let Reply::Array(parts) = entry else {
        return None;
    };
    let [
        Reply::Int(first),
        Reply::Int(last),
        Reply::Array(master),
        ..,
    ] = &**parts
    else {
        return None;
    };
    let [host, Reply::Int(port), about @ ..] = &**master else {
        return None;
    };
    let host = match host {
        // It prefers host names, and this one has none; then its address may be among the details
        // behind its id.
        Reply::Bytes(host) if **host == *b"?" => {
            let ip = about.get(1).and_then(|details| value(details, "ip"));
            ip.map_or_else(|| Arc::clone(&told_by.host), Arc::from)
        }
        Reply::Bytes(host) => HostPort::host(host, told_by)?,
        // The server tells no hosts: all are where it is.
        Reply::Nil => Arc::clone(&told_by.host),
        _ => return None,
    };
    let slot = |number: i64| Slot::try_from(number).ok().filter(|&slot| slot < SLOTS);
    Some(Range {
        first: slot(*first)?,
        last: slot(*last)?,
        master: HostPort::new(host, (*port).try_into().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(port: u16) -> HostPort {
        HostPort {
            host: "h".into(),
            port,
        }
    }

    fn bytes(text: &str) -> Reply {
        Reply::Bytes(text.to_owned().into())
    }

    fn entry(first: i64, last: i64, host: Reply, port: i64) -> Reply {
        let replica = Reply::Array(vec![bytes("r"), Reply::Int(9)]);
        Reply::Array(vec![
            Reply::Int(first),
            Reply::Int(last),
            Reply::Array(vec![host, Reply::Int(port)]),
            replica,
        ])
    }

    #[test]
    fn the_map_says_who_has_a_slot() {
        let told_by = place(1);
        let reply = Reply::Array(vec![
            entry(8_192, 16_383, bytes("b"), 7_002),
            entry(0, 99, Reply::Nil, 7_001),
            entry(101, 8_000, bytes(""), 7_001),
        ]);
        let map = SlotMap::read(&reply, &told_by).expect("a map");
        let of = |slot| map.master(slot).map(|place| (&*place.host, place.port));
        assert_eq!(
            [0, 99, 100, 101, 8_000].map(of),
            [
                Some(("h", 7_001)),
                Some(("h", 7_001)),
                None,
                Some(("h", 7_001)),
                Some(("h", 7_001))
            ]
        );
        assert_eq!(
            [8_001, 8_192, 16_383].map(of),
            [None, Some(("b", 7_002)), Some(("b", 7_002))]
        );
        assert_eq!((map.masters().len(), map.without_master()), (2, 1 + 191));
    }

    #[test]
    fn a_master_without_an_address_is_left_out() {
        let reply = Reply::Array(vec![
            entry(0, 99, bytes(""), 0),
            entry(100, 199, bytes("?"), 7_001),
        ]);
        let map = SlotMap::read(&reply, &place(1)).expect("a map");
        assert_eq!(
            (map.master(0), map.master(100)),
            (None, Some(&place(7_001)))
        );
        let details = Reply::Array(vec![bytes("ip"), bytes("10.0.0.1")]);
        let master = Reply::Array(vec![bytes("?"), Reply::Int(7_001), bytes("id"), details]);
        let reply = Reply::Array(vec![Reply::Array(vec![
            Reply::Int(0),
            Reply::Int(99),
            master,
        ])]);
        let map = SlotMap::read(&reply, &place(1)).expect("a map");
        assert_eq!(map.master(0).map(|place| &*place.host), Some("10.0.0.1"));
        assert_eq!(
            SlotMap::read(&Reply::Array(vec![entry(0, 99, bytes(""), 0)]), &place(1)),
            None
        );
    }

    #[test]
    fn what_is_no_map_is_none() {
        let told_by = place(1);
        for reply in [
            Reply::Nil,
            Reply::Array(Vec::new()),
            Reply::Array(vec![entry(0, 16_384, bytes("a"), 1)]),
            Reply::Array(vec![entry(-1, 1, bytes("a"), 1)]),
            Reply::Array(vec![entry(0, 1, bytes("a"), 70_000)]),
            Reply::Array(vec![entry(0, 1, Reply::Int(1), 1)]),
            Reply::Array(vec![Reply::Array(vec![Reply::Int(0), Reply::Int(1)])]),
        ] {
            assert_eq!(SlotMap::read(&reply, &told_by), None, "{reply:?}");
        }
    }

    #[test]
    fn a_slot_that_moved_is_its_new_masters_and_no_other() {
        let told_by = place(1);
        let whole = SlotMap::read(
            &Reply::Array(vec![entry(0, 16_383, Reply::Nil, 1)]),
            &told_by,
        )
        .expect("a map");
        for slot in [0, 7, 16_383] {
            let map = whole.moved(slot, &place(2)).moved(slot, &place(3));
            let have = |master| {
                (0..SLOTS)
                    .filter(|&slot| map.master(slot) == Some(&place(master)))
                    .collect::<Vec<_>>()
            };
            assert_eq!(
                (have(3), have(2).len(), have(1).len()),
                (vec![slot], 0, 16_383)
            );
        }
        assert_eq!(
            SlotMap::default().moved(5, &place(2)).master(5),
            Some(&place(2))
        );
    }
}
