//! A holder extends a fixed lease on a server.

use lockhound::{Error, Format, Loss};

use crate::common::proxy::{Mode, Proxy};
use crate::common::several::{on, over, servers};
use crate::common::{Server, builder, eventually, key, ms};

#[tokio::test]
async fn an_extension_restarts_the_lease_on_each_server() {
    for (count, format) in [
        (1, Format::Redisson),
        (1, Format::Plain),
        (3, Format::Redisson),
        (3, Format::Plain),
    ] {
        let servers = servers(count);
        let locks = over(&servers, ms(60_000))
            .format(format)
            .connect()
            .await
            .unwrap();
        let guard = locks
            .get(key())
            .fixed_lease(ms(20_000))
            .lock()
            .await
            .unwrap();
        let name = guard.key().to_string();
        guard.extend(ms(50_000)).await.unwrap();
        assert!(guard.remaining() > ms(20_000), "{:?}", guard.remaining());
        let extended = || {
            servers
                .iter()
                .filter(|server| server.command::<i64>(&["PTTL", &name]) > 20_000)
                .count()
        };
        eventually(ms(10_000), "each has it for longer", || extended() == count).await;
        guard.extend(ms(1_000)).await.unwrap();
        assert!(
            guard.remaining() > ms(20_000) && extended() == count,
            "nothing is shortened"
        );
        // Somebody else has the key.
        for server in &servers {
            server.command::<()>(&["SET", &name, "somebody", "PX", "60000"]);
        }
        assert!(matches!(
            guard.extend(ms(50_000)).await,
            Err(Error::Lost {
                loss: Loss::NotOwner,
                ..
            })
        ));
        assert_eq!(on(&servers, &name), count);
        assert!(
            servers
                .iter()
                .all(|server| server.command::<String>(&["GET", &name]) == "somebody")
        );
    }
}

/// The release is repeated for as long as the extended lease may stand, and not for as long as the
/// first one.
#[tokio::test]
async fn an_extended_lock_is_released_after_an_outage() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url(), ms(3_000)).connect().await.unwrap();
    let lease = ms(200);
    let guard = locks.get(key()).fixed_lease(lease).lock().await.unwrap();
    let name = guard.key().to_string();
    guard.extend(ms(600_000)).await.unwrap();
    proxy.set(Mode::Refuse);
    proxy.cut();
    drop(guard);
    // Longer than the first lease and what its undo adds.
    tokio::time::sleep(lease * 10).await;
    assert!(server.exists(&name));
    proxy.set(Mode::Pass);
    eventually(ms(60_000), "it is released", || !server.exists(&name)).await;
}

#[test]
fn a_thread_extends_and_several_locks_are_extended_at_once() {
    let (server, names) = (Server::start(), [key(), key()]);
    let locks = builder(&server.url(), ms(3_000))
        .blocking_connect()
        .unwrap();
    let longer = |count: usize| {
        assert_eq!(
            names
                .iter()
                .filter(|name| server.command::<i64>(&["PTTL", name]) > 20_000)
                .count(),
            count
        );
    };
    let guard = locks
        .get(&names[0])
        .fixed_lease(ms(5_000))
        .blocking_lock()
        .unwrap();
    guard.blocking_extend(ms(50_000)).unwrap();
    longer(1);
    guard.blocking_unlock().unwrap();
    let both = locks
        .multi(&names)
        .fixed_lease(ms(5_000))
        .blocking_lock()
        .unwrap();
    both.blocking_extend(ms(50_000)).unwrap();
    longer(2);
    assert!(both.remaining() > ms(20_000), "{:?}", both.remaining());
    server.command::<()>(&["SET", &names[0], "somebody", "PX", "1000"]);
    assert!(matches!(
        both.blocking_extend(ms(60_000)),
        Err(Error::Lost {
            loss: Loss::NotOwner,
            ..
        })
    ));
    assert!(
        server.command::<i64>(&["PTTL", &names[1]]) > 50_000,
        "the other one is extended all the same"
    );
}
