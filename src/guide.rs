//! The guide: how programs use locks, a page for each question.
//!
//! | page | answers |
//! |---|---|
//! | [`critical_sections`] | How does a program take one lock or several, and what does it do when it loses one? |
//! | [`nesting_and_owners`] | Who enters again, who waits, and how is that changed? |
//! | [`waiting`] | How long does a call wait, and what happens while the servers are away? |
//! | [`fencing`] | How does a database, an object store or another service refuse a holder that is late? |
//! | [`quorums`] | When are several servers worth it, and what do clusters, Sentinels and replicas give? |
//! | [`redisson`] | What do programs in Rust and on the JVM share? |
//! | [`other_languages`] | What do programs in Go, JavaScript, Python and others share? |
//! | [`testing`] | How is code tested that takes locks? |
//! | [`operating`] | Which rights, settings and alerts are needed, and what does each warning and error mean? |
//! | [`shutting_down`] | What happens to locks when a thread, `main` or a process ends? |
//!
//! Words of these pages:
//!
//! - *Hold*: one acquisition by an owner, from the first guard to the last. *Guard*: one entry into it.
//! - *Terms*: how long a hold may last: its lease, whether it is renewed, and `max_hold`.
//! - *Lease*: the time for which a server keeps a lock that is not renewed. *Validity*: how much of that the holder may
//!   rely on: the lease without the time that the answer took, and without an allowance for clocks that differ in rate.
//! - *Fence*: a number that grows with each acquisition. A resource refuses smaller ones than it has seen.
//! - *Tick*: one try to renew what is due, for a `command_timeout` at most.
//!
//! Five programs in `recipes/` of the repository use what these pages describe: a web service, a leader election, a job
//! that a fleet does once in each period, a queue consumer, and plain threads.

#[doc = include_str!("../docs/guide/critical_sections.md")]
pub mod critical_sections {}

#[doc = include_str!("../docs/guide/nesting_and_owners.md")]
pub mod nesting_and_owners {}

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
