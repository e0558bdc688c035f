//! What the crew does for its jobs.

use super::ask::ask;
use super::hand_over::hand_over;
use super::release::release;
use super::state::{HandingOver, Task};
use crate::engine::Job;
use crate::line::Event;

impl Job for Task {
    async fn run(self) {
        match self {
            Self::Ask(asking) => ask(asking).await,
            Self::HandOver(HandingOver { under_way, released, head }) => {
                Box::pin(hand_over(released, head)).await;
                under_way.end(Event::HandedOver);
            }
            Self::Release(unconfirmed) => release(unconfirmed).await,
            Self::Other(operation) => operation.await,
        }
    }
}
