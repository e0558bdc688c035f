//! What a seed makes of everything.

use std::time::Duration;

use crate::common::ms;

/// One program.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub servers: usize,
    pub lockers: usize,
    /// Of each locker.
    pub tasks: usize,
    pub keys: usize,
    /// How many read-write locks there are beside them.
    pub read_write: usize,
    /// And semaphores.
    pub semaphores: usize,
    /// And fair locks.
    pub fair: usize,
    /// Whether all workers gather at a latch in each act.
    pub gathers: bool,
    /// Whether locks stand for elections too, and are observed.
    pub elects: bool,
    /// After each of them all faults end, and nothing may be left.
    pub acts: usize,
    /// Of each task, in an act.
    pub rounds: usize,
    /// How many faults of the network there are at a time, and one after the other.
    pub troubles: usize,
    pub faults: usize,
    /// The longest: that of the first locker.
    pub lease: Duration,
    /// How many times shorter the leases of the other lockers are.
    pub shorter: u32,
    pub command_timeout: Duration,
    /// How long answers take at most while nothing is wrong.
    pub usual: Duration,
    /// Whether servers have memories, so that one may forget.
    pub remember: bool,
    /// Whether somebody releases what others hold.
    pub force: bool,
    /// Whether somebody deletes locks on a server.
    pub delete: bool,
    /// Whether addresses may lead to another of the servers.
    pub mislead: bool,
    /// Whether the clocks of servers are wrong.
    pub skew: bool,
}

impl Plan {
    /// Returns the same, for one locker.
    pub fn of_locker(self, at: usize) -> Self {
        let times = if at == 0 { 1 } else { self.shorter };
        Self {
            lease: self.lease / times,
            command_timeout: self.command_timeout / times,
            ..self
        }
    }

    /// How long a server is silent at most. One that forgot while another one is silent for longer
    /// than a lease votes again without having asked that one: fences may repeat then, and leases
    /// of other lockers may be cut short.
    pub fn longest_silence(self) -> Duration {
        // Two may be silent one after the other.
        if self.remember && self.servers > 1 {
            self.lease.mul_f64(0.4) / self.shorter
        } else {
            self.lease * 3
        }
    }

    pub fn of_seed() -> Self {
        let servers = [1, 3, 3, 5][fastrand::usize(..4)];
        // These are refused over several servers.
        let on_one_server = || {
            if servers == 1 {
                fastrand::usize(0..=2)
            } else {
                0
            }
        };
        let remember = fastrand::bool();
        let lease = if one_in(5) {
            ms(fastrand::u64(10_000..=60_000))
        } else {
            ms(fastrand::u64(500..=10_000))
        };
        // The default; or anything that leaves ticks of renewal apart.
        let command_timeout = if one_in(3) {
            lease.mul_f64(0.04 + fastrand::f64() * 0.28)
        } else {
            (lease / 10).min(ms(3_000))
        };
        Self {
            servers,
            lockers: fastrand::usize(1..=3),
            tasks: fastrand::usize(1..=3),
            keys: fastrand::usize(1..=3),
            read_write: on_one_server(),
            semaphores: on_one_server(),
            fair: on_one_server().min(1),
            // A latch that is forgotten is open.
            gathers: servers == 1 && !remember && one_in(2),
            elects: one_in(3),
            acts: fastrand::usize(1..=4),
            rounds: fastrand::usize(1..=6),
            troubles: fastrand::usize(0..=2),
            faults: fastrand::usize(1..=8),
            lease,
            // One server that forgets has forgotten what was announced to it.
            shorter: if servers > 1 && one_in(3) { 4 } else { 1 },
            command_timeout,
            // Much is under way at a time where answers take long.
            usual: if one_in(3) {
                up_to(command_timeout.mul_f64(0.9))
            } else {
                Duration::ZERO
            },
            remember,
            force: one_in(3),
            delete: one_in(4),
            mislead: servers > 1 && one_in(3),
            // One server that forgets goes by its clock.
            skew: (servers > 1 || !remember) && fastrand::bool(),
        }
    }
}

/// True once in so many times.
pub fn one_in(times: u32) -> bool {
    fastrand::u32(..times) == 0
}

/// A random time up to this.
pub fn up_to(most: Duration) -> Duration {
    Duration::from_micros(fastrand::u64(0..=u64::try_from(most.as_micros()).unwrap()))
}
