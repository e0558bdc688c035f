//! A link to a distant server: all data arrives later by a fixed delay, whatever the amount.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// All links of a test to distant servers, on a thread of their own.
#[derive(Debug)]
pub struct Distances {
    runtime: Option<Runtime>,
}

impl Distances {
    pub fn new() -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        Self {
            runtime: Some(runtime),
        }
    }

    /// Opens a link to this port and returns the link's port. A reply arrives one round trip after
    /// its request.
    pub fn to(&self, port: u16, round_trip: Duration) -> u16 {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        listener.set_nonblocking(true).expect("a listener");
        let near = listener.local_addr().expect("an address").port();
        let runtime = self.runtime.as_ref().expect("it is dropped at the end");
        let _inside = runtime.enter();
        let listener = TcpListener::from_std(listener).expect("a listener");
        runtime.spawn(serve(
            listener,
            ([127, 0, 0, 1], port).into(),
            round_trip / 2,
        ));
        near
    }
}

impl Drop for Distances {
    fn drop(&mut self) {
        // This may be dropped in the test's own runtime, where nothing may block.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn serve(listener: TcpListener, to: SocketAddr, one_way: Duration) {
    while let Ok((client, _)) = listener.accept().await {
        let Ok(server) = TcpStream::connect(to).await else {
            continue;
        };
        if client.set_nodelay(true).is_err() || server.set_nodelay(true).is_err() {
            continue;
        }
        let ((from_client, to_client), (from_server, to_server)) =
            (client.into_split(), server.into_split());
        pass(from_client, to_server, one_way);
        pass(from_server, to_client, one_way);
    }
}

/// Passes one direction on: data is stamped when it is read, and written when its time has come.
fn pass(from: OwnedReadHalf, into: OwnedWriteHalf, one_way: Duration) {
    let (sender, mut on_the_way) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    tokio::spawn(async move {
        let mut buffer = vec![0; 64 * 1024];
        while from.readable().await.is_ok() {
            match from.try_read(&mut buffer) {
                Ok(n @ 1..)
                    if sender
                        .send((Instant::now() + one_way, buffer[..n].to_vec()))
                        .is_ok() => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                _ => return,
            }
        }
    });
    tokio::spawn(async move {
        while let Some((arrives, bytes)) = on_the_way.recv().await {
            sleep_until(arrives).await;
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                if into.writable().await.is_err() {
                    return;
                }
                match into.try_write(rest) {
                    Ok(n) => rest = &rest[n..],
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(_) => return,
                }
            }
        }
    });
}
