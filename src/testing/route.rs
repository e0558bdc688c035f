//! The network between some lockers and a server in memory.
//!
//! # Invariants
//! - What goes one way keeps its order, whether it is held up or not.
//! - Mutexes are taken in this order: what goes, the server's, what comes, and last whatever the connection has. What
//!   is told runs under all of them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::machine::{Ear, Machine, News, Number, Request, Sent, Tell};

/// A network that can be cut, and that may lead elsewhere some day.
pub(super) struct Route {
    number: u64,
    leads_to: Mutex<Arc<Machine>>,
    going: Mutex<Way<(Arc<Machine>, Sent)>>,
    coming: Mutex<Way<(Tell, News)>>,
}

/// One direction.
struct Way<T> {
    is_cut: bool,
    /// What stays on its way meanwhile.
    held: VecDeque<T>,
}

impl<T> Default for Way<T> {
    fn default() -> Self {
        Self { is_cut: false, held: VecDeque::new() }
    }
}

impl<T> Way<T> {
    /// What may pass now: nothing where it is cut, and this stays on its way.
    fn pass(&mut self, what: T) -> Option<T> {
        if self.is_cut {
            self.held.push_back(what);
            return None;
        }
        Some(what)
    }

    /// What stayed on its way.
    fn mend(&mut self) -> VecDeque<T> {
        self.is_cut = false;
        std::mem::take(&mut self.held)
    }
}

impl Route {
    pub(super) fn to(machine: Arc<Machine>) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (number, leads_to) = (NEXT.fetch_add(1, Ordering::Relaxed), Mutex::new(machine));
        Arc::new(Self { number, leads_to, going: Mutex::default(), coming: Mutex::default() })
    }

    /// The server that it leads to now.
    pub(super) fn machine(&self) -> Arc<Machine> {
        Arc::clone(&lock(&self.leads_to))
    }

    pub(super) fn cut(&self) {
        lock(&self.going).is_cut = true;
        lock(&self.coming).is_cut = true;
    }

    pub(super) fn mend(&self) {
        let mut going = lock(&self.going);
        for (machine, sent) in going.mend() {
            machine.receive(sent);
        }
        drop(going);
        let mut coming = lock(&self.coming);
        for (tell, news) in coming.mend() {
            tell(news);
        }
    }

    /// Leads to another server from here on. What is on its way stays on its way to the one before.
    pub(super) fn lead_to(&self, machine: &Arc<Machine>) {
        let _nothing_goes = lock(&self.going);
        let before = std::mem::replace(&mut *lock(&self.leads_to), Arc::clone(machine));
        machine.take_over(before.give_up(self.number));
    }

    /// Makes a connection, of this number.
    pub(super) fn connect(self: &Arc<Self>, ear: u64, tell: Tell) {
        let _nothing_goes = lock(&self.going);
        let route = Arc::clone(self);
        let comes = Arc::new(move |news| route.come(&tell, news));
        self.machine().connect(ear, Ear::new(self.number, comes));
    }

    /// Ends a connection.
    pub(super) fn disconnect(&self, ear: u64) {
        let _nothing_goes = lock(&self.going);
        self.machine().disconnect(ear);
    }

    /// Something is sent to the server.
    pub(super) fn go(&self, ear: u64, number: Number, request: Request) {
        let mut going = lock(&self.going);
        let machine = self.machine();
        let sent = Sent { ear, request, number, starts: machine.starts() };
        if let Some((machine, sent)) = going.pass((machine, sent)) {
            machine.receive(sent);
        }
    }

    /// A connection is told something by the server.
    fn come(&self, tell: &Tell, news: News) {
        let mut coming = lock(&self.coming);
        if let Some((tell, news)) = coming.pass((Arc::clone(tell), news)) {
            tell(news);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
