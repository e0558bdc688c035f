//! How long a lock with a `min_hold` stays. Time is paused.

use lockhound::{Error, Guard, Locker, Loss, Owner};
use tokio::time::{Instant, sleep};

use super::common::{key, ms};
use super::{Server, over};

/// Connects two lockers with a lease of a second.
async fn two(server: &Server) -> [Locker; 2] {
    let server = std::slice::from_ref(server);
    [
        over(server, ms(1_000)).connect().await.unwrap(),
        over(server, ms(1_000)).connect().await.unwrap(),
    ]
}

/// Returns when another owner gets the lock, in milliseconds from `start`.
async fn taken_after(start: Instant, locks: &Locker, key: &str) -> u128 {
    locks
        .get(key)
        .owned_by(Owner::new())
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    start.elapsed().as_millis()
}

/// Releases a guard after half a second.
async fn release(guard: Guard) {
    sleep(ms(500)).await;
    guard.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_min_hold_longer_or_shorter_than_the_lease_keeps_the_lock() {
    // The waiter is in another locker, or in the same one, where a lock would be handed over
    // otherwise.
    for (min_hold, waiter) in [(700, 0), (700, 1), (5_000, 0), (5_000, 1)] {
        let (server, key, start) = (Server::new(), key(), Instant::now());
        let lockers = two(&server).await;
        let guard = lockers[0]
            .get(&key)
            .min_hold(ms(min_hold))
            .lock()
            .await
            .unwrap();
        let (_, taken) = tokio::join!(release(guard), taken_after(start, &lockers[waiter], &key));
        assert!(
            (u128::from(min_hold)..u128::from(min_hold) + 10).contains(&taken),
            "{min_hold} {waiter}: {taken}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_held_for_longer_is_free_at_once() {
    let (server, key) = (Server::new(), key());
    let [one, two] = two(&server).await;
    let guard = one.get(&key).min_hold(ms(400)).lock().await.unwrap();
    release(guard).await;
    assert_eq!(server.holder(&key), None);
    two.get(&key)
        .try_lock()
        .await
        .unwrap()
        .expect("free")
        .unlock()
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn nobody_gets_a_kept_lock_not_even_the_owner_that_released_it() {
    let (server, key, start) = (Server::new(), key(), Instant::now());
    let [one, two] = two(&server).await;
    let lock = one.get(&key).min_hold(ms(3_000));
    lock.lock().await.unwrap().unlock().await.unwrap();
    assert!(lock.try_lock().await.unwrap().is_none());
    assert!(two.get(&key).try_lock().await.unwrap().is_none());
    let holder = two
        .get(&key)
        .holder()
        .await
        .unwrap()
        .expect("it is shown as held");
    assert!(holder.owner().starts_with(one.id()), "{holder:?}");
    assert_eq!(one.stats().holds, 0, "no guard of it is left");
    assert!((3_000..3_010).contains(&taken_after(start, &one, &key).await));
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_kept_however_its_guard_is_released() {
    for way in ["drop", "run", "cancelled run", "max_hold", "close"] {
        let (server, key, start) = (Server::new(), key(), Instant::now());
        let [one, two] = two(&server).await;
        let lock = one.get(&key).min_hold(ms(3_000));
        match way {
            "drop" => drop(lock.lock().await.unwrap()),
            "run" => lock.run(|_| sleep(ms(100))).await.unwrap(),
            "cancelled run" => tokio::select! {
                _ = lock.run(|_| std::future::pending::<()>()) => {}
                () = sleep(ms(100)) => {}
            },
            "max_hold" => {
                let guard = lock.max_hold(ms(200)).lock().await.unwrap();
                guard.lost().cancelled().await;
                assert!(matches!(
                    guard.unlock().await,
                    Err(Error::Lost {
                        loss: Loss::MaxHold,
                        ..
                    })
                ));
            }
            _ => {
                let guard = lock.lock().await.unwrap();
                let lost = guard.lost();
                tokio::join!(one.close(), async {
                    lost.cancelled().await;
                    drop(guard);
                });
            }
        }
        let taken = taken_after(start, &two, &key).await;
        assert!((3_000..3_010).contains(&taken), "{way}: {taken}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_latest_end_of_the_guards_of_a_hold_counts() {
    let (server, key, start) = (Server::new(), key(), Instant::now());
    let [one, two] = two(&server).await;
    let lock = one.get(&key);
    let outer = lock.clone().min_hold(ms(1_500)).lock().await.unwrap();
    let inner = lock.clone().min_hold(ms(3_000)).lock().await.unwrap();
    inner.unlock().await.unwrap();
    sleep(ms(500)).await;
    lock.min_hold(ms(1_000))
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    outer.unlock().await.unwrap();
    assert!((3_000..3_010).contains(&taken_after(start, &two, &key).await));
}

#[tokio::test(start_paused = true)]
async fn several_locks_are_kept_together_unless_the_attempt_failed() {
    let (server, keys, start) = (Server::new(), [key(), key()], Instant::now());
    let [one, two] = two(&server).await;
    let mut sorted = keys.clone();
    sorted.sort();
    // The first in order is taken for a while, and then released, since the second one is held.
    let other = two.get(&sorted[1]).lock().await.unwrap();
    let both = one.multi(&keys).min_hold(ms(5_000));
    assert!(both.try_lock_for(ms(500)).await.unwrap().is_none());
    sleep(ms(100)).await;
    assert_eq!(server.holder(&sorted[0]), None);
    other.unlock().await.unwrap();
    both.lock().await.unwrap().unlock().await.unwrap();
    for key in &keys {
        assert!((5_600..5_620).contains(&taken_after(start, &two, key).await));
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_no_caller_took_is_not_kept() {
    let (server, key) = (Server::new(), key());
    let [one, two] = two(&server).await;
    server.delay(ms(50)..=ms(50));
    let lock = one.get(&key).min_hold(ms(5_000));
    tokio::select! {
        _ = lock.lock() => panic!("its answer is under way"),
        () = sleep(ms(20)) => {}
    }
    assert!(server.holder(&key).is_some(), "the server has granted it");
    sleep(ms(200)).await;
    assert!(two.get(&key).try_lock().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_program_that_is_cut_off_keeps_its_lock_for_a_lease() {
    let (server, key, start) = (Server::new(), key(), Instant::now());
    let far = server.route();
    let [one, _] = two(&far).await;
    let [two, _] = two(&server).await;
    let guard = one.get(&key).min_hold(ms(60_000)).lock().await.unwrap();
    far.disconnect();
    assert!((1_000..1_010).contains(&taken_after(start, &two, &key).await));
    assert!(guard.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_kept_lock_is_freed_by_force() {
    let (server, key) = (Server::new(), key());
    let [one, two] = two(&server).await;
    one.get(&key)
        .min_hold(ms(60_000))
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    let lock = two.get(&key);
    let waiting = tokio::spawn(async move { lock.lock().await.map(drop) });
    sleep(ms(100)).await;
    let forced = Instant::now();
    assert!(one.get(&key).force_unlock().await.unwrap());
    waiting.await.unwrap().unwrap();
    assert!(forced.elapsed() < ms(10), "the waiter is woken");
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_sent_again_does_not_prolong_the_min_hold() {
    let (server, key, start) = (Server::new(), key(), Instant::now());
    let [one, two] = two(&server).await;
    let guard = one.get(&key).min_hold(ms(3_000)).lock().await.unwrap();
    // The answer is lost: the release is sent again, and finds that it was executed.
    server.lose_replies(1);
    assert!(matches!(
        guard.unlock().await,
        Err(Error::Unavailable { .. })
    ));
    assert!((3_000..3_010).contains(&taken_after(start, &two, &key).await));
}

#[tokio::test(start_paused = true)]
async fn a_majority_keeps_a_lock() {
    let (servers, key, start) = (super::servers(3), key(), Instant::now());
    let [one, two] = [
        over(&servers, ms(1_000)).connect().await.unwrap(),
        over(&servers, ms(1_000)).connect().await.unwrap(),
    ];
    let guard = one.get(&key).min_hold(ms(3_000)).lock().await.unwrap();
    servers[1].stop();
    guard.unlock().await.unwrap();
    assert!((3_000..3_300).contains(&taken_after(start, &two, &key).await));
}

#[tokio::test(start_paused = true)]
async fn an_impossible_min_hold_is_refused_by_its_name() {
    let server = Server::new();
    let [one, _] = two(&server).await;
    for (min_hold, value) in [
        (ms(99), "99ms"),
        (ms(0), "0ns"),
        (ms(1_000) * 3_600 * 24 * 31, "2678400s"),
    ] {
        let error = one
            .get("k")
            .min_hold(min_hold)
            .try_lock()
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("min_hold") && error.contains(value),
            "{error}"
        );
        let error = one
            .multi(["k", "l"])
            .min_hold(min_hold)
            .try_lock()
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("min_hold") && error.contains(value),
            "{error}"
        );
    }
    let servers = super::servers(3);
    let several = over(&servers, ms(1_000))
        .restart_quarantine(ms(2_000))
        .connect()
        .await
        .unwrap();
    let error = several
        .get("k")
        .min_hold(ms(2_001))
        .try_lock()
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("2.001s") && error.contains("restart_quarantine = 2s"),
        "{error}"
    );
}
