//! Options that come from environment variables.

use std::env::{self, VarError};
use std::time::Duration;

use super::LockerBuilder;
use crate::error::Error;
use crate::kind::Format;

impl LockerBuilder {
    /// Creates a builder with the options that the environment gives.
    ///
    /// | variable | option |
    /// |---|---|
    /// | `LOCKHOUND_URL` | [`node`](Self::node); several addresses are separated by spaces |
    /// | `LOCKHOUND_PREFIX` | [`prefix`](Self::prefix) |
    /// | `LOCKHOUND_LABEL` | [`label`](Self::label) |
    /// | `LOCKHOUND_LEASE` | [`lease`](Self::lease) |
    /// | `LOCKHOUND_COMMAND_TIMEOUT` | [`command_timeout`](Self::command_timeout) |
    /// | `LOCKHOUND_CONNECT_TIMEOUT` | [`connect_timeout`](Self::connect_timeout) |
    /// | `LOCKHOUND_OUTAGE_TOLERANCE` | [`outage_tolerance`](Self::outage_tolerance) |
    /// | `LOCKHOUND_RESTART_QUARANTINE` | [`restart_quarantine`](Self::restart_quarantine) |
    /// | `LOCKHOUND_FORMAT` | [`format`](Self::format): `redisson` or `plain` |
    ///
    /// A time is a number and a unit: `500ms`, `30s`, `5m` or `2h`. A variable that is missing or
    /// empty leaves the default; other variables are not read. Options that are set on the builder
    /// afterwards take precedence; [`node`](Self::node) adds a server, and [`nodes`](Self::nodes)
    /// replaces them all. `LOCKHOUND_PASSWORD` is for the command `lockhound` only.
    ///
    /// # Errors
    /// [`Error::Config`] names a variable that cannot be used. It never shows `LOCKHOUND_URL`,
    /// which may have a password; [`connect`](Self::connect) checks the addresses.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example() -> Result<(), lockhound::Error> {
    /// use lockhound::LockerBuilder;
    ///
    /// let locks = LockerBuilder::from_env()?.connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_env() -> Result<Self, Error> {
        Self::from_variables(|name| match env::var(name) {
            Ok(value) => Ok(Some(value)),
            Err(VarError::NotPresent) => Ok(None),
            Err(VarError::NotUnicode(_)) => Err(Error::config(name, "its value is not UTF-8")),
        })
    }

    /// Creates a builder with the options that these variables give.
    fn from_variables(
        read: impl Fn(&'static str) -> Result<Option<String>, Error>,
    ) -> Result<Self, Error> {
        let given = |name| Ok(read(name)?.filter(|value| !value.trim().is_empty()));
        let time = |name| given(name)?.map(|text| parse_time(name, &text)).transpose();
        let mut builder = Self::default();
        for url in given("LOCKHOUND_URL")?
            .iter()
            .flat_map(|urls| urls.split_whitespace())
        {
            builder = builder.node(url);
        }
        if let Some(prefix) = given("LOCKHOUND_PREFIX")? {
            builder = builder.prefix(prefix);
        }
        if let Some(label) = given("LOCKHOUND_LABEL")? {
            builder = builder.label(label);
        }
        if let Some(lease) = time("LOCKHOUND_LEASE")? {
            builder = builder.lease(lease);
        }
        if let Some(timeout) = time("LOCKHOUND_COMMAND_TIMEOUT")? {
            builder = builder.command_timeout(timeout);
        }
        if let Some(timeout) = time("LOCKHOUND_CONNECT_TIMEOUT")? {
            builder = builder.connect_timeout(timeout);
        }
        if let Some(tolerance) = time("LOCKHOUND_OUTAGE_TOLERANCE")? {
            builder = builder.outage_tolerance(tolerance);
        }
        if let Some(quarantine) = time("LOCKHOUND_RESTART_QUARANTINE")? {
            builder = builder.restart_quarantine(quarantine);
        }
        match given("LOCKHOUND_FORMAT")?.as_deref() {
            None => Ok(builder),
            Some("redisson") => Ok(builder.format(Format::Redisson)),
            Some("plain") => Ok(builder.format(Format::Plain)),
            Some(other) => Err(Error::config(
                "LOCKHOUND_FORMAT",
                format!("{other:?} is no format: write redisson or plain"),
            )),
        }
    }
}

/// Reads a time such as `30s`.
///
/// # Errors
/// [`Error::Config`] that names the variable.
fn parse_time(name: &'static str, text: &str) -> Result<Duration, Error> {
    let text = text.trim();
    let (number, unit) = text.split_at(
        text.find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len()),
    );
    let ms = match unit {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let time = number
        .parse()
        .ok()
        .zip(ms)
        .and_then(|(number, ms): (u64, u64)| number.checked_mul(ms));
    time.map(Duration::from_millis).ok_or_else(|| {
        Error::config(
            name,
            format!("{text:?} is no time: write a number and a unit, such as 500ms or 30s"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&'static str, &str)]) -> Result<LockerBuilder, Error> {
        LockerBuilder::from_variables(|name| {
            Ok(variables
                .iter()
                .find(|(given, _)| *given == name)
                .map(|(_, value)| (*value).to_owned()))
        })
    }

    #[test]
    fn each_variable_sets_its_option() {
        let builder = read(&[
            ("LOCKHOUND_URL", "redis://a  redis://:secret@b"),
            ("LOCKHOUND_PREFIX", "app:"),
            ("LOCKHOUND_LABEL", "shop 1"),
            ("LOCKHOUND_LEASE", "90s"),
            ("LOCKHOUND_COMMAND_TIMEOUT", "500ms"),
            ("LOCKHOUND_CONNECT_TIMEOUT", "2m"),
            ("LOCKHOUND_OUTAGE_TOLERANCE", "1h"),
            ("LOCKHOUND_RESTART_QUARANTINE", " 5s "),
            ("LOCKHOUND_FORMAT", "plain"),
        ])
        .expect("valid");
        let options = &builder.options;
        assert_eq!((builder.nodes.len(), builder.prefix.as_str()), (2, "app:"));
        assert_eq!(options.label.as_deref(), Some("shop 1"));
        assert_eq!(
            (options.lease, options.command_timeout),
            (Duration::from_secs(90), Some(Duration::from_millis(500)))
        );
        assert_eq!(
            (options.connect_timeout.as_secs(), options.kind.format),
            (120, Format::Plain)
        );
        assert_eq!(options.outage_tolerance, Some(Duration::from_secs(3_600)));
        assert_eq!(options.restart_quarantine, Some(Duration::from_secs(5)));
        assert!(!format!("{builder:?}").contains("secret"));
        let shown = format!("{:?}", builder.nodes(["redis://c"]));
        assert!(shown.contains("nodes: [\"redis://c\"]"), "{shown}");
    }

    #[test]
    fn what_is_missing_or_empty_leaves_the_default() {
        let builder = read(&[("LOCKHOUND_LEASE", ""), ("LOCKHOUND_URL", " ")]).expect("valid");
        assert_eq!(
            (builder.nodes.len(), builder.options.lease),
            (0, Duration::from_secs(30))
        );
    }

    #[test]
    fn a_variable_that_cannot_be_used_is_named() {
        for (name, value) in [
            ("LOCKHOUND_LEASE", "30"),
            ("LOCKHOUND_LEASE", "s"),
            ("LOCKHOUND_LEASE", "1.5s"),
            ("LOCKHOUND_LEASE", "99999999999999999999h"),
            ("LOCKHOUND_COMMAND_TIMEOUT", "-1s"),
            ("LOCKHOUND_FORMAT", "Redisson"),
        ] {
            let error = read(&[(name, value)]).expect_err(value).to_string();
            assert!(
                error.contains(name) && error.contains(&format!("{value:?}")),
                "{error}"
            );
        }
    }
}
