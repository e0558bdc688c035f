//! Configures fred's clients.
//!
//! The settings and their reasons. Each line is a fault that was reproduced with fred's defaults:
//! - `max_command_attempts = 1`, `max_redirections = 0`: with more, fred executes a script again when its reply is
//!   lost.
//! - `reconnect_errors` is not enabled: it would hand one command's `LOADING` to all commands in flight.
//! - `tcp.nodelay` is off by default; `broadcast_channel_capacity` of 32 loses messages.

use std::time::Duration;

use fred::clients::Client;
use fred::types::RespVersion;
use fred::types::config::{ConnectionConfig, PerformanceConfig, ReconnectPolicy, TcpConfig};

use super::address::Address;
use crate::options::Settings;

/// What a connection is for. Each kind has its own, so that a burst of one delays no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Commands,
    Subscriber,
    Renewals,
    /// Scripts that replicas have to acknowledge, except renewals.
    Acknowledged,
    /// Used for the time of a `preflight` only.
    Preflight,
}

impl Role {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Commands => "commands",
            Self::Subscriber => "subscriber",
            Self::Renewals => "renewals",
            Self::Acknowledged => "acknowledged",
            Self::Preflight => "preflight",
        }
    }
}

/// Builds a client that is not connected yet.
pub(super) fn build(address: &Address, role: Role, settings: &Settings, fail_fast: bool) -> Client {
    let mut config = address.config();
    config.fail_fast = fail_fast;
    // In RESP2 a subscribed connection answers PING in another form and refuses everything else. The other connections
    // speak RESP2, so that a server that is too old can say so.
    let subscribes = matches!(role, Role::Subscriber | Role::Preflight);
    config.version = if subscribes { RespVersion::RESP3 } else { RespVersion::RESP2 };
    Client::new(config, Some(performance(role, settings)), Some(connection(settings)), Some(policy(settings)))
}

/// Reconnects forever, 50 ms to 2 s apart, but with a short command timeout not so far apart that a short lease runs
/// out.
fn policy(settings: &Settings) -> ReconnectPolicy {
    let most = settings.command_timeout.clamp(Duration::from_millis(50), Duration::from_secs(2));
    let most = u32::try_from(most.as_millis()).unwrap_or(2_000);
    let mut policy = ReconnectPolicy::new_exponential(0, 50, most, 2);
    policy.set_jitter(25);
    policy
}

/// Returns how long a reply may take. A reply behind a WAIT comes only after the WAIT ends, also that of a heartbeat.
pub(super) fn reply_timeout(role: Role, settings: &Settings) -> Duration {
    let blocked = match role {
        Role::Renewals | Role::Acknowledged | Role::Preflight => {
            settings.replicas.map_or(Duration::ZERO, |replicas| replicas.timeout)
        }
        Role::Commands | Role::Subscriber => Duration::ZERO,
    };
    settings.command_timeout + blocked
}

fn performance(role: Role, settings: &Settings) -> PerformanceConfig {
    PerformanceConfig {
        default_command_timeout: reply_timeout(role, settings),
        broadcast_channel_capacity: 4096,
        ..PerformanceConfig::default()
    }
}

fn connection(settings: &Settings) -> ConnectionConfig {
    ConnectionConfig {
        connection_timeout: settings.connect_timeout,
        internal_command_timeout: settings.connect_timeout,
        max_command_attempts: 1,
        max_redirections: 0,
        max_command_buffer_len: 0,
        tcp: TcpConfig {
            nodelay: Some(true),
            keepalive: Some(
                socket2::TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(Duration::from_secs(5)),
            ),
            #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
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
        assert_eq!((connection.max_command_attempts, connection.max_redirections), (1, 0));
        assert_eq!(connection.max_command_buffer_len, 0);
        assert_eq!(connection.tcp.nodelay, Some(true));
        assert!(connection.tcp.keepalive.is_some());
        #[cfg(target_os = "linux")]
        assert_eq!(connection.tcp.user_timeout, Some(Duration::from_secs(6)));
        assert_eq!(performance(Role::Renewals, &settings).default_command_timeout, Duration::from_secs(3));
        assert_eq!(performance(Role::Commands, &settings).broadcast_channel_capacity, 4096);
        assert_eq!(policy(&settings).max_attempts(), 0, "forever");
    }

    #[test]
    fn replies_that_may_be_behind_a_wait_have_its_time_in_addition() {
        let replicas = Replicas { count: 1, timeout: Duration::from_secs(1) };
        let settings = Options { replicas, ..Options::default() }.validate(1).expect("valid");
        for (role, seconds) in [
            (Role::Commands, 3),
            (Role::Subscriber, 3),
            (Role::Preflight, 4),
            (Role::Renewals, 4),
            (Role::Acknowledged, 4),
        ] {
            assert_eq!(reply_timeout(role, &settings), Duration::from_secs(seconds), "{role:?}");
        }
    }
}
