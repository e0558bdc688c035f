//! The scripts of permits on a real server, beside Redisson's steps, in random orders: late copies,
//! permits that run out, parts that Redisson removes, capacities that change.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::Server;
use crate::kind::PERMITS;
use crate::lua::{Script, Topology, bare};
use redis::Value as Raw;

const COUNTER: &str = "s";
const RECORDS: &str = "{s}:timeout";
const CHANNEL: &str = "redisson_sc:{s}";
/// The number of orders in a test, of this many steps.
const ORDERS: u64 = if cfg!(feature = "soak") { 10_000 } else { 60 };
const STEPS: usize = 60;

/// In milliseconds.
const LEASE: i64 = 1_000;
/// By so much a record ends after its lease, and is removed after its end.
const SLACK: i64 = LEASE / 10;

static CAPACITY: Script = Script::shared("capacity");

/// A mistake in a script: which one, what a line says, and what the mistake makes of it.
type Mistake = (&'static str, &'static str, &'static str);

const MISTAKES: [Mistake; 22] = [
    // ReleaseAddsBlindly
    (
        "release",
        "redis.pcall('INCRBY', counter, back)",
        "redis.pcall('INCRBY', counter, #names)",
    ),
    // TakesTwice
    ("acquire", "missing = n - #found / 2", "missing = n"),
    // FirstMemberStandsForAll
    (
        "acquire",
        "missing = n - #found / 2",
        "missing = #found > 0 and 0 or n",
    ),
    // RenewalCreates
    (
        "renew",
        "all and pcall('ZADD', records, 'XX', unpack(scored)) or 0",
        "pcall('ZADD', records, unpack(scored))",
    ),
    // ResizeIgnoresTaken
    (
        "capacity",
        "free = capacity - redis.call('ZCARD', records)",
        "free = capacity",
    ),
    // PruneGivesNothingBack
    (
        "acquire",
        "redis.call('INCRBY', counter, over)",
        "redis.call('INCRBY', counter, 0)",
    ),
    // NoSlack
    ("acquire", "now + lease_ms + slack_ms", "now + lease_ms"),
    // PrunesWithoutSlack
    (
        "acquire",
        "math.floor(time[2] / 1000)",
        "math.floor(time[2] / 1000) + slack_ms",
    ),
    // PrunesBySlackOfTheCaller
    (
        "acquire",
        "math.floor(ARGV[2] / 10)",
        "math.floor(lease_ms / 10)",
    ),
    // A copy of what was granted together with others takes it away from its holder.
    ("acquire", "#found > 0 and missing > 0", "#found > 0"),
    // TakesAPart
    ("acquire", "free >= missing", "free > 0"),
    // RenewalOfAPart
    ("renew", "all = all and answer[k]", "all = all or answer[k]"),
    // LostCounterStartsFull
    ("acquire", "free = capacity - taken", "free = capacity + 0"),
    // LostCounterNotBelowZero
    (
        "acquire",
        "free = capacity - taken",
        "free = math.max(capacity - taken, 0)",
    ),
    // ReleaseCreatesCounter
    (
        "release",
        "if redis.call('EXISTS', counter) == 1 then",
        "if true then",
    ),
    // ForcesAPart, and calls one none
    ("release", "n, field = 1000,", "n, field = 1,"),
    ("release", " and not is_forced then", " then"),
    // NewRecordsOutlive, RecordsOutlive and RecordsEndEarly: of what was taken before and stays
    (
        "acquire",
        "if life > 0 and granted > 0 then",
        "if false then",
    ),
    ("acquire", "if life > 0 then", "if false then"),
    ("acquire", "elseif life == -1 and", "elseif false and"),
    ("capacity", "if life > 0 then", "if false then"),
    ("capacity", "elseif life == -1 and", "elseif false and"),
];

/// The server, at a time that the test sets.
struct World {
    redis: redis::Connection,
    server: Server,
    now: i64,
    capacity: i64,
    /// The claims that a client believes to hold: the permits of each, and when its validity ends.
    believed: BTreeMap<String, (i64, i64)>,
    mistake: Option<Mistake>,
}

fn body(name: &str) -> &'static str {
    let script: &'static Script = match name {
        "acquire" => &PERMITS.scripts.acquire,
        "release" => &PERMITS.scripts.release,
        "renew" => &PERMITS.scripts.renew,
        _ => &CAPACITY,
    };
    bare(script.on(Topology::OneServer).text())
}

#[derive(Debug, PartialEq)]
struct Answer {
    callers: i64,
    total: Option<i64>,
}

impl World {
    fn new(capacity: i64) -> Option<Self> {
        let server = Server::start_with_clock(0, &[])?;
        let redis = server.connection().expect("it runs");
        let mut world = Self {
            redis,
            server,
            now: 1_800_000_000_000,
            capacity,
            believed: BTreeMap::new(),
            mistake: None,
        };
        world.later(0);
        Some(world)
    }

    /// Begins with an empty server.
    fn begin(&mut self) {
        let _: String = self.server.command(&["FLUSHALL"]);
        self.believed.clear();
        self.later(10 * LEASE);
    }

    fn later(&mut self, ms: i64) {
        self.now += ms;
        self.server.stop_clock(self.now * 1_000);
        let now = self.now;
        self.believed.retain(|_, (_, until)| *until > now);
    }

    fn run(&mut self, name: &str, keys: &[&str], args: &[String]) -> Vec<Option<i64>> {
        let mut body = body(name).to_owned();
        if let Some((of, line, made)) = self.mistake
            && of == name
        {
            body = body.replace(line, made);
        }
        let mut command = redis::cmd("EVAL");
        command.arg(body).arg(keys.len()).arg(keys).arg(args);
        match command.query(&mut self.redis).expect("no error") {
            Raw::Int(number) => vec![Some(number)],
            reply => redis::from_redis_value(reply).expect("numbers"),
        }
    }

    fn acquire(&mut self, capacity: Option<i64>, wants: &[(&str, i64)]) -> Answer {
        self.acquire_for(LEASE, capacity, wants)
    }

    /// With a lease that may be another one than that of the locker.
    fn acquire_for(&mut self, lease: i64, capacity: Option<i64>, wants: &[(&str, i64)]) -> Answer {
        let mut args = vec![
            lease.to_string(),
            LEASE.to_string(),
            capacity.map_or_else(String::new, |capacity| capacity.to_string()),
            CHANNEL.to_owned(),
            wants.len().to_string(),
        ];
        for (field, n) in wants {
            args.extend([n.to_string(), (*field).to_owned()]);
        }
        let reply = self.run("acquire", &[COUNTER, RECORDS], &args);
        Answer {
            callers: reply[0].expect("a number"),
            total: reply[2],
        }
    }

    fn release(&mut self, field: &str, n: i64) -> bool {
        let args = [n.to_string(), field.to_owned(), CHANNEL.to_owned()];
        self.run("release", &[COUNTER, RECORDS], &args) != [Some(-1)]
    }

    /// As an operator does.
    fn force_release(&mut self, member: &str) -> bool {
        let hex = member.bytes().map(|byte| format!("{byte:02x}")).collect();
        let args = ["0".to_owned(), hex, CHANNEL.to_owned()];
        self.run("release", &[COUNTER, RECORDS], &args) != [Some(-1)]
    }

    fn renew(&mut self, field: &str, n: i64) -> bool {
        let args = [LEASE.to_string(), n.to_string(), field.to_owned()];
        self.run("renew", &[RECORDS], &args)[0] == Some(1)
    }

    fn set_capacity(&mut self, capacity: i64) {
        let args = [
            capacity.to_string(),
            LEASE.to_string(),
            CHANNEL.to_owned(),
            String::new(),
        ];
        assert_eq!(self.run("capacity", &[COUNTER, RECORDS], &args), [Some(1)]);
        self.capacity = capacity;
    }

    /// Redisson's `tryAcquire` of one permit, by a clock that may be wrong: it removes at most as
    /// many members as it wants.
    fn jvm_acquires(&mut self, id: &str, ahead: i64) -> bool {
        let now = self.now + ahead;
        let range: Vec<String> = redis::cmd("ZRANGEBYSCORE")
            .arg(&[RECORDS, "0", &now.to_string(), "LIMIT", "0", "1"])
            .query(&mut self.redis)
            .expect("a set");
        if let Some(over) = range.first() {
            let removed: i64 = self.server.command(&["ZREM", RECORDS, over]);
            let _: i64 = self
                .server
                .command(&["INCRBY", COUNTER, &removed.to_string()]);
        }
        if self.free() < 1 {
            return false;
        }
        let _: i64 = self.server.command(&["DECRBY", COUNTER, "1"]);
        let ends = (now + LEASE).to_string();
        let _: i64 = self.server.command(&["ZADD", RECORDS, &ends, id]);
        let life = self.server.pttl(COUNTER);
        if life > 0 {
            let _: i64 = self
                .server
                .command(&["PEXPIRE", RECORDS, &life.to_string()]);
        }
        // A JVM that is ahead removes the permit of one that is behind.
        self.believed
            .insert(id.to_owned(), (1, self.now + LEASE + ahead.min(0)));
        true
    }

    fn jvm_releases(&mut self, id: &str) {
        if self.server.command::<i64>(&["ZREM", RECORDS, id]) == 1 {
            let _: i64 = self.server.command(&["INCRBY", COUNTER, "1"]);
        }
        self.believed.remove(id);
    }

    /// A JVM gives the counter another lifetime, or none.
    fn jvm_limits(&mut self, life: Option<i64>) {
        let _: i64 = match life {
            Some(life) => self
                .server
                .command(&["PEXPIRE", COUNTER, &life.to_string()]),
            None => self.server.command(&["PERSIST", COUNTER]),
        };
    }

    /// Redisson's `trySetPermits` of a counter that has run out. Its holders learn of that at their
    /// next renewal.
    fn jvm_sets_again(&mut self, capacity: i64) {
        let _: () = self
            .server
            .command(&["SET", COUNTER, &capacity.to_string()]);
        self.capacity = capacity;
        self.believed.clear();
    }

    fn free(&self) -> i64 {
        self.server
            .command::<Option<i64>>(&["GET", COUNTER])
            .unwrap_or(0)
    }

    /// Returns how many members a claim has.
    fn members(&self, field: &str, n: i64) -> i64 {
        let others = (2..=n).map(|n| format!("{field}:{n}"));
        let has = |member: &String| {
            let score: Option<i64> = self.server.command(&["ZSCORE", RECORDS, member]);
            score.is_some()
        };
        let count = [field.to_owned()]
            .into_iter()
            .chain(others)
            .filter(has)
            .count();
        i64::try_from(count).expect("few")
    }

    fn taken(&self) -> i64 {
        self.server.command(&["ZCARD", RECORDS])
    }

    /// What is free and taken is the capacity, and no more are believed to be held than that, or
    /// than were when it was lowered.
    fn check(&self, bound: i64, said: &str) {
        assert_eq!(self.free() + self.taken(), self.capacity, "{said}");
        let believed: i64 = self.believed.values().map(|(n, _)| n).sum();
        assert!(
            believed <= bound.max(self.capacity),
            "{believed} of {}: {said}",
            self.capacity
        );
    }
}

/// Has the world go through a random order of steps, from a seed.
fn order(world: &mut World, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut claims: Vec<(String, i64)> = Vec::new();
    let mut bound = 0;
    world.set_capacity(4);
    for step in 0..STEPS {
        let known = (!claims.is_empty()).then(|| claims[random.usize(..claims.len())].clone());
        let said = match (random.u8(..13), known) {
            (0..=2, _) => {
                let wants: Vec<(String, i64)> = (0..random.usize(1..4))
                    .map(|n| (format!("u:o{n}:{step}"), random.i64(1..4)))
                    .collect();
                let asked: Vec<_> = wants.iter().map(|(field, n)| (&**field, *n)).collect();
                let answer = world.acquire(Some(9), &asked);
                let until = world.now + LEASE;
                for (field, n) in wants
                    .iter()
                    .take(usize::try_from(answer.callers).expect("some"))
                {
                    world.believed.insert(field.clone(), (*n, until));
                }
                assert_eq!(answer.total, Some(world.capacity));
                claims.extend(wants);
                format!("acquires {answer:?}")
            }
            // A second copy, perhaps behind the release: then it is undone.
            (3, Some((field, n))) => {
                let again = world.acquire(None, &[(&field, n)]).callers;
                assert_eq!(
                    world.members(&field, n),
                    again * n,
                    "{field} has all or none"
                );
                if !world.believed.contains_key(&field) {
                    assert_eq!(world.release(&field, n), again == 1);
                } else {
                    assert_eq!(again, 1, "{field} has them");
                }
                format!("acquires {field} again")
            }
            // A holder releases, or an undo or a release comes late.
            (4..=6, Some((field, n))) => {
                let had = world.believed.remove(&field).is_some();
                let released = world.release(&field, n);
                assert!(released || !had, "{field} had them");
                assert!(!world.release(&field, n), "once");
                format!("releases {field}")
            }
            (7, Some((field, n))) => {
                let sent = world.now;
                let renewed = world.renew(&field, n);
                if let Some((_, until)) = world.believed.get_mut(&field) {
                    assert!(renewed, "{field} has them");
                    *until = sent + LEASE;
                }
                format!("renews {field}")
            }
            (8, _) => {
                let ms = random.i64(0..700);
                world.later(ms);
                format!("waits {ms}")
            }
            (9, _) => {
                let capacity = random.i64(2..6);
                bound = world.believed.values().map(|(n, _)| n).sum();
                world.set_capacity(capacity);
                format!("has {capacity}")
            }
            (10, _) => {
                let id = format!("jvm{step}");
                let ahead = random.i64(-90..90);
                let took = world.jvm_acquires(&id, ahead);
                format!("a JVM acquires {id}: {took}")
            }
            (11, _) => {
                let life = random.bool().then(|| random.i64(1..2 * LEASE));
                world.jvm_limits(life);
                // Perhaps somebody who gets none.
                let n = random.i64(1..9);
                if random.bool() {
                    world.set_capacity(world.capacity);
                } else if world.acquire(None, &[("u:limited:1", n)]).callers == 1 {
                    assert!(world.release("u:limited:1", n));
                }
                let pttls = [COUNTER, RECORDS].map(|key| world.server.pttl(key));
                assert!(pttls[0] == pttls[1] || world.taken() == 0, "{pttls:?}");
                format!("a JVM limits it to {life:?}")
            }
            _ => {
                let ids: Vec<String> = world
                    .believed
                    .keys()
                    .filter(|id| id.starts_with("jvm"))
                    .cloned()
                    .collect();
                match ids.first() {
                    Some(id) => world.jvm_releases(id),
                    None => world.later(1),
                }
                "a JVM releases".to_owned()
            }
        };
        if !world.server.exists(COUNTER) {
            world.jvm_sets_again(4);
            bound = 0;
        }
        world.check(bound, &format!("step {step}: {said}"));
        let believed: i64 = world.believed.values().map(|(n, _)| n).sum();
        bound = bound.min(believed.max(world.capacity));
        claims.truncate(40);
    }
    world.later(LEASE * 2);
    assert_eq!(world.acquire(Some(4), &[("u:last:1", 1)]).callers, 1);
    assert_eq!(world.taken(), 1, "all others have run out");
}

#[test]
fn permits_are_never_too_many_nor_lost_beside_redissons_steps() {
    let Some(mut world) = World::new(4) else {
        return;
    };
    for seed in 0..ORDERS {
        world.begin();
        order(&mut world, seed);
    }
}

#[test]
fn each_mistake_in_a_script_is_found() {
    for mistake in MISTAKES {
        let (of, line, _) = mistake;
        assert_eq!(body(of).matches(line).count(), 1, "{line}");
        let Some(mut world) = World::new(4) else {
            return;
        };
        world.mistake = Some(mistake);
        let found = (0..ORDERS).any(|seed| {
            world.begin();
            let run = || match seed {
                0 => part(&mut world),
                1 => lost_counter(&mut world),
                2 => slack(&mut world),
                3 => copied(&mut world),
                seed => order(&mut world, seed),
            };
            catch_unwind(AssertUnwindSafe(run)).is_err()
        });
        assert!(found, "{mistake:?}");
    }
}

/// The counter is deleted while permits are taken, once under a higher and once under a lower
/// capacity.
fn lost_counter(world: &mut World) {
    let unset = Answer {
        callers: 0,
        total: None,
    };
    assert_eq!(world.acquire(None, &[("u:a:1", 1)]), unset);
    assert_eq!(world.acquire(Some(3), &[("u:a:1", 2)]).callers, 1);
    assert_eq!(world.acquire(Some(3), &[("u:late:9", 1)]).callers, 1);
    let _: i64 = world.server.command(&["DEL", COUNTER]);
    assert!(world.release("u:late:9", 1));
    let exists: i64 = world.server.command(&["EXISTS", COUNTER]);
    assert_eq!(exists, 0, "a release makes none");
    let answer = world.acquire(Some(1), &[("u:b:2", 1)]);
    assert_eq!(answer.callers, 0, "two are taken of one");
    assert_eq!(world.free(), -1);
    assert!(world.release("u:a:1", 2));
    let one = Answer {
        callers: 1,
        total: Some(1),
    };
    assert_eq!(world.acquire(None, &[("u:b:2", 1)]), one);
}

#[test]
fn a_counter_that_was_lost_starts_with_what_is_not_taken() {
    if let Some(mut world) = World::new(3) {
        lost_counter(&mut world);
    }
}

/// Leases of a tenth of the locker's, and of ten times that: their permits run out, and those of a
/// JVM are removed, at the same distance from the end of the lease.
fn slack(world: &mut World) {
    for lease in [LEASE / 10, LEASE, LEASE * 10] {
        world.begin();
        assert_eq!(
            world.acquire_for(lease, Some(1), &[("u:a:1", 1)]).callers,
            1
        );
        world.later(lease);
        assert!(
            !world.jvm_acquires("ahead", SLACK - 1),
            "a lease of {lease}"
        );
        world.later(2 * SLACK - 1);
        for other in [LEASE / 10, LEASE * 10] {
            let answer = world.acquire_for(other, None, &[("u:b:2", 1)]);
            assert_eq!(answer.callers, 0, "a lease of {lease}, and {other}");
        }
        world.later(1);
        let answer = world.acquire_for(LEASE * 10, None, &[("u:b:2", 1)]);
        assert_eq!(answer.callers, 1, "a lease of {lease}");
        assert!(world.release("u:b:2", 1));
        assert!(world.jvm_acquires("behind", 1 - SLACK));
        world.later(LEASE);
        let answer = world.acquire_for(lease, None, &[("u:c:3", 1)]);
        assert_eq!(answer.callers, 0, "a lease of {lease}");
        world.later(1);
        assert_eq!(world.acquire_for(lease, None, &[("u:c:3", 1)]).callers, 1);
    }
}

#[test]
fn permits_run_out_by_their_callers_lease_and_the_lockers_slack() {
    if let Some(mut world) = World::new(1) {
        slack(&mut world);
    }
}

/// The first of two is over when a copy of what both got comes, and somebody else has its permits.
fn copied(world: &mut World) {
    let both = [("u:a:1", 2), ("u:b:2", 1)];
    assert_eq!(world.acquire(Some(3), &both).callers, 2);
    assert!(world.release("u:a:1", 2));
    assert_eq!(world.acquire(None, &[("u:c:3", 1)]).callers, 1);
    assert_eq!(world.acquire(None, &both).callers, 0);
    assert_eq!((world.free(), world.taken()), (1, 2));
    assert!(world.release("u:b:2", 1), "it has it");
}

#[test]
fn a_copy_takes_nothing_from_those_that_have_their_permits() {
    if let Some(mut world) = World::new(3) {
        copied(&mut world);
    }
}

/// Redisson removes one of three members by a clock that is far ahead.
fn part(world: &mut World) {
    assert_eq!(world.acquire(Some(3), &[("u:a:1", 3)]).callers, 1);
    assert!(world.jvm_acquires("jvm", LEASE * 2));
    assert!(!world.renew("u:a:1", 3), "one is missing");
    let copy = world.acquire(None, &[("u:a:1", 3)]).callers;
    assert_eq!(copy, 0, "a copy does not take what is missing");
    assert_eq!(
        (world.free(), world.taken()),
        (2, 1),
        "it gave back what it had"
    );
    assert_eq!(world.acquire(None, &[("u:b:2", 2)]).callers, 1);
    assert!(world.jvm_acquires("other", LEASE * 2));
    assert!(!world.release("u:b:2", 2), "one is missing");
    assert_eq!((world.free(), world.taken()), (1, 2));
    assert!(world.force_release("other"));
    assert_eq!(world.acquire(None, &[("u:c:3", 2)]).callers, 1);
    world.jvm_releases("u:c:3");
    assert!(world.force_release("u:c:3"), "it had another one");
    assert_eq!((world.free(), world.taken()), (2, 1));
    assert!(!world.force_release("u:c:3"), "once");
}

#[test]
fn a_part_of_a_claim_is_no_claim() {
    if let Some(mut world) = World::new(3) {
        part(&mut world);
    }
}
