//! Waiting lockers are in a list, and a release wakes the next one: in which order, how soon, and
//! at what cost. Time is paused; tests/waiting/main.rs tests the same on a real server.

use std::sync::{Arc, Mutex};

use lockhound::{Format, Guard, Locker};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::common::{key, ms};
use super::{Server, over};

/// Connects lockers to a server. A message to all of them reaches the first one first.
async fn lockers<const N: usize>(server: &Server) -> [Locker; N] {
    lockers_of(server, Format::Redisson).await
}

async fn lockers_of<const N: usize>(server: &Server, format: Format) -> [Locker; N] {
    let mut lockers = Vec::new();
    for _ in 0..N {
        let builder = over(std::slice::from_ref(server), ms(10_000)).command_timeout(ms(1_000));
        let builder = if format == Format::Plain {
            builder.poll_interval(ms(50)..ms(60))
        } else {
            builder
        };
        lockers.push(builder.format(format).connect().await.unwrap());
    }
    lockers.try_into().unwrap()
}

/// Starts a caller that waits, and returns it once its locker is in the list.
async fn waits(locks: &Locker, name: &str) -> JoinHandle<Guard> {
    let lock = locks.get(name);
    let waiting = tokio::spawn(async move { lock.lock().await.unwrap() });
    sleep(ms(5)).await;
    assert!(!waiting.is_finished());
    waiting
}

/// How long a turn may take, in milliseconds. A locker listens for another second after it got the
/// lock or gave up. The lockers in the list sometimes leave it a turn of 10 ms: it may be a client
/// that uses no list.
const TURN: u64 = 15;

/// Checks that this caller gets the lock within this time, in milliseconds, and releases it.
async fn has_it(waiting: JoinHandle<Guard>, within: u64) {
    let guard = timeout(ms(within), waiting)
        .await
        .expect("it is its turn")
        .unwrap();
    guard.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lockers_have_a_lock_in_the_order_in_which_they_came() {
    let (server, name) = (Server::new(), key());
    let [holder, third, second, first] = lockers(&server).await;
    let guard = holder.get(&name).lock().await.unwrap();
    let waiting = [
        waits(&first, &name).await,
        waits(&second, &name).await,
        waits(&third, &name).await,
    ];
    guard.unlock().await.unwrap();
    for waiting in waiting {
        has_it(waiting, TURN).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_of_the_list_has_a_lock_that_all_are_told_of() {
    let (server, name) = (Server::new(), key());
    let [holder, forces, second, first] = lockers(&server).await;
    let _guard = holder.get(&name).lock().await.unwrap();
    let waiting = [waits(&first, &name).await, waits(&second, &name).await];
    assert!(forces.get(&name).force_unlock().await.unwrap());
    for waiting in waiting {
        has_it(waiting, 1).await;
    }
}

/// The others check a little later: none of them asks for the lock before the first one has it.
#[tokio::test(start_paused = true)]
async fn the_first_of_the_list_has_a_lock_whose_lease_runs_out() {
    let (server, name) = (Server::new(), key());
    let [holder, third, second, first] = lockers(&server).await;
    server.delay(ms(1)..=ms(1));
    let guard = holder
        .get(&name)
        .fixed_lease(ms(1_000))
        .lock()
        .await
        .unwrap();
    let waiting = [
        waits(&first, &name).await,
        waits(&second, &name).await,
        waits(&third, &name).await,
    ];
    guard.lost().cancelled().await;
    for waiting in waiting {
        has_it(waiting, 50).await;
    }
}

/// A new locker asks, subscribes to two channels one after the other, and asks once more: that
/// takes 30 ms here. If each call began like that, a task that takes a lock again and again would
/// never be in the list.
#[tokio::test(start_paused = true)]
async fn a_locker_that_just_waited_is_listed_with_its_first_question() {
    let (server, name) = (Server::new(), key());
    let [holder, new, again] = lockers(&server).await;
    let guard = holder.get(&name).lock().await.unwrap();
    let waiting = waits(&again, &name).await;
    guard.unlock().await.unwrap();
    has_it(waiting, 1).await;
    let guard = holder.get(&name).lock().await.unwrap();
    server.delay(ms(10)..=ms(10));
    let new = waits(&new, &name).await;
    sleep(ms(20)).await;
    let again = waits(&again, &name).await;
    sleep(ms(100)).await;
    guard.unlock().await.unwrap();
    has_it(again, 10).await;
    has_it(new, 10).await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_lock_is_found_at_the_next_check() {
    for (format, looks) in [(Format::Redisson, 1_100..1_200), (Format::Plain, 0..61)] {
        let (server, name) = (Server::new(), key());
        let [holder, next] = lockers_of(&server, format).await;
        let _guard = holder.get(&name).lock().await.unwrap();
        let waiting = waits(&next, &name).await;
        sleep(ms(500)).await;
        server.delete(&name);
        let began = Instant::now();
        waiting.await.unwrap().unlock().await.unwrap();
        // A sixth of the lease after it asked the last time.
        assert!(
            looks.contains(&began.elapsed().as_millis()),
            "{format:?}: {:?}",
            began.elapsed()
        );
    }
}

/// The first locker is cut off. The second one checks once the time of the first is over, and not
/// before.
#[tokio::test(start_paused = true)]
async fn a_locker_that_does_not_come_is_passed_over_after_20_ms() {
    let (server, name) = (Server::new(), key());
    let far = server.route();
    let ([holder, second], [first]) = (lockers(&server).await, lockers(&far).await);
    let guard = holder.get(&name).lock().await.unwrap();
    let waiting = [waits(&first, &name).await, waits(&second, &name).await];
    far.disconnect();
    let began = Instant::now();
    guard.unlock().await.unwrap();
    let [first, second] = waiting;
    let guard = second.await.unwrap();
    assert!(
        (20..25).contains(&began.elapsed().as_millis()),
        "{:?}",
        began.elapsed()
    );
    far.reconnect();
    guard.unlock().await.unwrap();
    has_it(first, 1).await;
}

/// If releases send no message, silence says nothing about the lockers before it.
#[tokio::test(start_paused = true)]
async fn a_locker_that_polls_takes_nobody_off_the_list() {
    let (server, name) = (Server::new(), key());
    let far = server.route();
    let [holder, second, third] = lockers_of(&server, Format::Plain).await;
    let [first] = lockers_of(&far, Format::Plain).await;
    let _guard = holder.get(&name).lock().await.unwrap();
    let (first, second) = (waits(&first, &name).await, waits(&second, &name).await);
    far.disconnect();
    server.delete(&name);
    let guard = timeout(ms(61), second).await.expect("it polls").unwrap();
    let third = waits(&third, &name).await;
    far.reconnect();
    sleep(ms(5)).await;
    guard.unlock().await.unwrap();
    has_it(first, 1).await;
    has_it(third, 61).await;
}

/// Otherwise the next locker would wait for it for 20 ms.
#[tokio::test(start_paused = true)]
async fn a_locker_whose_caller_is_gone_is_not_waited_for() {
    let (server, name) = (Server::new(), key());
    let [holder, goes, stays] = lockers(&server).await;
    let guard = holder.get(&name).lock().await.unwrap();
    let (going, staying) = (waits(&goes, &name).await, waits(&stays, &name).await);
    going.abort();
    sleep(ms(5)).await;
    assert_eq!(goes.stats().pending, 0);
    guard.unlock().await.unwrap();
    has_it(staying, TURN).await;
}

/// Has a task of each locker take a lock so often, again and again, and keep it for 3 ms. Returns
/// who had it, and when.
async fn rounds<const N: usize>(
    lockers: &[Locker; N],
    times: [usize; N],
    name: &str,
) -> Vec<(usize, Instant)> {
    let had = Arc::<Mutex<Vec<(usize, Instant)>>>::default();
    let tasks = lockers
        .iter()
        .zip(times)
        .enumerate()
        .map(|(at, (locker, times))| {
            let (lock, had) = (locker.get(name), Arc::clone(&had));
            tokio::spawn(async move {
                for _ in 0..times {
                    let guard = lock.lock().await.unwrap();
                    had.lock().unwrap().push((at, Instant::now()));
                    sleep(ms(3)).await;
                    guard.unlock().await.unwrap();
                }
            })
        });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    std::mem::take(&mut had.lock().unwrap())
}

/// It is in the list when its last release is answered. The next one would watch it for 20 ms, or
/// be watched by it.
#[tokio::test(start_paused = true)]
async fn a_locker_whose_caller_does_not_come_back_passes() {
    let (server, name) = (Server::new(), key());
    let lockers: [Locker; 2] = lockers(&server).await;
    server.delay(ms(1)..=ms(1));
    let had = rounds(&lockers, [10, 40], &name).await;
    assert!(
        had.windows(2).all(|pair| pair[1].1 - pair[0].1 < ms(20)),
        "{had:?}"
    );
    sleep(ms(20)).await;
    assert_eq!(lockers.map(|locker| locker.stats().pending), [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_locker_that_got_the_lock_has_nothing_to_take_off_the_list() {
    let (server, name) = (Server::new(), key());
    let [holder, next] = lockers(&server).await;
    server.delay(ms(10)..=ms(10));
    let guard = holder.get(&name).lock().await.unwrap();
    let waiting = waits(&next, &name).await;
    sleep(ms(100)).await;
    guard.unlock().await.unwrap();
    let guard = waiting.await.unwrap();
    sleep(ms(1)).await;
    assert_eq!(next.stats().pending, 0);
    guard.unlock().await.unwrap();
}

/// Its first copy was carried out, and had no answer. The next caller of the same locker waits for
/// another holder by then, and listens.
#[tokio::test(start_paused = true)]
async fn a_release_that_is_sent_again_makes_nobody_miss_a_message() {
    let (server, name) = (Server::new(), key());
    let [one, forces, other] = lockers(&server).await;
    let guard = one.get(&name).lock().await.unwrap();
    let waiting = waits(&other, &name).await;
    server.lose_replies(1);
    let releasing = tokio::spawn(guard.unlock());
    let _guard = waiting.await.unwrap();
    let next = waits(&one, &name).await;
    assert!(releasing.await.unwrap().is_err(), "nobody knows");
    // It is sent again after 20 ms.
    sleep(ms(100)).await;
    assert_eq!(one.stats().pending, 0);
    assert!(forces.get(&name).force_unlock().await.unwrap());
    has_it(next, 1).await;
}
