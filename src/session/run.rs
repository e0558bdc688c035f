//! A critical section of `run`: which owner it locks as, its turn among the runs of that owner, and
//! the guards that outlive it.

use std::sync::Arc;

use super::{Session, jobs};
use crate::error::Error;
use crate::identity::{Caller, Known, Scope, TurnHeld};
use crate::key::Key;
use crate::kind::Kind;
use crate::options::Reentry;
use crate::owner::Owner;

/// A run in progress, from before it locks until after it has released.
#[derive(Debug)]
pub(crate) struct Run {
    session: Arc<Session>,
    caller: Caller,
    scope: Scope,
    /// The owner that gets the guards that outlive the section, if the run's own owner ends with
    /// it.
    heir: Option<Owner>,
    turn: Option<Arc<TurnHeld>>,
}

impl Session {
    /// Waits for the turn of a run of these locks, which are in order.
    ///
    /// In a scope, and for a handle that names an owner, it runs as that owner. Otherwise, if its
    /// task holds one of the locks by a guard, it re-enters as the task. Otherwise it is an owner
    /// of its own, so that runs of one task exclude each other.
    ///
    /// # Errors
    /// As for a lock of the same caller; [`Error::Config`] for a run that would wait for the run
    /// that it is inside of.
    pub(crate) async fn begin_run(
        self: &Arc<Self>,
        keys: Arc<[Key]>,
        kind: &Kind,
        named: Option<&Owner>,
        reentry: Reentry,
    ) -> Result<Run, Error> {
        self.enter()?;
        let mut caller = Caller::polling(named, reentry).await?;
        if let Some(key) = keys
            .iter()
            .find(|key| caller.runs.innermost(self.id, key).is_some())
            && caller.origin.known == Known::Fresh
        {
            return Err(Error::config(
                "run",
                format!(
                    "a run of {key:?} inside a run of {key:?} would wait for itself, since Reentry::Never allows no \
                     re-entry"
                ),
            ));
        }
        let by_guard = |key| {
            self.lines.has_hold(key, |hold| {
                hold.guards() > 0 && hold.is_owned_by(&caller.owner)
            })
        };
        let mut heir = None;
        let own = match caller.origin.known {
            Known::Calling => !keys.iter().any(by_guard),
            Known::Fresh => true,
            Known::Named | Known::Run => false,
        };
        if own {
            heir = Some(std::mem::replace(&mut caller.owner, Owner::of_run()));
            caller.origin.known = Known::Run;
        }
        // The runs that this run is inside of now are the same when its turn comes.
        let (runs, around) = caller.runs.standing();
        caller.runs = runs;
        let mut turns = Vec::with_capacity(keys.len());
        // The keys are in order, so two runs never wait for each other. Reads are inside together.
        for key in keys.iter().filter(|_| !kind.shares()) {
            let inside = caller.runs.innermost_turn(self.id, key);
            match self.turns.take(key, &caller.owner, inside).await {
                Some(turn) => turns.push(turn),
                None => return Err(self.check_open().err().unwrap_or(Error::Closed)),
            }
        }
        let (runs, turn) = caller.runs.begin(self.id, keys, turns, around);
        let scope = Scope {
            owner: caller.owner.clone(),
            runs,
        };
        Ok(Run {
            session: Arc::clone(self),
            caller,
            scope,
            heir,
            turn: Some(turn),
        })
    }
}

impl Run {
    /// Returns the caller as which the run itself locks.
    pub(crate) fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Returns the scope by which calls inside this run are known.
    pub(crate) fn scope(&self) -> Scope {
        self.scope.clone()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let turn = self.turn.take();
        if self.session.is_forked() {
            // A mutex that was held at the fork is never released here.
            std::mem::forget(turn);
            return;
        }
        // If something inside the run is left behind, it keeps its owner: the caller's next run has
        // to wait for it.
        let (Some(heir), Some(_turn)) = (&self.heir, turn.and_then(Arc::into_inner)) else {
            return;
        };
        // The turn lasts until the guards are passed on: the next run of this owner has to find
        // that done.
        let owner = &self.caller.owner;
        let place = self.caller.origin.context;
        for key in owner.noted() {
            for hold in self.session.lines.holds_of(&key) {
                hold.pass_on(owner, heir, place);
                // Its new owner may wait for it in the other role.
                jobs::recall(&self.session, &hold);
            }
        }
    }
}
