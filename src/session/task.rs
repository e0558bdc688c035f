//! What the runner does for each task.

use std::pin::pin;

use super::ask::ask;
use super::hand_over::hand_over;
use super::release::release;
use super::state::{HandingOver, Task};
use crate::engine::Job;
use crate::foreign;
use crate::line::Event;

impl Job for Task {
    async fn run(self) {
        match self {
            Self::Ask(asking) => {
                let span = asking.head.span.clone();
                foreign::in_span(&span, pin!(ask(asking))).await;
            }
            Self::HandOver(HandingOver {
                under_way,
                released,
                head,
            }) => {
                let span = head
                    .as_ref()
                    .map(|head| head.span.clone())
                    .unwrap_or_default();
                foreign::in_span(&span, Box::pin(hand_over(released, head)).as_mut()).await;
                under_way.end(Event::HandedOver);
            }
            Self::Release(unconfirmed) => release(unconfirmed).await,
            Self::Other(operation) => operation.await,
        }
    }
}
