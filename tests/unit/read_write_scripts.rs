//! The scripts of read-write locks on a Redis, beside Redisson's own steps, in random orders:
//! commands come late or twice, answers are lost, leases run out, clients crash, and an operator
//! interferes. After each step nobody believes to be inside beside somebody whom that excludes.
//!
//! The wall clock of the Redis stands still unless an order moves it, so a lease ends exactly when
//! an order says so. Beside Redisson's clients all leases are equal, as the documentation asks for:
//! their renewals cut longer ones.

use std::cell::RefCell;

use redis::{Connection, Script as Sent, Value as Raw};

use super::{READ, WRITE};
use crate::common::server::Server;
use crate::lua::{Lua, Script, Topology, bare};

/// The number of orders in a test, of this many steps.
const ORDERS: u64 = if cfg!(feature = "soak") {
    100_000
} else {
    2_500
};
const STEPS: usize = 40;

/// Milliseconds after the beginning of 1970.
const BEGINNING: i64 = 1_800_000_000_000;

const LOCK: &str = "k";
const CHANNEL: &str = "redisson_rwlock:{k}";
const LEASES: [i64; 3] = [6_000, 9_000, 15_000];

/// The steps of Redisson's clients. KEYS: the lock, and what the timeouts of the owner begin with.
/// ARGV: the lease, the owner. Each returns 1 if it is granted, or there.
const JVM_READS: &str = r"
  local mode = redis.call('HGET', KEYS[1], 'mode')
  if mode == 'write' and redis.call('HEXISTS', KEYS[1], ARGV[2] .. ':write') == 0 then
    return 0
  end
  if not mode then
    redis.call('HSET', KEYS[1], 'mode', 'read')
  end
  local count = redis.call('HINCRBY', KEYS[1], ARGV[2], 1)
  redis.call('SET', KEYS[2] .. ':' .. count, 1, 'PX', ARGV[1])
  redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), ARGV[1]))
  return 1
";
const JVM_ENDS_READ: &str = r"
  local mode = redis.call('HGET', KEYS[1], 'mode')
  if not mode or redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then
    return 0
  end
  local count = redis.call('HINCRBY', KEYS[1], ARGV[2], -1)
  if count == 0 then
    redis.call('HDEL', KEYS[1], ARGV[2])
  end
  redis.call('DEL', KEYS[2] .. ':' .. count + 1)
  if redis.call('HLEN', KEYS[1]) > 1 then
    local longest = 0
    for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
      for n = tonumber(redis.call('HGET', KEYS[1], field)) or 0, 1, -1 do
        local left = redis.call('PTTL', '{k}:' .. field .. ':rwlock_timeout:' .. n)
        longest = math.max(longest, left)
      end
    end
    if longest > 0 then
      redis.call('PEXPIRE', KEYS[1], longest)
      return 1
    elseif mode == 'write' then
      return 1
    end
  end
  redis.call('DEL', KEYS[1])
  return 1
";
const JVM_WRITES: &str = r"
  local mode = redis.call('HGET', KEYS[1], 'mode')
  local field = ARGV[2] .. ':write'
  if not mode then
    redis.call('HSET', KEYS[1], 'mode', 'write', field, 1)
    redis.call('PEXPIRE', KEYS[1], ARGV[1])
    return 1
  elseif mode == 'write' and redis.call('HEXISTS', KEYS[1], field) == 1 then
    redis.call('HINCRBY', KEYS[1], field, 1)
    redis.call('PEXPIRE', KEYS[1], redis.call('PTTL', KEYS[1]) + ARGV[1])
    return 1
  end
  return 0
";
const JVM_ENDS_WRITE: &str = r"
  local field = ARGV[2] .. ':write'
  if redis.call('HGET', KEYS[1], 'mode') ~= 'write' or redis.call('HEXISTS', KEYS[1], field) == 0 then
    return 0
  end
  if redis.call('HINCRBY', KEYS[1], field, -1) > 0 then
    redis.call('PEXPIRE', KEYS[1], ARGV[1])
    return 1
  end
  redis.call('HDEL', KEYS[1], field)
  if redis.call('HLEN', KEYS[1]) == 1 then
    redis.call('DEL', KEYS[1])
  else
    redis.call('HSET', KEYS[1], 'mode', 'read')
  end
  return 1
";
const JVM_RENEWS: &str = r"
  local renewed = redis.call('HEXISTS', KEYS[1], ARGV[2] .. ':write')
  for n = 1, tonumber(redis.call('HGET', KEYS[1], ARGV[2]) or 0) do
    renewed = math.max(renewed, redis.call('PEXPIRE', KEYS[2] .. ':' .. n, ARGV[1]))
  end
  if renewed == 1 then
    redis.call('PEXPIRE', KEYS[1], ARGV[1])
  end
  return renewed
";
/// Redisson's `getLock` of the same name.
const JVM_LOCKS: &str = r"
  if redis.call('EXISTS', KEYS[1]) == 1 then
    return 0
  end
  redis.call('HSET', KEYS[1], ARGV[2], 1)
  return redis.call('PEXPIRE', KEYS[1], ARGV[1])
";
const JVM_UNLOCKS: &str = r"
  if redis.call('HDEL', KEYS[1], ARGV[2]) == 1 then
    redis.call('DEL', KEYS[1])
  end
  return 1
";

/// A mistake in a script: which one, what a line says, and what the mistake makes of it.
type Mistake = (&'static str, &'static str, &'static str);

const MISTAKES: [Mistake; 9] = [
    // no_timeout_key
    (
        "read acquire",
        "redis.call('SET', timeout, '1', 'PX', lease_ms)",
        "",
    ),
    // renewal_lowers
    ("read renew", "math.max(ttl, lease_ms)", "lease_ms"),
    ("write renew", "math.max(answer, lease_ms)", "lease_ms"),
    // inside_not_compared
    (
        "read acquire",
        "inside = under ~= '' and found[3]",
        "inside = under ~= ''",
    ),
    // downgrade_frees
    ("write release", "if last > 0 then", "if false then"),
    // first_live_reader_ignored
    (
        "read release",
        "math.max(last, left(holders[i], holders[i + 1]))",
        "last",
    ),
    // takes_a_plain_hash
    ("read acquire", "found[2] ~= 'read'", "found[2] == 'write'"),
    // release_without_hdel
    (
        "read release",
        "redis.pcall('HDEL', lock, field)",
        "redis.pcall('HEXISTS', lock, field)",
    ),
    (
        "read release",
        "if redis.call('HGET', lock, 'mode') == 'write' then",
        "if false then",
    ),
];

struct Scripts {
    read: [Sent; 3],
    write: [Sent; 3],
    expel: Sent,
    jvm: [Sent; 7],
}

impl Scripts {
    /// Returns the scripts as they are sent, perhaps with a mistake.
    fn new(mistake: Option<Mistake>) -> Self {
        static EXPEL: Script = Script::shared("expel");
        let sent = |name: &str, lua: &Lua| {
            let body = bare(lua.text());
            let body = match mistake {
                Some((of, line, made)) if of == name => {
                    assert_eq!(body.matches(line).count(), 1, "{line}");
                    body.replace(line, made)
                }
                _ => body.to_owned(),
            };
            Sent::new(&body)
        };
        let of = |kind: &'static crate::kind::Kind| {
            let scripts = &kind.scripts;
            let named = [
                ("acquire", &scripts.acquire),
                ("release", &scripts.release),
                ("renew", &scripts.renew),
            ];
            named.map(|(name, script)| {
                sent(
                    &format!("{} {name}", kind.name),
                    script.on(Topology::OneServer),
                )
            })
        };
        let jvm = [
            JVM_READS,
            JVM_ENDS_READ,
            JVM_WRITES,
            JVM_ENDS_WRITE,
            JVM_RENEWS,
            JVM_LOCKS,
            JVM_UNLOCKS,
        ];
        Self {
            read: of(&READ),
            write: of(&WRITE),
            expel: sent("expel", EXPEL.on(Topology::OneServer)),
            jvm: jvm.map(Sent::new),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Its answer is awaited.
    Asked,
    Held,
    /// Nobody wants it any more, and it is released until that is answered.
    Over,
    /// Its process has died, and sends nothing more.
    Crashed,
}

/// One of our attempts, and the hold that follows.
#[derive(Debug, Clone)]
struct Claim {
    owner: u64,
    writes: bool,
    field: String,
    /// The claim inside which it reads.
    inside: Option<usize>,
    lease: i64,
    phase: Phase,
    /// When its validity ends; counts from before the send.
    until: i64,
    /// An operator has deleted it, and its holder does not know.
    deceived: bool,
    /// An acquire that was not executed yet, and the one of its holder that were.
    acquires: bool,
    waits: bool,
}

/// An owner of Redisson: its counts, and until when it believes in them.
#[derive(Debug, Clone, Copy, Default)]
struct Jvm {
    reads: u32,
    writes: u32,
    locks: bool,
    until: i64,
}

/// A command on its way. Late copies of all but acquires come at any time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Command {
    Acquire(usize),
    Release(usize),
    /// And when it was sent.
    Renew(usize, i64),
}

/// Everything around one lock.
struct World<'a> {
    server: &'a Server,
    connection: RefCell<&'a mut Connection>,
    scripts: &'a Scripts,
    random: fastrand::Rng,
    now: i64,
    claims: Vec<Claim>,
    jvms: [Jvm; 2],
    /// Who else is there.
    others: Others,
    wire: Vec<Command>,
    fence: i64,
    /// Whether something may be left until a lease is over.
    leaves: bool,
    log: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Others {
    /// Leases are of different lengths.
    Nobody,
    ReadWrite,
    /// Redisson's `getLock`.
    Lock,
}

impl<'a> World<'a> {
    fn new(
        seed: u64,
        server: &'a Server,
        connection: &'a mut Connection,
        scripts: &'a Scripts,
    ) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let others = random.choice([Others::Nobody, Others::ReadWrite, Others::Lock]);
        server.stop_clock(BEGINNING * 1_000);
        redis::cmd("FLUSHALL").exec(connection).expect("done");
        Self {
            server,
            connection: RefCell::new(connection),
            scripts,
            random,
            now: BEGINNING,
            claims: Vec::new(),
            jvms: [Jvm::default(); 2],
            others: others.expect("one of three"),
            wire: Vec::new(),
            fence: 0,
            leaves: false,
            log: Vec::new(),
        }
    }

    fn lease(&mut self) -> i64 {
        match self.others {
            Others::Nobody => LEASES[self.random.usize(..3)],
            _ => LEASES[1],
        }
    }

    fn some(&mut self, which: impl Fn(&Claim) -> bool) -> Option<usize> {
        let some: Vec<_> = (0..self.claims.len())
            .filter(|at| which(&self.claims[*at]))
            .collect();
        self.random.choice(some)
    }

    fn step(&mut self) -> Result<(), String> {
        match self.random.u8(..20) {
            0..4 => self.asks(),
            4..11 => self.executes()?,
            11..13 => {
                if let Some(at) = self.some(|claim| claim.phase == Phase::Held) {
                    self.ends(at);
                }
            }
            13 => {
                if let Some(at) = self.some(|claim| claim.phase == Phase::Held) {
                    self.wire.push(Command::Renew(at, self.now));
                }
            }
            // A caller gives up, or an answer does not come.
            14 => {
                if let Some(at) = self.some(|claim| claim.phase == Phase::Asked) {
                    self.ends(at);
                }
            }
            15 => {
                let by = [100, 1_000, 3_000, 5_000][self.random.usize(..4)];
                self.passes(by);
            }
            16 if self.random.bool() => {
                if let Some(at) = self.some(|claim| claim.phase == Phase::Held) {
                    self.log.push(format!("crash {at}"));
                    self.leaves = true;
                    self.claims[at].phase = Phase::Crashed;
                    let is_own = |command: &Command| *command != Command::Release(at);
                    self.wire.retain(is_own);
                }
            }
            17 if self.random.u8(..4) == 0 => self.operates()?,
            _ => self.jvm_steps(),
        }
        self.check()
    }

    /// A caller of ours asks, as the crate lets it: a write hold has the reads of its owner inside
    /// of it, and a reader that asks to write is refused.
    fn asks(&mut self) {
        let (owner, writes) = (self.random.u64(..3), self.random.u8(..3) == 0);
        let is_own = |claim: &&Claim| {
            claim.owner == owner && matches!(claim.phase, Phase::Asked | Phase::Held)
        };
        let own: Vec<_> = self.claims.iter().filter(is_own).collect();
        let inside = own
            .iter()
            .find(|claim| claim.writes && claim.phase == Phase::Held)
            .and_then(|write| self.claims.iter().position(|one| one.field == write.field));
        let is_busy = match inside {
            Some(_) => writes || own.iter().any(|claim| !claim.writes),
            None => !own.is_empty(),
        };
        if is_busy {
            return;
        }
        let (number, lease) = (self.claims.len(), self.lease());
        let suffix = if writes { ":write" } else { "" };
        self.log
            .push(format!("ask {number}: {owner} {writes} inside {inside:?}"));
        self.claims.push(Claim {
            owner,
            writes,
            field: format!("00000000-0000-0000-0000-00000000000{owner}:{owner}:{number}{suffix}"),
            inside,
            lease,
            phase: Phase::Asked,
            until: self.now + lease,
            deceived: false,
            acquires: true,
            waits: self.random.bool(),
        });
        self.wire.push(Command::Acquire(number));
    }

    /// Ends a claim. A command is sent at least twice if it is unknown what it finds.
    fn ends(&mut self, at: usize) {
        self.log.push(format!("end {at}"));
        self.claims[at].phase = Phase::Over;
        self.wire.push(Command::Release(at));
    }

    fn passes(&mut self, by: i64) {
        self.log.push(format!("{by} ms"));
        self.now += by;
        self.server.stop_clock(self.now * 1_000);
        for at in 0..self.claims.len() {
            let claim = &self.claims[at];
            if claim.phase == Phase::Held && claim.until <= self.now {
                self.ends(at);
            }
        }
    }

    /// Executes a command that is on its way.
    fn executes(&mut self) -> Result<(), String> {
        if self.wire.is_empty() {
            return Ok(());
        }
        let at = self.random.usize(..self.wire.len());
        let command = self.wire[at];
        let copied = !matches!(command, Command::Acquire(_)) && self.random.u8(..3) == 0;
        if !copied {
            self.wire.swap_remove(at);
        }
        self.execute(command)
    }

    fn execute(&mut self, command: Command) -> Result<(), String> {
        match command {
            Command::Acquire(at) => self.acquire(at),
            Command::Release(at) => {
                // It is sent once more, since the acquire may come after it. One that comes after
                // both ends with its lease, and is not looked at here.
                if self.claims[at].acquires {
                    self.wire.push(command);
                }
                let Claim { field, writes, .. } = self.claims[at].clone();
                let told = match writes {
                    true => self.run(
                        &self.scripts.write[1],
                        &[LOCK, CHANNEL],
                        &[&field, "reader", "20"],
                    ),
                    false => self.run(
                        &self.scripts.read[1],
                        &[LOCK, CHANNEL, &timeout(&field)],
                        &[&field],
                    ),
                };
                self.log.push(format!("release {at}: {told:?}"));
                match self.has(&field) {
                    true => Err(format!("{at} is there after its release")),
                    false => Ok(()),
                }
            }
            Command::Renew(at, sent) => self.renew(at, sent),
        }
    }

    fn acquire(&mut self, at: usize) -> Result<(), String> {
        let claim = self.claims[at].clone();
        self.claims[at].acquires = false;
        let lease = claim.lease.to_string();
        let clock = format!("-{}", self.now / 100 * 100_000);
        let hint_ms = if claim.waits { "2000" } else { "" };
        let reply = if claim.writes {
            let locker = if claim.waits { "locker" } else { "" };
            let args = [
                &lease,
                &claim.field,
                &clock,
                "writer",
                locker,
                "reader",
                "2000",
            ];
            self.run(&self.scripts.write[0], &[LOCK, "mark"], &args)
        } else {
            let inside = claim.inside.map(|write| self.claims[write].field.clone());
            let hint = if inside.is_some() { "" } else { "writer" };
            let inside = inside.unwrap_or_default();
            let args = [
                &lease,
                &claim.field,
                &clock,
                &inside,
                hint,
                "reader",
                hint_ms,
                "",
                "20",
            ];
            let keys = [LOCK, "mark", &timeout(&claim.field)];
            self.run(&self.scripts.read[0], &keys, &args)
        };
        self.log.push(format!("acquire {at}: {reply:?}"));
        let Raw::Array(words) = &reply else {
            return Err(format!("an acquire answers {reply:?}"));
        };
        let awaited = self.claims[at].phase == Phase::Asked;
        match words[..] {
            [Raw::Int(1), Raw::Int(fence)] => {
                if fence <= self.fence {
                    return Err(format!("fence {fence} after {}", self.fence));
                }
                self.fence = fence;
                if awaited {
                    // An answer that is lost, or comes when the validity is over.
                    if claim.until <= self.now || self.random.u8(..6) == 0 {
                        self.ends(at);
                    } else {
                        self.claims[at].phase = Phase::Held;
                    }
                }
                Ok(())
            }
            [Raw::Int(0), Raw::Int(0..)] => {
                if awaited {
                    self.ends(at);
                }
                Ok(())
            }
            _ => Err(format!("an acquire answers {reply:?}")),
        }
    }

    fn renew(&mut self, at: usize, sent: i64) -> Result<(), String> {
        let claim = self.claims[at].clone();
        let lease = claim.lease.to_string();
        let reply = match claim.writes {
            true => self.run(&self.scripts.write[2], &[LOCK], &[&lease, &claim.field]),
            false => {
                let keys = [LOCK, &timeout(&claim.field)];
                self.run(&self.scripts.read[2], &keys, &[&lease, &claim.field])
            }
        };
        self.log.push(format!("renew {at}: {reply:?}"));
        let Raw::Array(words) = &reply else {
            return Err(format!("a renewal answers {reply:?}"));
        };
        // A late answer, or one that is lost, changes nothing.
        let held = claim.phase == Phase::Held && self.random.u8(..6) > 0;
        match words[..] {
            [Raw::Int(1)] => {
                if held {
                    self.claims[at].until = claim.until.max(sent + claim.lease);
                }
                Ok(())
            }
            [Raw::Int(0), Raw::Int(1), Raw::Int(0)] => {
                if claim.phase == Phase::Held && !claim.deceived {
                    return Err(format!("{at} is gone"));
                }
                if held {
                    self.ends(at);
                }
                Ok(())
            }
            _ => Err(format!("a renewal answers {reply:?}")),
        }
    }

    /// An operator deletes the lock, or releases it from some of those who have it.
    fn operates(&mut self) -> Result<(), String> {
        let fields: Vec<String> = self.call("HKEYS", LOCK);
        let mut named: Vec<&str> = fields.iter().map(String::as_str).collect();
        if self.random.bool() && self.others != Others::Lock {
            named.retain(|field| *field != "mode");
            named.truncate(self.random.usize(..4));
            let before = self.left();
            let told = self.run(&self.scripts.expel, &[LOCK, CHANNEL], &named);
            self.log.push(format!("expel {named:?}: {told:?}"));
            let after = self.left();
            if after > before {
                return Err("an operator has raised the lease".into());
            }
        } else {
            self.log.push("delete".into());
            self.call::<()>("DEL", LOCK);
        }
        self.leaves = true;
        for claim in &mut self.claims {
            claim.deceived |= named.contains(&&*claim.field);
        }
        for (number, jvm) in self.jvms.iter_mut().enumerate() {
            let is_named = |suffix: &str| named.contains(&&*format!("jvm{number}{suffix}"));
            if is_named("") || is_named(":write") {
                *jvm = Jvm::default();
            }
        }
        Ok(())
    }

    fn jvm_steps(&mut self) {
        let number = self.random.usize(..2);
        let jvm = self.jvms[number];
        if jvm.until <= self.now && jvm.until > 0 {
            // Its thread has died, or knows that its lease is over.
            self.leaves = true;
            self.jvms[number] = Jvm::default();
            return;
        }
        let choice = self.random.u8(..6);
        let script = match (self.others, choice) {
            (Others::Nobody, _) => return,
            (Others::Lock, _) if jvm.locks => 6,
            (Others::Lock, _) => 5,
            (_, 0 | 1) if jvm.reads < 2 => 0,
            (_, 2) if jvm.reads > 0 => 1,
            (_, 3) if jvm.reads == 0 && jvm.writes < 2 => 2,
            (_, 4) if jvm.writes > 0 => 3,
            (_, 5) if jvm.reads + jvm.writes > 0 => 4,
            _ => return,
        };
        let (owner, lease) = (format!("jvm{number}"), LEASES[1]);
        let timeouts = format!("{{k}}:{owner}:rwlock_timeout");
        let script_text = &self.scripts.jvm[script];
        let done = self.run(
            script_text,
            &[LOCK, &timeouts],
            &[&lease.to_string(), &owner],
        );
        self.log.push(format!("jvm{number} {script}: {done:?}"));
        let is_done = done == Raw::Int(1);
        let jvm = &mut self.jvms[number];
        match script {
            0 if is_done => jvm.reads += 1,
            1 => jvm.reads -= 1,
            2 if is_done => jvm.writes += 1,
            3 => jvm.writes -= 1,
            5 if is_done => jvm.locks = true,
            6 => jvm.locks = false,
            _ => {}
        }
        // A release restarts nothing: the first of its leases may end first.
        if is_done && matches!(script, 0 | 2 | 5) && jvm.until == 0 || is_done && script == 4 {
            jvm.until = self.now + lease;
        }
        if jvm.reads + jvm.writes == 0 && !jvm.locks {
            *jvm = Jvm::default();
        }
    }

    /// Checks what has to be true after each step.
    fn check(&self) -> Result<(), String> {
        let mut inside: Vec<(String, bool, String)> = Vec::new();
        for (at, claim) in self.claims.iter().enumerate() {
            if claim.phase == Phase::Held && !claim.deceived {
                inside.push((
                    format!("ours {}", claim.owner),
                    claim.writes,
                    claim.field.clone(),
                ));
            }
            debug_assert!(claim.phase != Phase::Held || claim.until > self.now, "{at}");
        }
        for (number, jvm) in self.jvms.iter().enumerate() {
            let owner = format!("jvm{number}");
            if jvm.until > self.now {
                let suffix = if jvm.writes > 0 { ":write" } else { "" };
                let field = format!("{owner}{suffix}");
                inside.push((owner, jvm.writes > 0 || jvm.locks, field));
            }
        }
        for (owner, writes, field) in &inside {
            let excludes =
                |other: &&(String, bool, String)| other.0 != *owner && (*writes || other.1);
            if let Some(other) = inside.iter().find(excludes) {
                return Err(format!("{field} is inside beside {other:?}"));
            }
        }
        let fields: Vec<_> = inside.iter().map(|(_, _, field)| &**field).collect();
        let (left, has) = self.shown(&fields);
        if let Some(at) = has.iter().position(|has| !has) {
            return Err(format!(
                "{} is inside, and the server does not have it",
                fields[at]
            ));
        }
        match left {
            -1 => Err("the lock has no lease".into()),
            _ => Ok(()),
        }
    }

    /// Ends everything. Nothing may be left.
    fn end(&mut self) -> Result<(), String> {
        for at in 0..self.claims.len() {
            if matches!(self.claims[at].phase, Phase::Held | Phase::Asked) {
                self.ends(at);
            }
        }
        // No acquire comes after the last release of its hold.
        while !self.wire.is_empty() {
            let at = self.random.usize(..self.wire.len());
            let command = self.wire.swap_remove(at);
            self.execute(command)?;
        }
        for number in 0..2 {
            let owner = format!("jvm{number}");
            let timeouts = format!("{{k}}:{owner}:rwlock_timeout");
            let Jvm {
                reads,
                writes,
                locks,
                until,
            } = self.jvms[number];
            self.leaves |= (1..=self.now).contains(&until);
            let ends = [(1, reads), (3, writes), (6, u32::from(locks))];
            for (script, times) in ends {
                for _ in 0..times {
                    let lease = LEASES[1].to_string();
                    let script = &self.scripts.jvm[script];
                    self.run(script, &[LOCK, &timeouts], &[&lease, &owner]);
                }
            }
        }
        if self.leaves {
            self.now += LEASES[2] + 1;
            self.server.stop_clock(self.now * 1_000);
        }
        let left: Vec<String> = self.call("KEYS", "*");
        let hints = ["mark", "reader", "writer"];
        match left.iter().find(|key| !hints.contains(&key.as_str())) {
            Some(key) => Err(format!("{key} is left")),
            None => Ok(()),
        }
    }

    fn run(&self, script: &Sent, keys: &[&str], args: &[&str]) -> Raw {
        let mut call = script.prepare_invoke();
        keys.iter().for_each(|key| _ = call.key(*key));
        args.iter().for_each(|arg| _ = call.arg(*arg));
        let answer = call.invoke(&mut **self.connection.borrow_mut());
        answer.unwrap_or_else(|error| panic!("{error}\n{}", self.log.join("\n")))
    }

    fn call<T: redis::FromRedisValue>(&self, command: &str, key: &str) -> T {
        let mut command = redis::cmd(command);
        let answer = command.arg(key).query(&mut **self.connection.borrow_mut());
        answer.expect("an answer")
    }

    /// Returns the milliseconds that the lock has left, and whether it has each of these fields.
    fn shown(&self, fields: &[&str]) -> (i64, Vec<bool>) {
        let mut pipe = redis::pipe();
        pipe.cmd("PTTL").arg(LOCK);
        fields
            .iter()
            .for_each(|field| _ = pipe.cmd("HEXISTS").arg(LOCK).arg(field));
        let shown: Vec<i64> = pipe
            .query(&mut **self.connection.borrow_mut())
            .expect("answers");
        (shown[0], shown[1..].iter().map(|is| *is == 1).collect())
    }

    fn has(&self, field: &str) -> bool {
        self.shown(&[field]).1[0]
    }

    fn left(&self) -> i64 {
        self.shown(&[]).0
    }
}

fn timeout(field: &str) -> String {
    format!("{{k}}:{field}:rwlock_timeout:1")
}

/// Runs orders. Returns what is wrong with the first that breaks a rule.
fn breaks(mistake: Option<Mistake>, orders: u64) -> Option<Result<(), String>> {
    let server = Server::start_with_clock(0, &[])?;
    let mut connection = server.connection().expect("a connection");
    let scripts = Scripts::new(mistake);
    for seed in 0..orders {
        let mut world = World::new(seed, &server, &mut connection, &scripts);
        let mut result = (0..STEPS).try_for_each(|_| world.step());
        if result.is_ok() {
            result = world.end();
        }
        if let Err(wrong) = result {
            return Some(Err(format!(
                "order {seed}: {wrong}\n{}",
                world.log.join("\n")
            )));
        }
    }
    Some(Ok(()))
}

#[test]
fn no_order_of_readers_and_writers_lets_two_excluding_ones_in() {
    if let Some(Err(wrong)) = breaks(None, ORDERS) {
        panic!("{wrong}");
    }
}

#[test]
fn each_mistake_in_a_script_is_found() {
    for mistake in MISTAKES {
        let Some(result) = breaks(Some(mistake), 20_000) else {
            return;
        };
        assert!(result.is_err(), "{mistake:?}: no order finds this mistake");
    }
}
