//! Looks a server's name up, and picks the address that answers, if it has several.
//!
//! fred looks a name up and tries one address after the other within the time of one attempt, so a
//! first address that swallows everything uses all of it. So fred gets one address. A connection to
//! the next address begins a quarter of a second after the one before, and the first that is made
//! decides (RFC 8305, *Happy Eyeballs Version 2*). It is closed again: fred makes its own.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{sleep, timeout};

use super::host_port::HostPort;

/// How long after one address the next one is tried: the *Connection Attempt Delay* that RFC 8305
/// recommends.
const DELAY: Duration = Duration::from_millis(250);

/// Returns the address that this place is, if it needs no looking up.
pub(super) fn literal(place: &HostPort) -> Option<SocketAddr> {
    let ip: IpAddr = place.host.parse().ok()?;
    Some(SocketAddr::new(ip, place.port))
}

/// Looks a name up. If it has several addresses, returns the first one that answers within `bound`.
///
/// # Errors
/// Why there is none.
pub(super) async fn find(place: &HostPort, bound: Duration) -> io::Result<SocketAddr> {
    if let Some(address) = literal(place) {
        return Ok(address);
    }
    let addresses = in_turn(lookup_host((&*place.host, place.port)).await?.collect());
    match &*addresses {
        [] => Err(io::Error::other(format!(
            "the name {} has no address",
            place.host
        ))),
        [address] => Ok(*address),
        // If none answers, fred says why.
        [first, ..] => Ok(timeout(bound, first_to_answer(&addresses))
            .await
            .ok()
            .flatten()
            .unwrap_or(*first)),
    }
}

/// Lets the two families take turns, beginning with that of the first address, so that one that
/// leads nowhere costs one delay.
fn in_turn(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let mut first = Vec::new();
    let mut second = Vec::new();
    for address in addresses {
        if address.is_ipv6() == is_v6 {
            first.push(address);
        } else {
            second.push(address);
        }
    }
    let mut first = first.into_iter();
    let mut second = second.into_iter();
    let mut turns = Vec::new();
    while first.len() + second.len() > 0 {
        turns.extend(first.next());
        turns.extend(second.next());
    }
    turns
}

/// Returns the first address that accepts a connection, if any does.
async fn first_to_answer(addresses: &[SocketAddr]) -> Option<SocketAddr> {
    let mut dialing = FuturesUnordered::new();
    let mut left = addresses.iter();
    loop {
        if let Some(&address) = left.next() {
            dialing.push(async move { TcpStream::connect(address).await.map(|_| address) });
        }
        tokio::select! {
            dialed = dialing.next() => match dialed {
                Some(Ok(address)) => return Some(address),
                // A refused address lets the next one begin at once.
                Some(Err(_)) => {}
                None => return None,
            },
            () = sleep(DELAY), if left.len() > 0 => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::time::Instant;

    use super::*;

    /// An address that accepts no connection and refuses none, as a machine that is gone: its queue
    /// is full.
    pub(crate) struct Hole {
        listener: socket2::Socket,
        waiting: Vec<TcpStream>,
    }

    impl Hole {
        pub(crate) fn at(ip: [u8; 4], port: u16) -> Self {
            let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)
                .expect("a socket");
            let address = SocketAddr::from((Ipv4Addr::from(ip), port));
            listener.bind(&address.into()).expect("a free address");
            listener.listen(0).expect("it listens");
            let mut hole = Self {
                listener,
                waiting: Vec::new(),
            };
            while let Ok(stream) =
                TcpStream::connect_timeout(&hole.address(), Duration::from_millis(100))
            {
                hole.waiting.push(stream);
            }
            hole
        }

        pub(crate) fn address(&self) -> SocketAddr {
            self.listener
                .local_addr()
                .ok()
                .and_then(|address| address.as_socket())
                .expect("an address")
        }
    }

    fn is_refused() -> SocketAddr {
        TcpListener::bind(("127.0.0.1", 0))
            .and_then(|listener| listener.local_addr())
            .expect("a port")
    }

    #[tokio::test]
    async fn a_dead_first_address_costs_a_few_hundred_milliseconds() {
        let hole = Hole::at([127, 0, 0, 1], 0);
        let open = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let open = open.local_addr().expect("an address");
        let begun = Instant::now();
        assert_eq!(
            first_to_answer(&[hole.address(), is_refused(), open]).await,
            Some(open)
        );
        assert!(
            begun.elapsed() < Duration::from_millis(900),
            "{:?}",
            begun.elapsed()
        );
        assert_eq!(first_to_answer(&[is_refused(), is_refused()]).await, None);
    }

    #[test]
    fn the_families_take_turns() {
        let [a, b, c, d] = ["1.1.1.1:1", "2.2.2.2:1", "3.3.3.3:1", "[::1]:1"]
            .map(|text| text.parse().expect(text));
        assert_eq!(in_turn(vec![a, b, c, d]), [a, d, b, c]);
        assert_eq!(in_turn(vec![d, a, b]), [d, a, b]);
        assert_eq!(in_turn(vec![a]), [a]);
    }
}
