//! Writes and reads what a locker calls itself.

use std::sync::Arc;

use super::sending::Op;
use super::word::{Word, alone, millis, text};
use crate::label;
use crate::lua::{Script, Topology};
use crate::node::{Call, Reply, WordList};

/// Writes what a locker calls itself, to stay for an hour, or deletes it.
#[derive(Debug, Clone)]
pub(crate) struct WriteLabel {
    pub(crate) locker: Arc<str>,
    pub(crate) label: Option<Arc<str>>,
}

/// Asks what a locker calls itself.
#[derive(Debug, Clone)]
pub(crate) struct ReadLabel(pub(crate) Arc<str>);

impl Op for WriteLabel {
    type Output = ();

    #[cfg(feature = "testing")]
    const IS_OF_LABEL: bool = true;

    fn call(&self, topology: Topology) -> Call {
        static LABEL: Script = Script::shared("label");
        let label = self.label.as_deref().unwrap_or_default();
        alone(
            LABEL.on(topology),
            WordList::new([of(&self.locker)], [text(label), millis(label::LIFETIME)]),
        )
    }

    fn read(&self, reply: &Reply) -> Option<()> {
        (*reply == Reply::Int(1)).then_some(())
    }
}

impl Op for ReadLabel {
    /// The text, any bytes, or `None` if there is none.
    type Output = Option<Vec<u8>>;

    #[cfg(feature = "testing")]
    const IS_OF_LABEL: bool = true;

    fn call(&self, topology: Topology) -> Call {
        static LABEL_OF: Script = Script::shared("label_of");
        alone(LABEL_OF.on(topology), WordList::new([of(&self.0)], []))
    }

    fn read(&self, reply: &Reply) -> Option<Option<Vec<u8>>> {
        match reply {
            Reply::Bytes(label) => Some(Some(label.to_vec())),
            Reply::Array(items) if items.is_empty() => Some(None),
            _ => None,
        }
    }
}

fn of(locker: &str) -> Word<'_> {
    text(label::key_of(locker))
}
