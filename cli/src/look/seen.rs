//! What is known of one lock, and how people read it.

use std::fmt;
use std::time::Duration;

use lockhound::{Holder, Holders, LockMode, ReadWriteHolder, Usage};

use super::Kind;

/// One lock, as the servers show it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The name, without the locker's prefix.
    pub(crate) key: String,
    /// `None` if no client has it.
    pub(crate) kind: Option<Kind>,
    /// Whether anything but a lock looks like this.
    pub(crate) is_unsure: bool,
    /// Of a read-write lock.
    pub(crate) mode: Option<&'static str>,
    /// How many permits are free, or what a latch waits for.
    pub(crate) left: Option<i64>,
    pub(crate) holders: Vec<Holding>,
    pub(crate) fence: Option<u64>,
    pub(crate) waiters: Vec<Waiting>,
}

/// One of those who have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) owner: String,
    pub(crate) label: Option<String>,
    /// How many times it has entered, or how many permits it has.
    pub(crate) count: u64,
    /// `None` if it has no lease.
    pub(crate) remaining: Option<Duration>,
}

/// One of those who wait: a locker, or a caller in the queue of a fair lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) owner: String,
    pub(crate) label: Option<String>,
}

impl Waiting {
    pub(crate) fn new(owner: String) -> Self {
        Self { owner, label: None }
    }
}

impl Seen {
    /// Several servers that name no common owner name all of theirs.
    pub(super) fn hold(&mut self, holder: Option<&Holder>) {
        let Some(holder) = holder else { return };
        self.holders.push(Holding {
            owner: holder.owner().into_owned(),
            label: holder.label().map(str::to_owned),
            count: holder.hold_count(),
            remaining: holder.remaining(),
        });
        if holder.is_agreed() {
            return;
        }
        for other in holder.by_node() {
            let owner = other.owner();
            if self.holders.iter().all(|known| known.owner != owner) {
                self.holders.push(Holding {
                    owner: owner.into_owned(),
                    label: None,
                    count: other.hold_count(),
                    remaining: other.remaining(),
                });
            }
        }
    }

    pub(super) fn read_write(&mut self, holders: &Holders) {
        let holding = |holder: &ReadWriteHolder| Holding {
            owner: holder.owner().into_owned(),
            label: holder.label().map(str::to_owned),
            count: holder.hold_count(),
            remaining: holder.remaining(),
        };
        self.holders = holders.writer().into_iter().map(holding).collect();
        self.holders.extend(holders.readers().iter().map(holding));
        self.mode = match holders.mode() {
            LockMode::Read => Some("read"),
            LockMode::Write => Some("write"),
            _ => None,
        };
    }

    pub(super) fn permits(&mut self, usage: &Usage) {
        self.left = Some(usage.free().into());
        let holders = usage.holders().iter().map(|holder| Holding {
            owner: holder.owner().into_owned(),
            label: holder.label().map(str::to_owned),
            count: holder.permits().into(),
            remaining: holder.remaining(),
        });
        self.holders = holders.collect();
    }

    /// Returns whether both show the same, apart from leases, which always shrink and grow.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let without = |seen: &Self| {
            let mut seen = seen.clone();
            for holder in &mut seen.holders {
                holder.remaining = None;
            }
            // Others that share its mark raise it.
            if seen.kind.is_none() {
                seen.fence = None;
            }
            seen
        };
        without(self) == without(other)
    }

    /// Returns whether those who have it now are those who had it then, or some of them.
    pub(crate) fn has_holders_of(&self, then: &Self) -> bool {
        let had = |owner: &str| then.holders.iter().any(|it| it.owner == owner);
        !self.holders.is_empty() && self.holders.iter().all(|it| had(&it.owner))
    }

    /// Returns what is left of the lease that ends first; `None` if there is none.
    pub(crate) fn shortest(&self) -> Option<Duration> {
        self.holders.iter().filter_map(|it| it.remaining).min()
    }

    /// Returns what a number of permits or of a latch says.
    pub(crate) fn counted(&self) -> Option<String> {
        let left = self.left?;
        Some(match self.kind {
            Some(Kind::Latch) => format!("waits for {left}"),
            Some(Kind::Counter) => format!("the number {left}"),
            _ => format!("{left} free"),
        })
    }
}

impl fmt::Display for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        who(f, &self.owner, self.label.as_deref())
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        who(f, &self.owner, self.label.as_deref())
    }
}

fn who(f: &mut fmt::Formatter<'_>, owner: &str, label: Option<&str>) -> fmt::Result {
    match label {
        Some(label) => write!(f, "{} ({})", shown(label), shown(owner)),
        None => f.write_str(&shown(owner)),
    }
}

/// Everything in one line, but not the name.
impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(kind) = self.kind else {
            return match self.waiters.len() {
                0 => f.write_str("free"),
                waiters => write!(f, "free; {waiters} waiting"),
            };
        };
        write!(f, "{kind}")?;
        if let Some(mode) = self.mode {
            write!(f, " ({mode})")?;
        }
        if let Some(counted) = self.counted() {
            write!(f, ", {counted}")?;
        }
        for (at, holder) in self.holders.iter().enumerate() {
            let before = if at == 0 { ", held by" } else { " and" };
            write!(f, "{before} {holder}")?;
            if holder.count != 1 {
                write!(f, " x{}", holder.count)?;
            }
        }
        if let Some(fence) = self.fence {
            write!(f, ", fence {fence}")?;
        }
        match self.waiters.len() {
            0 => Ok(()),
            waiters => write!(f, "; {waiters} waiting"),
        }
    }
}

/// Returns what is left of a lease, for people.
pub(crate) fn lease(remaining: Option<Duration>) -> String {
    remaining.map_or_else(
        || "none".to_owned(),
        |left| format!("{:.1}s", left.as_secs_f64()),
    )
}

/// Returns a name that strangers may have chosen so that it can neither forge a line nor move the
/// cursor.
pub(crate) fn shown(text: &str) -> String {
    let is_control = |c: char| {
        c.is_control()
            || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if is_control(c) {
            escaped.extend(c.escape_default());
        } else {
            escaped.push(c);
        }
    }
    escaped
}
