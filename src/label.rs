//! What a locker calls itself, so that people find the process that holds a lock.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::error::Error;
use crate::shown::{Shown, cut, is_control};

/// How long a label stays on a server after it was written.
pub(crate) const LIFETIME: Duration = Duration::from_secs(3_600);

/// How often a locker writes its label again: one that could not be written twice in a row is still
/// there.
pub(crate) const RENEWAL: Duration = Duration::from_secs(1_200);

const LONGEST: usize = 128;

/// The label of a locker: some text of at most 128 bytes, without control characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Label(Arc<str>);

impl Label {
    /// # Errors
    /// [`Error::Config`] for a text that is no label.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let advice = "leave the option out for the host name and the process id";
        let problem = if text.trim().is_empty() {
            format!("{text:?} is empty: give 1 to {LONGEST} bytes, or {advice}")
        } else if text.len() > LONGEST {
            format!(
                "{:?} has {} bytes: give {LONGEST} or less, or {advice}",
                cut(text.as_bytes()),
                text.len()
            )
        } else if text.contains(is_control) {
            format!("{text:?} has a control character: give a text without any, or {advice}")
        } else {
            return Ok(Self(text.into()));
        };
        Err(Error::config("label", problem))
    }

    /// Returns the host name and the process id, as `host:4711`. Where the host has no name that
    /// can be a label, the process id alone.
    pub(crate) fn of_process() -> Self {
        let id = std::process::id();
        host()
            .and_then(|host| Self::parse(&format!("{host}:{id}")).ok())
            .unwrap_or_else(|| Self(id.to_string().into()))
    }

    pub(crate) fn as_str(&self) -> &Arc<str> {
        &self.0
    }

    /// Returns it as a part of a connection's name: a server refuses characters other than
    /// printable ASCII there.
    pub(crate) fn in_client_name(&self) -> String {
        self.0
            .chars()
            .map(|c| if c.is_ascii_graphic() { c } else { '_' })
            .collect()
    }
}

#[cfg(unix)]
fn host() -> Option<String> {
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    (!name.is_empty()).then_some(name)
}

#[cfg(not(unix))]
fn host() -> Option<String> {
    None
}

/// Returns the key of the label of a locker with this id.
pub(crate) fn key_of(locker: &str) -> String {
    format!("lockhound_label:{locker}")
}

/// Returns the id of the locker that this owner belongs to. A client of another kind may have one
/// too, and no label.
pub(crate) fn locker_of(owner: &[u8]) -> Option<&str> {
    let (id, rest) = std::str::from_utf8(owner).ok()?.split_once(':')?;
    (id.len() == 36 && !rest.is_empty() && Uuid::try_parse(id).is_ok()).then_some(id)
}

/// Returns a label that a server tells, which may be any bytes, so that it can be shown.
pub(crate) fn shown(told: &[u8]) -> String {
    Shown(&cut(told)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_no_label_is_refused_by_its_value() {
        let refusal = |text: &str| Label::parse(text).expect_err("no label").to_string();
        for (text, problem) in [
            ("", "\"\" is empty"),
            (" ", "\" \" is empty"),
            ("a\nb", "\"a\\nb\" has a control"),
        ] {
            let error = refusal(text);
            assert!(
                error.contains("label: ")
                    && error.contains(problem)
                    && error.contains("process id"),
                "{error}"
            );
        }
        let long = refusal(&"x".repeat(129));
        assert!(
            long.contains("xxx") && long.contains("129 bytes") && long.contains("128 or less"),
            "{long}"
        );
        assert!(refusal(&"x".repeat(1_000_000)).len() < 500);
        for text in ["x", "orders at web-1", "Grüße", &"x".repeat(128)] {
            assert_eq!(
                Label::parse(text)
                    .map(|label| label.as_str().to_string())
                    .ok()
                    .as_deref(),
                Some(text)
            );
        }
    }

    #[test]
    fn the_label_of_a_process_ends_with_its_id() {
        let label = Label::of_process();
        let id = std::process::id().to_string();
        assert_eq!(label.as_str().rsplit(':').next(), Some(&*id));
        assert_eq!(Label::parse(label.as_str()).ok(), Some(label));
    }

    #[test]
    fn the_name_of_a_connection_is_printable_ascii() {
        let name = |text: &str| Label::parse(text).expect("a label").in_client_name();
        assert_eq!(
            (name("web-1:4711"), name("a b ü")),
            ("web-1:4711".into(), "a_b__".into())
        );
    }

    #[test]
    fn the_locker_of_an_owner_is_found() {
        let id = "5cb1f0b5-0000-4000-8000-000000000000";
        for (owner, found) in [
            (format!("{id}:21:7"), Some(id)),
            (format!("{id}:21"), Some(id)),
            (id.to_owned(), None),
            (format!("{id}:"), None),
            (format!("{}:1", id.replace('-', "+")), None),
            (format!("{}:1", id.replace('-', "")), None),
            ("somebody".to_owned(), None),
        ] {
            assert_eq!(locker_of(owner.as_bytes()), found, "{owner}");
        }
        assert_eq!(
            locker_of(&[b"5cb1f0b5-0000-4000-8000-000000000000:", &[0xff][..]].concat()),
            None
        );
    }

    #[test]
    fn any_bytes_can_be_shown() {
        assert_eq!(shown(b"web-1:4711"), "web-1:4711");
        assert_eq!(shown(b"a\n\xff"), "a\\n\u{fffd}");
        assert_eq!(shown(&[b'x'; 1_000]).len(), 200);
    }
}
