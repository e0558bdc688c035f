//! A web service that works on each order for one request at a time, on however many machines it
//! runs.
//!
//! ```text
//! cargo run --manifest-path recipes/Cargo.toml -- web_service
//! curl -X POST http://127.0.0.1:8080/orders/42/pay
//! ```
//!
//! A request for an order that is locked waits for two seconds, and is then answered with *409
//! Conflict*: the client decides whether to try again. If Redis does not answer, the answer is *503
//! Service Unavailable*.
//!
//! The functions below `pay` take the lock themselves. Each of them is correct when it is called
//! alone. Inside `pay` it enters again.

use std::env;
use std::fmt::Display;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use lockhound::{Error, Lock, Locker, Section};
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::{Outcome, stopped};

/// How long a request waits for another one on the same order.
const PATIENCE: Duration = Duration::from_secs(2);

#[tokio::main]
pub(crate) async fn run(url: &str) -> Outcome {
    // One locker for the whole program: it is cheap to clone, and it shares its connections.
    let locks = Locker::connect(url).await?;
    let port = env::var("PORT").map_or(Ok(8080), |port| port.parse())?;
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], port))).await?;
    let stopped = stopped()?;
    println!("listening on http://{}", listener.local_addr()?);
    // First the requests end and release their locks. Then the locker is closed.
    axum::serve(
        listener,
        routes(Shop {
            locks: locks.clone(),
        }),
    )
    .with_graceful_shutdown(stopped)
    .await?;
    locks.close().await;
    Ok(())
}

/// What all requests share.
#[derive(Debug, Clone)]
struct Shop {
    locks: Locker,
}

fn routes(shop: Shop) -> Router {
    Router::new()
        .route("/orders/{order}/pay", post(pay))
        .with_state(shop)
}

async fn pay(
    State(shop): State<Shop>,
    Path(order): Path<u64>,
) -> Result<String, (StatusCode, String)> {
    let work = async |section: Section| {
        Ok(format!(
            "{}, fence {}\n",
            shop.collect(order).await?,
            section.fence()
        ))
    };
    // If the lock is lost meanwhile, `collect` is dropped at an await.
    match shop.lock_of(order).run_for(PATIENCE, work).await {
        Ok(Some(receipt)) => receipt.map_err(|error: Error| unavailable(&error)),
        Ok(None) => Err((
            StatusCode::CONFLICT,
            format!("order {order} is being worked on; try again\n"),
        )),
        Err(error) => Err(unavailable(&error)),
    }
}

impl Shop {
    fn lock_of(&self, order: u64) -> Lock {
        self.locks.get(format!("order:{order}"))
    }

    /// Takes the goods from the stock and the money from the customer.
    async fn collect(&self, order: u64) -> Result<String, Error> {
        let guard = self.lock_of(order).lock().await?;
        self.reserve(order).await?;
        self.charge(order).await?;
        guard.unlock().await?;
        Ok(format!("order {order} is paid"))
    }

    async fn reserve(&self, order: u64) -> Result<(), Error> {
        let guard = self.lock_of(order).lock().await?;
        sleep(Duration::from_millis(20)).await; // the stock's database
        guard.unlock().await
    }

    async fn charge(&self, order: u64) -> Result<(), Error> {
        let guard = self.lock_of(order).lock().await?;
        sleep(Duration::from_millis(20)).await; // the bank
        guard.unlock().await
    }
}

fn unavailable(why: &dyn Display) -> (StatusCode, String) {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"))
}

#[cfg(test)]
mod tests {
    use lockhound::testing::Server;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::time::Instant;

    use super::*;
    use crate::redis::Redis;

    /// Makes a request in a task of its own, as axum does. Returns its status, and how long it
    /// took.
    async fn request(shop: &Shop, order: u64) -> (StatusCode, Duration) {
        let (shop, start) = (shop.clone(), Instant::now());
        let answer = tokio::spawn(pay(State(shop), Path(order)))
            .await
            .expect("no panic");
        (
            answer.map_or_else(|(status, _)| status, |_| StatusCode::OK),
            start.elapsed(),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_for_a_locked_order_is_a_conflict_after_two_seconds() {
        let server = Server::new();
        let connect = || Locker::builder().memory(&server).connect();
        let shop = Shop {
            locks: connect().await.expect("connected"),
        };
        let elsewhere = connect().await.expect("connected");
        let guard = elsewhere.get("order:42").lock().await.expect("free");
        assert_eq!(request(&shop, 42).await, (StatusCode::CONFLICT, PATIENCE));
        assert_eq!(request(&shop, 43).await.0, StatusCode::OK, "another order");
        guard.unlock().await.expect("ours");
        assert_eq!(request(&shop, 42).await.0, StatusCode::OK);
        // Two at once: the second one waits for the first.
        let (first, second) = tokio::join!(request(&shop, 42), request(&shop, 42));
        assert_eq!((first.0, second.0), (StatusCode::OK, StatusCode::OK));
        assert!(
            first.1.max(second.1) >= Duration::from_millis(80),
            "{first:?} {second:?}"
        );
    }

    #[tokio::test]
    async fn an_order_is_paid_over_http() {
        let redis = Redis::start();
        let locks = Locker::connect(redis.url()).await.expect("connected");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let serving =
            tokio::spawn(async move { axum::serve(listener, routes(Shop { locks })).await });
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        let text = "POST /orders/42/pay HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\r\n";
        stream.write_all(text.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("answered");
        assert!(
            answer.starts_with("HTTP/1.1 200 OK") && answer.contains("order 42 is paid, fence "),
            "{answer}"
        );
        serving.abort();
    }
}
