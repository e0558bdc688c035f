//! Who may enter again, and what stands on the server while it does.

mod common;

use common::{Server, key, locker, ms};
use lockhound::{Error, Owner};

#[tokio::test]
async fn nested_locks_count_up_and_down() {
    let server = Server::start();
    let (locks, key) = (locker(&server).await, key());
    let lock = locks.get(&key);
    let outer = lock.lock().await.unwrap();
    let owner = Owner::current().unwrap();
    let mut guards = Vec::new();
    for depth in 2..=20 {
        guards.push(lock.lock().await.unwrap());
        let fields = server.fields(&key);
        assert_eq!(fields.len(), 1, "one field");
        assert!(fields[0].0.starts_with(&format!("{}:{owner}:", locks.id())), "{fields:?}");
        assert_eq!(fields[0].1, depth);
        assert_eq!(u64::from(outer.hold_count()), depth);
        assert_eq!(guards.last().unwrap().fence(), outer.fence(), "a re-entry keeps the fence");
    }
    for depth in (1..20).rev() {
        guards.pop().unwrap().unlock().await.unwrap();
        assert_eq!(server.fields(&key)[0].1, depth);
    }
    outer.unlock().await.unwrap();
    assert!(!server.exists(&key));
}
