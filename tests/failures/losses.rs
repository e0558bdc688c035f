//! Holders are told of losses of every kind in time. `./dev soak` causes ten times as many, and draws them.

use crate::common::losses::{self, Kind};

#[tokio::test(flavor = "multi_thread")]
async fn losses_of_every_kind_are_told_in_time() {
    let mut all = Vec::new();
    for kind in Kind::ALL {
        all.push(losses::lose(kind, 100).await);
    }
    let table = losses::table(&all);
    assert_eq!(table.lines().count(), 9, "{table}");
    let picture = losses::picture(&all);
    assert_eq!(picture.matches("v20").count(), 700);
}
