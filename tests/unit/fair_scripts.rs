//! The scripts of fair locks on a real server, beside Redisson's steps, in random orders: late
//! copies, callers that give up, lockers that do not ask for a while, leases that run out.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::FAIR;
use crate::common::Server;
use crate::lua::{Topology, bare};
use redis::Value as Raw;

const LOCK: &str = "k";
const QUEUE: &str = "redisson_lock_queue:{k}";
const TIMEOUTS: &str = "redisson_lock_timeout:{k}";
const CHANNEL: &str = "redisson_lock__channel:{k}";
const WAKES: &str = "lockhound_wake:";
/// The number of orders in a test, of this many steps.
const ORDERS: u64 = if cfg!(feature = "soak") { 5_000 } else { 40 };
const STEPS: usize = 60;

/// In milliseconds. Redisson's clients wait for 300 s.
const LEASE: i64 = 30_000;
const WAIT: i64 = 300_000;

/// The steps of Redisson's clients. KEYS: the lock, the queue, the timeouts. ARGV: the owner, its
/// clock, the lease, the wait. The first two return 1 if it is granted, or released.
const JVM_PRUNES: &str = r"
  local function head() return redis.call('LINDEX', KEYS[2], 0) end
  while head() do
    local ends = redis.call('ZSCORE', KEYS[3], head())
    if not ends or tonumber(ends) > tonumber(ARGV[2]) then
      break
    end
    redis.call('ZREM', KEYS[3], head())
    redis.call('LPOP', KEYS[2])
  end
";
const JVM_TRIES: &str = r"
  if redis.call('EXISTS', KEYS[1]) == 0 and (not head() or head() == ARGV[1]) then
    redis.call('LPOP', KEYS[2])
    redis.call('ZREM', KEYS[3], ARGV[1])
    for _, other in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
      redis.call('ZINCRBY', KEYS[3], -ARGV[4], other)
    end
    redis.call('HSET', KEYS[1], ARGV[1], 1)
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
    return 1
  end
  if redis.call('ZSCORE', KEYS[3], ARGV[1]) then
    return 0
  end
  local last = redis.call('LINDEX', KEYS[2], -1)
  local ends = last and redis.call('ZSCORE', KEYS[3], last)
  local left = ends and ends - ARGV[2] or redis.call('PTTL', KEYS[1])
  redis.call('ZADD', KEYS[3], left + ARGV[4] + ARGV[2], ARGV[1])
  redis.call('RPUSH', KEYS[2], ARGV[1])
  return 0
";
const JVM_RELEASES: &str = r"
  if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
    return 0
  end
  redis.call('DEL', KEYS[1])
  if head() then
    redis.call('PUBLISH', 'redisson_lock__channel:{k}:' .. head(), '0')
  end
  return 1
";
const JVM_LEAVES: &str = r"
  local behind = false
  for _, other in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do
    if behind then
      redis.call('ZINCRBY', KEYS[3], -ARGV[4], other)
    end
    behind = behind or other == ARGV[1]
  end
  redis.call('ZREM', KEYS[3], ARGV[1])
  redis.call('LREM', KEYS[2], 0, ARGV[1])
  return 0
";

/// A mistake in a script: which one, what a line says, and what the mistake makes of it.
type Mistake = (&'static str, &'static str, &'static str);

const MISTAKES: [Mistake; 17] = [
    // ScoreOfOneLease
    (
        "acquire",
        "scored[#scored + 1] = stands + jvms * 300000",
        "scored[#scored + 1] = stands",
    ),
    (
        "acquire",
        "put[#put + 1] = stands + jvms * 300000",
        "put[#put + 1] = stands",
    ),
    // LeavesSilently
    ("release", "if not was_next then", "if true then"),
    // HeadNotCompared
    (
        "acquire",
        "ttl == -2 and (not head or",
        "ttl == -2 and (true or",
    ),
    // ReleasesSilently
    ("release", "return call(all[1 + prune(all)])", "return 0"),
    // EachByItsTicket
    ("acquire", "is_there[head] ~= nil", "head == mine[1]"),
    // PassesSilently
    (
        "acquire",
        "if ttl == -2 and head ~= before then",
        "if false then",
    ),
    // PassesOneCaller
    ("acquire", "or locker and locker == locker_of(all[at])", ""),
    // A JVM has no other ticket for each of its threads.
    (
        "acquire",
        "or locker and locker == locker_of(all[at])",
        "or locker == locker_of(all[at])",
    ),
    // A ticket that was left behind is passed with those that wait.
    (
        "acquire",
        "is_of_it and is_there[all[at]] == nil",
        "is_of_it",
    ),
    // Clients that listen to everything are taken for the locker.
    ("release", "(ears[2] or 0) > 0", "true"),
    // What is removed from the one is not from the other.
    (
        "release",
        "redis.call('ZREM', timeouts, field)",
        "redis.call('ZCARD', timeouts)",
    ),
    ("acquire", "if is_there[mine[1]] then", "if false then"),
    (
        "acquire",
        "redis.call('ZREM', timeouts, all[at])",
        "redis.call('ZCARD', timeouts)",
    ),
    // A copy of an acquire is none.
    (
        "acquire",
        "local is_copy = ttl ~= -2 and redis.call('HEXISTS', lock, field) == 1",
        "local is_copy = false",
    ),
    // The field is not compared.
    ("release", "if held == 1 then", "if field ~= '' then"),
    // Those that wait are not kept alive.
    ("acquire", "if #scored > 0 then", "if false then"),
];

/// One of this crate's lockers, with its callers' tickets.
#[derive(Debug, Default)]
struct Locker {
    waiting: Vec<String>,
    /// A head that it has found at a free lock.
    absent: String,
}

/// The server, at a time that the test sets.
struct World {
    redis: redis::Connection,
    heard: redis::Connection,
    server: Server,
    now: i64,
    lockers: [Locker; 2],
    /// Who believes to have the lock, until when.
    believed: BTreeMap<String, i64>,
    /// When each ticket of this crate was asked for last.
    asked: BTreeMap<String, i64>,
    numbers: u64,
    mistake: Option<Mistake>,
}

impl World {
    fn new() -> Option<Self> {
        let server = Server::start_with_clock(0, &[])?;
        let redis = server.connection().expect("it runs");
        let heard = server.connection().expect("it runs");
        let mut world = Self {
            redis,
            heard,
            server,
            now: 1_800_000_000_000,
            lockers: Default::default(),
            believed: BTreeMap::new(),
            asked: BTreeMap::new(),
            numbers: 0,
            mistake: None,
        };
        world.later(0);
        Some(world)
    }

    /// Begins with an empty server.
    fn begin(&mut self) {
        let _: String = self.server.command(&["FLUSHALL"]);
        self.lockers = Default::default();
        self.believed.clear();
        self.asked.clear();
        self.later(10 * LEASE);
    }

    fn later(&mut self, ms: i64) {
        self.now += ms;
        self.server.stop_clock(self.now * 1_000);
        let now = self.now;
        self.believed.retain(|_, until| *until > now);
    }

    fn run(&mut self, name: &str, keys: &[&str], args: &[String]) -> Raw {
        let script = match name {
            "acquire" => &FAIR.scripts.acquire,
            _ => &FAIR.scripts.release,
        };
        let mut body = bare(script.on(Topology::OneServer).text()).to_owned();
        if let Some((of, line, made)) = self.mistake
            && of == name
        {
            assert_eq!(body.matches(line).count(), 1, "{line}");
            body = body.replace(line, made);
        }
        let mut command = redis::cmd("EVAL");
        command.arg(body).arg(keys.len()).arg(keys).arg(args);
        command.query(&mut self.redis).expect("no error")
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// A locker asks. Returns the field that it has then, or the one that is next.
    fn ask(&mut self, locker: usize, field: &str, tickets: &[String]) -> Result<(), String> {
        let passed = std::mem::take(&mut self.lockers[locker].absent);
        let before = self.queue();
        let stood = |ticket: &str| {
            self.asked
                .get(ticket)
                .is_none_or(|at| self.now - at < LEASE)
        };
        let passes = self.is_free() && before.first() == Some(&passed) && stood(&passed);
        let behind = before.get(1).filter(|ticket| ticket.starts_with("cccc"));
        let behind: Option<i64> =
            behind.map(|ticket| self.server.command(&["ZSCORE", TIMEOUTS, ticket]));
        let mut args: Vec<String> = [&LEASE.to_string(), field, "-1000000", CHANNEL, WAKES]
            .map(str::to_owned)
            .into();
        args.extend([passed.clone(), LEASE.to_string(), tickets.len().to_string()]);
        args.extend_from_slice(tickets);
        let reply = self.run("acquire", &[LOCK, "mark", QUEUE, TIMEOUTS], &args);
        for ticket in tickets {
            self.asked.insert(ticket.clone(), self.now);
        }
        let now = self.queue();
        let granted = match reply {
            Raw::Array(reply) if reply[0] == Raw::Int(1) => Ok(()),
            Raw::Array(reply) => {
                let next = String::from_utf8_lossy(match &reply[3] {
                    Raw::BulkString(next) => next,
                    other => panic!("{other:?}"),
                });
                let place = now.iter().position(|ticket| tickets.contains(ticket));
                if let Some(place) = place {
                    assert_eq!(reply[2], Raw::Int(place as i64), "of {now:?}");
                }
                assert!(
                    !tickets.iter().any(|ticket| *ticket == *next),
                    "its own is next: {now:?}"
                );
                Err(next.into_owned())
            }
            other => panic!("{other:?}"),
        };
        if granted.is_ok() && !self.believed.contains_key(field) {
            // Whoever was before it has run out, or was passed.
            let mut others = before.iter().take_while(|other| !tickets.contains(other));
            let stays = others.find(|other| now.contains(other) && **other != passed);
            assert_eq!(stays, None, "it is before {tickets:?}: {before:?}");
            self.believed.insert(field.to_owned(), self.now + LEASE);
        }
        if passes && passed.matches(':').count() > 1 {
            let is_of_it =
                |ticket: &&String| ticket[..4] == passed[..4] && !tickets.contains(ticket);
            assert_eq!(now.iter().find(is_of_it), None, "of one that was passed");
        } else if passes && let Some(ends) = behind {
            let stays = ends <= self.now || now.contains(&before[1]);
            assert!(stays, "another thread of a JVM: {before:?}");
        }
        let missing = tickets.iter().skip(usize::from(granted.is_ok()));
        for ticket in missing {
            assert!(now.contains(ticket), "{ticket} has a place: {now:?}");
        }
        granted
    }

    fn release(&mut self, field: &str) -> bool {
        self.believed.remove(field);
        let args = [field, CHANNEL, WAKES].map(str::to_owned);
        self.run("release", &[LOCK, QUEUE, TIMEOUTS], &args) != Raw::Int(-1)
    }

    fn jvm(&mut self, steps: &str, owner: &str) -> bool {
        let steps = match steps {
            JVM_LEAVES => steps.to_owned(),
            steps => [JVM_PRUNES, steps].concat(),
        };
        let args = [self.now, LEASE, WAIT].map(|ms| ms.to_string());
        let mut command = redis::cmd("EVAL");
        command.arg(steps).arg(3).arg(&[LOCK, QUEUE, TIMEOUTS]);
        command.arg(owner).arg(&args);
        command.query::<i64>(&mut self.redis).expect("no error") == 1
    }

    fn queue(&self) -> Vec<String> {
        self.server.command(&["LRANGE", QUEUE, "0", "-1"])
    }

    fn is_free(&self) -> bool {
        self.server.command::<i64>(&["EXISTS", LOCK]) == 0
    }

    /// Returns the channels of the messages that one step sent.
    fn messages(&mut self, step: impl FnOnce(&mut Self)) -> Vec<String> {
        let mut heard = self.server.connection().expect("it runs");
        std::mem::swap(&mut heard, &mut self.heard);
        let mut messages = heard.as_pubsub();
        messages.psubscribe("*").expect("subscribed");
        // The other locker does not listen to its name.
        messages
            .subscribe(called_at("aaaa:7:1:ticket"))
            .expect("subscribed");
        step(self);
        let _: i64 = self.server.command(&["PUBLISH", "end", ""]);
        messages
            .set_read_timeout(Some(Duration::from_secs(10)))
            .expect("a timeout");
        let mut all = Vec::new();
        loop {
            let message = messages.get_message().expect("the end");
            let channel = message.get_channel_name().to_owned();
            if channel == "end" {
                return all;
            }
            all.push(channel);
        }
    }

    /// What holds after every step. `gone` left by themselves.
    fn check(&self, before: &[String], gone: &[String], said: &str) {
        assert!(self.believed.len() <= 1, "{:?}: {said}", self.believed);
        let queue = self.queue();
        let mut scored: Vec<String> = self.server.command(&["ZRANGE", TIMEOUTS, "0", "-1"]);
        let mut tickets = queue.clone();
        scored.sort();
        tickets.sort();
        assert_eq!(scored, tickets, "each has its time: {said}");
        tickets.dedup();
        assert_eq!(tickets.len(), queue.len(), "each is there once: {said}");
        let waits = |ticket: &&String| self.lockers.iter().any(|one| one.waiting.contains(ticket));
        let mut left = queue.iter().filter(|ticket| !ticket.starts_with("cccc"));
        assert_eq!(
            left.find(|ticket| !waits(ticket)),
            None,
            "nobody waits: {said}"
        );
        for ticket in before.iter().filter(|ticket| !queue.contains(ticket)) {
            let Some(asked) = self.asked.get(ticket) else {
                continue;
            };
            let is_over = self.now - asked >= LEASE;
            assert!(is_over || gone.contains(ticket), "{ticket} is gone: {said}");
        }
    }
}

/// Returns a channel on which the one with this ticket is called.
fn called_at(ticket: &str) -> String {
    match ticket.matches(':').count() {
        1 => format!("{CHANNEL}:{ticket}"),
        _ if ticket.starts_with("bbbb") => CHANNEL.to_owned(),
        _ => format!("{WAKES}{}", ticket.split(':').next().expect("a locker")),
    }
}

/// Has the world go through a random order of steps, from a seed.
fn order(world: &mut World, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut copies: Vec<(usize, String, Vec<String>)> = Vec::new();
    for step in 0..STEPS {
        let before = world.queue();
        let was = (world.is_free(), before.first().cloned());
        let mut gone: Vec<String> = Vec::new();
        let mut said = String::new();
        let (choice, locker) = (random.u8(..14), random.usize(..2));
        let holder = world.believed.keys().next().cloned();
        let is_ours = choice < 9;
        let told = world.messages(|world| match choice {
            // A caller comes, or the locker looks. Now and then one that does not wait.
            0..=3 => {
                let id = ["aaaa", "bbbb"][locker];
                if choice < 2 && world.lockers[locker].waiting.len() < 4 {
                    let ticket = format!("{id}:7:{}:ticket", world.number());
                    world.lockers[locker].waiting.push(ticket);
                }
                let tickets = match random.u8(..8) {
                    0 => Vec::new(),
                    _ => world.lockers[locker].waiting.clone(),
                };
                let field = format!("{id}:7:{}", world.number());
                let absent = world.lockers[locker].absent.clone();
                if absent.matches(':').count() > 1 && before.first() == Some(&absent) {
                    let is_of_it = |ticket: &&String| ticket[..4] == absent[..4];
                    gone.extend(before.iter().filter(is_of_it).cloned());
                }
                gone.push(absent);
                let answer = world.ask(locker, &field, &tickets);
                said = format!("{field} asks for {tickets:?}: {answer:?}");
                match answer {
                    Ok(()) if !tickets.is_empty() => {
                        gone.push(world.lockers[locker].waiting.remove(0));
                    }
                    Err(next) if !tickets.is_empty() && random.u8(..3) == 0 => {
                        world.lockers[locker].absent = next;
                    }
                    _ => {}
                }
                copies.push((locker, field, tickets));
            }
            // A late copy, which is undone; the tickets that it put in leave.
            4 if !copies.is_empty() => {
                let (locker, field, tickets) = copies[random.usize(..copies.len())].clone();
                if tickets.is_empty() {
                    return;
                }
                world.lockers[locker].absent.clear();
                let believed = world.believed.contains_key(&field);
                let answer = world.ask(locker, &field, &tickets);
                assert!(!believed || answer.is_ok(), "a copy of {field}");
                if !believed {
                    world.release(&field);
                }
                let waiting = world.lockers[locker].waiting.clone();
                for ticket in tickets.iter().filter(|ticket| !waiting.contains(ticket)) {
                    world.release(ticket);
                }
                gone.extend(tickets);
                said = format!("a copy of {field}: {answer:?}");
            }
            5 | 6 => {
                if let Some(field) = holder.filter(|field| field.matches(':').count() == 2) {
                    assert!(world.release(&field), "{field} has it");
                    assert!(!world.release(&field), "once");
                    said = format!("{field} releases");
                }
            }
            7 | 8 => {
                if let Some(ticket) = world.lockers[locker].waiting.pop() {
                    world.release(&ticket);
                    said = format!("{ticket} leaves");
                    gone.push(ticket);
                }
            }
            9 => {
                let ms = [random.i64(0..LEASE / 2), random.i64(0..LEASE * 2)][random.usize(..2)];
                world.later(ms);
                said = format!("{ms} ms pass");
            }
            10 | 11 => {
                let owner = format!("cccc:{}", random.u8(..3));
                if world.believed.contains_key(&owner) {
                    return;
                }
                let granted = world.jvm(JVM_TRIES, &owner);
                if granted {
                    world.believed.insert(owner.clone(), world.now + LEASE);
                }
                said = format!("{owner} tries: {granted}");
            }
            12 => {
                let owner = format!("cccc:{}", random.u8(..3));
                world.jvm(JVM_LEAVES, &owner);
                said = format!("{owner} leaves");
            }
            _ => {
                if let Some(owner) = holder.filter(|owner| owner.starts_with("cccc")) {
                    world.believed.remove(&owner);
                    assert!(world.jvm(JVM_RELEASES, &owner), "{owner} has it");
                    said = format!("{owner} releases");
                }
            }
        });
        let said = format!("step {step}: {said}");
        world.check(&before, &gone, &said);
        let queue = world.queue();
        if is_ours
            && world.is_free()
            && let Some(head) = queue.first()
            && was != (true, Some(head.clone()))
        {
            let channel = called_at(head);
            assert!(told.contains(&channel), "{channel} of {told:?}: {said}");
        }
        copies.truncate(20);
    }
}

/// Each grant of a JVM takes 300 s off a ticket that has waited for long.
fn waits_behind_jvms(world: &mut World) {
    let ticket = "aaaa:7:1:ticket".to_owned();
    for owner in ["cccc:0", "cccc:1", "cccc:2"] {
        if world.jvm(JVM_TRIES, owner) {
            world.believed.insert(owner.to_owned(), i64::MAX);
        }
    }
    for _ in 0..10 {
        let answer = world.ask(0, "aaaa:7:2", std::slice::from_ref(&ticket));
        assert_eq!(answer, Err(String::new()), "a JVM has it");
        world.later(LEASE - 1);
        let _: i64 = world.server.command(&["PEXPIRE", LOCK, &LEASE.to_string()]);
    }
    for owner in ["cccc:0", "cccc:1", "cccc:2"] {
        // The first one has it already.
        let is_granted = world.believed.contains_key(owner) || world.jvm(JVM_TRIES, owner);
        assert!(is_granted, "{owner} is next");
        assert!(world.jvm(JVM_RELEASES, owner), "{owner} had it");
        assert!(world.queue().contains(&ticket), "behind {owner}");
    }
    world.believed.clear();
    assert_eq!(world.ask(0, "aaaa:7:3", &[ticket]), Ok(()));
}

/// A ticket of its own that was left behind is in its way.
fn passes_its_own(world: &mut World) {
    let [left, waits, other] =
        ["aaaa:7:1:ticket", "aaaa:7:2:ticket", "bbbb:7:3:ticket"].map(str::to_owned);
    world.jvm(JVM_TRIES, "cccc:0");
    assert!(
        world
            .ask(0, "aaaa:7:4", &[left.clone(), waits.clone()])
            .is_err()
    );
    assert!(
        world
            .ask(1, "bbbb:7:5", std::slice::from_ref(&other))
            .is_err()
    );
    assert!(world.jvm(JVM_RELEASES, "cccc:0"));
    let asked = [waits];
    assert_eq!(world.ask(0, "aaaa:7:6", &asked), Err(left.clone()));
    world.lockers[0].absent = left;
    assert_eq!(world.ask(0, "aaaa:7:7", &asked), Ok(()));
    assert_eq!(world.queue(), [other]);
}

#[test]
fn a_locker_passes_a_ticket_that_it_left_behind() {
    if let Some(mut world) = World::new() {
        passes_its_own(&mut world);
    }
}

#[test]
fn a_ticket_stands_for_as_long_as_jvms_are_before_it() {
    if let Some(mut world) = World::new() {
        waits_behind_jvms(&mut world);
    }
}

#[test]
fn the_queue_is_in_order_beside_redissons_steps() {
    let Some(mut world) = World::new() else {
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
        let Some(mut world) = World::new() else {
            return;
        };
        world.mistake = Some(mistake);
        let found = (0..ORDERS).any(|seed| {
            world.begin();
            let run = || match seed {
                0 => waits_behind_jvms(&mut world),
                1 => passes_its_own(&mut world),
                seed => order(&mut world, seed),
            };
            catch_unwind(AssertUnwindSafe(run)).is_err()
        });
        assert!(found, "{mistake:?}");
    }
}
