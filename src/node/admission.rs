//! Whether a server lets this locker in: its refusal is told once an outage, and its end once.
//!
//! # Invariants
//! - Each connection has a bit for its credentials, and one for its rights: a warning comes with the first bit of a
//!   kind.

use std::sync::atomic::{AtomicU8, Ordering};

use super::login;
use super::reply::{self, Outcome, Reply};
use crate::foreign::contained;
use crate::shown::Shown;

/// What a server refuses to the connections of a node, each of which has a number from 0 to 7.
#[derive(Debug, Default)]
pub(super) struct Admission {
    /// Whether the program is asked for the credentials.
    has_provider: bool,
    shut_out: AtomicU8,
    limited: AtomicU8,
}

impl Admission {
    pub(super) fn of(has_provider: bool) -> Self {
        Self { has_provider, ..Self::default() }
    }

    /// That of another server, to which nothing was said yet.
    pub(super) fn anew(&self) -> Self {
        Self::of(self.has_provider)
    }

    /// What this connection was answered. Other commands than scripts may be forbidden: they are not needed.
    pub(super) fn heard(&self, connection: u8, node: &str, is_script: bool, outcome: &Outcome<Reply>) {
        match outcome {
            Outcome::NotExecuted(failure) if reply::is_about_credentials(&failure.reason) => {
                self.shut_out(connection, node, &failure.reason);
            }
            Outcome::Unknown(_) => {}
            _ => self.let_in(connection, node),
        }
        if is_script && let Some(reply) = reply::forbidden(outcome) {
            self.limited(connection, node, reply);
        }
    }

    /// Why it is not connected.
    pub(super) fn not_connected(&self, connection: u8, node: &str, reason: &str) {
        if reply::is_about_credentials(reason) || reason.starts_with(login::FAILED) {
            self.shut_out(connection, node, reason);
        }
    }

    /// It is connected anew, perhaps as a user with other rights.
    pub(super) fn connected(&self, connection: u8) {
        clear(&self.limited, connection);
    }

    /// The server refuses the credentials of this connection, or there are none.
    fn shut_out(&self, connection: u8, node: &str, reply: &str) {
        if !set(&self.shut_out, connection) {
            return;
        }
        let what = match self.has_provider {
            true if reply.starts_with(login::FAILED) => "there are no credentials for this server",
            true => "this server refuses the credentials that their provider gives",
            false => "this server refuses the credentials",
        };
        contained(|| {
            tracing::warn!(
                %node,
                reply = %Shown(reply),
                "{what}: it grants and renews no lock until it takes them again"
            );
        });
    }

    /// The server answers to this connection.
    fn let_in(&self, connection: u8, node: &str) {
        if clear(&self.shut_out, connection) {
            contained(|| tracing::info!(%node, "this server takes the credentials again"));
        }
    }

    /// The server refuses a right to a script of this connection. It may permit the next one, for the sake of another
    /// key, so that this is told once until the connection is another.
    fn limited(&self, connection: u8, node: &str, reply: &str) {
        if set(&self.limited, connection) {
            contained(|| {
                tracing::warn!(
                    %node,
                    reply = %Shown(reply),
                    "this server does not permit this user what a lock needs (SECURITY.md has the list)"
                );
            });
        }
    }
}

/// Whether this is the first of all bits.
fn set(bits: &AtomicU8, bit: u8) -> bool {
    bits.fetch_or(1 << bit, Ordering::Relaxed) == 0
}

/// Whether this was the last of all bits. As a rule there are none, and then this is a look.
fn clear(bits: &AtomicU8, bit: u8) -> bool {
    bits.load(Ordering::Relaxed) & (1 << bit) != 0 && bits.fetch_and(!(1 << bit), Ordering::Relaxed) == 1 << bit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_last_connection_make_the_news() {
        let bits = AtomicU8::new(0);
        assert!(!clear(&bits, 0), "nothing was refused");
        assert_eq!([set(&bits, 2), set(&bits, 2), set(&bits, 0)], [true, false, false]);
        assert_eq!([clear(&bits, 2), clear(&bits, 2), clear(&bits, 0)], [false, false, true]);
        assert!(set(&bits, 0), "another outage");
    }
}
