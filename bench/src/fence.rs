//! What a fence costs: `acquire.lua` as it is, and the same script without the lines that make the fence.

use std::fmt;
use std::io;

use serde::Serialize;

use crate::Failure;
use crate::connection::Connection;
use crate::contender::{fence_key, prefix};
use crate::report::Outcome;
use crate::spread::Spread;

/// The script as it is.
pub(crate) const WITH: &str = "with a fence";
/// The script without the lines of the fence.
pub(crate) const WITHOUT: &str = "without";

/// What has to change for the fence to be gone: each of these stands once in `acquire.lua`, or the bench says that it
/// has to be brought up to date.
const EDITS: [(&str, &str); 5] = [
    ("local lock, last_fence = KEYS[1], KEYS[2]\n", "local lock = KEYS[1]\n"),
    (
        "local now = redis.call('TIME')\n\
         local now_us, floor_us = now[1] * 1000000 + now[2], tonumber(ARGV[3])\n\
         local fence = math.max(math.min(floor_us, now_us), now_us - 60000000)\n",
        "",
    ),
    (
        "local text = string.format('%.0f', fence)\n\
         local last = tonumber(redis.call('SET', last_fence, text, 'PX', 120000, 'GET') or 0)\n",
        "",
    ),
    (
        "if last and last >= fence then\n  text = string.format('%.0f', last + 1)\n  redis.call('SET', last_fence, text, \
         'PX', 120000)\nend\n",
        "",
    ),
    ("return {1, text}", "return {1}"),
];

/// The given `acquire.lua` without its fence: neither its key nor the clock of the client is sent.
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
    pub(crate) pair_p50_us: Spread,
    pub(crate) server_us: Spread,
    /// What MEMORY USAGE says about the key of one lock's last fence, which stays for two minutes.
    pub(crate) bytes: u64,
}

impl Price {
    /// From the scenario that measured both, whose locks have left their fences on the server.
    pub(crate) fn of(outcome: &Outcome, control: &mut Connection) -> Result<Self, Failure> {
        let rounds = |name| outcome.entry(name).map(|entry| entry.rounds.as_slice()).unwrap_or_default();
        let both = || rounds(WITH).iter().zip(rounds(WITHOUT));
        let key = fence_key(&format!("{}0", prefix(WITH)));
        Ok(Self {
            pair_p50_us: Spread::of(both().map(|(with, without)| with.pair_p50_us - without.pair_p50_us)),
            server_us: Spread::of(both().map(|(with, without)| with.server_us - without.server_us)),
            bytes: memory(control, &key)?,
        })
    }
}

fn memory(control: &mut Connection, key: &str) -> io::Result<u64> {
    let reply = String::from_utf8_lossy(control.call(&[b"MEMORY", b"USAGE", key.as_bytes()])?);
    let bytes = reply.trim().strip_prefix(':').and_then(|number| number.parse().ok());
    bytes.ok_or_else(|| io::Error::other(format!("MEMORY USAGE {key} says {reply:?}")))
}

impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pair_p50_us: pair, server_us: server, bytes } = self;
        writeln!(
            f,
            "a fence costs {:.1} us of a pair's p50 ({:.1}..{:.1}), {:.1} us of the server's CPU ({:.1}..{:.1}),",
            pair.median, pair.min, pair.max, server.median, server.min, server.max
        )?;
        writeln!(f, "and {bytes} bytes of its memory for each lock that was taken in the last two minutes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::ACQUIRE;

    #[test]
    fn the_list_fits_the_script() {
        let script = removed_from(ACQUIRE).expect("up to date");
        assert!(script.contains("HSETNX") && script.contains("PTTL"), "{script}");
        assert!(removed_from(&ACQUIRE.replace("'TIME'", "'time'")).is_err_and(|e| e.to_string().contains("TIME")));
    }
}
