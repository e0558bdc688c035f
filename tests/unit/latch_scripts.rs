//! The scripts of latches on a real server, beside Redisson's steps, in random orders: late and
//! repeated copies of calls, over many rounds.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::Server;
use crate::lua::{Script, Topology, bare};

const LATCH: &str = "l";
const CALLS: &str = "lockhound_counted:{l}";
const CHANNEL: &str = "redisson_countdownlatch__channel__{l}";
/// The number of orders in a test, of this many steps.
const ORDERS: u64 = if cfg!(feature = "soak") { 10_000 } else { 30 };
const STEPS: usize = 60;
/// How long an id is remembered, in milliseconds.
const REMEMBERED: i64 = 60_000;

/// A mistake in a script: which one, what a line says, and what the mistake makes of it.
type Mistake = (&'static str, &'static str, &'static str);

const NOTE: &str = "redis.call('ZADD', calls, 'NX', until_ms, id) == 1";

const MISTAKES: [Mistake; 9] = [
    // CountsTwice
    ("count_down", "if is_first and count then", "if count then"),
    // SetsTwice
    (
        "set_latch",
        "if is_first and not count then",
        "if not count then",
    ),
    // ForgetsAtZero
    (
        "count_down",
        "redis.call('DEL', latch)",
        "redis.call('DEL', latch, calls)",
    ),
    // ForgetsAtSet
    (
        "set_latch",
        "redis.call('SET', latch, ARGV[4])",
        "redis.call('SET', latch, ARGV[4]) redis.call('DEL', calls)",
    ),
    // UnsetLeavesNoId
    (
        "count_down",
        NOTE,
        "(not count or redis.call('ZADD', calls, 'NX', until_ms, id) == 1)",
    ),
    // RefusedLeavesNoId
    (
        "set_latch",
        NOTE,
        "(count or redis.call('ZADD', calls, 'NX', until_ms, id) == 1)",
    ),
    // CopyIsRefused
    (
        "set_latch",
        "return redis.call('ZMSCORE', calls, has_set)[1] and 1 or 0",
        "return 0",
    ),
    // CountsBelowZero
    (
        "count_down",
        "if is_first and count then\n  if redis.call('DECR', latch) > 0 then",
        "if is_first then\n  if redis.call('DECR', latch) ~= 0 then",
    ),
    // LeavesZero
    (
        "count_down",
        "redis.call('DEL', latch)",
        "redis.call('EXISTS', latch)",
    ),
];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Call {
    Set(i64),
    CountDown,
}

/// The server, and what it should have.
struct World {
    redis: redis::Connection,
    server: Server,
    count: i64,
    /// The calls that have come, and whether each has set the latch.
    calls: BTreeMap<String, (Call, bool)>,
    mistake: Option<Mistake>,
}

impl World {
    fn new() -> Self {
        Self::on(Server::start())
    }

    fn on(server: Server) -> Self {
        Self {
            redis: server.connection().expect("it runs"),
            server,
            count: 0,
            calls: BTreeMap::new(),
            mistake: None,
        }
    }

    /// Begins with an empty server.
    fn begin(&mut self) {
        let _: String = self.server.command(&["FLUSHALL"]);
        self.count = 0;
        self.calls.clear();
    }

    fn run(&mut self, name: &'static str, id: &str, count: Option<i64>) -> Option<i64> {
        static SET: Script = Script::shared("set_latch");
        static COUNT_DOWN: Script = Script::shared("count_down");
        let script = if name == "set_latch" {
            &SET
        } else {
            &COUNT_DOWN
        };
        let mut body = bare(script.on(Topology::OneServer).text()).to_owned();
        if let Some((of, line, made)) = self.mistake
            && of == name
        {
            assert_eq!(body.matches(line).count(), 1, "{line}");
            body = body.replace(line, made);
        }
        let mut command = redis::cmd("EVAL");
        command.arg(body).arg(2).arg(LATCH).arg(CALLS);
        command.arg(id).arg(REMEMBERED).arg(CHANNEL).arg(count);
        command.query(&mut self.redis).expect("no error")
    }

    /// A copy of a call arrives, the first one or another.
    fn arrives(&mut self, id: &str, call: Call) {
        let is_first = !self.calls.contains_key(id);
        match call {
            Call::Set(count) => {
                let sets = is_first && self.count == 0;
                if sets {
                    self.count = count;
                }
                let has_set = sets || self.calls.get(id).is_some_and(|(_, has_set)| *has_set);
                self.calls.insert(id.to_owned(), (call, has_set));
                let said = self.run("set_latch", id, Some(count));
                assert_eq!(said, Some(i64::from(has_set)), "{id} sets");
            }
            Call::CountDown => {
                if is_first && self.count > 0 {
                    self.count -= 1;
                }
                self.calls.insert(id.to_owned(), (call, false));
                let said = self.run("count_down", id, None);
                assert_eq!(said.unwrap_or(0), self.count, "{id} counts");
            }
        }
    }

    /// Redisson's `trySetCount`.
    fn jvm_sets(&mut self, count: i64) {
        if !self.server.exists(LATCH) {
            self.server
                .command::<()>(&["SET", LATCH, &count.to_string()]);
        }
        if self.count == 0 {
            self.count = count;
        }
    }

    /// Redisson's `countDown`.
    fn jvm_counts(&mut self) {
        if self.server.command::<i64>(&["DECR", LATCH]) <= 0 {
            self.server.command::<()>(&["DEL", LATCH]);
        }
        self.count = (self.count - 1).max(0);
    }

    fn check(&self, said: &str) {
        let count: Option<i64> = self.server.command(&["GET", LATCH]);
        let expected = (self.count > 0).then_some(self.count);
        assert_eq!(count, expected, "{said}");
        if !self.calls.is_empty() {
            let left = self.server.pttl(CALLS);
            assert!((1..=REMEMBERED).contains(&left), "{left}: {said}");
        }
    }
}

/// Has the world go through a random order of steps, from a seed.
fn order(world: &mut World, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    world.begin();
    for step in 0..STEPS {
        let known: Vec<_> = world
            .calls
            .iter()
            .map(|(id, (call, _))| (id.clone(), *call))
            .collect();
        let said = match random.u8(..10) {
            0 | 1 => {
                let call = Call::Set(random.i64(1..4));
                world.arrives(&format!("u:{step}"), call);
                format!("{call:?}")
            }
            2..=4 => {
                world.arrives(&format!("u:{step}"), Call::CountDown);
                "counts".to_owned()
            }
            5..=7 if !known.is_empty() => {
                let (id, call) = &known[random.usize(..known.len())];
                world.arrives(id, *call);
                format!("{call:?} of {id} again")
            }
            8 => {
                world.jvm_counts();
                "a JVM counts".to_owned()
            }
            _ => {
                world.jvm_sets(2);
                "a JVM sets".to_owned()
            }
        };
        world.check(&format!("seed {seed}, step {step}: {said}"));
    }
}

#[test]
fn each_call_counts_or_sets_once_beside_redissons_steps() {
    let mut world = World::new();
    (0..ORDERS).for_each(|seed| order(&mut world, seed));
}

#[test]
fn each_mistake_in_a_script_is_found() {
    let mut world = World::new();
    for mistake in MISTAKES {
        world.mistake = Some(mistake);
        let found = (0..ORDERS).any(|seed| {
            let run = || order(&mut world, seed);
            catch_unwind(AssertUnwindSafe(run)).is_err()
        });
        assert!(found, "{mistake:?}");
    }
}

/// What is remembered does not grow with the number of rounds.
#[test]
fn ids_are_forgotten_after_their_time() {
    let Some(server) = Server::start_with_clock(0, &[]) else {
        return;
    };
    let mut world = World::on(server);
    let ids = |world: &World| {
        world
            .server
            .command::<Vec<String>>(&["ZRANGE", CALLS, "0", "-1"])
    };
    world.arrives("u:1", Call::Set(5));
    world.server.set_clock(REMEMBERED / 2);
    world.arrives("u:2", Call::CountDown);
    world.arrives("u:1", Call::Set(5));
    assert_eq!(ids(&world), ["u:1", "u:1:set", "u:2"]);
    world.server.set_clock(REMEMBERED + 1_000);
    world.arrives("u:3", Call::CountDown);
    assert_eq!(ids(&world), ["u:2", "u:3"]);
}
