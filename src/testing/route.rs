//! The network between some lockers and a server in memory.
//!
//! # Invariants
//! - Each direction keeps its order, whether the network is cut or not.
//! - Mutexes are taken in this order: `going`, the server's, `coming`, and last those of the
//!   connection. The callback of a connection (`Tell`) runs under all of them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use super::machine::{ClientConnection, ConnectionEvent, Machine, Request, RequestId, Sent, Tell};
use crate::sync::{Arc, Mutex};

/// A network that can be cut, and that can be made to lead to another server.
pub(super) struct Route {
    number: u64,
    leads_to: Mutex<Arc<Machine>>,
    going: Mutex<Direction<(Arc<Machine>, Sent)>>,
    coming: Mutex<Direction<(Tell, ConnectionEvent)>>,
}

/// One direction.
struct Direction<T> {
    is_cut: bool,
    /// What was sent while it is cut.
    held: VecDeque<T>,
}

impl<T> Default for Direction<T> {
    fn default() -> Self {
        Self {
            is_cut: false,
            held: VecDeque::new(),
        }
    }
}

impl<T> Direction<T> {
    /// Returns what may pass now, or holds it if the network is cut.
    fn pass(&mut self, what: T) -> Option<T> {
        if self.is_cut {
            self.held.push_back(what);
            return None;
        }
        Some(what)
    }

    /// Ends the cut, and returns what was held.
    fn mend(&mut self) -> VecDeque<T> {
        self.is_cut = false;
        std::mem::take(&mut self.held)
    }
}

impl Route {
    pub(super) fn to(machine: Arc<Machine>) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let leads_to = Mutex::new(machine);
        Arc::new(Self {
            number,
            leads_to,
            going: Mutex::default(),
            coming: Mutex::default(),
        })
    }

    /// Returns the server to which it leads now.
    pub(super) fn machine(&self) -> Arc<Machine> {
        Arc::clone(&self.leads_to.lock())
    }

    pub(super) fn cut(&self) {
        self.going.lock().is_cut = true;
        self.coming.lock().is_cut = true;
    }

    pub(super) fn mend(&self) {
        let mut going = self.going.lock();
        for (machine, sent) in going.mend() {
            machine.receive(sent);
        }
        drop(going);
        let mut coming = self.coming.lock();
        for (tell, event) in coming.mend() {
            tell(event);
        }
    }

    /// Leads to another server from now on. What is on its way still goes to the server before.
    pub(super) fn lead_to(&self, machine: &Arc<Machine>) {
        let _nothing_goes = self.going.lock();
        let before = std::mem::replace(&mut *self.leads_to.lock(), Arc::clone(machine));
        machine.take_over(before.give_up(self.number));
    }

    /// Makes a connection with this number.
    pub(super) fn connect(self: &Arc<Self>, connection: u64, tell: Tell) {
        let _nothing_goes = self.going.lock();
        let route = Arc::clone(self);
        let comes = Arc::new(move |event| route.come(&tell, event));
        self.machine()
            .connect(connection, ClientConnection::new(self.number, comes));
    }

    /// Ends a connection.
    pub(super) fn disconnect(&self, connection: u64) {
        let _nothing_goes = self.going.lock();
        self.machine().disconnect(connection);
    }

    /// Sends a request to the server.
    pub(super) fn go(&self, connection: u64, number: RequestId, request: Request) {
        let mut going = self.going.lock();
        let machine = self.machine();
        let sent = Sent {
            connection,
            request,
            number,
            starts: machine.starts(),
        };
        if let Some((machine, sent)) = going.pass((machine, sent)) {
            machine.receive(sent);
        }
    }

    /// Delivers an event from the server to a connection.
    fn come(&self, tell: &Tell, event: ConnectionEvent) {
        let mut coming = self.coming.lock();
        if let Some((tell, event)) = coming.pass((Arc::clone(tell), event)) {
            tell(event);
        }
    }
}
