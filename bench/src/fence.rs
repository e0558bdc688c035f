//! What a fence costs: `acquire.lua` as it is, and the same script without the lines that make the fence.

use std::fmt;
use std::io;

use serde::Serialize;

use crate::Failure;
use crate::connection::Connection;
use crate::contender::{mark, prefix};
use crate::report::Outcome;
use crate::spread::Spread;

/// The script as it is.
pub(crate) const WITH: &str = "with a fence";
/// The script as it is, asked as one of several servers is.
pub(crate) const SEVERAL: &str = "of several";
/// The script without the lines of the fence.
pub(crate) const WITHOUT: &str = "without";

/// What has to change for the fence to be gone: each of these stands once in `acquire.lua`, or the bench says that it
/// has to be brought up to date.
const EDITS: [(&str, &str); 3] = [
    ("local lock, mark = KEYS[1], KEYS[2]\n", "local lock = KEYS[1]\n"),
    ("local lease_ms, field, asked = ARGV[1], ARGV[2], ARGV[3]\n", "local lease_ms, field = ARGV[1], ARGV[2]\n"),
    ("return {1, fence}", "return {1}"),
];

/// The given `acquire.lua` without its fence, which `fence.lua` makes in the place of a comment: neither its key nor
/// the clock of the client is sent.
pub(crate) fn removed_from(acquire: &str) -> Result<String, Failure> {
    let code: Vec<&str> = acquire.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
    let mut script = code.join("\n");
    for (with, without) in EDITS {
        if script.matches(with).count() != 1 {
            return Err(format!("acquire.lua has changed, and the list in bench/src/fence.rs has not: {with:?}").into());
        }
        script = script.replace(with, without);
    }
    if script.contains("fence") || script.contains("ARGV[3]") {
        return Err("acquire.lua has changed: the list in bench/src/fence.rs leaves a part of the fence".into());
    }
    Ok(script)
}

/// The price of a fence, each round's difference.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Price {
    /// On one server alone.
    pub(crate) one: Cost,
    /// On each of several servers.
    pub(crate) several: Cost,
    /// What MEMORY USAGE says about a mark, of which a server has 1,024 at the most.
    pub(crate) bytes: u64,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Cost {
    pub(crate) pair_p50_us: Spread,
    pub(crate) server_us: Spread,
}

impl Price {
    /// From the scenario that measured all three, whose locks have left their marks on the server.
    pub(crate) fn of(outcome: &Outcome, control: &mut Connection) -> Result<Self, Failure> {
        let rounds = |name| outcome.entry(name).map(|entry| entry.rounds.as_slice()).unwrap_or_default();
        let cost = |name| {
            let both = || rounds(name).iter().zip(rounds(WITHOUT));
            Cost {
                pair_p50_us: Spread::of(both().map(|(with, without)| with.pair_p50_us - without.pair_p50_us)),
                server_us: Spread::of(both().map(|(with, without)| with.server_us - without.server_us)),
            }
        };
        let key = mark(&format!("{}0", prefix(WITH)));
        Ok(Self { one: cost(WITH), several: cost(SEVERAL), bytes: memory(control, &key)? })
    }
}

fn memory(control: &mut Connection, key: &str) -> io::Result<u64> {
    let reply = String::from_utf8_lossy(control.call(&[b"MEMORY", b"USAGE", key.as_bytes()])?);
    let bytes = reply.trim().strip_prefix(':').and_then(|number| number.parse().ok());
    bytes.ok_or_else(|| io::Error::other(format!("MEMORY USAGE {key} says {reply:?}")))
}

impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (on, Cost { pair_p50_us: pair, server_us: server }) in
            [("one server", &self.one), ("each of several servers", &self.several)]
        {
            writeln!(
                f,
                "on {on} a fence costs {:.1} us of a pair's p50 ({:.1}..{:.1}), {:.1} us of the server's CPU ({:.1}..{:.1})",
                pair.median, pair.min, pair.max, server.median, server.min, server.max
            )?;
        }
        writeln!(f, "and {} bytes of its memory for each of at most 1,024 marks", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::ACQUIRE_BODY;

    #[test]
    fn the_list_fits_the_script() {
        let script = removed_from(ACQUIRE_BODY).expect("up to date");
        assert!(script.contains("HSETNX") && script.contains("PTTL"), "{script}");
        assert!(
            removed_from(&ACQUIRE_BODY.replace("{1, fence}", "{fence}"))
                .is_err_and(|e| e.to_string().contains("{1, fence}"))
        );
    }
}
