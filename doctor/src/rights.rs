//! Which rights a server's user lacks, judged by how it answers. A locker names the rights that it
//! needs.

use std::time::Duration;

use lockhound::servers::{Need, Right};

use crate::found::{MissingRight, Rights, UnknownRight};
use crate::promise::Promise;

/// The outcome of a question for a right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Tried {
    Permitted,
    /// Refused, with the server's error.
    Refused(String),
    /// Unknown, for this reason.
    Unknown(String),
}

/// The questions to a server.
#[derive(Debug, Clone)]
pub(crate) struct Questions {
    pub(crate) rights: Vec<Right>,
    /// Whether the rights are for locks of the program, and not for one with a made-up name, whose
    /// refusal shows nothing about the others.
    pub(crate) is_of_locks: bool,
    /// How many replicas have to acknowledge, and within what time.
    pub(crate) replicas: Option<(u32, Duration)>,
}

/// The placeholders for the names of locks and of their messages, if none is given.
const NAMES: &str = "~NAMES-OF-LOCKS";
const MESSAGES: &str = "&MESSAGES-OF-LOCKS";

impl Questions {
    /// Returns the rights on a server that has not answered.
    pub(crate) fn not_answered(&self) -> Rights {
        self.rights(&vec![
            Tried::Unknown(
                "the server had no time to answer".to_owned()
            );
            self.rights.len()
        ])
    }

    /// Returns the rights that the server's answers show.
    pub(crate) fn rights(&self, tried: &[Tried]) -> Rights {
        let mut rights = Rights::default();
        for (right, tried) in self.rights.iter().zip(tried) {
            let is_command =
                |text: &str| text.contains("run the '") || text.contains("run this command");
            let needed_for: Vec<Promise> = right
                .needed_for
                .iter()
                .filter_map(|&need| promise(need))
                .collect();
            let names = right
                .names
                .as_ref()
                .filter(|_| self.is_of_locks || !right.is_of_lock);
            match (tried, names) {
                (Tried::Permitted, _) => {}
                (Tried::Refused(text), _) if is_command(text) => {
                    miss(&mut rights.missing, &right.rule, &needed_for);
                }
                (Tried::Refused(_), Some(names)) => miss(&mut rights.missing, names, &needed_for),
                (Tried::Refused(_), None) => {
                    let reason = "it has rights on some names only: give the name of a lock, \
                                  examine_keys(.., [\"NAME\"])";
                    let names = if needed_for == [Promise::Wakeups] {
                        MESSAGES
                    } else {
                        NAMES
                    };
                    wonder(&mut rights.unknown, names, &needed_for, reason);
                }
                (Tried::Unknown(reason), _) => {
                    wonder(&mut rights.unknown, &right.rule, &needed_for, reason);
                }
            }
        }
        // A right that is missing for one name is not unknown for another.
        rights.unknown.retain(|right| {
            rights
                .missing
                .iter()
                .all(|missing| missing.rule != right.rule)
        });
        rights
    }
}

/// Returns the promise that a need stands for.
fn promise(need: Need) -> Option<Promise> {
    Some(match need {
        Need::Locking => Promise::Locking,
        Need::FaultTolerance => Promise::FaultTolerance,
        Need::Exclusion => Promise::Exclusion,
        Need::Wakeups => Promise::Wakeups,
        Need::Inspection => Promise::Inspection,
        _ => return None,
    })
}

/// Adds a missing right, once for all promises that need it.
fn miss(missing: &mut Vec<MissingRight>, rule: &str, needed_for: &[Promise]) {
    match missing.iter_mut().find(|right| right.rule == rule) {
        Some(right) => add(&mut right.needed_for, needed_for),
        None => missing.push(MissingRight {
            rule: rule.to_owned(),
            needed_for: needed_for.to_vec(),
        }),
    }
}

fn wonder(unknown: &mut Vec<UnknownRight>, rule: &str, needed_for: &[Promise], reason: &str) {
    match unknown.iter_mut().find(|right| right.rule == rule) {
        Some(right) => add(&mut right.needed_for, needed_for),
        None => {
            let (rule, needed_for, reason) =
                (rule.to_owned(), needed_for.to_vec(), reason.to_owned());
            unknown.push(UnknownRight {
                rule,
                needed_for,
                reason,
            });
        }
    }
}

fn add(promises: &mut Vec<Promise>, more: &[Promise]) {
    promises.extend(more);
    promises.sort_unstable();
    promises.dedup();
}

#[cfg(test)]
mod tests {
    use lockhound::Locker;

    use super::*;

    /// Returns the questions for the lock `app:42` of a locker over this many servers, none of
    /// which is there.
    fn questions(servers: usize) -> Questions {
        let locks = (0..servers).fold(Locker::builder(), |builder, n| {
            builder.node(format!("redis://127.0.0.1:{n}"))
        });
        let locks = locks.connect_lazy().expect("a locker");
        let rights = locks.rights(["app:42"]).expect("a name");
        Questions {
            rights,
            is_of_locks: true,
            replicas: None,
        }
    }

    /// Returns the missing rules if the server refuses commands and names with these errors.
    fn found(refused: &[&str], command: &str, name: &str) -> Vec<String> {
        let asked = questions(1);
        let tried = |right: &Right| match &right.names {
            _ if refused.contains(&&*right.rule) => Tried::Refused(command.to_owned()),
            Some(names) if refused.contains(&&**names) => Tried::Refused(name.to_owned()),
            _ => Tried::Permitted,
        };
        let rights = asked.rights(&asked.rights.iter().map(tried).collect::<Vec<_>>());
        assert_eq!(rights.unknown, []);
        rights.missing.into_iter().map(|right| right.rule).collect()
    }

    #[test]
    fn refusals_of_every_kind_of_server_name_the_rule() {
        for (command, name) in [
            (
                "NOPERM this user has no permissions to run the 'del' command",
                "NOPERM this user has no permissions to access one of the keys used as arguments",
            ),
            (
                "NOPERM this user has no permissions to run the 'del' command or its subcommand",
                "NOPERM this user has no permissions to access one of the channels used as arguments",
            ),
            (
                "NOPERM User app has no permissions to run the 'del' command",
                "NOPERM No permissions to access a key",
            ),
            (
                "This user has no permissions to run the 'del' command",
                "This user has no permissions to access the 'x' key",
            ),
            (
                "ERR The user executing the script can't run this command or subcommand",
                "ERR The user executing the script can't access at least one of the keys mentioned in the command \
                 arguments",
            ),
            (
                "ERR The user executing the script can't run this command or subcommand",
                "ERR The user executing the script can't publish to the channel mentioned in the command",
            ),
            (
                "NOPERM ACL failure in script: User app has no permissions to run the 'del' command",
                "NOPERM ACL failure in script: No permissions to access a channel",
            ),
        ] {
            assert_eq!(found(&["+del"], command, name), ["+del"]);
            assert_eq!(found(&["~app:42"], command, name), ["~app:42"]);
            assert_eq!(
                found(&["+del", "~app:42"], command, name),
                ["~app:42", "+del"]
            );
        }
    }

    #[test]
    fn a_made_up_name_shows_nothing_about_other_names() {
        let asked = Questions {
            is_of_locks: false,
            ..questions(3)
        };
        let name =
            "NOPERM this user has no permissions to access one of the keys used as arguments";
        let tried = |right: &Right| match right.is_of_lock {
            true => Tried::Refused(name.to_owned()),
            false => Tried::Permitted,
        };
        let rights = asked.rights(&asked.rights.iter().map(tried).collect::<Vec<_>>());
        assert_eq!(rights.missing, []);
        let [names, messages] = &rights.unknown[..] else {
            panic!("{rights:?}")
        };
        assert_eq!(
            (names.rule.as_str(), &names.needed_for),
            (
                NAMES,
                &vec![
                    Promise::Locking,
                    Promise::FaultTolerance,
                    Promise::Inspection
                ]
            )
        );
        assert_eq!(
            (messages.rule.as_str(), &messages.needed_for),
            (MESSAGES, &vec![Promise::Wakeups])
        );
        assert!(names.reason.contains("examine_keys"), "{names:?}");
    }

    #[test]
    fn a_right_without_an_answer_is_unknown_for_all_that_need_it() {
        let asked = questions(3);
        let rights = asked.not_answered();
        assert_eq!(rights.missing, []);
        let of = |rule: &str| {
            &rights
                .unknown
                .iter()
                .find(|right| right.rule == rule)
                .expect(rule)
                .needed_for[..]
        };
        assert_eq!(of("+get"), [Promise::Locking, Promise::Inspection]);
        assert_eq!(
            (of("+exists"), of("+publish")),
            (&[Promise::FaultTolerance][..], &[Promise::Wakeups][..])
        );
    }
}
