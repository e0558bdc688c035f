//! What the handles of one lock and of several have in common, and their guards: how a call locks, runs a section, and
//! gives back.

use std::fmt::{self, Display};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::{Error, Loss};
use crate::foreign::{self, contained};
use crate::hold::Terms;
use crate::identity::{Caller, Runs, Scope};
use crate::key::Key;
use crate::options::{Reentry, Settings, validate_duration};
use crate::owner::Owner;
use crate::session::{Alive, Held, Session};

/// What a handle locks: one key, or several.
pub(crate) trait Wanted {
    /// What proves that it is held.
    type Grip: Held;

    /// In order.
    fn keys(&self) -> &[Key];

    /// `None`: somebody else still has it after that time.
    async fn take(
        &self,
        session: &Arc<Session>,
        caller: &Caller,
        terms: Terms,
        wait: Wait,
    ) -> Result<Option<Self::Grip>, Error>;
}

/// For how long a call waits for what somebody else holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    Never,
    For(Duration),
    Always,
}

impl Wait {
    pub(crate) fn up_to(wait: Duration) -> Self {
        if wait.is_zero() { Self::Never } else { Self::For(wait) }
    }

    fn operation(self) -> &'static str {
        match self {
            Self::Never => "try_lock",
            Self::For(_) => "try_lock_for",
            Self::Always => "lock",
        }
    }
}

/// A name, or several, and how they are locked.
#[derive(Debug, Clone)]
pub(crate) struct Handle<W> {
    alive: Arc<Alive>,
    pub(crate) wanted: W,
    pub(crate) manner: Manner,
}

impl<W> Handle<W> {
    pub(crate) fn new(alive: Arc<Alive>, wanted: W) -> Self {
        Self { alive, wanted, manner: Manner::default() }
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        self.alive.session()
    }

    fn settings(&self) -> &Settings {
        self.session().settings()
    }
}

impl<W: Wanted> Handle<W> {
    pub(crate) async fn take(&self, wait: Wait) -> Result<Option<Taken<W::Grip>>, Error> {
        let (owner, reentry) = self.manner.asks(self.settings());
        self.take_as(Caller::polling(owner, reentry).await?, wait).await
    }

    pub(crate) fn take_blocking(&self, wait: Wait) -> Result<Option<Taken<W::Grip>>, Error> {
        let (owner, reentry) = self.manner.asks(self.settings());
        self.session().block_on(self.take_as(Caller::blocking(owner, reentry), wait))
    }

    async fn take_as(&self, caller: Caller, wait: Wait) -> Result<Option<Taken<W::Grip>>, Error> {
        let span = span(wait.operation(), self.wanted.keys(), &caller.owner);
        let taking = self.wanted.take(self.session(), &caller, self.terms()?, wait);
        let grip = foreign::in_span(span, pin!(taking)).await?;
        // Nothing is awaited from here on: what no caller gets is given back, and not kept.
        if let (Some(grip), Some(min_hold)) = (&grip, self.manner.min_hold) {
            grip.keep_for(min_hold);
        }
        Ok(grip.map(|grip| Taken { grip, alive: Arc::clone(&self.alive), runs: caller.runs }))
    }

    /// Runs a section of this `view` while it is held, and drops it where it stands if it is lost.
    pub(crate) async fn run<V, T, Fut>(
        &self,
        view: impl FnOnce(&W::Grip, Scope) -> V,
        section: impl FnOnce(V) -> Fut,
    ) -> Result<T, Error>
    where
        Fut: Future<Output = T>,
    {
        // Before anything is waited for.
        self.terms()?;
        let (owner, reentry) = self.manner.asks(self.settings());
        let run = self.session().begin_run(self.wanted.keys().into(), owner, reentry).await?;
        let taken = self.take_as(run.caller().clone(), Wait::Always).await?.ok_or(Error::Closed)?;
        let lost = taken.grip.token();
        let view = view(&taken.grip, run.scope());
        let work = run.scope().run(async { section(view).await });
        let Some(value) = until_lost(lost, work).await else {
            // The token has fired, so there is a loss to be named.
            return Err(Error::Lost(taken.grip.state().loss().unwrap_or(Loss::Expired)));
        };
        match taken.unlock().await {
            Err(Error::Lost(loss)) => Err(Error::Lost(loss)),
            // The work is done; the lock is gone from the servers at the end of its lease at the latest.
            Err(error) => {
                let shown = names(self.wanted.keys());
                contained(
                    || tracing::warn!(key = %shown, %error, "the section is done, but the release is not confirmed"),
                );
                Ok(value)
            }
            Ok(()) => Ok(value),
        }
    }

    /// # Errors
    /// [`Error::Config`] for a name or a time that cannot be.
    fn terms(&self) -> Result<Terms, Error> {
        let keys = self.wanted.keys();
        if keys.is_empty() {
            return Err(Error::config("keys", "no name of a lock is given; give one or more"));
        }
        keys.iter().try_for_each(Key::validate)?;
        if let Some(pair) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::config("keys", format!("{:?} is given twice; give each name once", pair[0])));
        }
        self.manner.terms(self.settings())
    }
}

/// As whom, and for how long, locks are taken.
#[derive(Debug, Clone, Default)]
pub(crate) struct Manner {
    pub(crate) owner: Option<Owner>,
    pub(crate) fixed_lease: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Option<Duration>,
    pub(crate) reentry: Option<Reentry>,
}

impl Manner {
    fn terms(&self, settings: &Settings) -> Result<Terms, Error> {
        if let Some(lease) = self.fixed_lease {
            validate_duration("fixed_lease", lease)?;
            settings.check_quarantine("fixed_lease", lease)?;
        }
        if let Some(max_hold) = self.max_hold {
            validate_duration("max_hold", max_hold)?;
        }
        if let Some(min_hold) = self.min_hold {
            validate_duration("min_hold", min_hold)?;
            settings.check_quarantine("min_hold", min_hold)?;
        }
        Ok(Terms {
            lease: self.fixed_lease.unwrap_or(settings.lease),
            renewed: self.fixed_lease.is_none(),
            max_hold: self.max_hold,
        })
    }

    /// The owner that is named, and what counts where none is.
    fn asks(&self, settings: &Settings) -> (Option<&Owner>, Reentry) {
        (self.owner.as_ref(), self.reentry.unwrap_or(settings.reentry))
    }
}

/// What a guard is made of.
#[derive(Debug)]
pub(crate) struct Taken<G> {
    // The order matters: the grip is dropped first, while the engine still runs.
    pub(crate) grip: G,
    alive: Arc<Alive>,
    /// Those that it was taken in.
    runs: Runs,
}

impl<G: Held> Taken<G> {
    pub(crate) fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F, G> {
        Scope { owner: self.grip.owner(), runs: self.runs.clone() }.run(future)
    }

    pub(crate) async fn unlock(self) -> Result<(), Error> {
        let Self { grip, alive, .. } = self;
        let answer = grip.unlock().await;
        // The engine has to run until then.
        drop(alive);
        answer
    }

    pub(crate) fn blocking_unlock(self) -> Result<(), Error> {
        let Self { grip, alive, .. } = self;
        alive.session().block_on(grip.unlock())
    }
}

/// What the caller waits in; what the engine does for it is logged by itself.
fn span(operation: &'static str, keys: &[Key], owner: &Owner) -> foreign::Span {
    match keys {
        [key] => foreign::span(|| tracing::debug_span!("lockhound", operation, key = %key.shown(), %owner)),
        keys => foreign::span(|| tracing::debug_span!("lockhound", operation, ?keys, %owner)),
    }
}

/// One name as it is, several as a list.
fn names(keys: &[Key]) -> impl Display {
    fmt::from_fn(move |f| match keys {
        [key] => write!(f, "{}", key.shown()),
        keys => write!(f, "{keys:?}"),
    })
}

/// Runs a critical section to its end, or to the loss, which is looked at first, every time: then `None`.
async fn until_lost<T>(lost: CancellationToken, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = lost.cancelled() => None,
        value = work => Some(value),
    }
}
