//! Contention: how fast a lock goes from one waiter to the next, what that costs, and whether all
//! waiters get it.
//!
//! The contenders are processes of their own, of this program or in another language. Each notes
//! when it held the lock, by a clock that all of them share. The results of a slot are computed
//! here from all these notes.

mod bars;
mod crew;
mod hand_over;
mod line;
pub(crate) mod member;
mod outsider;
mod picture;
mod plan;
mod process;
mod read_write;
mod round;
mod table;

use std::collections::BTreeMap;

use serde::Serialize;

use self::crew::Running;
use self::hand_over::HandOver;
use self::member::UNLISTED;
use self::plan::{PLANS, Plan};
use self::read_write::READ_WRITE_PLANS;
use self::round::Round;
use crate::Failure;
use crate::server::Server;
use crate::spread::Spread;
use crate::stuck;

const ROUNDS: usize = 3;

/// The name of what is measured beside the contests of [`PLANS`].
const HAND_OVER: &str = "hand-over";
/// The name of the group of contests between readers and writers.
pub(crate) const READ_WRITE: &str = "readwrite";

/// The results of all contests.
#[derive(Debug, Serialize)]
pub(crate) struct Contention {
    pub(crate) contests: Vec<Contest>,
    pub(crate) hand_over: Option<HandOver>,
}

/// The results of one contest.
#[derive(Debug, Serialize)]
pub(crate) struct Contest {
    pub(crate) name: &'static str,
    title: &'static str,
    slot_seconds: f64,
    crews: Vec<Entry>,
    /// The crews that could not run, and why.
    skipped: BTreeMap<&'static str, String>,
}

/// The results of one crew.
#[derive(Debug, Serialize)]
pub(crate) struct Entry {
    name: &'static str,
    has_lockhound: bool,
    /// Keyed by the names of [`FIGURES`].
    figures: BTreeMap<&'static str, Spread>,
    rounds: Vec<Round>,
}

/// How a figure of a round is read.
type Figure = fn(&Round) -> f64;

/// The figures of a round, by name.
const FIGURES: [(&str, Figure); 14] = [
    ("per_second", |round| round.per_second),
    ("scripts", |round| round.scripts),
    ("server_us", |round| round.server_us),
    ("fewest", |round| round.fewest as f64),
    ("most", |round| round.most as f64),
    ("evenness", Round::evenness),
    ("evenness_of_processes", Round::evenness_of_processes),
    ("least_share", Round::least_share),
    ("last_share", Round::last_share),
    ("longest_wait_ms", |round| round.longest_wait_ms),
    ("longest_write_ms", |round| round.longest_write_ms),
    ("write_p99_ms", |round| round.write_p99_ms),
    ("turn_p50_us", |round| round.turn_p50_us),
    ("overlaps", |round| round.overlaps as f64),
];

impl Contention {
    /// Measures the contests for locks and the hand-over between two lockers, or one contest or
    /// group only.
    pub(crate) fn measure(only: Option<&str>) -> Result<Self, Failure> {
        let plans = PLANS.iter().chain(&READ_WRITE_PLANS);
        let plans = plans
            .filter(|plan| only.map_or(!plan.is_named(READ_WRITE), |only| plan.is_named(only)));
        let contests = plans.map(Contest::measure).collect::<Result<_, _>>()?;
        let hand_over = if only.is_none_or(|only| only == HAND_OVER) {
            Some(HandOver::measure()?)
        } else {
            None
        };
        stuck::over();
        Ok(Self {
            contests,
            hand_over,
        })
    }

    fn contest(&self, name: &str) -> Option<&Contest> {
        self.contests.iter().find(|contest| contest.name == name)
    }
}

/// Returns the name of a contest.
///
/// # Errors
/// What to ask for instead, if there is no such contest.
pub(crate) fn contest_named(name: &str) -> Result<&'static str, String> {
    let names = || {
        PLANS
            .iter()
            .chain(&READ_WRITE_PLANS)
            .flat_map(|plan| plan.group().into_iter().chain([plan.name]))
            .chain([HAND_OVER])
    };
    let known = || names().collect::<Vec<_>>().join(", ");
    names()
        .find(|known| *known == name)
        .ok_or_else(|| format!("there is no contest \"{name}\"; there are {}", known()))
}

impl Contest {
    /// Measures a contest on servers of its own. All crews run until its end, and are idle during
    /// the slots of others.
    fn measure(plan: &Plan) -> Result<Self, Failure> {
        let slots = plan.crews.len() * ROUNDS;
        eprintln!(
            "measuring {}: {:.0} s",
            plan.name,
            plan.slot.as_secs_f64() * slots as f64
        );
        let servers = (0..plan.servers)
            .map(|_| Server::start())
            .collect::<Result<Vec<_>, _>>()?;
        let mut controls = servers
            .iter()
            .map(Server::connect)
            .collect::<Result<Vec<_>, _>>()?;
        let urls: Vec<String> = servers.iter().map(Server::url).collect();
        for control in &mut controls {
            let password = format!(">{UNLISTED}");
            let words = [
                "ACL",
                "SETUSER",
                UNLISTED,
                "on",
                &password,
                "~*",
                "+@all",
                "&redisson_lock__channel:*",
            ];
            control.call(&words.map(str::as_bytes))?;
        }
        let (mut running, mut skipped) = (Vec::new(), BTreeMap::new());
        for crew in plan.crews {
            stuck::at(plan.name, crew.name);
            match Running::start(crew, &urls) {
                Ok(crew) => running.push((crew, Vec::with_capacity(ROUNDS))),
                Err(reason) if crew.is_foreign() => {
                    eprintln!("skipped: {}: {reason}", crew.name);
                    skipped.insert(crew.name, reason.to_string());
                }
                Err(failure) => return Err(failure),
            }
        }
        for (crew, _) in &mut running {
            stuck::at(plan.name, crew.name());
            crew.warm_up(plan, &mut controls)?;
        }
        for _ in 0..ROUNDS {
            for (crew, rounds) in &mut running {
                stuck::at(plan.name, crew.name());
                rounds.push(crew.slot(plan, plan.slot, &mut controls)?);
            }
        }
        let crews = running
            .into_iter()
            .map(|(crew, rounds)| Entry::new(crew.name(), crew.has_lockhound(), rounds));
        let (crews, slot_seconds) = (crews.collect(), plan.slot.as_secs_f64());
        Ok(Self {
            name: plan.name,
            title: plan.title,
            slot_seconds,
            crews,
            skipped,
        })
    }

    fn entry(&self, crew: &str) -> Option<&Entry> {
        self.crews.iter().find(|entry| entry.name == crew)
    }

    /// Divides one crew's figure by another's of the same round.
    fn ratio(&self, crew: &str, other: &str, figure: &str) -> Option<Spread> {
        let (crew, other) = (self.entry(crew)?, self.entry(other)?);
        let (_, of) = FIGURES.iter().find(|(key, _)| *key == figure)?;
        Some(Spread::of(
            crew.rounds
                .iter()
                .zip(&other.rounds)
                .map(|(one, other)| of(one) / of(other)),
        ))
    }
}

impl Entry {
    fn new(name: &'static str, has_lockhound: bool, rounds: Vec<Round>) -> Self {
        let figures = FIGURES
            .iter()
            .map(|(key, of)| (*key, Spread::of(rounds.iter().map(of))))
            .collect();
        Self {
            name,
            has_lockhound,
            figures,
            rounds,
        }
    }

    /// # Panics
    /// If there is no such figure, which is a bug of this program.
    fn figure(&self, key: &str) -> Spread {
        self.figures[key]
    }
}
