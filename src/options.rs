//! The options of a locker, and which of them contradict each other.

use std::ops::Range;
use std::time::Duration;

use crate::error::Error;
use crate::kind::{Format, Kind};
use crate::label::Label;

const SHORTEST_LEASE: Duration = Duration::from_millis(100);
/// No lease is longer than this: a lock with more time left was written by another program, or the
/// server's clock was set back.
pub(crate) const LONGEST_LEASE: Duration = Duration::from_secs(30 * 24 * 3600);
const LONGEST_COMMAND_TIMEOUT: Duration = Duration::from_secs(3);

const POLL_INTERVAL: Range<Duration> = Duration::from_millis(50)..Duration::from_millis(200);

/// The longest of the random pauses has to be longer than this, or the waiters of a polled format
/// make a busy loop.
const SHORTEST_POLL: Duration = Duration::from_millis(1);

/// Where fences come from, and with which other tokens they form one sequence.
///
/// All programs that share a lock have to use the same setting.
///
/// Changing it for a lock that is in use needs some care: see [`Fence`](crate::Fence).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum FenceSource {
    /// They are counted in 1,024 keys, the marks; the name of the lock chooses one.
    ///
    /// If a server loses its data, fences continue from a clock. Several servers agree on each
    /// fence.
    #[default]
    Counters,
    /// They are counted as Redisson's `RFencedLock` counts its tokens.
    ///
    /// They begin at 1, in a key for each lock, `redisson_lock_token:{name}`. Its tokens and the
    /// fences of this crate form one sequence. It needs a single server and
    /// [`Format::Redisson`](crate::Format::Redisson).
    ///
    /// The key stays on the server forever. If it is lost, fences begin at 1 again.
    RedissonTokens,
}

/// The owner of calls that name none, and so which calls may enter again.
///
/// [`LockerBuilder::reentry`](crate::LockerBuilder::reentry) sets it for a locker,
/// [`Lock::non_reentrant`](crate::Lock::non_reentrant) for a handle.
///
/// An owner that a handle names ([`Lock::owned_by`](crate::Lock::owned_by)) takes precedence over
/// each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Reentry {
    /// The owner of the innermost scope, or else the tokio task.
    ///
    /// A scope is one of [`Owner::scope`](crate::Owner::scope) and
    /// [`Guard::scope`](crate::Guard::scope), or a section of [`Lock::run`](crate::Lock::run).
    /// Nested code enters again by itself. So do branches of one task that take guards: use `run`
    /// in branches.
    ///
    /// Outside of tokio tasks a polled call is identified by its waker, and a blocking call by its
    /// thread.
    #[default]
    Task,
    /// The owner of the innermost scope; outside of a scope each call is an owner of its own.
    ///
    /// Branches exclude each other, and a second `lock()` in nested code waits for the first unless
    /// it is in a scope.
    Scope,
    /// A new owner for each call, in scopes too: nothing enters again.
    Never,
}

/// How many replicas have to acknowledge a lock, and how long that may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Replicas {
    pub(crate) count: u32,
    pub(crate) timeout: Duration,
}

/// The settings of a locker, as the builder collects them. `None` stands for a default that depends
/// on the lease.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) lease: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Option<Duration>,
    pub(crate) renewal_attempts: u32,
    pub(crate) outage_tolerance: Option<Duration>,
    pub(crate) poll_interval: Option<Range<Duration>>,
    pub(crate) restart_quarantine: Option<Duration>,
    pub(crate) kind: &'static Kind,
    pub(crate) fence_source: FenceSource,
    pub(crate) replica_acks: Replicas,
    pub(crate) reentry: Reentry,
    pub(crate) label: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(5),
            command_timeout: None,
            renewal_attempts: 2,
            outage_tolerance: None,
            poll_interval: None,
            restart_quarantine: None,
            kind: Format::default().kind(),
            fence_source: FenceSource::default(),
            replica_acks: Replicas {
                count: 0,
                timeout: Duration::ZERO,
            },
            reentry: Reentry::default(),
            label: None,
        }
    }
}

/// Settings that agree with each other, every default filled in.
#[derive(Debug, Clone)]
pub struct Settings {
    pub(crate) lease: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) renewal_attempts: u32,
    pub(crate) outage_tolerance: Duration,
    pub(crate) poll_interval: Range<Duration>,
    pub(crate) restart_quarantine: Duration,
    pub(crate) kind: &'static Kind,
    pub(crate) fence_source: FenceSource,
    /// `None` if replicas are not asked.
    pub(crate) replica_acks: Option<Replicas>,
    pub(crate) reentry: Reentry,
    pub(crate) label: Label,
}

impl Settings {
    /// Returns how long a server keeps a lock that is not renewed.
    pub const fn lease(&self) -> Duration {
        self.lease
    }

    /// Returns how long one command may take.
    pub const fn command_timeout(&self) -> Duration {
        self.command_timeout
    }

    /// Returns how long a server that may have forgotten locks abstains; zero if it does not.
    pub const fn restart_quarantine(&self) -> Duration {
        self.restart_quarantine
    }

    /// Returns how locks are stored.
    pub const fn format(&self) -> Format {
        self.kind.format
    }

    /// Returns how many replicas have to acknowledge a lock, and how long that may take.
    ///
    /// It is `None` if they are not asked.
    pub fn replica_acks(&self) -> Option<(u32, Duration)> {
        self.replica_acks
            .map(|replicas| (replicas.count, replicas.timeout))
    }

    /// Checks that no server votes again while a lock that it has forgotten may still be held.
    ///
    /// # Errors
    /// [`Error::Config`] for a lease that is longer than the quarantine.
    pub(crate) fn check_quarantine(
        &self,
        option: &'static str,
        lease: Duration,
    ) -> Result<(), Error> {
        let quarantine = self.restart_quarantine;
        if quarantine.is_zero() || lease <= quarantine {
            return Ok(());
        }
        Err(Error::config(
            option,
            format!(
                "{lease:?} is longer than restart_quarantine = {quarantine:?}: a server that restarted could vote \
                 again while a lock that it has forgotten is still held; lengthen the quarantine, or shorten this"
            ),
        ))
    }
}

impl Options {
    /// Returns the settings for this many nodes.
    ///
    /// # Errors
    /// [`Error::Config`] that names the option, its value and, if two contradict each other, the
    /// other value too.
    pub(crate) fn validate(&self, nodes: usize) -> Result<Settings, Error> {
        validate_duration("lease", self.lease)?;
        let command_timeout = self
            .command_timeout
            .unwrap_or((self.lease / 10).min(LONGEST_COMMAND_TIMEOUT));
        if self.connect_timeout.is_zero() {
            return Err(Error::config(
                "connect_timeout",
                "0ns leaves no time to connect; give some seconds",
            ));
        }
        if self.renewal_attempts == 0 {
            return Err(Error::config(
                "renewal_attempts",
                "0 would lose each lock without an attempt to renew it; give 1 or more",
            ));
        }
        if command_timeout < Duration::from_millis(1) {
            return Err(Error::config(
                "command_timeout",
                format!("{command_timeout:?} is shorter than any round trip; give 1 ms or more"),
            ));
        }
        // A tick lasts one command_timeout and has to be over before the next one begins.
        let ticks = self.renewal_attempts.checked_add(1).ok_or_else(|| {
            Error::config(
                "renewal_attempts",
                format!("{} is too many; 2 is usual", self.renewal_attempts),
            )
        })?;
        if command_timeout >= self.lease / ticks {
            return Err(Error::config(
                "command_timeout",
                format!(
                    "{command_timeout:?} is not shorter than lease / (renewal_attempts + 1) = {:?} / {ticks} = {:?}; \
                     shorten it, or lengthen the lease",
                    self.lease,
                    self.lease / ticks
                ),
            ));
        }
        self.validate_fence_source(nodes)?;
        // A single server that forgets its locks has forgotten them for all clients.
        let default_quarantine = if nodes > 1 {
            self.lease
        } else {
            Duration::ZERO
        };
        // Servers remember a quarantine, and abstain for that long, also after the program that
        // gave it is gone.
        let restart_quarantine = validate_length(
            "restart_quarantine",
            self.restart_quarantine.unwrap_or(default_quarantine),
            ", or zero to turn it off",
        )?;
        // They remember calls of latches, and places in queues, for longer than that.
        let outage_tolerance = match self.outage_tolerance {
            Some(given) => validate_length("outage_tolerance", given, "")?,
            None => default_tolerance(self.lease, restart_quarantine),
        };
        let settings = Settings {
            lease: self.lease,
            connect_timeout: self.connect_timeout,
            command_timeout,
            renewal_attempts: self.renewal_attempts,
            outage_tolerance,
            poll_interval: self.validate_poll_interval()?,
            restart_quarantine,
            kind: self.kind,
            fence_source: self.fence_source,
            replica_acks: self.validate_replica_acks(command_timeout)?,
            reentry: self.reentry,
            label: self.label()?,
        };
        settings.check_quarantine("lease", self.lease)?;
        Ok(settings)
    }

    fn validate_poll_interval(&self) -> Result<Range<Duration>, Error> {
        let Some(interval) = &self.poll_interval else {
            return Ok(POLL_INTERVAL);
        };
        let format = self.kind.format;
        let problem = if self.kind.announced {
            format!(
                "{interval:?} has no effect: the waiters of Format::{format:?} are woken by messages; leave it out, or \
                 use Format::Plain"
            )
        } else if interval.start >= interval.end {
            format!("{interval:?} is empty; its end has to be after its start")
        } else if interval.end <= SHORTEST_POLL {
            format!(
                "{interval:?} makes a busy loop of the waiters of Format::{format:?}; end it after {SHORTEST_POLL:?}"
            )
        } else {
            return Ok(interval.clone());
        };
        Err(Error::config("poll_interval", problem))
    }

    fn label(&self) -> Result<Label, Error> {
        self.label
            .as_deref()
            .map_or_else(|| Ok(Label::of_process()), Label::parse)
    }

    fn validate_fence_source(&self, nodes: usize) -> Result<(), Error> {
        if self.fence_source == FenceSource::Counters {
            return Ok(());
        }
        if nodes > 1 {
            return Err(Error::config(
                "fence_source",
                format!(
                    "FenceSource::RedissonTokens needs one server, and {nodes} are given: each would count tokens of \
                     its own, and those of one do not follow those of another; name one, or use \
                     FenceSource::Counters"
                ),
            ));
        }
        if !self.kind.tokens {
            return Err(Error::config(
                "fence_source",
                format!(
                    "FenceSource::RedissonTokens counts with Redisson's RFencedLock, which cannot share a lock of \
                     Format::{:?}; use Format::Redisson, or FenceSource::Counters",
                    self.kind.format
                ),
            ));
        }
        Ok(())
    }

    fn validate_replica_acks(&self, command_timeout: Duration) -> Result<Option<Replicas>, Error> {
        let Replicas { count, timeout } = self.replica_acks;
        if count == 0 {
            return Ok(None);
        }
        // WAIT takes milliseconds, and 0 means that it waits forever.
        if timeout < Duration::from_millis(1) {
            return Err(Error::config(
                "replica_acks",
                format!(
                    "{timeout:?} is too short for {count} replica(s) to acknowledge; give 1 ms or more"
                ),
            ));
        }
        if timeout >= command_timeout {
            return Err(Error::config(
                "replica_acks",
                format!(
                    "{timeout:?} is not shorter than command_timeout = {command_timeout:?}: a renewal would time out \
                     before {count} replica(s) could acknowledge it; shorten it, or lengthen command_timeout"
                ),
            ));
        }
        Ok(Some(self.replica_acks))
    }
}

/// # Errors
/// [`Error::Config`] unless the duration is from 100 ms to 30 days.
pub(crate) fn validate_duration(option: &'static str, duration: Duration) -> Result<(), Error> {
    if duration < SHORTEST_LEASE {
        return Err(Error::config(
            option,
            format!("{duration:?} is too short; give 100 ms to 30 days"),
        ));
    }
    if duration > LONGEST_LEASE {
        return Err(Error::config(
            option,
            format!("{duration:?} is too long; give 100 ms to 30 days"),
        ));
    }
    Ok(())
}

/// # Errors
/// [`Error::Config`] if it is longer than 30 days.
fn validate_length(
    option: &'static str,
    duration: Duration,
    advice: &str,
) -> Result<Duration, Error> {
    if duration > LONGEST_LEASE {
        let problem = format!("{duration:?} is too long; give 30 days or less{advice}");
        return Err(Error::config(option, problem));
    }
    Ok(duration)
}

/// Returns a tolerance that outlasts a quarantine, so that calls do not fail a moment before a
/// server votes again.
fn default_tolerance(lease: Duration, quarantine: Duration) -> Duration {
    if quarantine.is_zero() {
        lease
    } else {
        lease.max(quarantine + quarantine / 8 + Duration::from_secs(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(change: impl FnOnce(&mut Options)) -> String {
        let mut options = Options::default();
        change(&mut options);
        options
            .validate(1)
            .expect_err("these options contradict each other")
            .to_string()
    }

    #[test]
    fn defaults_depend_on_the_lease() {
        let settings = Options::default().validate(1).expect("valid");
        assert_eq!(settings.command_timeout, Duration::from_secs(3));
        assert_eq!(settings.outage_tolerance, Duration::from_secs(30));
        let short = Options {
            lease: Duration::from_secs(1),
            ..Options::default()
        }
        .validate(1)
        .expect("valid");
        assert_eq!(short.command_timeout, Duration::from_millis(100));
        assert_eq!(settings.restart_quarantine, Duration::ZERO);
        assert_eq!(
            Options::default()
                .validate(3)
                .expect("valid")
                .restart_quarantine,
            Duration::from_secs(30)
        );
    }

    #[test]
    fn contradictions_name_both_values() {
        let timeout = refusal(|o| o.command_timeout = Some(Duration::from_secs(10)));
        assert!(
            timeout.contains("10s") && timeout.contains("30s / 3"),
            "{timeout}"
        );
        assert!(refusal(|o| o.lease = Duration::from_millis(99)).contains("99ms"));
        assert!(refusal(|o| o.lease = Duration::from_secs(31 * 24 * 3600)).contains("2678400s"));
        assert!(refusal(|o| o.renewal_attempts = 0).contains('0'));
        assert!(refusal(|o| o.renewal_attempts = u32::MAX).contains("4294967295"));
        assert!(refusal(|o| o.connect_timeout = Duration::ZERO).contains("connect_timeout"));
        assert!(refusal(|o| o.command_timeout = Some(Duration::ZERO)).contains("command_timeout"));
        let quarantine = refusal(|o| o.restart_quarantine = Some(Duration::from_secs(29)));
        assert!(
            quarantine.contains("30s") && quarantine.contains("29s"),
            "{quarantine}"
        );
        let days = |days: u64| Some(Duration::from_secs(days * 24 * 3600));
        for too_long in [days(31), Some(Duration::MAX)] {
            let tolerance = refusal(|o| o.outage_tolerance = too_long);
            assert!(
                tolerance.contains("outage_tolerance") && tolerance.contains("30 days"),
                "{tolerance}"
            );
            let quarantine = refusal(|o| o.restart_quarantine = too_long);
            assert!(
                quarantine.contains("restart_quarantine") && quarantine.contains("30 days"),
                "{quarantine}"
            );
        }
        assert!(
            Options {
                restart_quarantine: days(30),
                ..Options::default()
            }
            .validate(3)
            .is_ok()
        );
    }

    #[test]
    fn replicas_have_less_time_than_a_command() {
        let with = |count, timeout| {
            let replicas = Replicas {
                count,
                timeout: Duration::from_millis(timeout),
            };
            Options {
                replica_acks: replicas,
                ..Options::default()
            }
            .validate(1)
        };
        assert_eq!(with(0, 0).expect("off").replica_acks, None);
        assert_eq!(with(0, 5_000).expect("off").replica_acks, None);
        assert!(
            with(2, 2_999)
                .expect("valid")
                .replica_acks
                .is_some_and(|r| r.count == 2)
        );
        let long = with(2, 3_000).expect_err("too long").to_string();
        assert!(
            long.contains("replica_acks: 3s") && long.contains("command_timeout = 3s"),
            "{long}"
        );
        let none = with(2, 0).expect_err("for ever").to_string();
        assert!(
            none.contains("0ns") && none.contains("2 replica(s)"),
            "{none}"
        );
    }

    #[test]
    fn redissons_tokens_need_one_server_and_its_format() {
        let options = Options {
            fence_source: FenceSource::RedissonTokens,
            ..Options::default()
        };
        assert_eq!(
            options.validate(1).expect("valid").fence_source,
            FenceSource::RedissonTokens
        );
        let several = options.validate(3).expect_err("three counters").to_string();
        assert!(
            several.contains("fence_source: FenceSource::RedissonTokens")
                && several.contains("3 are given"),
            "{several}"
        );
        let plain = Options {
            kind: Format::Plain.kind(),
            ..options
        }
        .validate(1)
        .expect_err("no RFencedLock")
        .to_string();
        assert!(
            plain.contains("FenceSource::RedissonTokens") && plain.contains("Format::Plain"),
            "{plain}"
        );
        assert_eq!(
            Options::default().validate(3).expect("valid").fence_source,
            FenceSource::Counters
        );
    }

    #[test]
    fn the_plain_format_polls_with_a_pause() {
        let ms = Duration::from_millis;
        let with = |format: Format, interval| {
            let options = Options {
                kind: format.kind(),
                poll_interval: interval,
                ..Options::default()
            };
            options.validate(1).map(|settings| settings.poll_interval)
        };
        assert_eq!(with(Format::Plain, None).expect("valid"), ms(50)..ms(200));
        let quick = ms(0)..ms(2);
        assert_eq!(
            with(Format::Plain, Some(quick.clone())).expect("valid"),
            quick
        );
        for (format, interval, words) in [
            (Format::Plain, ms(0)..ms(1), ["0ns..1ms", "busy loop"]),
            (Format::Plain, ms(20)..ms(20), ["20ms..20ms", "empty"]),
            (Format::Redisson, quick, ["Format::Redisson", "no effect"]),
        ] {
            let error = with(format, Some(interval)).expect_err("refused");
            let error = error.to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }
}
