//! The reasons why Sentinels would not replace their master, or not soon enough. Pure.

use std::time::Duration;

use crate::cases::{Case, Wanted};
use crate::found::{Finding, SentinelReport, ServerReport};
use crate::promise::Reason;

/// With fewer Sentinels than this, the rest is no majority that can order a failover.
const FEWEST: u64 = 3;

/// About how long a failover takes once the master counts as gone.
const FAILOVER: Duration = Duration::from_secs(1);

impl Wanted {
    /// Judges whether the Sentinels of this master would replace it soon enough for its locks to be
    /// renewed in time.
    pub(crate) fn sentinels_of(&self, at: &ServerReport) -> Case {
        let mut case = self.locking_of(at);
        if at.failure.is_some() {
            return case;
        }
        if at.online() == Some(0) {
            case.breaks(
                at,
                "has no replica in step that could take its place",
                "a replica for the master",
            );
        }
        for sentinel in &at.sentinels {
            self.sentinel_of(sentinel, &at.sentinels, &mut case);
        }
        case
    }

    fn sentinel_of(&self, sentinel: &SentinelReport, all: &[SentinelReport], case: &mut Case) {
        let SentinelReport {
            master,
            down_after,
            quorum,
            others,
            ..
        } = sentinel;
        let mut add = |problem: String, remedy: Option<&str>| {
            let (node, remedy) = (Some(sentinel.node.clone()), remedy.map(str::to_owned));
            case.broken.push(Reason {
                node,
                problem,
                remedy,
            });
        };
        let Finding::Known(named) = master else {
            let why = match master {
                Finding::Unknown(why) => why.clone(),
                _ => "its user may not ask for the master".to_owned(),
            };
            return add(
                format!("the Sentinel {} has no say: {why}", sentinel.node),
                Some("repair it, or list another"),
            );
        };
        let other = all
            .iter()
            .find(|other| other.master.known().is_some_and(|other| other != named));
        if let Some(SentinelReport {
            node,
            master: Finding::Known(other),
            ..
        }) = other
        {
            let problem = format!(
                "the Sentinel {} names {named}, and {node} names {other}",
                sentinel.node
            );
            add(
                problem,
                Some("let the Sentinels reach each other and the master, `SENTINEL CKQUORUM name`"),
            );
        }
        let sentinels = others.known().map(|others| others + 1);
        if let Some(sentinels @ ..FEWEST) = sentinels {
            let problem = format!(
                "the Sentinel {} knows of {sentinels} in all: no majority without one",
                sentinel.node
            );
            add(problem, Some("three Sentinels or more"));
        }
        if let (Some(sentinels), Finding::Known(quorum)) = (sentinels, quorum)
            && *quorum > sentinels
        {
            let problem = format!(
                "the Sentinel {} wants {quorum} of {sentinels} to agree",
                sentinel.node
            );
            add(
                problem,
                Some("a smaller quorum, `SENTINEL SET name quorum`"),
            );
        }
        if let Finding::Known(silence) = down_after
            && *silence + FAILOVER > self.lease / 3
        {
            let (took, lease) = (*silence + FAILOVER, self.lease);
            let problem = format!(
                "the Sentinel {} replaces the master after about {took:?} (down-after-milliseconds and a failover), \
                 and its locks are lost if that is more than a third of their lease, {lease:?}",
                sentinel.node
            );
            let remedy = format!(
                "a shorter `down-after-milliseconds`, or a `lease` of {:?}",
                took * 3
            );
            add(problem, Some(&remedy));
        }
    }
}
