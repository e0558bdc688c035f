//! Whether a server accepts this locker's credentials: logs a refusal once per outage, and its end
//! once.
//!
//! # Invariants
//! - Each connection has a bit for its credentials and one for its rights. The first bit of a kind
//!   logs a warning.

use std::sync::atomic::{AtomicU8, Ordering};

use super::login;
use super::reply::{self, Outcome, Reply};
use crate::foreign::log;
use crate::shown::Shown;

/// What a server refuses to the connections of a node. Each connection has a number from 0 to 7.
#[derive(Debug, Default)]
pub(super) struct Admission {
    /// Whether a provider of the program gives the credentials.
    has_provider: bool,
    /// Whether somebody else says what this server refuses.
    is_silent: bool,
    shut_out: AtomicU8,
    limited: AtomicU8,
}

impl Admission {
    pub(super) fn of(has_provider: bool) -> Self {
        Self {
            has_provider,
            ..Self::default()
        }
    }

    /// Returns the state for another server, before the first answer.
    pub(super) fn anew(&self) -> Self {
        Self::of(self.has_provider)
    }

    /// Returns the same, without its log events: they are about locks, of which a Sentinel has
    /// none.
    pub(super) fn silenced(self) -> Self {
        Self {
            is_silent: true,
            ..self
        }
    }

    /// Notes an answer to this connection. Commands that are not scripts may be forbidden: they are
    /// not needed.
    pub(super) fn heard(
        &self,
        connection: u8,
        node: &str,
        is_script: bool,
        outcome: &Outcome<Reply>,
    ) {
        match outcome {
            Outcome::NotExecuted(failure) if reply::is_about_credentials(&failure.reason) => {
                self.shut_out(connection, node, &failure.reason);
            }
            // Silence says nothing about the credentials.
            Outcome::Unknown(_) => {}
            _ => self.let_in(connection, node),
        }
        if is_script && let Some(reply) = reply::forbidden(outcome) {
            self.limited(connection, node, reply);
        }
    }

    /// Notes why a connection could not be made.
    pub(super) fn not_connected(&self, connection: u8, node: &str, reason: &str) {
        if reply::is_about_credentials(reason) || reason.starts_with(login::FAILED) {
            self.shut_out(connection, node, reason);
        }
    }

    /// Notes a new connection, perhaps as a user with other rights.
    pub(super) fn connected(&self, connection: u8) {
        clear(&self.limited, connection);
    }

    /// Notes that the server refuses the credentials of this connection, or that there are none.
    fn shut_out(&self, connection: u8, node: &str, reply: &str) {
        if self.is_silent || !set(&self.shut_out, connection) {
            return;
        }
        let what = match self.has_provider {
            true if reply.starts_with(login::FAILED) => "there are no credentials for this server",
            true => "this server refuses the credentials that their provider gives",
            false => "this server refuses the credentials",
        };
        log!(warn, %node, reply = %Shown(reply), "{what}: it grants and renews no lock until it accepts them");
    }

    /// Notes that the server accepted this connection.
    fn let_in(&self, connection: u8, node: &str) {
        if clear(&self.shut_out, connection) {
            log!(info, %node, "this server accepts the credentials again");
        }
    }

    /// Notes that the user lacks a right that a script of this connection needs. The next script
    /// may be permitted, since it has other keys, so this is logged only once per connection.
    fn limited(&self, connection: u8, node: &str, reply: &str) {
        if set(&self.limited, connection) {
            log!(
                warn, %node, reply = %Shown(reply),
                "this user lacks a right on this server that locks need (guide::operating has the list)"
            );
        }
    }
}

/// Sets a bit. Returns whether no bit was set before.
fn set(bits: &AtomicU8, bit: u8) -> bool {
    bits.fetch_or(1 << bit, Ordering::Relaxed) == 0
}

/// Clears a bit. Returns whether it was the last one. Usually no bit is set, and then this only
/// reads.
fn clear(bits: &AtomicU8, bit: u8) -> bool {
    bits.load(Ordering::Relaxed) & (1 << bit) != 0
        && bits.fetch_and(!(1 << bit), Ordering::Relaxed) == 1 << bit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_refusal_and_the_last_acceptance_are_news() {
        let bits = AtomicU8::new(0);
        assert!(!clear(&bits, 0), "nothing was refused");
        assert_eq!(
            [set(&bits, 2), set(&bits, 2), set(&bits, 0)],
            [true, false, false]
        );
        assert_eq!(
            [clear(&bits, 2), clear(&bits, 2), clear(&bits, 0)],
            [false, false, true]
        );
        assert!(set(&bits, 0), "another outage");
    }
}
