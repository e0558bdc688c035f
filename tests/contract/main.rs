//! What a lock promises on every kind of deployment: one list of behaviours, run on each of them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod behaviours;
#[path = "../common/mod.rs"]
mod common;

use std::sync::Arc;

use behaviours::{Deployment, Place, on_each, with_every_behaviour};
use common::cluster::Cluster;
use common::sentinel::Sentinels;
use common::{Server, eventually, key, ms};
use lockhound::{Format, Locker};

/// A module of tests for each kind of deployment.
macro_rules! on_every_deployment {
    // A deployment that takes seconds to start is shared by all behaviours.
    (@together $kind:ident $start:expr; $($behaviour:ident)*) => {
        async fn every_behaviour(format: Format) {
            let servers = Arc::new($start);
            let on = || Deployment::on(vec![Place::$kind(Arc::clone(&servers))], format);
            $(eprintln!(stringify!($behaviour));
            crate::behaviours::$behaviour(on()).await;)*
        }
    };
    ($($behaviours:tt)*) => {
        mod one_server {
            use super::{Deployment, Format, on_each};
            on_each!(Deployment::of(1, Format::Redisson); $($behaviours)*);
        }
        mod three_servers {
            use super::{Deployment, Format, on_each};
            on_each!(Deployment::of(3, Format::Redisson); $($behaviours)*);
        }
        mod five_servers_of_which_two_are_down {
            use super::{Deployment, Format, on_each};
            on_each!(Deployment::of(5, Format::Redisson).crippled(); $($behaviours)*);
        }
        #[cfg(feature = "tls")]
        mod one_server_over_tls {
            use super::{Deployment, Format, on_each};
            on_each!(Deployment::encrypted(Format::Redisson); $($behaviours)*);
        }
        mod one_server_in_the_plain_format {
            use super::{Deployment, Format, on_each};
            on_each!(Deployment::of(1, Format::Plain); $($behaviours)*);
        }
        mod three_servers_in_the_plain_format {
            use super::{Deployment, Format, on_each};
            on_each!(Deployment::of(3, Format::Plain); $($behaviours)*);
        }
        mod a_cluster {
            use super::{Arc, Cluster, Deployment, Format, Place};
            on_every_deployment!(@together Cluster Cluster::start(3); $($behaviours)*);
            #[tokio::test]
            async fn of_three_masters() {
                every_behaviour(Format::Redisson).await;
            }
            #[tokio::test]
            async fn of_three_masters_in_the_plain_format() {
                every_behaviour(Format::Plain).await;
            }
        }
        mod a_master_that_sentinels_name {
            use super::{Arc, Deployment, Format, Place, Sentinels};
            on_every_deployment!(@together Named Sentinels::start(); $($behaviours)*);
            #[tokio::test]
            async fn with_a_replica() {
                every_behaviour(Format::Redisson).await;
            }
        }
        #[cfg(feature = "testing")]
        mod one_server_in_memory {
            use super::{Deployment, Format, on_each};
            on_each!(Deployment::in_memory(1, Format::Redisson); $($behaviours)*);
        }
        #[cfg(feature = "testing")]
        mod five_servers_in_memory_of_which_two_are_down {
            use super::{Deployment, Format, on_each};
            on_each!(Deployment::in_memory(5, Format::Redisson).crippled(); $($behaviours)*);
        }
        #[cfg(feature = "testing")]
        mod three_servers_in_memory_in_the_plain_format {
            use super::{Deployment, Format, on_each};
            on_each!(Deployment::in_memory(3, Format::Plain); $($behaviours)*);
        }
    };
}

with_every_behaviour!(on_every_deployment!);

/// The commands are those of the page, on a server that has just started. Redis 6.2 gives a new
/// user all channels.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_the_guides_list_of_rights_can_lock() {
    let server = Server::start();
    for list in [
        "Always",
        "One server",
        "Several servers",
        "The option `replica_acks`",
    ] {
        let commands = common::rights::commands(list);
        assert_eq!(commands.len(), 1, "{list}");
        for command in commands {
            server.command::<()>(&command.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }
    let url = format!("redis://app:PASSWORD@127.0.0.1:{}", server.port());
    let connect = || {
        Locker::builder()
            .node(&url)
            .lease(ms(6_000))
            .restart_quarantine(ms(6_000))
            .connect()
    };
    let (locks, other) = (connect().await.unwrap(), connect().await.unwrap());
    let name = format!("app:{}", key());
    // A server that has just started has no vote for its quarantine.
    let outer = locks.get(&name).lock().await.unwrap();
    let waiting = other.get(&name);
    let waiting = tokio::spawn(async move { waiting.lock().await });
    let inner = locks.get(&name).lock().await.unwrap();
    assert!(other.get(&name).holder().await.unwrap().is_some());
    eventually(ms(4_000), "it is renewed", || locks.stats().renewals > 0).await;
    inner.unlock().await.unwrap();
    outer.unlock().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    assert!(locks.get(&name).force_unlock().await.unwrap());
    drop(guard);
    assert!(
        locks.get("other").try_lock().await.is_err(),
        "it has no other rights"
    );
}
