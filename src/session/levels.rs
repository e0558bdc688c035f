//! Reports what goes up and down: holds, waiters, and what waits for an answer.

use std::sync::Arc;

use super::Session;

const NAMES: [&str; 4] = [
    "lockhound_holds",
    "lockhound_waiters",
    "lockhound_pending",
    "lockhound_pending_undos",
];

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
    let (holds, waiters) = session.lines.census();
    session.levels.tell(
        NAMES,
        [
            holds,
            waiters,
            session.engine.tally().all(),
            session.engine.tally().undos(),
        ],
    );
}
