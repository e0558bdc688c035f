//! The text form of a report: the servers and the findings, then the verdicts. No line is longer
//! than 100 columns.

use std::fmt::{self, Display};
use std::time::Duration;

use crate::found::{
    Clock, ClusterView, Eviction, Finding, Mode, Persistence, Replica, Rights, Role, RoundTrips,
    SentinelReport, ServerReport, Slots, by_reason,
};
use crate::promise::{Answer, Reason, Verdict};
use crate::report::Report;
use crate::shown::escaped;

const WIDTH: usize = 100;

/// The column at which findings begin.
const FACTS: usize = 17;
/// The column at which reasons begin.
const REASONS: usize = 9;

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.servers
            .iter()
            .try_for_each(|server| writeln!(f, "{server}"))?;
        for verdict in &self.verdicts {
            writeln!(f, "{:REASONS$}{}", verdict.answer, verdict.promise)?;
            let several = self.servers.len() > 1;
            verdict
                .reasons
                .iter()
                .try_for_each(|reason| write_reason(f, reason, several))?;
        }
        let count = |answer: Answer| {
            self.verdicts
                .iter()
                .filter(|verdict| verdict.answer == answer)
                .count()
        };
        let (broken, unknown) = (count(Answer::Broken), count(Answer::Unknown));
        let kept = self
            .verdicts
            .iter()
            .filter(|verdict| Verdict::is_fine(verdict))
            .count();
        write!(
            f,
            "\n{kept} kept or not applicable, {broken} broken, {unknown} unknown"
        )
    }
}

fn write_reason(f: &mut fmt::Formatter<'_>, reason: &Reason, several: bool) -> fmt::Result {
    let Reason {
        node,
        problem,
        remedy,
    } = reason;
    let named = match node {
        Some(node) if several => format!("{node}: {problem}"),
        _ => problem.clone(),
    };
    write_wrapped(f, &format!("{:REASONS$}- ", ""), REASONS + 2, &named)?;
    match remedy {
        Some(remedy) => write_wrapped(
            f,
            &format!("{:REASONS$}  change: ", ""),
            REASONS + 2 + 8,
            remedy,
        ),
        None => Ok(()),
    }
}

impl Display for ServerReport {
    /// Shows the findings about this server, without verdicts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_wrapped(f, "", 4, &self.node)?;
        if let Some(why) = &self.failure {
            return write_fact(f, "not reached", why);
        }
        write_fact(f, "server", &self.identity())?;
        if let Some(view) = &self.cluster {
            write_fact(f, "cluster", &cluster(view))?;
        }
        for SentinelReport {
            node,
            master,
            down_after,
            ..
        } in &self.sentinels
        {
            let after = told(down_after, |after| format!("{after:?}"));
            let named = told(master, |master| {
                format!("names {master}, down-after {after}")
            });
            write_fact(f, "Sentinel", &format!("{node} {named}"))?;
        }
        if let Some(why) = &self.abstains {
            write_fact(f, "vote", why)?;
        }
        if let Some(why) = &self.refuses_writes {
            write_fact(f, "writes", &format!("refused: {why}"))?;
        }
        write_fact(f, "eviction", &told(&self.eviction, eviction))?;
        write_fact(f, "persistence", &told(&self.persistence, persistence))?;
        write_fact(
            f,
            "replicas",
            &told(&self.replicas, |found| replicas(found)),
        )?;
        if let Finding::Known(least @ 1..) = self.min_replicas_to_write {
            write_fact(f, "", &format!("min-replicas-to-write {least}"))?;
        }
        if let Finding::Known(count) = self.acknowledging {
            write_fact(f, "", &format!("{count} acknowledge (WAIT)"))?;
        }
        write_fact(f, "clock", &told(&self.clock, clock))?;
        write_fact(f, "round trip", &told(&self.round_trip, round_trip))?;
        write_fact(f, "rights", &rights(&self.rights))
    }
}

impl ServerReport {
    fn identity(&self) -> String {
        let role = match &self.role {
            Finding::Known(Role::Master) => "master".to_owned(),
            Finding::Known(Role::Replica(Some(master))) => format!("replica of {master}"),
            Finding::Known(Role::Replica(None)) => "replica".to_owned(),
            Finding::Known(Role::Other(role)) => role.clone(),
            unknown => format!("role {}", told(unknown, |_| String::new())),
        };
        let mode = match &self.mode {
            Finding::Known(Mode::Standalone) => String::new(),
            Finding::Known(Mode::Cluster(state)) => {
                format!(", in a cluster, state {}", told(state, String::clone))
            }
            Finding::Known(Mode::Other(mode)) => format!(", {mode}"),
            unknown => format!(", mode {}", told(unknown, |_| String::new())),
        };
        format!("{}, {role}{mode}", told(&self.version, ToString::to_string))
    }
}

/// Returns the text of a finding, or why it is unknown.
fn told<T>(finding: &Finding<T>, text: impl FnOnce(&T) -> String) -> String {
    match finding {
        Finding::Known(known) => text(known),
        Finding::Forbidden(rule) => format!("unknown: its user may not ask ({rule})"),
        Finding::Unknown(why) => format!("unknown: {why}"),
    }
}

fn cluster(found: &ClusterView) -> String {
    let slots = |Slots {
                     assigned,
                     failing,
                     masters,
                 }: &Slots| {
        let failing = if *failing == 0 {
            String::new()
        } else {
            format!(", {failing} of them failing")
        };
        format!("{masters} masters for {assigned} slots{failing}")
    };
    let (slots, timeout) = (
        told(&found.slots, slots),
        told(&found.node_timeout, |timeout| format!("{timeout:?}")),
    );
    let coverage = told(&found.requires_full_coverage, |&yes| {
        if yes { "yes" } else { "no" }.to_owned()
    });
    format!("{slots}; cluster-node-timeout {timeout}; cluster-require-full-coverage {coverage}")
}

fn eviction(found: &Eviction) -> String {
    let Eviction {
        policy,
        limit,
        used,
    } = found;
    let used = used
        .map(|used| format!(", {} used", bytes(used)))
        .unwrap_or_default();
    let limit = if *limit == 0 {
        "no maxmemory".to_owned()
    } else {
        format!("maxmemory {}", bytes(*limit))
    };
    format!("{policy}{used}, {limit}")
}

fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KB", "MB", "GB", "TB"];
    let unit = (0..4)
        .find(|&unit| count >> (10 * (unit + 1)) == 0)
        .unwrap_or(4);
    // Terabytes are the largest unit.
    let tenths = (u128::from(count) * 10) >> (10 * unit);
    if unit == 0 {
        format!("{count} B")
    } else {
        format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
    }
}

fn persistence(found: &Persistence) -> String {
    let file = if found.append_only {
        format!(
            "appendonly yes, appendfsync {}",
            told(&found.fsync, String::clone)
        )
    } else {
        "appendonly no".to_owned()
    };
    let snapshots = match &found.save {
        Finding::Known(save) if save.is_empty() => "no snapshots".to_owned(),
        save => format!("save {}", told(save, |save| format!("\"{save}\""))),
    };
    let forgets = match found.forgets() {
        Finding::Known(forgets) => format!("; a crash forgets {forgets}"),
        Finding::Forbidden(_) | Finding::Unknown(_) => String::new(),
    };
    format!("{file}, {snapshots}{forgets}")
}

fn replicas(found: &[Replica]) -> String {
    if found.is_empty() {
        return "none".to_owned();
    }
    let replica = |Replica {
                       address,
                       is_online,
                       lag,
                       behind,
                   }: &Replica| {
        let state = if *is_online { "online" } else { "not online" };
        format!(
            "{address} {state}, {} behind, acknowledged {} s ago",
            bytes(*behind),
            lag.as_secs()
        )
    };
    found.iter().map(replica).collect::<Vec<_>>().join("; ")
}

fn clock(found: &Clock) -> String {
    let side = if found.offset_us < 0 {
        "behind"
    } else {
        "ahead of"
    };
    if let (..=0, 0..) = found.ahead() {
        return format!("this machine's, within {:.1?}", found.uncertainty);
    }
    let apart = Duration::from_micros(found.offset_us.unsigned_abs());
    format!(
        "{apart:.1?} {side} this machine's, +- {:.1?}",
        found.uncertainty
    )
}

fn round_trip(found: &RoundTrips) -> String {
    format!(
        "p50 {:.1?}, p99 {:.1?}, max {:.1?} of {}",
        found.p50, found.p99, found.max, found.count
    )
}

fn rights(found: &Rights) -> String {
    let mut parts = Vec::new();
    let missing = |wanted: bool| {
        let rights = found
            .missing
            .iter()
            .filter(move |right| right.needed_for.is_empty() != wanted);
        rights
            .map(|right| &*right.rule)
            .collect::<Vec<_>>()
            .join(" ")
    };
    for (wanted, name) in [(true, "missing"), (false, "missing, and not needed")] {
        if !missing(wanted).is_empty() {
            parts.push(format!("{name}: {}", missing(wanted)));
        }
    }
    for (reason, rules) in by_reason(&found.unknown.iter().collect::<Vec<_>>()) {
        parts.push(format!("unknown: {rules} ({reason})"));
    }
    if parts.is_empty() {
        "all that are needed".to_owned()
    } else {
        parts.join("; ")
    }
}

fn write_fact(f: &mut fmt::Formatter<'_>, name: &str, text: &str) -> fmt::Result {
    write_wrapped(f, &format!("    {name:<13}"), FACTS, text)
}

/// Writes text in lines: the first after `before`, the others indented by `left`.
fn write_wrapped(f: &mut fmt::Formatter<'_>, before: &str, left: usize, text: &str) -> fmt::Result {
    let text = escaped(text);
    let mut line = before.to_owned();
    let mut is_begun = false;
    for word in text.split(' ') {
        // A word that is longer than a line is cut.
        let pieces: Vec<char> = word.chars().collect();
        for (at, piece) in pieces.chunks(WIDTH - left).enumerate() {
            let gap = usize::from(is_begun && at == 0);
            if is_begun && line.chars().count() + gap + piece.len() > WIDTH {
                writeln!(f, "{line}")?;
                line = " ".repeat(left);
            } else if gap == 1 {
                line.push(' ');
            }
            line.extend(piece);
            is_begun = true;
        }
    }
    writeln!(f, "{}", line.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::{Deployment, Wanted};
    use crate::found::{Forgets, MissingRight};
    use crate::promise::Promise;

    fn of(servers: Vec<ServerReport>) -> String {
        let wanted = Wanted::by_default(Deployment::Independent(servers.len()));
        Report::new(&wanted, servers).to_string()
    }

    #[test]
    fn lines_are_at_most_100_columns_and_foreign_text_is_escaped() {
        let mut odd =
            ServerReport::of_memory("redis://a-very-long-name.of.a.server.internal:6379".into());
        odd.role = Finding::Known(Role::Other(format!("odd\n{}\u{1b}[2J", "x".repeat(500))));
        odd.abstains = Some("word ".repeat(100));
        odd.cluster = Some(ClusterView {
            slots: Finding::Known(Slots {
                assigned: 16_384,
                failing: 5_461,
                masters: 3,
            }),
            node_timeout: Finding::Known(Duration::from_millis(15_000)),
            requires_full_coverage: Finding::Forbidden("+config|get"),
        });
        odd.rights.missing = (0..30)
            .map(|n| MissingRight {
                rule: format!("+command{n}"),
                needed_for: vec![Promise::Locking],
            })
            .collect();
        let away = ServerReport::not_reached("redis://h".into(), "y".repeat(300));
        let unasked = ServerReport::unasked("redis://\u{fc}\u{fc}".into());
        let text = of(vec![odd, away, unasked]);
        for line in text.lines() {
            assert!(
                line.chars().count() <= WIDTH && line == line.trim_end(),
                "{line:?}"
            );
        }
        assert!(
            !text.contains('\u{1b}') && text.contains("odd\\n"),
            "{text}"
        );
        assert!(
            text.replace(['\n', ' '], "").contains(&"x".repeat(500)),
            "nothing of it is lost: {text}"
        );
        assert!(
            text.contains(
                "3 masters for 16384 slots, 5461 of them failing; cluster-node-timeout 15s;"
            ),
            "{text}"
        );
    }

    #[test]
    fn each_promise_has_a_line_that_begins_with_the_answer() {
        let text = of(vec![ServerReport::of_memory("memory:1".into())]);
        for promise in Promise::ALL {
            assert_eq!(
                text.lines()
                    .filter(|line| line.ends_with(&promise.to_string()))
                    .count(),
                1,
                "{text}"
            );
        }
        assert!(
            text.contains("\nBROKEN   one holder at a time after a server crashed"),
            "{text}"
        );
        assert!(
            text.contains("\n         - forgets everything\n           change: `appendonly yes`"),
            "{text}"
        );
        assert!(text.contains("\n-        locking continues"), "{text}");
        assert!(
            text.ends_with("\n\n7 kept or not applicable, 1 broken, 1 unknown"),
            "{text}"
        );
        assert!(Forgets::Nothing < Forgets::Everything);
    }

    #[test]
    fn sizes_are_shown_in_readable_units() {
        let shown = [0, 1_023, 1_024, 1_536, 1 << 20, 5 << 30, u64::MAX].map(bytes);
        assert_eq!(
            shown,
            [
                "0 B",
                "1023 B",
                "1.0 KB",
                "1.5 KB",
                "1.0 MB",
                "5.0 GB",
                "16777215.9 TB"
            ]
        );
    }
}
