//! Whether this crate can work with the server of a connection. No script is sent before that is
//! known.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::Link;
use crate::error::NodeFailure;
use crate::node::scheme::Mode;

/// The result of checking a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::node) enum Fitness {
    /// It has not answered yet.
    Unknown,
    Fit,
    /// This crate cannot work with it, for this reason.
    Unfit(String),
}

/// Why nothing is sent to a server that is connected.
const NOT_KNOWN: &str = "it has not said yet what server it is";

impl Link {
    /// Returns the kind of server that is expected.
    pub(in crate::node) fn mode(&self) -> Mode {
        self.address.mode()
    }

    /// Returns whether Sentinels name the server.
    pub(in crate::node) fn is_named(&self) -> bool {
        self.address.naming().is_some()
    }

    pub(in crate::node) fn set_fitness(&self, fitness: Fitness) {
        self.fitness.send_replace(fitness);
    }

    pub(in crate::node) fn is_known_as(&self, fitness: &Fitness) -> bool {
        *self.fitness.borrow() == *fitness
    }

    /// Waits until it is not known any more what server this is.
    pub(in crate::node) async fn doubted(&self) {
        // Fails only without a sender, which the link has.
        let _: Result<_, _> = self
            .fitness
            .subscribe()
            .wait_for(|fitness| *fitness != Fitness::Fit)
            .await;
    }

    /// Waits a while for the connection, if it is down.
    ///
    /// # Errors
    /// Why it is down, or why nothing may be sent to this server.
    pub(in crate::node) async fn ready(&self) -> Result<(), NodeFailure> {
        self.ready_for(self.patience()).await
    }

    /// Waits for the connection for `patience`, if it is down.
    ///
    /// # Errors
    /// Why it is down, or why nothing may be sent to this server.
    pub(in crate::node) async fn ready_for(&self, patience: Duration) -> Result<(), NodeFailure> {
        self.connected_for(patience).await?;
        for known in [&self.fitness, &self.membership] {
            self.permitted_by(known, patience).await?;
        }
        Ok(())
    }

    /// Waits for `patience` until the server is known to belong to the cluster, if it has to.
    /// Returns whether it is.
    pub(super) async fn is_member(&self, patience: Duration) -> bool {
        let mut membership = self.membership.subscribe();
        matches!(
            timeout(
                patience,
                membership.wait_for(|known| *known == Fitness::Fit)
            )
            .await,
            Ok(Ok(_))
        )
    }

    /// Waits until a check of the server is over.
    ///
    /// # Errors
    /// Why nothing may be sent to it.
    async fn permitted_by(
        &self,
        check: &watch::Sender<Fitness>,
        patience: Duration,
    ) -> Result<(), NodeFailure> {
        if *check.borrow() == Fitness::Fit {
            return Ok(());
        }
        let mut fitness = check.subscribe();
        let known = timeout(
            patience,
            fitness.wait_for(|fitness| *fitness != Fitness::Unknown),
        );
        let reason = match known.await {
            Ok(Ok(known)) => match &*known {
                Fitness::Fit => return Ok(()),
                Fitness::Unfit(reason) => reason.clone(),
                Fitness::Unknown => NOT_KNOWN.to_owned(),
            },
            Ok(Err(_)) | Err(_) => NOT_KNOWN.to_owned(),
        };
        Err(self.failure(reason))
    }
}
