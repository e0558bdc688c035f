//! A real server and a store that are given the same sequence.

use std::collections::{BTreeMap, HashSet};
use std::sync::mpsc::{Receiver, channel};

use redis::{Connection, Pipeline, PushInfo, Value as Raw};

use self::server::Server;
use super::mutants::Mutant;
use super::sequences::{BEGINNING, Foreign, KEYS, Step, heard};
use crate::command::{Answer, Command, MEMORY};
use crate::error::{Error, ServerErrorKind};
use crate::node::{Lua, Outcome, Reply, returned};
use crate::script::call;
use crate::script::reading::read;
use crate::script::words::{Topology, Words};
use crate::testing::{Ears, Failure, Store, Value};

#[path = "../../../tests/common/clock.rs"]
#[allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "it is for all tests")]
mod clock;
#[path = "../../../tests/common/server.rs"]
#[allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "it is for all tests")]
mod server;

/// Returns all keys, with the content and PTTL of each, and deletes them.
const STATE: &str = "
local state = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key)['ok']
  local texts = {}
  if kind == 'string' then texts = {redis.call('GET', key)} end
  if kind == 'hash' then texts = redis.call('HGETALL', key) end
  if kind == 'zset' then texts = redis.call('ZRANGE', key, 0, -1) end
  state[#state + 1] = {key, kind, redis.call('PTTL', key), texts}
end
redis.call('FLUSHALL')
return state";

/// The number of subscribers to the channel of the first lock.
const LISTENING: u64 = 3;

/// The number of each send, and the name of the server.
const NUMBER: &str = "1";
const NAME: &str = "redis://server";

/// The outcome of a command.
#[derive(Debug, Clone, PartialEq)]
enum Came {
    Answer(Answer),
    /// An error of this kind. With its text only if the key is not a lock.
    Refused(ServerErrorKind, String),
    Unreadable,
}

/// A key as it stands on a server: its type, its PTTL, and its texts.
type State = BTreeMap<String, (String, i64, Vec<Vec<u8>>)>;

/// Everything that can be observed of a sequence.
#[derive(Debug, PartialEq)]
struct Seen {
    came: Vec<Came>,
    /// Each with its channel.
    messages: Vec<(String, String)>,
    state: State,
}

pub(super) struct Pair {
    server: Server,
    /// It is subscribed too, so messages arrive in their order.
    connection: Connection,
    messages: Receiver<PushInfo>,
    /// Other subscribers to the channel of the first lock.
    _others: Vec<Connection>,
    /// The digests of the scripts that the server has.
    known: HashSet<String>,
    run_id: String,
    second_id: String,
    mutant: Option<Mutant>,
}

impl Pair {
    /// Returns `None`, and prints a line on stderr, if a server's clock cannot be stopped here.
    pub(super) fn start(was_replica: bool, mutant: Option<Mutant>) -> Option<Self> {
        let server = Server::start_with_clock(0, &[])?;
        if was_replica {
            server.command::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
            server.command::<()>(&["REPLICAOF", "NO", "ONE"]);
        }
        let told = |section: &str, name: &str| {
            let info: String = server.command(&["INFO", section]);
            let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.expect("INFO tells it").to_owned()
        };
        let (run_id, second_id) = (told("server", "run_id"), told("replication", "master_replid2"));
        let client = redis::Client::open(format!("{}/?protocol=resp3", server.url())).expect("an address");
        let mut connection = client.get_connection().expect("a connection");
        let (sender, messages) = channel();
        connection.set_push_sender(sender);
        for channel in heard() {
            connection.subscribe_resp3(channel).expect("subscribed");
            redis::cmd("PING").exec(&mut connection).expect("an answer, and before it the confirmation");
            messages.recv().expect("the confirmation");
        }
        let _others = (1..LISTENING).map(|_| {
            let mut other = client.get_connection().expect("a connection");
            other.subscribe_resp3(&**KEYS[0].channel()).expect("subscribed");
            redis::cmd("PING").exec(&mut other).expect("an answer, and before it the confirmation");
            other
        });
        let _others = _others.collect();
        Some(Self { server, connection, messages, _others, known: HashSet::new(), run_id, second_id, mutant })
    }

    /// Runs the same steps on both.
    ///
    /// # Errors
    /// How they differ.
    pub(super) fn run(&mut self, steps: &[Step]) -> Result<(), String> {
        let (real, stored) = (self.on_server(steps), self.in_store(steps));
        if real == stored { Ok(()) } else { Err(format!("the server: {real:#?}\nthe store: {stored:#?}")) }
    }

    fn on_server(&mut self, steps: &[Step]) -> Seen {
        let (mut now, mut pipe, mut sent, mut came) = (BEGINNING, Pipeline::new(), Vec::new(), Vec::new());
        self.set_clock(now);
        for step in steps {
            match step {
                Step::Run(command) => {
                    let call = call(command, Words::of(command, Topology::OneServer));
                    self.send(&mut pipe, call.lua(), &call.keys(), &call.args());
                    sent.push(std::slice::from_ref(command));
                }
                Step::Batched(commands) => {
                    self.send_batched(&mut pipe, commands);
                    sent.push(commands);
                }
                Step::Put { key, value, lifetime_ms } => self.put(&mut pipe, key, value, *lifetime_ms),
                Step::Delete(key) => _ = pipe.cmd("DEL").arg(key).ignore(),
                Step::Wait(us) => {
                    came.extend(self.flush(&mut pipe, &mut sent).0);
                    now += us;
                    self.set_clock(now);
                }
            }
        }
        pipe.cmd("EVAL").arg(STATE).arg(0);
        let (last, state) = self.flush(&mut pipe, &mut sent);
        came.extend(last);
        let messages: Vec<PushInfo> = self.messages.try_iter().collect();
        Seen { came, messages: messages.iter().map(told).collect(), state: state.map(read_state).unwrap_or_default() }
    }

    fn set_clock(&self, now: u64) {
        self.server.stop_clock(i64::try_from(now).expect("a time"));
    }

    fn send(&mut self, pipe: &mut Pipeline, lua: &Lua, keys: &[&str], args: &[&str]) {
        if self.known.insert(lua.digest().to_owned()) {
            redis::cmd("SCRIPT").arg("LOAD").arg(lua.text()).exec(&mut self.connection).expect("a script");
        }
        pipe.cmd("EVALSHA").arg(lua.digest()).arg(keys.len()).arg(keys).arg(args).arg(NUMBER);
    }

    /// Sends commands as the batcher does.
    fn send_batched(&mut self, pipe: &mut Pipeline, commands: &[Command]) {
        let all: Vec<Words> = commands.iter().map(|command| Words::of(command, Topology::OneServer)).collect();
        let (mut keys, mut args, mut script) = (Vec::new(), Vec::new(), None);
        for words in &all {
            let batched = words.batched.expect("it may share a script");
            script = Some(batched);
            keys.extend(words.words.keys());
            args.push(batched.name);
            args.extend(words.words.args());
        }
        let (script, vote) = (script.expect("at least one"), all.iter().find_map(|words| words.vote.as_ref()));
        keys.extend(vote.map(|_| MEMORY));
        args.extend(vote.map(|vote| &**vote));
        self.send(pipe, if vote.is_some() { script.voting } else { script.lua }, &keys, &args);
    }

    fn put(&self, pipe: &mut Pipeline, key: &str, value: &Foreign, lifetime_ms: Option<u64>) {
        pipe.cmd("DEL").arg(key).ignore();
        match value {
            Foreign::Text(text) => _ = pipe.cmd("SET").arg(key).arg(text).ignore(),
            Foreign::List => _ = pipe.cmd("RPUSH").arg(key).arg("x").ignore(),
            Foreign::Hash(fields) => {
                for (field, value) in fields {
                    pipe.cmd("HSET").arg(key).arg(field).arg(self.named(value)).ignore();
                }
            }
        }
        if let Some(lifetime_ms) = lifetime_ms {
            pipe.cmd("PEXPIRE").arg(key).arg(lifetime_ms).ignore();
        }
    }

    /// Replaces the placeholders of the server's ids.
    fn named(&self, text: &str) -> String {
        text.replace('%', &self.run_id).replace('=', &self.second_id)
    }

    /// Sends the pipeline. Returns the outcomes of the commands, and the reply behind them.
    fn flush(&mut self, pipe: &mut Pipeline, sent: &mut Vec<&[Command]>) -> (Vec<Came>, Option<Raw>) {
        if pipe.cmd_iter().next().is_none() {
            return (Vec::new(), None);
        }
        let replies: Vec<Raw> = pipe.query(&mut self.connection).expect("replies");
        pipe.clear();
        let mut replies = replies.into_iter();
        let mut came = Vec::new();
        for commands in sent.drain(..) {
            let Some(Raw::BulkString(packed)) = replies.next() else { panic!("a reply that no script gives") };
            let reply = returned(NUMBER, packed).expect("what the script returned").into_outcome(&NAME.into());
            came.extend(
                each(reply, commands).into_iter().zip(commands).map(|(reply, command)| came_of(command, reply)),
            );
        }
        (came, replies.next())
    }

    fn in_store(&self, steps: &[Step]) -> Seen {
        let (mut store, mut now) = (Store::new(&self.run_id, &self.second_id), BEGINNING);
        let (mut came, mut told) = (Vec::new(), Told(Vec::new()));
        for step in steps {
            store.keys.set_clock(now / 1_000);
            match step {
                Step::Run(command) => {
                    came.push(self.came_of_stored(&mut store, now, command, &mut told));
                }
                // The script reads the server's memory once for all steps.
                Step::Batched(commands) if asks(commands) && store.keys.field(MEMORY, "id").is_err() => {
                    came.extend(commands.iter().map(|_| Came::Refused(ServerErrorKind::WrongType, String::new())));
                }
                Step::Batched(commands) => {
                    for command in commands {
                        came.push(self.came_of_stored(&mut store, now, command, &mut told));
                    }
                }
                Step::Put { key, value, lifetime_ms } => self.put_stored(&mut store, key, value, *lifetime_ms),
                Step::Delete(key) => store.keys.delete(key),
                Step::Wait(us) => now += us,
            }
        }
        store.keys.set_clock(now / 1_000);
        Seen { came, messages: told.0, state: store.keys.all().map(stored_state).collect() }
    }

    fn came_of_stored(&self, store: &mut Store, now: u64, command: &Command, told: &mut Told) -> Came {
        let answer = match self.mutant {
            Some(mutant) => mutant.run(store, now, command, told),
            None => store.run(now, command, told),
        };
        match answer {
            Ok(answer) => Came::Answer(answer),
            Err(Failure::Unreadable) => Came::Unreadable,
            Err(Failure::Refused(message)) => refused(message),
        }
    }

    fn put_stored(&self, store: &mut Store, key: &str, value: &Foreign, lifetime_ms: Option<u64>) {
        store.keys.delete(key);
        match value {
            Foreign::Text(text) => store.keys.set(key, Value::Text(text.as_bytes().to_vec()), None),
            Foreign::List => store.keys.set(key, Value::Other("list"), None),
            Foreign::Hash(fields) => {
                for (field, value) in fields {
                    store.keys.set_field(key, field, &self.named(value)).expect("a hash");
                }
            }
        }
        if let Some(lifetime_ms) = lifetime_ms {
            store.keys.expire(key, lifetime_ms);
        }
    }
}

fn asks(commands: &[Command]) -> bool {
    commands.iter().any(|command| matches!(command, Command::Acquire { vote: Some(_), .. }))
}

/// Returns the reply of each command in a batch, as the batcher reads it.
fn each(reply: Outcome<Reply>, commands: &[Command]) -> Vec<Outcome<Reply>> {
    match reply {
        Outcome::Done(Reply::Array(items)) if commands.len() > 1 => {
            items.into_iter().map(|item| item.into_outcome(&NAME.into())).collect()
        }
        all => vec![all; commands.len()],
    }
}

fn came_of(command: &Command, reply: Outcome<Reply>) -> Came {
    match read(&NAME.into(), command, reply) {
        Outcome::Done(answer) => Came::Answer(answer),
        Outcome::Refused(Error::Server { source, .. }) => refused(source.message),
        Outcome::Unknown(_) => Came::Unreadable,
        other => panic!("{command:?}: {other:?}"),
    }
}

fn refused(message: String) -> Came {
    let is_of_a_lock = message.starts_with("WRONGTYPE \"");
    let kind = if message.contains("WRONGTYPE") { ServerErrorKind::WrongType } else { ServerErrorKind::Other };
    Came::Refused(kind, if is_of_a_lock { message } else { String::new() })
}

fn told(message: &PushInfo) -> (String, String) {
    let text = |raw: &[u8]| String::from_utf8_lossy(raw).into_owned();
    match message.data.as_slice() {
        [Raw::BulkString(channel), Raw::BulkString(told)] => (text(channel), text(told)),
        other => panic!("{other:?}"),
    }
}

/// The messages on the channels that are subscribed.
struct Told(Vec<(String, String)>);

impl Ears for Told {
    fn publish(&mut self, channel: &str, text: &str) -> u64 {
        if self.listening(channel) > 0 {
            self.0.push((channel.to_owned(), text.to_owned()));
        }
        self.listening(channel)
    }

    fn listening(&self, channel: &str) -> u64 {
        let heard = heard().iter().position(|heard| heard == channel);
        heard.map_or(0, |at| if at == 0 { LISTENING } else { 1 })
    }
}

fn read_state(state: Raw) -> State {
    let keys: Vec<(String, String, i64, Vec<Vec<u8>>)> = redis::from_redis_value(state).expect("keys");
    keys.into_iter()
        .map(|(key, kind, ttl, texts)| {
            let texts = sorted(&kind, texts);
            (key, (kind, ttl, texts))
        })
        .collect()
}

fn stored_state((key, value, ttl): (&str, &Value, Option<u64>)) -> (String, (String, i64, Vec<Vec<u8>>)) {
    let (kind, texts) = match value {
        Value::Text(text) => ("string", vec![text.clone()]),
        Value::Hash(fields) => {
            ("hash", fields.iter().flat_map(|(field, value)| [field.clone(), value.clone()]).collect())
        }
        Value::Sorted(members) => ("zset", members.iter().map(|member| member.name.as_bytes().to_vec()).collect()),
        Value::Other(kind) => (*kind, Vec::new()),
    };
    let ttl = ttl.map_or(-1, |ttl| i64::try_from(ttl).expect("a time"));
    (key.to_owned(), (kind.to_owned(), ttl, sorted(kind, texts)))
}

/// Sorts the fields of a hash by name: a server orders a large one in its own way.
fn sorted(kind: &str, texts: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    if kind != "hash" {
        return texts;
    }
    let mut fields: Vec<_> = texts.chunks(2).map(<[_]>::to_vec).collect();
    fields.sort();
    fields.concat()
}
