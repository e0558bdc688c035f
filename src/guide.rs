//! The guide: how programs use locks, a page for each question.
//!
//! | page | answers |
//! |---|---|
//! | [`critical_sections`] | How does a program take one lock or several, and what does it do when it loses one? |
//! | [`nesting_and_owners`] | Who enters again, who waits, and how is that changed? |
//! | [`readers_and_writers`] | How do readers share a lock, and when is that worth it? |
//! | [`elections`] | How does one of several programs lead, and how do the others see which one? |
//! | [`permits`] | How is a limited number of callers let in at once? |
//! | [`latches`] | How do callers wait for a number of others? |
//! | [`fair_locks`] | How do callers get a lock in the order in which they arrived? |
//! | [`waiting`] | How long does a call wait, and what happens while the servers are away? |
//! | [`fencing`] | How does a database, an object store or another service refuse a holder that is late? |
//! | [`quorums`] | When are several servers worth it, and what do clusters, Sentinels and replicas give? |
//! | [`redisson`] | What do programs in Rust and on the JVM share? |
//! | [`other_languages`] | What do programs in Go, JavaScript, Python and others share? |
//! | [`testing`] | How is code tested that takes locks? |
//! | [`operating`] | Which rights, settings and alerts are needed, and what does each warning and error mean? |
//! | [`from_the_shell`] | How does a script, a cron job or a deployment run under a lock? |
//! | [`shutting_down`] | What happens to locks when a thread, `main` or a process ends? |
//!
//! Words of these pages:
//!
//! - *Owner*: who may enter a lock again: by default the current tokio task.
//! - *Hold*: one acquisition by an owner, from the first guard to the last. *Guard*: one entry into
//!   it. *Handle*: a [`Lock`](crate::Lock), which holds nothing.
//! - *Generation*: a number that the locker gives to each attempt, so that late commands of earlier
//!   ones do nothing.
//! - *Lease*: the time for which a server keeps a lock that is not renewed. *Validity*: how much of
//!   that the holder may rely on: the lease without the time that the answer took, and without an
//!   allowance for clocks that differ in rate (1 % of the lease and 2 ms).
//! - *Terms*: how long a hold may last: its lease, whether it is renewed, and `max_hold`.
//! - *Jeopardy*: the last renewal failed, and the lock is still held.
//! - *Permit*: what a semaphore has a limited number of.
//! - *Latch*: what callers wait for until it has been counted down.
//! - *Scope*: a future in which calls enter as a given owner.
//! - *Fence*: a number that grows with each acquisition. A resource refuses smaller ones than it
//!   has seen.
//! - *Vote*: what one of several servers says for a holder. A majority of votes holds the lock.
//! - *Quarantine*: how long a server that lost its data does not vote.
//!
//! Five programs in `recipes/` of the repository use what these pages describe: a web service, a
//! leader election, a job that a fleet does once in each period, a queue consumer, and plain
//! threads.

#[doc = include_str!("../docs/guide/critical_sections.md")]
pub mod critical_sections {}

#[doc = include_str!("../docs/guide/nesting_and_owners.md")]
pub mod nesting_and_owners {}

#[doc = include_str!("../docs/guide/readers_and_writers.md")]
pub mod readers_and_writers {}

#[doc = include_str!("../docs/guide/permits.md")]
pub mod permits {}

#[doc = include_str!("../docs/guide/fair_locks.md")]
pub mod fair_locks {}

#[doc = include_str!("../docs/guide/elections.md")]
pub mod elections {}

#[doc = include_str!("../docs/guide/latches.md")]
pub mod latches {}

#[doc = include_str!("../docs/guide/waiting.md")]
pub mod waiting {}

#[doc = include_str!("../docs/guide/fencing.md")]
pub mod fencing {}

#[doc = include_str!("../docs/guide/quorums.md")]
pub mod quorums {}

#[doc = include_str!("../docs/redisson.md")]
pub mod redisson {}

#[doc = include_str!("../docs/guide/other_languages.md")]
pub mod other_languages {}

#[doc = include_str!("../docs/guide/testing.md")]
pub mod testing {}

#[doc = include_str!("../docs/guide/operating.md")]
pub mod operating {}

#[doc = include_str!("../docs/guide/shutting_down.md")]
pub mod shutting_down {}

#[doc = include_str!("../docs/guide/from_the_shell.md")]
pub mod from_the_shell {}
