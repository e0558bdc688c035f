//! A holder extends a fixed lease.

use lockhound::testing::Server;
use lockhound::{Error, Format, Guard, Loss};
use tokio::time::sleep;

use crate::common::{key, ms};
use crate::{over, servers};

/// Takes a lock over these servers for a second.
async fn taken(servers: &[Server], format: Format) -> Guard {
    let locks = over(servers, ms(3_000))
        .format(format)
        .connect()
        .await
        .unwrap();
    locks
        .get(key())
        .fixed_lease(ms(1_000))
        .lock()
        .await
        .unwrap()
}

async fn is_free(servers: &[Server], guard: &Guard, format: Format) -> bool {
    let other = over(servers, ms(3_000))
        .format(format)
        .connect()
        .await
        .unwrap();
    other.get(guard.key()).try_lock().await.unwrap().is_some()
}

#[tokio::test(start_paused = true)]
async fn an_extended_lock_is_held_for_that_long_and_no_longer() {
    for (count, format) in [
        (1, Format::Redisson),
        (1, Format::Plain),
        (3, Format::Redisson),
        (3, Format::Plain),
    ] {
        let servers = servers(count);
        let guard = taken(&servers, format).await;
        for _ in 0..3 {
            sleep(ms(800)).await;
            guard.extend(ms(1_000)).await.unwrap();
            assert!(guard.remaining() > ms(950), "{:?}", guard.remaining());
        }
        guard.extend(ms(10_000)).await.unwrap();
        sleep(ms(9_800)).await;
        assert!(!is_free(&servers, &guard, format).await);
        guard.check().unwrap();
        guard.lost().cancelled().await;
        assert_eq!(guard.loss(), Some(Loss::Expired));
        assert!(
            !is_free(&servers, &guard, format).await,
            "the token comes first"
        );
        sleep(ms(200)).await;
        assert!(is_free(&servers, &guard, format).await);
        assert!(matches!(
            guard.extend(ms(1_000)).await,
            Err(Error::Lost { .. })
        ));
        assert!(
            is_free(&servers, &guard, format).await,
            "it was not taken again"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_extension_shortens_nothing() {
    let servers = servers(1);
    let guard = taken(&servers, Format::Redisson).await;
    guard.extend(ms(10_000)).await.unwrap();
    // One that is late arrives after the next.
    servers[0].stop();
    let (late, longer) = tokio::join!(guard.extend(ms(1_000)), async {
        sleep(ms(50)).await;
        servers[0].resume();
        guard.extend(ms(20_000)).await
    });
    assert!(late.is_ok() && longer.is_ok(), "{late:?} {longer:?}");
    guard.extend(ms(1_000)).await.unwrap();
    assert!(guard.remaining() > ms(19_000), "{:?}", guard.remaining());
    sleep(ms(19_000)).await;
    guard.check().unwrap();
    assert!(!is_free(&servers, &guard, Format::Redisson).await);
}

#[tokio::test(start_paused = true)]
async fn a_minority_extends_nothing() {
    let servers = servers(3);
    let guard = taken(&servers, Format::Redisson).await;
    servers[0].stop();
    guard.extend(ms(2_000)).await.unwrap();
    servers[1].stop();
    let before = guard.remaining();
    let error = guard.extend(ms(60_000)).await.unwrap_err();
    assert!(matches!(&error, Error::Unavailable { .. }), "{error}");
    assert!(
        error.to_string().contains(&format!("{:?}", guard.key())),
        "{error}"
    );
    assert!(guard.remaining() <= before, "{:?}", guard.remaining());
    guard.lost().cancelled().await;
    // The servers may keep it until the extension is over; the release ends it before.
    servers[..2].iter().for_each(Server::resume);
    let other = over(&servers, ms(3_000))
        .connect()
        .await
        .unwrap()
        .get(guard.key());
    drop(guard);
    assert!(other.try_lock_for(ms(5_000)).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_extended_is_refused() {
    let servers = servers(1);
    let locks = over(&servers, ms(3_000)).connect().await.unwrap();
    let renewed = locks.get(key()).lock().await.unwrap();
    assert!(
        matches!(renewed.extend(ms(1_000)).await, Err(Error::Config(error)) if error.option() == "extend")
    );
    let guard = locks
        .get(key())
        .fixed_lease(ms(1_000))
        .max_hold(ms(1_500))
        .lock()
        .await
        .unwrap();
    assert!(
        matches!(guard.extend(ms(10)).await, Err(Error::Config(_))),
        "too short"
    );
    guard.extend(ms(60_000)).await.unwrap();
    assert!(guard.remaining() <= ms(1_500), "max_hold ends it");
    servers[0].delete(guard.key().as_str());
    assert!(matches!(
        guard.extend(ms(1_000)).await,
        Err(Error::Lost {
            loss: Loss::NotOwner,
            ..
        })
    ));
    assert!(guard.is_lost() && guard.lost().is_cancelled());
    locks.close().await;
    assert!(matches!(
        renewed.extend(ms(1_000)).await,
        Err(Error::Closed)
    ));
}
