//! Quotes the credentials of connections that speak RESP3.
//!
//! Such a connection logs in by HELLO, which fred writes as an inline command: one line, whose
//! words are separated by spaces. Unquoted, a space would end a password, and a line end would
//! begin another command. A server reads a word in double quotes byte by byte, with `\x` and two
//! digits for any byte.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use fred::error::Error;
use fred::types::config::{Config, CredentialProvider, Server};

/// Quotes the credentials that this configuration has, and those that its provider will give.
pub(super) fn quote_credentials(config: &mut Config) {
    config.username = config.username.take().map(quoted);
    config.password = config.password.take().map(quoted);
    config.credential_provider = config
        .credential_provider
        .take()
        .map(|provider| Arc::new(Quoting(provider)) as _);
}

/// Returns the text as one word of an inline command.
fn quoted(text: String) -> String {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"'\\".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        return text;
    }
    let escaped = |byte: u8| {
        if is_plain(byte) {
            char::from(byte).to_string()
        } else {
            format!("\\x{byte:02x}")
        }
    };
    format!("\"{}\"", text.bytes().map(escaped).collect::<String>())
}

/// A provider whose answers are quoted.
#[derive(Debug)]
struct Quoting(Arc<dyn CredentialProvider>);

/// Written as `async_trait` expands it, which fred uses for the declaration.
impl CredentialProvider for Quoting {
    fn fetch<'s, 'o, 'f>(
        &'s self,
        server: Option<&'o Server>,
    ) -> Pin<Box<dyn Future<Output = Result<(Option<String>, Option<String>), Error>> + Send + 'f>>
    where
        's: 'f,
        'o: 'f,
        Self: 'f,
    {
        Box::pin(async move {
            let (user, password) = self.0.fetch(server).await?;
            Ok((user.map(quoted), password.map(quoted)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_quoted_if_it_would_not_be_read_as_it_is() {
        for plain in ["secret", "a.b-c_d~!#$%&()*+,/:;<=>?@[]^`{|}"] {
            assert_eq!(quoted(plain.to_owned()), plain);
        }
        for (text, word) in [
            ("", r#""""#),
            ("a b", r#""a\x20b""#),
            ("it's", r#""it\x27s""#),
            (r#"\x41""#, r#""\x5cx41\x22""#),
            ("1\r\nSET a 1\r\n", r#""1\x0d\x0aSET\x20a\x201\x0d\x0a""#),
            ("\u{fc}\0", r#""\xc3\xbc\x00""#),
        ] {
            assert_eq!(quoted(text.to_owned()), word);
        }
    }
}
