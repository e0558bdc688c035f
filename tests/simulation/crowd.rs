//! A crowd: many callers want one lock on one server, and each keeps it for a moment. The lock is
//! handed over within a locker, and lockers wake each other. Some callers give up, and at most one
//! fault occurs.
//!
//! If the fault delays and loses no answers, no caller waits for a free lock for longer than it
//! takes to wake one ([`waking`]): `tests/model/across` promises that no caller has to wait for the
//! re-check. A lock that no caller has does not stay on the server for longer than it takes to
//! release it ([`Crowd::giving_back`]).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockhound::{Error, Guard, Lock, Locker, Owner};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::common::ms;
use crate::faults::Net;
use crate::plan::{Plan, one_in, up_to};
use crate::world::{Entry, Left, Role, World};

/// How often the server is checked.
const LOOK: Duration = Duration::from_millis(5);

/// A fault, which occurs once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Nothing,
    /// A locker is cut off from the server for a while. Its connection may be given up meanwhile.
    Cut {
        anew: bool,
    },
    /// Some answers are lost.
    Lost,
    /// Answers take long.
    Slow,
    /// The lock is deleted from outside.
    Deleted,
}

impl Fault {
    pub fn any() -> Self {
        match fastrand::u8(0..8) {
            0 | 1 => Self::Nothing,
            2 => Self::Cut { anew: false },
            3 => Self::Cut { anew: true },
            4 | 5 => Self::Lost,
            6 => Self::Slow,
            _ => Self::Deleted,
        }
    }

    /// Returns whether all commands are answered in time.
    pub fn leaves_answers(self) -> bool {
        matches!(self, Self::Nothing | Self::Deleted)
    }

    /// Returns whether lockers that are not cut off are answered in time, and hear of each release.
    fn leaves_wake_ups(self) -> bool {
        matches!(self, Self::Nothing | Self::Cut { .. })
    }
}

/// What the callers of a crowd share.
pub struct Crowd {
    world: Arc<World>,
    plan: Plan,
    net: Arc<Net>,
    key: String,
    fault: Fault,
    waits: Mutex<Vec<Wait>>,
    cut: Mutex<Option<Cut>>,
}

/// A locker is cut off, or was.
#[derive(Debug, Clone, Copy)]
struct Cut {
    locker: usize,
    /// Whether it is over.
    is_over: bool,
    /// When it began, or was over.
    changed: Instant,
}

/// A caller that waits.
struct Wait {
    number: u64,
    locker: usize,
    since: Instant,
}

/// Returns the plan of a crowd.
pub fn plan() -> Plan {
    let lease = ms(fastrand::u64(4_000..=30_000));
    Plan {
        servers: 1,
        lockers: fastrand::usize(1..=4),
        tasks: fastrand::usize(1..=4),
        keys: 1,
        read_write: 0,
        semaphores: 0,
        fair: 0,
        gathers: false,
        elects: false,
        acts: 1,
        rounds: fastrand::usize(1..=4),
        troubles: 0,
        faults: 1,
        lease,
        shorter: 1,
        command_timeout: lease / 20,
        usual: if one_in(3) {
            Duration::ZERO
        } else {
            up_to(ms(20))
        },
        remember: false,
        force: false,
        delete: false,
        mislead: false,
        skew: false,
    }
}

/// Returns how long a caller may wait for a free lock. The locker that is woken may need two round
/// trips; the first to be woken may be cut off or gone, and then the others check one after the
/// other (`src/line/wake_state.rs`: within 200 ms, and 20 ms more for the one that watches). The
/// re-check, a sixth of a lease, comes later than that.
pub fn waking(plan: &Plan) -> Duration {
    ms(220) + plan.usual * 4
}

/// Lets each caller take the lock a few times, or give up.
pub async fn gather(
    world: &Arc<World>,
    (plan, fault): (Plan, Fault),
    net: &Arc<Net>,
    lockers: &[Locker],
    key: &str,
) {
    let crowd = Arc::new(Crowd {
        world: Arc::clone(world),
        plan,
        net: Arc::clone(net),
        key: key.to_owned(),
        fault,
        waits: Mutex::default(),
        cut: Mutex::default(),
    });
    net.calm(0);
    let mut tasks = JoinSet::new();
    for (at, locks) in lockers.iter().enumerate() {
        for task in 0..plan.tasks {
            let (crowd, who, lock) = (
                Arc::clone(&crowd),
                format!("{at}.{task} of the crowd"),
                locks.get(key),
            );
            tasks.spawn(async move {
                crowd
                    .come_and_go(at, &who, lock.owned_by(Owner::new()))
                    .await;
            });
        }
    }
    let watches = tokio::spawn(Arc::clone(&crowd).watch());
    let goes_wrong = tokio::spawn(Arc::clone(&crowd).go_wrong());
    while let Some(task) = tasks.join_next().await {
        if let Err(panic) = task {
            std::panic::resume_unwind(panic.into_panic());
        }
        assert!(!watches.is_finished(), "{:?}", watches.await);
    }
    goes_wrong.await.unwrap();
    watches.abort();
    // Otherwise it ends only if it finds something.
    assert!(
        watches.await.unwrap_err().is_cancelled(),
        "the watch has found something: it is above"
    );
}

impl Crowd {
    async fn come_and_go(&self, at: usize, who: &str, lock: Lock) {
        for _ in 0..self.plan.rounds {
            if !one_in(3) {
                sleep(up_to(ms(40))).await;
            }
            let patience = one_in(4).then(|| up_to(ms(60)));
            // Less than answers may take: only callers that asked under this lease know when it
            // ends.
            let lease = if self.fault.leaves_wake_ups() {
                self.plan.lease
            } else {
                ms(100)
            };
            let is_renewed = !one_in(3);
            let lock = if is_renewed {
                lock.clone()
            } else {
                lock.clone().fixed_lease(lease)
            };
            let called = self.world.now();
            match self.take(at, &lock, patience).await {
                None => self.world.note(format_args!("{who} gives up")),
                Some(Ok(guard)) => self.stay(at, who, guard, (called, is_renewed)).await,
                Some(Err(Error::Unavailable { .. })) => {
                    self.world.note(format_args!("{who}: unavailable"));
                }
                // A lock that was handed to its last call, which is over, is its own for a moment
                // more.
                Some(Err(Error::Lost { .. })) if matches!(self.fault, Fault::Deleted) => {
                    self.world
                        .note(format_args!("{who}: lost before it is given back"));
                }
                Some(Err(other)) => panic!("{who}: {other}"),
            }
        }
    }

    async fn take(
        &self,
        at: usize,
        lock: &Lock,
        patience: Option<Duration>,
    ) -> Option<Result<Guard, Error>> {
        let number = {
            let mut waits = self.waits.lock().unwrap();
            let number = waits
                .iter()
                .map(|wait| wait.number + 1)
                .max()
                .unwrap_or_default();
            waits.push(Wait {
                number,
                locker: at,
                since: Instant::now(),
            });
            number
        };
        let answer = match patience {
            Some(patience) => timeout(patience, lock.lock()).await.ok(),
            None => Some(lock.lock().await),
        };
        self.waits
            .lock()
            .unwrap()
            .retain(|wait| wait.number != number);
        answer
    }

    async fn stay(
        &self,
        locker: usize,
        who: &str,
        guard: Guard,
        (called, is_renewed): (u64, bool),
    ) {
        if guard.check().is_err() {
            return self.world.note(format_args!("{who}: lost at once"));
        }
        let (key, fence, token) = (&*self.key, guard.fence().get(), guard.lost());
        let entry = Entry {
            key,
            who,
            role: Role::Alone,
            locker,
            fence,
            is_renewed,
            token,
            called,
        };
        let inside = self.world.enter(entry, "waits for");
        let stay = match fastrand::u8(0..4) {
            0 => Duration::ZERO,
            // Longer than a lease that is not renewed.
            1 if one_in(4) => up_to(ms(300)),
            _ => up_to(ms(15)),
        };
        sleep(stay).await;
        let now = self.world.now();
        if guard.check().is_ok() {
            inside.held(now);
        }
        let leaving = inside.leave();
        let is_lost = guard.check().is_err();
        let left = if one_in(3) {
            drop(guard);
            if is_lost { Left::Lost } else { Left::Unknown }
        } else {
            match guard.unlock().await {
                Ok(()) => Left::Released,
                Err(Error::Lost { .. }) => Left::Lost,
                Err(_) => Left::Unknown,
            }
        };
        leaving.end(left);
        self.world.note(format_args!("{who} is out: {left:?}"));
    }

    /// Makes the fault occur while callers come and go.
    async fn go_wrong(self: Arc<Self>) {
        let (server, locker) = (&self.net.servers[0], fastrand::usize(..self.plan.lockers));
        sleep(up_to(ms(100))).await;
        let lasts = up_to(ms(if one_in(2) { 100 } else { 1_000 }));
        match self.fault {
            Fault::Nothing => {}
            Fault::Cut { anew } => {
                let route = &self.net.routes[locker][0];
                self.world.note(format_args!("locker {locker} is cut off"));
                self.set_cut(locker, false);
                route.disconnect();
                if anew {
                    sleep(up_to(lasts)).await;
                    self.world
                        .note(format_args!("locker {locker} is connected anew"));
                    route.redirect_to(server);
                }
                sleep(lasts).await;
                self.world
                    .note(format_args!("locker {locker} comes to the server again"));
                route.reconnect();
                self.set_cut(locker, true);
            }
            Fault::Lost => {
                for _ in 0..fastrand::u8(1..4) {
                    self.world.note("an answer is lost");
                    server.lose_replies(1);
                    sleep(up_to(lasts)).await;
                }
            }
            Fault::Slow => {
                let most = self.plan.command_timeout.mul_f64(0.9);
                self.world.note(format_args!("answers take up to {most:?}"));
                server.delay(Duration::ZERO..=most);
                sleep(lasts * 2).await;
                self.net.calm(0);
            }
            Fault::Deleted => {
                for _ in 0..fastrand::u8(1..4) {
                    let was_held = server.holder(&self.key).is_some();
                    server.delete(&self.key);
                    self.world.deleted(&self.key, was_held);
                    self.world.note("it is deleted");
                    sleep(up_to(lasts)).await;
                }
            }
        }
    }

    fn set_cut(&self, locker: usize, is_over: bool) {
        *self.cut.lock().unwrap() = Some(Cut {
            locker,
            is_over,
            changed: Instant::now(),
        });
    }

    /// Returns how long a lock that no caller has may stay on the server: its grant or release gets
    /// no answer, nor does the undo that follows, and each is repeated.
    fn giving_back(&self) -> Duration {
        self.plan.command_timeout * 6
    }

    /// Looks for callers that wait for a free lock, and for a lock that no caller has.
    async fn watch(self: Arc<Self>) {
        let server = &self.net.servers[0];
        let (mut last, mut since) = (None, Instant::now());
        loop {
            let (entries, is_in) = self.world.entries(&self.key);
            let now = (server.holder(&self.key), entries, is_in);
            if last.as_ref() != Some(&now) {
                (last, since) = (Some(now), Instant::now());
            }
            let cut = *self.cut.lock().unwrap();
            match &last {
                Some((None, ..)) if self.fault.leaves_wake_ups() => {
                    self.nobody_waits_for_long(since, cut);
                }
                Some((Some(holder), _, false)) if cut.is_none_or(|cut| cut.is_over) => {
                    let since = cut.map_or(since, |cut| cut.changed.max(since));
                    let is_left = since.elapsed() > self.giving_back();
                    assert!(
                        !is_left,
                        "{holder} stands in {}, and nobody is in it",
                        self.key
                    );
                }
                _ => {}
            }
            sleep(LOOK).await;
        }
    }

    /// The lock has been free since then.
    fn nobody_waits_for_long(&self, free: Instant, cut: Option<Cut>) {
        for Wait { locker, since, .. } in &*self.waits.lock().unwrap() {
            let since = match cut.filter(|cut| cut.locker == *locker) {
                None => free.max(*since),
                // The commands that it sent meanwhile get no answer.
                Some(Cut {
                    is_over: true,
                    changed,
                    ..
                }) => free.max(*since).max(changed + self.plan.command_timeout),
                Some(_) => continue,
            };
            let waits = Instant::now().saturating_duration_since(since);
            assert!(
                waits <= waking(&self.plan),
                "locker {locker} has waited for {} for {waits:?}: it is free",
                self.key
            );
        }
    }
}
