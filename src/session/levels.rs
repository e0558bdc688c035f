//! Reports what goes up and down: holds, waiters, and what waits for an answer.

use std::sync::Arc;

use super::Session;

const NAMES: [&str; 4] = ["lockhound_holds", "lockhound_waiters", "lockhound_pending", "lockhound_pending_undos"];

impl Session {
    /// Reports them now, and with the heartbeats of the connections from now on. Each change would be too often: a
    /// recorder may be slow, and the table's shards are locked then.
    pub(super) fn report_levels(self: &Arc<Self>) {
        self.tell_levels();
        let session = Arc::downgrade(self);
        self.quorum.roll().on_beat(move || {
            if let Some(session) = session.upgrade() {
                session.tell_levels();
                session.lines.shrink();
            }
        });
    }

    pub(super) fn tell_levels(&self) {
        let (holds, waiters) = self.lines.census();
        self.levels.tell(NAMES, [holds, waiters, self.engine.tally().all(), self.engine.tally().undos()]);
    }
}
