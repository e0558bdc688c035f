//! The words of a script, one behind the other in one buffer.

/// A key or an argument of a script.
pub(crate) trait Spell {
    /// Writes it to the end of a text.
    fn spell(&self, text: &mut String);
}

/// The keys of a script and its arguments. They take two allocations, however many there are: they
/// go from task to task for each lock.
#[derive(Debug, Clone, Default)]
pub(crate) struct WordList {
    buffer: String,
    /// Where each word ends in the buffer.
    ends: Vec<usize>,
    keys: usize,
}

impl WordList {
    pub(crate) fn new<W: Spell>(
        keys: impl IntoIterator<Item = W>,
        args: impl IntoIterator<Item = W>,
    ) -> Self {
        // As much as the words of one lock take.
        let mut words = Self {
            buffer: String::with_capacity(192),
            ends: Vec::with_capacity(8),
            keys: 0,
        };
        keys.into_iter().for_each(|key| words.push(&key));
        words.keys = words.ends.len();
        args.into_iter().for_each(|arg| words.push(&arg));
        words
    }

    fn push(&mut self, word: &impl Spell) {
        word.spell(&mut self.buffer);
        self.ends.push(self.buffer.len());
    }

    /// Returns the number of all words.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.words().take(self.keys)
    }

    pub(crate) fn args(&self) -> impl Iterator<Item = &str> {
        self.words().skip(self.keys)
    }

    fn words(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts
            .zip(&self.ends)
            .map(|(start, &end)| &self.buffer[start..end])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Spell for &str {
        fn spell(&self, text: &mut String) {
            text.push_str(self);
        }
    }

    #[test]
    fn words_come_out_as_they_were_put_in() {
        for (keys, args) in [
            (&[][..], &[][..]),
            (&["", "ü{x}"], &["", "a", ""]),
            (&[], &["1"; 100]),
            (&["k"], &[]),
        ] {
            let words = WordList::new(keys.iter().copied(), args.iter().copied());
            assert_eq!(words.keys().collect::<Vec<_>>(), keys);
            assert_eq!(words.args().collect::<Vec<_>>(), args);
            assert_eq!(words.len(), keys.len() + args.len());
        }
    }
}
