//! Reports what goes up and down: holds, waiters, callers that wait for latches, and what waits for
//! an answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Session;
use super::state::LEVELS;
use crate::kind::LockKind;

/// Reports them now, and with the heartbeats of the connections from now on.
pub(super) fn report_levels(session: &Arc<Session>) {
    tell_levels(session);
    let weak = Arc::downgrade(session);
    // At each change would be too often: a recorder may be slow, and a shard of the table is locked
    // then.
    session.quorum.roll().on_beat(move || {
        if let Some(session) = weak.upgrade() {
            tell_levels(&session);
            session.lines.shrink();
        }
    });
}

pub(super) fn tell_levels(session: &Session) {
    let census = session.lines.census();
    let tally = session.engine.tally();
    let each = LockKind::ALL.into_iter().zip(census);
    let each = each.flat_map(|(kind, (holds, waiters))| {
        [
            (("lockhound_holds", Some(kind)), holds),
            (("lockhound_waiters", Some(kind)), waiters),
        ]
    });
    let levels: Vec<_> = each
        .chain([
            (
                ("lockhound_latch_waiters", None),
                session.latch_waiters.load(Ordering::Relaxed),
            ),
            (("lockhound_pending", None), tally.pending()),
            (("lockhound_pending_undos", None), tally.undos()),
        ])
        .collect();
    session.levels.tell(
        std::array::from_fn::<_, LEVELS, _>(|at| levels[at].0),
        std::array::from_fn(|at| levels[at].1),
    );
}
