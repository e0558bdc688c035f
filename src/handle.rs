//! The common part of the handles and guards of one lock and of several: how a call locks, runs a section, and
//! releases.

mod calling;
mod spans;

use std::fmt::{self, Display};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub(crate) use self::calling::Calling;
use self::spans::HoldSpan;
use crate::clock::Instant;
use crate::error::Error;
use crate::foreign::{self, contained};
use crate::hold::Terms;
use crate::identity::{Caller, Runs, Scope};
use crate::key::Key;
use crate::options::{Reentry, Settings, validate_duration};
use crate::owner::Owner;
use crate::session::{Alive, Held, Session};

/// What a handle locks: one key, or several.
pub(crate) trait Wanted {
    /// The proof that it is held.
    type Grip: Held;

    /// Returns the names, sorted.
    fn keys(&self) -> &[Key];

    /// Takes the lock or locks. Returns `None` if somebody else still holds one when the call's wait is over.
    async fn take(
        &self,
        session: &Arc<Session>,
        caller: &Caller,
        terms: &Terms,
        calling: &Calling<'_>,
    ) -> Result<Option<Self::Grip>, Error>;
}

/// How long a call waits for a lock that somebody else holds.
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

    /// Returns when the wait of a call that came then is over. One attempt has no such time.
    fn end(self, came: Instant) -> Option<Instant> {
        match self {
            Self::For(wait) => Some(came + wait),
            Self::Never | Self::Always => None,
        }
    }

    fn operation(self) -> &'static str {
        match self {
            Self::Never => "try_lock",
            Self::For(_) => "try_lock_for",
            Self::Always => "lock",
        }
    }
}

/// One name or several, and how they are locked.
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

    pub(crate) fn settings(&self) -> &Settings {
        self.session().settings()
    }
}

impl<W: Wanted> Handle<W> {
    pub(crate) async fn take(&self, wait: Wait) -> Result<Option<Taken<W::Grip>>, Error> {
        let calling = self.calling(wait);
        // Boxed: its task has room for this only while it waits, and not while it holds the lock.
        let mut taking = Box::pin(async {
            let (owner, reentry) = self.manner.asks(self.settings());
            let caller = Caller::polling(owner, reentry).await?;
            self.take_as(&caller, &calling).await
        });
        let taken = calling.inside(taking.as_mut()).await;
        drop(taking);
        let taken = self.held(calling.ended(taken, Taken::is_reentry));
        // A grant comes from a server. Giving way before it is asked would change the order of callers.
        if !matches!(taken, Ok(Some(_))) {
            foreign::give_way().await;
        }
        taken
    }

    pub(crate) fn take_blocking(&self, wait: Wait) -> Result<Option<Taken<W::Grip>>, Error> {
        let calling = self.calling(wait);
        let (owner, reentry) = self.manner.asks(self.settings());
        let caller = Caller::blocking(owner, reentry);
        let taken = self.session().block_on(calling.inside(pin!(self.take_as(&caller, &calling))));
        self.held(calling.ended(taken, Taken::is_reentry))
    }

    /// Begins the span of a hold, beside that of the wait.
    fn held(&self, taken: Result<Option<Taken<W::Grip>>, Error>) -> Result<Option<Taken<W::Grip>>, Error> {
        taken.map(|taken| taken.map(|taken| self.in_span(taken)))
    }

    fn in_span(&self, mut taken: Taken<W::Grip>) -> Taken<W::Grip> {
        taken.span = HoldSpan::of(&taken.grip, self.wanted.keys(), self.manner.class);
        taken
    }

    fn calling(&self, wait: Wait) -> Calling<'_> {
        Calling::begin(self.session(), wait, self.wanted.keys(), self.manner.class)
    }

    async fn take_as(&self, caller: &Caller, calling: &Calling<'_>) -> Result<Option<Taken<W::Grip>>, Error> {
        calling.is_by(&caller.owner);
        let terms = self.terms()?;
        let grip = match self.wanted.take(self.session(), caller, &terms, calling).await {
            Ok(grip) => grip,
            // Boxed, as everything is that few calls come to: there is room for it while a call waits.
            Err(error) => return Err(Box::pin(self.refused(error, calling)).await),
        };
        // Nothing is awaited from here on: a grip that no caller gets is dropped before its `min_hold` begins.
        if let (Some(grip), Some(min_hold)) = (&grip, self.manner.min_hold) {
            grip.keep_for(min_hold);
        }
        if let (Some(grip), Some(class)) = (&grip, self.manner.class) {
            grip.is_of_class(class);
        }
        let (alive, span) = (Arc::clone(&self.alive), HoldSpan::default());
        Ok(grip.map(|grip| Taken { grip, alive, runs: caller.runs.clone(), span }))
    }

    /// Returns the error of a call, once it may be told.
    async fn refused(&self, error: Error, calling: &Calling<'_>) -> Error {
        if matches!(error, Error::Server { .. }) {
            self.session().pace_refusal(calling.deadline()).await;
        }
        error.of(self.wanted.keys())
    }

    /// Runs a section with this `view` while the lock is held, and drops the section if the lock is lost. Keeps the
    /// lock for as long as `keep` wants for the section's value, from then on. Returns `None` if somebody else still
    /// holds it when the wait is over.
    pub(crate) async fn run<V, T, Fut>(
        &self,
        wait: Wait,
        view: impl FnOnce(&W::Grip, Scope) -> V,
        section: impl FnOnce(V) -> Fut,
        keep: impl FnOnce(&T) -> Option<Duration>,
    ) -> Result<Option<T>, Error>
    where
        Fut: Future<Output = T>,
    {
        let calling = self.calling(wait);
        // Boxed: sections nest, and each would hold the wait of those around it.
        let mut beginning = Box::pin(async {
            // Bad terms are reported before anything is awaited.
            self.terms()?;
            let (owner, reentry) = self.manner.asks(self.settings());
            let turn = self.session().begin_run(self.wanted.keys().into(), owner, reentry);
            let Some(run) = self.session().in_time(calling.end_of_turn(), turn).await else { return Ok(None) };
            let run = run?;
            let taken = self.take_as(run.caller(), &calling).await?;
            Ok(taken.map(|taken| (run, taken)))
        });
        let begun = calling.inside(beginning.as_mut()).await;
        drop(beginning);
        let (run, taken) = match calling.ended(begun, |(_, taken)| taken.is_reentry()) {
            Ok(Some((run, taken))) => (run, self.in_span(taken)),
            refused => {
                foreign::give_way().await;
                return refused.map(|_| None);
            }
        };
        let lost = taken.grip.token();
        let view = view(&taken.grip, run.scope());
        let work = run.scope().run(async { section(view).await });
        let work = pin!(until_lost(lost, work));
        let Some(value) = foreign::in_span(taken.span.span(), work).await else {
            // The token has fired, so there is a loss to report.
            let lost = Err(taken.grip.check().err().unwrap_or(Error::Closed));
            let Taken { grip, alive: _alive, span, .. } = taken;
            drop(grip);
            span.ended(&lost);
            return lost.map(|()| None);
        };
        if let Some(kept) = keep(&value) {
            taken.grip.keep_for(kept);
        }
        self.done(value, taken.unlock().await).map(Some)
    }

    /// Does the same as [`run`](Self::run) for a thread: it is the owner, and nothing stops the section.
    pub(crate) fn run_blocking<V, T>(
        &self,
        view: impl FnOnce(&W::Grip, Scope) -> V,
        section: impl FnOnce(V) -> T,
    ) -> Result<T, Error> {
        let taken = self.take_blocking(Wait::Always)?.ok_or(Error::Closed)?;
        let scope = Scope { owner: taken.grip.owner(), runs: taken.runs.clone() };
        let value = section(view(&taken.grip, scope));
        self.done(value, taken.blocking_unlock())
    }

    /// Returns the value of a section that is done, by what its release found.
    fn done<T>(&self, value: T, released: Result<(), Error>) -> Result<T, Error> {
        let shown = names(self.wanted.keys());
        match released {
            Err(error @ Error::Lost { .. }) => {
                contained(|| {
                    tracing::warn!(
                        key = %shown, %error,
                        "the section is done, but its lock was lost: its value is dropped"
                    );
                });
                Err(error)
            }
            // The work is done; the lock is gone from the servers at the end of its lease at the latest.
            Err(error) => {
                contained(
                    || tracing::warn!(key = %shown, %error, "the section is done, but the release is not confirmed"),
                );
                Ok(value)
            }
            Ok(()) => Ok(value),
        }
    }

    /// # Errors
    /// [`Error::Config`] for a name or a time that cannot be used.
    fn terms(&self) -> Result<Terms, Error> {
        let keys = self.wanted.keys();
        if keys.is_empty() {
            return Err(Error::config("keys", "no name of a lock is given; give one or more"));
        }
        keys.iter().try_for_each(Error::unless_named)?;
        if let Some(pair) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::config("keys", format!("{:?} is given twice; give each name once", pair[0])));
        }
        self.manner.terms(self.settings())
    }
}

/// The owner and the times with which locks are taken.
#[derive(Debug, Clone, Default)]
pub(crate) struct Manner {
    pub(crate) owner: Option<Owner>,
    pub(crate) fixed_lease: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Option<Duration>,
    pub(crate) reentry: Option<Reentry>,
    /// A label of metrics and spans.
    pub(crate) class: Option<&'static str>,
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

    /// Returns the owner that the handle names, and the rule that applies if it names none.
    fn asks(&self, settings: &Settings) -> (Option<&Owner>, Reentry) {
        (self.owner.as_ref(), self.reentry.unwrap_or(settings.reentry))
    }
}

/// The content of a guard.
#[derive(Debug)]
pub(crate) struct Taken<G> {
    // The order matters: the grip is dropped first, while the engine still runs.
    pub(crate) grip: G,
    alive: Arc<Alive>,
    /// The runs in which it was taken.
    runs: Runs,
    span: HoldSpan,
}

impl<G: Held> Taken<G> {
    pub(crate) fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F, G> {
        Scope { owner: self.grip.owner(), runs: self.runs.clone() }.run(future)
    }

    fn is_reentry(&self) -> bool {
        self.grip.is_reentry()
    }

    pub(crate) fn blocking_extend(&self, lease: Duration) -> Result<(), Error> {
        self.alive.session().block_on(self.grip.extend(lease))
    }

    pub(crate) async fn unlock(self) -> Result<(), Error> {
        let Self { grip, alive, span, .. } = self;
        let answer = grip.unlock().await;
        span.ended(&answer);
        // The engine has to run until the answer is here.
        drop(alive);
        answer
    }

    pub(crate) fn blocking_unlock(self) -> Result<(), Error> {
        let Self { grip, alive, span, .. } = self;
        let answer = alive.session().block_on(grip.unlock());
        span.ended(&answer);
        answer
    }
}

/// Shows one name as it is, several as a list.
fn names(keys: &[Key]) -> impl Display {
    fmt::from_fn(move |f| match keys {
        [key] => write!(f, "{}", key.shown()),
        keys => write!(f, "{keys:?}"),
    })
}

/// Runs a critical section to its end, or returns `None` at the loss. Each poll checks for the loss first.
async fn until_lost<T>(lost: CancellationToken, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = lost.cancelled() => None,
        value = work => Some(value),
    }
}
