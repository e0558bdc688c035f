//! A connection to a server, on which commands that only read are sent.

use std::sync::Arc;

use futures_util::future::join_all;
use lockhound::servers::{ServerHandle, ServerReply, Unanswered, Visit};

use crate::exit::{self, Failure};

/// A server, and the connection to it. A connection answers for a limited time only, so it is
/// opened again as needed.
pub(super) struct Post {
    server: ServerHandle,
    visit: Option<Visit>,
}

impl Post {
    pub(super) fn new(server: ServerHandle) -> Self {
        Self {
            server,
            visit: None,
        }
    }

    /// Keeps the connection, and opens the next one to this server.
    pub(super) fn at(self, server: ServerHandle) -> Self {
        Self { server, ..self }
    }

    pub(super) fn name(&self) -> &Arc<str> {
        self.server.name()
    }

    pub(super) fn is_in_cluster(&self) -> bool {
        self.server.is_in_cluster()
    }

    /// Asks questions that change nothing: on the connection that is there, and if it is silent,
    /// again on a new one.
    pub(super) async fn ask<T>(
        &mut self,
        questions: impl AsyncFn(&Visit) -> Result<T, Unanswered>,
    ) -> Result<T, Unanswered> {
        if let Some(visit) = &self.visit {
            match questions(visit).await {
                Err(Unanswered::Silent(_)) => {}
                answered => return answered,
            }
        }
        let visit = self.server.visit().await?;
        let answered = questions(&visit).await;
        self.visit = Some(visit);
        answered
    }

    /// Returns the labels of lockers, as far as this server has them and tells.
    pub(super) async fn labels(&mut self, lockers: &[String]) -> Vec<(String, String)> {
        let asked = self.ask(async |visit| {
            let labels = lockers.iter().map(async |locker| {
                let label = format!("lockhound_label:{locker}");
                let read = ask(visit, &["GETRANGE", &label, "0", "511"]).await;
                read.map(|reply| text(&reply).filter(|text| !text.is_empty()))
                    .map(|label| Some((locker.clone(), label?)))
            });
            let answers = join_all(labels).await.into_iter();
            // Nothing depends on a label: one that another master has, or that this user may not
            // read, is none.
            Ok(answers.filter_map(Result::ok).flatten().collect())
        });
        asked.await.unwrap_or_default()
    }

    pub(super) fn failure(&self, why: Unanswered) -> Failure {
        let why = reason(why);
        Failure::new(exit::UNAVAILABLE, format!("{}: {why}", self.name()))
    }
}

/// Sends a command that only reads.
pub(super) async fn ask(visit: &Visit, words: &[&str]) -> Result<ServerReply, Unanswered> {
    Ok(visit.ask(words).await?.reply)
}

pub(super) fn reason(why: Unanswered) -> String {
    match why {
        Unanswered::Forbidden(why) | Unanswered::Refused(why) | Unanswered::Silent(why) => why,
        _ => "there is no answer".to_owned(),
    }
}

/// Returns whether the server says that another master of the cluster has the key.
pub(super) fn is_moved(error: &str) -> bool {
    ["MOVED ", "ASK ", "TRYAGAIN "]
        .iter()
        .any(|code| error.contains(code))
}

/// Returns the text of an answer.
pub(super) fn text(reply: &ServerReply) -> Option<String> {
    match reply {
        ServerReply::Text(text) => Some(text.clone()),
        _ => None,
    }
}

/// Returns the number of an answer.
pub(super) fn number(reply: &ServerReply) -> Option<i64> {
    match reply {
        ServerReply::Int(number) => Some(*number),
        ServerReply::Text(text) => text.parse().ok(),
        _ => None,
    }
}

/// Returns the texts of a list.
pub(super) fn texts(reply: &ServerReply) -> Vec<String> {
    match reply {
        ServerReply::List(items) => items.iter().filter_map(text).collect(),
        _ => Vec::new(),
    }
}
