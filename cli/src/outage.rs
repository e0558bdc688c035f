//! An outage of the servers, for subcommands that keep asking.

use crate::exit::Failure;
use crate::say::say;

/// Whether the last question had an answer. People read of a change only.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    is_on: bool,
}

impl Outage {
    /// Returns what the servers answered, and `None` for servers that may answer the next question.
    ///
    /// # Errors
    /// A failure that no server can end.
    pub(crate) fn pass<T>(&mut self, answer: Result<T, Failure>) -> Result<Option<T>, Failure> {
        let was_on = std::mem::replace(&mut self.is_on, false);
        match answer {
            Ok(answer) => {
                if was_on {
                    say("there are answers again");
                }
                Ok(Some(answer))
            }
            Err(failure) if failure.is_unavailable() => {
                self.is_on = true;
                if !was_on {
                    failure.tell();
                }
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }
}
