//! The texts of the scripts that differ from format to format, and of those whose answer may be a vote.

use std::sync::LazyLock;

use crate::node::{Lua, Remembered, Together};

/// The scripts that differ from format to format.
pub(super) struct Scripts {
    pub(super) acquire: Voting,
    pub(super) acquire_all: Voting,
    pub(super) count: Lua,
    pub(super) release: Lua,
    /// Acquires and releases, many at once.
    pub(super) together: Voting,
    pub(super) renew: Voting,
    pub(super) retake: Voting,
    pub(super) raise: Lua,
}

/// A script whose answer may be a vote.
pub(super) struct Voting {
    plain: Lua,
    /// Where the server's memory counts.
    voting: Lua,
}

/// Whether the server remembers what it was vetted for.
const REMEMBERS: &str = include_str!("../../lua/remembers.lua");

/// The end of a script, or a step, whose server has forgotten that.
const OR_NOTHING: &str = "if not remembers then\n  return {-1}\nend\n";

impl Voting {
    /// Does nothing where the server does not remember.
    pub(super) fn or_nothing(body: &str) -> Self {
        Self { plain: Lua::new(body), voting: Lua::new(&[REMEMBERS, OR_NOTHING, body].concat()) }
    }

    /// Does its work, and tells whether the server remembers.
    pub(super) fn telling(body: &str) -> Self {
        let told = [REMEMBERS, "local function work()\n", body, "end\nreturn {remembers and 1 or 0, work()}\n"];
        Self { plain: Lua::new(body), voting: Lua::new(&told.concat()) }
    }

    /// The two scripts as steps of a third.
    fn together(acquire: &str, release: &str) -> Self {
        let frame = include_str!("../../lua/together.lua").replace("-- release.lua", release);
        let voting = [REMEMBERS, &frame.replace("-- acquire.lua", &[OR_NOTHING, acquire].concat())];
        Self { plain: Lua::new(&frame.replace("-- acquire.lua", acquire)), voting: Lua::new(&voting.concat()) }
    }

    pub(super) fn for_vote(&self, vote: Option<&Remembered>) -> &Lua {
        if vote.is_some() { &self.voting } else { &self.plain }
    }
}

pub(super) static REDISSON: LazyLock<Scripts> = LazyLock::new(|| Scripts {
    acquire: Voting::or_nothing(include_str!("../../lua/acquire.lua")),
    acquire_all: Voting::or_nothing(include_str!("../../lua/acquire_all.lua")),
    count: Lua::new(include_str!("../../lua/count.lua")),
    release: Lua::new(include_str!("../../lua/release.lua")),
    together: Voting::together(include_str!("../../lua/acquire.lua"), include_str!("../../lua/release.lua")),
    renew: Voting::telling(include_str!("../../lua/renew.lua")),
    retake: Voting::telling(include_str!("../../lua/retake.lua")),
    raise: Lua::new(include_str!("../../lua/raise.lua")),
});
pub(super) static PLAIN: LazyLock<Scripts> = LazyLock::new(|| Scripts {
    acquire: Voting::or_nothing(include_str!("../../lua/plain_acquire.lua")),
    acquire_all: Voting::or_nothing(include_str!("../../lua/plain_acquire_all.lua")),
    count: Lua::new(include_str!("../../lua/plain_count.lua")),
    release: Lua::new(include_str!("../../lua/plain_release.lua")),
    together: Voting::together(
        include_str!("../../lua/plain_acquire.lua"),
        include_str!("../../lua/plain_release.lua"),
    ),
    renew: Voting::telling(include_str!("../../lua/plain_renew.lua")),
    retake: Voting::telling(include_str!("../../lua/plain_retake.lua")),
    raise: Lua::new(include_str!("../../lua/plain_raise.lua")),
});

impl Scripts {
    /// The script that does it together with others.
    pub(super) fn shared(&'static self, name: &'static str) -> Together {
        Together { name, lua: &self.together.plain, voting: &self.together.voting }
    }
}
