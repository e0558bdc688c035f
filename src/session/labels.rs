//! Keeps the locker's label on the servers, so that people find the process that holds a lock.
//!
//! No lock depends on a label, and only `holder()` waits for one. It is the key
//! `lockhound_label:<uuid>`, which lives for an hour.
//! - The first grant of a locker has it written, on all nodes; connecting writes nothing, so a
//!   locker that never has a lock leaves no key.
//! - Every 20 minutes it is written again. A node that was away, refused it or lost its data gets
//!   it then: no reconnect and no failure is worth a write of its own.
//! - `holder()` asks all nodes (`quorum/labels.rs`), since in a cluster the label is in another
//!   slot than the lock. At most 512 bytes leave the server, and they are shown cut and escaped:
//!   the text is foreign.
//! - Closing sends the deletion right before the QUIT. After a crash the key stays for an hour at
//!   most.

use std::future::pending;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use tokio::time::{sleep, timeout};

use super::state::{Labelling, Session};
use crate::label::RENEWAL;
use crate::quorum::STRAGGLERS;

/// Writes the label after the first grant, and again every 20 minutes: a server may have forgotten
/// it. Started with the session; ends with the engine, or with the session; no task awaits it.
async fn keep(labelling: Arc<Labelling>, session: Weak<Session>) {
    // The wake-up cannot be lost: the bell keeps a permit, and only this task waits for it.
    labelling.bell.notified().await;
    loop {
        let Some(session) = session.upgrade().filter(|session| !session.is_closed()) else {
            return;
        };
        session
            .quorum
            .label(Arc::clone(&session.id_text), Some(&session.settings.label))
            .await;
        // A task that sleeps must not keep the session, and with it the connections.
        drop(session);
        sleep(RENEWAL).await;
    }
}

/// Returns whether labels are written and read.
pub(super) fn has_labels(session: &Session) -> bool {
    session.settings.kind.labelled
}

/// Starts the task that keeps the label.
pub(super) fn keep_label(session: &Arc<Session>) {
    if has_labels(session) {
        session.engine.spawn(keep(
            Arc::clone(&session.labelling),
            Arc::downgrade(session),
        ));
    }
}

/// Has the label written, because the locker has a lock. No caller waits for that.
pub(super) fn need_label(session: &Session) {
    if !session.labelling.is_needed.swap(true, Ordering::Relaxed) {
        session.labelling.bell.notify_one();
    }
}

/// Deletes the label, and ends all connections. The deletion is sent before the QUIT.
pub(super) async fn leave_servers(session: &Session) {
    let unlabelled = async {
        if has_labels(session) && session.labelling.is_needed.load(Ordering::Relaxed) {
            let deleting = session.quorum.label(Arc::clone(&session.id_text), None);
            if timeout(STRAGGLERS, deleting).await.is_err() {
                // It would not answer the QUIT behind the deletion either: no caller waits for
                // that.
                return;
            }
        }
        // It was sent, so the QUIT decides when this ends.
        pending::<()>().await;
    };
    tokio::select! {
        biased;
        () = unlabelled => {}
        () = session.quorum.quit() => {}
    }
}
