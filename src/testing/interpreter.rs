//! Runs scripts in the interpreter that Redis has, over keys that live in it (`redis.lua`).
//!
//! The keys are there, and not in Rust, because crossing from one to the other for each command
//! costs several times the command in a build that is not optimized. A script crosses twice. Values
//! are converted as Redis converts them
//! (<https://redis.io/docs/latest/develop/programmability/lua-api/>): nil is false in Lua, a number
//! loses its fraction in a reply, and a table ends at its first nil.

use std::collections::BTreeMap;

use mlua::{
    BString, Error, FromLuaMulti, Function, IntoLuaMulti, LuaOptions, LuaString, StdLib, Table,
    Value,
};

use crate::lua::sha1;
use crate::sync::Arc;

/// What a Redis is for scripts.
pub(super) const REDIS: &str = include_str!("redis.lua");

/// What a script returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Resp {
    Nil,
    Int(i64),
    Text(Vec<u8>),
    Array(Vec<Self>),
    Error(String),
}

/// The subscribers of a server's channels.
pub(super) trait PubSub: Send + Sync + 'static {
    /// Sends a message to the subscribers of a channel, and returns their number.
    fn publish(&self, channel: &[u8], text: &[u8]) -> usize;
    /// Returns the number of subscribers of a channel.
    fn listening(&self, channel: &[u8]) -> usize;
}

/// An interpreter with the keys of a server, and the scripts that it knows.
pub(super) struct Interpreter {
    lua: mlua::Lua,
    /// What `redis.lua` offers.
    server: Table,
    run: Function,
    /// By the addresses of their texts.
    scripts: BTreeMap<usize, Function>,
}

/// All keys of a server.
#[derive(Debug, Clone)]
pub(super) struct Keys(Resp);

impl Interpreter {
    /// Makes an interpreter for a server without keys, with these ids.
    pub(super) fn new(run_id: &str, second_id: &str, pub_sub: Arc<impl PubSub>) -> Self {
        let made = Self::of(REDIS, pub_sub).expect("redis.lua is read");
        made.name(run_id, second_id);
        made
    }

    /// Makes an interpreter with this text of `redis.lua`.
    pub(super) fn of(redis: &str, pub_sub: Arc<impl PubSub>) -> Result<Self, Error> {
        let libraries = StdLib::STRING | StdLib::TABLE | StdLib::MATH;
        let lua = mlua::Lua::new_with(libraries, LuaOptions::default())?;
        let tells = Arc::clone(&pub_sub);
        let publish = lua.create_function(move |_, (channel, text): (BString, BString)| {
            Ok(tells.publish(&channel, &text))
        })?;
        let subscribers =
            lua.create_function(move |_, channel: BString| Ok(pub_sub.listening(&channel)))?;
        let sha1hex = lua.create_function(|_, text: BString| Ok(sha1(&text)))?;
        let redis = lua.load(redis).set_name("@redis.lua");
        let server: Table = redis.call((sha1hex, publish, subscribers))?;
        Ok(Self {
            run: server.get("run")?,
            server,
            lua,
            scripts: BTreeMap::new(),
        })
    }

    /// Runs a script while the server's clock shows this time. Its last argument is the number of
    /// its send. Returns what it returns or raises.
    pub(super) fn run(
        &mut self,
        now_us: i64,
        text: &'static str,
        keys: &[String],
        args: &[String],
    ) -> Resp {
        self.try_run(now_us, text, keys, args)
            .unwrap_or_else(|error| Resp::Error(format!("ERR {error}")))
    }

    fn try_run(
        &mut self,
        now_us: i64,
        text: &'static str,
        keys: &[String],
        args: &[String],
    ) -> Result<Resp, Error> {
        let script = match self.scripts.get(&text.as_ptr().addr()) {
            Some(script) => script,
            None => {
                let script = self
                    .lua
                    .load(text)
                    .set_name("@user_script")
                    .into_function()?;
                self.scripts.entry(text.as_ptr().addr()).or_insert(script)
            }
        };
        let (_number, ended_well, returned): (Value, bool, Value) =
            self.run.call((script, now_us, keys, args))?;
        match from_lua(&returned)? {
            Resp::Text(error) if !ended_well => {
                Ok(Resp::Error(String::from_utf8_lossy(&error).into_owned()))
            }
            returned => Ok(returned),
        }
    }

    /// Sets the ids of the server.
    pub(super) fn name(&self, run_id: &str, second_id: &str) {
        self.ask::<()>("name", (run_id, second_id));
    }

    pub(super) fn keys(&self, now_us: i64) -> Keys {
        self.ask::<()>("set_clock", now_us);
        Keys(from_lua(&self.ask("snapshot", ())).expect("values of Redis"))
    }

    pub(super) fn restore(&self, keys: &Keys) {
        self.ask::<()>(
            "restore",
            to_lua(&self.lua, &keys.0).expect("values of Redis"),
        );
    }

    pub(super) fn delete(&self, key: &str) {
        self.ask::<()>("delete", key);
    }

    /// Returns the owner in a lock's key.
    pub(super) fn owner(&self, now_us: i64, key: &str) -> Option<Vec<u8>> {
        self.ask::<()>("set_clock", now_us);
        let owner: Value = self.ask("owner", key);
        owner.as_string().map(|owner| owner.as_bytes().to_vec())
    }

    /// Calls a function of `redis.lua` that does not fail.
    fn ask<T: FromLuaMulti>(&self, function: &str, args: impl IntoLuaMulti) -> T {
        self.server
            .get::<Function>(function)
            .and_then(|function| function.call(args))
            .expect("it does not fail")
    }
}

impl Keys {
    pub(super) const fn none() -> Self {
        Self(Resp::Array(Vec::new()))
    }

    /// Returns the name of each key, in no order.
    pub(super) fn names(&self) -> Vec<String> {
        let Self(Resp::Array(keys)) = self else {
            return Vec::new();
        };
        let name = |key: &Resp| match key {
            Resp::Array(words) => match words.first() {
                Some(Resp::Text(name)) => Some(String::from_utf8_lossy(name).into_owned()),
                _ => None,
            },
            _ => None,
        };
        keys.iter().filter_map(name).collect()
    }
}

fn to_lua(lua: &mlua::Lua, value: &Resp) -> Result<Value, Error> {
    match value {
        Resp::Nil => Ok(Value::Boolean(false)),
        Resp::Error(error) => lua
            .create_table_from([("err", error.as_str())])
            .map(Value::Table),
        Resp::Int(number) => Ok(Value::Integer(*number)),
        Resp::Text(text) => lua.create_string(text).map(Value::String),
        Resp::Array(items) => {
            let items: Vec<_> = items
                .iter()
                .map(|item| to_lua(lua, item))
                .collect::<Result<_, _>>()?;
            lua.create_sequence_from(items).map(Value::Table)
        }
    }
}

fn from_lua(value: &Value) -> Result<Resp, Error> {
    Ok(match value {
        Value::Boolean(true) => Resp::Int(1),
        Value::Integer(number) => Resp::Int(*number),
        #[expect(clippy::cast_possible_truncation, reason = "a reply has no fractions")]
        Value::Number(number) => Resp::Int(*number as i64),
        Value::String(text) => Resp::Text(text.as_bytes().to_vec()),
        Value::Table(table) => match table.raw_get::<Option<LuaString>>("err")? {
            Some(error) => Resp::Error(error.to_string_lossy()),
            None => {
                let items = table.sequence_values().map(|item| from_lua(&item?));
                Resp::Array(items.collect::<Result<_, _>>()?)
            }
        },
        _ => Resp::Nil,
    })
}
