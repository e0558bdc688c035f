//! A redis-server for one test. It ends with the test.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Redis {
    process: Child,
    port: u16,
}

impl Redis {
    /// Starts an empty server on a free port.
    pub(crate) fn start() -> Self {
        // Another program may take the port before the server does; the server then ends at once.
        (0..10)
            .find_map(|_| Self::try_start())
            .expect("redis-server is on the PATH, and starts")
    }

    fn try_start() -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0")
            .ok()?
            .local_addr()
            .ok()?
            .port();
        let process = Command::new("redis-server")
            .args([
                "--port",
                &port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
            ])
            .current_dir(std::env::temp_dir())
            .stdout(Stdio::null())
            .spawn()
            .ok()?;
        let mut server = Self { process, port };
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if server.process.try_wait().ok()?.is_some() {
                return None;
            }
            sleep(Duration::from_millis(10));
        }
        // Another server may have answered, if ours did not get the port.
        server.process.try_wait().ok()?.is_none().then_some(server)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
