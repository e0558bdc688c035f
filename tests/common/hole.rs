//! An address that neither accepts nor refuses connections, like that of a machine that is gone.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

/// A listener whose queue is full: the system drops each further attempt to connect.
pub struct Hole {
    listener: Socket,
    waiting: Vec<TcpStream>,
}

impl Hole {
    pub fn new() -> Self {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener
            .bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())
            .unwrap();
        listener.listen(0).unwrap();
        let mut hole = Self {
            listener,
            waiting: Vec::new(),
        };
        let address = SocketAddr::from(([127, 0, 0, 1], hole.port()));
        while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
            hole.waiting.push(stream);
        }
        hole
    }

    pub fn port(&self) -> u16 {
        self.listener
            .local_addr()
            .unwrap()
            .as_socket()
            .unwrap()
            .port()
    }
}
