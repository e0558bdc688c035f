//! What a fence costs: `acquire.lua`, compared with the same script without the lines that make the
//! fence.
//!
//! The difference is a microsecond, which a client cannot measure on top of a round trip. So the
//! scripts are sent in one stream, and the server's own counts are used.

use std::fmt;
use std::io;

use serde::Serialize;

use crate::Failure;
use crate::bar::Bar;
use crate::connection::Connection;
use crate::contender::{ACQUIRE, ACQUIRE_BODY, LEASE, OWNER, clock, mark, prefix};
use crate::spread::Spread;
use crate::stuck;

/// Many short rounds: other programs disturb some of them, but not most.
const ROUNDS: usize = 200;
/// Calls in one slot.
const CALLS: usize = 2_000;
/// How many calls are in flight at once, each for another lock.
const BATCH: usize = 200;

/// The script without the lines of the fence.
const WITHOUT: &str = "without";
/// The script with an `INCR` in place of the fence: no fence can cost less.
const INCR: &str = "a bare INCR";
/// The script as it is, called as for a single server.
const ONE: &str = "one server";
/// The same, if no other lock of the mark was acquired within 0.1 s: the mark is then set to the
/// server's clock.
const RESTED: &str = "one server, mark at rest";
/// The script as it is, called as for each of several servers.
const SEVERAL: &str = "each of several";

/// The edits that remove the fence. Each text occurs once in `acquire.lua`; otherwise the bench
/// reports that this list has to be updated.
const EDITS: [(&str, &str); 3] = [
    (
        "local lock, mark = KEYS[1], KEYS[2]\n",
        "local lock = KEYS[1]\n",
    ),
    (
        "local lease_ms, field, asked = ARGV[1], ARGV[2], ARGV[3]\n",
        "local lease_ms, field = ARGV[1], ARGV[2]\n",
    ),
    ("return {1, fence}", "return {1}"),
];

/// Returns the given `acquire.lua` without its fence, for which `fence.lua` replaces a comment. The
/// script then takes neither the key of the mark nor the client's clock.
fn removed_from(acquire: &str) -> Result<String, Failure> {
    let code: Vec<&str> = acquire
        .lines()
        .filter(|line| !line.trim_start().starts_with("--"))
        .collect();
    let mut script = code.join("\n");
    for (with, without) in EDITS {
        if script.matches(with).count() != 1 {
            return Err(format!(
                "acquire.lua has changed, and the list in bench/src/fence.rs has not: {with:?}"
            )
            .into());
        }
        script = script.replace(with, without);
    }
    if script.contains("fence") || script.contains("ARGV[3]") {
        return Err(
            "acquire.lua has changed: the list in bench/src/fence.rs leaves a part of the fence"
                .into(),
        );
    }
    Ok(script)
}

/// Returns the script with an `INCR` of the mark.
fn counting(without: &str) -> Result<String, Failure> {
    let (granted, counted) = ("return {1}", "return {1, redis.call('INCR', KEYS[2])}");
    if without.matches(granted).count() != 1 {
        return Err(format!(
            "acquire.lua has changed: bench/src/fence.rs looks for {granted:?} once"
        )
        .into());
    }
    Ok(without.replace(granted, counted))
}

/// One version of the script, and how it is called.
#[derive(Debug)]
struct Variant {
    name: &'static str,
    digest: Vec<u8>,
    /// Returns the clock's value to send, if the script has a mark.
    clock: Option<fn() -> String>,
    /// The locks and their marks.
    keys: Vec<(String, String)>,
}

impl Variant {
    fn load(
        name: &'static str,
        script: &str,
        clock: Option<fn() -> String>,
        control: &mut Connection,
    ) -> Result<Self, Failure> {
        let key = |n| format!("{}{n}", prefix(name));
        let keys = (0..BATCH).map(|n| (key(n), mark(&key(n)))).collect();
        Ok(Self {
            name,
            digest: control.load(script)?,
            clock,
            keys,
        })
    }

    /// Returns the server's time for one acquire, in microseconds.
    fn slot(&self, control: &mut Connection) -> io::Result<f64> {
        control.reset_calls()?;
        for _ in 0..CALLS / BATCH {
            for (key, mark) in &self.keys {
                self.queue(control, key, mark)?;
            }
            control.flush()?;
            for _ in &self.keys {
                control.expect(if self.clock.is_some() {
                    b"*2\r\n:1\r\n"
                } else {
                    b"*1\r\n:1\r\n"
                })?;
                control.expect(b":1\r\n")?;
            }
        }
        let calls = control.calls("evalsha")?;
        if calls.count != CALLS as f64 {
            return Err(io::Error::other(format!(
                "the server has counted {} scripts of {CALLS}",
                calls.count
            )));
        }
        Ok(calls.us / calls.count)
    }

    /// Queues an acquire and a `DEL`, which frees the lock again and does not count as a script.
    fn queue(&self, control: &mut Connection, key: &str, mark: &str) -> io::Result<()> {
        let (lease_ms, field) = (LEASE.as_millis().to_string(), format!("{OWNER}:1"));
        let (lease_ms, field, clock_us) = (
            lease_ms.as_bytes(),
            field.as_bytes(),
            self.clock.map(|clock| clock()),
        );
        let (key, mark) = (key.as_bytes(), mark.as_bytes());
        match &clock_us {
            Some(clock_us) => {
                control.queue(&[
                    b"EVALSHA",
                    &self.digest,
                    b"2",
                    key,
                    mark,
                    lease_ms,
                    field,
                    clock_us.as_bytes(),
                ])?;
            }
            None => control.queue(&[b"EVALSHA", &self.digest, b"1", key, lease_ms, field])?,
        }
        control.queue(&[b"DEL", key])
    }
}

/// The price of a fence.
#[derive(Debug, Serialize)]
pub(crate) struct Price {
    pub(crate) calls_a_slot: usize,
    pub(crate) variants: Vec<Cost>,
    /// The MEMORY USAGE of a mark. A server has at most 1,024 of them.
    pub(crate) bytes: u64,
}

/// The server's time for one acquire, in microseconds: medians and their intervals.
#[derive(Debug, Serialize)]
pub(crate) struct Cost {
    pub(crate) name: &'static str,
    pub(crate) us: Spread,
    /// The time above that of the script without a fence in the same round.
    pub(crate) fence_us: Spread,
    /// The shortest of all rounds above the shortest of those without a fence: disturbances make
    /// rounds longer only.
    pub(crate) least_us: f64,
    pub(crate) rounds: Vec<f64>,
}

impl Price {
    pub(crate) fn measure(control: &mut Connection) -> Result<Self, Failure> {
        eprintln!("measuring fence: 10 s");
        let without = removed_from(ACQUIRE_BODY)?;
        let counting = counting(&without)?;
        // A clock that is not cut to 0.1 s is ahead of every mark.
        let rested = || format!("-{}", clock(2));
        let variants = [
            Variant::load(WITHOUT, &without, None, control)?,
            Variant::load(INCR, &counting, Some(|| clock(1)), control)?,
            Variant::load(ONE, &ACQUIRE, Some(|| clock(1)), control)?,
            Variant::load(RESTED, &ACQUIRE, Some(rested), control)?,
            Variant::load(SEVERAL, &ACQUIRE, Some(|| clock(2)), control)?,
        ];
        let mut rounds = variants.each_ref().map(|_| Vec::with_capacity(ROUNDS));
        for round in 0..=ROUNDS {
            for (variant, rounds) in variants.iter().zip(&mut rounds) {
                stuck::at("fence", variant.name);
                let us = variant.slot(control)?;
                // The first round warms up.
                if round > 0 {
                    rounds.push(us);
                }
            }
        }
        stuck::over();
        let bytes = memory(control, &mark(&format!("{}0", prefix(ONE))))?;
        let base = rounds[0].clone();
        let variants = variants
            .iter()
            .zip(rounds)
            .map(|(variant, rounds)| Cost::of(variant.name, rounds, &base));
        Ok(Self {
            calls_a_slot: CALLS,
            variants: variants.collect(),
            bytes,
        })
    }

    pub(crate) fn bars(&self) -> Vec<Bar> {
        let bar = |(name, bound): (&str, f64)| {
            let cost = self.variants.iter().find(|cost| cost.name == name)?;
            Some(Bar::at_most(
                &format!("fence: server us of a fence on {name}"),
                cost.fence_us,
                bound,
            ))
        };
        [(ONE, 1.0), (SEVERAL, 2.0)]
            .into_iter()
            .filter_map(bar)
            .collect()
    }
}

impl Cost {
    fn of(name: &'static str, rounds: Vec<f64>, without: &[f64]) -> Self {
        let least = |rounds: &[f64]| rounds.iter().copied().fold(f64::INFINITY, f64::min);
        let us = Spread::of_median(rounds.iter().copied());
        let fence_us = Spread::of_median(rounds.iter().zip(without).map(|(us, base)| us - base));
        Self {
            name,
            us,
            fence_us,
            least_us: least(&rounds) - least(without),
            rounds,
        }
    }
}

fn memory(control: &mut Connection, key: &str) -> io::Result<u64> {
    let reply = String::from_utf8_lossy(control.call(&[b"MEMORY", b"USAGE", key.as_bytes()])?);
    let bytes = reply
        .trim()
        .strip_prefix(':')
        .and_then(|number| number.parse().ok());
    bytes.ok_or_else(|| io::Error::other(format!("MEMORY USAGE {key} says {reply:?}")))
}

impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cell = |s: &Spread| format!("{:.2} ({:.2}..{:.2})", s.median, s.min, s.max);
        writeln!(
            f,
            "fence: acquire.lua {} times in a row, {ROUNDS} rounds; the server's us for one call (95 % interval)",
            self.calls_a_slot
        )?;
        writeln!(
            f,
            "  {:<24} {:>18} {:>20} {:>18}",
            "", "the script", "its fence", "least above least"
        )?;
        for cost in &self.variants {
            write!(f, "  {:<24} {:>18}", cost.name, cell(&cost.us))?;
            if cost.name == WITHOUT {
                writeln!(f)?;
            } else {
                writeln!(f, " {:>20} {:>18.2}", cell(&cost.fence_us), cost.least_us)?;
            }
        }
        writeln!(
            f,
            "  and {} bytes of its memory for each of at most 1,024 marks",
            self.bytes
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_fits_the_script() {
        let script = removed_from(ACQUIRE_BODY).expect("up to date");
        assert!(
            script.contains("HSETNX") && script.contains("PTTL"),
            "{script}"
        );
        assert!(
            counting(&script).is_ok_and(|script| script.contains("INCR")),
            "{script}"
        );
        assert!(counting("").is_err());
        assert!(
            removed_from(&ACQUIRE_BODY.replace("{1, fence}", "{fence}"))
                .is_err_and(|e| e.to_string().contains("{1, fence}"))
        );
    }
}
