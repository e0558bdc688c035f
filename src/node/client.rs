//! Configures fred's clients.
//!
//! `reconnect_errors` is not enabled: it would hand one command's `LOADING` to all commands in
//! flight. That was reproduced.

use std::time::Duration;

use fred::clients::Client;
use fred::types::RespVersion;
use fred::types::config::{
    Config, ConnectionConfig, PerformanceConfig, ReconnectPolicy, TcpConfig,
};

use super::inline::quote_credentials;
use crate::options::Settings;

/// What a connection is for. Each kind has its own, so that a burst of one delays no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Commands,
    Subscriber,
    Renewals,
    /// Scripts that replicas have to acknowledge, except renewals.
    Acknowledged,
    /// For a tool that asks the server: see `door.rs`.
    Visitor,
    /// To a Sentinel, which is asked for the master and announces another one.
    Sentinel,
}

impl Role {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Commands => "commands",
            Self::Subscriber => "subscriber",
            Self::Renewals => "renewals",
            Self::Acknowledged => "acknowledged",
            Self::Visitor => "visitor",
            Self::Sentinel => "sentinel",
        }
    }

    /// Returns whether it subscribes to channels, and runs no scripts.
    pub(super) fn listens(self) -> bool {
        matches!(self, Self::Subscriber | Self::Sentinel)
    }
}

/// Builds a client that is not connected yet.
pub(super) fn build(
    mut config: Config,
    role: Role,
    settings: &Settings,
    fail_fast: bool,
) -> Client {
    config.fail_fast = fail_fast;
    // In RESP2 a subscribed connection answers PING in another form and refuses everything else.
    // The other connections speak RESP2, so that a server that is too old can say so.
    config.version = if role.listens() {
        RespVersion::RESP3
    } else {
        RespVersion::RESP2
    };
    if role.listens() {
        quote_credentials(&mut config);
    }
    Client::new(
        config,
        Some(performance(role, settings)),
        Some(connection(settings)),
        Some(policy(settings)),
    )
}

/// Returns how long an attempt to connect may take: a network that swallows everything for a moment
/// must not cost a short lease more than that moment. Further attempts follow until
/// `connect_timeout`, or for ever at a reconnect.
pub(super) fn attempt_timeout(settings: &Settings) -> Duration {
    settings
        .connect_timeout
        .min((2 * settings.command_timeout).max(SHORTEST_ATTEMPT))
}

/// TLS and a name with a dead first address take this long.
const SHORTEST_ATTEMPT: Duration = Duration::from_millis(500);

/// The shortest pause between two attempts to reconnect.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

/// The longest one: 2 s, but with a short command timeout not so long that a short lease runs out.
fn longest_pause(settings: &Settings) -> Duration {
    settings
        .command_timeout
        .clamp(SHORTEST_PAUSE, Duration::from_secs(2))
}

/// Returns the longest pause behind this many attempts that failed, as [`policy`] has it.
pub(super) fn pause_after(failures: u32, settings: &Settings) -> Duration {
    (SHORTEST_PAUSE * 2_u32.saturating_pow(failures.min(16))).min(longest_pause(settings))
}

/// Reconnects forever.
fn policy(settings: &Settings) -> ReconnectPolicy {
    let [least, most] =
        [SHORTEST_PAUSE, longest_pause(settings)].map(|pause| u32::try_from(pause.as_millis()));
    let mut policy =
        ReconnectPolicy::new_exponential(0, least.unwrap_or(50), most.unwrap_or(2_000), 2);
    policy.set_jitter(25);
    policy
}

/// Returns how long a reply may take.
pub(super) fn reply_timeout(role: Role, settings: &Settings) -> Duration {
    // A reply behind a WAIT comes only when that has ended, also the reply to a heartbeat.
    let blocked = match role {
        Role::Renewals | Role::Acknowledged | Role::Visitor => settings
            .replica_acks
            .map_or(Duration::ZERO, |replicas| replicas.timeout),
        Role::Commands | Role::Subscriber | Role::Sentinel => Duration::ZERO,
    };
    settings.command_timeout + blocked
}

fn performance(role: Role, settings: &Settings) -> PerformanceConfig {
    PerformanceConfig {
        default_command_timeout: reply_timeout(role, settings),
        broadcast_channel_capacity: capacity(role),
        ..PerformanceConfig::default()
    }
}

/// Returns how many messages may wait to be read, and how many events of each other kind. fred
/// makes eight channels of this size for each client, and a place takes some 95 bytes, whether it
/// is used or not.
///
/// fred reads thousands of messages in a row if they come in a row. Those that do not fit count as
/// missed, and all waiters poll (`LinkEvent::Lagged`). Other connections get no messages, and of
/// their events only the last one matters.
fn capacity(role: Role) -> usize {
    match role {
        Role::Subscriber => 512,
        Role::Commands | Role::Renewals | Role::Acknowledged | Role::Visitor | Role::Sentinel => 32,
    }
}

fn connection(settings: &Settings) -> ConnectionConfig {
    ConnectionConfig {
        connection_timeout: attempt_timeout(settings),
        internal_command_timeout: attempt_timeout(settings),
        // With more of either, fred executes a script again when its reply is lost. That was
        // reproduced.
        max_command_attempts: 1,
        max_redirections: 0,
        max_command_buffer_len: 0,
        tcp: TcpConfig {
            // fred leaves it off: a script would wait until the one before it is acknowledged.
            nodelay: Some(true),
            keepalive: Some(
                socket2::TcpKeepalive::new()
                    .with_time(Duration::from_secs(15))
                    .with_interval(Duration::from_secs(5)),
            ),
            #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
            // Otherwise the kernel keeps a connection for minutes whose peer acknowledges nothing.
            user_timeout: Some((settings.command_timeout * 2).max(Duration::from_secs(1))),
            ..TcpConfig::default()
        },
        ..ConnectionConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Options, Replicas};

    #[test]
    fn fred_is_configured_to_send_once_and_to_time_out() {
        let settings = Options::default().validate(1).expect("valid");
        let connection = connection(&settings);
        assert_eq!(
            (connection.max_command_attempts, connection.max_redirections),
            (1, 0)
        );
        assert_eq!(connection.max_command_buffer_len, 0);
        assert_eq!(connection.tcp.nodelay, Some(true));
        assert!(connection.tcp.keepalive.is_some());
        #[cfg(target_os = "linux")]
        assert_eq!(connection.tcp.user_timeout, Some(Duration::from_secs(6)));
        assert_eq!(
            performance(Role::Renewals, &settings).default_command_timeout,
            Duration::from_secs(3)
        );
        let capacity = |role| performance(role, &settings).broadcast_channel_capacity;
        assert_eq!([Role::Subscriber, Role::Commands].map(capacity), [512, 32]);
        assert_eq!(policy(&settings).max_attempts(), 0, "forever");
    }

    #[test]
    fn replies_that_may_be_behind_a_wait_have_its_time_in_addition() {
        let replicas = Replicas {
            count: 1,
            timeout: Duration::from_secs(1),
        };
        let settings = Options {
            replica_acks: replicas,
            ..Options::default()
        }
        .validate(1)
        .expect("valid");
        for (role, seconds) in [
            (Role::Commands, 3),
            (Role::Subscriber, 3),
            (Role::Visitor, 4),
            (Role::Renewals, 4),
            (Role::Acknowledged, 4),
        ] {
            assert_eq!(
                reply_timeout(role, &settings),
                Duration::from_secs(seconds),
                "{role:?}"
            );
        }
    }
}
