//! Who enters next: neither readers nor writers starve the other side.

use crate::common::{Server, eventually, key, locker, ms, soon};
use lockhound::Owner;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(5);

#[tokio::test]
async fn within_a_process_callers_enter_in_the_order_of_arrival() {
    let (server, key) = (Server::start(), key());
    let locks = locker(&server).await;
    let lock = locks.rw(&*key);
    let holder = lock.write().owned_by(Owner::new()).lock().await.unwrap();
    let (sender, mut entered) = tokio::sync::mpsc::unbounded_channel();
    for (number, writes) in [false, false, true, false, false, true]
        .into_iter()
        .enumerate()
    {
        let (lock, sender) = (lock.clone(), sender.clone());
        tokio::spawn(async move {
            let owner = Owner::new();
            if writes {
                let guard = lock.write().owned_by(owner).lock().await.unwrap();
                sender
                    .send((number, lock.holders().await.unwrap().readers().len()))
                    .unwrap();
                guard.unlock().await.unwrap();
            } else {
                let guard = lock.read().owned_by(owner).lock().await.unwrap();
                sender.send((number, 0)).unwrap();
                tokio::time::sleep(ms(20)).await;
                guard.unlock().await.unwrap();
            }
        });
        eventually(SOON, "it waits", || locks.stats().waiters == number + 1).await;
    }
    drop(holder);
    let mut order = Vec::new();
    for _ in 0..6 {
        let (number, readers) = soon(SOON, entered.recv())
            .await
            .expect("it enters")
            .unwrap();
        assert_eq!(readers, 0, "a writer is alone");
        order.push(number);
    }
    order[0..2].sort_unstable();
    order[3..5].sort_unstable();
    assert_eq!(order, [0, 1, 2, 3, 4, 5]);
}
