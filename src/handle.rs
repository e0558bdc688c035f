//! The common part of the handles and guards of one lock and of several: how a call locks, runs a
//! section, and releases.

mod calling;
mod spans;

use std::fmt::{self, Display};
use std::future::Future;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub(crate) use self::calling::Calling;
use self::spans::HoldSpan;
use crate::clock::Instant;
use crate::error::Error;
use crate::foreign::{self, log};
use crate::hold::{Terms, Want};
use crate::identity::{Caller, Runs, Scope};
use crate::key::Key;
use crate::kind::{Kind, LockRole};
use crate::options::{Reentry, Settings, validate_duration};
use crate::owner::Owner;
use crate::session::{RawGuards, Session, SharedSession, Views};

/// How long a call waits for a lock that somebody else holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    Never,
    For(Duration),
    Always,
}

impl Wait {
    pub(crate) fn up_to(wait: Duration) -> Self {
        if wait.is_zero() {
            Self::Never
        } else {
            Self::For(wait)
        }
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
pub(crate) struct Handle {
    shared: Arc<SharedSession>,
    /// Sorted.
    pub(crate) keys: Arc<[Key]>,
    pub(crate) options: LockOptions,
}

impl Handle {
    /// Makes the handle of locks in the locker's format.
    pub(crate) fn new(shared: Arc<SharedSession>, keys: Arc<[Key]>) -> Self {
        let options = LockOptions::default();
        Self {
            shared,
            keys,
            options,
        }
    }

    /// Makes the handle of a lock of this kind.
    pub(crate) fn of_kind(shared: Arc<SharedSession>, key: Key, kind: &'static Kind) -> Self {
        let mut handle = Self::new(shared, [key].into());
        handle.options.kind = Some(kind);
        handle
    }

    fn kind(&self) -> &'static Kind {
        self.options.kind.unwrap_or(self.settings().kind)
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        self.shared.session()
    }

    pub(crate) fn shared(&self) -> Arc<SharedSession> {
        Arc::clone(&self.shared)
    }

    pub(crate) fn settings(&self) -> &Settings {
        self.session().settings()
    }

    pub(crate) async fn take(&self, wait: Wait) -> Result<Option<GuardInner>, Error> {
        let calling = self.calling(wait);
        // Boxed: its task has room for this only while it waits, and not while it holds the lock.
        let mut taking = Box::pin(async {
            let (owner, reentry) = self.options.owner_and_reentry(self.settings());
            let caller = Caller::polling(owner, reentry).await?;
            self.take_as(&caller, &calling).await
        });
        let taken = calling.inside(taking.as_mut()).await;
        drop(taking);
        let taken = self.held(calling.ended(taken, GuardInner::is_reentry));
        // A grant comes from a server. Giving way before it is asked would change the order of
        // callers.
        if !matches!(taken, Ok(Some(_))) {
            foreign::give_way().await;
        }
        taken
    }

    pub(crate) fn take_blocking(&self, wait: Wait) -> Result<Option<GuardInner>, Error> {
        let calling = self.calling(wait);
        let (owner, reentry) = self.options.owner_and_reentry(self.settings());
        let caller = Caller::blocking(owner, reentry);
        let taken = self
            .session()
            .block_on(calling.inside(pin!(self.take_as(&caller, &calling))));
        self.held(calling.ended(taken, GuardInner::is_reentry))
    }

    /// Begins the span of a hold, beside that of the wait.
    fn held(&self, taken: Result<Option<GuardInner>, Error>) -> Result<Option<GuardInner>, Error> {
        taken.map(|taken| taken.map(|taken| self.in_span(taken)))
    }

    fn in_span(&self, mut taken: GuardInner) -> GuardInner {
        taken.span = HoldSpan::of(&taken.guards, &self.keys, self.options.class);
        taken
    }

    fn calling(&self, wait: Wait) -> Calling<'_> {
        Calling::begin(
            self.session(),
            self.kind().counted,
            wait,
            &self.keys,
            self.options.class,
        )
    }

    async fn take_as(
        &self,
        caller: &Caller,
        calling: &Calling<'_>,
    ) -> Result<Option<GuardInner>, Error> {
        calling.is_by(&caller.owner);
        let want = self.want()?;
        let guards = match self.take_all(caller, &want, calling).await {
            Ok(guards) => guards,
            // Boxed, as everything is that few calls come to: there is room for it while a call
            // waits.
            Err(error) => return Err(Box::pin(self.refused(error, calling)).await),
        };
        // Nothing is awaited from here on: guards that no caller gets are dropped before their
        // `min_hold` begins.
        if let (Some(guards), Some(min_hold)) = (&guards, self.options.min_hold) {
            guards.keep_for(min_hold);
        }
        if let (Some(guards), Some(class)) = (&guards, self.options.class) {
            guards.is_of_class(class);
        }
        let shared = Arc::clone(&self.shared);
        let span = HoldSpan::default();
        Ok(guards.map(|guards| GuardInner {
            guards,
            shared,
            runs: caller.runs.clone(),
            span,
        }))
    }

    /// Takes the lock or locks. Returns `None` if somebody else still holds one when the call's
    /// wait is over.
    async fn take_all(
        &self,
        caller: &Caller,
        want: &Want,
        calling: &Calling<'_>,
    ) -> Result<Option<RawGuards>, Error> {
        let session = self.session();
        let until = calling.deadline();
        // Boxed, all but the usual one: a call has room for the largest of these futures while it
        // waits.
        match &*self.keys {
            [key] if calling.waits() => Ok(session
                .wait_in_line(key, caller, want, until)
                .await?
                .map(RawGuards::from)),
            [key] => Ok(Box::pin(session.try_lock(key, caller, *want))
                .await?
                .map(RawGuards::from)),
            keys if calling.waits() => Ok(Box::pin(session.lock_all(keys, caller, *want, until))
                .await?
                .and_then(RawGuards::join)),
            keys => Ok(Box::pin(session.try_all(keys, caller, *want))
                .await?
                .and_then(RawGuards::join)),
        }
    }

    /// Returns the error of a call, once it may be told.
    async fn refused(&self, error: Error, calling: &Calling<'_>) -> Error {
        if matches!(error, Error::Server { .. }) {
            self.session().pace_refusal(calling.deadline()).await;
        }
        error.of(&self.keys)
    }

    /// Runs a section while the lock is held, and drops the section if the lock is lost. Keeps the
    /// lock for as long as `keep` wants for the section's value, from then on. Returns `None` if
    /// somebody else still holds it when the wait is over.
    pub(crate) async fn run<T, Fut>(
        &self,
        wait: Wait,
        section: impl FnOnce(Views, Scope) -> Fut,
        keep: impl FnOnce(&T) -> Option<Duration>,
    ) -> Result<Option<T>, Error>
    where
        Fut: Future<Output = T>,
    {
        let calling = self.calling(wait);
        // Boxed: sections nest, and each would hold the wait of those around it.
        let mut beginning = Box::pin(async {
            // Bad terms are reported before anything is awaited.
            self.want()?;
            let (owner, reentry) = self.options.owner_and_reentry(self.settings());
            let turn =
                self.session()
                    .begin_run(Arc::clone(&self.keys), self.kind(), owner, reentry);
            let Some(run) = self.session().in_time(calling.end_of_turn(), turn).await else {
                return Ok(None);
            };
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
        let lost = taken.guards.token();
        let view = taken.guards.view();
        let scope = run.scope();
        let work = run.scope().run(async { section(view, scope).await });
        let work = pin!(until_lost(lost, work));
        let Some(value) = foreign::in_span(taken.span.span(), work).await else {
            // The token has fired, so there is a loss to report.
            let lost = Err(taken.guards.check().err().unwrap_or(Error::Closed));
            let GuardInner {
                guards,
                shared: _shared,
                span,
                ..
            } = taken;
            drop(guards);
            span.ended(&lost);
            return lost.map(|()| None);
        };
        if let Some(kept) = keep(&value) {
            taken.guards.keep_for(kept);
        }
        self.done(value, taken.unlock().await).map(Some)
    }

    /// Does the same as [`run`](Self::run) for a thread: it is the owner, and nothing stops the
    /// section.
    pub(crate) fn run_blocking<T>(
        &self,
        section: impl FnOnce(Views, Scope) -> T,
    ) -> Result<T, Error> {
        // `None` comes only after a deadline, and this call has none.
        let taken = self.take_blocking(Wait::Always)?.ok_or(Error::Closed)?;
        let scope = Scope {
            owner: taken.guards.owner(),
            runs: taken.runs.clone(),
        };
        let value = section(taken.guards.view(), scope);
        self.done(value, taken.blocking_unlock())
    }

    /// Returns the value of a section that is done, by what its release found.
    fn done<T>(&self, value: T, released: Result<(), Error>) -> Result<T, Error> {
        let shown = Names(&self.keys);
        match released {
            Err(error @ Error::Lost { .. }) => {
                log!(warn, key = %shown, %error, "the section is done, but its lock was lost: its value is dropped");
                Err(error)
            }
            // The work is done; the lock is gone from the servers at the end of its lease at the
            // latest.
            Err(error) => {
                log!(warn, key = %shown, %error, "the section is done, but the release is not confirmed");
                Ok(value)
            }
            Ok(()) => Ok(value),
        }
    }

    /// # Errors
    /// [`Error::Config`] for a name or a time that cannot be used.
    fn want(&self) -> Result<Want, Error> {
        let keys = &self.keys;
        if keys.is_empty() {
            return Err(Error::config(
                "keys",
                "no name of a lock is given; give one or more",
            ));
        }
        keys.iter().try_for_each(Error::check_name)?;
        if let Some(pair) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::config(
                "keys",
                format!("{:?} is given twice; give each name once", pair[0]),
            ));
        }
        let kind = self.kind();
        let LockOptions {
            permits, capacity, ..
        } = self.options;
        match kind.role {
            LockRole::Alone => {}
            LockRole::InTurn => self.session().check_fair()?,
            LockRole::Read | LockRole::Write => self.session().check_read_write()?,
            LockRole::Permit => {
                self.session().check_permits(capacity)?;
                check_number(permits, capacity)?;
            }
        }
        let terms = self.options.terms(self.settings())?;
        Ok(Want {
            permits,
            capacity: capacity.and_then(NonZeroU32::new),
            ..Want::new(kind, terms)
        })
    }
}

/// The owner and the times with which locks are taken.
#[derive(Debug, Clone, Default)]
pub(crate) struct LockOptions {
    pub(crate) owner: Option<Owner>,
    pub(crate) fixed_lease: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Option<Duration>,
    pub(crate) reentry: Option<Reentry>,
    /// As what the lock is taken, if not in the locker's format.
    pub(crate) kind: Option<&'static Kind>,
    /// Of a semaphore: how many permits are taken, and how many there are.
    pub(crate) permits: u32,
    pub(crate) capacity: Option<u32>,
    /// A label of metrics and spans.
    pub(crate) class: Option<&'static str>,
}

impl LockOptions {
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
    fn owner_and_reentry(&self, settings: &Settings) -> (Option<&Owner>, Reentry) {
        (
            self.owner.as_ref(),
            self.reentry.unwrap_or(settings.reentry),
        )
    }
}

/// What a public guard is made of.
#[derive(Debug)]
pub(crate) struct GuardInner {
    // The order matters: the guards are dropped first, while the engine still runs.
    pub(crate) guards: RawGuards,
    shared: Arc<SharedSession>,
    /// The runs in which it was taken.
    runs: Runs,
    span: HoldSpan,
}

impl GuardInner {
    pub(crate) fn session(&self) -> &Arc<Session> {
        self.shared.session()
    }

    /// Returns the scope in which calls enter again.
    pub(crate) fn to_scope(&self) -> Scope {
        Scope {
            owner: self.guards.owner(),
            runs: self.runs.clone(),
        }
    }

    /// Gives the whole hold to a new owner.
    pub(crate) fn detach(self) -> Self {
        self.guards.give_to(&Owner::new());
        self
    }

    /// Takes the lock in another role of the same owner, inside this hold, and then releases this
    /// guard.
    pub(crate) async fn downgrade(self, kind: &'static Kind) -> Result<Self, Error> {
        let view = self.guards.view();
        let hold = view.first().hold();
        let key = &hold.claim.key;
        let caller = Caller {
            owner: hold.owner(),
            origin: self.guards.origin(),
            runs: self.runs.clone(),
        };
        let want = Want::new(kind, hold.terms);
        let session = self.shared.session();
        let taken = session.wait_in_line(key, &caller, &want, None).await;
        let taken = taken.and_then(|taken| taken.ok_or(Error::Closed));
        let guards = RawGuards::from(taken.map_err(|error| error.of(std::slice::from_ref(key)))?);
        let span = HoldSpan::of(&guards, std::slice::from_ref(key), hold.class());
        let inside = Self {
            guards,
            shared: Arc::clone(&self.shared),
            runs: self.runs.clone(),
            span,
        };
        self.unlock().await?;
        Ok(inside)
    }

    pub(crate) fn blocking_downgrade(self, kind: &'static Kind) -> Result<Self, Error> {
        let shared = Arc::clone(&self.shared);
        shared.session().block_on(self.downgrade(kind))
    }

    pub(crate) fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        self.to_scope().run(future)
    }

    fn is_reentry(&self) -> bool {
        self.guards.is_reentry()
    }

    pub(crate) fn blocking_extend(&self, lease: Duration) -> Result<(), Error> {
        self.shared.session().block_on(self.guards.extend(lease))
    }

    pub(crate) async fn unlock(self) -> Result<(), Error> {
        let Self {
            guards,
            shared,
            span,
            ..
        } = self;
        let answer = guards.unlock().await;
        span.ended(&answer);
        // The engine has to run until the answer is here.
        drop(shared);
        answer
    }

    pub(crate) fn blocking_unlock(self) -> Result<(), Error> {
        let Self {
            guards,
            shared,
            span,
            ..
        } = self;
        let answer = shared.session().block_on(guards.unlock());
        span.ended(&answer);
        answer
    }
}

/// The most permits of one call: a script writes a record for each.
const MOST_PERMITS: u32 = 1_000;

/// Returns whether a semaphore can have this number of permits. Redisson reads the number as an
/// `int`.
pub(crate) fn is_capacity(permits: u32) -> bool {
    (1..=i32::MAX.cast_unsigned()).contains(&permits)
}

pub(crate) fn not_a_capacity(permits: u32) -> String {
    let most = i32::MAX;
    format!("the capacity is {permits}: give a semaphore one permit or more, and at most {most}")
}

/// # Errors
/// [`Error::Config`] for a number of permits that no caller can get.
fn check_number(permits: u32, capacity: Option<u32>) -> Result<(), Error> {
    let problem = match capacity {
        Some(capacity) if !is_capacity(capacity) => not_a_capacity(capacity),
        _ if permits == 0 => "0 permits were asked for: ask for 1 or more".to_owned(),
        _ if permits > MOST_PERMITS => {
            format!("{permits} permits were asked for: ask for at most {MOST_PERMITS} at once")
        }
        Some(capacity) if permits > capacity => {
            format!(
                "{permits} permits were asked for, and the capacity is {capacity}: ask for fewer"
            )
        }
        _ => return Ok(()),
    };
    Err(Error::config("permits", problem))
}

/// Shows one name as it is, several as a list.
struct Names<'a>(&'a [Key]);

impl Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [key] => write!(f, "{}", key.shown()),
            keys => write!(f, "{keys:?}"),
        }
    }
}

/// Runs a critical section to its end, or returns `None` at the loss.
async fn until_lost<T>(lost: CancellationToken, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        // Each poll checks for the loss first.
        biased;
        () = lost.cancelled() => None,
        value = work => Some(value),
    }
}
