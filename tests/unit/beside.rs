//! Compares the commands of a server in memory with those of a Redis: both are given the same
//! random sequences, and replies, messages and keys have to be the same, to the millisecond.
//!
//! Each command is called by a script, which shows the type of all that comes back, so conversions
//! are compared too. The wall clock of the Redis stands still unless a sequence moves it. Names are
//! few, so that they meet. If the two differ, the test reports the shortest sequence that makes
//! them differ.

use std::cell::RefCell;
use std::sync::mpsc::{Receiver, channel};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use redis::{Connection, PushInfo, Script, Value as Raw};

use super::interpreter::{Interpreter, Keys, PubSub, REDIS, Resp};
#[cfg(test)]
use crate::common::server::Server;
use crate::sync::{Arc, Mutex};

/// The number of sequences in a test: `./dev soak` runs a million.
const SEQUENCES: u32 = if cfg!(feature = "soak") {
    1_000_000
} else {
    10_000
};

/// The time at the beginning of each sequence, in microseconds: in the middle of a millisecond.
const BEGINNING: i64 = 1_800_000_000_123_456;

const KEYS: [&str; 3] = ["a", "b", "c"];
/// A channel with two subscribers, and one with none.
const CHANNELS: [&str; 2] = ["heard", "unheard"];

/// Calls a command. The first character of a word says whether it is a text or a number.
const CALL: &str = r"
  local function shown(value)
    if type(value) == 'number' then
      return string.format('number %.17g', value)
    elseif type(value) ~= 'table' then
      return type(value) .. ' ' .. tostring(value)
    elseif value['err'] or value['ok'] then
      return value['err'] and 'error ' .. value['err'] or 'status ' .. value['ok']
    end
    local items = {}
    for i, item in ipairs(value) do
      items[i] = shown(item)
    end
    return '{' .. table.concat(items, ', ') .. '}'
  end
  local words = {}
  for i, argument in ipairs(KEYS) do
    local text = string.sub(argument, 2)
    words[i] = string.sub(argument, 1, 1) == '#' and tonumber(text) or text
  end
  return shown(redis.pcall(unpack(words)))
";

/// The ids that INFO tells.
const IDS: &str = r"
  local told = {}
  for _, asked in ipairs({'server run_id', 'server redis_mode', 'replication role', 'replication master_host',
      'replication master_replid2'}) do
    local section, name = string.match(asked, '(%S+) (%S+)')
    told[#told + 1] = string.match(redis.call('INFO', section), '\n' .. name .. ':([^\r\n]*)') or ''
  end
  return table.concat(told, ' ')
";

/// One step of a sequence.
#[derive(Debug, Clone)]
enum Step {
    /// A command: its words, as [`CALL`] takes them.
    Call(Vec<String>),
    /// This many microseconds pass.
    Wait(i64),
}

/// Everything that can be observed of a sequence.
#[derive(Debug, PartialEq)]
struct Seen {
    /// What came back, and last of all the keys.
    shown: Vec<String>,
    /// Each with its channel.
    messages: Vec<(String, String)>,
}

fn sequence() -> impl Strategy<Value = Vec<Step>> {
    let waits = select(vec![1, 999, 1_000, 1_001, 5_000, 70_000_000]).prop_map(Step::Wait);
    vec(
        prop_oneof![8 => command().prop_map(Step::Call), 1 => waits],
        1..25,
    )
}

/// Some members with scores, perhaps only those that are there, or that are not.
fn members() -> BoxedStrategy<Vec<String>> {
    let option = select(vec![vec![text("XX")], vec![text("NX")], Vec::new()]);
    let scored = vec((score(), field()), 1..4);
    (option, scored)
        .prop_map(|(mut words, scored)| {
            words.extend(scored.into_iter().flat_map(<[_; 2]>::from));
            words
        })
        .boxed()
}

/// A limit of scores.
fn limit() -> BoxedStrategy<String> {
    prop_oneof![
        1 => Just(text("-inf")),
        1 => Just(text("+inf")),
        4 => score(),
    ]
    .boxed()
}

fn number() -> BoxedStrategy<String> {
    select(vec!["1", "-1", "7", "-300", "0", "x"])
        .prop_map(text)
        .boxed()
}

fn command() -> impl Strategy<Value = Vec<String>> {
    let call = |name: &'static str, words: BoxedStrategy<Vec<String>>| {
        words
            .prop_map(move |words| [vec![text(name)], words].concat())
            .boxed()
    };
    let pairs = vec((field(), value()), 1..4)
        .prop_map(|pairs| pairs.into_iter().flat_map(<[_; 2]>::from).collect());
    let pairs: BoxedStrategy<Vec<String>> = pairs.boxed();
    let odd = (field(), value(), field()).prop_map(|(field, value, odd)| vec![field, value, odd]);
    let options = prop_oneof![
        3 => Just(Vec::new()),
        2 => Just(vec![text("GET")]),
        2 => Just(vec![text("KEEPTTL")]),
        4 => lifetime().prop_map(|lifetime| vec![text("PX"), lifetime]),
        1 => Just(vec![text("PY")]),
    ];
    let scores = prop_oneof![
        3 => Just(Vec::new()),
        2 => Just(vec![text("WITHSCORES")]),
        1 => Just(vec![text("LIMITS")]),
    ];
    let raised = vec((score(), field()), 1..3).prop_map(|scored| {
        let scored = scored.into_iter().flat_map(<[_; 2]>::from);
        [text("GT")].into_iter().chain(scored).collect()
    });
    let raised: BoxedStrategy<Vec<String>> = raised.boxed();
    let most = words(&["1", "2", "x"], &["1"]);
    let channels = vec(select(&CHANNELS[..]).prop_map(text), 0..3);
    let one = |word: BoxedStrategy<String>| word.prop_map(|word| vec![word]).boxed();
    let join = |some: BoxedStrategy<Vec<String>>, more: BoxedStrategy<Vec<String>>| {
        (some, more)
            .prop_map(|(some, more)| [some, more].concat())
            .boxed()
    };
    let of_key = |more: BoxedStrategy<Vec<String>>| join(one(key()), more);
    let none = || Just(Vec::new()).boxed();
    let two = |one: BoxedStrategy<String>, other: BoxedStrategy<String>| {
        (one, other)
            .prop_map(|(one, other)| vec![one, other])
            .boxed()
    };
    prop_oneof![
        2 => call("GET", of_key(none())),
        1 => call("MGET", vec(key(), 1..4).boxed()),
        4 => call("SET", of_key(join(one(value()), options.boxed()))),
        3 => call("INCR", of_key(none())),
        2 => call("DECR", of_key(none())),
        1 => call("TYPE", of_key(none())),
        1 => call("EXISTS", of_key(none())),
        2 => call("DEL", of_key(none())),
        3 => call("PTTL", of_key(none())),
        4 => call("PEXPIRE", of_key(one(lifetime()))),
        2 => call("PERSIST", of_key(none())),
        2 => call("HEXISTS", of_key(one(field()))),
        2 => call("HGET", of_key(one(field()))),
        2 => call("HDEL", of_key(one(field()))),
        2 => call("HLEN", of_key(none())),
        2 => call("HMGET", of_key(vec(field(), 1..4).boxed())),
        1 => call("HGETALL", of_key(none())),
        4 => call("HSET", of_key(prop_oneof![6 => pairs, 1 => odd].boxed())),
        2 => call("HSETNX", of_key(two(field(), value()))),
        4 => call("ZADD", of_key(two(score(), field()))),
        3 => call("ZADD", of_key(members())),
        2 => call("ZADD", of_key(raised)),
        2 => call("ZSCORE", of_key(one(field()))),
        4 => call("RPUSH", of_key(vec(field(), 1..4).boxed())),
        2 => call("LRANGE", of_key(two(place(), place()))),
        2 => call("LINDEX", of_key(one(place()))),
        2 => call("LPOP", of_key(none())),
        2 => call("LREM", of_key(two(most, field()))),
        2 => call("ZREM", of_key(vec(field(), 1..4).boxed())),
        2 => call("ZMSCORE", of_key(vec(field(), 1..4).boxed())),
        2 => call("ZCOUNT", of_key(two(limit(), limit()))),
        2 => call("ZREMRANGEBYSCORE", of_key(two(limit(), limit()))),
        2 => call("INCRBY", of_key(one(number()))),
        1 => call("ZCARD", of_key(none())),
        2 => call("ZRANK", of_key(one(field()))),
        3 => call("ZRANGE", of_key(join(two(place(), place()), scores.boxed()))),
        2 => call("PUBLISH", two(select(&CHANNELS[..]).prop_map(text).boxed(), value())),
        1 => call("PUBSUB", channels.prop_map(|channels| [vec![text("NUMSUB")], channels].concat()).boxed()),
        1 => call("TIME", none()),
    ]
}

fn text(word: &str) -> String {
    format!("'{word}")
}

fn words(texts: &[&str], numbers: &[&str]) -> BoxedStrategy<String> {
    let numbers = numbers.iter().map(|number| format!("#{number}"));
    select(
        texts
            .iter()
            .map(|word| text(word))
            .chain(numbers)
            .collect::<Vec<_>>(),
    )
    .boxed()
}

fn key() -> BoxedStrategy<String> {
    words(&KEYS, &[])
}

fn field() -> BoxedStrategy<String> {
    words(&["f", "g", "", "ü\n\0"], &["1", "0.1"])
}

/// Among them numbers that Redis writes in different ways.
fn value() -> BoxedStrategy<String> {
    let texts = [
        "",
        "x",
        "0",
        "7",
        "-1",
        "007",
        "-0",
        "1.5",
        " 1",
        "99999999999999999999",
        "1800000000123456",
    ];
    let numbers = [
        "0",
        "1",
        "-7",
        "1.5",
        "0.1",
        "1e-7",
        "1800000000123456",
        "5e18",
        "1e20",
        "-1e300",
    ];
    words(&texts, &numbers)
}

fn lifetime() -> BoxedStrategy<String> {
    words(
        &["1", "2", "5", "60000", "0", "-1", "x", "1.5"],
        &["1", "3", "1.5", "60000"],
    )
}

fn score() -> BoxedStrategy<String> {
    words(&["1", "2", "-3", "1.5", "x"], &["1", "2", "0", "1e15"])
}

fn place() -> BoxedStrategy<String> {
    words(&["0", "1", "-1", "2", "-2", "5", "-5", "x"], &["0", "-1"])
}

/// Reads all keys: after the steps of each sequence.
fn reading() -> impl Iterator<Item = Vec<String>> {
    let commands = ["TYPE", "PTTL", "GET", "HGETALL", "LRANGE", "ZRANGE"];
    KEYS.into_iter().flat_map(move |key| {
        commands.map(|command| {
            let places: &[&str] = match command {
                "ZRANGE" => &["0", "-1", "WITHSCORES"],
                "LRANGE" => &["0", "-1"],
                _ => &[],
            };
            [command, key]
                .iter()
                .chain(places)
                .map(|word| text(word))
                .collect()
        })
    })
}

/// A Redis and a server in memory.
struct Pair {
    server: Server,
    /// It is subscribed too, so messages arrive in their order.
    connection: Connection,
    messages: Receiver<PushInfo>,
    _other: Connection,
    call: Script,
    wrapped: &'static str,
    interpreter: Interpreter,
    heard: Arc<Heard>,
}

/// The messages on the channel that is subscribed.
#[derive(Default)]
struct Heard(Mutex<Vec<(String, String)>>);

impl PubSub for Heard {
    fn publish(&self, channel: &[u8], text: &[u8]) -> usize {
        let word = |word| String::from_utf8_lossy(word).into_owned();
        if self.listening(channel) > 0 {
            self.0.lock().push((word(channel), word(text)));
        }
        self.listening(channel)
    }

    fn listening(&self, channel: &[u8]) -> usize {
        if channel == CHANNELS[0].as_bytes() {
            2
        } else {
            0
        }
    }
}

impl Pair {
    /// Starts both, the one in memory with this text of `redis.lua`. Returns `None`, and prints a
    /// line on stderr, if a server's clock cannot be stopped here.
    fn start(redis: &str) -> Option<Self> {
        let server = Server::start_with_clock(0, &[])?;
        server.command::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
        server.command::<()>(&["REPLICAOF", "NO", "ONE"]);
        let client =
            redis::Client::open(format!("{}/?protocol=resp3", server.url())).expect("an address");
        let subscribed = || {
            let mut connection = client.get_connection().expect("a connection");
            let (sender, messages) = channel();
            connection.set_push_sender(sender);
            connection.subscribe_resp3(CHANNELS[0]).expect("subscribed");
            redis::cmd("PING")
                .exec(&mut connection)
                .expect("an answer, and before it the confirmation");
            messages.recv().expect("the confirmation");
            (connection, messages)
        };
        let ((mut connection, messages), (other, _)) = (subscribed(), subscribed());
        let call = Script::new(CALL);
        call.prepare_invoke()
            .load(&mut connection)
            .expect("a script");
        let heard = Arc::new(Heard::default());
        let interpreter = Interpreter::of(redis, Arc::clone(&heard)).expect("an interpreter");
        Some(Self {
            server,
            connection,
            messages,
            _other: other,
            call,
            wrapped: wrapped(CALL),
            interpreter,
            heard,
        })
    }

    /// Runs the same steps on both.
    ///
    /// # Errors
    /// How they differ.
    fn run(&mut self, steps: &[Step]) -> Result<(), String> {
        let (real, ours) = (self.on_redis(steps), self.in_memory(steps));
        if real == ours {
            Ok(())
        } else {
            Err(format!("Redis: {real:#?}\nin memory: {ours:#?}"))
        }
    }

    fn on_redis(&mut self, steps: &[Step]) -> Seen {
        let (mut now, mut pipe, mut shown) = (BEGINNING, redis::pipe(), Vec::new());
        self.server.stop_clock(now);
        let send = |pipe: &mut redis::Pipeline, words: &[String]| {
            _ = pipe
                .cmd("EVALSHA")
                .arg(self.call.get_hash())
                .arg(words.len())
                .arg(words);
        };
        for step in steps {
            match step {
                Step::Call(words) => send(&mut pipe, words),
                Step::Wait(us) => {
                    shown.extend(flush(&mut pipe, &mut self.connection));
                    now += us;
                    self.server.stop_clock(now);
                }
            }
        }
        reading().for_each(|words| send(&mut pipe, &words));
        pipe.cmd("FLUSHALL").ignore();
        shown.extend(flush(&mut pipe, &mut self.connection));
        let messages: Vec<PushInfo> = self.messages.try_iter().collect();
        Seen {
            shown,
            messages: messages.iter().map(told).collect(),
        }
    }

    fn in_memory(&mut self, steps: &[Step]) -> Seen {
        let (mut now, mut shown) = (BEGINNING, Vec::new());
        for step in steps {
            match step {
                Step::Call(words) => shown.push(self.call(now, words)),
                Step::Wait(us) => now += us,
            }
        }
        let keys = self.interpreter.keys(now);
        self.interpreter.restore(&Keys::none());
        self.interpreter.restore(&keys);
        shown.extend(reading().map(|words| self.call(now, &words)));
        self.interpreter.restore(&Keys::none());
        Seen {
            shown,
            messages: std::mem::take(&mut *self.heard.0.lock()),
        }
    }

    fn call(&mut self, now: i64, words: &[String]) -> String {
        shown(self.interpreter.run(now, self.wrapped, words, &[]))
    }
}

fn flush(pipe: &mut redis::Pipeline, connection: &mut Connection) -> Vec<String> {
    if pipe.cmd_iter().next().is_none() {
        return Vec::new();
    }
    let replies: Vec<Vec<u8>> = pipe.query(connection).expect("replies");
    pipe.clear();
    replies
        .into_iter()
        .map(|reply| String::from_utf8_lossy(&reply).into_owned())
        .collect()
}

fn told(message: &PushInfo) -> (String, String) {
    let text = |raw: &[u8]| String::from_utf8_lossy(raw).into_owned();
    match message.data.as_slice() {
        [Raw::BulkString(channel), Raw::BulkString(told)] => (text(channel), text(told)),
        other => panic!("{other:?}"),
    }
}

fn shown(reply: Resp) -> String {
    match reply {
        Resp::Text(shown) => String::from_utf8_lossy(&shown).into_owned(),
        // A mistake can also end a script.
        Resp::Error(error) => error,
        other => panic!("{other:?}"),
    }
}

/// Returns a script in the form of this crate's, which return the number of their send, for good.
fn wrapped(body: &str) -> &'static str {
    format!("return cmsgpack.pack(ARGV[#ARGV], pcall(function() {body} end))").leak()
}

/// Runs sequences. Returns the shortest one that makes the two differ, and how they differ.
fn differ(pair: &mut Pair, runner: &mut TestRunner) -> Result<(), (Vec<Step>, String)> {
    let (pair, last) = (RefCell::new(pair), RefCell::new(String::new()));
    let run = |steps: Vec<Step>| {
        pair.borrow_mut().run(&steps).map_err(|difference| {
            *last.borrow_mut() = difference;
            TestCaseError::fail("they differ")
        })
    };
    match runner.run(&sequence(), run) {
        Ok(()) => Ok(()),
        Err(TestError::Fail(_, steps)) if !last.borrow().is_empty() => Err((steps, last.take())),
        // A panic of the test itself is no difference.
        Err(error) => panic!("{error}"),
    }
}

/// Each choice makes a new generator from the last one, so a cheap one is used.
fn config(cases: u32, max_shrink_iters: u32) -> Config {
    let rng_algorithm = RngAlgorithm::XorShift;
    Config {
        cases,
        max_shrink_iters,
        rng_algorithm,
        failure_persistence: None,
        ..Config::default()
    }
}

#[test]
fn commands_do_what_those_of_redis_do() {
    let Some(mut pair) = Pair::start(REDIS) else {
        return;
    };
    let mut runner = TestRunner::new(config(SEQUENCES, 10_000));
    if let Err((steps, difference)) = differ(&mut pair, &mut runner) {
        panic!("{difference}\nafter {} steps: {steps:#?}", steps.len());
    }
}

#[test]
fn a_server_in_memory_tells_who_it_is_as_redis_does() {
    let Some(mut pair) = Pair::start(REDIS) else {
        return;
    };
    let real: String = Script::new(IDS).invoke(&mut pair.connection).expect("ids");
    let [run_id, _, second_id] = [0, 1, 4].map(|at| real.split(' ').nth(at).expect("a word"));
    assert!(run_id.len() == 40 && second_id.len() == 40, "{real}");
    pair.interpreter.name(run_id, second_id);
    assert_eq!(
        shown(pair.interpreter.run(BEGINNING, wrapped(IDS), &[], &[])),
        real
    );
}

/// What a line of `redis.lua` says, and what a mistake makes of it.
const MISTAKES: [[&str; 2]; 18] = [
    ["now_ms > entry.expires", "now_ms >= entry.expires"],
    ["entry.kind ~= kind", "false"],
    ["'%.17g'", "'%.14g'"],
    [
        "expires = expires}",
        "expires = find(key) and find(key).expires}",
    ],
    [
        "entries[key], entry.text = entry,",
        "entries[key], entry.text = {kind = 'string'},",
    ],
    [
        "if expires <= now_ms then\n      entries",
        "if expires < now_ms then\n      entries",
    ],
    ["entry.fields[field] and 0", "false and 0"],
    ["one.score < other.score", "one.score > other.score"],
    ["if entry and #entry.members == 0 then", "if false then"],
    [
        "elseif not option or option == 'GT' or (option == 'XX') == (at ~= nil) then",
        "elseif true then",
    ],
    ["return raise(key, -1)", "return raise(key, 1)"],
    [
        "if not within(member, lowest, highest) then",
        "if within(member, lowest, highest) then",
    ],
    ["integer(entry.text) + number", "integer(entry.text) + 1"],
    ["first < 0 and first + #all", "false"],
    ["if #items(key) == 0 then", "if false then"],
    ["removed < most", "true"],
    [
        "entry.members[at].score >= words[i]",
        "entry.members[at].score <= words[i]",
    ],
    [
        "return publish(channel, text)",
        "return subscribers(channel)",
    ],
];

#[test]
fn each_mistake_in_a_command_is_found() {
    for [line, mistake] in MISTAKES {
        assert_eq!(REDIS.matches(line).count(), 1, "{line}");
        let Some(mut pair) = Pair::start(&REDIS.replace(line, mistake)) else {
            return;
        };
        let seeded = TestRng::deterministic_rng(RngAlgorithm::XorShift);
        let found = differ(
            &mut pair,
            &mut TestRunner::new_with_rng(config(10_000, 0), seeded),
        );
        assert!(
            found.is_err(),
            "{mistake}: 10,000 sequences did not find this mistake"
        );
    }
}
